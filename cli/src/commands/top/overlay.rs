//! What lies over the panes: a text that can be scrolled, or a question.

use std::collections::VecDeque;

use pando_protocol::ids::{NodeName, Path};
use pando_protocol::view::{Explanation, TreeRow};

use super::deed::Deed;
use super::model::{Model, News, Watched};
use crate::commands::{explain, mailbox, tree};

/// So many of the last lines of a log are kept.
const LINES_KEPT: usize = 1_000;

/// What is open.
#[derive(Debug)]
pub enum Overlay {
    /// The keys.
    Help,
    /// Why a member is as it is.
    Explain(Path, Option<Result<Box<Explanation>, String>>),
    /// What a member writes.
    Logs {
        /// The member.
        path: Path,
        /// The last lines.
        lines: VecDeque<String>,
        /// The last that was said of the log itself.
        remark: Option<String>,
    },
    /// A mailbox with its ledger and workers.
    Mailbox(Path),
    /// What runs on a node.
    Node(NodeName),
    /// Something to be read whole.
    Message {
        /// What it is about.
        title: String,
        /// It.
        text: String,
    },
    /// Whether something is to be done.
    Question(Deed),
}

/// An overlay, and how far down it is scrolled.
#[derive(Debug)]
pub struct Sheet {
    /// What it shows.
    pub overlay: Overlay,
    /// The first line that is drawn; `None`: the last lines are, and go on with new ones.
    pub top: Option<usize>,
    /// What lay there before, and lies there again when this is closed.
    pub below: Option<Box<Sheet>>,
}

impl Sheet {
    /// An overlay, at its beginning; a log at its end.
    pub fn new(overlay: Overlay) -> Self {
        let top = if matches!(overlay, Overlay::Logs { .. }) { None } else { Some(0) };
        Self { overlay, top, below: None }
    }

    /// An overlay over what is open already.
    pub fn over(below: Option<Self>, overlay: Overlay) -> Self {
        Self { below: below.map(Box::new), ..Self::new(overlay) }
    }

    /// What is to be asked for it.
    pub fn watched(&self) -> Watched {
        match &self.overlay {
            Overlay::Explain(path, _) => Watched::Explain(path.clone()),
            Overlay::Logs { path, .. } => Watched::Logs(path.clone()),
            Overlay::Help | Overlay::Mailbox(_) | Overlay::Node(_) | Overlay::Message { .. } | Overlay::Question(_) => {
                self.below.as_ref().map_or(Watched::Nothing, |below| below.watched())
            }
        }
    }

    /// Takes in what was told of what is open; what concerns something else comes too late.
    pub fn hear(&mut self, news: News) {
        match (&mut self.overlay, news) {
            (Overlay::Explain(shown, told), News::Explained(path, new)) if *shown == path => *told = Some(new),
            (Overlay::Logs { path: shown, lines, .. }, News::Log(path, line)) if *shown == path => {
                if lines.len() == LINES_KEPT {
                    lines.pop_front();
                    self.top = self.top.map(|top| top.saturating_sub(1));
                }
                lines.push_back(line);
            }
            (Overlay::Logs { path: shown, remark, .. }, News::LogRemark(path, new)) if *shown == path => {
                *remark = Some(new);
            }
            (_, news) => {
                if let Some(below) = &mut self.below {
                    below.hear(news);
                }
            }
        }
    }

    /// What it is, in a line.
    pub fn title(&self) -> String {
        match &self.overlay {
            Overlay::Help => "Keys".into(),
            Overlay::Explain(path, _) => format!("Explain {path}"),
            Overlay::Logs { path, remark, .. } => {
                let remark = remark.as_ref().map(|remark| format!(": {remark}")).unwrap_or_default();
                format!("Logs {path}{remark}")
            }
            Overlay::Mailbox(path) => format!("Mailbox {path}"),
            Overlay::Node(node) => format!("Node {node}"),
            Overlay::Message { title, .. } => title.clone(),
            Overlay::Question(deed) => format!("{}?", deed.command()),
        }
    }

    /// What stands in it.
    pub fn text(&self, model: &Model) -> String {
        match &self.overlay {
            Overlay::Help => HELP.into(),
            Overlay::Explain(_, None) => "asking …".into(),
            Overlay::Explain(_, Some(Ok(explanation))) => explain::render(explanation, false),
            Overlay::Explain(_, Some(Err(why))) => why.clone(),
            Overlay::Logs { lines, .. } if lines.is_empty() => "nothing was written, or nothing has come yet".into(),
            Overlay::Logs { lines, .. } => {
                let mut text = String::new();
                lines.iter().for_each(|line| text.push_str(line));
                text
            }
            Overlay::Mailbox(path) => match model.mailboxes.rows().iter().find(|row| row.path == *path) {
                Some(row) => mailbox::rows::one(row, false),
                None => format!("{path} has no mailbox any more"),
            },
            Overlay::Node(node) => what_runs_on(node, model),
            Overlay::Message { text, .. } => text.clone(),
            Overlay::Question(deed) => {
                let consequence = deed.consequence(model.tree.rows(), model.nodes.rows());
                format!("{consequence}\n\nDo it? y: yes, n: no")
            }
        }
    }
}

fn what_runs_on(node: &NodeName, model: &Model) -> String {
    let runs = |row: &&TreeRow| row.node.as_ref() == Some(node);
    let mut text = String::new();
    for row in model.tree.rows().iter().filter(runs) {
        let (state, verdict) = (tree::state_name(row.state), tree::verdict_name(row.verdict));
        text.push_str(&format!("{}  {state}, {verdict}\n", row.path));
    }
    match (text.is_empty(), &model.root) {
        (true, None) => format!("nothing runs on {node}"),
        (true, Some(root)) => format!("nothing of {root} runs on {node}"),
        (false, None) => format!("what runs there:\n\n{text}"),
        (false, Some(root)) => format!("what runs there of {root}:\n\n{text}"),
    }
}

const HELP: &str = "\
Tab, Shift-Tab      another pane
j k, arrows         choose a line; Page Up, Page Down, Home (g), End (G) go further
h, left, right      in the tree: fold and unfold what lies below (also Space)
Enter, e            explain the member; of a mailbox its ledger and workers, of a node what runs there
l                   what the member writes, as it is written
r                   restart the member, after a question
d                   drain the node, after a question
u                   undrain the node
/                   show only what mentions a text; Enter ends the typing, Esc takes it away
?                   this
q, Esc              close what is open, or quit; Ctrl-C quits at once

Quitting ends nothing but the picture: the trees run on.";
