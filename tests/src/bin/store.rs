//! A store outside the cluster that knows fencing: it takes a write only with an incarnation as high as the highest it saw.
//!
//! `store ADDRESS FILE`: listens, writes its address to FILE, and answers each line with `ok` or `refused: …`. Each answer stands in
//! FILE.log too, as `INCARNATION ANSWER`, in the order in which they were given.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::sync::Mutex;

fn main() {
    let words: Vec<String> = std::env::args().collect();
    let listener = TcpListener::bind(&words[1]).expect("an address to listen on");
    std::fs::write(&words[2], listener.local_addr().expect("an address").to_string()).expect("a file for the address");
    let log = File::create(format!("{}.log", words[2])).expect("a log");
    let state = Mutex::new((0u64, log));
    std::thread::scope(|scope| {
        for stream in listener.incoming().flatten() {
            let state = &state;
            scope.spawn(move || {
                let mut reader = BufReader::new(stream);
                let mut line = String::new();
                while reader.read_line(&mut line).is_ok_and(|bytes| bytes > 0) {
                    let answer = {
                        let (highest, log) = &mut *state.lock().expect("no panic under the lock");
                        let answer = decide(highest, line.trim());
                        log.write_all(format!("{} {answer}", line.trim()).as_bytes()).expect("a line in the log");
                        answer
                    };
                    if reader.get_mut().write_all(answer.as_bytes()).is_err() {
                        return;
                    }
                    line.clear();
                }
            });
        }
    });
}

fn decide(highest: &mut u64, token: &str) -> String {
    match token.parse::<u64>() {
        Ok(token) if token >= *highest => {
            *highest = token;
            "ok\n".into()
        }
        Ok(token) => format!("refused: incarnation {token} is older than {highest}\n"),
        Err(_) => "refused: not a number\n".into(),
    }
}
