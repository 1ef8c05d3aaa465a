//! What people see of mailboxes. Looking never changes anything.

use pando_protocol::ids::Path;
use pando_protocol::mail::{AttemptEnd, AttemptRow, DeadLetterRow, Letters, MailboxRow, Shown, WorkerRow};
use pando_protocol::message::Asked;
use pando_protocol::rejection::Rejection;

use super::letters::select;
use super::sending::any_mailbox;
use super::{Attempt, DeadLetter, KeptReply, Mailbox, Message, Payer, Worker};
use crate::change::human;
use crate::cluster::Cluster;

/// Most dead letters that one question is answered with.
pub const LETTERS_SHOWN: usize = 1_000;
/// No dead letter more is added to an answer of so many bytes: with the largest one on top it is far from the bound of a frame.
const LETTERS_BYTES: usize = 1 << 20;
/// What a dead letter or an attempt takes in an answer beyond its texts.
const ROW_OVERHEAD: usize = 256;

/// The mailboxes at and below a path, or all, in order of path.
///
/// # Errors
/// A path that is neither a member nor a mailbox.
pub fn mailboxes(cluster: &Cluster, from: Option<&Path>) -> Result<Vec<MailboxRow>, Rejection> {
    let is_meant = |path: &Path| from.is_none_or(|from| path.is_within(from));
    let rows: Vec<_> = cluster.mail.iter().filter(|(path, _)| is_meant(path)).map(|(path, _)| path).collect();
    if let Some(from) = from.filter(|from| rows.is_empty() && cluster.supervisor(from).is_none()) {
        any_mailbox(cluster, from)?;
    }
    Ok(rows.into_iter().filter_map(|path| Some(row(cluster, path, cluster.mailbox(path)?))).collect())
}

fn row(cluster: &Cluster, path: &Path, mailbox: &Mailbox) -> MailboxRow {
    let now = cluster.head.now;
    let millis = |age: std::time::Duration| u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
    let oldest = mailbox.messages.values().find(|message| !matches!(message.state, super::State::Held(_)));
    MailboxRow {
        path: path.clone(),
        enqueued: mailbox.ledger.enqueued,
        done: mailbox.ledger.done,
        dead: mailbox.dead.len() as u64,
        waiting: mailbox.waiting(),
        in_flight: mailbox.in_flight(),
        purged: mailbox.ledger.purged,
        delayed: mailbox.queues.delayed.len() as u64,
        undecided: mailbox.queues.undecided.len() as u64,
        suspects: (mailbox.queues.suspects.len() + mailbox.queues.risky_suspects.len()) as u64,
        charged: mailbox.ledger.charged,
        redelivered: mailbox.ledger.redelivered,
        bytes: mailbox.bytes,
        max_messages: u64::from(mailbox.spec.max_messages),
        max_bytes: mailbox.spec.max_bytes,
        oldest_ms: oldest.map(|message| millis(now.saturating_sub(message.content.at))),
        enqueued_per_minute: u64::from(mailbox.enqueue_rate.per_minute(now)),
        done_per_minute: u64::from(mailbox.done_rate.per_minute(now)),
        paused: mailbox.paused,
        closed: mailbox.closed.is_some(),
        blocked: blocked(cluster, path, mailbox),
        workers: workers(cluster, path, mailbox),
    }
}

/// Why nothing flows, where messages wait and no worker holds one.
fn blocked(cluster: &Cluster, path: &Path, mailbox: &Mailbox) -> Option<String> {
    let left: u64 = mailbox.sweeps.values().map(|sweep| sweep.upto - sweep.after).sum();
    if left > 0 {
        return Some(format!("what is in it is purged, set aside or looked at again: at most {left} are left"));
    }
    if mailbox.waiting() == 0 || mailbox.closed.is_some() {
        return None;
    }
    if mailbox.paused {
        return Some(format!("an operator paused it: `pando mailbox resume {path}` lets it flow"));
    }
    let ready = mailbox.workers.values().filter(|worker| worker.run.as_ref().is_some_and(|run| !run.stopping)).count();
    if ready == 0 {
        let why = cluster.supervisor(path).map_or("its worker is not ready", |_| "none of its workers is ready");
        return Some(format!("{why}: `pando explain {path}` says why"));
    }
    if mailbox.in_flight() > 0 {
        return None;
    }
    let next = mailbox.queues.delayed.get_min().map(|(until, _)| human(until.saturating_sub(cluster.head.now)));
    if let Some(next) = next.filter(|_| mailbox.waiting() == mailbox.queues.delayed.len() as u64) {
        return Some(format!("all that wait are in a delay; the next is due in {next}"));
    }
    let undecided = mailbox.queues.undecided.len() as u64;
    (undecided == mailbox.waiting()).then(|| {
        let workers: Vec<_> = mailbox.streaks.iter().map(ToString::to_string).collect();
        format!("all that wait have had their attempts, unless {} turns out to be sick", workers.join(", "))
    })
}

/// Those that are in the tree, and those that work still.
fn workers(cluster: &Cluster, path: &Path, mailbox: &Mailbox) -> Vec<WorkerRow> {
    let below = cluster.walk(path).into_iter().filter(|path| cluster.process(path).is_some());
    let mut paths: Vec<Path> = below.collect();
    paths.extend(mailbox.workers.keys().filter(|path| cluster.process(path).is_none()).cloned());
    let nobody = Worker::default();
    let rows = paths.into_iter().map(|path| {
        let worker = mailbox.workers.get(&path).map_or(&nobody, AsRef::as_ref);
        WorkerRow {
            node: worker.run.as_ref().map(|run| run.node.clone()),
            incarnation: worker.run.as_ref().map(|run| run.incarnation),
            in_flight: worker.held(),
            prefetch: mailbox.credit(worker),
            done: worker.done,
            streak: u32::try_from(worker.different()).unwrap_or(u32::MAX),
            sick: worker.sick,
            path,
        }
    });
    rows.collect()
}

/// Which part of a list of dead letters is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Page {
    /// Only those with a higher number than this.
    pub after: u64,
    /// At most so many.
    pub limit: u32,
    /// Whether with headers, payloads and standard error.
    pub whole: bool,
}

/// Dead letters, and how many are meant in all.
///
/// # Errors
/// There is no such mailbox.
pub fn dead_letters(
    cluster: &Cluster,
    of: &Path,
    letters: &Letters,
    page: Page,
) -> Result<(Vec<DeadLetterRow>, u64), Rejection> {
    let Page { after, limit, whole } = page;
    let mailbox = any_mailbox(cluster, of)?;
    let meant: Vec<u64> = select(mailbox, letters, cluster.head.now).collect();
    let limit = usize::try_from(limit).unwrap_or(LETTERS_SHOWN).min(LETTERS_SHOWN);
    let (mut rows, mut bytes) = (Vec::new(), 0);
    for number in meant.iter().filter(|number| **number > after).take(limit) {
        if bytes >= LETTERS_BYTES {
            break;
        }
        let Some(found) = mailbox.dead.get(number) else { continue };
        let row = letter(of, *number, found, whole);
        bytes += size(&row);
        rows.push(row);
    }
    Ok((rows, meant.len() as u64))
}

/// About the bytes that a dead letter takes in an answer.
fn size(row: &DeadLetterRow) -> usize {
    let headers: usize = row.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
    let attempts = row.attempts.iter().map(|attempt| attempt.why.len() + attempt.stderr.len() + ROW_OVERHEAD);
    let payload = row.payload.len() + row.payload_base64.as_ref().map_or(0, String::len);
    payload + headers + row.why.len() + attempts.sum::<usize>() + ROW_OVERHEAD
}

/// One dead letter with its payload.
///
/// # Errors
/// There is no such mailbox, or no such dead letter in it; says where the message is, if anywhere.
pub fn dead_letter(cluster: &Cluster, of: &Path, id: &str) -> Result<DeadLetterRow, Rejection> {
    let mailbox = any_mailbox(cluster, of)?;
    let Some(number) = mailbox.number_of(id) else {
        let why = format!("knows no message {id:?}: `pando dead-letters ls {of}` lists its dead letters");
        return Err(Rejection::WrongState { path: of.clone(), why });
    };
    if let Some(found) = mailbox.dead.get(&number) {
        return Ok(letter(of, number, found, true));
    }
    let why = match mailbox.messages.get(&number) {
        Some(Message { state: super::State::Held(_), .. }) => {
            format!("has message {id:?} in the hands of a worker: it is no dead letter")
        }
        Some(_) => format!("has message {id:?} waiting for a worker: it is no dead letter"),
        None => format!("has no message {id:?} any more: it is done, or was purged"),
    };
    Err(Rejection::WrongState { path: of.clone(), why })
}

/// What became of a message whose sender waits.
///
/// # Errors
/// There is no such mailbox.
pub fn asked(cluster: &Cluster, of: &Path, number: u64) -> Result<Asked, Rejection> {
    let mailbox = any_mailbox(cluster, of)?;
    if let Some(message) = mailbox.messages.get(&number) {
        // What was given back was no try: its worker was stopped or moved, or did not begin.
        let attempts = message.trouble.iter().flat_map(|trouble| &trouble.attempts);
        let tries: Vec<_> = attempts.filter(|attempt| attempt.how != AttemptEnd::Returned).collect();
        let (ended, last) = (tries.len(), tries.last().map(|last| format!("{}: {}", last.worker, last.why)));
        return Ok(Asked::Open { attempts: u32::try_from(ended).unwrap_or(u32::MAX), last });
    }
    // The newest: one that died may have been redriven and done.
    let kept = mailbox.replied.get(&number).and_then(|at| mailbox.replies.get(&(*at, number))).map(AsRef::as_ref);
    Ok(match kept {
        Some(KeptReply { reply: Ok(reply) }) => Asked::Done { reply: reply.clone() },
        Some(KeptReply { reply: Err(why) }) => Asked::Dead { why: why.clone() },
        None => Asked::Unknown,
    })
}

fn letter(of: &Path, number: u64, letter: &DeadLetter, whole: bool) -> DeadLetterRow {
    let DeadLetter { content, trouble, kind, why, at: _, wall } = letter;
    let (payload, payload_base64) = match content.payload.shown() {
        _ if !whole => (String::new(), None),
        Shown::Text(text) => (text, None),
        Shown::Base64(text) => (String::new(), Some(text)),
    };
    DeadLetterRow {
        id: content.shown_id(number),
        number,
        mailbox: of.clone(),
        life: trouble.life,
        cause: *kind,
        why: why.clone(),
        died: *wall,
        enqueued: content.wall,
        headers: if whole { content.headers.clone() } else { Default::default() },
        payload,
        payload_base64,
        bytes: content.payload.len() as u64,
        attempts: trouble.attempts.iter().map(|attempt| attempt_row(attempt, whole)).collect(),
        attempts_left_out: trouble.left_out,
    }
}

fn attempt_row(attempt: &Attempt, whole: bool) -> AttemptRow {
    let Attempt { life, worker, node, incarnation, began, ended, how, class, why, stderr, payer } = attempt;
    AttemptRow {
        life: *life,
        worker: worker.clone(),
        node: node.clone(),
        incarnation: *incarnation,
        began: *began,
        ended: *ended,
        how: *how,
        class: *class,
        why: why.clone(),
        stderr: if whole { stderr.clone() } else { String::new() },
        charged: *payer == Payer::Message,
        payer: payer.in_words().to_owned(),
    }
}

impl Payer {
    /// In words, for people.
    fn in_words(self) -> &'static str {
        match self {
            Self::Message => "the message",
            Self::Undecided => "the message, unless its worker turns out to be sick",
            Self::OneOfSeveral => "nobody yet: one of several messages did it, or the worker",
            Self::Worker => "the budget of the worker, which was taken for sick",
            Self::Replaced => "nobody: the worker was taken for sick and replaced",
            Self::NodeLoss => "nobody: losses of nodes are counted for themselves",
            Self::Nobody => "nobody",
        }
    }
}
