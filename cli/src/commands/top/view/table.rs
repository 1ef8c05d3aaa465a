//! Columns in the room there is.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Modifier;

use super::super::text;
use super::{Look, line};
use crate::output::{self, Cell};

/// Blanks between two columns.
const GAP: usize = 2;
/// The last column may be cut to this before another one is left out.
const LAST_AT_LEAST: usize = 20;

/// A heading, and how soon its column is left out where there is no room: the highest first, 0 never.
pub type Column = (&'static str, u8);

/// Draws headings and rows; the first column and the last one take less room where it is short. A mark stands before the chosen row.
pub fn draw(
    columns: &[Column],
    rows: &[Vec<Cell>],
    chosen: Option<usize>,
    look: Look,
    area: Rect,
    buffer: &mut Buffer,
) {
    let room = usize::from(area.width).saturating_sub(GAP);
    let widths = widths(columns, rows, room);
    let headings: Vec<Cell> = columns.iter().map(|(heading, _)| Cell::styled(*heading, output::Style::Dim)).collect();
    let all = std::iter::once((&headings, false))
        .chain(rows.iter().enumerate().map(|(index, row)| (row, chosen == Some(index))));
    for (y, (cells, is_chosen)) in (area.y..area.bottom()).zip(all) {
        if is_chosen {
            line(">", look.style(output::Style::Bold), Rect { y, height: 1, ..area }, buffer);
        }
        let mut x = usize::from(area.x) + GAP;
        for (index, (cell, &width)) in cells.iter().zip(&widths).enumerate() {
            if width == 0 {
                continue;
            }
            let Ok(from) = u16::try_from(x) else { break };
            let at = Rect { x: from, y, width: area.right().saturating_sub(from), height: 1 };
            let mut style = look.style(cell.style());
            if is_chosen {
                style = style.add_modifier(Modifier::BOLD | Modifier::REVERSED);
            }
            // Names differ at their ends; sentences and numbers are read from the beginning.
            let shown = if index == 0 { text::cut(cell.text(), width) } else { text::cut_end(cell.text(), width) };
            line(&shown, style, at, buffer);
            x += width + GAP;
        }
    }
}

/// How wide each column is; 0: it is left out.
fn widths(columns: &[Column], rows: &[Vec<Cell>], room: usize) -> Vec<usize> {
    let full: Vec<usize> = (0..columns.len())
        .map(|index| match rows.iter().map(|row| text::width(row[index].text())).max() {
            None | Some(0) => 0,
            Some(widest) => widest.max(columns[index].0.len()),
        })
        .collect();
    let mut widths = full.clone();
    let (Some(&first), Some(last)) = (full.first(), full.len().checked_sub(1)) else { return widths };
    // A long name is cut before it costs columns, and gets back what they leave.
    widths[0] = first.min((room * 2 / 5).max(20));
    while taken(&widths) > room {
        let over = taken(&widths) - room;
        if last > 0 && widths[last] > LAST_AT_LEAST {
            widths[last] = widths[last].saturating_sub(over).max(LAST_AT_LEAST);
            continue;
        }
        let dispensable = (1..=last).filter(|&index| widths[index] > 0 && columns[index].1 > 0);
        match dispensable.max_by_key(|&index| columns[index].1) {
            Some(index) => widths[index] = 0,
            None => {
                widths[0] = widths[0].saturating_sub(over).max(1);
                break;
            }
        }
    }
    let left = room.saturating_sub(taken(&widths));
    widths[0] += left.min(first - widths[0].min(first));
    widths
}

fn taken(widths: &[usize]) -> usize {
    let shown = widths.iter().filter(|width| **width > 0);
    shown.map(|width| width + GAP).sum::<usize>().saturating_sub(GAP)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(texts: [&str; 4]) -> Vec<Cell> {
        texts.map(Cell::from).to_vec()
    }

    const COLUMNS: [Column; 4] = [("TREE", 0), ("PID", 2), ("VERDICT", 0), ("WAITING", 1)];

    #[test]
    fn where_room_is_short_the_last_column_is_cut_then_others_are_left_out_and_the_name_is_cut_last() {
        let rows = [row(["/shop/ingest/feed", "4711", "healthy", "no node of the cluster has disk=ssd"])];
        assert_eq!(widths(&COLUMNS, &rows, 69), [17, 4, 7, 35]);
        assert_eq!(widths(&COLUMNS, &rows, 60), [17, 4, 7, 26], "the last is cut");
        assert_eq!(widths(&COLUMNS, &rows, 50), [17, 0, 7, 20], "the number of the process goes first");
        assert_eq!(widths(&COLUMNS, &rows, 30), [17, 0, 7, 0]);
        assert_eq!(widths(&COLUMNS, &rows, 20), [11, 0, 7, 0]);
        assert_eq!(widths(&COLUMNS, &rows, 0), [1, 0, 7, 0]);
    }

    #[test]
    fn a_long_name_costs_no_column_that_it_could_be_cut_for() {
        let long = "a".repeat(100);
        let rows = [row([&long, "4711", "healthy", ""])];
        assert_eq!(widths(&COLUMNS, &rows, 60), [45, 4, 7, 0]);
    }
}
