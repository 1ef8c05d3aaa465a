//! The spec of a tree: how to run, probe, place, restart and stop its children. Design sections 5.1 to 5.4.
//!
//! Values are valid by type where a type can say it, and by [`TreeSpec::check`] where it takes the whole. Reading files
//! is the work of `spec_file` (feature `spec-files`).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ids::{ChildId, MAX_DEPTH, Path, TreeName};

mod flat;

/// Most children and supervisors in one tree.
pub const MAX_MEMBERS: usize = 10_000;
/// Most bytes of a child's command, arguments and environment together (they travel in one local datagram).
pub const MAX_COMMAND_BYTES: usize = 64 << 10;
/// The least base of a backoff: a tight restart loop cannot be configured.
pub const MIN_BACKOFF: Duration = Duration::from_millis(10);
/// The most that `max_restarts` can be: each one in the window is kept with its cause.
pub const MAX_MAX_RESTARTS: u32 = 1_000;

/// One application: a named root supervisor and all below it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "flat::FlatTree", into = "flat::FlatTree")]
pub struct TreeSpec {
    /// The name of the tree; its root is `/name`.
    pub name: TreeName,
    /// The root supervisor.
    pub root: SupervisorSpec,
}

/// An inner node of a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SupervisorSpec {
    /// What else restarts when one child does. Default `one_for_one`.
    pub strategy: Strategy,
    /// The restart budget that all its children share. Default 5 within 10 s.
    pub intensity: Intensity,
    /// Whether the end of significant children ends the supervisor. Default `never`.
    pub auto_shutdown: AutoShutdown,
    /// Its children, in start order. At least one.
    pub children: Vec<ChildSpec>,
}

/// A child of a supervisor: a process, or a supervisor below it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChildSpec {
    /// Its name under its supervisor.
    pub id: ChildId,
    /// When it is restarted. Default permanent.
    pub restart: Restart,
    /// How long its restarts wait.
    pub backoff: Backoff,
    /// Whether its end counts for the supervisor's `auto_shutdown`. Default false.
    pub significant: bool,
    /// What it is.
    pub work: Work,
}

/// What a child is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Work {
    /// A leaf: an operating system process.
    Process(Arc<ProcessSpec>),
    /// An inner node.
    Supervisor(SupervisorSpec),
}

/// How to run, probe, place and stop a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessSpec {
    /// What to run. No shell is involved.
    pub command: Command,
    /// Added to the child's environment; wins over what Pando sets, except its own `PANDO_` variables.
    pub env: BTreeMap<String, String>,
    /// The working folder. `None`: a folder of the child's own in the node's data. Relative: below that folder.
    pub cwd: Option<String>,
    /// How long it may take to stop. Default 5 s.
    pub shutdown: Shutdown,
    /// The signal that asks it to stop. Default SIGTERM.
    pub stop_signal: Signal,
    /// Exit codes that end a run normally. Default only 0.
    pub normal_exit: BTreeSet<u8>,
    /// Its own restart account; when spent, it is one crash on its supervisor's. `None`: the supervisor's counts.
    pub intensity: Option<Intensity>,
    /// Its share of a node's capacity, at least 1. Default 1.
    pub slots: u32,
    /// How it is known to be ready.
    pub ready: Ready,
    /// Where it may and should run.
    pub place: Place,
    /// Exceptions by exit code or signal; the first that matches decides.
    pub on_exit: Vec<ExitRule>,
}

/// A program and its arguments.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Command {
    /// The program: a path, or a name that is looked up in the child's PATH. Not empty.
    pub program: String,
    /// Its arguments, without the program's own name.
    pub args: Vec<String>,
}

/// What else restarts when one child does. The two group strategies are not built yet and are refused by [`TreeSpec::check`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Strategy {
    /// Only the child that failed.
    OneForOne,
    /// All children.
    OneForAll,
    /// The child that failed and all after it.
    RestForOne,
}

/// When a child is restarted, as in OTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Restart {
    /// Always.
    Permanent,
    /// Unless its run ended normally.
    Transient,
    /// Never.
    Temporary,
}

/// Whether the end of significant children ends their supervisor, as in OTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum AutoShutdown {
    /// It does not.
    Never,
    /// The first that ends does.
    AnySignificant,
    /// The last that ends does.
    AllSignificant,
}

/// A restart budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Intensity {
    /// At most `max_restarts` within `within`; one crash more escalates. A crash counts while `now - then < within`.
    Limited {
        /// 0 to [`MAX_MAX_RESTARTS`]; 0 means that the first crash escalates.
        max_restarts: u32,
        /// The length of the window in cluster time, above zero.
        within: Duration,
    },
    /// Never escalates. Must be said.
    Unlimited,
}

/// The delay before a restart: `min(cap, base * factor^n)`, less up to `jitter` percent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Backoff {
    /// The first delay; at least [`MIN_BACKOFF`]. Default 50 ms.
    pub base: Duration,
    /// The largest delay; at least `base`. Default 1 s.
    pub cap: Duration,
    /// 1 to 100. Default 2.
    pub factor: u32,
    /// Percent by which a delay may be shortened at random, 0 to 90. Default 50.
    pub jitter: u8,
    /// A run that was healthy this long returns the delay to `base`. Default 5 s.
    pub reset_after: Duration,
}

/// How a process is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Shutdown {
    /// The stop signal, then SIGKILL after this long.
    Grace(Duration),
    /// SIGKILL at once.
    BrutalKill,
    /// The stop signal, then waits for ever.
    Infinity,
}

/// How a process is known to be ready.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ready {
    /// Once it has started.
    Started,
    /// When this command first exits 0; run again and again, one at a time.
    Exec {
        /// The probe.
        command: Command,
        /// Not ready after this long since the start: killed as unhealthy. Default 10 s.
        within: Duration,
        /// Pause between two probes. Default 200 ms.
        interval: Duration,
    },
    /// When it sends `READY=1` to the socket in `$NOTIFY_SOCKET`.
    Notify {
        /// Not ready after this long since the start: killed as unhealthy. Default 10 s.
        within: Duration,
    },
}

/// Where a process may and should run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// Labels a node must have.
    pub require: BTreeSet<Label>,
    /// Labels a node should have; more matches win.
    pub prefer: BTreeSet<Label>,
    /// The key of a label over whose values siblings with the same key are spread.
    pub spread: Option<String>,
}

/// A property of a node: `zone=a`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Label {
    /// 1 to 63 characters of `a-z A-Z 0-9 . _ - /`.
    pub key: String,
    /// 0 to 63 characters of the same.
    pub value: String,
}

/// An exception to how an ending is treated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitRule {
    /// Which endings.
    pub when: ExitMatch,
    /// What to do.
    pub action: ExitAction,
}

/// Which endings an [`ExitRule`] is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExitMatch {
    /// The process exited with this code.
    Code(u8),
    /// The process was ended by this signal.
    Signal(Signal),
}

/// What an [`ExitRule`] does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExitAction {
    /// Treat the ending as normal.
    Ignore,
    /// Restart the child whatever its restart type, charged like a crash.
    Restart,
    /// Leave the child down until `start`, or until its supervisor restarts. Nobody pays.
    Stop,
    /// Escalate at once, as if the supervisor's budget were spent.
    Escalate,
}

/// A signal by number, 1 to 64.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Signal(pub u8);

/// The signals that have a name here.
const SIGNALS: [(&str, u8); 18] = [
    ("SIGHUP", 1),
    ("SIGINT", 2),
    ("SIGQUIT", 3),
    ("SIGILL", 4),
    ("SIGTRAP", 5),
    ("SIGABRT", 6),
    ("SIGBUS", 7),
    ("SIGFPE", 8),
    ("SIGKILL", 9),
    ("SIGUSR1", 10),
    ("SIGSEGV", 11),
    ("SIGUSR2", 12),
    ("SIGPIPE", 13),
    ("SIGALRM", 14),
    ("SIGTERM", 15),
    ("SIGCONT", 18),
    ("SIGSTOP", 19),
    ("SIGWINCH", 28),
];

impl Signal {
    /// The polite request to end.
    pub const TERM: Self = Self(15);
    /// The end.
    pub const KILL: Self = Self(9);

    /// The signal of this name (`SIGTERM`, `TERM`, `term` or `15`); `None` where there is none.
    pub fn named(text: &str) -> Option<Self> {
        if let Ok(number) = text.parse::<u8>() {
            return (1..=64).contains(&number).then_some(Self(number));
        }
        let upper = text.to_ascii_uppercase();
        let full = if upper.starts_with("SIG") { upper } else { format!("SIG{upper}") };
        SIGNALS.iter().find(|(name, _)| *name == full).map(|(_, number)| Self(*number))
    }

    /// The names that [`Signal::named`] knows.
    pub fn names() -> impl Iterator<Item = &'static str> {
        SIGNALS.iter().map(|(name, _)| *name)
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match SIGNALS.iter().find(|(_, number)| *number == self.0) {
            Some((name, _)) => f.write_str(name),
            None => write!(f, "signal {}", self.0),
        }
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.key, self.value)
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.program)?;
        self.args.iter().try_for_each(|arg| write!(f, " {arg}"))
    }
}

impl std::str::FromStr for Label {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let legal = |part: &str| {
            part.len() <= 63
                && part.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-' | b'/'))
        };
        match text.split_once('=') {
            Some((key, value)) if !key.is_empty() && legal(key) && legal(value) => {
                Ok(Self { key: key.into(), value: value.into() })
            }
            _ => Err(format!("{text:?} is not a label: a label looks like zone=a")),
        }
    }
}

impl Default for Intensity {
    fn default() -> Self {
        Self::Limited { max_restarts: 5, within: Duration::from_secs(10) }
    }
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            base: Duration::from_millis(50),
            cap: Duration::from_secs(1),
            factor: 2,
            jitter: 50,
            reset_after: Duration::from_secs(5),
        }
    }
}

impl Default for Shutdown {
    fn default() -> Self {
        Self::Grace(Duration::from_secs(5))
    }
}

impl ProcessSpec {
    /// A process with every default.
    pub fn new(command: Command) -> Self {
        Self {
            command,
            env: BTreeMap::new(),
            cwd: None,
            shutdown: Shutdown::default(),
            stop_signal: Signal::TERM,
            normal_exit: BTreeSet::from([0]),
            intensity: None,
            slots: 1,
            ready: Ready::Started,
            place: Place::default(),
            on_exit: Vec::new(),
        }
    }
}

impl Backoff {
    /// The longest that the `n`-th delay (from 0) can be: no jitter.
    pub fn longest(&self, n: u32) -> Duration {
        let mut delay = self.base;
        for _ in 0..n {
            if delay >= self.cap || self.factor == 1 {
                break;
            }
            delay = delay.saturating_mul(self.factor);
        }
        delay.min(self.cap)
    }

    /// The shortest that the `n`-th delay (from 0) can be: full jitter.
    pub fn shortest(&self, n: u32) -> Duration {
        self.longest(n) * u32::from(100 - self.jitter.min(100)) / 100
    }

    /// Whether the `n`-th delay (from 0) stands at the cap.
    pub fn is_at_cap(&self, n: u32) -> bool {
        self.longest(n) == self.cap
    }
}

/// A mistake that a spec has as a whole. `at` names the member.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("{at}: {what}")]
pub struct SpecMistake {
    /// The member with the mistake.
    pub at: Path,
    /// The key of it with the mistake, as in the file (`backoff`, `intensity.within`); empty for the member itself.
    pub key: String,
    /// What is wrong, what was expected, and what to do.
    pub what: String,
}

impl TreeSpec {
    /// Checks everything that types cannot say: bounds, names that occur twice, budgets that cannot be spent, and keys
    /// that are not built yet. Both the reader of files and the cluster itself call it, so that bytes from the wire are
    /// held to the same rules.
    ///
    /// # Errors
    /// Every mistake, in the order of the spec; at least one.
    pub fn check(&self) -> Result<(), Vec<SpecMistake>> {
        let mut mistakes = Vec::new();
        let mut members = 0;
        check_supervisor(&Path::root(&self.name), &self.root, &mut members, &mut mistakes);
        if members > MAX_MEMBERS {
            let what = format!(
                "{members} members in one tree: at most {MAX_MEMBERS} are allowed; split it into several trees"
            );
            mistakes.push(SpecMistake { at: Path::root(&self.name), key: "children".into(), what });
        }
        if mistakes.is_empty() { Ok(()) } else { Err(mistakes) }
    }
}

fn check_supervisor(at: &Path, spec: &SupervisorSpec, members: &mut usize, mistakes: &mut Vec<SpecMistake>) {
    *members += 1;
    if spec.strategy != Strategy::OneForOne {
        mistake(mistakes, at, "strategy", "the group strategies are not yet built: use \"one_for_one\"".into());
    }
    if spec.children.is_empty() {
        mistake(mistakes, at, "children", "a supervisor needs at least one child".into());
    }
    check_intensity(at, spec.intensity, mistakes);
    let mut names = BTreeSet::new();
    for child in &spec.children {
        let path = at.child(&child.id);
        if !names.insert(&child.id) {
            mistake(
                mistakes,
                &path,
                "id",
                format!("two children of {at} are named {:?}: give one another name", child.id.as_str()),
            );
        }
        if path.depth() > MAX_DEPTH {
            mistake(mistakes, &path, "", format!("{} levels deep: at most {MAX_DEPTH} are allowed", path.depth()));
            continue; // Deeper ones say nothing new, and the walk must end.
        }
        check_child(&path, child, spec.auto_shutdown, members, mistakes);
    }
    check_spendable(at, spec, mistakes);
}

fn check_child(at: &Path, child: &ChildSpec, auto: AutoShutdown, members: &mut usize, mistakes: &mut Vec<SpecMistake>) {
    if child.significant && child.restart == Restart::Permanent {
        let what = "a permanent child cannot be significant: it never ends by itself; make it transient or temporary";
        mistake(mistakes, at, "significant", what.into());
    } else if child.significant && auto == AutoShutdown::Never {
        let what =
            "significant means nothing here: the supervisor's auto_shutdown is \"never\"; set it, or remove this key";
        mistake(mistakes, at, "significant", what.into());
    }
    check_backoff(at, &child.backoff, mistakes);
    match &child.work {
        Work::Supervisor(spec) => check_supervisor(at, spec, members, mistakes),
        Work::Process(spec) => {
            *members += 1;
            check_process(at, spec, &child.backoff, mistakes);
        }
    }
}

fn check_process(at: &Path, spec: &ProcessSpec, backoff: &Backoff, mistakes: &mut Vec<SpecMistake>) {
    check_command(at, "command", &spec.command, mistakes);
    let environment: usize = spec.env.iter().map(|(key, value)| key.len() + value.len() + 2).sum();
    let bytes = environment + command_bytes(&spec.command);
    if bytes > MAX_COMMAND_BYTES {
        mistake(
            mistakes,
            at,
            "command",
            format!("command and env take {bytes} bytes: at most {MAX_COMMAND_BYTES} are allowed; pass a file instead"),
        );
    }
    for (key, value) in &spec.env {
        if key.is_empty() || key.contains(['=', '\0']) || value.contains('\0') {
            mistake(
                mistakes,
                at,
                "env",
                format!("{key:?} cannot be an environment variable: no empty name, no = in it, no NUL"),
            );
        }
        if key.starts_with("PANDO_") {
            mistake(mistakes, at, "env", format!("{key:?} is reserved: names that begin with PANDO_ are set by pando"));
        }
    }
    if spec.cwd.as_ref().is_some_and(|cwd| cwd.is_empty() || cwd.contains('\0')) {
        mistake(mistakes, at, "cwd", "an empty folder name: leave the key out for a folder of the child's own".into());
    }
    if spec.slots == 0 {
        mistake(mistakes, at, "slots", "a child takes at least 1 slot".into());
    }
    if spec.shutdown == Shutdown::Grace(Duration::ZERO) {
        mistake(mistakes, at, "shutdown", "zero: say \"brutal_kill\" to stop without grace".into());
    }
    match &spec.ready {
        Ready::Started => {}
        Ready::Notify { within } => check_within(at, "ready.within", *within, mistakes),
        Ready::Exec { command, within, interval } => {
            check_command(at, "ready.exec", command, mistakes);
            check_within(at, "ready.within", *within, mistakes);
            if *interval < MIN_BACKOFF {
                mistake(mistakes, at, "ready.interval", format!("{interval:?} is too short: at least {MIN_BACKOFF:?}"));
            }
        }
    }
    if let Some(intensity) = spec.intensity {
        check_intensity(at, intensity, mistakes);
        check_budget(at, intensity, 1, backoff, mistakes);
    }
}

fn check_command(at: &Path, key: &str, command: &Command, mistakes: &mut Vec<SpecMistake>) {
    if command.program.is_empty() {
        mistake(mistakes, at, key, "an empty command: the first item is the program to run".into());
    }
    if command.program.contains('\0') || command.args.iter().any(|arg| arg.contains('\0')) {
        mistake(mistakes, at, key, "a command cannot contain a NUL character".into());
    }
}

fn check_within(at: &Path, key: &str, within: Duration, mistakes: &mut Vec<SpecMistake>) {
    if within.is_zero() {
        mistake(mistakes, at, key, "zero: nothing can be ready in no time".into());
    }
}

fn check_backoff(at: &Path, backoff: &Backoff, mistakes: &mut Vec<SpecMistake>) {
    let Backoff { base, cap, factor, jitter, reset_after } = backoff;
    if *base < MIN_BACKOFF {
        mistake(
            mistakes,
            at,
            "backoff.base",
            format!("{base:?} is too short: at least {MIN_BACKOFF:?}, so that no restart loop is tight"),
        );
    }
    if cap < base {
        mistake(mistakes, at, "backoff.cap", format!("cap {cap:?} is below base {base:?}: raise cap or lower base"));
    }
    if *cap > Duration::from_secs(86_400) {
        mistake(mistakes, at, "backoff.cap", format!("{cap:?} is longer than a day"));
    }
    if !(1..=100).contains(factor) {
        mistake(mistakes, at, "backoff.factor", format!("{factor}: expected 1 to 100"));
    }
    if *jitter > 90 {
        mistake(mistakes, at, "backoff.jitter", format!("{jitter}: expected 0 to 90 percent"));
    }
    if reset_after.is_zero() {
        mistake(
            mistakes,
            at,
            "backoff.reset_after",
            "zero: every run would reset the backoff, and restarts would never slow down".into(),
        );
    }
}

fn check_intensity(at: &Path, intensity: Intensity, mistakes: &mut Vec<SpecMistake>) {
    let Intensity::Limited { max_restarts, within } = intensity else { return };
    if within.is_zero() {
        mistake(
            mistakes,
            at,
            "intensity.within",
            "a window of zero: no crash would ever count; say \"unlimited\" to mean that".into(),
        );
    }
    if max_restarts > MAX_MAX_RESTARTS {
        mistake(
            mistakes,
            at,
            "intensity.max_restarts",
            format!("{max_restarts}: at most {MAX_MAX_RESTARTS}; say \"unlimited\" to never escalate"),
        );
    }
}

/// The rule of design section 11: a budget cannot be spent where the first `ceil(max_restarts / children covered)` delays
/// at their shortest already fill the window. The children covered are those without an account of their own.
fn check_spendable(at: &Path, spec: &SupervisorSpec, mistakes: &mut Vec<SpecMistake>) {
    // An ended supervisor or a spent account counts here too, but takes more than one delay of its own: leaving those out of
    // the delays and counting them as children errs on the side of allowing.
    let covered = spec.children.len();
    let shares = |child: &&ChildSpec| match &child.work {
        Work::Process(process) => process.intensity.is_none() && child.restart != Restart::Temporary,
        Work::Supervisor(_) => false,
    };
    if covered == 0 || !spec.children.iter().all(|child| shares(&child)) {
        return;
    }
    // The fastest child is the one that could spend it.
    let fastest =
        spec.children.iter().map(|child| child.backoff).min_by_key(|backoff| total(backoff, spec.intensity, covered));
    if let Some(backoff) = fastest {
        check_budget(at, spec.intensity, covered, &backoff, mistakes);
    }
}

fn check_budget(at: &Path, intensity: Intensity, covered: usize, backoff: &Backoff, mistakes: &mut Vec<SpecMistake>) {
    let Intensity::Limited { max_restarts, within } = intensity else { return };
    let total = total(backoff, intensity, covered);
    if !within.is_zero() && total >= within {
        let what = format!(
            "this budget can never be spent: the shortest delays before {max_restarts} restarts already take {total:?}, and crashes \
             are forgotten after {within:?}; lower max_restarts, widen within, or lower the backoff"
        );
        mistake(mistakes, at, "intensity", what);
    }
}

/// The sum of the first delays of one child, at their shortest, that spending the budget takes.
fn total(backoff: &Backoff, intensity: Intensity, covered: usize) -> Duration {
    let Intensity::Limited { max_restarts, .. } = intensity else { return Duration::ZERO };
    let each = max_restarts.min(MAX_MAX_RESTARTS).div_ceil(u32::try_from(covered.max(1)).unwrap_or(u32::MAX));
    (0..each).fold(Duration::ZERO, |sum, n| sum.saturating_add(backoff.shortest(n)))
}

fn command_bytes(command: &Command) -> usize {
    command.program.len() + 1 + command.args.iter().map(|arg| arg.len() + 1).sum::<usize>()
}

fn mistake(mistakes: &mut Vec<SpecMistake>, at: &Path, key: &str, what: String) {
    mistakes.push(SpecMistake { at: at.clone(), key: key.into(), what });
}
