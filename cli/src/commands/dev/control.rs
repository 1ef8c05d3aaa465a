//! The socket on which a running `pando dev` is asked to start a node: `dev.sock` in its folder, one JSON line each way.

use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use pando_protocol::ids::NodeName;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::timeout;

use crate::exit::Failure;

/// What can be asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// To start a dead node.
    Start(NodeName),
}

/// What is answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Response {
    /// It was done; what.
    Done(String),
    /// It makes no sense now; why, and what to do.
    Refused(String),
    /// It was tried and failed; why.
    Failed(String),
}

/// Where requests arrive. The file is removed when it is dropped.
pub struct Listener {
    socket: UnixListener,
    file: PathBuf,
}

impl Listener {
    /// Listens in `folder`. The caller holds the folder's lock, so a socket file that is there belongs to nobody.
    ///
    /// # Errors
    /// The socket cannot be made.
    pub fn bind(folder: &Path) -> anyhow::Result<Self> {
        let file = folder.join(SOCKET);
        match fs::remove_file(&file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(anyhow!(error).context(format!("cannot remove {}", file.display())));
            }
            _ => {}
        }
        let socket = short_path(folder).and_then(|(path, _folder)| UnixListener::bind(path));
        let socket = socket.with_context(|| format!("cannot listen on {}", file.display()))?;
        Ok(Self { socket, file })
    }

    /// The next one who asks something. Cancel-safe.
    pub async fn accept(&self) -> UnixStream {
        loop {
            if let Ok((stream, _)) = self.socket.accept().await {
                return stream;
            }
            // Out of descriptors or memory: a moment later there may be some.
            tokio::time::sleep(LIMIT).await;
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // A file that stays is removed by the next one that listens here.
        let _ = fs::remove_file(&self.file);
    }
}

/// What is asked; `None` where it makes no sense or does not come in time.
pub async fn request(stream: &mut UnixStream) -> Option<Request> {
    timeout(LIMIT, receive(stream)).await.ok()?.ok()
}

/// Answers a request. Whoever asked may be gone, which changes nothing.
pub async fn answer(stream: &mut UnixStream, response: &Response) {
    let _ = timeout(LIMIT, send(stream, response)).await;
}

/// Asks the `pando dev` that runs in `folder`.
///
/// # Errors
/// None runs there (3), or it does not answer (1).
pub async fn ask(folder: &Path, request: &Request) -> Result<Response, Failure> {
    let connected = match short_path(folder) {
        Ok((path, _folder)) => UnixStream::connect(path).await,
        Err(error) => Err(error),
    };
    let mut stream = connected.map_err(|error| {
        Failure::unreached(anyhow!(
            "no `pando dev` answers in {} ({error}): start it with `pando dev`, or name its folder with --data DIR",
            folder.display()
        ))
    })?;
    let asked = timeout(LIMIT * 10, async {
        send(&mut stream, request).await?;
        receive(&mut stream).await
    });
    match asked.await {
        Ok(Ok(response)) => Ok(response),
        Ok(Err(error)) => Err(Failure::failed(error.context("`pando dev` hung up without an answer"))),
        Err(_) => Err(Failure::failed(anyhow!("`pando dev` runs but does not answer: stop it and start it again"))),
    }
}

/// A path to the socket that is short whatever the folder is called: a socket's path may have 107 bytes. It is good for as long
/// as the open folder beside it.
fn short_path(folder: &Path) -> io::Result<(PathBuf, fs::File)> {
    let folder = fs::File::open(folder)?;
    Ok((PathBuf::from(format!("/proc/self/fd/{}", folder.as_raw_fd())).join(SOCKET), folder))
}

async fn send(stream: &mut UnixStream, value: &impl Serialize) -> anyhow::Result<()> {
    let line = serde_json::to_string(value)? + "\n";
    Ok(stream.write_all(line.as_bytes()).await?)
}

async fn receive<T: for<'a> Deserialize<'a>>(stream: &mut UnixStream) -> anyhow::Result<T> {
    let mut line = String::new();
    BufReader::new(stream.take(MOST_BYTES)).read_line(&mut line).await?;
    Ok(serde_json::from_str(&line)?)
}

const SOCKET: &str = "dev.sock";
/// Most bytes of one line.
const MOST_BYTES: u64 = 64 << 10;
/// Most time to read or write one line of a peer on this machine.
const LIMIT: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_request_is_answered_however_long_the_folder_is_called() {
        let top = tempfile::tempdir().unwrap();
        let folder = top.path().join("x".repeat(120));
        fs::create_dir(&folder).unwrap();
        let listener = Listener::bind(&folder).unwrap();
        let request = Request::Start("n2".parse().unwrap());
        let serve = async {
            let mut stream = listener.accept().await;
            let request = super::request(&mut stream).await.unwrap();
            answer(&mut stream, &Response::Done(format!("{request:?}"))).await;
        };
        let (response, ()) = tokio::join!(ask(&folder, &request), serve);
        assert_eq!(response.unwrap(), Response::Done(format!("{request:?}")));
        drop(listener);
        assert_eq!(ask(&folder, &request).await.unwrap_err().code, Some(crate::exit::Code::Unreached));
    }
}
