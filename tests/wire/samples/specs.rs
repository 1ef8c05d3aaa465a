//! Trees and what they run.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use pando_protocol::spec::{
    Attempts, AutoShutdown, Backoff, ChildSpec, Command, ExitAction, ExitMatch, ExitRule, Intensity, MailboxSpec,
    OnDisconnect, Place, Pool, ProcessSpec, Ready, Restart, Shutdown, Signal, Strategy, SupervisorSpec, TreeSpec, Work,
};

pub fn trees() -> Vec<TreeSpec> {
    let mut children: Vec<ChildSpec> =
        processes().into_iter().map(|spec| child(Work::Process(Arc::new(spec)))).collect();
    let inner = SupervisorSpec {
        strategy: Strategy::RestForOne,
        intensity: Intensity::Unlimited,
        auto_shutdown: AutoShutdown::AllSignificant,
        colocate: true,
        children: children.clone(),
    };
    children.push(child(Work::Supervisor(inner)));
    let worker = processes().into_iter().find(|process| process.mailbox.is_some()).unwrap();
    children.push(child(Work::Pool(Pool { count: 3, intensity: Intensity::default(), process: Arc::new(worker) })));
    vec![tree(children), tree(vec![])]
}

pub fn processes() -> Vec<ProcessSpec> {
    let plain = ProcessSpec::new(program(&["shop-web", "--port", "8080"]));
    let rule = |when, action| ExitRule { when, action };
    let rich = ProcessSpec {
        env: BTreeMap::from([("GREETING".into(), "hello".into())]),
        cwd: Some("work".into()),
        shutdown: Shutdown::BrutalKill,
        normal_exit: BTreeSet::from([0, 3]),
        intensity: Some(Intensity::default()),
        ready: Ready::Exec {
            command: program(&["shop-web", "--check"]),
            within: Duration::from_secs(10),
            interval: Duration::from_millis(200),
        },
        place: Place {
            require: BTreeSet::from(["disk=ssd".parse().unwrap()]),
            prefer: BTreeSet::from(["zone=a".parse().unwrap()]),
            spread: Some("zone".into()),
        },
        on_exit: vec![
            rule(ExitMatch::Code(78), ExitAction::Stop),
            rule(ExitMatch::Signal(Signal(3)), ExitAction::Escalate),
            rule(ExitMatch::Code(1), ExitAction::Ignore),
            rule(ExitMatch::Code(2), ExitAction::Restart),
        ],
        ..plain.clone()
    };
    let notifying = ProcessSpec {
        on_disconnect: OnDisconnect::Keep,
        shutdown: Shutdown::Infinity,
        ready: Ready::Notify { within: Duration::from_secs(10) },
        ..plain.clone()
    };
    let worker = ProcessSpec { mailbox: Some(mailbox()), ..plain.clone() };
    let patient = MailboxSpec { max_attempts: Attempts::Unlimited, retry_delay: Duration::from_secs(1), ..mailbox() };
    let patient = ProcessSpec { mailbox: Some(patient), ..plain.clone() };
    vec![plain, rich, notifying, worker, patient]
}

pub fn mailbox() -> MailboxSpec {
    MailboxSpec {
        max_attempts: Attempts::Limited(5),
        retry_delay: Duration::from_millis(50),
        handling_timeout: Duration::from_secs(20),
        prefetch: 100,
        max_messages: 70_000,
        max_bytes: 32 << 20,
        suspect_after: 4,
        max_node_losses: 3,
    }
}

fn program(words: &[&str]) -> Command {
    Command { program: words[0].into(), args: words[1..].iter().map(|word| (*word).into()).collect() }
}

pub fn child(work: Work) -> ChildSpec {
    ChildSpec {
        id: "web".parse().unwrap(),
        restart: Restart::Transient,
        backoff: Backoff::default(),
        significant: true,
        work,
    }
}

pub fn tree(children: Vec<ChildSpec>) -> TreeSpec {
    let root = SupervisorSpec {
        strategy: Strategy::OneForOne,
        intensity: Intensity::default(),
        auto_shutdown: AutoShutdown::Never,
        colocate: false,
        children,
    };
    TreeSpec { name: "t".parse().unwrap(), root }
}
