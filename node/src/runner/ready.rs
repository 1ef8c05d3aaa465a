//! Finding out that a run is ready: by a probe, or by its own word on `$NOTIFY_SOCKET`.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram as StdUnixDatagram};
use std::time::Duration;

use pando_protocol::spec::Command;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use rustix::process::Pid;
use tokio::io::Interest;
use tokio::net::UnixDatagram;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use crate::guard::tree;

/// How long one probe may run, in intervals, and at least: one that hangs must not use up the whole limit.
const PROBE_INTERVALS: u32 = 10;
const LEAST_PROBE_LIMIT: Duration = Duration::from_secs(1);
/// Most bytes of one notification that are looked at.
const NOTIFICATION_BYTES: usize = 4096;
/// How far up a sender's ancestors are followed.
const MAX_ANCESTORS: usize = 64;

/// A way to run probes. One at a time.
pub trait Prober {
    /// Starts a probe; the answer is whether it exited with 0.
    fn start(&self, command: &Command) -> oneshot::Receiver<bool>;
    /// Kills the probe that runs. Its answer still comes, when it is gone.
    fn kill(&self);
}

/// Returns once the probe has exited with 0. Runs for ever otherwise: bound it.
pub async fn probe_until_ready(prober: &impl Prober, command: &Command, interval: Duration) {
    let limit = interval.saturating_mul(PROBE_INTERVALS).max(LEAST_PROBE_LIMIT);
    loop {
        let mut answer = prober.start(command);
        let succeeded = match timeout(limit, &mut answer).await {
            Ok(answer) => answer.unwrap_or(false),
            Err(_) => {
                prober.kill();
                // Until it is gone, there must be no other.
                let _ = answer.await;
                false
            }
        };
        if succeeded {
            return;
        }
        sleep(interval).await;
    }
}

/// The socket on which a run says that it is ready. Its name is random and known to that run alone; a word from outside its
/// process tree is ignored.
#[derive(Debug)]
pub struct NotifySocket {
    socket: UnixDatagram,
    name: String,
}

impl NotifySocket {
    /// Makes a socket in the abstract namespace, which leaves no file behind.
    ///
    /// # Errors
    /// Where the process has no descriptors left.
    pub fn make() -> io::Result<Self> {
        let name = format!("pando-{:032x}", rand::random::<u128>());
        let socket = StdUnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
        socket.set_nonblocking(true)?;
        rustix::net::sockopt::set_socket_passcred(&socket, true)?;
        Ok(Self { socket: UnixDatagram::from_std(socket)?, name: format!("@{name}") })
    }

    /// The value of `$NOTIFY_SOCKET`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns once the tree below `main` or its `reaper` has sent `READY=1`. Runs for ever otherwise: bound it.
    pub async fn wait_until_ready(&self, main: u32, reaper: u32) {
        let tree = [main, reaper].map(|pid| i32::try_from(pid).unwrap_or(0));
        loop {
            match self.receive().await {
                Ok(word) if word.says_ready && word.comes_from(tree) => return,
                Ok(_) => {}
                Err(error) => {
                    tracing::warn!(socket = self.name, %error, "a notify socket cannot be read");
                    return std::future::pending().await;
                }
            }
        }
    }

    async fn receive(&self) -> io::Result<Notification> {
        loop {
            self.socket.readable().await?;
            match self.socket.try_io(Interest::READABLE, || receive(&self.socket)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                received => return received,
            }
        }
    }
}

struct Notification {
    says_ready: bool,
    sender: Option<Pid>,
}

impl Notification {
    /// A sender that is gone already cannot be traced; it knew the name.
    fn comes_from(&self, tree: [i32; 2]) -> bool {
        let Some(mut pid) = self.sender else { return false };
        for _ in 0..MAX_ANCESTORS {
            if tree.contains(&pid.as_raw_nonzero().get()) {
                return true;
            }
            let Some(parent) = tree::parent(pid) else { return true };
            let Some(parent) = Pid::from_raw(parent) else { return false };
            pid = parent;
        }
        false
    }
}

fn receive(socket: &UnixDatagram) -> io::Result<Notification> {
    let mut bytes = [0; NOTIFICATION_BYTES];
    // Room for the descriptors that some programs send along: they are closed unseen.
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1), ScmRights(8))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let received = rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags)?;
    let sender = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmCredentials(credentials) => Some(credentials.pid),
        _ => None,
    });
    let says_ready = bytes[..received.bytes].split(|byte| *byte == b'\n').any(|line| line == b"READY=1");
    Ok(Notification { says_ready, sender })
}

#[cfg(test)]
mod tests {
    use std::process::{Command as StdCommand, Stdio};

    use super::*;

    #[test]
    fn a_notification_counts_only_from_the_tree_it_is_about() {
        let mut child = StdCommand::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let (own, below) = (std::process::id(), child.id());
        let from = |pid: u32| Notification { says_ready: true, sender: Pid::from_raw(i32::try_from(pid).unwrap()) };
        let tree = |pid: u32| [i32::try_from(pid).unwrap(); 2];
        assert!(from(below).comes_from(tree(own)));
        assert!(from(below).comes_from(tree(below)));
        assert!(!from(own).comes_from(tree(below)), "its parent is not in its tree");
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(from(below).comes_from(tree(own)), "gone, but it knew the name");
    }

    struct Answers(std::cell::RefCell<Vec<Option<bool>>>, std::cell::RefCell<Vec<oneshot::Sender<bool>>>);

    impl Prober for Answers {
        fn start(&self, _: &Command) -> oneshot::Receiver<bool> {
            let (reply, answer) = oneshot::channel();
            match self.0.borrow_mut().remove(0) {
                Some(succeeded) => reply.send(succeeded).unwrap(),
                None => self.1.borrow_mut().push(reply),
            }
            answer
        }

        fn kill(&self) {
            self.1.borrow_mut().pop().unwrap().send(false).unwrap();
        }
    }

    #[tokio::test]
    async fn probes_follow_one_another_and_one_that_hangs_is_killed() {
        let prober = Answers(vec![Some(false), None, Some(true)].into(), Vec::new().into());
        let began = tokio::time::Instant::now();
        let interval = Duration::from_millis(10);
        probe_until_ready(&prober, &Command { program: "true".into(), args: Vec::new() }, interval).await;
        assert!(prober.0.borrow().is_empty() && prober.1.borrow().is_empty());
        assert!(began.elapsed() >= LEAST_PROBE_LIMIT + interval * 2);
    }
}
