//! A disk that is small enough to be filled: a file system in memory, in a namespace of mounts that the test made (see
//! [`crate::namespace`]).

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

/// What it gives away at once, in bytes.
pub const PAGE: u64 = 4096;
/// The file that takes what is left.
const FILLER: &str = "filler";

/// A small disk, mounted until it is dropped.
#[derive(Debug)]
pub struct SmallDisk {
    folder: PathBuf,
}

impl SmallDisk {
    /// Mounts an empty disk of so many bytes at a folder, which is made. It needs `mount`.
    ///
    /// # Panics
    /// It cannot be mounted: no namespace of its own, or no `mount`.
    pub fn mount(folder: PathBuf, bytes: u64) -> Self {
        assert!(crate::namespace::is_inside(), "a disk is mounted only where nothing of the machine sees it");
        fs::create_dir_all(&folder).expect("a folder to mount at");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={bytes}"), "tmpfs"]).arg(&folder);
        let status = mount.status().expect("mount, from util-linux");
        assert!(status.success(), "mount: {status}");
        Self { folder }
    }

    /// Where it is mounted.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Takes all but so many bytes, in whole pages, of what is free now.
    ///
    /// # Panics
    /// What is free is less.
    pub fn fill_but(&self, left: u64) {
        let filler = self.folder.join(FILLER);
        let mut file = OpenOptions::new().create(true).append(true).open(filler).expect("the filler");
        loop {
            match file.write_all(&[0x55; PAGE as usize]) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::StorageFull => break,
                Err(error) => panic!("the filler: {error}"),
            }
        }
        let taken = file.metadata().expect("the size of the filler").len();
        let kept = taken.checked_sub(left).expect("as much free as is to be left");
        file.set_len(kept).expect("a shorter filler");
    }

    /// Takes all that is free.
    pub fn fill(&self) {
        self.fill_but(0);
    }

    /// Gives back what was taken.
    ///
    /// # Panics
    /// Nothing was taken.
    pub fn free(&self) {
        fs::remove_file(self.folder.join(FILLER)).expect("the filler");
    }

    /// Removes everything on it.
    ///
    /// # Panics
    /// Something cannot be removed.
    pub fn wipe(&self) {
        for entry in fs::read_dir(&self.folder).expect("the disk") {
            let path = entry.expect("an entry").path();
            let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            removed.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // What still holds a file on it does not hold up the end; where this fails the namespace takes it along.
        _ = Command::new("umount").arg("--lazy").arg(&self.folder).status();
    }
}
