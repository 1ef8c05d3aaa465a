//! Mailboxes as tables.

use pando_protocol::mail::{MailboxRow, WorkerRow};

use crate::human;
use crate::output::{Cell, Style, Table};

/// The columns of a list of mailboxes.
pub const HEADINGS: [&str; 10] =
    ["MAILBOX", "WAITING", "IN FLIGHT", "DEAD", "DONE", "OLDEST", "IN/MIN", "DONE/MIN", "WORKERS", "REMARK"];

/// Mailboxes, one line each.
pub fn list(rows: &[MailboxRow], colour: bool) -> String {
    if rows.is_empty() {
        return "no mailboxes: a child with the key mailbox has one\n".into();
    }
    let mut table = Table::new(HEADINGS);
    for row in rows {
        table.row(line(row));
    }
    table.render(colour)
}

/// A mailbox as cells under [`HEADINGS`].
pub fn line(row: &MailboxRow) -> [Cell; 10] {
    [
        row.path.as_str().into(),
        row.waiting.to_string().into(),
        row.in_flight.to_string().into(),
        dead(row),
        row.done.to_string().into(),
        row.oldest_ms.map(human::millis).unwrap_or_default().into(),
        row.enqueued_per_minute.to_string().into(),
        row.done_per_minute.to_string().into(),
        format!("{} of {}", ready(row), row.workers.len()).into(),
        remark(row),
    ]
}

/// One mailbox with its ledger, and its workers.
pub fn one(row: &MailboxRow, colour: bool) -> String {
    let path = Style::Bold.paint(row.path.as_str(), colour);
    let mut text = format!("{path}: {} waiting, {} in flight, {} dead\n", row.waiting, row.in_flight, row.dead);
    for (label, sentence) in sentences(row) {
        text.push_str(&format!("  {label:<10}{sentence}\n"));
    }
    if row.workers.is_empty() {
        return text;
    }
    let mut table = Table::new(["WORKER", "NODE", "INCARNATION", "HOLDS", "DONE", "CRASHED ON", "VERDICT"]);
    for worker in &row.workers {
        table.row(cells(worker));
    }
    text + "\n" + &table.render(colour)
}

fn sentences(row: &MailboxRow) -> Vec<(&'static str, String)> {
    let MailboxRow { enqueued, done, dead, waiting, in_flight, purged, charged, redelivered, .. } = row;
    let mut sentences = vec![(
        "ledger",
        format!(
            "{enqueued} enqueued = {done} done + {dead} dead + {waiting} waiting + {in_flight} in flight + {purged} purged"
        ),
    )];
    if let Some(oldest) = row.oldest_ms {
        sentences.push(("waiting", format!("the oldest since {}{}", human::millis(oldest), held_back(row))));
    }
    let (taken, handled) = (row.enqueued_per_minute, row.done_per_minute);
    sentences.push(("rates", format!("{taken} taken in and {handled} done in the last minute")));
    let attempts = human::count(*charged, "attempt");
    sentences
        .push(("attempts", format!("{attempts} charged, {} handed out again", human::count(*redelivered, "message"))));
    let (held, most) = (row.waiting + row.in_flight + row.dead, row.max_messages);
    let room = format!("{held} of {most} messages, {} of {}", bytes(row.bytes), bytes(row.max_bytes));
    sentences.push(("room", room));
    if let Some(why) = blocked(row) {
        sentences.push(("blocked", why));
    }
    sentences
}

/// Those that wait for something else than a worker.
fn held_back(row: &MailboxRow) -> String {
    let kinds = [
        (row.delayed, "in a delay"),
        (row.undecided, "until a worker is known to be well or sick"),
        (row.suspects, "to be handed out alone"),
    ];
    let each: Vec<String> =
        kinds.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")).collect();
    if each.is_empty() { String::new() } else { format!("; {}", each.join(", ")) }
}

fn cells(worker: &WorkerRow) -> [Cell; 7] {
    let WorkerRow { path, node, incarnation, in_flight, prefetch, done, streak, sick } = worker;
    let verdict = match (sick, node) {
        (true, _) => Cell::styled("sick", Style::Red),
        (false, None) => Cell::styled("not ready", Style::Yellow),
        (false, Some(_)) => Cell::styled("well", Style::Green),
    };
    [
        path.as_str().into(),
        node.as_ref().map(ToString::to_string).unwrap_or_default().into(),
        incarnation.map(|incarnation| incarnation.to_string()).unwrap_or_default().into(),
        if node.is_some() { format!("{in_flight} of {prefetch}").into() } else { in_flight.to_string().into() },
        done.to_string().into(),
        if *streak == 0 {
            "".into()
        } else {
            format!("{} in a row", human::count(u64::from(*streak), "message")).into()
        },
        verdict,
    ]
}

fn ready(row: &MailboxRow) -> usize {
    row.workers.iter().filter(|worker| worker.node.is_some()).count()
}

fn dead(row: &MailboxRow) -> Cell {
    let style = if row.dead > 0 { Style::Red } else { Style::Plain };
    Cell::styled(row.dead.to_string(), style)
}

fn remark(row: &MailboxRow) -> Cell {
    if row.closed {
        return Cell::styled("closed: only dead letters are left", Style::Dim);
    }
    if row.paused {
        return Cell::styled("paused", Style::Yellow);
    }
    if row.workers.iter().any(|worker| worker.sick) {
        return Cell::styled("a worker is sick", Style::Red);
    }
    Cell::styled(row.blocked.clone().unwrap_or_default(), Style::Cyan)
}

/// Why nothing flows, or would not.
fn blocked(row: &MailboxRow) -> Option<String> {
    if row.closed {
        return Some("its worker was taken out of the tree, and only dead letters are left".into());
    }
    let paused = || format!("an operator paused it: `pando mailbox resume {}` lets it flow", row.path);
    row.blocked.clone().or_else(|| row.paused.then(paused))
}

/// Bytes as people read them: `12 B`, `3.4 KiB`, `64 MiB`.
fn bytes(bytes: u64) -> String {
    let units = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    match units.into_iter().find(|(_, each)| bytes >= *each) {
        None => format!("{bytes} B"),
        Some((unit, each)) if bytes.is_multiple_of(each) || bytes / each >= 10 => format!("{} {unit}", bytes / each),
        Some((unit, each)) => format!("{}.{} {unit}", bytes / each, bytes % each * 10 / each),
    }
}

#[cfg(test)]
mod tests {
    use pando_protocol::ids::Incarnation;

    use super::*;

    fn worker(index: u32, node: Option<&str>) -> WorkerRow {
        WorkerRow {
            path: format!("/shop/orders/{index}").parse().unwrap(),
            node: node.map(|node| node.parse().unwrap()),
            incarnation: node.map(|_| Incarnation(7)),
            in_flight: u64::from(node.is_some()),
            prefetch: 16,
            done: 492,
            streak: 0,
            sick: false,
        }
    }

    fn orders() -> MailboxRow {
        let sick = WorkerRow { streak: 5, sick: true, prefetch: 1, ..worker(1, Some("n2")) };
        MailboxRow {
            path: "/shop/orders".parse().unwrap(),
            enqueued: 1_000,
            done: 984,
            dead: 1,
            waiting: 12,
            in_flight: 3,
            purged: 0,
            delayed: 2,
            undecided: 1,
            suspects: 0,
            charged: 4,
            redelivered: 6,
            bytes: 12_700,
            max_messages: 100_000,
            max_bytes: 64 << 20,
            oldest_ms: Some(3_400),
            enqueued_per_minute: 120,
            done_per_minute: 118,
            paused: false,
            closed: false,
            blocked: None,
            workers: vec![worker(0, Some("n1")), sick, worker(2, None)],
        }
    }

    #[test]
    fn a_mailbox_is_shown_with_its_ledger_and_its_workers() {
        let expected = "\
/shop/orders: 12 waiting, 3 in flight, 1 dead
  ledger    1000 enqueued = 984 done + 1 dead + 12 waiting + 3 in flight + 0 purged
  waiting   the oldest since 3.4 s; 2 in a delay, 1 until a worker is known to be well or sick
  rates     120 taken in and 118 done in the last minute
  attempts  4 attempts charged, 6 messages handed out again
  room      16 of 100000 messages, 12 KiB of 64 MiB

WORKER          NODE  INCARNATION  HOLDS    DONE  CRASHED ON           VERDICT
/shop/orders/0  n1    7            1 of 16  492                        well
/shop/orders/1  n2    7            1 of 1   492   5 messages in a row  sick
/shop/orders/2                     0        492                        not ready
";
        assert_eq!(one(&orders(), false), expected);
    }

    #[test]
    fn mailboxes_are_listed_with_a_remark_where_one_is_due() {
        let calm = MailboxRow { oldest_ms: None, workers: vec![worker(0, Some("n1"))], ..orders() };
        let paused = MailboxRow { path: "/shop/mail".parse().unwrap(), paused: true, ..calm.clone() };
        let blocked = Some("all that wait are in a delay; the next is due in 2 s".to_owned());
        let delayed = MailboxRow { path: "/shop/slow".parse().unwrap(), blocked, ..calm.clone() };
        let expected = "\
MAILBOX       WAITING  IN FLIGHT  DEAD  DONE  IN/MIN  DONE/MIN  WORKERS  REMARK
/shop/orders  12       3          1     984   120     118       1 of 1
/shop/mail    12       3          1     984   120     118       1 of 1   paused
/shop/slow    12       3          1     984   120     118       1 of 1   all that wait are in a delay; the next is due in 2 s
";
        assert_eq!(list(&[calm, paused, delayed], false), expected);
        assert!(list(&[orders()], false).contains("2 of 3   a worker is sick"));
        assert!(list(&[], false).starts_with("no mailboxes"));
    }

    #[test]
    fn sizes_are_short() {
        let shown = [0, 1_023, 1_024, 3_500, 12_700, 64 << 20].map(bytes);
        assert_eq!(shown, ["0 B", "1023 B", "1 KiB", "3.4 KiB", "12 KiB", "64 MiB"]);
    }

    #[test]
    fn programs_find_the_promised_fields() {
        let json = serde_json::to_value(orders()).unwrap();
        let sum: u64 =
            ["done", "dead", "waiting", "in_flight", "purged"].iter().filter_map(|field| json[field].as_u64()).sum();
        assert_eq!(json["enqueued"], sum, "the ledger adds up");
        for field in ["oldest_ms", "enqueued_per_minute", "done_per_minute", "paused", "workers"] {
            assert!(json.get(field).is_some(), "{field}");
        }
        assert_eq!((&json["workers"][1]["sick"], &json["workers"][1]["in_flight"]), (&true.into(), &1.into()));
    }
}
