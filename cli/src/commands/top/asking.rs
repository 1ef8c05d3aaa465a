//! What is asked of the cluster, again and again: at most one question of a kind at a time, so that over a slow link answers come
//! late and never pile up.

use std::time::Duration;

use pando_protocol::ids::Path;
use pando_protocol::message::{Call, Freshness, Item};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, timeout};

use super::deed::Deed;
use super::model::{Answer, News, Watched};
use crate::connection::{Connection, Read};
use crate::exit::{Code, Failure};

/// Uptimes grow without events: asked at least this often.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Many events at once are one question.
const SHORTEST_PAUSE: Duration = Duration::from_millis(200);
/// Pause before a broken stream is begun again.
const RETRY_PAUSE: Duration = Duration::from_millis(500);
/// The lines that were written last, of each node, when a log is opened.
const TAIL: u32 = 100;

/// What the questions are about.
#[derive(Debug, Clone)]
pub struct Scope {
    /// Only trees and mailboxes at and below it.
    pub root: Option<Path>,
    /// How fresh answers must be.
    pub freshness: Freshness,
}

/// Asks until nobody listens any more.
///
/// # Errors
/// The first answer to a question is a refusal, or no identity can be used: what was asked for cannot be shown.
pub async fn run(
    connection: &Connection,
    scope: Scope,
    watched: watch::Receiver<Watched>,
    deeds: mpsc::Receiver<Deed>,
    news: mpsc::Sender<News>,
) -> Result<(), Failure> {
    let (happened, happens) = watch::channel(0);
    let Scope { root, freshness } = &scope;
    let tree = async || connection.tree(root.clone(), *freshness).await;
    let mailboxes = async || connection.mailboxes(root.clone(), *freshness).await;
    let nodes = async || connection.nodes(*freshness).await;
    let endpoint = || connection.endpoint().to_owned();
    tokio::select! {
        biased;
        () = act(connection, deeds, &news) => Ok(()),
        () = watch_over(connection, scope.freshness, watched, &news) => Ok(()),
        () = listen(connection, root.as_ref(), &happened, &news) => Ok(()),
        over = poll(tree, &endpoint, News::Tree, happens.clone(), &news) => over,
        over = poll(nodes, &endpoint, News::Nodes, happens.clone(), &news) => over,
        over = poll(mailboxes, &endpoint, News::Mailboxes, happens, &news) => over,
    }
}

/// Asks for one kind of rows. The pause after an answer is no shorter than the wait for it: a slow link stays half free.
async fn poll<T>(
    ask: impl AsyncFn() -> Result<Read<Vec<T>>, Failure>,
    endpoint: &impl Fn() -> String,
    kind: fn(Answer<T>) -> News,
    mut happens: watch::Receiver<u64>,
    news: &mpsc::Sender<News>,
) -> Result<(), Failure> {
    let mut was_answered = false;
    loop {
        let asked = Instant::now();
        happens.mark_unchanged();
        let told = match ask().await {
            Ok(read) => Ok(read),
            Err(failure) if failure.code == Some(Code::Unreached) || was_answered => Err(words(failure)),
            Err(failure) => return Err(failure),
        };
        was_answered |= told.is_ok();
        let answer = Answer { asked, endpoint: endpoint(), told };
        if news.send(kind(answer)).await.is_err() {
            return Ok(());
        }
        let took = asked.elapsed();
        sleep(took.max(SHORTEST_PAUSE)).await;
        // Either way it is time to ask: something happened, time passed, or nobody listens to events any more.
        let _ = timeout(LONGEST_PAUSE.saturating_sub(took), happens.changed()).await;
    }
}

/// Passes on events, from any node that answers.
async fn listen(
    connection: &Connection,
    root: Option<&Path>,
    happened: &watch::Sender<u64>,
    news: &mpsc::Sender<News>,
) {
    loop {
        let after = *happened.borrow();
        if let Ok(mut items) = connection.stream(Call::Events { after, follow: true }).await {
            while let Ok(Some(item)) = items.next().await {
                let Item::Event(row) = item else { continue };
                happened.send_replace(row.number);
                let concerns = root.zip(row.path.as_ref()).is_none_or(|(root, path)| path.is_within(root));
                if concerns && news.send(News::Event(row)).await.is_err() {
                    return;
                }
            }
        }
        sleep(RETRY_PAUSE).await;
    }
}

/// Asks for what is open, and for nothing else any more once something else is.
async fn watch_over(
    connection: &Connection,
    freshness: Freshness,
    mut watched: watch::Receiver<Watched>,
    news: &mpsc::Sender<News>,
) {
    loop {
        let now = watched.borrow_and_update().clone();
        let asks = async {
            match now {
                Watched::Nothing => std::future::pending().await,
                Watched::Explain(path) => explain(connection, path, freshness, news).await,
                Watched::Logs(path) => follow(connection, path, news).await,
            }
        };
        tokio::select! {
            biased;
            changed = watched.changed() => if changed.is_err() { return },
            () = asks => return,
        }
    }
}

async fn explain(connection: &Connection, path: Path, freshness: Freshness, news: &mpsc::Sender<News>) {
    loop {
        let asked = Instant::now();
        let told = connection.explain(path.clone(), freshness).await;
        let told = told.map(|read| Box::new(read.value)).map_err(words);
        if news.send(News::Explained(path.clone(), told)).await.is_err() {
            return;
        }
        sleep(asked.elapsed().max(LONGEST_PAUSE)).await;
    }
}

/// Passes on what a member writes. Begun again, old lines would come twice: see `pando logs`.
async fn follow(connection: &Connection, path: Path, news: &mpsc::Sender<News>) {
    let mut tail = TAIL;
    loop {
        let call = Call::Logs { path: path.clone(), tail, follow: true };
        let why = match connection.stream(call).await {
            Ok(mut items) => loop {
                let told = match items.next().await {
                    Ok(Some(Item::Log(line))) => {
                        tail = 0;
                        News::Log(path.clone(), crate::commands::logs::text(&line, false))
                    }
                    Ok(Some(Item::Note(note))) => News::LogRemark(path.clone(), note),
                    Ok(Some(Item::Event(_))) => continue,
                    Ok(Some(Item::Failed(why))) => break words(why.into()),
                    Ok(None) => break "the node ended it; going on at another".into(),
                    Err(error) => break words(error.into()),
                };
                if news.send(told).await.is_err() {
                    return;
                }
            },
            Err(error) => words(error.into()),
        };
        if news.send(News::LogRemark(path.clone(), why)).await.is_err() {
            return;
        }
        sleep(RETRY_PAUSE).await;
    }
}

/// Does what the operator asks for, one after the other.
async fn act(connection: &Connection, mut deeds: mpsc::Receiver<Deed>, news: &mpsc::Sender<News>) {
    while let Some(deed) = deeds.recv().await {
        let told = connection.change_silently(deed.change()).await;
        let told = told.map(|changed| changed.differences.len()).map_err(words);
        if news.send(News::Done(deed, told)).await.is_err() {
            return;
        }
    }
}

fn words(failure: Failure) -> String {
    failure.error.map_or_else(|| "it failed".into(), |error| format!("{error:#}"))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use anyhow::anyhow;
    use pando_protocol::message::ViewAge;
    use pando_protocol::view::NodeRow;

    use super::*;

    fn nobody() -> Read<Vec<NodeRow>> {
        let view = ViewAge { answered_by: "n1".parse().unwrap(), leader: None, confirmed: true, age_ms: 0 };
        Read { value: Vec::new(), view }
    }

    /// Asks for a minute about nodes; answers take so long, and something happens every 10 ms. How often it asked.
    async fn asked_within_a_minute(answers_after: Duration) -> u32 {
        let (asked, open) = (Cell::new(0), Cell::new(0));
        let ask = async || {
            asked.set(asked.get() + 1);
            assert_eq!(open.replace(1), 0, "one question of a kind at a time");
            sleep(answers_after).await;
            open.set(0);
            Ok(nobody())
        };
        let (happened, happens) = watch::channel(0);
        let (news, mut heard) = mpsc::channel(1);
        let endpoint = String::new;
        let storm = async {
            for number in 1.. {
                sleep(Duration::from_millis(10)).await;
                happened.send_replace(number);
            }
        };
        let over = tokio::select! {
            over = poll(ask, &endpoint, News::Nodes, happens, &news) => Some(over),
            () = async { while heard.recv().await.is_some() {} } => None,
            () = storm => None,
            () = sleep(Duration::from_secs(60)) => None,
        };
        assert!(over.is_none(), "it goes on");
        asked.get()
    }

    #[tokio::test(start_paused = true)]
    async fn slow_answers_come_late_and_never_pile_up() {
        let asked = asked_within_a_minute(Duration::from_secs(3)).await;
        assert!((9..=11).contains(&asked), "half the link stays free: {asked}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_storm_of_events_is_no_storm_of_questions() {
        let asked = asked_within_a_minute(Duration::from_millis(1)).await;
        assert!((240..=300).contains(&asked), "{asked}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_first_refusal_ends_it_and_later_ones_and_silence_are_told() {
        let turns = Cell::new(0);
        let ask = async || {
            turns.set(turns.get() + 1);
            match turns.get() {
                1 | 4 => Err(Failure::unreached(anyhow!("silence"))),
                2 => Ok(nobody()),
                _ => Err(Failure::refused(anyhow!("no such path"))),
            }
        };
        let (_happened, happens) = watch::channel(0);
        let (news, mut heard) = mpsc::channel(1);
        let endpoint = || "10.0.0.1:7400".to_owned();
        let mut told = Vec::new();
        let hears = async {
            while told.len() < 4 {
                let Some(News::Nodes(answer)) = heard.recv().await else { break };
                told.push(answer.told.err());
            }
        };
        tokio::select! {
            _ = poll(ask, &endpoint, News::Nodes, happens.clone(), &news) => {}
            () = hears => {}
        }
        let said = |text: &str| Some(text.to_owned());
        assert_eq!(told, [said("silence"), None, said("no such path"), said("silence")]);

        let refuses = async || Err::<Read<Vec<NodeRow>>, _>(Failure::refused(anyhow!("no such path")));
        let failure = poll(refuses, &endpoint, News::Nodes, happens, &news).await.unwrap_err();
        assert_eq!(failure.code, Some(Code::Refused));
    }
}
