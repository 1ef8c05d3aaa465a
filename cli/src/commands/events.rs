//! `pando events`: what happened, one line each.

use std::cell::Cell;

use clap::Args;
use pando_protocol::message::{Call, Item};
use pando_protocol::view::EventRow;

use crate::connection::with;
use crate::context::Target;
use crate::exit::Failure;
use crate::output::{Format, Style};
use crate::{arguments, following, human, output};

/// Shows what happened in the cluster, the oldest first; times are UTC
#[derive(Debug, Args)]
pub struct Events {
    /// Go on with new ones as they happen
    #[arg(long, short)]
    follow: bool,
    /// Only events after the one with this number
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = event_number)]
    after: u64,
    /// How data is shown; JSON is one object a line
    #[arg(long, value_enum, default_value_t)]
    output: Format,
}

impl Events {
    /// Shows them.
    ///
    /// # Errors
    /// The cluster cannot be reached.
    pub async fn run(self, target: &Target) -> Result<(), Failure> {
        let Self { follow, after, output } = self;
        let colour = output::wants_colour();
        let last = Cell::new(after);
        with(target, async |connection| {
            let call = |_| Call::Events { after: last.get(), follow };
            following::run(connection, follow, call, |item| {
                let Item::Event(row) = item else { return Ok(()) };
                last.set(row.number);
                match output {
                    Format::Table => output::emit(&line(&row, colour)),
                    Format::Json => output::emit_json_line(&row),
                }
            })
            .await
        })
        .await
    }
}

fn event_number(text: &str) -> Result<u64, String> {
    arguments::number(text, "the number of an event")
}

fn line(row: &EventRow, colour: bool) -> String {
    let number = Style::Dim.paint(&format!("{:>6}", row.number), colour);
    let time = Style::Dim.paint(&human::time_of_day(row.at), colour);
    format!("{number}  {time}  {kind:<18}  {text}\n", kind = row.kind, text = row.text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_line() {
        let row = EventRow {
            number: 12,
            cluster_time_ms: 900,
            at: 1_796_040_184_120,
            kind: "node_lost".into(),
            path: None,
            node: Some("n2".parse().unwrap()),
            text: "n2 lost: process died (obituary)".into(),
        };
        assert_eq!(line(&row, false), "    12  12:03:04.120  node_lost           n2 lost: process died (obituary)\n");
    }
}
