//! From a document to the spec of a tree: supervisors and their children.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::document::{Entry, Node, Span, Value};
use super::keys::{self, Role};
use super::mistake::Finding;
use super::values::{Fields, Reader};
use crate::ids::{ChildId, Path, TreeName};
use crate::spec::{
    AutoShutdown, Backoff, ChildSpec, Intensity, MAX_FACTOR, MAX_JITTER, MAX_MAX_RESTARTS, Pool, Restart, Strategy,
    SupervisorSpec, TreeSpec, Work,
};

mod process;

/// The words of `strategy`.
const STRATEGIES: &[(&str, Strategy)] = &[
    ("one_for_one", Strategy::OneForOne),
    ("one_for_all", Strategy::OneForAll),
    ("rest_for_one", Strategy::RestForOne),
];
/// The words of `auto_shutdown`.
const AUTO_SHUTDOWNS: &[(&str, AutoShutdown)] = &[
    ("never", AutoShutdown::Never),
    ("any_significant", AutoShutdown::AnySignificant),
    ("all_significant", AutoShutdown::AllSignificant),
];
/// The words of `restart`.
const RESTARTS: &[(&str, Restart)] =
    &[("permanent", Restart::Permanent), ("transient", Restart::Transient), ("temporary", Restart::Temporary)];

/// The tree that the document describes, checked as a whole; or every mistake in it.
pub(super) fn tree(text: &str, document: &Node) -> Result<TreeSpec, Vec<Finding>> {
    let mut reader = Reader::new(text);
    let Some(fields) = reader.table(document, "a table with name and children") else {
        return Err(reader.findings);
    };
    let start = document.span.start..document.span.start;
    let name = reader.tree_name(fields, &start).unwrap_or_else(|| placeholder(0));
    let at = Path::root(&name);
    reader.places.member(&at, fields.get("name").map_or(start.clone(), |node| node.span.clone()));
    reader.known_keys(fields, &at, Role::Root);
    if fields.get("children").is_none() {
        reader.refuse(&start, "no children: a tree needs at least one, each with an id and a command");
        reader.places.unread_children(&at);
    }
    let root = reader.supervisor(fields, &at);
    let spec = TreeSpec { name, root };
    let mut findings = reader.findings;
    if let Err(mistakes) = spec.check() {
        findings.extend(reader.places.locate(mistakes, &findings));
    }
    if findings.is_empty() { Ok(spec) } else { Err(findings) }
}

impl Reader<'_> {
    fn tree_name(&mut self, fields: Fields<'_>, start: &Span) -> Option<TreeName> {
        let Some(node) = fields.get("name") else {
            self.refuse(start, "no name: a tree needs one, such as name = \"shop\"");
            return None;
        };
        let text = self.text(node, "a text such as \"shop\"")?;
        text.parse().map_err(|error: crate::ids::BadName| self.refuse(&node.span, error.to_string())).ok()
    }

    /// Refuses the keys that do not belong to `role`, and notes the places of those that do.
    fn known_keys(&mut self, fields: Fields<'_>, at: &Path, role: Role) {
        for entry in fields.entries() {
            if role.keys().contains(&entry.key.as_str()) {
                self.places.key(at, entry.key.clone(), entry);
            } else {
                self.findings.push(role.stranger(entry));
            }
        }
    }

    fn supervisor(&mut self, fields: Fields<'_>, at: &Path) -> SupervisorSpec {
        let strategy = fields.get("strategy").and_then(|node| self.choice(node, STRATEGIES));
        let intensity = fields.get("intensity").and_then(|node| self.intensity(node, at));
        let auto_shutdown = fields.get("auto_shutdown").and_then(|node| self.choice(node, AUTO_SHUTDOWNS));
        let colocate = fields.get("colocate").and_then(|node| self.boolean(node));
        let strategy = strategy.unwrap_or(Strategy::OneForOne);
        SupervisorSpec {
            strategy,
            intensity: intensity.unwrap_or_default(),
            auto_shutdown: auto_shutdown.unwrap_or(AutoShutdown::Never),
            colocate: colocate.unwrap_or(strategy.is_group()),
            children: fields.entry("children").map(|entry| self.children(entry, at)).unwrap_or_default(),
        }
    }

    fn children(&mut self, entry: &Entry, at: &Path) -> Vec<ChildSpec> {
        let Some(nodes) = self.array(&entry.node, "an array of children (in TOML, each begins with [[children]])")
        else {
            self.places.unread_children(at);
            return Vec::new();
        };
        let mut names = BTreeSet::new();
        let mut children = Vec::new();
        for (index, node) in nodes.iter().enumerate() {
            match self.table(node, "a table with an id and a command or children") {
                Some(fields) => children.push(self.child(fields, &node.span, index, at, &mut names)),
                None => self.places.unread_children(at),
            }
        }
        children
    }

    fn child(
        &mut self,
        fields: Fields<'_>,
        span: &Span,
        index: usize,
        above: &Path,
        names: &mut BTreeSet<ChildId>,
    ) -> ChildSpec {
        let id = self.child_id(fields, span, names).unwrap_or_else(|| placeholder(index));
        let at = above.child(&id);
        self.places.member(&at, fields.get("id").map_or(span.clone(), |node| node.span.clone()));
        let role = self.role(fields, span);
        self.known_keys(fields, &at, role);
        let restart = fields.get("restart").and_then(|node| self.choice(node, RESTARTS));
        let backoff = fields.get("backoff").and_then(|node| self.backoff(node, &at));
        let significant = fields.get("significant").and_then(|node| self.boolean(node));
        let work = match role {
            Role::Root | Role::Supervisor => Work::Supervisor(self.supervisor(fields, &at)),
            Role::Process => self.process_or_pool(fields, &at),
            Role::Undecided => self.undecided(fields, &at),
        };
        ChildSpec {
            id,
            restart: restart.unwrap_or(Restart::Permanent),
            backoff: backoff.unwrap_or_default(),
            significant: significant.unwrap_or(false),
            work,
        }
    }

    /// `None` also for a name that another child has: both stay apart, so that what else is wrong with each has its place.
    fn child_id(&mut self, fields: Fields<'_>, span: &Span, names: &mut BTreeSet<ChildId>) -> Option<ChildId> {
        let Some(node) = fields.get("id") else {
            self.refuse(span, "a child without id: give it one, such as id = \"web\"");
            return None;
        };
        let text = self.text(node, "a text such as \"web\"")?;
        let id: ChildId =
            text.parse().map_err(|error: crate::ids::BadName| self.refuse(&node.span, error.to_string())).ok()?;
        if !names.insert(id.clone()) {
            self.refuse(
                &node.span,
                format!("two children of one supervisor are named {text:?}: give one another name"),
            );
            return None;
        }
        Some(id)
    }

    fn role(&mut self, fields: Fields<'_>, span: &Span) -> Role {
        match (fields.entry("command"), fields.entry("children")) {
            (Some(_), None) => Role::Process,
            (None, Some(_)) => Role::Supervisor,
            (Some(command), Some(children)) => {
                let later = if command.key_span.start > children.key_span.start { command } else { children };
                let what =
                    "both command and children: a child is a process with a command, or a supervisor with children";
                self.refuse(&later.key_span, what);
                Role::Undecided
            }
            (None, None) if keys::is_meant(fields.entries(), "command") => Role::Process,
            (None, None) if keys::is_meant(fields.entries(), "children") => Role::Supervisor,
            (None, None) => {
                let place = fields.get("id").map_or(span, |node| &node.span);
                let what =
                    "neither command nor children: a child is a process with a command, or a supervisor with children";
                self.refuse(place, what);
                Role::Undecided
            }
        }
    }

    /// Reads all that a child which is neither one nor the other has, for the mistakes in it.
    fn undecided(&mut self, fields: Fields<'_>, at: &Path) -> Work {
        let (process, supervisor) = (self.process(fields, at), self.supervisor(fields, at));
        match fields.get("children") {
            Some(_) => Work::Supervisor(supervisor),
            None => Work::Process(Arc::new(process)),
        }
    }

    fn process_or_pool(&mut self, fields: Fields<'_>, at: &Path) -> Work {
        let mut process = self.process(fields, at);
        let Some(count) = fields.get("count") else { return Work::Process(Arc::new(process)) };
        // Read whatever it is, so that what else is wrong is said with it; out of bounds is refused with the whole.
        let count = self.integer::<u32>(count, 0..=i128::from(u32::MAX)).unwrap_or(1);
        let intensity = process.intensity.take().unwrap_or_default();
        Work::Pool(Pool { count, intensity, process: Arc::new(process) })
    }

    fn intensity(&mut self, node: &Node, at: &Path) -> Option<Intensity> {
        const EXPECTED: &str = "a table such as { max_restarts = 5, within = \"10s\" }, or \"unlimited\"";
        if let Value::Text(word) = &node.value {
            if word != "unlimited" {
                self.unknown_word(node, word, std::iter::once("unlimited"), EXPECTED);
                return None;
            }
            return Some(Intensity::Unlimited);
        }
        let fields = self.fields(node, at, "intensity", keys::INTENSITY, EXPECTED)?;
        let Intensity::Limited { mut max_restarts, mut within } = Intensity::default() else {
            return None;
        };
        if let Some(node) = fields.get("max_restarts") {
            max_restarts = self.integer(node, 0..=i128::from(MAX_MAX_RESTARTS)).unwrap_or(max_restarts);
        }
        if let Some(node) = fields.get("within") {
            within = self.duration(node, "10s").unwrap_or(within);
        }
        Some(Intensity::Limited { max_restarts, within })
    }

    fn backoff(&mut self, node: &Node, at: &Path) -> Option<Backoff> {
        const EXPECTED: &str = "a table such as { base = \"50ms\", cap = \"1s\" }";
        let fields = self.fields(node, at, "backoff", keys::BACKOFF, EXPECTED)?;
        let Backoff { mut base, mut cap, mut factor, mut jitter, mut reset_after } = Backoff::default();
        if let Some(node) = fields.get("base") {
            base = self.duration(node, "50ms").unwrap_or(base);
        }
        if let Some(node) = fields.get("cap") {
            cap = self.duration(node, "1s").unwrap_or(cap);
        }
        if let Some(node) = fields.get("factor") {
            factor = self.integer(node, 1..=i128::from(MAX_FACTOR)).unwrap_or(factor);
        }
        if let Some(node) = fields.get("jitter") {
            jitter = self.integer(node, 0..=i128::from(MAX_JITTER)).unwrap_or(jitter);
        }
        if let Some(node) = fields.get("reset_after") {
            reset_after = self.duration(node, "5s").unwrap_or(reset_after);
        }
        Some(Backoff { base, cap, factor, jitter, reset_after })
    }
}

/// A legal name for a member whose own could not be read: the walk goes on, and the tree is refused in any case.
fn placeholder<T: std::str::FromStr<Err = crate::ids::BadName>>(index: usize) -> T {
    let name = format!("unnamed-{index}");
    name.parse().unwrap_or_else(|error| unreachable!("{error}"))
}
