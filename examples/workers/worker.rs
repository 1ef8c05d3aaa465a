//! A worker in Rust: handles messages, and shows what becomes of those that it does not handle.
//!
//! | payload | what it does |
//! | --- | --- |
//! | `abort …` | the process aborts: this message pays, and the next worker goes on |
//! | `fail …` | says that it failed: charged, and tried again |
//! | `reject …` | says that it can never be handled: a dead letter at once |
//! | anything else | replies |

use pando_protocol::worker::{Failure, Worker, WorkerError};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), WorkerError> {
    let worker = Worker::connect().await?.starts(true).prefetch(100);
    let work = worker.run(async |message| {
        let order = str::from_utf8(message.payload.bytes()).map_err(Failure::reject)?;
        match order.split_whitespace().next() {
            Some("abort") => std::process::abort(),
            Some("fail") => Err(Failure::retry("it does not work out")),
            Some("reject") => Err(Failure::reject("nobody can do this")),
            _ => Ok(format!("handled {order}")),
        }
    });
    work.await
}
