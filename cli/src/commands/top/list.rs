//! Rows with a chosen one, of which those are shown that a filter lets through.

use pando_protocol::mail::MailboxRow;
use pando_protocol::view::{EventRow, NodeRow, TreeRow};

/// What a [`List`] holds.
pub trait Row {
    /// Whether both are about the same member, node or event, maybe at different times.
    fn is_same(&self, other: &Self) -> bool;
    /// Whether it is about `text`.
    fn mentions(&self, text: &str) -> bool;
}

/// Rows, which of them are shown, and which of those is chosen.
#[derive(Debug)]
pub struct List<T> {
    rows: Vec<T>,
    /// Places in `rows`, ascending.
    shown: Vec<usize>,
    /// A place in `shown`.
    at: usize,
    is_known: bool,
}

impl<T> Default for List<T> {
    fn default() -> Self {
        Self { rows: Vec::new(), shown: Vec::new(), at: 0, is_known: false }
    }
}

impl<T: Row> List<T> {
    /// All rows, shown or not.
    pub fn rows(&self) -> &[T] {
        &self.rows
    }

    /// Whether it was ever told what there is.
    pub fn is_known(&self) -> bool {
        self.is_known
    }

    /// How many are shown.
    pub fn len(&self) -> usize {
        self.shown.len()
    }

    /// The place of the chosen one among those that are shown.
    pub fn at(&self) -> usize {
        self.at
    }

    /// The one that is shown at this place.
    pub fn shown(&self, at: usize) -> Option<&T> {
        self.shown.get(at).map(|&index| &self.rows[index])
    }

    /// The chosen one; `None` where none is shown.
    pub fn chosen(&self) -> Option<&T> {
        self.shown(self.at)
    }

    /// Replaces the rows; the same one stays chosen, or what took its place.
    pub fn replace(&mut self, rows: Vec<T>, filter: &str) {
        let shown = matching(&rows, filter);
        self.arrange(rows, shown);
    }

    /// Shows those of the rows that mention the text, as [`Self::show`] does.
    pub fn filter(&mut self, filter: &str) {
        let shown = matching(&self.rows, filter);
        self.show(shown);
    }

    /// Replaces the rows and which of them are shown.
    pub fn arrange(&mut self, rows: Vec<T>, shown: Vec<usize>) {
        let same = self.chosen().and_then(|chosen| shown.iter().position(|&index| rows[index].is_same(chosen)));
        (self.rows, self.shown, self.is_known) = (rows, shown, true);
        self.at = same.unwrap_or(self.at);
        self.stay_inside();
    }

    /// Shows others of the rows, and chooses the one that lies at or last before the chosen one.
    pub fn show(&mut self, shown: Vec<usize>) {
        let chosen = self.shown.get(self.at).copied();
        self.shown = shown;
        self.at = chosen.map_or(0, |index| self.shown.partition_point(|&other| other <= index).saturating_sub(1));
        self.stay_inside();
    }

    /// Adds a row at the end, and forgets the oldest where there are more than `most`.
    pub fn push(&mut self, row: T, filter: &str, most: usize) {
        if self.rows.len() >= most {
            self.forget(most / 10 + 1);
        }
        if row.mentions(filter) {
            self.shown.push(self.rows.len());
        }
        self.rows.push(row);
    }

    /// Chooses the one that is so many further down, or up.
    pub fn step(&mut self, by: isize) {
        self.at = self.at.saturating_add_signed(by);
        self.stay_inside();
    }

    /// Chooses the one at this place.
    pub fn choose(&mut self, at: usize) {
        self.at = at;
        self.stay_inside();
    }

    /// Chooses the last.
    pub fn last(&mut self) {
        self.at = self.shown.len().saturating_sub(1);
    }

    /// The places of those to be drawn where there is room for `height`: around the chosen one.
    pub fn window(&self, height: usize) -> std::ops::Range<usize> {
        let first = self.at.saturating_sub(height / 2).min(self.shown.len().saturating_sub(height));
        first..self.shown.len().min(first + height)
    }

    fn forget(&mut self, oldest: usize) {
        self.rows.drain(..oldest.min(self.rows.len()));
        let gone = self.shown.partition_point(|&index| index < oldest);
        self.shown.drain(..gone);
        self.shown.iter_mut().for_each(|index| *index -= oldest);
        self.at = self.at.saturating_sub(gone);
    }

    fn stay_inside(&mut self) {
        self.at = self.at.min(self.shown.len().saturating_sub(1));
    }
}

fn matching<T: Row>(rows: &[T], filter: &str) -> Vec<usize> {
    rows.iter().enumerate().filter(|(_, row)| row.mentions(filter)).map(|(index, _)| index).collect()
}

impl Row for TreeRow {
    fn is_same(&self, other: &Self) -> bool {
        self.path == other.path
    }

    fn mentions(&self, text: &str) -> bool {
        self.path.as_str().contains(text)
    }
}

impl Row for MailboxRow {
    fn is_same(&self, other: &Self) -> bool {
        self.path == other.path
    }

    fn mentions(&self, text: &str) -> bool {
        self.path.as_str().contains(text)
    }
}

impl Row for NodeRow {
    fn is_same(&self, other: &Self) -> bool {
        self.name == other.name
    }

    fn mentions(&self, text: &str) -> bool {
        self.name.as_str().contains(text)
    }
}

impl Row for EventRow {
    fn is_same(&self, other: &Self) -> bool {
        self.number == other.number
    }

    fn mentions(&self, text: &str) -> bool {
        self.text.contains(text)
    }
}
