//! What a spec must keep as a whole: bounds, names, and budgets that can be spent.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{
    Attempts, AutoShutdown, Backoff, ChildSpec, Command, Intensity, Label, MAX_ATTEMPTS, MAX_BACKOFF,
    MAX_COMMAND_BYTES, MAX_FACTOR, MAX_JITTER, MAX_MAX_RESTARTS, MAX_MEMBERS, MAX_MESSAGES, MAX_PREFETCH, MAX_TIME,
    MIN_BACKOFF, MailboxSpec, OnDisconnect, Pool, ProcessSpec, Ready, Restart, Shutdown, SupervisorSpec, TreeSpec,
    Work, budget,
};
use crate::ids::{MAX_DEPTH, Path};
use crate::mail::MAX_MAIL_BYTES;

/// A mistake that a spec has as a whole. `at` names the member.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("{at}: {what}")]
pub struct SpecMistake {
    /// The member with the mistake.
    pub at: Path,
    /// The key of it with the mistake, as in the file (`backoff`, `intensity.within`, `env.HOME`); empty for the member itself.
    pub key: String,
    /// What is wrong, what was expected, and what to do.
    pub what: String,
}

impl TreeSpec {
    /// Checks everything that types cannot say: bounds, names that occur twice, and budgets that cannot be spent. Both the reader
    /// of files and the cluster itself call it, so that bytes from the wire are held to the same rules. Never panics, whatever the
    /// spec holds.
    ///
    /// # Errors
    /// Every mistake, in the order of the spec; at least one, and not more than a thousand.
    pub fn check(&self) -> Result<(), Vec<SpecMistake>> {
        let mut check = Check { members: 0, mistakes: Vec::new(), colocated_by: None, grouped_by: None };
        let root = Path::root(&self.name);
        check.supervisor(&root, &self.root);
        let members = check.members;
        if members > MAX_MEMBERS {
            let what = format!(
                "{members} members in one tree: at most {MAX_MEMBERS} are allowed; split it into several trees"
            );
            check.refuse(&root, "children", what);
        }
        if check.mistakes.is_empty() { Ok(()) } else { Err(check.mistakes) }
    }

    /// What is allowed and may surprise, in the order of the spec: to be said to whoever applies it.
    pub fn warnings(&self) -> Vec<SpecMistake> {
        let mut warnings = Vec::new();
        warn(&Path::root(&self.name), &self.root, &mut warnings);
        warnings
    }
}

fn warn(at: &Path, spec: &SupervisorSpec, warnings: &mut Vec<SpecMistake>) {
    for child in &spec.children {
        let path = at.child(&child.id);
        let process = match &child.work {
            Work::Supervisor(below) => {
                warn(&path, below, warnings);
                continue;
            }
            Work::Process(process) => process,
            Work::Pool(pool) => &pool.process,
        };
        if let Some(mailbox) = process.mailbox.as_ref().filter(|mailbox| mailbox.max_attempts == Attempts::Unlimited) {
            let first = Written(mailbox.retry_after(1));
            let longest = Written(mailbox.retry_after(u32::MAX));
            let what = format!(
                "\"unlimited\": a message that always kills its worker kills one again and again, first {first} and at last \
                 {longest} after the time before, until it is purged"
            );
            warnings.push(SpecMistake { at: path, key: "mailbox.max_attempts".into(), what });
        }
    }
}

struct Check {
    members: usize,
    mistakes: Vec<SpecMistake>,
    /// The outermost supervisor above that keeps everything below it on one node.
    colocated_by: Option<Path>,
    /// The outermost supervisor above whose children stand and fall together.
    grouped_by: Option<Path>,
}

impl Check {
    fn supervisor(&mut self, at: &Path, spec: &SupervisorSpec) {
        self.members += 1;
        if spec.children.is_empty() {
            self.refuse(at, "children", "a supervisor needs at least one child");
        }
        self.intensity(at, spec.intensity);
        let colocated_above = self.colocated_by.clone();
        if spec.colocate && self.colocated_by.is_none() {
            self.colocated_by = Some(at.clone());
        }
        let grouped_above = self.grouped_by.clone();
        if spec.strategy.is_group() && self.grouped_by.is_none() {
            self.grouped_by = Some(at.clone());
        }
        let mut names = BTreeSet::new();
        for child in &spec.children {
            let path = at.child(&child.id);
            if !names.insert(&child.id) {
                let name = child.id.as_str();
                self.refuse(&path, "id", format!("two children of {at} are named {name:?}: give one another name"));
            }
            if path.depth() > MAX_DEPTH {
                self.refuse(&path, "", format!("{} levels deep: at most {MAX_DEPTH} are allowed", path.depth()));
                continue; // Deeper ones say nothing new, and the walk must end.
            }
            self.child(&path, child, spec.auto_shutdown);
        }
        self.colocated_by = colocated_above;
        self.grouped_by = grouped_above;
        self.spendable(at, spec.intensity, &spec.children);
    }

    fn child(&mut self, at: &Path, child: &ChildSpec, auto_shutdown: AutoShutdown) {
        if child.significant && child.restart == Restart::Permanent {
            let what =
                "a permanent child cannot be significant: it never ends by itself; make it transient or temporary";
            self.refuse(at, "significant", what);
        } else if child.significant && auto_shutdown == AutoShutdown::Never {
            let what = "significant means nothing here: the supervisor's auto_shutdown is \"never\"; set it, or remove \
                        this key";
            self.refuse(at, "significant", what);
        }
        self.backoff(at, &child.backoff);
        match &child.work {
            Work::Supervisor(spec) => self.supervisor(at, spec),
            Work::Pool(pool) => self.pool(at, child, pool),
            Work::Process(spec) => {
                self.members += 1;
                self.process(at, spec);
                if let Some(intensity) = spec.intensity {
                    self.intensity(at, intensity);
                    self.own_account(at, intensity, child);
                }
            }
        }
    }

    fn pool(&mut self, at: &Path, child: &ChildSpec, pool: &Pool) {
        self.members += 1 + usize::try_from(pool.count).unwrap_or(usize::MAX / 2);
        if pool.count == 0 {
            self.refuse(at, "count", "a pool has at least 1 worker; `pando stop` stops all of it");
        }
        if child.significant {
            self.refuse(at, "significant", "a pool cannot be significant: it does not end while it has workers");
        }
        if at.depth() >= MAX_DEPTH {
            let what = format!("its workers would be {} levels deep: at most {MAX_DEPTH} are allowed", at.depth() + 1);
            self.refuse(at, "count", what);
        }
        self.intensity(at, pool.intensity);
        self.process(at, &pool.process);
        // First the number: a supervisor with as many children as a number of 32 bits can say does not fit into memory.
        if pool.count as usize <= MAX_MEMBERS
            && let Intensity::Limited { max_restarts, within } = pool.intensity
            && let Some(supervisor) = child.as_supervisor()
            && let Some(most) = budget::most_crashes(max_restarts, within, &supervisor.children)
        {
            self.refuse_budget(at, max_restarts, within, most);
        }
    }

    fn mailbox(&mut self, at: &Path, mailbox: &MailboxSpec, spec: &ProcessSpec) {
        let MailboxSpec {
            max_attempts,
            retry_delay,
            handling_timeout,
            prefetch,
            max_messages,
            max_bytes,
            suspect_after,
            max_node_losses,
        } = mailbox;
        if spec.on_disconnect == OnDisconnect::Keep {
            let what = "\"keep\" is not possible for a worker: what it holds is handed out again once its node is silent; use \"stop\"";
            self.refuse(at, "on_disconnect", what);
        }
        match max_attempts {
            Attempts::Unlimited if retry_delay.is_zero() => {
                let what = "\"unlimited\" without a retry_delay: a message that kills workers would kill one after the other \
                            without a pause; set retry_delay, such as \"1s\", or a number of attempts";
                self.refuse(at, "mailbox.max_attempts", what);
            }
            Attempts::Limited(most) => self.count(at, "mailbox.max_attempts", *most, 1..=MAX_ATTEMPTS),
            Attempts::Unlimited => {}
        }
        if *retry_delay > MAX_BACKOFF {
            self.refuse(at, "mailbox.retry_delay", format!("{} is longer than a day (24h)", Written(*retry_delay)));
        }
        if handling_timeout.is_zero() {
            self.refuse(at, "mailbox.handling_timeout", "zero: nothing can be handled in no time");
        }
        self.time(at, "mailbox.handling_timeout", *handling_timeout);
        self.count(at, "mailbox.prefetch", *prefetch, 1..=MAX_PREFETCH);
        self.count(at, "mailbox.max_messages", *max_messages, 1..=MAX_MESSAGES);
        if !(1..=MAX_MAIL_BYTES).contains(max_bytes) {
            self.refuse(at, "mailbox.max_bytes", format!("{max_bytes} B: expected 1B to 512MiB"));
        }
        self.count(at, "mailbox.suspect_after", *suspect_after, 1..=MAX_ATTEMPTS);
        self.count(at, "mailbox.max_node_losses", *max_node_losses, 1..=MAX_ATTEMPTS);
    }

    fn count(&mut self, at: &Path, key: &str, count: u32, range: std::ops::RangeInclusive<u32>) {
        if !range.contains(&count) {
            self.refuse(at, key, format!("{count}: expected {} to {}", range.start(), range.end()));
        }
    }

    fn process(&mut self, at: &Path, spec: &ProcessSpec) {
        if let Some(mailbox) = &spec.mailbox {
            self.mailbox(at, mailbox, spec);
        }
        self.command(at, "command", &spec.command);
        self.environment(at, spec);
        if spec.cwd.as_deref().is_some_and(leaves_its_folder) {
            let what =
                "leaves the child's own folder by ..: a relative path stays below it; write the whole path, from /";
            self.refuse(at, "cwd", what);
        }
        if spec.cwd.as_ref().is_some_and(|cwd| cwd.is_empty() || cwd.contains('\0')) {
            let what =
                "not a folder name: it is empty or contains NUL; leave the key out for a folder of the child's own";
            self.refuse(at, "cwd", what);
        }
        if spec.slots == 0 {
            self.refuse(at, "slots", "a child takes at least 1 slot");
        }
        match spec.shutdown {
            Shutdown::Grace(Duration::ZERO) => {
                self.refuse(at, "shutdown", "zero: say \"brutal_kill\" to stop without grace");
            }
            Shutdown::Grace(grace) => self.time(at, "shutdown", grace),
            Shutdown::BrutalKill | Shutdown::Infinity => {}
        }
        self.ready(at, &spec.ready);
        if spec.place.spread.as_ref().is_some_and(|key| !Label::is_key(key)) {
            self.refuse(at, "place.spread", "not the key of a label: of the label zone=a, the key is zone");
        }
        if let (Some(_), Some(group)) = (&spec.place.spread, &self.colocated_by) {
            let what = format!(
                "{group} keeps everything below it on one node, so nothing spreads: remove spread, or set colocate = false \
                 there (the group strategies have it by default)"
            );
            self.refuse(at, "place.spread", what);
        }
        if spec.on_disconnect == OnDisconnect::Keep {
            self.keep(at);
        }
    }

    /// One that may be unreachable for days must not hold up others that cannot start without its end, or away from it.
    fn keep(&mut self, at: &Path) {
        let why = match (&self.grouped_by, &self.colocated_by) {
            (Some(group), _) => format!("{group} restarts its children together"),
            (None, Some(together)) => format!("{together} keeps everything below it on one node"),
            (None, None) => return,
        };
        let what = format!(
            "\"keep\" is not possible here: {why}, so that one unreachable child would hold up the others; use \"stop\", or \
             move the child below another supervisor"
        );
        self.refuse(at, "on_disconnect", what);
    }

    fn environment(&mut self, at: &Path, spec: &ProcessSpec) {
        let environment: usize = spec.env.iter().map(|(name, value)| name.len() + value.len() + 2).sum();
        let bytes = environment + command_bytes(&spec.command);
        if bytes > MAX_COMMAND_BYTES {
            let what = format!(
                "command and env take {bytes} bytes: at most {MAX_COMMAND_BYTES} are allowed; pass a file instead"
            );
            self.refuse(at, "command", what);
        }
        for (name, value) in &spec.env {
            let key = || format!("env.{name}");
            if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
                let what = format!("{name:?} cannot be an environment variable: no empty name, no = in it, no NUL");
                self.refuse(at, &key(), what);
            }
            if name.starts_with("PANDO_") {
                let what = format!("{name:?} is reserved: names that begin with PANDO_ are set by pando");
                self.refuse(at, &key(), what);
            }
        }
    }

    fn ready(&mut self, at: &Path, ready: &Ready) {
        match ready {
            Ready::Started => {}
            Ready::Notify { within } => self.ready_within(at, *within),
            Ready::Exec { command, within, interval } => {
                self.command(at, "ready.exec", command);
                let bytes = command_bytes(command);
                if bytes > MAX_COMMAND_BYTES {
                    let what = format!("the probe takes {bytes} bytes: at most {MAX_COMMAND_BYTES} are allowed");
                    self.refuse(at, "ready.exec", what);
                }
                self.ready_within(at, *within);
                self.time(at, "ready.interval", *interval);
                if *interval < MIN_BACKOFF {
                    let (interval, least) = (Written(*interval), Written(MIN_BACKOFF));
                    self.refuse(at, "ready.interval", format!("{interval} is too short: at least {least}"));
                }
            }
        }
    }

    fn ready_within(&mut self, at: &Path, within: Duration) {
        self.time(at, "ready.within", within);
        if within.is_zero() {
            self.refuse(at, "ready.within", "zero: nothing can be ready in no time");
        }
    }

    fn command(&mut self, at: &Path, key: &str, command: &Command) {
        if command.program.is_empty() {
            self.refuse(at, key, "an empty command: the first item is the program to run");
        }
        if command.program.contains('\0') || command.args.iter().any(|arg| arg.contains('\0')) {
            self.refuse(at, key, "a command cannot contain a NUL character");
        }
    }

    fn backoff(&mut self, at: &Path, backoff: &Backoff) {
        let Backoff { base, cap, factor, jitter, reset_after } = backoff;
        if *base < MIN_BACKOFF {
            let (base, least) = (Written(*base), Written(MIN_BACKOFF));
            let what = format!("{base} is too short: at least {least}, so that no restart loop is tight");
            self.refuse(at, "backoff.base", what);
        }
        if cap < base {
            let what = format!("cap {} is below base {}: raise cap or lower base", Written(*cap), Written(*base));
            self.refuse(at, "backoff.cap", what);
        }
        if *cap > MAX_BACKOFF {
            self.refuse(at, "backoff.cap", format!("{} is longer than a day (24h)", Written(*cap)));
        }
        if !(1..=MAX_FACTOR).contains(factor) {
            self.refuse(at, "backoff.factor", format!("{factor}: expected 1 to {MAX_FACTOR}"));
        }
        if *jitter > MAX_JITTER {
            self.refuse(at, "backoff.jitter", format!("{jitter}: expected 0 to {MAX_JITTER} percent"));
        }
        if reset_after.is_zero() {
            let what = "zero: every run would reset the backoff, and restarts would never slow down";
            self.refuse(at, "backoff.reset_after", what);
        }
        self.time(at, "backoff.reset_after", *reset_after);
    }

    fn intensity(&mut self, at: &Path, intensity: Intensity) {
        let Intensity::Limited { max_restarts, within } = intensity else { return };
        if within.is_zero() {
            let what = "a window of zero: no crash would ever count; say \"unlimited\" to mean that";
            self.refuse(at, "intensity.within", what);
        }
        self.time(at, "intensity.within", within);
        if max_restarts > MAX_MAX_RESTARTS {
            let what = format!("{max_restarts}: at most {MAX_MAX_RESTARTS}; say \"unlimited\" to never escalate");
            self.refuse(at, "intensity.max_restarts", what);
        }
    }

    /// Whether the children of a supervisor can spend its budget at all.
    fn spendable(&mut self, at: &Path, intensity: Intensity, children: &[ChildSpec]) {
        let Intensity::Limited { max_restarts, within } = intensity else { return };
        if let Some(most) = budget::most_crashes(max_restarts, within, children) {
            self.refuse_budget(at, max_restarts, within, most);
        }
    }

    /// Whether a child can spend its own account.
    fn own_account(&mut self, at: &Path, intensity: Intensity, child: &ChildSpec) {
        let Intensity::Limited { max_restarts, within } = intensity else { return };
        if let Some(most) = budget::most_crashes_alone(max_restarts, within, child) {
            self.refuse_budget(at, max_restarts, within, most);
        }
    }

    fn refuse_budget(&mut self, at: &Path, max_restarts: u32, within: Duration, most: u32) {
        let within = Written(within);
        let what = format!(
            "intensity ({max_restarts} within {within}) of {at} can never be spent: the backoff allows at most {most} crashes \
             within {within}, even at its shortest, and it takes {}; lower max_restarts, widen within, shorten the backoff, or \
             say \"unlimited\"",
            max_restarts.saturating_add(1)
        );
        self.refuse(at, "intensity", what);
    }

    fn time(&mut self, at: &Path, key: &str, time: Duration) {
        if time > MAX_TIME {
            self.refuse(at, key, format!("{} is longer than a year (8760h)", Written(time)));
        }
    }

    fn refuse(&mut self, at: &Path, key: &str, what: impl Into<String>) {
        if self.mistakes.len() < MAX_MISTAKES {
            self.mistakes.push(SpecMistake { at: at.clone(), key: key.into(), what: what.into() });
        }
    }
}

/// Whether a relative path would climb out of the folder that it begins in. What an absolute one means is the writer's affair.
fn leaves_its_folder(cwd: &str) -> bool {
    !cwd.starts_with('/') && cwd.split('/').any(|part| part == "..")
}

/// A duration as a spec file has it: `25h`, `90m`, `50ms`.
struct Written(Duration);

impl fmt::Display for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0.as_nanos();
        for (unit, each) in [("h", 3_600_000_000_000), ("m", 60_000_000_000), ("s", 1_000_000_000), ("ms", 1_000_000)] {
            // A minute is `60s` to most who write it; hours are not counted in minutes.
            if nanos >= each && nanos.is_multiple_of(each) && !(unit == "m" && nanos == each) {
                return write!(f, "{}{unit}", nanos / each);
            }
        }
        write!(f, "{:?}", self.0)
    }
}

fn command_bytes(command: &Command) -> usize {
    command.program.len() + 1 + command.args.iter().map(|arg| arg.len() + 1).sum::<usize>()
}

/// Most mistakes that are listed, so that the refusal of any spec fits into a frame. What follows a thousand is not news.
const MAX_MISTAKES: usize = 1_000;

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use super::super::Strategy;
    use super::*;

    fn process(id: &str, change: impl FnOnce(&mut ProcessSpec)) -> ChildSpec {
        let mut spec = ProcessSpec::new(Command { program: "x".into(), args: vec![] });
        change(&mut spec);
        child(id, Work::Process(Arc::new(spec)))
    }

    fn child(id: &str, work: Work) -> ChildSpec {
        let id = id.parse().unwrap();
        ChildSpec { id, restart: Restart::Permanent, backoff: Backoff::default(), significant: false, work }
    }

    fn supervisor(children: Vec<ChildSpec>) -> SupervisorSpec {
        let (strategy, intensity) = (Strategy::OneForOne, Intensity::default());
        SupervisorSpec { strategy, intensity, auto_shutdown: AutoShutdown::Never, colocate: false, children }
    }

    /// Every mistake of a tree with this root, as `path key`.
    fn mistakes(root: SupervisorSpec) -> Vec<String> {
        let tree = TreeSpec { name: "t".parse().unwrap(), root };
        let mistakes = tree.check().err().unwrap_or_default();
        mistakes.iter().map(|mistake| format!("{} {}", mistake.at, mistake.key)).collect()
    }

    fn mistakes_of(change: impl FnOnce(&mut ProcessSpec)) -> Vec<String> {
        mistakes(supervisor(vec![process("a", change)]))
    }

    #[test]
    fn a_plain_tree_has_no_mistake() {
        let inner = child("in", Work::Supervisor(supervisor(vec![process("a", |_| {})])));
        assert_eq!(mistakes(supervisor(vec![process("a", |_| {}), inner])), [""; 0]);
        let endless = SupervisorSpec { intensity: Intensity::Unlimited, ..supervisor(vec![process("a", |_| {})]) };
        assert_eq!(mistakes(endless), [""; 0]);
    }

    #[test]
    fn names_that_occur_twice_and_supervisors_of_nothing_are_mistakes() {
        let twice = supervisor(vec![process("a", |_| {}), process("b", |_| {}), process("a", |_| {})]);
        assert_eq!(mistakes(twice), ["/t/a id"]);
        assert_eq!(mistakes(supervisor(vec![])), ["/t children"]);
        assert_eq!(mistakes(supervisor(vec![child("in", Work::Supervisor(supervisor(vec![])))])), ["/t/in children"]);
    }

    #[test]
    fn processes_are_held_to_their_bounds() {
        assert_eq!(mistakes_of(|spec| spec.command.program.clear()), ["/t/a command"]);
        assert_eq!(mistakes_of(|spec| spec.command.args.push("\0".into())), ["/t/a command"]);
        assert_eq!(mistakes_of(|spec| spec.command.args.push("x".repeat(MAX_COMMAND_BYTES))), ["/t/a command"]);
        assert_eq!(mistakes_of(|spec| spec.env = BTreeMap::from([("A=".into(), "".into())])), ["/t/a env.A="]);
        assert_eq!(
            mistakes_of(|spec| spec.env = BTreeMap::from([("PANDO_X".into(), "".into())])),
            ["/t/a env.PANDO_X"]
        );
        assert_eq!(mistakes_of(|spec| spec.cwd = Some(String::new())), ["/t/a cwd"]);
        assert_eq!(mistakes_of(|spec| spec.slots = 0), ["/t/a slots"]);
        assert_eq!(mistakes_of(|spec| spec.shutdown = Shutdown::Grace(Duration::ZERO)), ["/t/a shutdown"]);
        assert_eq!(mistakes_of(|spec| spec.place.spread = Some("a=b".into())), ["/t/a place.spread"]);
        assert_eq!(mistakes_of(|spec| spec.ready = Ready::Notify { within: Duration::ZERO }), ["/t/a ready.within"]);
        let probe = Ready::Exec {
            command: Command { program: String::new(), args: vec!["x".repeat(MAX_COMMAND_BYTES)] },
            within: Duration::from_secs(1),
            interval: Duration::from_millis(9),
        };
        assert_eq!(
            mistakes_of(|spec| spec.ready = probe),
            ["/t/a ready.exec", "/t/a ready.exec", "/t/a ready.interval"]
        );
    }

    #[test]
    fn backoffs_and_budgets_are_held_to_their_bounds() {
        let backoff = |backoff| mistakes(supervisor(vec![ChildSpec { backoff, ..process("a", |_| {}) }]));
        let usual = Backoff::default();
        assert_eq!(backoff(Backoff { base: Duration::from_millis(9), ..usual }), ["/t/a backoff.base"]);
        assert_eq!(backoff(Backoff { cap: Duration::from_millis(49), ..usual }), ["/t/a backoff.cap"]);
        assert_eq!(backoff(Backoff { cap: MAX_BACKOFF + Duration::from_nanos(1), ..usual }), ["/t/a backoff.cap"]);
        assert_eq!(backoff(Backoff { factor: 101, ..usual }), ["/t/a backoff.factor"]);
        assert_eq!(backoff(Backoff { jitter: 91, ..usual }), ["/t/a backoff.jitter"]);
        assert_eq!(backoff(Backoff { reset_after: Duration::ZERO, ..usual }), ["/t/a backoff.reset_after"]);
        let budget = |max_restarts, within| {
            let intensity = Intensity::Limited { max_restarts, within };
            mistakes(SupervisorSpec { intensity, ..supervisor(vec![process("a", |_| {})]) })
        };
        assert_eq!(budget(5, Duration::ZERO), ["/t intensity.within"]);
        assert_eq!(budget(1_001, MAX_TIME), ["/t intensity.max_restarts"]);
        assert_eq!(budget(1_000, MAX_TIME), [""; 0]);
        assert_eq!(budget(1, Duration::from_millis(25)), ["/t intensity"]);
        let own = Intensity::Limited { max_restarts: 1, within: Duration::from_millis(25) };
        assert_eq!(mistakes_of(|spec| spec.intensity = Some(own)), ["/t/a intensity"]);
    }

    #[test]
    fn no_time_is_longer_than_a_year() {
        let endless = Duration::MAX;
        assert_eq!(mistakes_of(|spec| spec.shutdown = Shutdown::Grace(endless)), ["/t/a shutdown"]);
        assert_eq!(mistakes_of(|spec| spec.ready = Ready::Notify { within: endless }), ["/t/a ready.within"]);
        let backoff = Backoff { base: endless, cap: endless, reset_after: endless, ..Backoff::default() };
        let intensity = Intensity::Limited { max_restarts: u32::MAX, within: endless };
        let root = SupervisorSpec { intensity, ..supervisor(vec![ChildSpec { backoff, ..process("a", |_| {}) }]) };
        let found = mistakes(root);
        for expected in ["/t intensity.within", "/t/a backoff.cap", "/t/a backoff.reset_after"] {
            assert!(found.iter().any(|found| found == expected), "{expected} is not in {found:?}");
        }
    }

    #[test]
    fn depth_and_number_of_members_are_bounded() {
        let nested = |levels| {
            let leaf = process("x", |_| {});
            supervisor(vec![(2..levels).fold(leaf, |below, _| child("s", Work::Supervisor(supervisor(vec![below]))))])
        };
        assert_eq!(mistakes(nested(16)), [""; 0]);
        assert_eq!(mistakes(nested(17)), [format!("/t{}/x ", "/s".repeat(15))]);
        assert_eq!(mistakes(nested(200)).len(), 1);
        let wide = |children| supervisor((0..children).map(|n| process(&format!("c{n}"), |_| {})).collect());
        assert_eq!(mistakes(wide(MAX_MEMBERS - 1)), [""; 0]);
        assert_eq!(mistakes(wide(MAX_MEMBERS)), ["/t children"]);
    }

    #[test]
    fn significant_needs_a_child_that_ends_and_a_supervisor_that_minds() {
        let root = |restart, auto_shutdown| {
            let children = vec![ChildSpec { restart, significant: true, ..process("a", |_| {}) }];
            mistakes(SupervisorSpec { auto_shutdown, ..supervisor(children) })
        };
        assert_eq!(root(Restart::Permanent, AutoShutdown::AnySignificant), ["/t/a significant"]);
        assert_eq!(root(Restart::Transient, AutoShutdown::Never), ["/t/a significant"]);
        assert_eq!(root(Restart::Temporary, AutoShutdown::AllSignificant), [""; 0]);
    }

    #[test]
    fn a_refusal_of_any_spec_is_of_bounded_length() {
        let children = (0..9_000).map(|n| process(&format!("c{n}"), |spec| spec.slots = 0)).collect();
        assert_eq!(mistakes(supervisor(children)).len(), MAX_MISTAKES);
    }
}
