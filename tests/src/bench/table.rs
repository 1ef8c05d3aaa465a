//! The table, for people and as JSON.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde_json::{Value, json};

use super::measured::{Results, Series, Verdict, median};
use super::rows::{Goal, Peer, Row};

/// The table for people: a block of lines for each row.
pub fn text(results: &Results) -> String {
    let runs = format!("{} run{}", results.runs, if results.runs == 1 { "" } else { "s" });
    let mut text = format!("{runs:<14} {:>10} {:>10} {:>10}\n", "min", "median", "max");
    for row in results.rows() {
        let unit = row.facts().unit;
        let Some(ours) = results.series(*row, None) else { continue };
        _ = writeln!(text, "\n{}: {}, {unit}", row.name(), row.facts().what);
        line(&mut text, "Pando", *row, ours);
        for peer in row.subject().peers() {
            if let Some(theirs) = results.series(*row, Some(*peer)) {
                line(&mut text, peer.name(), *row, theirs);
            }
        }
        if let Some(goal) = row.facts().goal {
            _ = writeln!(text, "    goal: {}: {}", goal_in_words(goal, unit), verdict_in_words(results.verdict(*row)));
        }
        if !ours.costs.is_empty() {
            let costs: Vec<String> = costs(ours).map(|(who, micros)| format!("{who} {micros:.1}")).collect();
            _ = writeln!(text, "    CPU for a message, µs: {}", costs.join(", "));
        }
        if let Some(entries) = median(&ours.entries) {
            _ = writeln!(text, "    entries of the log a second: {entries:.0}");
        }
    }
    text
}

fn line(text: &mut String, who: &str, row: Row, series: &Series) {
    let shown = |value: f64| match row.facts().unit {
        "s" => format!("{value:.3}"),
        "/s" => format!("{value:.0}"),
        _ => format!("{value:.1}"),
    };
    _ = match (series.values.as_slice(), &series.skipped) {
        ([], why) => writeln!(text, "  {who:<12} skipped: {}", why.as_deref().unwrap_or("no number came")),
        ([first, .., last], _) | ([first @ last], _) => {
            let median = series.median().unwrap_or(*first);
            writeln!(text, "  {who:<12} {:>10} {:>10} {:>10}", shown(*first), shown(median), shown(*last))
        }
    };
    for (word, said) in [("fault", &series.faults), ("note", &series.notes)] {
        let said: BTreeSet<&String> = said.iter().collect();
        for said in said {
            _ = writeln!(text, "    {who}: {word}: {said}");
        }
    }
}

fn goal_in_words(goal: Goal, unit: &str) -> String {
    match goal {
        Goal::AtMost(most) => format!("at most {most} {unit}"),
        Goal::AtLeast(least) => format!("at least {least} {unit}"),
        Goal::Within { median, most } => format!("at most {median} {unit}, and none above {most}"),
        Goal::Between(low, high) => format!("from {low} to {high} {unit}"),
        Goal::AtMostTimes(peer, times) => format!("at most {times} × {}", peer.name()),
        Goal::Times(parts) => {
            let parts: Vec<String> = parts.iter().map(|(peer, times)| format!("{times} × {}", peer.name())).collect();
            format!("at least {}", parts.join(" and "))
        }
    }
}

fn verdict_in_words(verdict: Option<Verdict>) -> String {
    match verdict {
        Some(Verdict::Met(said)) => format!("met, {said}"),
        Some(Verdict::Missed(said)) => format!("missed, {said}"),
        Some(Verdict::Unknown(said)) => format!("not known, {said}"),
        None => "not known".into(),
    }
}

fn costs(series: &Series) -> impl Iterator<Item = (&'static str, f64)> {
    series.costs.iter().filter_map(|(who, micros)| Some((*who, median(micros)?)))
}

/// The same for programs: an array of rows, each with `pando` and `peers` as objects of `min`, `median`, `max` and `values`. `met`
/// is null where there is no goal or nobody to compare with.
pub fn json(results: &Results) -> String {
    let rows: Vec<Value> = results.rows().iter().map(|row| row_as_json(results, *row)).collect();
    format!("{:#}\n", json!({ "runs": results.runs, "rows": rows }))
}

fn row_as_json(results: &Results, row: Row) -> Value {
    let verdict = results.verdict(row);
    let met = match verdict {
        Some(Verdict::Met(_)) => Some(true),
        Some(Verdict::Missed(_)) => Some(false),
        Some(Verdict::Unknown(_)) | None => None,
    };
    let peers: Vec<Value> =
        row.subject().peers().iter().map(|peer| series_as_json(results, row, Some(*peer))).collect();
    json!({
        "row": row.name(),
        "what": row.facts().what,
        "unit": row.facts().unit,
        "pando": series_as_json(results, row, None),
        "peers": peers,
        "goal": row.facts().goal.map(|goal| goal_in_words(goal, row.facts().unit)),
        "met": met,
        "verdict": verdict.map(|verdict| verdict_in_words(Some(verdict))),
    })
}

fn series_as_json(results: &Results, row: Row, who: Option<Peer>) -> Value {
    let name = who.map_or("Pando", Peer::name);
    let Some(series) = results.series(row, who) else { return json!({ "name": name }) };
    json!({
        "name": name,
        "min": series.values.first(),
        "median": series.median(),
        "max": series.values.last(),
        "values": series.values,
        "skipped": series.skipped,
        "cpu_us_per_message": costs(series).map(|(who, micros)| (who.to_owned(), json!(micros))).collect::<serde_json::Map<_, _>>(),
        "log_entries_per_s": median(&series.entries),
        "faults": series.faults,
        "notes": series.notes,
    })
}
