//! The guard, its reapers and the node's side of them, with real processes.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command as StdCommand;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pando_node::guard::{BootTime, GuardLock, find_marked, mark};
use pando_node::runner::children::{ChildEvent, Children, Options, SignalError, Start};
use pando_node::runner::logs;
use pando_protocol::cause::{Exit, ExitHow, OutOfMemory};
use pando_protocol::ids::{Incarnation, Path, SessionId};
use pando_protocol::mail::{Hand, Readiness, Settlement, Word};
use pando_protocol::spec::{Command, MailboxSpec, OnDisconnect, Place, ProcessSpec, Ready, Shutdown, Signal};
use pando_protocol::worker::{FromWorker, ToWorker};
use tempfile::TempDir;
use tokio::sync::mpsc;

const PROGRAM: &str = env!("CARGO_BIN_EXE_pando-node");
const LIMIT: Duration = Duration::from_secs(20);
const SESSION: SessionId = SessionId(1);

#[tokio::test]
async fn an_exit_is_reported_with_code_signal_and_last_error_lines() {
    let mut node = Node::launch().await;
    let exit = node.run_to_end(1, &sh("echo one; echo two >&2; exit 3")).await;
    assert_eq!((&exit.how, exit.stderr.as_deref()), (&ExitHow::Code(3), Some("two")));
    assert!(exit.healthy.is_some() && exit.ran < LIMIT && exit.out_of_memory == OutOfMemory::No);
    let exit = node.run_to_end(2, &sh("echo two >&2; kill -SEGV $$")).await;
    assert_eq!(exit.how, ExitHow::Signal(Signal(11)));
    assert_eq!(exit.stderr.as_deref(), Some("two"));
    node.leave().await;
}

#[tokio::test]
async fn a_failed_start_says_why() {
    let mut node = Node::launch().await;
    let mut missing = sh("");
    missing.command = Command { program: "no-such-program".into(), args: Vec::new() };
    let mut folder = sh("");
    folder.cwd = Some("/no/such/folder".into());
    let mut forbidden = sh("");
    forbidden.command = Command { program: "/etc/passwd".into(), args: Vec::new() };
    let mut script = sh("");
    script.command = Command { program: "./script".into(), args: Vec::new() };
    let own = node.data.path().join("work/shop/web");
    fs::create_dir_all(&own).unwrap();
    fs::write(own.join("script"), "#!/no/such/interpreter\n").unwrap();
    fs::set_permissions(own.join("script"), fs::Permissions::from_mode(0o755)).unwrap();
    for (number, spec, expected) in [
        (1, missing, "no program \"no-such-program\" in the PATH of n1".to_owned()),
        (2, folder, "cannot enter the working folder /no/such/folder: No such file".to_owned()),
        (3, forbidden, "cannot run /etc/passwd: Permission denied".to_owned()),
        (4, script, "cannot run ./script: the interpreter".to_owned()),
    ] {
        let exit = node.run_to_end(number, &spec).await;
        let ExitHow::StartFailed(why) = &exit.how else { panic!("{exit:?}") };
        assert!(why.contains(&expected), "{why}");
        assert_eq!(exit.ran, Duration::ZERO);
        // Where a program was looked for is evidence: it stands beside the message and not in it.
        let evidence = exit.stderr.unwrap_or_default();
        assert_eq!(evidence.starts_with("the PATH of n1: /"), number == 1, "{evidence}");
        assert!(!why.contains(":/"), "{why}");
    }
    node.leave().await;
}

#[tokio::test]
async fn helpers_in_sessions_of_their_own_die_with_the_main_process() {
    let mut node = Node::launch().await;
    let script = "setsid sleep 600 & setsid sh -c 'setsid sleep 600 & sleep 600' & \
                  until [ $(grep -lsz PANDO_MARK=$PANDO_MARK /proc/[0-9]*/environ | wc -l) -ge 5 ]; do :; done; exit 4";
    let exit = node.run_to_end(1, &sh(script)).await;
    assert_eq!(exit.how, ExitHow::Code(4));
    assert!(node.left().is_empty(), "gone before the exit was reported");
    node.leave().await;
}

#[tokio::test]
async fn a_child_begins_with_a_clean_slate() {
    let mut node = Node::launch().await;
    let script = "env | cut -d= -f1 | sort | tr '\\n' ' '; echo; ls /proc/self/fd | tr '\\n' ' '; echo; \
                  cat /proc/self/oom_score_adj; grep -E 'Sig(Blk|Ign)' /proc/self/status | cut -f2; pwd; \
                  readlink /proc/self/fd/0; ps -o sid= -p $$ | tr -d ' '; echo $$";
    let exit = node.run_to_end(1, &sh(script)).await;
    assert_eq!(exit.how, ExitHow::Code(0), "{:?}", exit.stderr);
    let lines = node.lines(100);
    let names: BTreeSet<&str> = lines[0].split_whitespace().collect();
    // The shell adds the last three by itself.
    let allowed = "PATH HOME LANG TZ PANDO_PATH PANDO_INCARNATION PANDO_NODE PANDO_TREE PANDO_SESSION PANDO_MARK PWD OLDPWD \
                   SHLVL _";
    assert!(names.iter().all(|name| allowed.split_whitespace().any(|known| known == *name)), "{names:?}");
    // The fourth is the folder that `ls` reads.
    assert_eq!(lines[1].trim(), "0 1 2 3");
    assert_eq!(lines[2..4], ["500", "0000000000000000"]);
    // The C library keeps 32 and 33 for itself, and lets nobody reset them.
    let ignored = u64::from_str_radix(&lines[4], 16).unwrap() & !(0b11 << 31);
    assert_eq!(ignored, 0, "{}", lines[4]);
    assert_eq!(PathBuf::from(&lines[5]), node.data.path().join("work/shop/web").canonicalize().unwrap());
    assert_eq!(lines[6], "/dev/null");
    assert_eq!(lines[7], lines[8], "a session of its own");
    node.leave().await;
}

#[tokio::test]
async fn a_stop_is_polite_for_as_long_as_its_grace_and_then_it_is_not() {
    let mut node = Node::launch().await;
    let mut polite = sh("trap 'exit 0' TERM; echo up; while :; do sleep 0.01; done");
    polite.shutdown = Shutdown::Grace(LIMIT);
    node.start(1, &polite);
    node.wait_for_line("up").await;
    node.children.stop(Incarnation(1));
    assert_eq!(node.exit_of(1).await.how, ExitHow::Code(0));

    let mut deaf = sh("trap '' TERM; echo deaf; while :; do sleep 0.01; done");
    deaf.shutdown = Shutdown::Grace(Duration::from_millis(200));
    node.start(2, &deaf);
    node.wait_for_line("deaf").await;
    let asked = Instant::now();
    node.children.stop(Incarnation(2));
    let exit = node.exit_of(2).await;
    assert_eq!((exit.how, exit.out_of_memory), (ExitHow::Signal(Signal::KILL), OutOfMemory::No));
    assert!(asked.elapsed() >= Duration::from_millis(200));
    node.leave().await;
}

#[tokio::test]
async fn a_signal_reaches_the_main_process_and_is_refused_without_one() {
    let mut node = Node::launch().await;
    node.start(1, &sh("trap 'exit 9' USR1; echo up; while :; do sleep 0.01; done"));
    let pid = node.pid_of(1).await;
    node.wait_for_line("up").await;
    assert_eq!(node.children.signal(Incarnation(1), Signal(10)).await, Ok(pid));
    assert_eq!(node.exit_of(1).await.how, ExitHow::Code(9));
    let refused = node.children.signal(Incarnation(1), Signal(10)).await;
    assert_eq!(refused, Err(SignalError::NotRunning(Incarnation(1))));
    node.leave().await;
}

#[tokio::test]
async fn at_its_kill_time_a_session_dies_for_good() {
    let mut node = Node::launch().await;
    node.start(1, &sh("setsid sleep 600 & sleep 600"));
    node.pid_of(1).await;
    let kill_at = BootTime::now();
    // A renewal takes nothing back, so the session needs a kill time of its own from the start.
    let session = SessionId(2);
    node.children.renew(session, BootTime::now().plus(Duration::from_secs(1)));
    node.start_under(session, 2, &sh("setsid sleep 600 & sleep 600"));
    node.pid_of(2).await;
    node.wait_for("the fence", |event| *event == ChildEvent::Fenced { session }).await;
    assert!(BootTime::now().since(kill_at) >= Duration::from_secs(1));
    assert_eq!(node.exit_of(2).await.how, ExitHow::Signal(Signal::KILL));
    node.wait_for("the end", |event| *event == ChildEvent::SessionGone { session }).await;
    node.children.renew(session, BootTime::now().plus(LIMIT));
    node.start_under(session, 3, &sh("sleep 600"));
    node.wait_for("the refusal", |event| matches!(event, ChildEvent::NeverStarted { incarnation: Incarnation(3), .. }))
        .await;
    node.children.end_session(SESSION);
    assert_eq!(node.exit_of(1).await.how, ExitHow::Signal(Signal::KILL));
    node.wait_for("the end of the first", |event| *event == ChildEvent::SessionGone { session: SESSION }).await;
    assert!(node.left().is_empty());
    node.leave().await;
}

#[tokio::test]
async fn the_tree_of_a_killed_reaper_is_killed_and_named() {
    let mut node = Node::launch().await;
    node.start(1, &sh("setsid sh -c 'setsid sleep 600 & sleep 600' & echo up; sleep 600"));
    let pid = node.pid_of(1).await;
    node.wait_for_line("up").await;
    kill(parent(pid), "KILL");
    let exit = node.exit_of(1).await;
    assert_eq!(exit.how, ExitHow::ReaperLost);
    assert!(node.left().is_empty());
    let exit = node.run_to_end(2, &sh("exit 0")).await;
    assert_eq!(exit.how, ExitHow::Code(0), "the guard goes on");
    node.leave().await;
}

#[tokio::test]
async fn a_stopped_reaper_does_not_hold_up_a_kill() {
    let mut node = Node::launch().await;
    node.start(1, &sh("sleep 600"));
    let pid = node.pid_of(1).await;
    kill(parent(pid), "STOP");
    node.children.kill(Incarnation(1));
    assert_eq!(node.exit_of(1).await.how, ExitHow::Signal(Signal::KILL));
    assert!(node.left().is_empty());
    node.leave().await;
}

#[tokio::test]
async fn when_the_guard_dies_everything_dies_and_the_lock_stays_held() {
    let mut node = Node::launch().await;
    node.start(1, &sh("setsid sh -c 'setsid sleep 600 & sleep 600' & echo up; sleep 600"));
    let pid = node.pid_of(1).await;
    node.wait_for_line("up").await;
    kill(parent(parent(pid)), "KILL");
    node.wait_for("the loss", |event| *event == ChildEvent::GuardLost { nothing_left: true }).await;
    assert!(node.left().is_empty());
    assert!(GuardLock::acquire(node.data.path(), Duration::ZERO).is_err());
    assert_eq!(node.children.signal(Incarnation(1), Signal::TERM).await, Err(SignalError::GuardLost));
}

#[tokio::test]
async fn when_the_guard_dies_a_stopped_reaper_is_killed_too() {
    let mut node = Node::launch().await;
    node.start(1, &sh("setsid sleep 600 & sleep 600"));
    let pid = node.pid_of(1).await;
    let (reaper, guard) = (parent(pid), parent(parent(pid)));
    kill(reaper, "STOP");
    kill(guard, "KILL");
    node.wait_for("the loss", |event| *event == ChildEvent::GuardLost { nothing_left: true }).await;
    assert!(node.left().is_empty());
}

#[tokio::test]
async fn a_guard_that_hangs_holds_up_no_node_that_goes() {
    let mut node = Node::launch().await;
    node.start(1, &sh("setsid sleep 600 & echo up; sleep 600"));
    let pid = node.pid_of(1).await;
    node.wait_for_line("up").await;
    kill(parent(parent(pid)), "STOP");
    let gone = tokio::time::timeout(LIMIT, node.children.shutdown(Duration::from_millis(100)));
    gone.await.expect("the node waits for a guard that hangs");
    assert!(node.left().is_empty());
}

#[tokio::test]
async fn when_the_node_dies_everything_dies_and_the_lock_is_free() {
    let mut node = Node::launch().await;
    node.start(1, &sh("setsid sh -c 'trap \"\" TERM; sleep 600' & trap '' TERM; sleep 600"));
    node.pid_of(1).await;
    let Node { data, mark, children, events } = node;
    drop((children, events));
    let lock = tokio::task::spawn_blocking({
        let data = data.path().to_owned();
        move || GuardLock::acquire(&data, LIMIT)
    });
    lock.await.unwrap().unwrap();
    assert!(find_marked(&mark).unwrap().is_empty(), "gone before the lock was free");
}

#[tokio::test]
async fn a_probe_makes_ready_and_leaves_nothing() {
    let mut node = Node::launch().await;
    let mut spec = sh("echo 1 > ready; sleep 600");
    spec.ready = Ready::Exec {
        command: shell("setsid sleep 600 & test -e ready"),
        within: LIMIT,
        interval: Duration::from_millis(10),
    };
    node.start(1, &spec);
    let pid = node.pid_of(1).await;
    node.wait_for("ready", |event| matches!(event, ChildEvent::Ready { incarnation: Incarnation(1), .. })).await;
    // The shell and its sleep.
    let count = node.left().len();
    assert!((1..=2).contains(&count), "{count} processes beside {pid}");
    node.leave().await;
}

#[tokio::test]
async fn what_is_not_ready_in_time_is_killed_as_unready() {
    let mut node = Node::launch().await;
    let within = Duration::from_millis(200);
    let mut spec = sh("sleep 600");
    spec.ready = Ready::Exec { command: shell("sleep 600"), within, interval: Duration::from_millis(10) };
    let exit = node.run_to_end(1, &spec).await;
    assert_eq!((exit.how, exit.healthy), (ExitHow::Unready(within), None));
    assert!(node.left().is_empty(), "the probe that hung is gone too");
    spec.ready = Ready::Notify { within };
    assert_eq!(node.run_to_end(2, &spec).await.how, ExitHow::Unready(within));
    node.leave().await;
}

#[tokio::test]
async fn a_child_says_itself_that_it_is_ready() {
    let mut node = Node::launch().await;
    let mut spec = sh("");
    spec.command = Command {
        program: std::env::current_exe().unwrap().to_str().unwrap().into(),
        args: ["--ignored", "--exact", "says_ready_to_its_notify_socket"].map(Into::into).into(),
    };
    spec.ready = Ready::Notify { within: LIMIT };
    node.start(1, &spec);
    node.wait_for("ready", |event| matches!(event, ChildEvent::Ready { incarnation: Incarnation(1), .. })).await;
    node.children.kill(Incarnation(1));
    assert!(node.exit_of(1).await.healthy.is_some());
    node.leave().await;
}

#[test]
#[ignore = "the child of another test"]
fn says_ready_to_its_notify_socket() {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram};
    let Ok(name) = std::env::var("NOTIFY_SOCKET") else { return };
    let address = SocketAddr::from_abstract_name(name.strip_prefix('@').unwrap()).unwrap();
    let socket = UnixDatagram::unbound().unwrap();
    socket.send_to_addr(b"STATUS=here\nREADY=1\n", &address).unwrap();
    loop {
        std::thread::park();
    }
}

#[tokio::test]
async fn output_is_on_disk_when_the_exit_is_reported() {
    let mut node = Node::launch().await;
    node.run_to_end(1, &sh("seq 1 20000; echo wrong >&2; printf unfinished")).await;
    let lines = node.lines(30_000);
    assert_eq!(lines.len(), 20_002, "none is lost");
    assert!(lines.contains(&"unfinished".to_owned()) && lines.contains(&"wrong".to_owned()));
    node.run_to_end(2, &sh("echo again")).await;
    assert_eq!(node.lines(1), ["again"]);
    node.leave().await;
}

#[tokio::test]
async fn an_incarnation_runs_once_and_older_ones_never() {
    let mut node = Node::launch().await;
    node.run_to_end(5, &sh("exit 0")).await;
    for number in [5, 4] {
        node.start(number, &sh("exit 0"));
        node.wait_for("the refusal", |event| {
            matches!(event, ChildEvent::NeverStarted { incarnation: Incarnation(other), .. } if *other == number)
        })
        .await;
    }
    node.leave().await;
}

#[tokio::test]
async fn many_runs_at_once_all_end_once() {
    let mut node = Node::launch().await;
    for number in 1..=40 {
        node.start_at(&format!("/shop/worker-{number}"), number, &sh("setsid sleep 600 & exit 1"));
    }
    let mut seen = BTreeSet::new();
    while seen.len() < 40 {
        let event = node.wait_for("an exit", |event| matches!(event, ChildEvent::Exited { .. })).await;
        let ChildEvent::Exited { incarnation, exit, .. } = event else { unreachable!() };
        assert_eq!(exit.how, ExitHow::Code(1));
        assert!(seen.insert(incarnation), "{incarnation} ended twice");
    }
    assert!(node.left().is_empty());
    node.leave().await;
}

#[tokio::test]
async fn a_worker_makes_its_run_ready_settles_and_is_accused_of_what_it_started() {
    let mut node = Node::launch().await;
    let mut spec = ProcessSpec { mailbox: Some(MailboxSpec::default()), ..sh("") };
    spec.command = own("works_on_messages");
    node.start(1, &spec);
    let mut kinds = Vec::new();
    loop {
        let event = node.wait_for("a word of the run", |_| true).await;
        kinds.extend(event_kind(&event));
        if let ChildEvent::WorkerReady { readiness, .. } = event {
            assert_eq!(readiness, Readiness { starts: true, prefetch: 16 });
            break;
        }
    }
    assert_eq!(kinds, ["started", "ready", "worker ready"]);
    node.children.hand(vec![message(1, 1, "one"), message(2, 1, "two"), message(3, 9, "for another run")]);
    let settled = node.settlements(2).await;
    let done = |hand, reply: &str| Settlement { hand, word: Word::Done { reply: Some(reply.into()) } };
    assert_eq!(settled, [done(1, "did one"), done(2, "did two")]);
    node.children.hand(vec![message(4, 1, "kill"), message(5, 1, "five")]);
    let event = node.wait_for("an exit", |event| matches!(event, ChildEvent::Exited { .. })).await;
    let ChildEvent::Exited { exit, started, .. } = event else { unreachable!() };
    assert_eq!((exit.how, started), (ExitHow::Signal(Signal::KILL), vec![4]));
    assert_eq!(fs::read_dir(node.data.path().join("sockets")).unwrap().count(), 0, "its socket is gone");
    node.leave().await;
}

#[tokio::test]
async fn a_worker_that_is_stopped_finishes_and_gives_back_before_its_end() {
    let mut node = Node::launch().await;
    let mut spec = ProcessSpec { mailbox: Some(MailboxSpec::default()), ..sh("") };
    spec.command = own("works_on_messages");
    spec.shutdown = Shutdown::Grace(LIMIT);
    // SIGURG, which does nothing by itself: the word is enough.
    spec.stop_signal = Signal(23);
    node.start(1, &spec);
    node.wait_for("ready", |event| matches!(event, ChildEvent::WorkerReady { .. })).await;
    node.children.hand(vec![message(1, 1, "until stop"), message(2, 1, "two")]);
    node.wait_for_line("it has begun").await;
    node.children.stop(Incarnation(1));
    let settled = node.settlements(2).await;
    let word = |hand| settled.iter().find(|settlement| settlement.hand == hand).map(|settlement| &settlement.word);
    assert!(matches!(word(1), Some(Word::Done { .. })), "{settled:?}");
    assert_eq!(word(2), Some(&Word::Returned));
    let event = node.wait_for("an exit", |event| matches!(event, ChildEvent::Exited { .. })).await;
    let ChildEvent::Exited { exit, started, .. } = event else { unreachable!() };
    assert_eq!((exit.how, started), (ExitHow::Code(0), vec![]));
    node.leave().await;
}

#[tokio::test]
async fn a_worker_that_hangs_closes_its_socket_or_talks_nonsense_is_killed() {
    let mut node = Node::launch().await;
    let limit = Duration::from_millis(300);
    let mailbox = Some(MailboxSpec { handling_timeout: limit, ..MailboxSpec::default() });
    let spec = ProcessSpec { mailbox, command: own("works_on_messages"), ..sh("") };
    for (number, word, expected, accused) in [
        (1, "hang", "Hung(300ms)", true),
        (2, "close", "Misbehaved(\"closed its socket\")", true),
        (3, "babble", "Misbehaved(\"too many lines", false),
    ] {
        node.start(number, &spec);
        let of_it = |event: &ChildEvent| matches!(event, ChildEvent::WorkerReady { incarnation, .. } if incarnation.0 == number);
        node.wait_for("ready", of_it).await;
        node.children.hand(vec![message(number, number, word)]);
        let event = node.wait_for("an exit", |event| matches!(event, ChildEvent::Exited { .. })).await;
        let ChildEvent::Exited { exit, started, .. } = event else { unreachable!() };
        assert!(format!("{:?}", exit.how).starts_with(expected), "{exit:?}");
        assert_eq!(started, if accused { vec![number] } else { vec![] }, "{word}");
    }
    node.leave().await;
}

fn event_kind(event: &ChildEvent) -> Option<&'static str> {
    match event {
        ChildEvent::Started { .. } => Some("started"),
        ChildEvent::Ready { .. } => Some("ready"),
        ChildEvent::WorkerReady { .. } => Some("worker ready"),
        _ => None,
    }
}

fn message(number: u64, run: u64, payload: &str) -> Hand {
    Hand {
        number,
        worker: web(),
        incarnation: Incarnation(run),
        id: format!("m{number}"),
        attempt: 1,
        life: 1,
        asks: true,
        headers: [].into(),
        payload: payload.into(),
    }
}

/// The command that runs one of the ignored tests here.
fn own(test: &str) -> Command {
    let program = std::env::current_exe().unwrap().to_str().unwrap().into();
    Command { program, args: ["--ignored", "--exact", "--nocapture", test].map(Into::into).into() }
}

#[test]
#[ignore = "the child of other tests"]
fn works_on_messages() {
    let Some(path) = std::env::var_os("PANDO_SOCKET") else { return };
    let stream = UnixStream::connect(path).unwrap();
    let mut lines =
        BufReader::new(stream.try_clone().unwrap()).split(b'\n').map(|line| ToWorker::parse(&line.unwrap()));
    let say = |word: FromWorker| {
        let mut line = Vec::new();
        word.write(&mut line);
        (&stream).write_all(&line).unwrap();
    };
    say(FromWorker::Ready { starts: true, prefetch: None });
    while let Some(Ok(ToWorker::Message(message))) = lines.next() {
        let id = message.id;
        say(FromWorker::Started { id: id.clone() });
        match std::str::from_utf8(message.payload.bytes()).unwrap() {
            "kill" => kill(std::process::id(), "KILL"),
            "hang" => park(),
            "close" => {
                stream.shutdown(std::net::Shutdown::Both).unwrap();
                park();
            }
            "babble" => {
                (&stream).write_all("babble\n".repeat(20).as_bytes()).unwrap();
                park();
            }
            "until stop" => {
                println!("it has begun");
                let Some(Ok(ToWorker::Message(other))) = lines.next() else { panic!("no other message") };
                assert_eq!(lines.next(), Some(Ok(ToWorker::Stop)));
                say(FromWorker::Done { ids: vec![id], reply: None });
                return say(FromWorker::Returned { ids: vec![other.id] });
            }
            text => say(FromWorker::Done { ids: vec![id], reply: Some(format!("did {text}").as_str().into()) }),
        }
    }
}

fn park() {
    loop {
        std::thread::park();
    }
}

struct Node {
    data: TempDir,
    mark: String,
    children: Children,
    events: mpsc::Receiver<ChildEvent>,
}

impl Node {
    async fn launch() -> Self {
        let data = tempfile::tempdir().unwrap();
        let mark = mark(data.path()).unwrap();
        let lock = GuardLock::acquire(data.path(), Duration::ZERO).unwrap();
        let mut options = Options::new("n1".parse().unwrap(), data.path().into(), mark.clone(), lock).unwrap();
        options.program = PROGRAM.into();
        let (children, events) = Children::launch(options).await.unwrap();
        children.renew(SESSION, BootTime::now().plus(Duration::from_secs(600)));
        Self { data, mark, children, events }
    }

    fn start(&self, number: u64, spec: &ProcessSpec) {
        self.start_under(SESSION, number, spec);
    }

    fn start_under(&self, session: SessionId, number: u64, spec: &ProcessSpec) {
        let spec = Arc::new(spec.clone());
        self.children.start(Start { path: web(), incarnation: Incarnation(number), session, spec });
    }

    fn start_at(&self, path: &str, number: u64, spec: &ProcessSpec) {
        let (path, spec) = (path.parse().unwrap(), Arc::new(spec.clone()));
        self.children.start(Start { path, incarnation: Incarnation(number), session: SESSION, spec });
    }

    async fn run_to_end(&mut self, number: u64, spec: &ProcessSpec) -> Exit {
        self.start(number, spec);
        self.exit_of(number).await
    }

    /// What workers settled from here on, at least so many.
    async fn settlements(&mut self, count: usize) -> Vec<Settlement> {
        let mut settled = Vec::new();
        while settled.len() < count {
            let event = self.wait_for("settlements", |event| matches!(event, ChildEvent::Settled { .. })).await;
            let ChildEvent::Settled { settlements, .. } = event else { unreachable!() };
            settled.extend(settlements);
        }
        settled
    }

    async fn exit_of(&mut self, number: u64) -> Exit {
        let event = self.wait_for(
            "an exit",
            |event| matches!(event, ChildEvent::Exited { incarnation: Incarnation(other), .. } if *other == number),
        );
        let ChildEvent::Exited { exit, .. } = event.await else { unreachable!() };
        exit
    }

    async fn pid_of(&mut self, number: u64) -> u32 {
        let event = self.wait_for(
            "a start",
            |event| matches!(event, ChildEvent::Started { incarnation: Incarnation(other), .. } if *other == number),
        );
        let ChildEvent::Started { pid, .. } = event.await else { unreachable!() };
        pid
    }

    async fn wait_for(&mut self, what: &str, fits: impl Fn(&ChildEvent) -> bool) -> ChildEvent {
        let mut seen = Vec::new();
        let until = tokio::time::Instant::now() + LIMIT;
        loop {
            match tokio::time::timeout_at(until, self.events.recv()).await {
                Ok(Some(event)) if fits(&event) => return event,
                Ok(Some(event)) => seen.push(event),
                ended => panic!("{what} did not come ({ended:?}); came: {seen:#?}"),
            }
        }
    }

    async fn wait_for_line(&self, line: &str) {
        let until = Instant::now() + LIMIT;
        while !self.lines(1000).iter().any(|found| found == line) {
            assert!(Instant::now() < until, "no line {line:?} in {:?}", self.lines(1000));
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    fn lines(&self, count: usize) -> Vec<String> {
        let lines = logs::tail(self.data.path(), &"n1".parse().unwrap(), &web(), count).unwrap();
        lines.into_iter().map(|line| line.line).collect()
    }

    fn left(&self) -> Vec<i32> {
        find_marked(&self.mark).unwrap().into_iter().map(|pid| pid.as_raw_nonzero().get()).collect()
    }

    async fn leave(self) {
        tokio::time::timeout(LIMIT, self.children.shutdown(Duration::ZERO)).await.expect("all is gone in time");
        assert!(self.left().is_empty());
        // A process that another test of this program is just forking has a copy until its exec.
        GuardLock::acquire(self.data.path(), LIMIT).expect("guard and reapers are gone");
    }
}

fn web() -> Path {
    "/shop/web".parse().unwrap()
}

fn shell(script: &str) -> Command {
    Command { program: "sh".into(), args: vec!["-c".into(), script.into()] }
}

fn sh(script: &str) -> ProcessSpec {
    ProcessSpec {
        command: shell(script),
        env: [].into(),
        cwd: None,
        shutdown: Shutdown::Grace(Duration::from_secs(5)),
        stop_signal: Signal::TERM,
        normal_exit: [0].into(),
        intensity: None,
        slots: 1,
        ready: Ready::Started,
        place: Place::default(),
        on_exit: Vec::new(),
        on_disconnect: OnDisconnect::Stop,
        mailbox: None,
    }
}

fn parent(pid: u32) -> u32 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit_once(')').unwrap().1.split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn kill(pid: u32, signal: &str) {
    let status = StdCommand::new("kill").args(["-s", signal, &pid.to_string()]).status().unwrap();
    assert!(status.success(), "kill -s {signal} {pid}");
}
