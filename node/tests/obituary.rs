//! A guard whose node dies: everything is gone, and then the death is reported.
//!
//! Without the test harness, because the guard is a process that has never had a second thread: this program calls itself.

use std::fs;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use pando_node::guard::socket::{self, Parcel};
use pando_node::guard::words::{Configuration, FromGuard, RunId, StartOrder, ToGuard, VoterAddress, WORD_LIMIT};
use pando_node::guard::{BootTime, GuardLock, ObituaryContext, find_marked, mark};
use pando_protocol::ids::{Incarnation, SessionId};
use pando_protocol::session::ObituaryReply;

const LIMIT: Duration = Duration::from_secs(20);

fn main() {
    if std::env::args().nth(1).as_deref() == Some("guard") {
        pando_node::guard::main(&mut report);
    }
    the_death_of_a_node_is_reported_once_all_is_gone();
    a_node_that_leaves_is_not_reported();
    a_node_that_hangs_loses_its_children_at_the_kill_time();
    println!("3 tests passed");
}

/// Notes what is left at that moment, in the file that stands for the voter.
fn report(context: &ObituaryContext<'_>) -> io::Result<ObituaryReply> {
    let left = find_marked(&mark(context.identity)?)?.len();
    let line = format!("{} {} {} left\n", context.obituary.node, context.obituary.session, left);
    fs::OpenOptions::new().create(true).append(true).open(&context.voter.address)?.write_all(line.as_bytes())?;
    Ok(ObituaryReply::Recorded)
}

fn the_death_of_a_node_is_reported_once_all_is_gone() {
    let mut guard = Guard::launch();
    guard.start(1, "trap '' TERM; setsid sleep 600 & setsid sh -c 'setsid sleep 600 & sleep 600' & sleep 600");
    guard.start(2, "sleep 600");
    let obituary = guard.data.path().join("obituary");
    drop(guard.socket);
    assert!(guard.process.wait().expect("the guard ends").success());
    assert_eq!(fs::read_to_string(obituary).expect("an obituary"), "n1 s7 0 left\n");
    GuardLock::acquire(guard.data.path(), Duration::ZERO).expect("the lock is free");
}

fn a_node_that_leaves_is_not_reported() {
    let mut guard = Guard::launch();
    guard.start(1, "sleep 600");
    guard.say(&ToGuard::Leave, Vec::new());
    assert!(guard.process.wait().expect("the guard ends").success());
    assert!(!guard.data.path().join("obituary").exists());
    assert!(find_marked(&guard.mark).expect("/proc").is_empty());
}

fn a_node_that_hangs_loses_its_children_at_the_kill_time() {
    let mut guard = Guard::launch();
    guard.start(1, "setsid sleep 600 & sleep 600");
    // An older kill time cannot be taken back, so this session gets a successor.
    let session = SessionId(8);
    guard.say(&ToGuard::Renew { session, kill_at: BootTime::now().plus(Duration::from_secs(1)) }, Vec::new());
    guard.session = session;
    guard.start(2, "setsid sleep 600 & sleep 600");
    guard.say(&ToGuard::EndSession { session: SessionId(7) }, Vec::new());
    // Nothing is read from here on.
    let until = Instant::now() + LIMIT;
    while !find_marked(&guard.mark).expect("/proc").is_empty() {
        assert!(Instant::now() < until, "children live past their kill time");
        std::thread::sleep(Duration::from_millis(2));
    }
    guard.say(&ToGuard::Leave, Vec::new());
    assert!(guard.process.wait().expect("the guard ends").success());
}

struct Guard {
    data: tempfile::TempDir,
    mark: String,
    process: Child,
    socket: OwnedFd,
    session: SessionId,
}

impl Guard {
    fn launch() -> Self {
        let data = tempfile::tempdir().expect("a folder");
        let mark = mark(data.path()).expect("a mark");
        let (ours, theirs) = socket::pair().expect("a socket");
        let program = std::env::current_exe().expect("this program");
        let process = Command::new(program).arg("guard").stdin(Stdio::from(theirs)).spawn().expect("the guard starts");
        let mut guard = Self { data, mark, process, socket: ours, session: SessionId(7) };
        guard.configure();
        guard
    }

    fn configure(&mut self) {
        let lock = GuardLock::acquire(self.data.path(), Duration::ZERO).expect("the lock");
        let address = self.data.path().join("obituary").to_str().expect("a text").to_owned();
        let configuration = Configuration {
            node: "n1".parse().expect("a name"),
            identity: self.data.path().to_str().expect("a text").into(),
            voters: vec![VoterAddress { name: "n2".parse().expect("a name"), address }],
            obituary_limit: LIMIT,
        };
        self.say(&ToGuard::Configure(configuration), vec![lock.share().expect("a copy")]);
        assert_eq!(self.hear(), FromGuard::Configured);
        let kill_at = BootTime::now().plus(Duration::from_secs(600));
        self.say(&ToGuard::Renew { session: self.session, kill_at }, Vec::new());
        assert_eq!(self.hear(), FromGuard::Renewed { session: self.session, kill_at });
    }

    fn start(&mut self, number: u64, script: &str) {
        let run = RunId { incarnation: Incarnation(number), probe: 0 };
        let order = StartOrder {
            run,
            session: self.session,
            command: ["sh", "-c", script].map(Into::into).into(),
            environment: vec![b"PATH=/usr/bin:/bin".into(), format!("PANDO_MARK={}", self.mark).into_bytes()],
            folder: Path::new("/").to_str().expect("a text").into(),
            make_folder: false,
            keep: false,
        };
        self.say(&ToGuard::Start(order), Vec::new());
        loop {
            match self.hear() {
                FromGuard::Started { run: started, .. } if started == run => return,
                FromGuard::Renewed { .. } => {}
                other => panic!("expected the start of {run}, heard {other:?}"),
            }
        }
    }

    fn say(&self, word: &ToGuard, descriptors: Vec<OwnedFd>) {
        socket::send(&self.socket, &Parcel::with(word, descriptors).expect("a short word")).expect("the guard listens");
    }

    fn hear(&self) -> FromGuard {
        let mut buffer = vec![0; WORD_LIMIT];
        let until = Instant::now() + LIMIT;
        loop {
            match socket::receive(&self.socket, &mut buffer) {
                Ok(Some((word, _))) => return word,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < until => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                other => panic!("the guard said nothing: {other:?}"),
            }
        }
    }
}
