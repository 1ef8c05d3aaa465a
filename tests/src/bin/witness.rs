//! A child that is its own witness: it writes down that it lives, again and again, with its incarnation.
//!
//! `witness FILE [--helper] [--store HOST:PORT] [--as ROLE] [--stop-takes MS]`: appends `incarnation role milliseconds` to FILE every 20 ms.
//! With `--helper` it starts a helper in a session of its own, which does the same. With `--store` it writes its incarnation to
//! the store too, as often as that answers. It ends only when it is killed, or, with `--stop-takes`, with exit code 143 so long
//! after SIGTERM, which it writes down too, under the role `told`. Where its spec waits for its word, it says ready after its first
//! beat: without that, "started" is all that is known, and a process that starts on it may write before this one does.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr as SocketName, UnixDatagram};
use std::process::Command;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::signal::unix::{SignalKind, signal};

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
    if let Some(takes) = value(&words, "--stop-takes") {
        let takes = Duration::from_millis(takes.parse().expect("milliseconds"));
        let (incarnation, beats) = (incarnation.clone(), beats.try_clone().expect("a descriptor"));
        let (is_ready, ready) = channel();
        std::thread::spawn(move || end_when_told(takes, &incarnation, beats, is_ready));
        ready.recv().expect("a thread that waits for SIGTERM");
    }
    beat(&mut beats, &incarnation, role);
    if role == "main" {
        say_ready();
    }
    loop {
        std::thread::sleep(BEAT);
        beat(&mut beats, &incarnation, role);
    }
}

/// Says ready, where somebody asked for that.
fn say_ready() {
    let Ok(name) = std::env::var("NOTIFY_SOCKET") else { return };
    let name = name.strip_prefix('@').expect("a name without a file");
    let socket = UnixDatagram::unbound().expect("a socket");
    let address = SocketName::from_abstract_name(name).expect("a name of a socket");
    socket.send_to_addr(b"READY=1\n", &address).expect("a node that listens");
}

/// One write for each line, so that lines of several writers never mix.
fn beat(beats: &mut File, incarnation: &str, role: &str) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis());
    beats.write_all(format!("{incarnation} {role} {now}\n").as_bytes()).expect("a beat");
}

fn end_when_told(takes: Duration, incarnation: &str, mut beats: File, is_ready: Sender<()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().expect("a runtime");
    runtime.block_on(async {
        let mut told = signal(SignalKind::terminate()).expect("a handler");
        is_ready.send(()).expect("a main thread");
        told.recv().await;
    });
    beat(&mut beats, incarnation, "told");
    std::thread::sleep(takes);
    std::process::exit(143);
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
