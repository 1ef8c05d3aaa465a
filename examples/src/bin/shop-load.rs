//! A load child: asks a web child every 20 ms, wherever it may run, and prints each gap that it sees between answers.
//!
//! ```text
//!   grove:18080 ── looked up every second ──► 172.18.0.3:18080 ── one thread each, every 20 ms ──► Watch ──► a line
//!                                             172.18.0.4:18080
//! ```
//!
//! A child that may move is asked at every place where it could be, so the gap is the child's and not that of a search.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, ToSocketAddrs};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use pando_examples::arguments::{Arguments, BadArguments, Span, refuse};
use pando_examples::gaps::{Answer, Seen, Watch};
use pando_examples::{complain, http, say};

const USAGE: &str = "shop-load [--silence SPAN] [--gaps N] [--within SPAN] HOST:PORT...
  asks shop-web at every address of every HOST:PORT (http://HOST:PORT/ is fine too) each 20 ms and prints the gaps
  between its answers: always when another run answers, for one run from --silence (100ms) on
  --gaps N     ends with code 0 after N gaps
  --within S   ends with code 1 after S without the wished number of gaps; the default is to go on for ever
  ends with code 3 when two copies of the child answer";
/// Between two questions to one address.
const PACE: Duration = Duration::from_millis(20);
/// Between two looks at the addresses of one name: a moved container has another.
const LOOKUP_PACE: Duration = Duration::from_secs(1);
/// The same after a failure: the name may mean nothing here, and its server need not hear of it each second.
const FAILED_LOOKUP_PACE: Duration = Duration::from_secs(5);

/// What the command line asks for.
struct Task {
    silence: Duration,
    gaps: Option<u64>,
    within: Option<Duration>,
    candidates: Vec<String>,
}

fn main() -> ExitCode {
    let task = task(Arguments::of_this_process()).unwrap_or_else(|mistake| refuse("shop-load", &mistake, USAGE));
    say(format_args!("asks {} every {} ms", task.candidates.join(" "), PACE.as_millis()));
    let (answers, received) = channel();
    for candidate in &task.candidates {
        let (candidate, answers) = (candidate.clone(), answers.clone());
        // A thread for each name: one that is slow to look up must not hold up the others.
        thread::spawn(move || follow(&candidate, &answers));
    }
    watch(&task, &received)
}

fn task(mut arguments: Arguments) -> Result<Task, BadArguments> {
    let span = "a time span such as 500ms or 3s";
    let silence = arguments.value::<Span>("--silence", span)?.map_or(Duration::from_millis(100), |Span(span)| span);
    let gaps = arguments.value::<u64>("--gaps", "a number")?;
    let within = arguments.value::<Span>("--within", span)?.map(|Span(span)| span);
    let candidates: Vec<String> = arguments.words()?.iter().map(|word| host_and_port(word).to_owned()).collect();
    if candidates.is_empty() {
        return Err("nothing to ask: name at least one HOST:PORT".into());
    }
    Ok(Task { silence, gaps, within, candidates })
}

/// The part of a URL that says where to connect.
fn host_and_port(text: &str) -> &str {
    let text = text.strip_prefix("http://").unwrap_or(text);
    text.split('/').next().unwrap_or(text)
}

/// Prints what the answers show until the command line's wish is fulfilled, or cannot be.
fn watch(task: &Task, received: &Receiver<Answer>) -> ExitCode {
    let start = Instant::now();
    let mut watch = Watch::new(task.silence);
    let mut gaps = 0;
    loop {
        let left = task.within.map_or(LOOKUP_PACE, |within| within.saturating_sub(start.elapsed()));
        if left.is_zero() {
            complain(format_args!(
                "shop-load: {gaps} gaps in {:?}: wanted {}",
                start.elapsed(),
                task.gaps.unwrap_or(0)
            ));
            return ExitCode::FAILURE;
        }
        let answer = match received.recv_timeout(left) {
            Ok(answer) => answer,
            Err(RecvTimeoutError::Timeout) => continue,
            // Not reachable while the threads that look up names run, and they run for ever.
            Err(RecvTimeoutError::Disconnected) => return ExitCode::FAILURE,
        };
        let Some(seen) = watch.take(answer) else { continue };
        say(&seen);
        match seen {
            Seen::First(_) => {}
            Seen::TwoCopies { .. } => return ExitCode::from(3),
            Seen::Gap { .. } => gaps += 1,
        }
        if task.gaps.is_some_and(|wanted| gaps >= wanted) {
            return ExitCode::SUCCESS;
        }
    }
}

/// Looks up one name again and again, and asks at each address for as long as the name has it.
fn follow(candidate: &str, answers: &Sender<Answer>) {
    let mut asked: BTreeMap<SocketAddr, Arc<AtomicBool>> = BTreeMap::new();
    loop {
        let Ok(found) = candidate.to_socket_addrs().map(Iterator::collect::<BTreeSet<_>>) else {
            // A name that cannot be looked up says nothing about the addresses that it had.
            thread::sleep(FAILED_LOOKUP_PACE);
            continue;
        };
        asked.retain(|address, wanted| {
            wanted.store(found.contains(address), Ordering::Relaxed);
            found.contains(address)
        });
        for address in found {
            asked.entry(address).or_insert_with(|| ask_in_a_thread(address, answers.clone()));
        }
        thread::sleep(LOOKUP_PACE);
    }
}

/// Asks at one address until the flag that is returned turns false.
fn ask_in_a_thread(address: SocketAddr, answers: Sender<Answer>) -> Arc<AtomicBool> {
    let wanted = Arc::new(AtomicBool::new(true));
    let still_wanted = Arc::clone(&wanted);
    thread::spawn(move || {
        while still_wanted.load(Ordering::Relaxed) {
            let asked = Instant::now();
            // No answer is what this program is there to see: it shows as a gap.
            if let Ok(from) = http::ask(address)
                && answers.send(Answer { from, asked, answered: Instant::now() }).is_err()
            {
                return;
            }
            thread::sleep(PACE.saturating_sub(asked.elapsed()));
        }
    });
    wanted
}
