//! `pando logs`: what a child wrote, on every node that ran it.

use clap::Args;
use pando_protocol::ids::Path;
use pando_protocol::message::{Call, Item, LogLine};
use serde::Serialize;

use crate::connection::with;
use crate::context::Target;
use crate::exit::Failure;
use crate::output::{Format, Style};
use crate::{arguments, following, output};

/// Shows what a child wrote, on every node that ran it
///
/// Each line begins with node and incarnation, then `|` for standard output or `!` for standard error.
#[derive(Debug, Args)]
pub struct Logs {
    /// The child
    #[arg(value_parser = arguments::path)]
    path: Path,
    /// Go on with new lines as they are written
    #[arg(long, short)]
    follow: bool,
    /// The last so many lines of each node
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = lines)]
    tail: u32,
    /// How data is shown; JSON is one object a line
    #[arg(long, value_enum, default_value_t)]
    output: Format,
}

/// A line, for programs.
#[derive(Debug, Serialize)]
struct LogRow {
    node: String,
    incarnation: u64,
    /// Milliseconds since the Unix epoch.
    at: u64,
    stream: &'static str,
    line: String,
}

impl Logs {
    /// Shows them.
    ///
    /// # Errors
    /// There is no such child, or the cluster cannot be reached.
    pub async fn run(self, target: &Target) -> Result<(), Failure> {
        let Self { path, follow, tail, output } = self;
        let colour = output::wants_colour();
        with(target, async |connection| {
            // Begun again, old lines would come twice; what was written between the two is in the files of its node.
            let call = |again| Call::Logs { path: path.clone(), tail: if again { 0 } else { tail }, follow };
            following::run(connection, follow, call, |item| {
                let Item::Log(line) = item else { return Ok(()) };
                match output {
                    Format::Table => output::emit(&text(&line, colour)),
                    Format::Json => output::emit_json_line(&row(line)),
                }
            })
            .await
        })
        .await
    }
}

fn lines(text: &str) -> Result<u32, String> {
    arguments::number(text, "how many lines")
}

/// A line with where it comes from.
pub fn text(line: &LogLine, colour: bool) -> String {
    let (sign, style) = if line.is_stderr { ("!", Style::Yellow) } else { ("|", Style::Dim) };
    let origin = style.paint(&format!("{} {} {sign}", line.node, line.incarnation), colour);
    format!("{origin} {}\n", line.line)
}

fn row(line: LogLine) -> LogRow {
    let LogLine { node, incarnation, at, is_stderr, line } = line;
    let at = u64::try_from(at.as_millis()).unwrap_or(u64::MAX);
    LogRow {
        node: node.into(),
        incarnation: incarnation.0,
        at,
        stream: if is_stderr { "stderr" } else { "stdout" },
        line,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use pando_protocol::ids::Incarnation;

    use super::*;

    #[test]
    fn a_line_says_where_it_comes_from() {
        let line = |is_stderr| LogLine {
            node: "n2".parse().unwrap(),
            incarnation: Incarnation(7),
            at: Duration::from_millis(1_500),
            is_stderr,
            line: "connected".into(),
        };
        assert_eq!(text(&line(false), false), "n2 7 | connected\n");
        assert_eq!(text(&line(true), false), "n2 7 ! connected\n");
        let json = serde_json::to_string(&row(line(true))).unwrap();
        assert_eq!(json, r#"{"node":"n2","incarnation":7,"at":1500,"stream":"stderr","line":"connected"}"#);
    }
}
