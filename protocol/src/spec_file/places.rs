//! Where each key of each member stands, so that what [`TreeSpec::check`](crate::spec::TreeSpec::check) finds has a place.

use std::collections::{BTreeMap, BTreeSet};

use super::document::{Entry, Span};
use super::mistake::Finding;
use crate::ids::Path;
use crate::spec::SpecMistake;

/// The place of a key: from the key to the end of its value, and the value alone.
#[derive(Debug)]
struct Place {
    entry: Span,
    value: Span,
}

/// The places of all keys of all members.
#[derive(Debug, Default)]
pub(super) struct Places {
    members: BTreeMap<Path, Span>,
    keys: BTreeMap<(Path, String), Place>,
    unread_children: BTreeSet<Path>,
}

impl Places {
    /// Notes where a member stands: at its name, or else where its table begins.
    pub fn member(&mut self, at: &Path, span: Span) {
        self.members.insert(at.clone(), span);
    }

    /// Notes a key of a member; `key` is dotted below the top: `backoff.base`.
    pub fn key(&mut self, at: &Path, key: String, entry: &Entry) {
        let span = entry.key_span.start..entry.node.span.end.max(entry.key_span.end);
        self.keys.insert((at.clone(), key), Place { entry: span, value: entry.node.span.clone() });
    }

    /// Notes an environment variable; its name is what the whole can find wrong with it.
    pub fn variable(&mut self, at: &Path, entry: &Entry) {
        let span = entry.key_span.start..entry.node.span.end.max(entry.key_span.end);
        let place = Place { entry: span, value: entry.key_span.clone() };
        self.keys.insert((at.clone(), format!("env.{}", entry.key)), place);
    }

    /// Notes that the children of a supervisor could not all be read, so that nobody counts them.
    pub fn unread_children(&mut self, at: &Path) {
        self.unread_children.insert(at.clone());
    }

    /// What the checks of the whole found, with places, save what only follows from `findings`: a value that could not be
    /// read stands in the spec as its default, and what is said of that is not the writer's mistake.
    pub fn locate(&self, mistakes: Vec<SpecMistake>, findings: &[Finding]) -> Vec<Finding> {
        let doubtful = self.doubtful(findings);
        mistakes
            .into_iter()
            .filter(|mistake| !doubtful.explains(mistake))
            .map(|mistake| Finding::new(self.of(&mistake), self.words_of(&mistake)))
            .collect()
    }

    fn of(&self, mistake: &SpecMistake) -> Span {
        self.written(&mistake.at, &mistake.key)
            .or_else(|| self.opponent_of_default(mistake))
            .or_else(|| self.written(&mistake.at, top(&mistake.key)))
            .or_else(|| self.members.get(&mistake.at).cloned())
            .unwrap_or(0..0)
    }

    fn written(&self, at: &Path, key: &str) -> Option<Span> {
        self.keys.get(&(at.clone(), key.to_owned())).map(|place| place.value.clone())
    }

    /// The key that somebody wrote and with which a default does not agree: the mistake is there, not where nothing stands.
    fn opponent_of_default(&self, mistake: &SpecMistake) -> Option<Span> {
        match mistake.key.as_str() {
            "intensity" => self
                .keys
                .iter()
                .filter(|((path, key), _)| key == "backoff" && path.parent().as_ref() == Some(&mistake.at))
                .map(|(_, place)| place.value.clone())
                .min_by_key(|span| span.start),
            "backoff.cap" => self.written(&mistake.at, "backoff.base"),
            _ => None,
        }
    }

    /// What is wrong, with the values that nobody wrote named as defaults.
    fn words_of(&self, mistake: &SpecMistake) -> String {
        let SpecMistake { at, key, what } = mistake;
        let unwritten = |key: &str| self.written(at, key).is_none();
        match key.as_str() {
            "intensity" if unwritten(key) => format!("the default {what}"),
            "backoff.cap" if what.starts_with("cap ") && unwritten(key) => format!("the default {what}"),
            "backoff.cap" if unwritten("backoff.base") => what.replace("below base ", "below the default base "),
            _ => what.clone(),
        }
    }

    fn doubtful(&self, findings: &[Finding]) -> Doubtful {
        let (below, top): (Vec<_>, Vec<_>) = self
            .keys
            .iter()
            // `children` holds the mistakes of all below it, which say nothing about the key itself.
            .filter(|((_, key), _)| key != "children")
            .partition(|((_, key), _)| key.contains('.'));
        let (below, top) = (Layer::of(below), Layer::of(top));
        let mut keys: BTreeSet<(Path, String)> =
            findings.iter().filter_map(|finding| below.around(finding).or(top.around(finding))).cloned().collect();
        keys.extend(self.unread_children.iter().map(|at| (at.clone(), "children".to_owned())));
        Doubtful { keys }
    }
}

/// Keys of one level, none of which overlaps another, in the order of the text.
struct Layer<'p>(Vec<(&'p Span, &'p (Path, String))>);

impl<'p> Layer<'p> {
    fn of(keys: Vec<(&'p (Path, String), &'p Place)>) -> Self {
        let mut layer: Vec<_> = keys.into_iter().map(|(key, place)| (&place.entry, key)).collect();
        layer.sort_by_key(|(span, _)| span.start);
        Self(layer)
    }

    fn around(&self, finding: &Finding) -> Option<&'p (Path, String)> {
        let at = finding.span.start;
        let (span, key) = self.0[..self.0.partition_point(|(span, _)| span.start <= at)].last()?;
        (at < span.end).then_some(*key)
    }
}

/// The keys whose values could not be read; of a table, those in it that could not, or else the table.
struct Doubtful {
    keys: BTreeSet<(Path, String)>,
}

impl Doubtful {
    fn explains(&self, mistake: &SpecMistake) -> bool {
        let SpecMistake { at, key, what: _ } = mistake;
        let doubts = |path: &Path, key: &str| self.keys.contains(&(path.clone(), key.into()));
        let follows = match key.as_str() {
            // What a budget allows follows from the backoff of every child.
            "intensity" => self.keys.iter().any(|(path, _)| path.is_within(at)),
            "significant" => {
                doubts(at, "restart") || at.parent().is_some_and(|parent| doubts(&parent, "auto_shutdown"))
            }
            "backoff.cap" => doubts(at, "backoff.base"),
            _ => false,
        };
        follows || doubts(at, key) || doubts(at, top(key))
    }
}

fn top(key: &str) -> &str {
    key.split_once('.').map_or(key, |(top, _)| top)
}
