//! What keys do.

use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use pando_protocol::ids::{NodeName, Path};

use super::deed::Deed;
use super::layout;
use super::model::{Model, Pane};
use super::overlay::{Overlay, Sheet};

/// What a key asks of those outside the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wish {
    /// Quit.
    Quit,
    /// The cluster is to do something.
    Do(Deed),
}

impl Model {
    /// Does what a key says.
    pub fn press(&mut self, key: KeyEvent) -> Option<Wish> {
        if key.kind == KeyEventKind::Release {
            return None;
        }
        self.touch();
        self.notice = None;
        // Esc and a key that come together, as they do over a slow link, are read as one with Alt.
        if key.modifiers.contains(KeyModifiers::ALT) {
            let key = KeyEvent { modifiers: key.modifiers - KeyModifiers::ALT, ..key };
            return self.press(KeyEvent::new(KeyCode::Esc, KeyModifiers::NONE)).or_else(|| self.press(key));
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return matches!(key.code, KeyCode::Char('c')).then_some(Wish::Quit);
        }
        if let Some(sheet) = self.sheet.take() {
            return self.press_over(sheet, key.code);
        }
        if self.is_typing {
            self.type_filter(key.code);
            return None;
        }
        self.press_in_pane(key.code)
    }

    fn press_over(&mut self, mut sheet: Sheet, code: KeyCode) -> Option<Wish> {
        if let Overlay::Question(deed) = &sheet.overlay {
            let deed = deed.clone();
            return match code {
                KeyCode::Char('y' | 'Y') => {
                    self.close(sheet);
                    self.ask_for(deed)
                }
                KeyCode::Char('n' | 'N' | 'q') | KeyCode::Esc => {
                    self.close(sheet);
                    self.notice = Some("nothing was changed".into());
                    None
                }
                // A key that was meant for something else answers nothing.
                _ => {
                    self.sheet = Some(sheet);
                    None
                }
            };
        }
        if matches!(code, KeyCode::Esc | KeyCode::Char('q') | KeyCode::Enter) {
            self.close(sheet);
            return None;
        }
        let (lines, height) = layout::sheet_extent(self, &sheet);
        let last = lines.saturating_sub(height);
        let page = isize::try_from(height).unwrap_or(1).max(1);
        if let Some(by) = step(code, page) {
            let top = sheet.top.unwrap_or(last).saturating_add_signed(by).min(last);
            // At its end a log goes on with what is written.
            let goes_on = top == last && matches!(sheet.overlay, Overlay::Logs { .. });
            sheet.top = (!goes_on).then_some(top);
        }
        self.sheet = Some(sheet);
        None
    }

    fn close(&mut self, sheet: Sheet) {
        self.sheet = sheet.below.map(|below| *below);
    }

    fn type_filter(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Esc => {
                self.is_typing = false;
                self.filter.clear();
            }
            KeyCode::Backspace => _ = self.filter.pop(),
            KeyCode::Char(letter) => self.filter.push(letter),
            _ => return,
        }
        self.filter_all();
    }

    fn press_in_pane(&mut self, code: KeyCode) -> Option<Wish> {
        match code {
            KeyCode::Char('q') => return Some(Wish::Quit),
            KeyCode::Esc if self.filter.is_empty() => return Some(Wish::Quit),
            KeyCode::Esc => {
                self.filter.clear();
                self.filter_all();
            }
            KeyCode::Tab => self.pane = self.pane.turn(true),
            KeyCode::BackTab => self.pane = self.pane.turn(false),
            KeyCode::Char('?') => self.open(Overlay::Help),
            KeyCode::Char('/') => self.is_typing = true,
            KeyCode::Enter | KeyCode::Char('e') => self.look_closer(),
            KeyCode::Char('l') => match self.chosen_path("a node has no log of its own here") {
                Ok(path) => self.open(Overlay::Logs { path, lines: Default::default(), remark: None }),
                Err(why) => self.notice = Some(why),
            },
            KeyCode::Char('r') => match self.chosen_path("a node is not restarted from here") {
                Ok(path) => self.open(Overlay::Question(Deed::Restart(path))),
                Err(why) => self.notice = Some(why),
            },
            KeyCode::Char('d') => match self.chosen_node() {
                Ok(node) => self.open(Overlay::Question(Deed::Drain(node))),
                Err(why) => self.notice = Some(why),
            },
            KeyCode::Char('u') => match self.chosen_node() {
                Ok(node) => return self.ask_for(Deed::Undrain(node)),
                Err(why) => self.notice = Some(why),
            },
            KeyCode::Left | KeyCode::Char('h') => self.fold(Some(true)),
            KeyCode::Right => self.fold(Some(false)),
            KeyCode::Char(' ') => self.fold(None),
            _ => {
                let page = isize::try_from(layout::rows_of(self, self.pane)).unwrap_or(1).max(1);
                if let Some(by) = step(code, page) {
                    self.move_by(by);
                }
            }
        }
        None
    }

    fn open(&mut self, overlay: Overlay) {
        self.sheet = Some(Sheet::new(overlay));
    }

    fn look_closer(&mut self) {
        let overlay = match self.pane {
            Pane::Tree => self.tree.chosen().map(|row| Overlay::Explain(row.path.clone(), None)),
            Pane::Mailboxes => self.mailboxes.chosen().map(|row| Overlay::Mailbox(row.path.clone())),
            Pane::Nodes => self.nodes.chosen().map(|row| Overlay::Node(row.name.clone())),
            Pane::Events => self.events.chosen().map(|row| {
                let title = format!("Event {}: {}", row.number, row.kind);
                Overlay::Message { title, text: row.text.clone() }
            }),
        };
        match overlay {
            Some(overlay) => self.open(overlay),
            None => self.notice = Some("there is nothing to choose here yet".into()),
        }
    }

    /// One thing is asked for at a time: over a slow link nobody is to ask twice without knowing.
    fn ask_for(&mut self, deed: Deed) -> Option<Wish> {
        if let Some(doing) = &self.doing {
            self.notice = Some(format!("{} has no answer yet; then ask again", doing.command()));
            return None;
        }
        self.doing = Some(deed.clone());
        Some(Wish::Do(deed))
    }

    /// The member that the chosen line is about.
    fn chosen_path(&self, not_of_nodes: &str) -> Result<Path, String> {
        let path = match self.pane {
            Pane::Tree => self.tree.chosen().map(|row| &row.path),
            Pane::Mailboxes => self.mailboxes.chosen().map(|row| &row.path),
            Pane::Events => self.events.chosen().and_then(|row| row.path.as_ref()),
            Pane::Nodes => return Err(format!("{not_of_nodes}: choose a member in the tree (Tab)")),
        };
        path.cloned().ok_or_else(|| "this line is about no member: choose one in the tree (Tab)".into())
    }

    fn chosen_node(&self) -> Result<NodeName, String> {
        match (self.pane, self.nodes.chosen()) {
            (Pane::Nodes, Some(row)) => Ok(row.name.clone()),
            _ => Err("choose a node first, in the pane of the nodes (Tab)".into()),
        }
    }

    /// Folds or unfolds the chosen supervisor, or the other of both. What is folded already, and what has nothing below, leads to
    /// the supervisor above.
    fn fold(&mut self, is_folded: Option<bool>) {
        let Some(path) = self.tree.chosen().map(|row| row.path.clone()).filter(|_| self.pane == Pane::Tree) else {
            return;
        };
        let was_folded = self.folded.contains(&path);
        let is_folded = is_folded.unwrap_or(!was_folded);
        if is_folded && (was_folded || !self.has_members(&path)) {
            let above = path.parent().and_then(|above| {
                (0..self.tree.at()).rev().find(|&at| self.tree.shown(at).is_some_and(|row| row.path == above))
            });
            if let Some(above) = above {
                self.tree.choose(above);
            }
            return;
        }
        if is_folded {
            self.folded.insert(path);
        } else {
            self.folded.remove(&path);
        }
        self.filter_all();
    }

    fn move_by(&mut self, by: isize) {
        match self.pane {
            Pane::Tree => self.tree.step(by),
            Pane::Mailboxes => self.mailboxes.step(by),
            Pane::Nodes => self.nodes.step(by),
            Pane::Events => {
                self.events.step(by);
                self.follows_events = self.events.at() + 1 >= self.events.len();
            }
        }
    }
}

/// By how many lines a key goes down, or up.
fn step(code: KeyCode, page: isize) -> Option<isize> {
    match code {
        KeyCode::Down | KeyCode::Char('j') => Some(1),
        KeyCode::Up | KeyCode::Char('k') => Some(-1),
        KeyCode::PageDown => Some(page),
        KeyCode::PageUp => Some(-page),
        KeyCode::Home | KeyCode::Char('g') => Some(isize::MIN + 1),
        KeyCode::End | KeyCode::Char('G') => Some(isize::MAX),
        _ => None,
    }
}
