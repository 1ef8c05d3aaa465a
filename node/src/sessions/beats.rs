//! One runner's beats: each goes to the keeper, which answers once a proof of leadership covers it.

use openraft::AsyncRuntime;
use pando_protocol::ids::NodeName;
use pando_protocol::session::{LeaderWord, RunnerWord};
use tokio::sync::mpsc;

use super::keeper::KeeperHandle;
use crate::control::Control;

/// Attends to the beats of `node` until its stream ends. Never waits for anything but the next one.
pub async fn attend<R: AsyncRuntime>(
    node: NodeName,
    mut words: mpsc::Receiver<RunnerWord>,
    say: mpsc::Sender<LeaderWord>,
    control: Control<R>,
    keeper: KeeperHandle<R>,
) {
    while let Some(word) = words.recv().await {
        if let RunnerWord::Beat { session, number, answered: _, answered_age } = word
            && control.leads()
        {
            keeper.beat((node.clone(), session), number, answered_age, say.clone());
        }
    }
}
