//! A feed: prints a heartbeat each second, and crashes when it is told to, with its reasons on standard error.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use pando_examples::arguments::{Arguments, BadArguments, Span, refuse};
use pando_examples::run::Run;
use pando_examples::{complain, ready, say, signals};

const USAGE: &str = "shop-feed NAME [--crash-after SPAN] [--crash-file FILE]
  prints a heartbeat each second; crashes with code 1 on SIGUSR1, when FILE (`crash` in its folder) appears, and after
  SPAN";
/// Between two heartbeats.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// Between two looks for a reason to crash.
const LOOK: Duration = Duration::from_millis(20);

/// What the command line asks for.
struct Task {
    name: String,
    crash_after: Option<Duration>,
    crash_file: PathBuf,
}

fn main() -> ExitCode {
    let task = task(Arguments::of_this_process()).unwrap_or_else(|mistake| refuse("shop-feed", &mistake, USAGE));
    let Task { name, .. } = &task;
    if !signals::catch_user_signal() {
        complain(format_args!("{name}: SIGUSR1 cannot be caught and would end this without a word"));
        return ExitCode::FAILURE;
    }
    let folder = env::current_dir().unwrap_or_default();
    say(format_args!("{name}: {} begins in {}", Run::of_this_process(), folder.display()));
    if let Err(why) = ready::notify() {
        complain(format_args!("{name}: cannot say that it is ready: {why}"));
        return ExitCode::FAILURE;
    }
    let reason = beat_until_told(&task);
    complain(format_args!("{name}: lost its upstream: {reason}"));
    complain(format_args!("{name}: cannot go on without it, exit code 1; what happens next is up to the supervisor"));
    ExitCode::FAILURE
}

fn task(mut arguments: Arguments) -> Result<Task, BadArguments> {
    let crash_after = arguments.value::<Span>("--crash-after", "a time span such as 500ms or 3s")?;
    let crash_file = arguments.value::<PathBuf>("--crash-file", "a file")?;
    let mut words = arguments.words()?;
    match (words.pop(), words.is_empty()) {
        (Some(name), true) => Ok(Task {
            name,
            crash_after: crash_after.map(|Span(span)| span),
            crash_file: crash_file.unwrap_or_else(|| "crash".into()),
        }),
        _ => Err("it takes exactly one NAME".into()),
    }
}

/// Beats until there is a reason to crash, and returns it.
fn beat_until_told(task: &Task) -> String {
    let start = Instant::now();
    let mut beats = 0;
    loop {
        if start.elapsed() >= HEARTBEAT * beats {
            beats += 1;
            say(format_args!("{}: heartbeat {beats}", task.name));
        }
        if signals::user_signal_came() {
            return "SIGUSR1 came".into();
        }
        if let Some(reason) = file_says_crash(&task.crash_file) {
            return reason;
        }
        if task.crash_after.is_some_and(|after| start.elapsed() >= after) {
            return format!("{:?} are over", start.elapsed());
        }
        thread::sleep(LOOK);
    }
}

/// Takes the file away as it obeys it, so that one file means one crash.
fn file_says_crash(file: &Path) -> Option<String> {
    if !file.exists() {
        return None;
    }
    Some(match fs::remove_file(file) {
        Ok(()) => format!("the file {} appeared", file.display()),
        Err(why) => format!("the file {} appeared and cannot be removed ({why})", file.display()),
    })
}
