//! Messages for the workers of one runner: told in the order in which they were handed out, as the runner takes them.
//!
//! What it has, it says; what was told on this stream comes to it, or the stream ends. So nothing is told twice on a stream,
//! whoever led meanwhile, and a stream that is made anew goes on where the runner is.

use openraft::AsyncRuntime;
use pando_protocol::ids::{NodeName, SessionId};
use pando_protocol::session::{LeaderWord, RunnerWord};
use pando_supervision::mail::hands::hands;
use tokio::sync::mpsc;

use crate::control::Control;

/// Bytes of messages in one word, but for a single one that is larger: what has come since the last word goes together, and a
/// slow runner is seen to take something.
const HANDS_AT_ONCE: u64 = 256 << 10;

/// Tells `node` of messages until one of its channels or the control plane ends.
pub async fn attend<R: AsyncRuntime>(
    node: NodeName,
    mut words: mpsc::Receiver<RunnerWord>,
    say: mpsc::Sender<LeaderWord>,
    control: Control<R>,
) {
    let (mut published, mut leadership) = (control.published.clone(), control.leadership.clone());
    let mut teller = Teller { node, control, told: None };
    loop {
        // Not before there is room: what comes meanwhile goes into the same word.
        let Ok(room) = say.reserve().await else { return };
        if let Some(hands) = teller.next() {
            room.send(hands);
            // Between two words, so that it is known how far the runner is.
            while let Ok(word) = words.try_recv() {
                teller.hear(&word);
            }
            continue;
        }
        drop(room);
        tokio::select! {
            biased;
            word = words.recv() => match word {
                Some(word) => teller.hear(&word),
                None => return,
            },
            changed = leadership.changed() => if changed.is_err() { return },
            changed = published.changed() => if changed.is_err() { return },
        }
    }
}

struct Teller<R: AsyncRuntime> {
    node: NodeName,
    control: Control<R>,
    /// The session that is held there, once it is known, and the newest hand that it has or was told of.
    told: Option<(SessionId, u64)>,
}

impl<R: AsyncRuntime> Teller<R> {
    fn hear(&mut self, word: &RunnerWord) {
        let RunnerWord::Holds { session, hand } = word else { return };
        match &mut self.told {
            Some((of, newest)) if of == session => *newest = (*newest).max(*hand),
            told => *told = Some((*session, *hand)),
        }
    }

    /// The next messages that workers there hold, where this node leads.
    fn next(&mut self) -> Option<LeaderWord> {
        let (session, newest) = self.told.as_mut()?;
        self.control.led_round()?;
        let cluster = {
            let published = self.control.published.borrow();
            if published.cluster.session(&self.node, *session)?.last_hand <= *newest {
                return None;
            }
            published.cluster.clone()
        };
        let hands = hands(&cluster, &self.node, *session, *newest, HANDS_AT_ONCE);
        *newest = match hands.last() {
            Some(hand) => hand.number,
            None => cluster.session(&self.node, *session)?.last_hand, // All of them are settled by now.
        };
        (!hands.is_empty()).then_some(LeaderWord::Hands { session: *session, hands })
    }
}

#[cfg(test)]
mod tests;
