//! `pando work`: a worker that runs a command for each message, so that anything that reads its input can be one.
//!
//! ```text
//!   node ── message ──► pando work ── payload ──► command
//!        ◄─ done, failed, rejected ── exit code, output ──┘
//! ```

use std::collections::VecDeque;
use std::env;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{ExitStatus, Stdio};

use anyhow::anyhow;
use clap::Args;
use pando_protocol::mail::{MAX_FAILURE, MAX_PAYLOAD};
use pando_protocol::worker::{Failure, Message, Worker, WorkerError};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{ChildStderr, ChildStdin, ChildStdout, Command};

use crate::arguments;
use crate::exit::Failure as Ended;
use crate::output;

/// The exit code of a command that says that its message can never be handled: EX_DATAERR of sysexits.
const REJECTED: i32 = 65;
/// The exit code of a command that says that its message may be handled another time: EX_TEMPFAIL of sysexits.
const RETRY: i32 = 75;
/// Last lines of standard error that become the error of a message.
const ERROR_LINES: usize = 20;
/// Most bytes of a line of standard error that are kept.
const ERROR_LINE: u64 = 1 << 10;

/// Works for a mailbox by running a command for each message; for the command of a child whose spec has a mailbox
///
/// The command gets the payload on standard input. Its standard output is the reply. Exit code 0: done; 65: rejected, set aside at
/// once; 75 and any other: failed, with the last lines of standard error, and tried again as the mailbox says. In its environment
/// are PANDO_MESSAGE_ID, PANDO_ATTEMPT, PANDO_LIFE, and each header as PANDO_HEADER_NAME.
#[derive(Debug, Args)]
pub struct Work {
    /// How many messages are worked on at once
    #[arg(long, value_name = "N", default_value = "1", value_parser = concurrency)]
    concurrency: u32,
    /// The command, after `--`
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

impl Work {
    /// Works until it is told to stop.
    ///
    /// # Errors
    /// This is no child with a mailbox, there is no such command, or the node is gone.
    pub async fn run(self) -> Result<(), Ended> {
        let Self { concurrency, command } = self;
        // No message is to pay for a command that is missing.
        if !command.first().is_some_and(|program| is_program(program)) {
            return Err(Ended::usage(anyhow!("there is no program {:?} that may be run", command.first())));
        }
        let worker = Worker::connect().await.map_err(ended)?;
        let worker = worker.starts(true).prefetch(concurrency).concurrency(concurrency as usize);
        worker.run(async |message| handle(&command, message).await).await.map_err(ended)
    }
}

fn ended(error: WorkerError) -> Ended {
    match error {
        WorkerError::NoSocket => Ended::usage(error),
        WorkerError::Connect { .. }
        | WorkerError::Io { .. }
        | WorkerError::Misunderstood(_)
        | WorkerError::Refused(_) => Ended::failed(error),
    }
}

fn concurrency(text: &str) -> Result<u32, String> {
    let found: u32 = arguments::number(text, "how many messages")?;
    if found == 0 { Err("expected at least 1 message".into()) } else { Ok(found) }
}

fn is_program(name: &str) -> bool {
    let may_be_run =
        |path: &Path| fs::metadata(path).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0);
    if name.contains('/') {
        return may_be_run(Path::new(name));
    }
    let path = env::var_os("PATH").unwrap_or_default();
    !name.is_empty() && env::split_paths(&path).any(|folder| may_be_run(&folder.join(name)))
}

/// Runs the command for one message; its output is the reply.
async fn handle(command: &[String], message: Message) -> Result<Option<Vec<u8>>, Failure> {
    let mut child =
        prepared(command, &message).spawn().map_err(|error| Failure::retry(format!("cannot run: {error}")))?;
    let (input, output, errors) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let (written, reply, last_lines) =
        tokio::join!(write(input, message.payload.bytes()), read_reply(output), read_errors(errors));
    let status = child.wait().await?;
    if !status.success() {
        return Err(failure(status, &last_lines));
    }
    written?;
    let reply = reply?;
    if reply.len() > MAX_PAYLOAD {
        return Err(Failure::retry(format!("its output is longer than a reply may be, {MAX_PAYLOAD} bytes")));
    }
    Ok(Some(reply).filter(|reply| !reply.is_empty()))
}

fn prepared(command: &[String], message: &Message) -> Command {
    let (program, arguments) = command.split_first().expect("a command of at least one word");
    let mut prepared = Command::new(program);
    prepared.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    // The stop signal goes to the group of this process, and a message that is being handled is finished.
    prepared.process_group(0);
    prepared.env("PANDO_MESSAGE_ID", without_nul(&message.id));
    prepared.env("PANDO_ATTEMPT", message.attempt.to_string()).env("PANDO_LIFE", message.life.to_string());
    for (name, value) in &message.headers {
        prepared.env(variable(name), without_nul(value));
    }
    prepared
}

/// The variable of a header: `trace-id` is in `PANDO_HEADER_TRACE_ID`.
fn variable(header: &str) -> String {
    let name = header.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' });
    format!("PANDO_HEADER_{}", name.collect::<String>())
}

/// What an environment can hold of a text.
fn without_nul(text: &str) -> String {
    text.replace('\0', "")
}

/// A command need not read its input.
async fn write(input: Option<ChildStdin>, payload: &[u8]) -> io::Result<()> {
    let Some(mut input) = input else { return Ok(()) };
    match input.write_all(payload).await {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
        _ => Ok(()),
    }
}

/// Reads to the end, and keeps one byte more than a reply may have.
async fn read_reply(output: Option<ChildStdout>) -> io::Result<Vec<u8>> {
    let Some(mut output) = output else { return Ok(Vec::new()) };
    let mut reply = Vec::new();
    (&mut output).take(MAX_PAYLOAD as u64 + 1).read_to_end(&mut reply).await?;
    tokio::io::copy(&mut output, &mut tokio::io::sink()).await?;
    Ok(reply)
}

/// Passes standard error on, and keeps its last lines.
async fn read_errors(errors: Option<ChildStderr>) -> String {
    let Some(errors) = errors else { return String::new() };
    let (mut errors, mut kept, mut line) = (BufReader::new(errors), VecDeque::new(), Vec::new());
    while (&mut errors).take(ERROR_LINE).read_until(b'\n', &mut line).await.is_ok_and(|length| length > 0) {
        let text = String::from_utf8_lossy(&line).trim_end().to_owned();
        output::say(&text);
        if kept.len() == ERROR_LINES {
            kept.pop_front();
        }
        kept.push_back(text);
        line.clear();
    }
    Vec::from(kept).join("\n")
}

fn failure(status: ExitStatus, last_lines: &str) -> Failure {
    let how = match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "it ended".into(),
    };
    // The last lines say more than the first ones.
    let from = last_lines.ceil_char_boundary((last_lines.len() + how.len() + 2).saturating_sub(MAX_FAILURE));
    let last_lines = &last_lines[from..];
    let error = if last_lines.is_empty() { how } else { format!("{how}: {last_lines}") };
    match status.code() {
        Some(REJECTED) => Failure::reject(error),
        Some(RETRY) | Some(_) | None => Failure::retry(error),
    }
}

#[cfg(test)]
mod tests {
    use pando_protocol::mail::Headers;

    use super::*;
    use crate::commands::dev::orphans::OWN_CHILDREN;

    async fn handled(script: &str, payload: &str) -> Result<Option<Vec<u8>>, Failure> {
        let _alone = OWN_CHILDREN.lock().await;
        let headers = Headers::from([("trace-id".into(), "t7".into())]);
        let message = Message { id: "m1".into(), attempt: 2, life: 1, payload: payload.into(), headers };
        handle(&["sh".into(), "-c".into(), script.into()], message).await
    }

    #[tokio::test]
    async fn the_output_of_a_command_is_the_reply() {
        let script = "printf '%s %s %s ' $PANDO_MESSAGE_ID $PANDO_ATTEMPT $PANDO_HEADER_TRACE_ID; cat";
        assert_eq!(handled(script, "hello").await, Ok(Some(b"m1 2 t7 hello".to_vec())));
        assert_eq!(handled("cat > /dev/null", "hello").await, Ok(None));
        let large = "x".repeat(MAX_PAYLOAD);
        assert_eq!(handled("true", &large).await, Ok(None), "it need not read its input");
        assert_eq!(handled("cat", &large).await.map(|reply| reply.map(|reply| reply.len())), Ok(Some(MAX_PAYLOAD)));
        assert!(handled("cat; cat", &large).await.is_ok());
        assert!(handled("cat; echo", &large).await.is_err(), "longer than a reply may be");
    }

    #[tokio::test]
    async fn the_exit_code_of_a_command_says_what_becomes_of_the_message() {
        let script = |code| format!("echo one >&2; echo two >&2; exit {code}");
        let error = |code| format!("exit code {code}: one\ntwo");
        assert_eq!(handled(&script(65), "").await, Err(Failure::reject(error(65))));
        assert_eq!(handled(&script(75), "").await, Err(Failure::retry(error(75))));
        assert_eq!(handled(&script(1), "").await, Err(Failure::retry(error(1))));
        assert_eq!(handled("kill -9 $$", "").await, Err(Failure::retry("signal 9")));
        let many = "for n in $(seq 1 50); do echo $n; done >&2; exit 1";
        let expected: Vec<_> = (31..=50).map(|number: u32| number.to_string()).collect();
        assert_eq!(handled(many, "").await, Err(Failure::retry(format!("exit code 1: {}", expected.join("\n")))));
    }

    #[test]
    fn a_program_is_looked_for_before_any_message_is() {
        assert!(is_program("sh") && is_program("/bin/sh"));
        assert!(!is_program("no-such-program") && !is_program("/etc/passwd") && !is_program("/tmp") && !is_program(""));
    }
}
