//! What is read from a spec file.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use pando_protocol::spec::{
    Attempts, AutoShutdown, Backoff, ChildSpec, Command, ExitAction, ExitMatch, ExitRule, Intensity, MailboxSpec,
    OnDisconnect, Place, Pool, ProcessSpec, Ready, Restart, Shutdown, Signal, Strategy, SupervisorSpec, TreeSpec, Work,
};
use pando_protocol::spec_file;

use super::{CHILD, fixture, toml};

#[test]
fn the_complete_spec_says_the_defaults() {
    let tree = spec_file::read(&fixture("shop-complete.toml")).unwrap_or_else(|error| panic!("{error}"));
    let ids: Vec<&str> = tree.root.children.iter().map(|child| child.id.as_str()).collect();
    assert_eq!(ids, ["web", "ingest", "orders"]);
    // The page says that the values shown are the defaults, so a child that says nothing else is the same.
    let Work::Process(web) = &tree.root.children[0].work else { panic!("web is a process") };
    let Work::Pool(orders) = &tree.root.children[2].work else { panic!("orders is a pool") };
    let same = ProcessSpec {
        command: web.command.clone(),
        env: web.env.clone(),
        cwd: web.cwd.clone(),
        ready: web.ready.clone(),
        place: web.place.clone(),
        on_exit: web.on_exit.clone(),
        mailbox: None,
        ..ProcessSpec::clone(&orders.process)
    };
    assert_eq!(**web, same);
    assert_eq!((orders.count, orders.intensity), (3, Intensity::default()));
    assert_eq!(orders.process.mailbox, Some(MailboxSpec::default()));
    assert_eq!(tree.root.children[0].backoff, tree.root.children[2].backoff);
    assert_eq!(tree.root.intensity, Intensity::default());
    assert_eq!(tree.warnings(), []);
}

#[test]
fn every_key_of_a_toml_file_reaches_the_spec() {
    let tree = spec_file::read(&fixture("shop-every-key.toml")).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(tree, every_key());
}

#[test]
fn json_has_the_same_shape_as_toml() {
    let tree = spec_file::read(&fixture("shop-every-key.json")).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(tree, every_key());
}

fn every_key() -> TreeSpec {
    let root = SupervisorSpec {
        strategy: Strategy::OneForOne,
        intensity: Intensity::Unlimited,
        auto_shutdown: AutoShutdown::AnySignificant,
        colocate: false,
        children: vec![web(), ingest(), orders()],
    };
    TreeSpec { name: "shop".parse().unwrap(), root }
}

fn web() -> ChildSpec {
    let backoff = Backoff {
        base: Duration::from_millis(20),
        cap: Duration::from_millis(1_500),
        factor: 3,
        jitter: 10,
        reset_after: Duration::from_secs(60),
    };
    let rule = |when, action| ExitRule { when, action };
    let process = ProcessSpec {
        command: command(&["shop-web", "--port", "8080"]),
        env: BTreeMap::from([("GREETING".into(), "hello".into()), ("LANG".into(), "C".into())]),
        cwd: Some("work".into()),
        shutdown: Shutdown::BrutalKill,
        stop_signal: Signal(2),
        normal_exit: BTreeSet::from([0, 3]),
        intensity: Some(Intensity::Limited { max_restarts: 2, within: Duration::from_secs(30) }),
        slots: 4,
        ready: Ready::Exec {
            command: command(&["shop-web", "--check"]),
            within: Duration::from_secs(4),
            interval: Duration::from_millis(100),
        },
        place: Place {
            require: BTreeSet::from(["disk=ssd".parse().unwrap()]),
            prefer: BTreeSet::from(["zone=a".parse().unwrap(), "zone=b".parse().unwrap()]),
            spread: Some("zone".into()),
        },
        on_exit: vec![
            rule(ExitMatch::Code(78), ExitAction::Stop),
            rule(ExitMatch::Signal(Signal(3)), ExitAction::Escalate),
            rule(ExitMatch::Code(4), ExitAction::Ignore),
            rule(ExitMatch::Signal(Signal(1)), ExitAction::Restart),
        ],
        on_disconnect: OnDisconnect::Stop,
        mailbox: None,
    };
    let work = Work::Process(Arc::new(process));
    ChildSpec { id: "web".parse().unwrap(), restart: Restart::Transient, backoff, significant: true, work }
}

fn ingest() -> ChildSpec {
    let connection = ProcessSpec {
        shutdown: Shutdown::Infinity,
        ready: Ready::Notify { within: Duration::from_secs(10) },
        ..ProcessSpec::new(command(&["shop-feed"]))
    };
    let subscription = ProcessSpec {
        shutdown: Shutdown::Grace(Duration::from_millis(2_500)),
        intensity: Some(Intensity::Unlimited),
        ..ProcessSpec::new(command(&["shop-feed", "subscription"]))
    };
    let process = |id: &str, spec| ChildSpec {
        id: id.parse().unwrap(),
        restart: Restart::Permanent,
        backoff: Backoff::default(),
        significant: false,
        work: Work::Process(Arc::new(spec)),
    };
    let supervisor = SupervisorSpec {
        strategy: Strategy::RestForOne,
        intensity: Intensity::Limited { max_restarts: 3, within: Duration::from_secs(3_600) },
        auto_shutdown: AutoShutdown::AllSignificant,
        colocate: false,
        children: vec![process("connection", connection), process("subscription", subscription)],
    };
    ChildSpec {
        id: "ingest".parse().unwrap(),
        restart: Restart::Temporary,
        backoff: Backoff { base: Duration::from_millis(100), ..Backoff::default() },
        significant: true,
        work: Work::Supervisor(supervisor),
    }
}

fn orders() -> ChildSpec {
    let mailbox = MailboxSpec {
        max_attempts: Attempts::Limited(7),
        retry_delay: Duration::from_millis(100),
        handling_timeout: Duration::from_secs(20),
        prefetch: 32,
        max_messages: 2_000,
        max_bytes: 8 << 20,
        suspect_after: 6,
        max_node_losses: 3,
    };
    let process = ProcessSpec { mailbox: Some(mailbox), ..ProcessSpec::new(command(&["shop-orders"])) };
    let intensity = Intensity::Limited { max_restarts: 4, within: Duration::from_secs(20) };
    ChildSpec {
        id: "orders".parse().unwrap(),
        restart: Restart::Permanent,
        backoff: Backoff::default(),
        significant: false,
        work: Work::Pool(Pool { count: 2, intensity, process: Arc::new(process) }),
    }
}

fn command(words: &[&str]) -> Command {
    Command { program: words[0].into(), args: words[1..].iter().map(|word| (*word).into()).collect() }
}

#[test]
fn groups_stay_together_unless_the_spec_says_otherwise() {
    let colocate = |text: &str| toml(&CHILD.replace("[[", &format!("{text}\n[["))).unwrap().root.colocate;
    assert!(!colocate("strategy = \"one_for_one\""));
    assert!(colocate("strategy = \"one_for_all\""));
    assert!(colocate("strategy = \"rest_for_one\""));
    assert!(!colocate("strategy = \"rest_for_one\"\ncolocate = false"));
    assert!(colocate("colocate = true"));
}

#[test]
fn a_signal_goes_by_name_or_number() {
    let signal = |value: &str| {
        let text = format!("{CHILD}stop_signal = {value}\non_exit = [{{ signal = {value}, do = \"stop\" }}]");
        let tree = toml(&text).unwrap_or_else(|error| panic!("{error}"));
        let Work::Process(web) = &tree.root.children[0].work else { panic!("web is a process") };
        (web.stop_signal, web.on_exit[0].when)
    };
    for value in ["12", "\"12\"", "\"SIGUSR2\""] {
        assert_eq!(signal(value), (Signal(12), ExitMatch::Signal(Signal(12))), "{value}");
    }
}
