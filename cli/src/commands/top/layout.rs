//! Which part of the screen is for what.

use ratatui::layout::Rect;

use super::model::{Model, Pane};
use super::overlay::{Overlay, Sheet};
use super::text;

/// With fewer rows than this one pane is shown, and with it the last events.
const ROWS_FOR_ALL: u16 = 30;
/// With fewer rows than this nothing stands beside the one pane.
const ROWS_FOR_EVENTS: u16 = 16;
/// Events beside one pane, with their heading.
const EVENTS_BESIDE: u16 = 5;
/// Wider texts are hard to read.
const WIDEST_SHEET: u16 = 120;

/// The parts of the screen; they do not overlap.
#[derive(Debug, PartialEq, Eq)]
pub struct Layout {
    /// What all of it is.
    pub header: Rect,
    /// The panes that are shown, from above.
    pub panes: Vec<(Pane, Rect)>,
    /// Keys, or what was said last.
    pub footer: Rect,
}

/// The parts of a screen of the model's size.
pub fn of(model: &Model) -> Layout {
    let (columns, rows) = model.size;
    let header = Rect::new(0, 0, columns, rows.min(1));
    let footer = Rect::new(0, rows.saturating_sub(1), columns, u16::from(rows > 1));
    let body = rows.saturating_sub(2);
    let heights = if rows >= ROWS_FOR_ALL { all(model, body) } else { one(model, rows, body) };
    let mut panes = Vec::new();
    let mut y = header.bottom();
    for (pane, height) in heights {
        panes.push((pane, Rect::new(0, y, columns, height)));
        y += height;
    }
    Layout { header, panes, footer }
}

/// How many lines of a pane are shown at once.
pub fn rows_of(model: &Model, pane: Pane) -> usize {
    let found = of(model).panes.into_iter().find(|(shown, _)| *shown == pane);
    found.map_or(0, |(_, area)| usize::from(area.height.saturating_sub(above_rows(pane))))
}

/// The lines of a pane above its rows: its name, and the headings of its columns.
pub fn above_rows(pane: Pane) -> u16 {
    match pane {
        Pane::Tree | Pane::Mailboxes | Pane::Nodes => 2,
        Pane::Events => 1,
    }
}

/// Where a sheet lies, and the lines of its text as broken to fit there.
pub fn sheet(model: &Model, sheet: &Sheet) -> (Rect, Vec<String>) {
    let (columns, rows) = model.size;
    let width = columns.saturating_sub(4).min(WIDEST_SHEET).max(columns.min(8));
    let lines = text::wrapped(&sheet.text(model), usize::from(width.saturating_sub(4)));
    let most = rows.saturating_sub(2).max(rows.min(3));
    let wanted = match sheet.overlay {
        // What is asked again and again changes its length, and would jump.
        Overlay::Logs { .. } | Overlay::Explain(..) => most,
        Overlay::Help | Overlay::Mailbox(_) | Overlay::Node(_) | Overlay::Message { .. } | Overlay::Question(_) => {
            u16::try_from(lines.len() + 2).unwrap_or(u16::MAX)
        }
    };
    let height = wanted.min(most);
    let area = Rect::new((columns - width) / 2, (rows - height) / 2, width, height);
    (area, lines)
}

/// How many lines a sheet has, and how many of them are shown at once.
pub fn sheet_extent(model: &Model, over: &Sheet) -> (usize, usize) {
    let (area, lines) = sheet(model, over);
    (lines.len(), usize::from(area.height.saturating_sub(2)))
}

/// The chosen pane, and below it the last events where there is room.
fn one(model: &Model, rows: u16, body: u16) -> Vec<(Pane, u16)> {
    if model.pane == Pane::Events || rows < ROWS_FOR_EVENTS {
        return vec![(model.pane, body)];
    }
    vec![(model.pane, body - EVENTS_BESIDE), (Pane::Events, EVENTS_BESIDE)]
}

/// All panes. Each has its share; what one does not need goes to the chosen one, then to the others.
fn all(model: &Model, body: u16) -> Vec<(Pane, u16)> {
    let needs = Pane::ALL.map(|pane| needed(model, pane));
    let shares = [body * 2 / 5, body / 5, body / 5, body / 5];
    let mut heights: [u16; 4] = std::array::from_fn(|index| needs[index].min(shares[index]));
    let order = std::iter::once(model.pane).chain(Pane::ALL.into_iter().filter(|pane| *pane != model.pane));
    for pane in order {
        let index = pane as usize;
        let left = body.saturating_sub(heights.iter().sum());
        heights[index] += left.min(needs[index] - heights[index]);
    }
    heights[Pane::Events as usize] += body.saturating_sub(heights.iter().sum());
    Pane::ALL.into_iter().zip(heights).collect()
}

fn needed(model: &Model, pane: Pane) -> u16 {
    let rows = match pane {
        Pane::Tree => model.tree.len(),
        Pane::Mailboxes => model.mailboxes.len(),
        Pane::Nodes => model.nodes.len(),
        Pane::Events => model.events.len(),
    };
    // A pane without rows says so in a line.
    u16::try_from(rows.max(1)).unwrap_or(u16::MAX - 2).saturating_add(above_rows(pane))
}
