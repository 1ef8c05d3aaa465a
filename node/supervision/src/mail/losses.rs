//! The loss of a node: all messages that were held there are accused, since nobody knows which were started. Design section 7.

use std::collections::BTreeMap;

use pando_protocol::ids::{NodeName, SessionId};
use pando_protocol::mail::{AttemptEnd, DeathKind};

use super::{Held, Payer};
use crate::change::Change;
use crate::mutation::{Mutation, broken};

impl Change<'_> {
    /// A session is over without its node's word: whatever was held under it is accused of that. One that was accused so often as
    /// its mailbox allows is set aside, where it alone was under suspicion this time.
    pub fn mail_lost(&mut self, node: &NodeName, session: SessionId, how: &str) {
        let Some(standing) = self.session(node, session) else { return };
        let hands: Vec<(u64, Held)> = std::mem::take(&mut standing.hands).into_iter().collect();
        let counts: BTreeMap<u64, u32> = hands.iter().map(|(hand, held)| (*hand, self.losses_of(held))).collect();
        let under_suspicion = counts.values().filter(|count| **count > 0).count();
        for (hand, held) in &hands {
            let Held { mailbox: at, message: number, worker, .. } = held;
            self.mail_changed(at);
            self.mailbox(at).worker(worker, |worker| {
                if let Some(run) = &mut worker.run {
                    run.held.remove(hand);
                }
            });
            let why = format!("node {node} was lost: {how}");
            let attempt = self.attempt(held, node, AttemptEnd::NodeLost, &why, Payer::NodeLoss);
            self.note_attempt(at, *number, attempt);
            let losses = counts.get(hand).copied().unwrap_or(0) + 1;
            let most = self.mailbox(at).spec.max_node_losses;
            self.mailbox(at).trouble(*number, |trouble| {
                trouble.accused = true;
                trouble.node_losses = losses;
            });
            if broken(Mutation::LossesAreCharged) {
                self.charge_message(at, *number);
            }
            let alone = if most == 1 { hands.len() == 1 } else { losses > 1 && under_suspicion == 1 };
            if losses >= most && (alone || broken(Mutation::LossesKillTogether)) && !broken(Mutation::LossesNeverKill) {
                self.absolve(at, *number, super::blame::Verdict::Unknown);
                let why = format!("{losses} nodes were lost while they held it, the last with no other suspect on it");
                self.die(at, *number, DeathKind::NodeLosses, why);
            } else {
                self.put_back(at, *number, false);
            }
        }
    }

    fn losses_of(&self, held: &Held) -> u32 {
        let message = self.cluster.mailbox(&held.mailbox).and_then(|mailbox| mailbox.messages.get(&held.message));
        message.and_then(|message| message.trouble.as_ref()).map_or(0, |trouble| trouble.node_losses)
    }
}
