//! Dead letters as tables and stories.

use std::fmt::Write;

use pando_protocol::ids::Path;
use pando_protocol::mail::{AttemptEnd, AttemptRow, DeadLetterRow};

use crate::human;
use crate::output::{Cell, Style, Table};

/// Dead letters, one line each.
pub fn list(path: &Path, letters: &[DeadLetterRow], now: u64, colour: bool) -> String {
    if letters.is_empty() {
        return format!("no dead letters of {path}\n");
    }
    let mut table = Table::new(["ID", "LIFE", "DIED", "CAUSE", "CHARGED", "LAST WORKER", "BYTES", "WHY"]);
    for letter in letters {
        let last = letter.attempts.last();
        table.row([
            letter.id.as_str().into(),
            letter.life.to_string().into(),
            human::ago(letter.died, now).into(),
            Cell::styled(letter.cause.as_str(), Style::Red),
            charged(letter).to_string().into(),
            last.map(|attempt| attempt.worker.to_string()).unwrap_or_default().into(),
            letter.bytes.to_string().into(),
            plain(&letter.why).into(),
        ]);
    }
    table.render(colour)
}

/// One dead letter with its payload and every attempt.
pub fn one(letter: &DeadLetterRow, now: u64, colour: bool) -> String {
    let DeadLetterRow { id, number: _, mailbox, life, cause, why, died, enqueued, headers, bytes, attempts, .. } =
        letter;
    let (bold, why) = (Style::Bold.paint(id, colour), plain(why));
    let mut text = format!("message {bold} of {mailbox}: {why} [{cause}]\n");
    let (sent, died) = (human::ago(*enqueued, now), human::ago(*died, now));
    // Those that are not kept may have been charged, too.
    let least = if letter.attempts_left_out > 0 { "at least " } else { "" };
    let charged = human::count(u64::from(charged(letter)), "attempt");
    text.push_str(&format!("  sent {sent}, dead {died} in life {life}, {least}{charged} of it charged\n"));
    for (name, value) in headers {
        text.push_str(&format!("  header {}: {}\n", plain(name), plain(value)));
    }
    text.push_str(&payload(letter, *bytes, colour));
    if attempts.is_empty() {
        return text + "\nno attempt at it was made\n";
    }
    text.push_str(&format!("\n{}\n", Style::Dim.paint("attempts, the oldest first", colour)));
    for attempt in attempts {
        text.push_str(&story(attempt, now));
    }
    if letter.attempts_left_out > 0 {
        let left_out = human::count(u64::from(letter.attempts_left_out), "attempt");
        text.push_str(&format!("  {left_out} more, between the first and the newest of a life, are not kept\n"));
    }
    text
}

fn payload(letter: &DeadLetterRow, bytes: u64, colour: bool) -> String {
    let (what, content) = match &letter.payload_base64 {
        Some(base64) => ("base64", base64),
        None => ("payload", &letter.payload),
    };
    let mut text = format!("\n{}\n", Style::Dim.paint(&format!("{what}, {}", human::count(bytes, "byte")), colour));
    quote(&mut text, "  ", content);
    text
}

fn story(attempt: &AttemptRow, now: u64) -> String {
    let AttemptRow { life, worker, node, incarnation, began, ended, how, class: _, why, stderr, charged, payer } =
        attempt;
    let how = match how {
        AttemptEnd::Crashed => "crashed",
        AttemptEnd::Failed => "failed",
        AttemptEnd::Rejected => "rejected",
        AttemptEnd::NodeLost => "its node was lost",
        AttemptEnd::Returned => "returned",
    };
    let paid = if *charged { "charged".to_owned() } else { format!("not charged: {payer}") };
    let why = plain(why);
    let (when, took) = (human::ago(*ended, now), human::millis(ended.saturating_sub(*began)));
    let mut text = format!(
        "  life {life}, {worker} on {node}, incarnation {incarnation}: {how} {when} after {took}; {paid}\n    {why}\n"
    );
    quote(&mut text, "    ", stderr);
    text
}

/// Adds a text as a quotation.
fn quote(text: &mut String, indent: &str, quoted: &str) {
    for line in quoted.lines() {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{indent}│ {}", plain(line));
    }
}

/// What others wrote in one line, without what a terminal would obey.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\t' { '\u{fffd}' } else { c }).collect()
}

/// Attempts of its last life that it was charged with.
fn charged(letter: &DeadLetterRow) -> u32 {
    letter.attempts.iter().filter(|attempt| attempt.charged && attempt.life == letter.life).count() as u32
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use pando_protocol::cause::CauseClass;
    use pando_protocol::ids::Incarnation;
    use pando_protocol::mail::DeathKind;

    use super::*;

    fn attempt(life: u32, incarnation: u64, charged: bool) -> AttemptRow {
        AttemptRow {
            life,
            worker: "/shop/orders/0".parse().unwrap(),
            node: "n1".parse().unwrap(),
            incarnation: Incarnation(incarnation),
            began: 40_000,
            ended: 40_012,
            how: if charged { AttemptEnd::Crashed } else { AttemptEnd::Returned },
            class: charged.then_some(CauseClass::Crash),
            why: if charged { "exit code 1 after 2.0 s" } else { "its worker was stopped" }.into(),
            stderr: if charged { "KeyError: 'price'\n" } else { "" }.into(),
            charged,
            payer: if charged { "the message" } else { "nobody" }.into(),
        }
    }

    fn letter() -> DeadLetterRow {
        DeadLetterRow {
            id: "order-7".into(),
            number: 12,
            mailbox: "/shop/orders".parse().unwrap(),
            life: 2,
            cause: DeathKind::Attempts,
            why: "1 of 1 attempts charged".into(),
            died: 40_012,
            enqueued: 30_000,
            headers: BTreeMap::from([("source".to_owned(), "till-3".to_owned())]),
            payload: "{\"item\": 7}\x1b[2J".into(),
            payload_base64: None,
            bytes: 15,
            attempts: vec![attempt(1, 4, true), attempt(2, 5, false), attempt(2, 6, true)],
            attempts_left_out: 0,
        }
    }

    #[test]
    fn a_dead_letter_is_one_line_in_a_list() {
        let expected = "\
ID       LIFE  DIED       CAUSE     CHARGED  LAST WORKER     BYTES  WHY
order-7  2     2.0 s ago  attempts  1        /shop/orders/0  15     1 of 1 attempts charged
";
        let path = "/shop/orders".parse().unwrap();
        assert_eq!(list(&path, &[letter()], 42_012, false), expected);
        assert_eq!(list(&path, &[], 0, false), "no dead letters of /shop/orders\n");
    }

    #[test]
    fn one_is_told_with_the_evidence_of_each_attempt_and_its_payload_cannot_reach_the_terminal() {
        let expected = "\
message order-7 of /shop/orders: 1 of 1 attempts charged [attempts]
  sent 12 s ago, dead 2.0 s ago in life 2, 1 attempt of it charged
  header source: till-3

payload, 15 bytes
  │ {\"item\": 7}\u{fffd}[2J

attempts, the oldest first
  life 1, /shop/orders/0 on n1, incarnation 4: crashed 2.0 s ago after 12 ms; charged
    exit code 1 after 2.0 s
    │ KeyError: 'price'
  life 2, /shop/orders/0 on n1, incarnation 5: returned 2.0 s ago after 12 ms; not charged: nobody
    its worker was stopped
  life 2, /shop/orders/0 on n1, incarnation 6: crashed 2.0 s ago after 12 ms; charged
    exit code 1 after 2.0 s
    │ KeyError: 'price'
";
        assert_eq!(one(&letter(), 42_012, false), expected);
        let many = DeadLetterRow { attempts_left_out: 7, ..letter() };
        assert!(
            one(&many, 42_012, false)
                .ends_with("\n  7 attempts more, between the first and the newest of a life, are not kept\n")
        );
        let bytes = DeadLetterRow { payload: String::new(), payload_base64: Some("//8=".into()), bytes: 2, ..letter() };
        assert!(one(&bytes, 42_012, false).contains("base64, 2 bytes\n  │ //8=\n"));
    }

    #[test]
    fn programs_find_the_promised_fields() {
        let json = serde_json::to_value(letter()).unwrap();
        for field in ["id", "payload", "life", "cause", "why"] {
            assert!(json.get(field).is_some(), "{field}");
        }
        let charged: Vec<_> = json["attempts"].as_array().unwrap().iter().map(|attempt| &attempt["charged"]).collect();
        assert_eq!(charged, [true, false, true]);
    }
}
