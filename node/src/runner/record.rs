//! The sessions under which processes of this node may still run, on disk: what the next node process proves over once it
//! holds the guard's lock.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use pando_protocol::ids::SessionId;

/// The file in the data folder.
const FILE: &str = "sessions";

/// The sessions, as they stand on disk.
#[derive(Debug)]
pub struct SessionRecord {
    folder: PathBuf,
    sessions: Vec<SessionId>,
}

impl SessionRecord {
    /// Reads the record. Only called while the guard's lock is held and no process of an older guard was left: then every
    /// session in it is over.
    ///
    /// # Errors
    /// Where the file cannot be read. A line that is no number is left out: it was being written when the machine stopped, so
    /// nothing ran under it.
    pub fn open(folder: &Path) -> io::Result<Self> {
        let text = match fs::read_to_string(folder.join(FILE)) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error),
        };
        let sessions = text.lines().filter_map(|line| line.parse().ok().map(SessionId)).collect();
        Ok(Self { folder: folder.to_owned(), sessions })
    }

    /// The sessions, the oldest first.
    pub fn sessions(&self) -> Vec<SessionId> {
        self.sessions.clone()
    }

    /// Where it stands.
    pub fn path(&self) -> PathBuf {
        self.folder.join(FILE)
    }

    /// Writes down a session before anything starts under it. Where nothing of the older ones is left they are forgotten.
    ///
    /// # Errors
    /// What the disk says: nothing may be started then.
    pub fn begin(&mut self, session: SessionId, older_are_over: bool) -> io::Result<()> {
        let mut sessions = if older_are_over { Vec::new() } else { self.sessions.clone() };
        sessions.push(session);
        let text: String = sessions.iter().map(|session| format!("{}\n", session.0)).collect();
        let aside = self.folder.join(format!("{FILE}.new"));
        let mut file = File::create(&aside)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&aside, self.path())?;
        File::open(&self.folder)?.sync_all()?;
        self.sessions = sessions;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_are_kept_until_nothing_of_them_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let mut record = SessionRecord::open(folder.path()).unwrap();
        record.begin(SessionId(3), true).unwrap();
        record.begin(SessionId(5), false).unwrap();
        assert_eq!(SessionRecord::open(folder.path()).unwrap().sessions(), [SessionId(3), SessionId(5)]);
        record.begin(SessionId(9), true).unwrap();
        assert_eq!(SessionRecord::open(folder.path()).unwrap().sessions(), [SessionId(9)]);
    }
}
