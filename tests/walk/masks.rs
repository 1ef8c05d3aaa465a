//! What may differ from run to run: times, process ids, ports, incarnations and the like. Everything else must not.

/// The text with everything that may differ replaced by its kind, and the blanks that align columns folded.
pub fn masked(text: &str) -> String {
    text.lines().map(|line| masked_line(line) + "\n").collect()
}

fn masked_line(line: &str) -> String {
    let words: Vec<&str> = line.split_whitespace().collect();
    // A step that `pando dev` proposes: which node it names hangs on who leads.
    let proposes_node = words.starts_with(&["pando", "dev"]);
    let mut masked: Vec<String> = Vec::new();
    let mut next = 0;
    while let Some(word) = words.get(next) {
        let before = next.checked_sub(1).and_then(|before| words.get(before)).copied().unwrap_or_default();
        let after = words.get(next + 1).map_or("", |word| core(word));
        next += 1;
        if is_rate(word) {
            continue; // It sinks to nothing within a minute.
        }
        if is_number(core(word)) && is_unit(after) {
            masked.push(word.replace(core(word), "TIME") + words[next].strip_prefix(after).unwrap_or_default());
            next += 1;
            continue;
        }
        if proposes_node && is_node(word) {
            masked.push("NODE".into());
            continue;
        }
        let is_first = masked.is_empty();
        masked.push(word.replace(core(word), &mask(core(word), before, after, is_first)));
    }
    masked.join(" ")
}

/// What stands for a word, by itself and by its neighbours.
fn mask(word: &str, before: &str, after: &str, is_first: bool) -> String {
    let counts_up = ["pid", "incarnation", "entry", "term"].contains(&before);
    // In tables: the incarnation beside its node, before or after it; the process id between session and address.
    let beside_node = is_node(before) || (is_first && is_node(after));
    let beside_address = is_session(before) || after.starts_with(LOOPBACK);
    if is_digits(word) && (counts_up || beside_node || beside_address || is_clock(after)) {
        return "N".into();
    }
    if is_session(word) {
        return "SESSION".into();
    }
    if is_node(word) && before == "leader" {
        return "NODE".into(); // Whoever wins the election.
    }
    if is_clock(word) {
        return "CLOCK".into();
    }
    if word == "churning" {
        return "healthy".into(); // Which it becomes a minute after the last restart.
    }
    if let Some((node, number)) = word.split_once('/')
        && is_node(node)
        && is_digits(number)
    {
        return format!("{node}/N");
    }
    without_ports(word)
}

fn without_ports(word: &str) -> String {
    let mut parts = word.split(LOOPBACK);
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        text.push_str(LOOPBACK);
        text.push_str("PORT");
        text.push_str(part.trim_start_matches(|c: char| c.is_ascii_digit()));
    }
    text
}

/// The word without the punctuation around it.
fn core(word: &str) -> &str {
    word.trim_matches(|c: char| "(),;:.[]".contains(c))
}

fn is_number(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_digit()) && word.chars().all(|c| c.is_ascii_digit() || c == '.')
}

fn is_digits(word: &str) -> bool {
    !word.is_empty() && word.chars().all(|c| c.is_ascii_digit())
}

fn is_unit(word: &str) -> bool {
    ["ms", "s", "m", "h"].contains(&word)
}

/// `(2/min)`
fn is_rate(word: &str) -> bool {
    word.strip_prefix('(').and_then(|word| word.strip_suffix("/min)")).is_some_and(is_digits)
}

/// `n2`
fn is_node(word: &str) -> bool {
    word.strip_prefix('n').is_some_and(is_digits)
}

/// `s12`
fn is_session(word: &str) -> bool {
    word.strip_prefix('s').is_some_and(is_digits)
}

/// `12:03:04.120`
fn is_clock(word: &str) -> bool {
    word.len() == 12 && word.matches(':').count() == 2 && word.chars().all(|c| c.is_ascii_digit() || ":.".contains(c))
}

const LOOPBACK: &str = "127.0.0.1:";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_from_run_to_run_is_masked() {
        for (line, expected) in [
            ("├─ web    running  n1    6     13 s  1 (1/min)  churning", "├─ web running n1 N TIME 1 healthy"),
            (
                "sent SIGUSR1 to /shop: incarnation 3 on n3, pid 15957",
                "sent SIGUSR1 to /shop: incarnation N on n3, pid N",
            ),
            (
                "3   n3   1.7 s ago  1  exit code 1 after 996 ms [crash]",
                "N n3 TIME ago 1 exit code 1 after TIME [crash]",
            ),
            (
                "n1  voter  up  2  2 of 64  zone=a  s2  15749  127.0.0.1:38331",
                "n1 voter up 2 2 of 64 zone=a SESSION N 127.0.0.1:PORT",
            ),
            (
                "  n1  voter  127.0.0.1:7  http://127.0.0.1:41617/metrics",
                "n1 voter 127.0.0.1:PORT http://127.0.0.1:PORT/metrics",
            ),
            ("    27  12:35:11.719  node_lost  n3 lost", "N CLOCK node_lost n3 lost"),
            ("n2 2 | gap of 217 ms: n1/6 -> n3/9", "n2 N | gap of TIME: n1/N -> n3/N"),
            ("The cluster is up: 3 voters, leader n2.", "The cluster is up: 3 voters, leader NODE."),
            ("  pando dev kill n3   kill a node", "pando dev kill NODE kill a node"),
            ("cluster dev: leader n3, 2 of 3 nodes up", "cluster dev: leader NODE, 2 of 3 nodes up"),
            ("is ready since 4.2 s (incarnation 5, pid 77)", "is ready since TIME (incarnation N, pid N)"),
        ] {
            assert_eq!(masked_line(line), expected);
        }
    }

    #[test]
    fn what_must_not_differ_is_kept() {
        for line in [
            "└─ ingest running 0 failed 2/2",
            "the budget of /shop/ingest has 1 of 3 spent; 3 crashes more",
            "exit code 1",
            "/shop is whole: 4 of 4 ready",
            "killed n3; `pando dev start n3` starts it again",
        ] {
            assert_eq!(masked_line(line), line);
        }
    }
}
