//! Writing what children wrote: one thread for all of them, so that a full or hanging disk holds up no child and no lease.
//!
//! ```text
//!   capture ── lines ──► bounded queue ──► thread ──► <data>/logs/…/output.log
//!                          └ full for 100 ms: dropped, counted, and said in the log later
//! ```

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pando_protocol::ids::{Incarnation, Path};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::logs::{LOG_FILE, LOG_FILES, log_folder};
use crate::disk::remedy;

/// Batches that wait for the disk. Each comes from one read of a pipe: some 50 MiB where a disk hangs under children that
/// write nothing but empty lines, far less otherwise.
const WAITING_BATCHES: usize = 128;
/// How long a burst of output waits for room before lines are dropped. A child notices no more than a full pipe.
const PATIENCE: Duration = Duration::from_millis(100);
/// Files kept open; the one not used for longest is closed for another.
const OPEN_FILES: usize = 64;

/// A line of a child.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// When it was read, since the Unix epoch.
    pub at: Duration,
    /// Whether it came from standard error.
    pub is_stderr: bool,
    /// The line without its end.
    pub bytes: Vec<u8>,
}

impl Line {
    /// A line read now.
    pub fn now(is_stderr: bool, bytes: Vec<u8>) -> Self {
        Self { at: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(), is_stderr, bytes }
    }
}

/// The handle of the writing thread, which ends when the last handle is dropped.
#[derive(Debug, Clone)]
pub struct LogWriter {
    queue: Sender<Job>,
}

#[derive(Debug)]
enum Job {
    Write(Batch),
    Flush(oneshot::Sender<()>),
}

/// Lines of one run.
#[derive(Debug)]
pub struct Batch {
    /// The child.
    pub path: Path,
    /// The run.
    pub incarnation: Incarnation,
    /// Lines that were lost before these.
    pub lost: u64,
    /// The lines, in order.
    pub lines: Vec<Line>,
}

impl LogWriter {
    /// Starts the thread. `file_bytes` is the size at which a file is rotated, by default
    /// [`super::logs::LOG_FILE_BYTES`].
    ///
    /// # Errors
    /// Where no thread can be started.
    pub fn start(data: PathBuf, file_bytes: u64) -> io::Result<Self> {
        let (queue, jobs) = channel(WAITING_BATCHES);
        let files = Files { data, file_bytes, open: BTreeMap::new(), lost: BTreeMap::new(), uses: 0 };
        std::thread::Builder::new().name("pando-logs".into()).spawn(move || files.run(jobs))?;
        Ok(Self { queue })
    }

    /// A writer whose disk hangs, and hangs until what comes with it is dropped.
    #[cfg(test)]
    pub(super) fn hung() -> (Self, impl Sized) {
        let (queue, jobs) = channel(1);
        queue.try_send(Job::Flush(oneshot::channel().0)).unwrap();
        (Self { queue }, jobs)
    }

    /// Hands lines over. Waits a moment for room, unless lines were lost just before: a disk that is behind for longer must
    /// not slow the child down.
    ///
    /// # Errors
    /// The number of lines that are lost, those lost before included, where the disk is behind.
    pub async fn write(&self, batch: Batch) -> Result<(), u64> {
        let lost = batch.lost + batch.lines.len() as u64;
        let patience = if batch.lost > 0 { Duration::ZERO } else { PATIENCE };
        match timeout(patience, self.queue.reserve()).await {
            Ok(Ok(room)) => {
                room.send(Job::Write(batch));
                Ok(())
            }
            // Full, or the thread is gone.
            Err(_) | Ok(Err(_)) => Err(lost),
        }
    }

    /// Returns when what was handed over before is written, or cannot be. Bound it: a disk may hang.
    pub async fn flush(&self) {
        let (done, written) = oneshot::channel();
        if self.queue.send(Job::Flush(done)).await.is_ok() {
            // Dropped only with the thread.
            let _ = written.await;
        }
    }
}

struct Files {
    data: PathBuf,
    file_bytes: u64,
    open: BTreeMap<Path, OpenFile>,
    /// Lines that could not be written and are not yet told of.
    lost: BTreeMap<Path, u64>,
    uses: u64,
}

struct OpenFile {
    file: File,
    bytes: u64,
    used: u64,
}

impl Files {
    fn run(mut self, mut jobs: Receiver<Job>) {
        while let Some(job) = jobs.blocking_recv() {
            match job {
                Job::Write(batch) => self.take(&batch),
                // Whoever waited may have given up.
                Job::Flush(done) => drop(done.send(())),
            }
        }
    }

    fn take(&mut self, batch: &Batch) {
        let lost = self.lost.remove(&batch.path).unwrap_or(0) + batch.lost;
        if let Err(error) = self.write(batch, lost) {
            self.open.remove(&batch.path);
            let now_lost = lost + batch.lines.len() as u64;
            if lost == 0 {
                let (folder, todo) = (log_folder(&self.data, &batch.path), remedy(&error));
                tracing::warn!(
                    path = %batch.path, folder = %folder.display(), %error, todo,
                    "lines of a child cannot be written and are lost; the child goes on"
                );
            }
            self.lost.insert(batch.path.clone(), now_lost);
        }
    }

    fn write(&mut self, batch: &Batch, lost: u64) -> io::Result<()> {
        let bytes = format(batch, lost);
        let limit = self.file_bytes;
        let file = self.file(&batch.path)?;
        if file.bytes > 0 && file.bytes + bytes.len() as u64 > limit {
            self.rotate(&batch.path)?;
        }
        let file = self.file(&batch.path)?;
        if let Err(error) = file.file.write_all(&bytes) {
            // No half line may stay, or the next would be glued to it.
            let _ = file.file.set_len(file.bytes);
            return Err(error);
        }
        file.bytes += bytes.len() as u64;
        Ok(())
    }

    fn file(&mut self, path: &Path) -> io::Result<&mut OpenFile> {
        self.uses += 1;
        if !self.open.contains_key(path) {
            self.close_one();
            let folder = log_folder(&self.data, path);
            fs::create_dir_all(&folder)?;
            let file = OpenOptions::new().create(true).append(true).open(folder.join(LOG_FILE))?;
            let bytes = file.metadata()?.len();
            self.open.insert(path.clone(), OpenFile { file, bytes, used: 0 });
        }
        let file = self.open.get_mut(path).ok_or_else(|| io::Error::other("a file that was opened is not open"))?;
        file.used = self.uses;
        Ok(file)
    }

    fn close_one(&mut self) {
        if self.open.len() < OPEN_FILES {
            return;
        }
        let oldest = self.open.iter().min_by_key(|(_, file)| file.used).map(|(path, _)| path.clone());
        if let Some(path) = oldest {
            self.open.remove(&path);
        }
    }

    fn rotate(&mut self, path: &Path) -> io::Result<()> {
        self.open.remove(path);
        let folder = log_folder(&self.data, path);
        let name = |number: u32| match number {
            0 => folder.join(LOG_FILE),
            number => folder.join(format!("{LOG_FILE}.{number}")),
        };
        for number in (1..LOG_FILES).rev() {
            match fs::rename(name(number - 1), name(number)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

fn format(batch: &Batch, lost: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    let note = (lost > 0).then(|| {
        Line::now(true, format!("pando: {lost} lines are missing here: the disk was full or too slow").into_bytes())
    });
    for line in note.iter().chain(&batch.lines) {
        let stream = if line.is_stderr { 'e' } else { 'o' };
        bytes.extend(format!("{} {} {stream} ", line.at.as_millis(), batch.incarnation.0).into_bytes());
        bytes.extend(&line.bytes);
        bytes.push(b'\n');
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::super::logs;
    use super::*;

    fn batch(lines: &[&str]) -> Batch {
        let lines = lines.iter().map(|line| Line::now(false, line.as_bytes().to_vec())).collect();
        Batch { path: "/shop/web".parse().unwrap(), incarnation: Incarnation(3), lost: 0, lines }
    }

    fn texts(lines: Vec<pando_protocol::message::LogLine>) -> Vec<String> {
        lines.into_iter().map(|line| line.line).collect()
    }

    async fn write(writer: &LogWriter, batch: Batch) {
        writer.write(batch).await.unwrap();
        writer.flush().await;
    }

    #[tokio::test]
    async fn lines_come_back_from_all_files_and_the_oldest_file_is_dropped() {
        let data = tempfile::tempdir().unwrap();
        let writer = LogWriter::start(data.path().into(), 100).unwrap();
        for number in 0..12 {
            write(&writer, batch(&[&format!("line {number}")])).await;
        }
        let (node, path) = ("n1".parse().unwrap(), "/shop/web".parse().unwrap());
        let all = texts(logs::tail(data.path(), &node, &path, 100).unwrap());
        assert!((6..12).contains(&all.len()), "{all:?}");
        assert_eq!(all.last().unwrap(), "line 11");
        let expected: Vec<String> = (12 - all.len()..12).map(|number| format!("line {number}")).collect();
        assert_eq!(all, expected);
        assert_eq!(texts(logs::tail(data.path(), &node, &path, 5).unwrap()), expected[expected.len() - 5..]);
    }

    #[tokio::test]
    async fn a_follower_goes_on_across_rotations() {
        let data = tempfile::tempdir().unwrap();
        let writer = LogWriter::start(data.path().into(), 60).unwrap();
        let (node, path) = ("n1".parse().unwrap(), "/shop/web".parse().unwrap());
        write(&writer, batch(&["before", "last before"])).await;
        let mut lines = logs::follow(data.path(), &node, &path, 1).unwrap();
        assert_eq!(lines.recv().await.unwrap().line, "last before");
        for number in 0..5 {
            let line = format!("line {number} of a rotated file");
            write(&writer, batch(&[&line])).await;
            let next = timeout(Duration::from_secs(10), lines.recv()).await;
            assert_eq!(next.unwrap().unwrap().line, line);
        }
    }

    #[tokio::test]
    async fn lost_lines_are_counted_and_told_of_when_writing_works_again() {
        let data = tempfile::tempdir().unwrap();
        let writer = LogWriter::start(data.path().into(), 1 << 20).unwrap();
        let folder = data.path().join("logs/shop/web");
        fs::create_dir_all(&folder).unwrap();
        // A folder in the place of the file, as a disk that refuses.
        fs::create_dir(folder.join(LOG_FILE)).unwrap();
        write(&writer, batch(&["lost", "lost too"])).await;
        fs::remove_dir(folder.join(LOG_FILE)).unwrap();
        write(&writer, batch(&["there again"])).await;
        let lines = logs::tail(data.path(), &"n1".parse().unwrap(), &"/shop/web".parse().unwrap(), 9).unwrap();
        let lines = texts(lines);
        assert!(lines[0].contains("2 lines are missing"), "{lines:?}");
        assert_eq!(lines[1], "there again");
    }
}
