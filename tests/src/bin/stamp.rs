//! A child that writes down its first moment and its last: `stamp FILE MILLISECONDS` appends `start NANOSECONDS` to FILE as its first act,
//! lives so long, appends `exit NANOSECONDS`, and ends with exit code 1. The clock is the monotonic one.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

fn main() -> ExitCode {
    let began = nanos();
    let mut words = std::env::args().skip(1);
    let file = words.next().expect("a file to write to");
    let lives = words.next().and_then(|word| word.parse().ok()).expect("milliseconds");
    let mut file = OpenOptions::new().create(true).append(true).open(file).expect("the file of stamps");
    write(&mut file, "start", began);
    std::thread::sleep(Duration::from_millis(lives));
    write(&mut file, "exit", nanos());
    ExitCode::FAILURE
}

fn write(file: &mut File, what: &str, at: u64) {
    file.write_all(format!("{what} {at}\n").as_bytes()).expect("a stamp");
}

fn nanos() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
