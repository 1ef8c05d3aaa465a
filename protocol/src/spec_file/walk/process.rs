//! The keys of a process.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::super::document::{Entry, Node, Value};
use super::super::values::{Fields, Reader};
use super::super::{keys, size};
use crate::ids::Path;
use crate::mail::MAX_MAIL_BYTES;
use crate::spec::{
    Attempts, Command, ExitAction, ExitMatch, ExitRule, Label, MAX_ATTEMPTS, MAX_MESSAGES, MAX_PREFETCH, MailboxSpec,
    OnDisconnect, Place, ProcessSpec, Ready, Shutdown, Signal,
};

/// How long a process may take to be ready, where the spec does not say.
const READY_WITHIN: Duration = Duration::from_secs(10);
/// The pause between two probes, where the spec does not say.
const READY_INTERVAL: Duration = Duration::from_millis(200);
/// The words of `on_disconnect`.
const ON_DISCONNECT: &[(&str, OnDisconnect)] = &[("stop", OnDisconnect::Stop), ("keep", OnDisconnect::Keep)];
/// The words of `do` in `on_exit`.
const ACTIONS: &[(&str, ExitAction)] = &[
    ("ignore", ExitAction::Ignore),
    ("restart", ExitAction::Restart),
    ("stop", ExitAction::Stop),
    ("escalate", ExitAction::Escalate),
];

impl Reader<'_> {
    pub(super) fn process(&mut self, fields: Fields<'_>, at: &Path) -> ProcessSpec {
        let command = fields.get("command").and_then(|node| self.command(node));
        let mut spec = ProcessSpec::new(command.unwrap_or_else(unread_command));
        for Entry { key, key_span: _, node } in fields.entries() {
            match key.as_str() {
                "env" => spec.env = self.environment(node, at).unwrap_or_default(),
                "cwd" => spec.cwd = self.text(node, "a text such as \"work\"").map(Into::into),
                "shutdown" => spec.shutdown = self.shutdown(node).unwrap_or_default(),
                "stop_signal" => spec.stop_signal = self.signal(node).unwrap_or(spec.stop_signal),
                "normal_exit" => spec.normal_exit = self.codes(node).unwrap_or_default(),
                "intensity" => spec.intensity = self.intensity(node, at),
                "slots" => spec.slots = self.integer(node, 1..=i128::from(u32::MAX)).unwrap_or(spec.slots),
                "ready" => spec.ready = self.ready(node, at).unwrap_or(spec.ready),
                "place" => spec.place = self.place(node, at).unwrap_or_default(),
                "on_exit" => spec.on_exit = self.exit_rules(node).unwrap_or_default(),
                "on_disconnect" => spec.on_disconnect = self.choice(node, ON_DISCONNECT).unwrap_or_default(),
                "mailbox" => spec.mailbox = self.mailbox(node, at),
                _ => {} // Of every child, or refused already.
            }
        }
        spec
    }

    fn command(&mut self, node: &Node) -> Option<Command> {
        let expected = "an array of texts such as [\"shop-web\", \"--port\", \"8080\"] (no shell is involved)";
        let mut words = self.texts(node, expected)?.into_iter().map(String::from);
        // An empty program is refused with the whole.
        Some(Command { program: words.next().unwrap_or_default(), args: words.collect() })
    }

    fn environment(&mut self, node: &Node, at: &Path) -> Option<BTreeMap<String, String>> {
        let fields = self.table(node, "a table of texts such as { GREETING = \"hello\" }")?;
        let mut environment = BTreeMap::new();
        for entry in fields.entries() {
            self.places.variable(at, entry);
            if let Some(value) = self.text(&entry.node, "a text such as \"8080\"") {
                environment.insert(entry.key.clone(), value.to_owned());
            }
        }
        Some(environment)
    }

    fn shutdown(&mut self, node: &Node) -> Option<Shutdown> {
        const WORDS: &[(&str, Shutdown)] = &[("brutal_kill", Shutdown::BrutalKill), ("infinity", Shutdown::Infinity)];
        let expected = "a text such as \"5s\", \"brutal_kill\" or \"infinity\"";
        let text = self.text(node, expected)?;
        if text.starts_with(|c: char| c.is_ascii_digit()) {
            return self.duration(node, "5s").map(Shutdown::Grace);
        }
        let word = WORDS.iter().find(|(word, _)| *word == text).map(|(_, value)| *value);
        if word.is_none() {
            self.unknown_word(node, text, WORDS.iter().map(|(word, _)| *word), expected);
        }
        word
    }

    fn signal(&mut self, node: &Node) -> Option<Signal> {
        let expected = "the name of a signal such as \"SIGTERM\", or its number from 1 to 64";
        if let Value::Integer(number) = node.value {
            let signal = u8::try_from(number).ok().and_then(|number| Signal::try_from(number).ok());
            if signal.is_none() {
                self.wrong(node, expected);
            }
            return signal;
        }
        let text = self.text(node, expected)?;
        let signal = Signal::named(text);
        if signal.is_none() {
            self.unknown_word(node, text, Signal::names(), expected);
        }
        signal
    }

    fn codes(&mut self, node: &Node) -> Option<BTreeSet<u8>> {
        let items = self.array(node, "an array of exit codes such as [0, 3]")?;
        Some(items.iter().filter_map(|item| self.integer(item, 0..=255)).collect())
    }

    fn ready(&mut self, node: &Node, at: &Path) -> Option<Ready> {
        const EXPECTED: &str =
            "a table such as { exec = [\"shop-web\", \"--check\"], within = \"10s\" } or { notify = true }";
        let fields = self.fields(node, at, "ready", keys::READY, EXPECTED)?;
        let mut time =
            |key, example, default| fields.get(key).and_then(|node| self.duration(node, example)).unwrap_or(default);
        let within = time("within", "10s", READY_WITHIN);
        let interval = time("interval", "200ms", READY_INTERVAL);
        match (fields.entry("exec"), fields.entry("notify")) {
            (Some(exec), None) => {
                let command = self.command(&exec.node).unwrap_or_else(unread_command);
                Some(Ready::Exec { command, within, interval })
            }
            (None, Some(notify)) => {
                self.notify(notify, fields);
                Some(Ready::Notify { within })
            }
            (Some(_), Some(notify)) => {
                self.refuse(&notify.key_span, "both exec and notify: a child is ready by one of them");
                None
            }
            (None, None) => {
                self.wrong(node, EXPECTED);
                None
            }
        }
    }

    fn notify(&mut self, notify: &Entry, fields: Fields<'_>) {
        if self.boolean(&notify.node) == Some(false) {
            let what = "notify = false: leave ready out for a child that is ready once it has started";
            self.refuse(&notify.node.span, what);
        }
        if let Some(interval) = fields.entry("interval") {
            self.refuse(
                &interval.key_span,
                "interval is the pause between two probes: it goes with exec, not with notify",
            );
        }
    }

    fn place(&mut self, node: &Node, at: &Path) -> Option<Place> {
        const EXPECTED: &str = "a table such as { require = [\"disk=ssd\"], spread = \"zone\" }";
        let fields = self.fields(node, at, "place", keys::PLACE, EXPECTED)?;
        let require = fields.get("require").and_then(|node| self.labels(node));
        let prefer = fields.get("prefer").and_then(|node| self.labels(node));
        let spread = fields.get("spread").and_then(|node| self.text(node, "the key of a label such as \"zone\""));
        Some(Place {
            require: require.unwrap_or_default(),
            prefer: prefer.unwrap_or_default(),
            spread: spread.map(Into::into),
        })
    }

    fn labels(&mut self, node: &Node) -> Option<BTreeSet<Label>> {
        let items = self.array(node, "an array of labels such as [\"zone=a\"]")?;
        let mut labels = BTreeSet::new();
        for item in items {
            match self.text(item, "a label such as \"zone=a\"").map(str::parse) {
                Some(Ok(label)) => {
                    labels.insert(label);
                }
                Some(Err(error)) => self.refuse(&item.span, error),
                None => {}
            }
        }
        Some(labels)
    }

    fn exit_rules(&mut self, node: &Node) -> Option<Vec<ExitRule>> {
        let items = self.array(node, "an array of rules such as [{ code = 78, do = \"stop\" }]")?;
        Some(items.iter().filter_map(|item| self.exit_rule(item)).collect())
    }

    fn exit_rule(&mut self, node: &Node) -> Option<ExitRule> {
        let fields = self.table(node, "a rule such as { code = 78, do = \"stop\" }")?;
        for entry in fields.entries() {
            if !keys::ON_EXIT.contains(&entry.key.as_str()) {
                self.findings.push(keys::unknown(entry, keys::ON_EXIT));
            }
        }
        let when = match (fields.entry("code"), fields.entry("signal")) {
            (Some(code), None) => self.integer(&code.node, 0..=255).map(ExitMatch::Code),
            (None, Some(signal)) => self.signal(&signal.node).map(ExitMatch::Signal),
            (Some(_), Some(signal)) => {
                self.refuse(&signal.key_span, "both code and signal: a rule is for one of them; write two rules");
                None
            }
            (None, None) => {
                self.refuse(&node.span, "a rule without code or signal: say which endings it is for");
                None
            }
        };
        let Some(action) = fields.get("do") else {
            self.refuse(
                &node.span,
                "a rule without do: expected one of \"ignore\", \"restart\", \"stop\", \"escalate\"",
            );
            return None;
        };
        let action = self.choice(action, ACTIONS)?;
        when.map(|when| ExitRule { when, action })
    }

    fn mailbox(&mut self, node: &Node, at: &Path) -> Option<MailboxSpec> {
        let expected = "a table such as { max_attempts = 3 }";
        let fields = self.fields(node, at, "mailbox", keys::MAILBOX, expected)?;
        let mut spec = MailboxSpec::default();
        for Entry { key, key_span: _, node } in fields.entries() {
            match key.as_str() {
                "max_attempts" => spec.max_attempts = self.attempts(node).unwrap_or(spec.max_attempts),
                "retry_delay" => spec.retry_delay = self.duration(node, "0s").unwrap_or(spec.retry_delay),
                "handling_timeout" => {
                    spec.handling_timeout = self.duration(node, "30s").unwrap_or(spec.handling_timeout);
                }
                "prefetch" => spec.prefetch = self.count(node, MAX_PREFETCH).unwrap_or(spec.prefetch),
                "max_messages" => spec.max_messages = self.count(node, MAX_MESSAGES).unwrap_or(spec.max_messages),
                "max_bytes" => spec.max_bytes = self.mailbox_bytes(node).unwrap_or(spec.max_bytes),
                "suspect_after" => spec.suspect_after = self.count(node, MAX_ATTEMPTS).unwrap_or(spec.suspect_after),
                "max_node_losses" => {
                    spec.max_node_losses = self.count(node, MAX_ATTEMPTS).unwrap_or(spec.max_node_losses);
                }
                _ => {} // Refused already.
            }
        }
        Some(spec)
    }

    fn attempts(&mut self, node: &Node) -> Option<Attempts> {
        const EXPECTED: &str = "a number such as 3, or \"unlimited\"";
        let Value::Text(word) = &node.value else { return self.count(node, MAX_ATTEMPTS).map(Attempts::Limited) };
        if word != "unlimited" {
            self.unknown_word(node, word, std::iter::once("unlimited"), EXPECTED);
            return None;
        }
        Some(Attempts::Unlimited)
    }

    fn count(&mut self, node: &Node, most: u32) -> Option<u32> {
        self.integer(node, 1..=i128::from(most))
    }

    fn mailbox_bytes(&mut self, node: &Node) -> Option<u64> {
        let text = self.text(node, "a text such as \"64MiB\"")?;
        match size::parse(text) {
            Ok(bytes) if (1..=MAX_MAIL_BYTES).contains(&bytes) => return Some(bytes),
            Ok(_) => self.refuse(&node.span, format!("{text:?} is out of range: expected 1B to 512MiB")),
            Err(error) => self.refuse(&node.span, error.to_string()),
        }
        None
    }
}

/// A legal command in place of one that is missing or could not be read: the tree is refused in any case.
fn unread_command() -> Command {
    Command { program: "unread".into(), args: Vec::new() }
}
