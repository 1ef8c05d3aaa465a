//! The benchmark: what Pando does beside what its peers do, on the same machine and in the same run.
//!
//! ```text
//!   bin/bench ── arguments ──► subjects, each with rows ──► table, or JSON
//!                                 │
//!                                 ├── supervision: restart, failover, always, idle, many, busy
//!                                 ├── the log: commands, gaps
//!                                 ├── mailboxes: throughput, poison, leader, memory
//!                                 └── peers: their own daemons and clients, as processes; and the floor
//! ```
//!
//! A run of a subject measures all of its rows: first Pando, then each peer, nobody beside another. Each has daemons of its own
//! in each run. Messages come by `protocol::client`, and go to workers by `protocol::worker`: there is no private path. The same
//! program is the worker, where a node starts it.
//!
//! It does not profile: it says the CPU time that each process took for a message, which is less noisy than the clock on a machine
//! that does other things too.
//!
//! To add a row: name it in `rows`, and measure it in the subject that it belongs to; a new subject is one more file.

mod always;
mod arguments;
mod busy;
mod commands;
mod cost;
mod failover;
mod gaps;
mod idle;
mod leader;
mod load;
mod many;
mod measured;
mod memory;
mod peers;
mod poison;
mod restart;
mod rows;
mod table;
mod throughput;
mod worker;

use std::process::ExitCode;

use clap::Parser;
use pando_protocol::worker::SOCKET_VARIABLE;

use self::arguments::Arguments;
use self::measured::Results;
use self::peers::Peers;
use self::rows::{Row, Subject};

/// Measures what the command line names, or works where a node started this program.
///
/// 0: every run was right, whatever its numbers; 1: one was wrong (a message lost, an innocent one charged); 2: usage.
pub fn main() -> ExitCode {
    if std::env::var_os(SOCKET_VARIABLE).is_some() {
        return worker::main();
    }
    let arguments = Arguments::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let Ok(runtime) = runtime.inspect_err(|error| eprintln!("bench: no runtime: {error}")) else {
        return ExitCode::FAILURE;
    };
    match runtime.block_on(measure(&arguments)) {
        Ok(results) => {
            print!("{}", if arguments.json { table::json(&results) } else { table::text(&results) });
            if results.are_right() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::from(2)
        }
    }
}

async fn measure(arguments: &Arguments) -> anyhow::Result<Results> {
    load::check_disk()?;
    let peers = Peers::find(arguments.peers.as_deref());
    let rows = if arguments.rows.is_empty() { Row::all().to_vec() } else { arguments.rows.clone() };
    let mut results = Results::new(rows, arguments.runs);
    for subject in Subject::ALL {
        if !results.rows().iter().any(|row| row.subject() == subject) {
            continue;
        }
        for run in 1..=arguments.runs {
            eprintln!("{subject:?}: run {run} of {}", arguments.runs);
            let measured = match subject {
                Subject::Commands => commands::run().await,
                Subject::Restart => restart::run().await,
                Subject::Failover => failover::run().await,
                Subject::Gaps => gaps::run().await,
                Subject::AlwaysFailing => always::run().await,
                Subject::Idle => idle::run().await,
                Subject::ManyChildren => many::run().await,
                Subject::Busy => busy::run().await,
                Subject::Throughput => throughput::run().await,
                Subject::Failing => poison::failing().await,
                Subject::Aborting => poison::aborting().await,
                Subject::Leader => leader::run().await,
                Subject::Memory => memory::run().await,
            };
            results.add(subject, None, &Ok(measured));
            for peer in subject.peers() {
                results.add(subject, Some(*peer), &peers.run(*peer, subject));
            }
        }
    }
    Ok(results)
}
