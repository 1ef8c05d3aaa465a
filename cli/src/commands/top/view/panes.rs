//! The panes: a line with the name, the headings, and the rows around the chosen one.

use pando_protocol::session::NodeRole;
use pando_protocol::view::NodeRow;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Modifier;

use super::super::list::{List, Row};
use super::super::model::{Model, Pane};
use super::super::{layout, text};
use super::table::{self, Column};
use super::{Look, line};
use crate::commands::{mailbox, node, tree};
use crate::human;
use crate::output::{Cell, Style};

/// How soon the columns of a tree are left out: see [`Column`].
const TREE: [u8; 9] = [0, 4, 1, 7, 6, 2, 0, 5, 3];
/// How soon those of mailboxes are.
const MAILBOXES: [u8; 10] = [0, 0, 1, 1, 2, 3, 6, 5, 4, 7];
/// How soon those of nodes are.
const NODES: [u8; 10] = [0, 1, 0, 2, 3, 5, 7, 4, 8, 6];
/// The place of the session among the columns of nodes.
const SESSION: usize = 7;

const NO_TREES: &str = "no trees yet: `pando apply FILE` starts one";
const NO_MAILBOXES: &str = "no mailboxes: a child with the key mailbox has one";
const NO_NODES: &str = "no node has joined yet";

/// Draws a pane.
pub fn draw(model: &Model, pane: Pane, look: Look, area: Rect, buffer: &mut Buffer) {
    if area.is_empty() {
        return;
    }
    heading(model, pane, look, Rect { height: 1, ..area }, buffer);
    let below = Rect { y: area.y + 1, height: area.height - 1, ..area };
    let height = usize::from(area.height.saturating_sub(layout::above_rows(pane)));
    let chosen = model.pane == pane;
    match pane {
        Pane::Tree => {
            let rows = cells(&model.tree, height, |at, row| {
                let mut cells = tree::cells(row, &model.stems[at]).to_vec();
                if model.folded.contains(&row.path) && model.filter.is_empty() {
                    cells[0] = Cell::styled(format!("{} […]", cells[0].text()), cells[0].style());
                }
                cells
            });
            let columns = columns(tree::HEADINGS, TREE);
            show(&columns, &rows, at(&model.tree, height, chosen), none(&model.tree, NO_TREES), look, below, buffer);
        }
        Pane::Mailboxes => {
            let rows = cells(&model.mailboxes, height, |_, row| mailbox::rows::line(row).to_vec());
            let columns = columns(mailbox::rows::HEADINGS, MAILBOXES);
            show(
                &columns,
                &rows,
                at(&model.mailboxes, height, chosen),
                none(&model.mailboxes, NO_MAILBOXES),
                look,
                below,
                buffer,
            );
        }
        Pane::Nodes => {
            let rows = cells(&model.nodes, height, |_, row| of_node(row, model));
            let mut columns = columns(node::HEADINGS, NODES);
            columns[SESSION].0 = "LEASE";
            show(&columns, &rows, at(&model.nodes, height, chosen), none(&model.nodes, NO_NODES), look, below, buffer);
        }
        Pane::Events => events(model, chosen, look, below, buffer),
    }
}

/// A node as in `pando node ls`, with its lease in place of its session, and the leader as such.
fn of_node(row: &NodeRow, model: &Model) -> Vec<Cell> {
    let mut cells = node::cells(row).to_vec();
    if row.role == NodeRole::Voter && model.leader() == Some(&row.name) {
        cells[1] = Cell::styled("leader", Style::Green);
    }
    cells[SESSION] = match &row.session {
        Some(session) => format!("held, {session}").into(),
        None => Cell::styled("over", Style::Red),
    };
    cells
}

/// The rows that are drawn, as cells.
fn cells<T: Row>(list: &List<T>, height: usize, cells: impl Fn(usize, &T) -> Vec<Cell>) -> Vec<Vec<Cell>> {
    list.window(height).filter_map(|at| list.shown(at).map(|row| cells(at, row))).collect()
}

/// The place of the chosen row among those that are drawn; `None` where keys are for another pane.
fn at<T: Row>(list: &List<T>, height: usize, is_chosen: bool) -> Option<usize> {
    is_chosen.then(|| list.at() - list.window(height).start)
}

/// What stands in place of rows.
fn none<T: Row>(list: &List<T>, there_are_none: &'static str) -> &'static str {
    match (list.is_known(), list.rows().is_empty()) {
        (false, _) => "no answer yet",
        (true, true) => there_are_none,
        (true, false) => "none mentions what is looked for: Esc shows everything",
    }
}

fn columns<const N: usize>(headings: [&'static str; N], ranks: [u8; N]) -> Vec<Column> {
    headings.into_iter().zip(ranks).collect()
}

fn show(
    columns: &[Column],
    rows: &[Vec<Cell>],
    chosen: Option<usize>,
    empty: &str,
    look: Look,
    area: Rect,
    buffer: &mut Buffer,
) {
    if rows.is_empty() {
        let at = Rect { x: area.x + 2, width: area.width.saturating_sub(2), ..area };
        return line(empty, look.style(Style::Dim), at, buffer);
    }
    table::draw(columns, rows, chosen, look, area, buffer);
}

/// Where keys are for another pane, the newest events are shown.
fn events(model: &Model, is_chosen: bool, look: Look, area: Rect, buffer: &mut Buffer) {
    let height = usize::from(area.height);
    let list = &model.events;
    let window = match model.follows_events {
        true => list.len().saturating_sub(height)..list.len(),
        false => list.window(height),
    };
    for (y, at) in (area.y..area.bottom()).zip(window) {
        let Some(event) = list.shown(at) else { continue };
        let is_chosen = is_chosen && at == list.at();
        let row = Rect { y, height: 1, ..area };
        if is_chosen {
            line(">", look.style(Style::Bold), row, buffer);
        }
        let time = human::time_of_day(event.at);
        let begin = Rect { x: row.x + 2, width: row.width.saturating_sub(2), ..row };
        line(&time, look.style(Style::Dim), begin, buffer);
        let room = usize::from(begin.width).saturating_sub(time.len() + 2);
        let right = begin.right().saturating_sub(room as u16);
        let mut style = look.style(Style::Plain);
        if is_chosen {
            style = style.add_modifier(Modifier::BOLD | Modifier::REVERSED);
        }
        line(&text::cut_end(&event.text, room), style, Rect { x: right, width: room as u16, ..begin }, buffer);
    }
}

/// `── Tree ────────── 3 of 12 ──`
fn heading(model: &Model, pane: Pane, look: Look, area: Rect, buffer: &mut Buffer) {
    let (name, len, at) = match pane {
        Pane::Tree => ("Tree", model.tree.len(), model.tree.at()),
        Pane::Mailboxes => ("Mailboxes", model.mailboxes.len(), model.mailboxes.at()),
        Pane::Nodes => ("Nodes", model.nodes.len(), model.nodes.at()),
        Pane::Events => ("Events", model.events.len(), model.events.at()),
    };
    let is_chosen = model.pane == pane;
    let (bar, style) = if is_chosen { ("━", Style::Bold) } else { ("─", Style::Dim) };
    let look_of = look.style(style);
    line(&bar.repeat(usize::from(area.width)), look_of, area, buffer);
    let filter = if model.filter.is_empty() { String::new() } else { format!(", only {:?}", model.filter) };
    let room = usize::from(area.width).saturating_sub(4);
    let name = text::cut_end(&format!(" {name}{filter} "), room);
    line(&name, look_of, Rect { x: area.x + 2, width: area.width.saturating_sub(2), ..area }, buffer);
    let place = if is_chosen && len > 0 { format!(" {} of {len} ", at + 1) } else { format!(" {len} ") };
    let taken = text::width(&name) + text::width(&place) + 6;
    if taken < usize::from(area.width) {
        let x = area.right() - 2 - text::width(&place) as u16;
        line(&place, look_of, Rect { x, width: area.right() - x, ..area }, buffer);
    }
}
