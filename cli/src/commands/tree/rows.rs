//! Rows of a tree as a drawing.

use pando_protocol::ids::Path;
use pando_protocol::view::{Kind, MailboxDepth, State, TreeRow, Verdict};

use crate::human;
use crate::output::{Cell, Style, Table};

/// The columns of a tree.
pub const HEADINGS: [&str; 9] =
    ["TREE", "STATE", "NODE", "INCARNATION", "UPTIME", "RESTARTS", "VERDICT", "MAILBOX", "WAITING"];

/// The rows, which come in tree order, as a drawing with a column for each thing worth knowing.
pub fn render(rows: &[TreeRow], colour: bool) -> String {
    if rows.is_empty() {
        return "no trees yet: `pando apply FILE` starts one\n".into();
    }
    let mut table = Table::new(HEADINGS);
    for (row, stem) in rows.iter().zip(stems(rows.iter().map(|row| &row.path))) {
        table.row(cells(row, &stem));
    }
    table.render(colour)
}

/// A row as cells under [`HEADINGS`]; `stem` is drawn before its name.
pub fn cells(row: &TreeRow, stem: &str) -> [Cell; 9] {
    let name = if stem.is_empty() { row.path.as_str() } else { row.path.name() };
    let restarts = match (row.restarts, row.restart_rate) {
        (restarts, 0) => restarts.to_string(),
        (restarts, rate) => format!("{restarts} ({rate}/min)"),
    };
    let verdict = match row.kind {
        // Of a supervisor the verdict sums up all below it: say in what measure.
        Kind::Supervisor => format!("{} {}/{}", verdict_name(row.verdict), row.alive, row.configured),
        Kind::Process => verdict_name(row.verdict).into(),
    };
    [
        format!("{stem}{name}").into(),
        state_name(row.state).into(),
        row.node.as_ref().map(ToString::to_string).unwrap_or_default().into(),
        row.incarnation.map(|incarnation| incarnation.to_string()).unwrap_or_default().into(),
        row.uptime_ms.map(human::millis).unwrap_or_default().into(),
        restarts.into(),
        Cell::styled(verdict, Style::of(row.verdict)),
        row.mailbox.as_ref().map(mailbox_depth).unwrap_or_default().into(),
        row.waiting.clone().unwrap_or_default().into(),
    ]
}

/// What stands in a mailbox, in words: `12 waiting, 3 in flight, 1 dead`, or `empty`.
pub fn mailbox_depth(depth: &MailboxDepth) -> String {
    let MailboxDepth { waiting, in_flight, dead } = depth;
    let parts = [(waiting, "waiting"), (in_flight, "in flight"), (dead, "dead")];
    let each: Vec<String> =
        parts.iter().filter(|(count, _)| **count > 0).map(|(count, what)| format!("{count} {what}")).collect();
    if each.is_empty() { "empty".into() } else { each.join(", ") }
}

/// What is drawn before the name of each path, which come in tree order: nothing for the roots of the drawing, branches for all
/// below them.
pub fn stems<'a>(paths: impl ExactSizeIterator<Item = &'a Path> + DoubleEndedIterator + Clone) -> Vec<String> {
    let base = paths.clone().next().map_or(0, Path::depth);
    let mut stems = vec![String::new(); paths.len()];
    // From the last row up: whether, at each depth below the root, a sibling was seen that comes later.
    let mut follows: Vec<bool> = Vec::new();
    for (path, stem) in paths.zip(&mut stems).rev() {
        let depth = path.depth().saturating_sub(base);
        follows.resize(depth, false);
        let Some((here, above)) = follows.split_last_mut() else { continue };
        stem.extend(above.iter().map(|&more| if more { "│  " } else { "   " }));
        stem.push_str(if *here { "├─ " } else { "└─ " });
        *here = true;
    }
    stems
}

/// A state in words, as in JSON but for people.
pub fn state_name(state: State) -> &'static str {
    match state {
        State::Waiting => "waiting",
        State::BackingOff => "backing off",
        State::Starting => "starting",
        State::Started => "started",
        State::Running => "running",
        State::Stopping => "stopping",
        State::Stopped => "stopped",
        State::Finished => "finished",
        State::Failed => "failed",
        State::Unreachable => "unreachable",
    }
}

/// A verdict in words.
pub fn verdict_name(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Failed => "failed",
        Verdict::Unreachable => "unreachable",
        Verdict::Stopped => "stopped",
        Verdict::Waiting => "waiting",
        Verdict::Looping => "looping",
        Verdict::Churning => "churning",
        Verdict::Short => "short",
        Verdict::Healthy => "healthy",
    }
}

#[cfg(test)]
pub mod tests {
    use pando_protocol::ids::Incarnation;

    use super::*;

    /// A member that is well.
    pub fn row(path: &str, kind: Kind) -> TreeRow {
        TreeRow {
            path: path.parse().unwrap(),
            kind,
            state: State::Running,
            verdict: Verdict::Healthy,
            node: None,
            incarnation: None,
            pid: None,
            uptime_ms: None,
            restarts: 0,
            restart_rate: 0,
            alive: 1,
            configured: 1,
            waiting: None,
            mailbox: None,
        }
    }

    /// A process that runs.
    pub fn process(path: &str, node: &str, incarnation: u64, uptime_ms: u64) -> TreeRow {
        TreeRow {
            node: Some(node.parse().unwrap()),
            incarnation: Some(Incarnation(incarnation)),
            pid: Some(4711),
            uptime_ms: Some(uptime_ms),
            ..row(path, Kind::Process)
        }
    }

    fn shop() -> Vec<TreeRow> {
        let mut root = TreeRow { verdict: Verdict::Churning, restart_rate: 2, ..row("/shop", Kind::Supervisor) };
        (root.alive, root.configured) = (3, 4);
        let mut ingest = TreeRow { verdict: Verdict::Churning, ..row("/shop/ingest", Kind::Supervisor) };
        (ingest.alive, ingest.configured) = (2, 2);
        let mut feed = process("/shop/ingest/feed", "n2", 9, 3_400);
        (feed.verdict, feed.restarts, feed.restart_rate) = (Verdict::Churning, 5, 2);
        let mut load = row("/shop/load", Kind::Process);
        (load.state, load.verdict) = (State::Waiting, Verdict::Waiting);
        load.waiting = Some("no node has disk=ssd".into());
        let connection = process("/shop/ingest/connection", "n1", 3, 125_000);
        vec![root, process("/shop/web", "n1", 1, 125_000), ingest, connection, feed, load]
    }

    #[test]
    fn a_tree_is_drawn_with_branches_and_aligned_columns() {
        let mut rows = shop();
        rows.push(row("/solo", Kind::Supervisor));
        rows.push(process("/solo/only", "n3", 12, 500));
        let expected = "\
TREE              STATE    NODE  INCARNATION  UPTIME  RESTARTS   VERDICT       WAITING
/shop             running                             0 (2/min)  churning 3/4
├─ web            running  n1    1            2 m     0          healthy
├─ ingest         running                             0          churning 2/2
│  ├─ connection  running  n1    3            2 m     0          healthy
│  └─ feed        running  n2    9            3.4 s   5 (2/min)  churning
└─ load           waiting                             0          waiting       no node has disk=ssd
/solo             running                             0          healthy 1/1
└─ only           running  n3    12           500 ms  0          healthy
";
        assert_eq!(render(&rows, false), expected);
    }

    #[test]
    fn mailboxes_stand_beside_whom_they_belong_to_where_a_tree_has_any() {
        let depth = MailboxDepth { waiting: 12, in_flight: 3, dead: 1 };
        let mut orders = TreeRow { mailbox: Some(depth), ..row("/shop/orders", Kind::Supervisor) };
        (orders.alive, orders.configured) = (1, 2);
        let worker = process("/shop/orders/0", "n1", 3, 125_000);
        let empty = TreeRow { mailbox: Some(MailboxDepth::default()), ..process("/shop/mail", "n2", 4, 125_000) };
        let expected = "\
TREE       STATE    NODE  INCARNATION  UPTIME  RESTARTS  VERDICT      MAILBOX
/shop      running                             0         healthy 1/1
├─ orders  running                             0         healthy 1/2  12 waiting, 3 in flight, 1 dead
│  └─ 0    running  n1    3            2 m     0         healthy
└─ mail    running  n2    4            2 m     0         healthy      empty
";
        assert_eq!(render(&[row("/shop", Kind::Supervisor), orders, worker, empty], false), expected);
    }

    #[test]
    fn a_part_of_a_tree_begins_with_its_own_path() {
        let expected = "\
TREE           STATE    NODE  INCARNATION  UPTIME  RESTARTS   VERDICT
/shop/ingest   running                             0          churning 2/2
├─ connection  running  n1    3            2 m     0          healthy
└─ feed        running  n2    9            3.4 s   5 (2/min)  churning
";
        assert_eq!(render(&shop()[2..5], false), expected);
    }

    #[test]
    fn programs_find_the_promised_fields_in_tree_order() {
        let json = serde_json::to_value(shop()).unwrap();
        let web = &json[1];
        for (field, value) in [
            ("path", serde_json::json!("/shop/web")),
            ("kind", "process".into()),
            ("state", "running".into()),
            ("verdict", "healthy".into()),
            ("node", "n1".into()),
            ("incarnation", 1.into()),
            ("pid", 4711.into()),
            ("restarts", 0.into()),
            ("restart_rate", 0.into()),
        ] {
            assert_eq!(web[field], value, "{field}");
        }
    }
}
