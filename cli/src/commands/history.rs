//! `pando history`: how the runs of a member ended.

use clap::Args;
use pando_protocol::ids::Path;
use pando_protocol::view::{CauseRow, HistoryRow};

use crate::connection::{Reading, with};
use crate::context::Target;
use crate::exit::Failure;
use crate::output::{self, Format, Table};
use crate::{arguments, human};

/// Shows how the runs of a member ended, the oldest first; equal endings are one line with a count
#[derive(Debug, Args)]
pub struct History {
    /// Tree, supervisor or child
    #[arg(value_parser = arguments::path)]
    path: Path,
    #[command(flatten)]
    reading: Reading,
}

impl History {
    /// Shows it.
    ///
    /// # Errors
    /// There is no such path, or the cluster cannot be reached.
    pub async fn run(self, target: &Target) -> Result<(), Failure> {
        let Self { path, reading } = self;
        let read = with(target, async |connection| connection.history(path.clone(), reading.freshness()).await).await?;
        match reading.output {
            Format::Table => output::emit(&render(&path, &read.value, human::now(), output::wants_colour()))?,
            Format::Json => output::emit_json(&read.value)?,
        }
        reading.judge(&read.view)
    }
}

/// The last so many lines of standard error are shown here; `explain` and JSON have all that is kept.
const STDERR_LINES: usize = 3;

fn render(path: &Path, rows: &[HistoryRow], now: u64, colour: bool) -> String {
    if rows.is_empty() {
        return format!("nothing of {path} has ended yet\n");
    }
    let mut table = Table::new(["INCARNATION", "NODE", "ENDED", "COUNT", "CAUSE", "PAID BY", "DECISION"]);
    for row in rows {
        let HistoryRow { incarnation, node, cause, charged: _, payer, decision, count, first: _, last, chain, earlier } =
            row;
        table.row([
            incarnation.map(|incarnation| incarnation.to_string()).unwrap_or_default().into(),
            node.as_ref().map(ToString::to_string).unwrap_or_default().into(),
            human::ago(*last, now).into(),
            times(row, *count, now).into(),
            format!("{} [{}]", cause.message, cause.class).into(),
            payer.as_str().into(),
            decision.as_str().into(),
        ]);
        for (depth, level) in chain.iter().enumerate() {
            table.note(format!(
                "{}because {}: {} [{}]",
                "  ".repeat(depth + 1),
                level.path,
                level.message,
                level.class
            ));
        }
        for line in last_lines(cause, chain) {
            table.note(format!("  │ {line}"));
        }
        if !earlier.is_empty() {
            let before: Vec<_> = earlier.iter().map(|cause| format!("{}: {}", cause.path, cause.message)).collect();
            table.note(format!("  after {}", before.join("; ")));
        }
    }
    table.render(colour)
}

fn times(row: &HistoryRow, count: u64, now: u64) -> String {
    if count == 1 { "1".into() } else { format!("{count}, first {}", human::ago(row.first, now)) }
}

/// The last words of the process that ended: of the innermost level.
fn last_lines<'a>(cause: &'a CauseRow, chain: &'a [CauseRow]) -> impl Iterator<Item = &'a str> {
    let stderr = &chain.last().unwrap_or(cause).stderr;
    let lines = stderr.lines().count();
    stderr.lines().skip(lines.saturating_sub(STDERR_LINES))
}

#[cfg(test)]
mod tests {
    use pando_protocol::cause::CauseClass;
    use pando_protocol::ids::Incarnation;

    use super::*;

    fn cause(path: &str, class: CauseClass, message: &str, stderr: &str) -> CauseRow {
        let (message, stderr) = (message.into(), stderr.into());
        CauseRow { path: path.parse().unwrap(), class, code: None, signal: None, message, stderr }
    }

    fn crashes() -> HistoryRow {
        HistoryRow {
            incarnation: Some(Incarnation(9)),
            node: Some("n2".parse().unwrap()),
            cause: cause("/shop/feed", CauseClass::Crash, "exit code 1 after 12 ms", "a\nb\nc\nKeyError"),
            charged: true,
            payer: "budget".into(),
            decision: "restart".into(),
            count: 5,
            first: 50_000,
            last: 58_000,
            chain: Vec::new(),
            earlier: Vec::new(),
        }
    }

    #[test]
    fn equal_endings_are_one_line_with_a_count_and_the_last_words() {
        let lost = HistoryRow {
            incarnation: Some(Incarnation(11)),
            node: Some("n3".parse().unwrap()),
            cause: cause("/shop/feed", CauseClass::NodeLost, "n3 was lost", ""),
            charged: false,
            payer: "nobody".into(),
            decision: "start elsewhere".into(),
            count: 1,
            first: 60_000,
            last: 60_000,
            chain: Vec::new(),
            earlier: Vec::new(),
        };
        let expected = "\
INCARNATION  NODE  ENDED      COUNT              CAUSE                            PAID BY  DECISION
9            n2    4.0 s ago  5, first 12 s ago  exit code 1 after 12 ms [crash]  budget   restart
  │ b
  │ c
  │ KeyError
11           n3    2.0 s ago  1                  n3 was lost [node_lost]          nobody   start elsewhere
";
        let path = "/shop/feed".parse().unwrap();
        assert_eq!(render(&path, &[crashes(), lost], 62_000, false), expected);
    }

    #[test]
    fn an_escalation_shows_all_levels_below_it() {
        let mut row = crashes();
        (row.incarnation, row.node, row.count) = (None, None, 1);
        row.cause = cause("/shop", CauseClass::Escalated, "6 crashes within 10 s", "");
        row.chain = vec![
            cause("/shop/ingest", CauseClass::Escalated, "3 crashes within 5 s", ""),
            cause("/shop/ingest/feed", CauseClass::Crash, "exit code 1 after 12 ms", "KeyError"),
        ];
        (row.payer, row.decision) = ("nobody".into(), "the tree has failed".into());
        let expected = "\
ENDED      COUNT  CAUSE                              PAID BY  DECISION
4.0 s ago  1      6 crashes within 10 s [escalated]  nobody   the tree has failed
  because /shop/ingest: 3 crashes within 5 s [escalated]
    because /shop/ingest/feed: exit code 1 after 12 ms [crash]
  │ KeyError
";
        assert_eq!(render(&"/shop".parse().unwrap(), &[row], 62_000, false), expected);
    }

    #[test]
    fn programs_find_the_promised_fields() {
        let json = serde_json::to_value(crashes()).unwrap();
        for field in ["incarnation", "node", "charged", "decision", "count", "first", "last"] {
            assert!(!json[field].is_null(), "{field}");
        }
        assert_eq!(json["cause"]["class"], "crash");
        for field in ["code", "signal", "message", "stderr"] {
            assert!(json["cause"].get(field).is_some(), "{field}");
        }
    }
}
