//! What children wrote, as it lies on disk, and reading it.
//!
//! ```text
//!   <data>/logs/shop/web/output.log       the newest; then output.log.1 and output.log.2
//!   1764503446123 17 e cannot open the shop's door
//!   └ unix ms     │  └ o: standard output, e: standard error
//!                 └ incarnation
//! ```
//!
//! The name holds a dot so that it can never be the folder of a child. Lines are written by `log_writer`.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path as FilePath, PathBuf};
use std::time::Duration;

use pando_protocol::ids::{Incarnation, NodeName, Path};
use pando_protocol::message::LogLine;
use tokio::sync::mpsc;

/// The newest file of a child's log.
pub const LOG_FILE: &str = "output.log";
/// How many files are kept for a child.
pub const LOG_FILES: u32 = 3;
/// Most bytes in one file.
pub const LOG_FILE_BYTES: u64 = 10 << 20;
/// Most bytes of one line; the rest of it is cut.
pub const LINE_BYTES: usize = 16 << 10;

/// The step in which files are read, newest bytes first.
const BLOCK: u64 = 64 << 10;
/// How often a follower looks for more.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Lines that wait for a slow follower; it is read no further until it takes them.
const WAITING_LINES: usize = 256;

/// The folder of a path below a folder of all paths: names as folders.
pub fn folder_of(root: &FilePath, path: &Path) -> PathBuf {
    root.join(path.as_str().trim_start_matches('/'))
}

/// The folder with the log of a child.
pub fn log_folder(data: &FilePath, path: &Path) -> PathBuf {
    folder_of(&data.join("logs"), path)
}

/// The last `lines` lines of a child on this node, the oldest first; none where it never wrote. Blocks the calling thread.
///
/// # Errors
/// Where a log exists and cannot be read.
pub fn tail(data: &FilePath, node: &NodeName, path: &Path, lines: usize) -> io::Result<Vec<LogLine>> {
    let folder = log_folder(data, path);
    let newest = Place::open(&folder)?;
    read_tail(&folder, newest, node, lines).map(|(lines, _)| lines)
}

/// The last `tail` lines, then each new one as it is written, across rotations. The first lines are read before it returns; it
/// blocks the calling thread for that. Drop the receiver to end it.
///
/// # Errors
/// Where a log exists and cannot be read, or no thread can be started.
pub fn follow(data: &FilePath, node: &NodeName, path: &Path, tail: usize) -> io::Result<mpsc::Receiver<LogLine>> {
    let folder = log_folder(data, path);
    let newest = Place::open(&folder)?;
    let (first, place) = read_tail(&folder, newest, node, tail)?;
    let (sender, receiver) = mpsc::channel(WAITING_LINES);
    let follower = Follower { folder, node: node.clone(), place, sender };
    std::thread::Builder::new().name("pando-follow".into()).spawn(move || follower.run(first))?;
    Ok(receiver)
}

/// One stored line; `None` where it is none.
fn parse(node: &NodeName, bytes: &[u8]) -> Option<LogLine> {
    let mut parts = bytes.splitn(4, |byte| *byte == b' ');
    let mut number = || std::str::from_utf8(parts.next()?).ok()?.parse::<u64>().ok();
    let (at, incarnation) = (Duration::from_millis(number()?), Incarnation(number()?));
    let is_stderr = match parts.next()? {
        b"e" => true,
        b"o" => false,
        _ => return None,
    };
    let line = String::from_utf8_lossy(parts.next()?).into_owned();
    Some(LogLine { node: node.clone(), incarnation, at, is_stderr, line })
}

/// How far a file was read.
#[derive(Debug)]
struct Place {
    file: File,
    inode: u64,
    offset: u64,
}

impl Place {
    /// The end of the newest file; `None` where there is none.
    fn open(folder: &FilePath) -> io::Result<Option<Self>> {
        match File::open(folder.join(LOG_FILE)) {
            Ok(file) => {
                let metadata = file.metadata()?;
                Ok(Some(Self { file, inode: metadata.ino(), offset: metadata.len() }))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The whole lines from here on, at most a block of them at a time.
    fn read_on(&mut self) -> io::Result<Vec<Vec<u8>>> {
        self.file.seek(SeekFrom::Start(self.offset))?;
        let mut bytes = Vec::new();
        (&self.file).take(BLOCK).read_to_end(&mut bytes)?;
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        self.offset += whole as u64;
        bytes.truncate(whole);
        Ok(split(&bytes))
    }
}

/// The last lines over all files, and the newest file placed after the last whole line that was read.
fn read_tail(
    folder: &FilePath,
    newest: Option<Place>,
    node: &NodeName,
    wanted: usize,
) -> io::Result<(Vec<LogLine>, Option<Place>)> {
    let Some(mut place) = newest else { return Ok((Vec::new(), None)) };
    let (mut lines, end) = last_lines(&mut place.file, place.offset, wanted)?;
    place.offset = end;
    for number in 1..LOG_FILES {
        if lines.len() >= wanted {
            break;
        }
        let Ok(mut file) = File::open(folder.join(format!("{LOG_FILE}.{number}"))) else { break };
        let metadata = file.metadata()?;
        // Rotated while it was read.
        if metadata.ino() == place.inode {
            continue;
        }
        let (mut older, _) = last_lines(&mut file, metadata.len(), wanted - lines.len())?;
        older.append(&mut lines);
        lines = older;
    }
    Ok((lines.iter().filter_map(|line| parse(node, line)).collect(), Some(place)))
}

/// At most `wanted` whole lines before `end`, and where the last of them ends. Reads no more than it has to.
fn last_lines(file: &mut File, end: u64, wanted: usize) -> io::Result<(Vec<Vec<u8>>, u64)> {
    let mut bytes = Vec::new();
    let mut start = end;
    // One newline more than lines: the one before the first.
    while start > 0 && bytes.iter().filter(|byte| **byte == b'\n').count() <= wanted {
        let length = BLOCK.min(start);
        start -= length;
        file.seek(SeekFrom::Start(start))?;
        let mut block = Vec::new();
        (&*file).take(length).read_to_end(&mut block)?;
        block.append(&mut bytes);
        bytes = block;
    }
    let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let mut lines = split(&bytes[..whole]);
    // Where the file does not begin here, the first is a part.
    if start > 0 && !lines.is_empty() {
        lines.remove(0);
    }
    let surplus = lines.len().saturating_sub(wanted);
    lines.drain(..surplus);
    Ok((lines, start + whole as u64))
}

fn split(bytes: &[u8]) -> Vec<Vec<u8>> {
    bytes.split_inclusive(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\n").unwrap_or(line).to_vec()).collect()
}

struct Follower {
    folder: PathBuf,
    node: NodeName,
    place: Option<Place>,
    sender: mpsc::Sender<LogLine>,
}

impl Follower {
    fn run(mut self, first: Vec<LogLine>) {
        for line in first {
            if self.sender.blocking_send(line).is_err() {
                return;
            }
        }
        while !self.sender.is_closed() {
            match self.look() {
                Ok(0) => std::thread::sleep(LOOK_EVERY),
                Ok(_) => {}
                Err(error) => {
                    tracing::warn!(folder = %self.folder.display(), %error, "a log cannot be followed any further");
                    return;
                }
            }
        }
    }

    /// Sends what is new and says how many lines there were.
    fn look(&mut self) -> io::Result<usize> {
        let Some(place) = &mut self.place else {
            self.place = Place::open(&self.folder)?.map(|place| Place { offset: 0, ..place });
            return Ok(usize::from(self.place.is_some()));
        };
        let newer = Place::open(&self.folder)?.filter(|newest| newest.inode != place.inode);
        // Read after the look for a newer file: what is written later is in that one.
        let lines = place.read_on()?;
        let count = lines.len();
        for line in lines {
            if let Some(line) = parse(&self.node, &line)
                && self.sender.blocking_send(line).is_err()
            {
                return Ok(count);
            }
        }
        match newer {
            Some(newer) if count == 0 => {
                self.place = Some(Place { offset: 0, ..newer });
                Ok(1)
            }
            _ => Ok(count),
        }
    }
}
