//! One mistake at a time, and where it is found. The text stands after the head of a tree; lines are counted from the head.

use super::{CHILD, only_mistake, places, toml};

/// Lines 1 to 3: a tree whose only child is still without command.
const BARE: &str = "name = \"shop\"\n[[children]]\nid = \"web\"\n";
/// Line 2 is free for a key of the root.
const ROOT: (&str, &str) = ("name = \"shop\"\n", "\n[[children]]\nid = \"web\"\ncommand = [\"web\"]\n");
/// Lines 1 to 3: a tree with a supervisor, to which the text adds before its child.
const SUPERVISOR: (&str, &str) =
    ("name = \"shop\"\n[[children]]\nid = \"in\"\n", "\n[[children.children]]\nid = \"x\"\ncommand = [\"x\"]\n");

/// `line` between `before` and `after` is one mistake: at this place, of this word, for this reason, near that word.
pub fn case(
    (before, after): (&str, &str),
    line: &str,
    place: (usize, usize),
    word: &str,
    what: &str,
    nearest: Option<&str>,
) {
    let text = format!("{before}{line}{after}");
    let mistake = only_mistake(&text);
    assert_eq!(((mistake.line, mistake.column), mistake.word.as_str()), (place, word), "{text}\n{mistake}");
    assert!(mistake.what.contains(what), "{text}\n{mistake}");
    assert_eq!(mistake.nearest.as_deref(), nearest, "{text}\n{mistake}");
}

#[test]
fn an_unknown_key_is_refused_with_the_nearest_known_one() {
    case((CHILD, ""), "restrat = \"permanent\"", (5, 1), "restrat", "unknown key", Some("restart"));
    case((BARE, ""), "comand = [\"x\"]", (4, 1), "comand", "unknown key", Some("command"));
    case((CHILD, ""), "backoff = { bse = \"1s\" }", (5, 13), "bse", "unknown key", Some("base"));
    case((CHILD, ""), "ready = { notify = true, witin = \"1s\" }", (5, 26), "witin", "unknown key", Some("within"));
    case((CHILD, ""), "place = { requires = [] }", (5, 11), "requires", "unknown key", Some("require"));
    case((CHILD, ""), "on_exit = [{ code = 1, de = \"x\", do = \"stop\" }]", (5, 24), "de", "unknown key", Some("do"));
    case((CHILD, ""), "zzz = 1", (5, 1), "zzz", "unknown key", None);
    case(ROOT, "stratgy = \"one_for_one\"", (2, 1), "stratgy", "unknown key", Some("strategy"));
    case(ROOT, "intensity = { max_restart = 3 }", (2, 15), "max_restart", "unknown key", Some("max_restarts"));
}

#[test]
fn an_unknown_word_is_refused_with_the_nearest_known_one() {
    case((CHILD, ""), "restart = \"permament\"", (5, 11), "permament", "unknown value", Some("permanent"));
    case((CHILD, ""), "shutdown = \"brutal\"", (5, 12), "brutal", "unknown value", Some("brutal_kill"));
    case((CHILD, ""), "stop_signal = \"SIGTREM\"", (5, 15), "SIGTREM", "unknown value", Some("SIGTERM"));
    case((CHILD, ""), "on_exit = [{ code = 1, do = \"stopp\" }]", (5, 29), "stopp", "unknown value", Some("stop"));
    case(ROOT, "strategy = \"one_for_on\"", (2, 12), "one_for_on", "unknown value", Some("one_for_one"));
    case(ROOT, "intensity = \"unlimted\"", (2, 13), "unlimted", "unknown value", Some("unlimited"));
    let prose = only_mistake(&format!("{}intensity = \"5 in 10s\"{}", ROOT.0, ROOT.1));
    let expected = "a table such as { max_restarts = 5, within = \"10s\" }, or \"unlimited\"";
    assert_eq!(prose.expected.as_deref(), Some(expected), "{prose}");
    case(ROOT, "auto_shutdown = \"nver\"", (2, 17), "nver", "unknown value", Some("never"));
}

#[test]
fn a_key_of_another_kind_of_member_is_refused_with_its_owner() {
    case(ROOT, "id = \"x\"", (2, 1), "id", "not a key of the root", Some("name"));
    case(ROOT, "restart = \"permanent\"", (2, 1), "restart", "not a key of the root", None);
    case((CHILD, ""), "name = \"x\"", (5, 1), "name", "not a key of a process: only of the root", Some("id"));
    case((CHILD, ""), "strategy = \"one_for_one\"", (5, 1), "strategy", "not a key of a process", None);
    for key in ["shutdown = \"5s\"", "ready = {}", "place = {}", "env = {}", "slots = 1"] {
        let error = toml(&format!("{}{key}{}", SUPERVISOR.0, SUPERVISOR.1)).unwrap_err();
        assert_eq!((error.mistakes()[0].line, error.mistakes()[0].column), (4, 1), "{error}");
    }
    case(SUPERVISOR, "slots = 1", (4, 1), "slots", "not a key of a supervisor: only of a process", None);
}

#[test]
fn a_wrong_type_says_what_was_expected_and_what_came() {
    let text_50ms = "expected a text such as \"50ms\", found integer 50";
    case((CHILD, ""), "backoff = { base = 50 }", (5, 20), "50", text_50ms, None);
    case((BARE, ""), "command = \"web -p 1\"", (4, 11), "web -p 1", "expected an array of texts", None);
    case((BARE, ""), "command = [\"web\", 1]", (4, 19), "1", "expected a text, found integer 1", None);
    case((CHILD, ""), "significant = \"no\"", (5, 15), "no", "expected true or false, found text \"no\"", None);
    case((CHILD, ""), "env = { PORT = 8080 }", (5, 16), "8080", "expected a text such as", None);
    case((CHILD, ""), "slots = 1.5", (5, 9), "1.5", "found number 1.5", None);
    case((CHILD, ""), "cwd = 2026-01-01", (5, 7), "2026-01-01", "found date 2026-01-01", None);
    case((CHILD, ""), "ready = true", (5, 9), "true", "expected a table such as", None);
    case(
        (CHILD, ""),
        "stop_signal = 65",
        (5, 15),
        "65",
        "expected the name of a signal such as \"SIGTERM\", or its",
        None,
    );
    let rule = "on_exit = [{ signal = 0, do = \"stop\" }]";
    case((CHILD, ""), rule, (5, 23), "0", "or its number from 1 to 64, found integer 0", None);
    case(
        ("", ""),
        "name = \"shop\"\n[children]\nid = \"x\"",
        (2, 1),
        "[children]",
        "expected an array of children",
        None,
    );
    case(("", ""), "name = \"shop\"\nchildren = [1]", (2, 13), "1", "found integer 1", None);
}

#[test]
fn numbers_and_durations_out_of_range_are_refused() {
    let to_255 = "from 0 to 255, found integer";
    case((CHILD, ""), "normal_exit = [0, 256]", (5, 19), "256", to_255, None);
    case((CHILD, ""), "on_exit = [{ code = -1, do = \"stop\" }]", (5, 21), "-1", to_255, None);
    case((CHILD, ""), "slots = 0", (5, 9), "0", "from 1 to", None);
    case((CHILD, ""), "backoff = { jitter = 91 }", (5, 22), "91", "from 0 to 90", None);
    case((CHILD, ""), "backoff = { factor = 0 }", (5, 22), "0", "from 1 to 100", None);
    let huge = "9".repeat(50);
    let line = format!("slots = {huge}");
    case((CHILD, ""), &line, (5, 9), &format!("{}…", &huge[..40]), "from 1 to", None);
    case(ROOT, "intensity = { max_restarts = 1001 }", (2, 30), "1001", "from 0 to 1000", None);
    case((CHILD, ""), "shutdown = \"5 s\"", (5, 12), "5 s", "not a duration", None);
    case((CHILD, ""), "backoff = { cap = \"1.5\" }", (5, 19), "1.5", "not a duration", None);
    case((CHILD, ""), "shutdown = \"9999999999999999999999h\"", (5, 12), "9999999999999999999999h", "too long", None);
}

#[test]
fn what_a_rule_or_probe_lacks_or_has_twice_is_said() {
    let rule = "{ do = \"stop\" }";
    case((CHILD, ""), &format!("on_exit = [{rule}]"), (5, 12), rule, "without code or signal", None);
    let both = "on_exit = [{ code = 1, signal = \"TERM\", do = \"stop\" }]";
    case((CHILD, ""), both, (5, 24), "signal", "both code and signal", None);
    case((CHILD, ""), "on_exit = [{ code = 1 }]", (5, 12), "{ code = 1 }", "without do", None);
    case((CHILD, ""), "ready = { within = \"1s\" }", (5, 9), "{ within = \"1s\" }", "expected a table such as", None);
    case((CHILD, ""), "ready = { exec = [\"x\"], notify = true }", (5, 25), "notify", "both exec and notify", None);
    case((CHILD, ""), "ready = { notify = false }", (5, 20), "false", "leave ready out", None);
    case((CHILD, ""), "ready = { notify = true, interval = \"1s\" }", (5, 26), "interval", "goes with exec", None);
    case((BARE, ""), "", (3, 6), "web", "neither command nor children", None);
    case((CHILD, ""), "children = [{ id = \"x\", command = [\"x\"] }]", (5, 1), "children", "both command and", None);
    case(("", ""), "[[children]]\nid = \"x\"\ncommand = [\"x\"]", (1, 1), "", "no name", None);
    case(("", ""), "name = \"shop\"", (1, 1), "", "no children", None);
    case(("", ""), "name = \"shop\"\n[[children]]\ncommand = [\"x\"]", (2, 1), "[[children]]", "without id", None);
}

#[test]
fn what_the_whole_must_keep_has_its_place_too() {
    case((CHILD, "[[children]]\nid = \"web\"\ncommand = [\"x\"]"), "", (6, 6), "web", "two children", None);
    case((BARE, ""), "command = []", (4, 11), "[]", "an empty command", None);
    case((BARE, ""), "command = [\"\"]", (4, 11), "[\"\"]", "an empty command", None);
    case((BARE, ""), "children = []", (4, 12), "[]", "at least one child", None);
    case(("", ""), "name = \"shop\"\nchildren = []", (2, 12), "[]", "at least one child", None);
    case((CHILD, ""), "significant = true", (5, 15), "true", "a permanent child cannot be significant", None);
    let meaningless = "restart = \"transient\"\nsignificant = true";
    case((CHILD, ""), meaningless, (6, 15), "true", "auto_shutdown is \"never\"", None);
    case(ROOT, "intensity = { within = \"0s\" }", (2, 24), "0s", "a window of zero", None);
    case((CHILD, ""), "ready = { notify = true, within = \"0s\" }", (5, 35), "0s", "zero", None);
    case((CHILD, ""), "shutdown = \"0s\"", (5, 12), "0s", "brutal_kill", None);
    case((CHILD, ""), "backoff = { base = \"2s\", cap = \"1s\" }", (5, 32), "1s", "cap 1s is below base 2s", None);
    case((CHILD, ""), "backoff = { base = \"9ms\" }", (5, 20), "9ms", "at least 10ms", None);
    case((CHILD, ""), "[children.backoff]\nbase = \"9ms\"", (6, 8), "9ms", "at least 10ms", None);
    case((CHILD, ""), "backoff.base = \"9ms\"", (5, 16), "9ms", "at least 10ms", None);
    case((CHILD, ""), "env = { A = \"1\", PANDO_NODE = \"x\" }", (5, 18), "PANDO_NODE", "reserved", None);
    case((CHILD, ""), "cwd = \"\"", (5, 7), "", "not a folder name", None);
    case((CHILD, ""), "place = { spread = \"zone=a\" }", (5, 20), "zone=a", "not the key of a label", None);
    case((CHILD, ""), "place = { require = [\"zone\"] }", (5, 22), "zone", "is not a label", None);
    case(
        ROOT,
        "intensity = { max_restarts = 30, within = \"10s\" }",
        (2, 13),
        "{ max_restarts = 30, within = \"10s\" }",
        "never be spent",
        None,
    );
    let own = "intensity = { max_restarts = 1, within = \"20ms\" }";
    case((CHILD, ""), own, (5, 13), &own[12..], "never be spent", None);
}

#[test]
fn what_stays_together_cannot_spread() {
    let spread = "place = { spread = \"zone\" }";
    let head = CHILD.replace("[[", "strategy = \"one_for_all\"\n[[");
    case((&head, ""), spread, (6, 20), "zone", "/shop keeps everything below it on one node", None);
}

#[test]
fn a_default_that_does_not_fit_is_blamed_on_what_was_written() {
    let slow = "{ base = \"10s\", cap = \"60s\" }";
    let what = "the default intensity (5 within 10s) of /shop can never be spent";
    case((CHILD, ""), &format!("backoff = {slow}"), (5, 11), slow, what, None);
    let header = "[children.backoff]\nbase = \"10s\"\ncap = \"60s\"";
    case((CHILD, ""), header, (5, 1), "[children.backoff]", what, None);
    case((CHILD, ""), "backoff = { base = \"5s\" }", (5, 20), "5s", "the default cap 1s is below base 5s", None);
    case((CHILD, ""), "backoff = { cap = \"20ms\" }", (5, 19), "20ms", "is below the default base 50ms", None);
    // What is written is called by its own name.
    let written = "intensity = { max_restarts = 5, within = \"10s\" }";
    let text = format!("{}{written}{}backoff = {slow}", ROOT.0, ROOT.1);
    let mistake = only_mistake(&text);
    assert_eq!((mistake.line, mistake.column), (2, 13), "{mistake}");
    assert!(mistake.what.starts_with("intensity (5 within 10s) of /shop can never"), "{mistake}");
}

#[test]
fn times_in_a_refusal_are_written_as_in_the_file() {
    case((CHILD, ""), "backoff = { cap = \"25h\" }", (5, 19), "25h", "25h is longer than a day", None);
    let backoff = "backoff = { base = \"1.5s\", cap = \"1s\" }";
    case((CHILD, ""), backoff, (5, 34), "1s", "cap 1s is below base 1500ms", None);
}

#[test]
fn a_bad_variable_does_not_hide_the_mistake_at_another() {
    let error = toml(&format!("{CHILD}env = {{ PORT = 8080, PANDO_NODE = \"x\" }}")).unwrap_err();
    let found = places(&error);
    assert_eq!(found.len(), 2, "{error}");
    assert!(found[0].starts_with("5:16 8080: expected a text") && found[1].starts_with("5:22 PANDO_NODE: "), "{error}");
    // The same where the variables have a table of their own.
    let error = toml(&format!("{CHILD}[children.env]\nPORT = 8080\nPANDO_NODE = \"x\"\n")).unwrap_err();
    assert_eq!(error.mistakes().len(), 2, "{error}");
}

#[test]
fn a_relative_working_folder_stays_below_the_child_s_own() {
    for climbing in ["..", "../..", "work/../..", "a/../b"] {
        case((CHILD, ""), &format!("cwd = {climbing:?}"), (5, 7), climbing, "a relative path stays below it", None);
    }
    for fine in ["work", "a/b", "..a", "/srv/shop", "/srv/../shop"] {
        assert!(toml(&format!("{CHILD}cwd = {fine:?}")).is_ok(), "{fine}");
    }
}

#[test]
fn each_mistake_in_a_mailbox_has_its_place() {
    let mailbox = |fields: &str, place: (usize, usize), word: &str, what: &str, nearest: Option<&str>| {
        case((CHILD, ""), &format!("mailbox = {{ {fields} }}"), place, word, what, nearest);
    };
    mailbox("max_attempts = 0", (5, 28), "0", "from 1 to 1000", None);
    mailbox("max_attempts = \"unlimted\"", (5, 28), "unlimted", "unknown value", Some("unlimited"));
    mailbox("max_attempts = true", (5, 28), "true", "found boolean true", None);
    mailbox("retry_delay = \"soon\"", (5, 27), "soon", "not a duration", None);
    mailbox("retry_delay = \"25h\"", (5, 27), "25h", "longer than a day", None);
    mailbox("handling_timeout = \"0s\"", (5, 32), "0s", "nothing can be handled in no time", None);
    mailbox("prefetch = 0", (5, 24), "0", "from 1 to", None);
    mailbox("max_messages = 0", (5, 28), "0", "from 1 to", None);
    mailbox("max_bytes = \"sixty\"", (5, 25), "sixty", "is not a size", None);
    mailbox("max_bytes = \"513MiB\"", (5, 25), "513MiB", "expected 1B to 512MiB", None);
    mailbox("max_bytes = \"0B\"", (5, 25), "0B", "expected 1B to 512MiB", None);
    mailbox("suspect_after = 0", (5, 29), "0", "from 1 to", None);
    mailbox("max_node_losses = 0", (5, 31), "0", "from 1 to", None);
    mailbox("max_atempts = 1", (5, 13), "max_atempts", "unknown key", Some("max_attempts"));
    case((CHILD, ""), "mailbox = 3", (5, 11), "3", "expected a table such as { max_attempts = 3 }", None);
    case(SUPERVISOR, "mailbox = {}", (4, 1), "mailbox", "not a key of a supervisor: only of a process", None);
}

#[test]
fn attempts_without_end_need_a_delay_and_come_with_a_warning() {
    let endless = "mailbox = { max_attempts = \"unlimited\" }";
    case(
        (CHILD, ""),
        endless,
        (5, 28),
        "unlimited",
        "would kill one after the other without a pause; set retry_delay",
        None,
    );
    let delayed = "mailbox = { max_attempts = \"unlimited\", retry_delay = \"1s\" }";
    let warnings = toml(&format!("{CHILD}{delayed}")).unwrap().warnings();
    let [warning] = &warnings[..] else { panic!("{warnings:?}") };
    assert_eq!((warning.at.as_str(), warning.key.as_str()), ("/shop/web", "mailbox.max_attempts"));
    assert!(warning.what.contains("kills one again and again, first 1s and at last 64s after"), "{warning:?}");
    let pool = toml(&format!("{CHILD}{delayed}\ncount = 2")).unwrap();
    assert_eq!(pool.warnings().len(), 1);
    assert_eq!(toml(&format!("{CHILD}mailbox = {{}}")).unwrap().warnings(), []);
}

#[test]
fn a_worker_is_not_kept_while_its_node_is_silent() {
    let mailbox = "mailbox = {}\non_disconnect = \"keep\"";
    case((CHILD, ""), mailbox, (6, 17), "keep", "is not possible for a worker", None);
    let head = format!("{CHILD}count = 2\n");
    case((&head, ""), mailbox, (7, 17), "keep", "is not possible for a worker", None);
}

#[test]
fn a_pool_has_workers_and_does_not_end() {
    case((CHILD, ""), "count = 0", (5, 9), "0", "at least 1 worker", None);
    case((CHILD, ""), "count = \"three\"", (5, 9), "three", "expected an integer", None);
    case((CHILD, ""), "count = 10001", (2, 1), "[[children]]", "10003 members in one tree", None);
    case((CHILD, ""), "count = 4294967295", (2, 1), "[[children]]", "4294967297 members in one tree", None);
    case(SUPERVISOR, "count = 2", (4, 1), "count", "not a key of a supervisor: only of a process", None);
    let ends = "restart = \"transient\"\ncount = 2\nsignificant = true";
    let error = toml(&format!("{}{ends}", CHILD.replace("[[", "auto_shutdown = \"any_significant\"\n[["))).unwrap_err();
    assert!(places(&error)[0].contains("a pool cannot be significant"), "{error}");
}

#[test]
fn what_is_kept_stands_in_no_group_and_on_no_node_of_others() {
    let keep = "on_disconnect = \"keep\"";
    assert!(toml(&format!("{CHILD}{keep}")).is_ok() && toml(&format!("{CHILD}on_disconnect = \"stop\"")).is_ok());
    for (above, why) in [
        ("strategy = \"one_for_all\"", "/shop restarts its children together"),
        ("strategy = \"rest_for_one\"\ncolocate = false", "/shop restarts its children together"),
        ("colocate = true", "/shop keeps everything below it on one node"),
    ] {
        let head = CHILD.replace("[[", &format!("{above}\n[["));
        let line = head.lines().count() + 1;
        case((&head, ""), keep, (line, 17), "keep", why, None);
    }
    case((CHILD, ""), "on_disconnect = \"kep\"", (5, 17), "kep", "unknown value", Some("keep"));
}

#[test]
fn bad_names_are_refused() {
    for bad in ["", "Web", "web_1", "ä", &"x".repeat(64)] {
        let text = format!("name = \"shop\"\n[[children]]\nid = \"{bad}\"\ncommand = [\"web\"]\n");
        let mistake = only_mistake(&text);
        assert_eq!((mistake.line, mistake.column), (3, 6), "{mistake}");
        assert!(mistake.what.contains("is not a name"), "{mistake}");
    }
    assert!(only_mistake(&CHILD.replace("shop", "Shop")).what.contains("is not a name"));
}
