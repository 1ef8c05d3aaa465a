//! Draws the model. Nothing is kept between two drawings.

mod panes;
mod table;

use std::time::Duration;

use pando_protocol::view::{NodeState, TreeRow};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, BorderType, Clear, Widget};
use tokio::time::Instant;

use super::model::Model;
use super::overlay::{Overlay, Sheet};
use super::{layout, text};
use crate::human;
use crate::output;

/// How the screen looks beside what it shows.
#[derive(Debug, Clone, Copy)]
pub struct Look {
    /// Whether there are colours.
    pub colour: bool,
    /// The time, for the age of what is shown.
    pub now: Instant,
}

/// Draws all of the screen.
pub fn draw(model: &Model, look: Look, buffer: &mut Buffer) {
    let parts = layout::of(model);
    header(model, look, parts.header, buffer);
    for (pane, area) in parts.panes {
        panes::draw(model, pane, look, area, buffer);
    }
    footer(model, look, parts.footer, buffer);
    if let Some(sheet) = &model.sheet {
        over(model, sheet, look, buffer);
    }
}

impl Look {
    /// A style of tables, on a screen.
    fn style(self, style: output::Style) -> Style {
        let plain = Style::default();
        match style {
            output::Style::Plain => plain,
            output::Style::Bold => plain.add_modifier(Modifier::BOLD),
            output::Style::Dim => plain.add_modifier(Modifier::DIM),
            _ if !self.colour => plain,
            output::Style::Green => plain.fg(Color::Green),
            output::Style::Yellow => plain.fg(Color::Yellow),
            output::Style::Red => plain.fg(Color::Red).add_modifier(Modifier::BOLD),
            output::Style::Cyan => plain.fg(Color::Cyan),
        }
    }
}

/// What is wrong, else a summary; on the right the age of it.
fn header(model: &Model, look: Look, area: Rect, buffer: &mut Buffer) {
    let age = match model.age(look.now) {
        // What changes many times a second is not readable, and costs a slow terminal.
        Some(age) if age < Duration::from_secs(1) => "under 1 s old".into(),
        Some(age) => format!("{} old", human::duration(age)),
        None => "nothing seen yet".into(),
    };
    let room = usize::from(area.width).saturating_sub(text::width(&age) + 2);
    let (said, style) = match model.warning(look.now) {
        Some(warning) => (warning, output::Style::Red),
        None => (summary(model), output::Style::Bold),
    };
    line(&text::cut_end(&said, room), look.style(style), area, buffer);
    let right = Rect { x: area.right().saturating_sub(text::width(&age).min(999) as u16), ..area }.intersection(area);
    line(&age, look.style(output::Style::Dim), right, buffer);
}

fn summary(model: &Model) -> String {
    let rows = model.tree.rows();
    let Some(base) = rows.first().map(|row| row.path.depth()) else {
        return "pando top".into();
    };
    let roots: Vec<&TreeRow> = rows.iter().filter(|row| row.path.depth() == base).collect();
    let sum = |of: fn(&TreeRow) -> u32| roots.iter().map(|row| of(row)).sum::<u32>();
    let (alive, configured) = (sum(|row| row.alive), sum(|row| row.configured));
    let nodes = model.nodes.rows();
    let up = nodes.iter().filter(|row| row.state == NodeState::Up).count();
    let leader = model.leader().map_or("no leader".into(), |leader| format!("leader {leader}"));
    let trees = human::count(roots.len() as u64, if model.root.is_some() { "part" } else { "tree" });
    format!(
        "pando top: {leader}, {up} of {} up, {trees}, {alive} of {configured} ready",
        human::count(nodes.len() as u64, "node")
    )
}

/// What was said last, else what is under way, else the keys.
fn footer(model: &Model, look: Look, area: Rect, buffer: &mut Buffer) {
    let (said, style) = if model.is_typing {
        (format!("show only what mentions: {}_   (Enter: done, Esc: everything)", model.filter), output::Style::Cyan)
    } else if let Some(notice) = &model.notice {
        (notice.clone(), output::Style::Cyan)
    } else if let Some(doing) = &model.doing {
        (format!("{}: no answer yet …", doing.command()), output::Style::Cyan)
    } else if let Some(Sheet { overlay: Overlay::Question(_), .. }) = &model.sheet {
        ("y yes  n no".into(), output::Style::Cyan)
    } else if model.sheet.is_some() {
        ("↑↓ scroll  Esc close".into(), output::Style::Dim)
    } else {
        let keys = "Tab pane  ↑↓ choose  Enter explain  l logs  r restart  d drain  / filter  ? help  q quit";
        (keys.into(), output::Style::Dim)
    };
    line(&text::cut_end(&said, usize::from(area.width)), look.style(style), area, buffer);
}

/// A sheet in a frame, over what lies there.
fn over(model: &Model, sheet: &Sheet, look: Look, buffer: &mut Buffer) {
    let (area, lines) = layout::sheet(model, sheet);
    let inside = usize::from(area.height.saturating_sub(2));
    let last = lines.len().saturating_sub(inside);
    let top = sheet.top.unwrap_or(last).min(last);
    let title = format!(" {} ", text::cut_end(&sheet.title(), usize::from(area.width).saturating_sub(6)));
    let mut block = Block::bordered().border_type(BorderType::Rounded).title(title);
    if lines.len() > inside {
        let place = format!(" {} to {} of {} ", top + 1, (top + inside).min(lines.len()), lines.len());
        block = block.title_bottom(Line::from(place).right_aligned());
    }
    Clear.render(area, buffer);
    let inner = block.inner(area);
    block.border_style(look.style(output::Style::Cyan)).render(area, buffer);
    for (row, text) in (inner.y..inner.bottom()).zip(&lines[top..]) {
        let at = Rect { x: inner.x + 1, y: row, width: inner.width.saturating_sub(2), height: 1 };
        line(text, Style::default(), at, buffer);
    }
}

/// Writes one line into an area; what does not fit is left out.
fn line(text: &str, style: Style, area: Rect, buffer: &mut Buffer) {
    let area = area.intersection(buffer.area);
    if area.is_empty() {
        return;
    }
    buffer.set_stringn(area.x, area.y, text, usize::from(area.width), style);
}
