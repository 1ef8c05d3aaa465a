//! The sockets of workers: one a run, in a folder that only the node's user may enter, gone with the run.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tokio::net::{UnixListener, UnixStream};

/// Most bytes of a socket's path: what the kernel takes, without the zero at its end.
const MAX_SOCKET_PATH: usize = 107;
/// Characters of a socket's name.
const NAME: usize = 16;

/// The folder of all sockets of a node.
#[derive(Debug, Clone)]
pub struct SocketFolder {
    path: PathBuf,
}

impl SocketFolder {
    /// Below the data folder, or where its path is too long, in the folder for temporary files under a name that belongs to this
    /// data folder. What a former node process left in it is removed: whoever calls this holds the lock of the data folder.
    ///
    /// # Errors
    /// It cannot be made, or it is somebody else's.
    pub fn open(data: &Path, mark: &str) -> io::Result<Self> {
        let data = std::path::absolute(data)?;
        let below = data.join("sockets");
        let fits = below.as_os_str().as_bytes().len() + 1 + NAME <= MAX_SOCKET_PATH;
        let name = mark.get(..NAME).unwrap_or(mark);
        let path = if fits { below } else { std::env::temp_dir().join(format!("pando-{name}")) };
        match DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => claim(&path)?,
            Err(error) => return Err(error),
        }
        Ok(Self { path })
    }

    /// Makes the socket of a run, under a name that nobody guesses.
    ///
    /// # Errors
    /// The folder is gone, its path is too long, or no descriptor is left.
    pub fn listen(&self) -> io::Result<WorkerSocket> {
        let path = self.path.join(format!("{:0NAME$x}", rand::random::<u64>()));
        let listener = UnixListener::bind(&path)?;
        Ok(WorkerSocket { listener, path })
    }
}

/// Takes over a folder that is there: our own, and nobody else's to enter.
fn claim(path: &Path) -> io::Result<()> {
    let found = fs::symlink_metadata(path)?;
    if !found.is_dir() || found.uid() != rustix::process::geteuid().as_raw() {
        let what = format!("{} is there and not a folder of this user: remove it", path.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
    }
    fs::set_permissions(path, fs::Permissions::from_mode(0o700))?;
    for entry in fs::read_dir(path)? {
        fs::remove_file(entry?.path())?;
    }
    Ok(())
}

/// The socket of a run, until its worker is there. Dropped, it is gone.
#[derive(Debug)]
pub struct WorkerSocket {
    listener: UnixListener,
    path: PathBuf,
}

impl WorkerSocket {
    /// The value of `$PANDO_SOCKET`.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The first that connects.
    ///
    /// # Errors
    /// What the kernel says.
    pub async fn accept(&self) -> io::Result<UnixStream> {
        Ok(self.listener.accept().await?.0)
    }
}

impl Drop for WorkerSocket {
    fn drop(&mut self) {
        // Gone already with the data folder, perhaps.
        _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(folder: &SocketFolder) -> usize {
        fs::read_dir(&folder.path).unwrap().count()
    }

    #[tokio::test]
    async fn a_socket_is_nobody_elses_and_gone_with_its_run() {
        let data = tempfile::tempdir().unwrap();
        let folder = SocketFolder::open(data.path(), "0123456789abcdef0123").unwrap();
        assert_eq!(fs::metadata(&folder.path).unwrap().permissions().mode() & 0o777, 0o700);
        let (one, two) = (folder.listen().unwrap(), folder.listen().unwrap());
        assert_ne!(one.path(), two.path());
        drop(one);
        assert_eq!(files(&folder), 1);
        std::mem::forget(two);
        let again = SocketFolder::open(data.path(), "0123456789abcdef0123").unwrap();
        assert_eq!(files(&again), 0, "what a former process left is removed");
    }

    #[tokio::test]
    async fn a_data_folder_with_a_long_path_has_its_sockets_elsewhere() {
        let data = tempfile::tempdir().unwrap();
        let long = data.path().join("x".repeat(100));
        fs::create_dir(&long).unwrap();
        let mark = format!("{:032x}", rand::random::<u128>());
        let folder = SocketFolder::open(&long, &mark).unwrap();
        let socket = folder.listen().unwrap();
        assert!(socket.path().as_os_str().len() <= MAX_SOCKET_PATH && !socket.path().starts_with(&long));
        drop(socket);
        fs::remove_dir(&folder.path).unwrap();
    }

    #[test]
    fn what_is_not_a_folder_of_ours_is_not_taken_over() {
        let data = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/tmp", data.path().join("sockets")).unwrap();
        assert!(SocketFolder::open(data.path(), "m").is_err());
    }
}
