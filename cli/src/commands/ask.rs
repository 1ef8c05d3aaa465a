//! `pando ask`: sends a message, and waits for the reply of whoever handles it.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::anyhow;
use clap::Args;
use pando_protocol::ids::Path;
use pando_protocol::mail::{Payload, Sent};
use pando_protocol::message::Asked;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::commands::send::what::{self, Labels};
use crate::connection::{Connection, with};
use crate::context::Target;
use crate::exit::{Code, Failure};
use crate::terminal::Progress;
use crate::{arguments, human, output};

/// Sends a message to a worker or pool, waits for the reply, and prints it
///
/// Senders name a path and never a process: when the worker dies, another one gets the message, and its reply is printed. Asked again
/// with the same --id, a message is not sent twice; its reply is kept for a minute.
///
/// Further exit codes: 5 no reply came in time, and the message is still in the mailbox; 6 it is a dead letter, or was purged; 7 with
/// --fail-fast, an attempt ended without a reply.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("what").required(true))]
pub struct Ask {
    /// The worker or pool, whichever has the mailbox
    #[arg(value_parser = arguments::path)]
    path: Path,
    /// The message
    #[arg(group = "what")]
    text: Option<String>,
    /// Send what is in this file; `-` is standard input
    #[arg(long, group = "what")]
    file: Option<PathBuf>,
    #[command(flatten)]
    labels: Labels,
    /// How long to wait for the reply, from the start of the command
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = human::parse_duration)]
    timeout: Duration,
    /// End when the first attempt fails or its worker dies; the message is tried again all the same. One that was only given back,
    /// by a stop or a drain, does not count
    #[arg(long)]
    fail_fast: bool,
}

impl Ask {
    /// Asks.
    ///
    /// # Errors
    /// The message is refused, gets no reply, or the cluster cannot be reached.
    pub async fn run(self, target: &Target) -> Result<(), Failure> {
        let begun = Instant::now();
        let Self { path, text, file, labels, timeout, fail_fast } = self;
        let message = labels.message(what::payload(text, file.as_deref())?)?;
        let reply = with(target, async |connection| {
            let given = message.id.clone();
            let Sent { first, accepted, known } = connection.send(&path, vec![message], true, timeout).await?;
            let number = known.first().map_or(first, |known| known.number);
            let id = given.map_or_else(|| format!("#{number}"), |id| id.to_string());
            let question = Question { path, id, number, is_new: accepted > 0, begun, timeout, fail_fast };
            question.reply(connection).await
        })
        .await?;
        reply.map_or(Ok(()), |reply| print(&reply))
    }
}

/// A message that is in the mailbox, and how long its reply is waited for.
#[derive(Debug)]
struct Question {
    path: Path,
    id: String,
    number: u64,
    /// Whether it was sent just now; attempts that ended before do not count for `fail_fast` otherwise.
    is_new: bool,
    begun: Instant,
    timeout: Duration,
    fail_fast: bool,
}

impl Question {
    /// Looks until there is a reply, or will be none: at least once, with pauses that grow.
    async fn reply(&self, connection: &Connection) -> Result<Option<Payload>, Failure> {
        let deadline = self.begun + self.timeout;
        let first_deadline = Instant::now() + FIRST_LOOK;
        let mut progress = Progress::new();
        let mut pause = SHORTEST_PAUSE;
        let mut tolerated = if self.is_new { Some(0) } else { None };
        let mut seen = Seen::default();
        loop {
            match timeout_at(deadline.max(first_deadline), connection.asked(self.path.clone(), self.number)).await {
                Ok(Ok(Asked::Done { reply })) => return Ok(reply),
                Ok(Ok(Asked::Dead { why })) => return Err(self.ends(Code::Dead, &why)),
                Ok(Ok(Asked::Unknown)) => return Err(self.ends(Code::Failed, FORGOTTEN)),
                Ok(Ok(Asked::Open { attempts, last })) => {
                    seen = Seen { is_there: true, attempts, last };
                    if self.fail_fast && attempts > *tolerated.get_or_insert(attempts) {
                        return Err(self.ends(Code::AttemptEnded, &seen.in_words()));
                    }
                }
                Ok(Err(Failure { code: Some(Code::Unreached), .. })) | Err(_) => {}
                Ok(Err(failure)) => return Err(failure),
            }
            if Instant::now() + pause > deadline {
                return Err(self.gives_up(&seen));
            }
            progress.show(&format!(
                "waiting for the reply to message {} of {} ({}): {}",
                self.id,
                self.path,
                human::duration(self.begun.elapsed()),
                seen.in_words()
            ));
            sleep_until(Instant::now() + pause).await;
            pause = (pause * 3 / 2).min(LONGEST_PAUSE);
        }
    }

    fn ends(&self, code: Code, why: &str) -> Failure {
        Failure::coded(code, anyhow!("no reply to message {} of {}: {why}", self.id, self.path))
    }

    fn gives_up(&self, seen: &Seen) -> Failure {
        let waited = human::duration(self.timeout);
        if !seen.is_there {
            let why = format!("no node of the cluster told what became of it within {waited}");
            return self.ends(Code::Unreached, &why);
        }
        self.ends(Code::NoReply, &format!("none within {waited}, and it stays in the mailbox; {}", seen.in_words()))
    }
}

/// What was last seen of a message that waits or is worked on.
#[derive(Debug, Default)]
struct Seen {
    /// Whether anything was.
    is_there: bool,
    attempts: u32,
    last: Option<String>,
}

impl Seen {
    fn in_words(&self) -> String {
        match (&self.last, self.attempts) {
            _ if !self.is_there => "no answer yet".into(),
            (Some(last), attempts) => {
                format!("{} ended, the last so: {last}", human::count(u64::from(attempts), "attempt"))
            }
            (None, _) => "no attempt at it has ended".into(),
        }
    }
}

/// Prints the reply as it is; a text gets an end of line where it has none.
fn print(reply: &Payload) -> Result<(), Failure> {
    output::emit_bytes(reply.bytes())?;
    let is_open_text = std::str::from_utf8(reply.bytes()).is_ok_and(|text| !text.is_empty() && !text.ends_with('\n'));
    if is_open_text { output::emit("\n") } else { Ok(()) }
}

/// What is said of a message that nobody knows.
const FORGOTTEN: &str = "the mailbox does not know it any more, or was not asked to keep its reply when it was sent; replies are kept \
                         for a minute";
/// Pause between the first two looks: a worker that is free answers within some milliseconds.
const SHORTEST_PAUSE: Duration = Duration::from_millis(5);
/// Pause between two looks in the long run: short beside what a person notices.
const LONGEST_PAUSE: Duration = Duration::from_millis(250);
/// The first look may take this long even where the limit is shorter.
const FIRST_LOOK: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use pando_protocol::message::{Call, Change, Changed, Found, MailChanged, Query, Reply, ViewAge};

    use super::*;
    use crate::scripted_node::{Cluster, Turn};

    fn open(attempts: u32) -> Asked {
        let last = (attempts > 0).then(|| "/shop/orders/0: exit code 1".to_owned());
        Asked::Open { attempts, last }
    }

    /// A cluster that takes one message in, and tells each of these of it in turn, the last one again and again.
    fn cluster(story: Vec<Asked>) -> Cluster {
        let told = AtomicU32::new(0);
        Cluster::start(1, move |call, _| {
            let reply = match call {
                Call::Write(write) => {
                    assert!(matches!(write.change, Change::Send { asks: true, .. }));
                    let mail = MailChanged::Sent(Sent { first: 17, accepted: 1, known: Vec::new() });
                    Reply::Changed(Changed { differences: Vec::new(), event: 1, mail: Some(mail) })
                }
                Call::Read { query: Query::Asked { number: 17, .. }, .. } => {
                    let at = told.fetch_add(1, Ordering::SeqCst) as usize;
                    let view = ViewAge { answered_by: "n1".parse().unwrap(), leader: None, confirmed: true, age_ms: 0 };
                    Reply::Found { found: Found::Asked(story[at.min(story.len() - 1)].clone()), view }
                }
                other => panic!("{other:?}"),
            };
            Turn::Answer(Box::new(Ok(reply)))
        })
    }

    async fn ask(
        story: Vec<Asked>,
        timeout: Duration,
        fail_fast: bool,
    ) -> Result<Option<Payload>, (Option<Code>, String)> {
        let cluster = cluster(story);
        let connection = Connection::to(&cluster.context()).unwrap();
        let path: Path = "/shop/orders".parse().unwrap();
        let message = pando_protocol::mail::NewMessage::of("hello");
        let sent = connection.send(&path, vec![message], true, timeout).await.unwrap();
        let (number, begun) = (sent.first, Instant::now());
        let question = Question { path, id: "#17".into(), number, is_new: true, begun, timeout, fail_fast };
        let reply = question.reply(&connection).await;
        reply.map_err(|failure| (failure.code, failure.error.unwrap().to_string()))
    }

    #[tokio::test]
    async fn the_reply_of_a_later_attempt_is_the_reply() {
        let done = Asked::Done { reply: Some("hi".into()) };
        let story = vec![open(0), open(1), open(2), done];
        assert_eq!(ask(story, Duration::from_secs(30), false).await, Ok(Some("hi".into())));
    }

    #[tokio::test]
    async fn each_way_without_a_reply_has_a_code_of_its_own() {
        let second = Duration::from_secs(1);
        let (code, text) = ask(vec![open(0), open(1)], second, true).await.unwrap_err();
        assert_eq!(code, Some(Code::AttemptEnded));
        assert_eq!(
            text,
            "no reply to message #17 of /shop/orders: 1 attempt ended, the last so: /shop/orders/0: exit code 1"
        );
        // The first attempt may have ended before anybody looked.
        assert_eq!(ask(vec![open(1)], second, true).await.unwrap_err().0, Some(Code::AttemptEnded));
        let dead = Asked::Dead { why: "it is a dead letter: 3 attempts".into() };
        assert_eq!(ask(vec![open(2), dead], second, false).await.unwrap_err().0, Some(Code::Dead));
        assert_eq!(ask(vec![Asked::Unknown], second, false).await.unwrap_err().0, Some(Code::Failed));
        let (code, text) = ask(vec![open(0)], Duration::ZERO, false).await.unwrap_err();
        assert_eq!(code, Some(Code::NoReply));
        assert!(text.contains("stays in the mailbox; no attempt at it has ended"), "{text}");
    }
}
