//! What is said to the voters, and heard from them.

use openraft::AsyncRuntime;
use pando_protocol::ids::NodeName;
use pando_protocol::session::{LeaderWord, Observation, RunnerWord};

use super::{Runner, Session, Standing};
use crate::guard::{BootTime, FENCE_MARGIN};
use crate::runner::error::RunnerError;
use crate::runner::processes::Processes;
use crate::runner::voters::{Heard, Voters};

impl<R: AsyncRuntime, P: Processes> Runner<R, P> {
    /// Asks, or beats and says again what is not confirmed.
    pub(super) fn beat(&mut self) {
        let now = self.processes.now();
        // Whether or not the network lets anything renew a kill time.
        let call = self.guard.call(now);
        self.processes.call_guard(call);
        match &mut self.standing {
            Standing::Asking(_) => self.ask(now),
            Standing::Held(session) => {
                let beat = session.lease.beat(now);
                let word = RunnerWord::Beat {
                    session: session.id,
                    number: beat.number,
                    answered: beat.answered,
                    answered_age: beat.answered_age,
                };
                // What still waits for a voter is not lost, and would only wait twice.
                let idle = self.voters.idle();
                self.voters.say(&word);
                self.voters.say(&session.holds());
                for (number, observation) in session.outbox.overdue(now, self.pace.beat) {
                    let to =
                        idle.iter().filter(|voter| session.is_for(&observation, voter)).cloned().collect::<Vec<_>>();
                    let word = RunnerWord::Observe { session: session.id, number, observation };
                    to.iter().for_each(|voter| self.voters.say_to(voter, &word));
                }
            }
        }
    }

    pub(super) fn hear(&mut self, heard: Heard) -> Result<(), RunnerError> {
        match heard {
            Heard::Connected(voter) => {
                match &mut self.standing {
                    Standing::Asking(_) => self.beat(),
                    Standing::Held(session) => session.say_again(&self.voters, &voter),
                }
                Ok(())
            }
            Heard::Word(voter, word) => self.word(voter, word),
        }
    }

    fn word(&mut self, voter: NodeName, word: LeaderWord) -> Result<(), RunnerError> {
        if let LeaderWord::Granted { nonce, session } = word {
            return self.granted(nonce, session);
        }
        if let LeaderWord::Members(members) = word {
            self.voters.learn(members);
            return Ok(());
        }
        if let LeaderWord::Refused { nonce: _, why } = word {
            // It is asked again with each beat, and refused again.
            if self.refusal.as_ref() != Some(&why) {
                tracing::error!(why, "no session is granted");
                self.refusal = Some(why);
            }
            return Ok(());
        }
        let Standing::Held(session) = &mut self.standing else { return Ok(()) };
        // Messages come over a stream of their own, and an older leader's may come late.
        let is_of_now = !matches!(word, LeaderWord::Hands { .. });
        if is_of_now && session.leader.as_ref() != Some(&voter) {
            // Another one leads: what was on its way to the last one may be lost.
            session.leader = Some(voter.clone());
            session.say_again(&self.voters, &voter);
        }
        match word {
            LeaderWord::Answer { session: id, number } if id == session.id => {
                if let Some(end) = session.lease.answered(number) {
                    self.guard.told_kill_time(self.processes.now());
                    self.processes.renew(id, end.minus(FENCE_MARGIN));
                }
            }
            LeaderWord::Applied { session: id, through } if id == session.id => {
                session.outbox.applied(through);
                session.mail.applied(through);
                session.is_known |= through > 0;
                let now = self.processes.now();
                session.say_settled(&self.voters, now);
                if let Some(holds) = session.mail.holds_workers() {
                    self.processes.hold_workers(holds);
                }
                if session.adoption.take_if(|adoption| adoption.is_applied(through)).is_some() {
                    self.act_again();
                }
            }
            LeaderWord::Over { session: id } if id == session.id => {
                tracing::warn!(session = %id, "the cluster says that this session is over");
                self.session_over();
            }
            LeaderWord::Desired(desired) if desired.session == session.id => self.act(&desired),
            LeaderWord::Hands { session: id, hands } if id == session.id => {
                let fresh = session.mail.fresh(hands);
                if !fresh.is_empty() {
                    self.processes.hand(fresh);
                }
            }
            LeaderWord::Answer { .. }
            | LeaderWord::Applied { .. }
            | LeaderWord::Over { .. }
            | LeaderWord::Desired(_)
            | LeaderWord::Hands { .. } => {}
            LeaderWord::Granted { .. } | LeaderWord::Refused { .. } | LeaderWord::Members(_) => {}
        }
        Ok(())
    }

    /// Tells the cluster, at once or under the next session.
    pub(super) fn observe(&mut self, observation: Observation) {
        let now = self.processes.now();
        match &mut self.standing {
            Standing::Held(session) => _ = session.observe(&self.voters, now, observation),
            Standing::Asking(_) => self.kept.note(observation),
        }
    }
}

impl<R: AsyncRuntime> Session<R> {
    /// Says it to all voters, and gives its number. What is about a run that the cluster is not told of yet waits, and gives 0.
    pub(super) fn observe(&mut self, voters: &Voters, now: BootTime, observation: Observation) -> u64 {
        if self.adoption.as_mut().is_some_and(|adoption| adoption.holds_back(&observation)) {
            return 0;
        }
        let (number, observation) = self.outbox.push(observation, now);
        let leader = self.leader.as_ref().filter(|_| is_large(&observation));
        let word = RunnerWord::Observe { session: self.id, number, observation };
        match leader {
            Some(leader) => voters.say_to(leader, &word),
            None => voters.say(&word),
        }
        number
    }

    /// Whether an observation is to be said to a voter. All hear of all, so that whoever leads next knows it at once; but what is
    /// large only the leader hears, where it is known. The next one gets it too: at its first word all that is not confirmed.
    fn is_for(&self, observation: &Observation, voter: &NodeName) -> bool {
        !is_large(observation) || self.leader.as_ref().is_none_or(|leader| leader == voter)
    }

    /// Which session is held, and how far its messages have come.
    fn holds(&self) -> RunnerWord {
        RunnerWord::Holds { session: self.id, hand: self.mail.newest() }
    }

    /// Says everything that is not confirmed to one voter, which may not have heard it.
    fn say_again(&self, voters: &Voters, to: &NodeName) {
        voters.say_to(to, &self.holds());
        for (number, observation) in self.outbox.unconfirmed() {
            voters.say_to(to, &RunnerWord::Observe { session: self.id, number, observation: observation.clone() });
        }
    }
}

fn is_large(observation: &Observation) -> bool {
    matches!(observation, Observation::Settled(_))
}
