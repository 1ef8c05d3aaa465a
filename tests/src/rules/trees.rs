//! Trees drawn at random: one to four levels, every restart type, budgets small enough to be spent.

use std::sync::Arc;
use std::time::Duration;

use pando_protocol::spec::{
    AutoShutdown, ChildSpec, ExitAction, ExitMatch, ExitRule, Intensity, Label, OnDisconnect, ProcessSpec, Restart,
    Shutdown, Signal, Strategy, SupervisorSpec, TreeSpec, Work,
};

use super::dice::Dice;
use super::specs::{budget, nested, permanent, process, tree};

/// The labels that nodes may have and children may ask for.
pub const LABELS: [&str; 4] = ["zone=a", "zone=b", "zone=c", "disk=ssd"];
/// The longest delay that a drawn spec asks for.
pub const LONGEST_DELAY: Duration = Duration::from_secs(2);

/// A tree that passes every check.
pub fn draw(dice: &mut Dice, name: &str) -> TreeSpec {
    for _ in 0..20 {
        let depth = 1 + dice.below(4);
        let children = draw_children(dice, depth, 4, "c");
        let spec = tree(name, |root| edit_supervisor(dice, root), children);
        if let Some(spec) = checked(spec) {
            return spec;
        }
    }
    tree(name, |_| {}, vec![permanent("a"), permanent("b")])
}

/// A tree with more children on one level than may start at once after a loss: below its root, or in a pool beside another child.
pub fn draw_wide(dice: &mut Dice, name: &str) -> TreeSpec {
    let count = 55 + dice.below(20);
    let strategy = |roll: usize| match roll % 4 {
        0 => Strategy::OneForAll,
        1 => Strategy::RestForOne,
        _ => Strategy::OneForOne,
    };
    // No die is thrown for these, so that other draws stay what they were.
    let (outer, inner) = (strategy(count), strategy(count / 4));
    let wide = |root: &mut SupervisorSpec, strategy| (root.intensity, root.strategy) = (Intensity::Unlimited, strategy);
    let children = (0..count).map(|n| permanent(&format!("w{n}"))).collect();
    match count % 3 {
        0 => {
            let pool = nested("pool", |_, pool| wide(pool, inner), children);
            tree(name, |root| wide(root, outer), vec![permanent("a"), pool])
        }
        _ => tree(name, |root| wide(root, outer), children),
    }
}

/// A tree like this one with one thing changed; the same where the change would not pass.
pub fn vary(dice: &mut Dice, spec: &TreeSpec) -> TreeSpec {
    let mut changed = spec.clone();
    vary_supervisor(dice, &mut changed.root, 3);
    checked(changed).unwrap_or_else(|| spec.clone())
}

fn checked(mut spec: TreeSpec) -> Option<TreeSpec> {
    match_significance(&mut spec.root);
    match_colocation(&mut spec.root, false);
    match_keep(&mut spec.root, false);
    spec.check().is_ok().then_some(spec)
}

/// Significant children fit their supervisor and their restart type, or are none.
fn match_significance(supervisor: &mut SupervisorSpec) {
    for child in &mut supervisor.children {
        let can = supervisor.auto_shutdown != AutoShutdown::Never && child.restart != Restart::Permanent;
        child.significant &= can;
        if let Work::Supervisor(below) = &mut child.work {
            match_significance(below);
        }
    }
}

/// What stays together does not spread.
fn match_colocation(supervisor: &mut SupervisorSpec, together: bool) {
    let together = together || supervisor.colocate;
    for child in &mut supervisor.children {
        match &mut child.work {
            Work::Supervisor(below) => match_colocation(below, together),
            Work::Process(process) if together => Arc::make_mut(process).place.spread = None,
            Work::Process(_) | Work::Pool(_) => {}
        }
    }
}

/// What may be unreachable stands alone.
fn match_keep(supervisor: &mut SupervisorSpec, together: bool) {
    let together = together || supervisor.colocate || supervisor.strategy.is_group();
    for child in &mut supervisor.children {
        match &mut child.work {
            Work::Supervisor(below) => match_keep(below, together),
            Work::Process(process) if together => Arc::make_mut(process).on_disconnect = OnDisconnect::Stop,
            Work::Process(_) | Work::Pool(_) => {}
        }
    }
}

fn draw_children(dice: &mut Dice, depth: usize, most: usize, prefix: &str) -> Vec<ChildSpec> {
    (0..1 + dice.below(most)).map(|n| draw_child(dice, depth, &format!("{prefix}{n}"))).collect()
}

fn draw_child(dice: &mut Dice, depth: usize, id: &str) -> ChildSpec {
    let mut child = if depth > 1 && dice.once_in(2) {
        let below = draw_children(dice, depth - 1, 3, "d");
        nested(id, |_, spec| edit_supervisor(dice, spec), below)
    } else {
        process(id, |_, spec| edit_process(dice, spec))
    };
    edit_child(dice, &mut child);
    child
}

fn edit_child(dice: &mut Dice, child: &mut ChildSpec) {
    child.restart = match dice.below(6) {
        0 => Restart::Temporary,
        1 | 2 => Restart::Transient,
        _ => Restart::Permanent,
    };
    child.significant = dice.once_in(2);
    child.backoff.base = Duration::from_millis([10, 50, 200][dice.below(3)]);
    child.backoff.cap = [Duration::from_millis(400), Duration::from_secs(1), LONGEST_DELAY][dice.below(3)];
    child.backoff.reset_after = Duration::from_secs(1 + dice.below(5) as u64);
}

fn edit_supervisor(dice: &mut Dice, spec: &mut SupervisorSpec) {
    spec.intensity = draw_intensity(dice);
    spec.auto_shutdown = match dice.below(6) {
        0 => AutoShutdown::AnySignificant,
        1 => AutoShutdown::AllSignificant,
        _ => AutoShutdown::Never,
    };
    spec.strategy = match dice.below(5) {
        0 | 1 => Strategy::OneForAll,
        2 => Strategy::RestForOne,
        _ => Strategy::OneForOne,
    };
    spec.colocate = dice.once_in(if spec.strategy.is_group() { 2 } else { 8 });
}

fn draw_intensity(dice: &mut Dice) -> Intensity {
    match dice.below(5) {
        0 => Intensity::Unlimited,
        1 => budget(0, 1),
        2 => budget(1, 5),
        3 => budget(2, 10),
        _ => budget(3, 30),
    }
}

fn edit_process(dice: &mut Dice, spec: &mut ProcessSpec) {
    if dice.once_in(4) {
        spec.intensity = Some(draw_intensity(dice));
    }
    spec.slots = 1 + u32::from(dice.once_in(4));
    if dice.once_in(4) {
        spec.on_exit = vec![draw_rule(dice)];
    }
    if dice.once_in(4) {
        spec.normal_exit = [3].into();
    }
    if dice.once_in(5) {
        spec.place.require.insert(draw_label(dice));
    }
    if dice.once_in(4) {
        spec.place.prefer.insert(draw_label(dice));
    }
    if dice.once_in(2) {
        spec.place.spread = Some("zone".into());
    }
    if dice.once_in(3) {
        spec.on_disconnect = OnDisconnect::Keep;
    }
}

fn draw_rule(dice: &mut Dice) -> ExitRule {
    let when = match dice.below(3) {
        0 => ExitMatch::Code(7),
        1 => ExitMatch::Code(1),
        _ => ExitMatch::Signal(Signal::KILL),
    };
    let actions = [ExitAction::Ignore, ExitAction::Restart, ExitAction::Stop, ExitAction::Escalate];
    ExitRule { when, action: actions[dice.below(4)] }
}

fn draw_label(dice: &mut Dice) -> Label {
    LABELS[dice.below(LABELS.len())].parse().expect("a label")
}

fn vary_supervisor(dice: &mut Dice, spec: &mut SupervisorSpec, depth: usize) {
    let at = dice.below(spec.children.len());
    match dice.below(8) {
        0 => spec.intensity = draw_intensity(dice),
        1 if spec.children.len() > 1 => _ = spec.children.remove(at),
        2 => {
            let id = format!("e{}", dice.below(3));
            if spec.children.iter().all(|child| child.id.as_str() != id) {
                spec.children.insert(at, draw_child(dice, depth, &id));
            }
        }
        3 => edit_child(dice, &mut spec.children[at]),
        4 => spec.children.rotate_left(1),
        5 => edit_supervisor(dice, spec),
        _ => match &mut spec.children[at].work {
            Work::Supervisor(below) => vary_supervisor(dice, below, depth.saturating_sub(1)),
            Work::Process(process) => {
                let process = Arc::make_mut(process);
                edit_process(dice, process);
                process.shutdown = Shutdown::Grace(Duration::from_secs(1 + dice.below(5) as u64));
            }
            Work::Pool(_) => {}
        },
    }
}
