//! The sessions under which processes of this node may still run, on disk: what the next node process proves over once it
//! holds the guard's lock and has swept, where it is in the same [`Place`].
//!
//! A line a session: its number, and the place. Lines of an older format had no place, and prove nothing.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use pando_protocol::ids::SessionId;

use super::place::Place;

/// The file in the data folder.
const FILE: &str = "sessions";

/// The sessions, as they stand on disk.
#[derive(Debug)]
pub struct SessionRecord {
    folder: PathBuf,
    here: Place,
    sessions: Vec<SessionId>,
}

impl SessionRecord {
    /// Reads the record. Only called while the guard's lock is held and no process of an older guard was left: then every
    /// session that was begun where this process is, `here`, is over. Those of other places are left out: their lease decides.
    ///
    /// # Errors
    /// Where the file cannot be read. A line that is none is left out: it was being written when the machine stopped, so
    /// nothing ran under it.
    pub fn open(folder: &Path, here: Place) -> io::Result<Self> {
        let text = match fs::read_to_string(folder.join(FILE)) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error),
        };
        let proven = |line: &str| {
            let (session, place) = line.split_once(' ')?;
            let former: Place = place.parse().ok()?;
            here.proves_over(&former).then_some(SessionId(session.parse().ok()?))
        };
        let sessions = text.lines().filter_map(proven).collect();
        Ok(Self { folder: folder.to_owned(), here, sessions })
    }

    /// The sessions, the oldest first.
    pub fn sessions(&self) -> Vec<SessionId> {
        self.sessions.clone()
    }

    /// Where it stands.
    pub fn path(&self) -> PathBuf {
        self.folder.join(FILE)
    }

    /// Writes down a session before anything starts under it. Of the older ones those are forgotten that are not among `left`:
    /// nothing that may count under them is left.
    ///
    /// # Errors
    /// What the disk says: nothing may be started then.
    pub fn begin(&mut self, session: SessionId, left: &BTreeSet<SessionId>) -> io::Result<()> {
        let mut sessions = self.sessions.clone();
        sessions.retain(|older| left.contains(older));
        sessions.push(session);
        let place = self.here.to_word();
        let text: String = sessions.iter().map(|session| format!("{} {place}\n", session.0)).collect();
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
    use std::time::Duration;

    use super::super::place::tests::place;
    use super::*;
    use crate::guard::{GuardLock, LOCK_FILE};

    /// The record as a node process that takes the folder finds it.
    fn found(folder: &Path) -> Vec<SessionId> {
        taken(folder).1.sessions()
    }

    fn taken(folder: &Path) -> (GuardLock, SessionRecord) {
        let lock = GuardLock::acquire(folder, Duration::ZERO).unwrap();
        let here = Place::here(&lock).unwrap();
        (lock, SessionRecord::open(folder, here).unwrap())
    }

    #[test]
    fn sessions_are_kept_until_nothing_of_them_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let mut record = SessionRecord::open(folder.path(), place()).unwrap();
        record.begin(SessionId(3), &BTreeSet::new()).unwrap();
        record.begin(SessionId(5), &BTreeSet::from([SessionId(3)])).unwrap();
        let again = || SessionRecord::open(folder.path(), place()).unwrap().sessions();
        assert_eq!(again(), [SessionId(3), SessionId(5)]);
        record.begin(SessionId(9), &BTreeSet::new()).unwrap();
        assert_eq!(again(), [SessionId(9)]);
    }

    #[test]
    fn a_copy_of_the_folder_proves_nothing_while_the_folder_itself_does() {
        let (folder, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (lock, mut record) = taken(folder.path());
        record.begin(SessionId(3), &BTreeSet::new()).unwrap();
        for file in [FILE, LOCK_FILE] {
            fs::copy(folder.path().join(file), copy.path().join(file)).unwrap();
        }
        assert_eq!(found(copy.path()), [], "the node that it was copied from may still run");
        drop((lock, record));
        assert_eq!(found(folder.path()), [SessionId(3)]);
    }

    #[test]
    fn a_folder_whose_lock_file_was_replaced_proves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let (_held, mut record) = taken(folder.path());
        record.begin(SessionId(3), &BTreeSet::new()).unwrap();
        fs::remove_file(folder.path().join(LOCK_FILE)).unwrap();
        assert_eq!(found(folder.path()), []);
    }

    #[test]
    fn a_record_without_places_proves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(FILE), "3\n5\n").unwrap();
        assert_eq!(found(folder.path()), []);
    }
}
