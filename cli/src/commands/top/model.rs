//! What is known of the cluster, what is chosen and open, and what news does to it. Keys: [`super::keys`].

use std::collections::BTreeSet;
use std::time::Duration;

use pando_protocol::ids::{NodeName, Path};
use pando_protocol::mail::MailboxRow;
use pando_protocol::message::ViewAge;
use pando_protocol::view::{EventRow, Explanation, NodeRow, TreeRow};
use tokio::time::Instant;

use super::deed::Deed;
use super::list::{List, Row};
use super::overlay::{Overlay, Sheet};
use crate::commands::tree::stems;
use crate::connection::{Read, unconfirmed};
use crate::human;

/// So many of the last events are kept.
const EVENTS_KEPT: usize = 1_000;
/// After so long without any answer that is said: answers come every second on a good link.
const QUIET: Duration = Duration::from_secs(3);

/// A part of the screen, in the order in which Tab goes through them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pane {
    /// Trees with verdicts.
    Tree,
    /// Mailboxes.
    Mailboxes,
    /// Nodes.
    Nodes,
    /// Events running by.
    Events,
}

impl Pane {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Tree, Self::Mailboxes, Self::Nodes, Self::Events];

    /// The next one, or the one before; the first follows the last.
    pub fn turn(self, forward: bool) -> Self {
        let by = if forward { 1 } else { Self::ALL.len() - 1 };
        Self::ALL[(self as usize + by) % Self::ALL.len()]
    }
}

/// An answer of the cluster, or why there is none.
#[derive(Debug)]
pub struct Answer<T> {
    /// When it was asked: what is seen is so old.
    pub asked: Instant,
    /// The endpoint that was asked.
    pub endpoint: String,
    /// The rows.
    pub told: Result<Read<Vec<T>>, String>,
}

/// What is told from outside.
#[derive(Debug)]
pub enum News {
    /// The rows of the trees.
    Tree(Answer<TreeRow>),
    /// The mailboxes.
    Mailboxes(Answer<MailboxRow>),
    /// The nodes.
    Nodes(Answer<NodeRow>),
    /// Something happened.
    Event(EventRow),
    /// Why a member is as it is, or why that is not known.
    Explained(Path, Result<Box<Explanation>, String>),
    /// A line of the log of a member.
    Log(Path, String),
    /// Something about the log of a member that is no line of it.
    LogRemark(Path, String),
    /// A deed was done, with so many differences, or refused.
    Done(Deed, Result<usize, String>),
}

/// What is to be asked again and again beside the panes, for what is open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Watched {
    /// Nothing.
    Nothing,
    /// Why a member is as it is.
    Explain(Path),
    /// What a member writes.
    Logs(Path),
}

/// What the screen shows.
#[derive(Debug)]
pub struct Model {
    /// Only what lies at and below it is shown of trees and mailboxes.
    pub root: Option<Path>,
    /// Columns and rows of the terminal.
    pub size: (u16, u16),
    /// The pane that keys are for.
    pub pane: Pane,
    /// Members.
    pub tree: List<TreeRow>,
    /// What is drawn before the name of each member that is shown.
    pub stems: Vec<String>,
    /// Supervisors of which only the line of their own is shown.
    pub folded: BTreeSet<Path>,
    /// Mailboxes.
    pub mailboxes: List<MailboxRow>,
    /// Nodes.
    pub nodes: List<NodeRow>,
    /// Events, the oldest first.
    pub events: List<EventRow>,
    /// Whether the newest event is always the chosen one.
    pub follows_events: bool,
    /// Only what mentions it is shown.
    pub filter: String,
    /// Whether keys go into the filter.
    pub is_typing: bool,
    /// What lies over the panes.
    pub sheet: Option<Sheet>,
    /// What the cluster has been asked to do and has not answered yet.
    pub doing: Option<Deed>,
    /// What is to be known once: gone with the next key.
    pub notice: Option<String>,
    /// The endpoint that is asked now.
    pub trying: String,
    /// The age of the newest picture of the trees: when it was asked for, and by whom it was told.
    seen: Option<(Instant, ViewAge)>,
    /// Whether it is fine that no leader confirmed it.
    is_stale_fine: bool,
    /// When the last answer of any kind came, and from where.
    heard: (Instant, Option<String>),
    /// Why the last question had no answer.
    trouble: Option<String>,
    /// Whether anything changed since it was drawn.
    is_changed: bool,
}

impl Model {
    /// Nothing is known yet.
    pub fn new(root: Option<Path>, is_stale_fine: bool, now: Instant) -> Self {
        Self {
            root,
            size: (80, 24),
            pane: Pane::Tree,
            tree: List::default(),
            stems: Vec::new(),
            folded: BTreeSet::new(),
            mailboxes: List::default(),
            nodes: List::default(),
            events: List::default(),
            follows_events: true,
            filter: String::new(),
            is_typing: false,
            sheet: None,
            doing: None,
            notice: None,
            trying: String::new(),
            seen: None,
            is_stale_fine,
            heard: (now, None),
            trouble: None,
            is_changed: true,
        }
    }

    /// Takes in what was told.
    pub fn hear(&mut self, news: News, now: Instant) {
        self.is_changed = true;
        match news {
            News::Tree(answer) => {
                let asked = answer.asked;
                let Some(read) = self.taken(answer, now) else { return };
                self.seen = Some((asked, read.view));
                let shown = self.members_shown(&read.value);
                self.tree.arrange(read.value, shown);
                self.draw_stems();
            }
            News::Mailboxes(answer) => {
                let Some(read) = self.taken(answer, now) else { return };
                self.mailboxes.replace(read.value, &self.filter);
            }
            News::Nodes(answer) => {
                let Some(read) = self.taken(answer, now) else { return };
                self.nodes.replace(read.value, &self.filter);
            }
            News::Event(event) => {
                self.events.push(event, &self.filter, EVENTS_KEPT);
                if self.follows_events {
                    self.events.last();
                }
            }
            News::Done(deed, told) => {
                self.doing = None;
                match told {
                    Ok(differences) => self.notice = Some(deed.done(differences)),
                    Err(why) => {
                        let title = format!("{} was not done", deed.command());
                        self.sheet = Some(Sheet::over(self.sheet.take(), Overlay::Message { title, text: why }));
                    }
                }
            }
            News::Explained(..) | News::Log(..) | News::LogRemark(..) => {
                if let Some(sheet) = &mut self.sheet {
                    sheet.hear(news);
                }
            }
        }
    }

    /// The terminal has so many columns and rows.
    pub fn resize(&mut self, columns: u16, rows: u16) {
        self.is_changed |= self.size != (columns, rows);
        self.size = (columns, rows);
    }

    /// Time passed, and this endpoint is asked now.
    pub fn pass(&mut self, trying: &str) {
        if self.trying != trying {
            trying.clone_into(&mut self.trying);
        }
        self.is_changed = true;
    }

    /// Something was done to it by a key.
    pub fn touch(&mut self) {
        self.is_changed = true;
    }

    /// Whether anything changed since it was asked this last.
    pub fn is_to_be_drawn(&mut self) -> bool {
        std::mem::take(&mut self.is_changed)
    }

    /// What is to be asked for what is open.
    pub fn watched(&self) -> Watched {
        self.sheet.as_ref().map_or(Watched::Nothing, Sheet::watched)
    }

    /// The leader, as far as it is known.
    pub fn leader(&self) -> Option<&NodeName> {
        self.seen.as_ref().and_then(|(_, view)| view.leader.as_ref())
    }

    /// How old the picture of the trees is; `None` before there is one.
    pub fn age(&self, now: Instant) -> Option<Duration> {
        self.seen.as_ref().map(|(asked, view)| {
            let before = if view.confirmed { 0 } else { view.age_ms };
            now.saturating_duration_since(*asked) + Duration::from_millis(before)
        })
    }

    /// What is wrong with what is shown, in a sentence; `None` where it is fresh, or as fresh as was asked for.
    pub fn warning(&self, now: Instant) -> Option<String> {
        let (heard, from) = &self.heard;
        let quiet = now.saturating_duration_since(*heard);
        if quiet >= QUIET || (self.trouble.is_some() && from.is_none()) {
            let from = from.as_ref().filter(|from| **from != self.trying);
            let mut text = format!("no answer for {}", human::duration(quiet));
            match from {
                Some(from) => text.push_str(&format!(" from {from}, trying {}", self.trying)),
                None => text.push_str(&format!(" from {}, which is asked still", self.trying)),
            }
            if let Some(why) = &self.trouble {
                text.push_str(&format!(": {why}"));
            }
            return Some(text);
        }
        let (_, view) = self.seen.as_ref()?;
        if let Some(why) = &self.trouble {
            return Some(why.clone());
        }
        (!view.confirmed && !self.is_stale_fine).then(|| unconfirmed(view))
    }

    /// Shows only what mentions the filter, and of folded supervisors only themselves.
    pub fn filter_all(&mut self) {
        let shown = self.members_shown(self.tree.rows());
        self.tree.show(shown);
        self.draw_stems();
        self.mailboxes.filter(&self.filter);
        self.nodes.filter(&self.filter);
        self.events.filter(&self.filter);
        if self.follows_events {
            self.events.last();
        }
    }

    /// Whether members lie below the one that is shown at this place.
    pub fn has_members(&self, path: &Path) -> bool {
        let rows = self.tree.rows();
        let at = rows.iter().position(|row| row.path == *path);
        at.and_then(|at| rows.get(at + 1)).is_some_and(|next| next.path.is_within(path))
    }

    /// The places of the members to be shown. With a filter: those that mention it, with all above them, folded or not.
    fn members_shown(&self, rows: &[TreeRow]) -> Vec<usize> {
        let mut shown = Vec::new();
        if self.filter.is_empty() {
            let mut hidden_below: Option<&Path> = None;
            for (index, row) in rows.iter().enumerate() {
                if hidden_below.is_some_and(|above| row.path.is_within(above)) {
                    continue;
                }
                hidden_below = self.folded.contains(&row.path).then_some(&row.path);
                shown.push(index);
            }
            return shown;
        }
        // From the last row up: those above a member come before it.
        let mut needed: Option<Path> = None;
        for (index, row) in rows.iter().enumerate().rev() {
            let is_above = needed.as_ref().is_some_and(|below| below.is_within(&row.path));
            if is_above || row.mentions(&self.filter) {
                needed = Some(row.path.clone());
                shown.push(index);
            }
        }
        shown.reverse();
        shown
    }

    fn draw_stems(&mut self) {
        let shown: Vec<&Path> =
            (0..self.tree.len()).filter_map(|at| self.tree.shown(at)).map(|row| &row.path).collect();
        self.stems = stems(shown.into_iter());
    }

    /// What an answer holds, noted as a sign of life or of trouble.
    fn taken<T>(&mut self, answer: Answer<T>, now: Instant) -> Option<Read<Vec<T>>> {
        match answer.told {
            Ok(read) => {
                self.heard = (now, Some(answer.endpoint));
                self.trouble = None;
                Some(read)
            }
            Err(why) => {
                self.trouble = Some(why);
                None
            }
        }
    }
}
