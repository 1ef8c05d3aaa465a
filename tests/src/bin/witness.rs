//! A child that is its own witness: it writes down that it lives, again and again, with its incarnation.
//!
//! `witness FILE [--helper] [--store HOST:PORT] [--as ROLE]`: appends `incarnation role milliseconds` to FILE every 20 ms.
//! With `--helper` it starts a helper in a session of its own, which does the same. With `--store` it writes its incarnation to
//! the store too, as often as that answers. It ends only when it is killed.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const BEAT: Duration = Duration::from_millis(20);

fn main() {
    let words: Vec<String> = std::env::args().collect();
    let file = words.get(1).expect("a file to write to");
    let role = value(&words, "--as").unwrap_or("main");
    let incarnation = std::env::var("PANDO_INCARNATION").expect("PANDO_INCARNATION");
    if words.iter().any(|word| word == "--helper") {
        // Dropped, not waited for: it is to outlive whatever the process group suffers.
        drop(Command::new("setsid").args([&words[0], file, "--as", "helper"]).spawn().expect("a helper"));
    }
    if let Some(store) = value(&words, "--store") {
        let (store, incarnation) = (store.parse().expect("an address"), incarnation.clone());
        std::thread::spawn(move || tell(store, &incarnation));
    }
    let mut beats = OpenOptions::new().create(true).append(true).open(file).expect("the file of beats");
    loop {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis());
        // One write for each line, so that lines of several writers never mix.
        beats.write_all(format!("{incarnation} {role} {now}\n").as_bytes()).expect("a beat");
        std::thread::sleep(BEAT);
    }
}

fn value<'a>(words: &'a [String], flag: &str) -> Option<&'a str> {
    let at = words.iter().position(|word| word == flag)?;
    words.get(at + 1).map(String::as_str)
}

fn tell(store: SocketAddr, incarnation: &str) {
    loop {
        if let Ok(mut stream) = TcpStream::connect_timeout(&store, Duration::from_millis(500)) {
            _ = stream.set_read_timeout(Some(Duration::from_millis(500)));
            let mut answer = String::new();
            let said = stream.write_all(format!("{incarnation}\n").as_bytes());
            if said.is_ok() && BufReader::new(stream).read_line(&mut answer).is_ok() && answer.starts_with("refused") {
                eprintln!("the store: {}", answer.trim());
            }
        }
        std::thread::sleep(BEAT * 5);
    }
}
