//! Health and metrics of a node, as a probe asks for them: one plain request on a connection of its own.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Longer than any answer takes, which is a second.
const LIMIT: Duration = Duration::from_secs(5);

/// What was answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The status.
    pub status: u16,
    /// The body.
    pub body: String,
}

impl Answer {
    /// The value of a sample in the text format of OpenMetrics, by its name with its labels as they stand there.
    pub fn sample(&self, series: &str) -> Option<f64> {
        let mut samples =
            self.body.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.rsplit_once(' '));
        samples.find(|(name, _)| *name == series).and_then(|(_, value)| value.parse().ok())
    }
}

/// Asks `address` for `path`.
pub(super) async fn get(address: &str, path: &str) -> io::Result<Answer> {
    let asked = async {
        let mut stream = TcpStream::connect(address).await?;
        let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await?;
        Ok::<_, io::Error>(text)
    };
    let text = timeout(LIMIT, asked).await.map_err(|_| io::ErrorKind::TimedOut)??;
    let broken = || io::Error::other(format!("no HTTP: {text:?}"));
    let (head, body) = text.split_once("\r\n\r\n").ok_or_else(broken)?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or_else(broken)?;
    Ok(Answer { status, body: body.to_owned() })
}
