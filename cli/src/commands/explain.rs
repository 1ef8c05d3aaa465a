//! `pando explain`: why a member is as it is, and what happens next, in plain words.

use std::fmt::Write;

use clap::Args;
use pando_protocol::cause::{Cause, CauseChain};
use pando_protocol::ids::{NodeName, Path};
use pando_protocol::view::{Explanation, Kind, TreeRow};

use crate::commands::tree::{mailbox_depth, state_name, verdict_name};
use crate::connection::{Reading, with};
use crate::context::Target;
use crate::exit::Failure;
use crate::output::{self, Format, Style};
use crate::{arguments, human};

/// Tells why a member is as it is, what happens next, and when it gives up
#[derive(Debug, Args)]
pub struct Explain {
    /// Tree, supervisor or child
    #[arg(value_parser = arguments::path)]
    path: Path,
    #[command(flatten)]
    reading: Reading,
}

impl Explain {
    /// Tells it.
    ///
    /// # Errors
    /// There is no such path, or the cluster cannot be reached.
    pub async fn run(self, target: &Target) -> Result<(), Failure> {
        let Self { path, reading } = self;
        let read = with(target, async |connection| connection.explain(path, reading.freshness()).await).await?;
        match reading.output {
            Format::Table => output::emit(&render(&read.value, output::wants_colour()))?,
            Format::Json => output::emit_json(&read.value)?,
        }
        reading.judge(&read.view)
    }
}

/// The explanation in words.
pub fn render(explanation: &Explanation, colour: bool) -> String {
    let Explanation { row, now, next, gives_up, last, window, node_losses, start_failures } = explanation;
    let mut text = headline(row, colour);
    for (label, sentence) in [("now", now), ("next", next), ("gives up", gives_up)] {
        if !sentence.is_empty() {
            text.push_str(&format!("  {label:<10}{sentence}\n"));
        }
    }
    if let Some(depth) = &row.mailbox {
        let stands = mailbox_depth(depth);
        text.push_str(&format!("  {:<10}{stands}; `pando mailbox {}` tells more\n", "mailbox", row.path));
    }
    text.push_str(&last_ending(last.as_ref(), colour));
    text.push_str(&budget_window(window, colour));
    text.push_str(&lost_nodes(node_losses, colour));
    text.push_str(&refused_starts(start_failures, colour));
    text
}

/// What it is, where it runs, and how that is judged.
fn headline(row: &TreeRow, colour: bool) -> String {
    let kind = match row.kind {
        Kind::Supervisor => "supervisor",
        Kind::Process => "process",
    };
    let mut text = format!("{}: {kind}, {}", Style::Bold.paint(row.path.as_str(), colour), state_name(row.state));
    if let Some(node) = &row.node {
        text.push_str(&format!(" on {node}"));
    }
    if let Some(incarnation) = row.incarnation {
        text.push_str(&format!(", incarnation {incarnation}"));
    }
    if let Some(pid) = row.pid {
        text.push_str(&format!(", pid {pid}"));
    }
    if let Some(uptime) = row.uptime_ms {
        text.push_str(&format!(", up {}", human::millis(uptime)));
    }
    if row.kind == Kind::Supervisor {
        text.push_str(&format!(", {} of {} ready", row.alive, row.configured));
    }
    text.push_str(&format!("; {}\n", Style::of(row.verdict).paint(verdict_name(row.verdict), colour)));
    text
}

fn last_ending(last: Option<&CauseChain>, colour: bool) -> String {
    let Some(chain) = last else { return heading("nothing of it has ended yet", colour) };
    let mut text = heading("what ended last", colour);
    for (depth, cause) in chain.levels.iter().enumerate() {
        let indent = "  ".repeat(depth + 1);
        let because = if depth == 0 { "" } else { "because " };
        text.push_str(&format!("{indent}{because}{}\n", sentence(cause)));
        quote(&mut text, &indent, &cause.stderr);
    }
    text
}

fn budget_window(window: &[Cause], colour: bool) -> String {
    if window.is_empty() {
        return String::new();
    }
    let count = window.len() as u64;
    let crashes = if count == 1 { "1 crash counts".into() } else { format!("{count} crashes count") };
    let mut text = heading(&format!("{crashes} against the restart budget now, the oldest first"), colour);
    for cause in window {
        text.push_str(&format!("  {}\n", sentence(cause)));
    }
    text
}

fn lost_nodes(losses: &[(NodeName, u64)], colour: bool) -> String {
    if losses.is_empty() {
        return String::new();
    }
    let each: Vec<String> =
        losses.iter().map(|(node, count)| format!("{node} {}", human::count(*count, "time"))).collect();
    let mut text = heading("nodes that were lost while it ran there", colour);
    text.push_str(&format!("  {}\n", each.join(", ")));
    text
}

fn refused_starts(failures: &[(NodeName, String)], colour: bool) -> String {
    if failures.is_empty() {
        return String::new();
    }
    let mut text = heading("nodes on which it could not be started", colour);
    for (node, why) in failures {
        text.push_str(&format!("  {node}: {why}\n"));
    }
    text
}

/// A cause in a line: what ended, how, which run, where.
fn sentence(cause: &Cause) -> String {
    let mut text = format!("{}: {} [{}]", cause.path, cause.message, cause.class);
    if let Some(incarnation) = cause.incarnation {
        text.push_str(&format!(", incarnation {incarnation}"));
    }
    if let Some(node) = &cause.node {
        text.push_str(&format!(" on {node}"));
    }
    text
}

/// Adds what it wrote to standard error, as a quotation.
fn quote(text: &mut String, indent: &str, stderr: &str) {
    for line in stderr.lines() {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{indent}│ {line}");
    }
}

fn heading(words: &str, colour: bool) -> String {
    format!("\n{}\n", Style::Bold.paint(words, colour))
}

#[cfg(test)]
mod tests {
    use pando_protocol::cause::CauseClass;
    use pando_protocol::ids::Incarnation;
    use pando_protocol::view::{State, Verdict};

    use super::*;
    use crate::commands::tree::tests::{process, row};

    fn crash(path: &str, incarnation: u64, stderr: &str) -> Cause {
        Cause {
            path: path.parse().unwrap(),
            class: CauseClass::Crash,
            message: "exit code 1 after 12 ms".into(),
            code: Some(1),
            signal: None,
            incarnation: Some(Incarnation(incarnation)),
            node: Some("n2".parse().unwrap()),
            stderr: stderr.into(),
        }
    }

    fn escalation(path: &str) -> Cause {
        Cause {
            path: path.parse().unwrap(),
            class: CauseClass::Escalated,
            message: "6 crashes within 10 s".into(),
            code: None,
            signal: None,
            incarnation: None,
            node: None,
            stderr: String::new(),
        }
    }

    #[test]
    fn a_failed_tree_is_told_from_the_root_down_to_the_last_words_of_the_process() {
        let mut root = row("/shop", Kind::Supervisor);
        (root.state, root.verdict, root.alive, root.configured) = (State::Failed, Verdict::Failed, 0, 3);
        let chain = CauseChain::of(crash("/shop/ingest/feed", 41, "Traceback\nKeyError: 'price'"))
            .below(escalation("/shop/ingest"))
            .below(escalation("/shop"));
        let explanation = Explanation {
            row: root,
            now: "failed: its restart budget is spent, and all below it is stopped".into(),
            next: "nothing: `pando restart shop` or a new spec clears it".into(),
            gives_up: String::new(),
            last: Some(chain),
            window: Vec::new(),
            node_losses: Vec::new(),
            start_failures: Vec::new(),
        };
        let expected = "\
/shop: supervisor, failed, 0 of 3 ready; failed
  now       failed: its restart budget is spent, and all below it is stopped
  next      nothing: `pando restart shop` or a new spec clears it

what ended last
  /shop: 6 crashes within 10 s [escalated]
    because /shop/ingest: 6 crashes within 10 s [escalated]
      because /shop/ingest/feed: exit code 1 after 12 ms [crash], incarnation 41 on n2
      │ Traceback
      │ KeyError: 'price'
";
        assert_eq!(render(&explanation, false), expected);
    }

    #[test]
    fn a_process_is_told_with_its_budget_and_the_nodes_that_failed_it() {
        let explanation = Explanation {
            row: process("/shop/web", "n1", 7, 125_000),
            now: "ready for 2 m".into(),
            next: "a crash is restarted after 50 to 100 ms".into(),
            gives_up: "5 more crashes within 10 s escalate to /shop".into(),
            last: None,
            window: vec![crash("/shop/web", 6, "not shown")],
            node_losses: vec![("n2".parse().unwrap(), 2), ("n3".parse().unwrap(), 1)],
            start_failures: vec![("n4".parse().unwrap(), "no such program: shop-web".into())],
        };
        let expected = "\
/shop/web: process, running on n1, incarnation 7, pid 4711, up 2 m; healthy
  now       ready for 2 m
  next      a crash is restarted after 50 to 100 ms
  gives up  5 more crashes within 10 s escalate to /shop

nothing of it has ended yet

1 crash counts against the restart budget now, the oldest first
  /shop/web: exit code 1 after 12 ms [crash], incarnation 6 on n2

nodes that were lost while it ran there
  n2 2 times, n3 1 time

nodes on which it could not be started
  n4: no such program: shop-web
";
        assert_eq!(render(&explanation, false), expected);
    }
}
