//! Reading a run's standard output and standard error, without ever making it wait.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::time::Duration;

use pando_protocol::cause::{MAX_STDERR, MAX_STDERR_LINES};
use pando_protocol::ids::{Incarnation, Path};
use rustix::pipe::PipeFlags;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::Receiver;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use super::log_writer::{Batch, Line, LogWriter};
use super::logs::LINE_BYTES;

/// How long everything may take together once the tree is gone: reading what lies in the pipes, and writing it. Only a process
/// outside the tree that was given the pipe can hold it open longer, and only a disk that hangs makes writing last.
const DRAIN_LIMIT: Duration = Duration::from_millis(100);
const READ_BYTES: usize = 8 << 10;
/// What stands at the end of a line that was cut.
const CUT_MARK: &str = " [line cut by pando]";

/// The reading ends of a run's pipes.
#[derive(Debug)]
pub struct Pipes {
    stdout: Receiver,
    stderr: Receiver,
}

impl Pipes {
    /// Makes both pipes. The writing ends, standard output first, go to the run.
    ///
    /// # Errors
    /// Where the process has no descriptors left.
    pub fn make() -> io::Result<(Self, Vec<OwnedFd>)> {
        let (stdout, write_stdout) = pipe()?;
        let (stderr, write_stderr) = pipe()?;
        Ok((Self { stdout, stderr }, vec![write_stdout, write_stderr]))
    }
}

fn pipe() -> io::Result<(Receiver, OwnedFd)> {
    let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    // Sets the reading end alone non-blocking: the writing end is a file of its own.
    Ok((Receiver::from_owned_fd(read)?, write))
}

/// Reads until both pipes end, or until the limit after `ended` (dropped counts as sent). Returns the last lines of
/// standard error once everything is on its way to the disk, at that limit at the latest.
pub async fn capture(
    pipes: Pipes,
    path: Path,
    incarnation: Incarnation,
    ended: oneshot::Receiver<()>,
    writer: LogWriter,
) -> String {
    let mut output = Output::new(path, incarnation, writer);
    let mut ended = pin!(async {
        let _ = ended.await;
        Instant::now() + DRAIN_LIMIT
    });
    let read_early = {
        let mut reading = pin!(read_to_the_end(pipes, &mut output));
        tokio::select! {
            biased;
            () = &mut reading => None,
            limit = &mut ended => {
                let _ = timeout_at(limit, reading).await;
                Some(limit)
            }
        }
    };
    let limit = match read_early {
        Some(limit) => limit,
        // The pipes may end long before the run does.
        None => ended.await,
    };
    // What was cut off in the middle of a line is a last line too.
    let _ = timeout_at(limit, async {
        output.finish().await;
        output.writer.flush().await;
    })
    .await;
    output.last_errors.text()
}

async fn read_to_the_end(pipes: Pipes, output: &mut Output) {
    let Pipes { mut stdout, mut stderr } = pipes;
    let (mut from_stdout, mut from_stderr) = ([0; READ_BYTES], [0; READ_BYTES]);
    let (mut stdout_open, mut stderr_open) = (true, true);
    while stdout_open || stderr_open {
        tokio::select! {
            biased;
            length = stderr.read(&mut from_stderr), if stderr_open => {
                stderr_open = output.take(true, length.map(|length| &from_stderr[..length])).await;
            }
            length = stdout.read(&mut from_stdout), if stdout_open => {
                stdout_open = output.take(false, length.map(|length| &from_stdout[..length])).await;
            }
        }
    }
    output.finish().await;
}

struct Output {
    path: Path,
    incarnation: Incarnation,
    writer: LogWriter,
    stdout: Cutter,
    stderr: Cutter,
    last_errors: LastLines,
    lost: u64,
}

impl Output {
    fn new(path: Path, incarnation: Incarnation, writer: LogWriter) -> Self {
        let (stdout, stderr) = (Cutter::default(), Cutter::default());
        Self { path, incarnation, writer, stdout, stderr, last_errors: LastLines::default(), lost: 0 }
    }

    /// Takes what was read, and says whether more may come.
    async fn take(&mut self, is_stderr: bool, read: io::Result<&[u8]>) -> bool {
        let bytes = match read {
            Ok([]) => return false,
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return true,
            Err(_) => return false,
        };
        let cutter = if is_stderr { &mut self.stderr } else { &mut self.stdout };
        let lines = cutter.push(bytes);
        self.write(is_stderr, lines).await;
        true
    }

    async fn finish(&mut self) {
        let (last_error, last) = (self.stderr.finish(), self.stdout.finish());
        self.write(true, last_error.into_iter().collect()).await;
        self.write(false, last.into_iter().collect()).await;
    }

    async fn write(&mut self, is_stderr: bool, lines: Vec<Vec<u8>>) {
        if lines.is_empty() {
            return;
        }
        if is_stderr {
            lines.iter().for_each(|line| self.last_errors.push(line));
        }
        let lines = lines.into_iter().map(|bytes| Line::now(is_stderr, bytes)).collect();
        let batch = Batch { path: self.path.clone(), incarnation: self.incarnation, lost: self.lost, lines };
        self.lost = self.writer.write(batch).await.err().unwrap_or(0);
    }
}

/// Cuts a stream of bytes into lines of at most [`LINE_BYTES`].
#[derive(Debug, Default)]
struct Cutter {
    line: Vec<u8>,
    cut: bool,
}

impl Cutter {
    fn push(&mut self, bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut lines = Vec::new();
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            let text = part.strip_suffix(b"\n");
            self.append(text.unwrap_or(part));
            if text.is_some() {
                lines.push(self.take());
            }
        }
        lines
    }

    fn append(&mut self, bytes: &[u8]) {
        let room = LINE_BYTES - self.line.len();
        self.cut |= bytes.len() > room;
        self.line.extend(&bytes[..bytes.len().min(room)]);
    }

    fn take(&mut self) -> Vec<u8> {
        let mut line = std::mem::take(&mut self.line);
        if std::mem::take(&mut self.cut) {
            line.extend(CUT_MARK.as_bytes());
        }
        line
    }

    fn finish(&mut self) -> Option<Vec<u8>> {
        (!self.line.is_empty()).then(|| self.take())
    }
}

/// The last lines of standard error, as an ending keeps them.
#[derive(Debug, Default)]
struct LastLines(VecDeque<Vec<u8>>);

impl LastLines {
    fn push(&mut self, line: &[u8]) {
        if self.0.len() == MAX_STDERR_LINES {
            self.0.pop_front();
        }
        self.0.push_back(line[..line.len().min(MAX_STDERR)].to_vec());
    }

    /// The lines, within the bound: the newest are kept.
    fn text(&self) -> String {
        let lines: Vec<String> = self.0.iter().map(|line| String::from_utf8_lossy(line).into_owned()).collect();
        let text = lines.join("\n");
        let surplus = text.len().saturating_sub(MAX_STDERR);
        let start = (surplus..text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
        text[start..].to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_cut_where_they_end_and_where_they_are_too_long() {
        let mut cutter = Cutter::default();
        assert_eq!(cutter.push(b"one\ntw"), [b"one".to_vec()]);
        assert_eq!(cutter.push(b"o\n\nthree"), [b"two".to_vec(), Vec::new()]);
        assert_eq!(cutter.finish().unwrap(), b"three");
        let long = vec![b'x'; LINE_BYTES + 1];
        assert!(cutter.push(&long).is_empty());
        let cut = cutter.push(b"yy\n").remove(0);
        assert_eq!(cut.len(), LINE_BYTES + CUT_MARK.len());
        assert!(cut.ends_with(CUT_MARK.as_bytes()));
    }

    #[tokio::test]
    async fn a_disk_that_hangs_holds_up_an_ending_by_one_limit_and_its_last_lines_are_there() {
        let mut shortest = Duration::MAX;
        // The shortest of five, because a busy machine makes each longer.
        for _ in 0..5 {
            let (writer, _disk) = LogWriter::hung();
            let (pipes, ends) = Pipes::make().unwrap();
            rustix::io::write(&ends[0], b"out\n").unwrap();
            rustix::io::write(&ends[1], b"first\nlast, cut").unwrap();
            let (gone, ended) = oneshot::channel();
            let capturing = tokio::spawn(capture(pipes, "/shop/web".parse().unwrap(), Incarnation(1), ended, writer));
            drop(ends);
            drop(gone);
            let began = Instant::now();
            assert_eq!(capturing.await.unwrap(), "first\nlast, cut");
            shortest = shortest.min(began.elapsed());
        }
        assert!(shortest < DRAIN_LIMIT * 3 / 2, "{shortest:?}");
    }

    #[test]
    fn an_ending_keeps_the_newest_lines_within_the_bound() {
        let mut last = LastLines::default();
        for number in 0..30 {
            last.push(format!("line {number}").as_bytes());
        }
        assert!(last.text().starts_with("line 10\n") && last.text().ends_with("line 29"));
        last.push("ä".repeat(4000).as_bytes());
        assert!(last.text().len() <= MAX_STDERR && last.text().ends_with('ä'), "{}", last.text().len());
    }
}
