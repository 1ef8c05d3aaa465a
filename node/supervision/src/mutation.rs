//! Rules that a test can break on purpose, to prove that the invariants notice.
//!
//! Without the feature `mutations` every question is answered *no* at compile time and the optimiser removes it.

/// A rule that can be broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Mutation {
    /// A budget pays for one crash too many.
    BudgetOffByOne = 1,
    /// A crash counts for as long as the window, inclusive.
    WindowClosedInterval,
    /// Restarts are not delayed.
    NoBackoff,
    /// An ending that nobody pays for is never followed by one that is paid.
    UnpaidForEver,
    /// A child of a node that goes is placed elsewhere before it has stopped.
    ReplaceBeforeStopped,
    /// An observation is applied each time it comes.
    ObservationsTwice,
    /// A client's retry is applied again.
    RetriesTwice,
    /// A stop that we asked for is charged.
    StopIsCharged,
    /// A node loss is charged.
    LossIsCharged,
    /// Room is not looked for when some is freed.
    RoomForgotten,
    /// A node's slots are not counted.
    SlotsIgnored,
    /// A required label is not looked at.
    LabelsIgnored,
    /// A supervisor fails while children of it still run.
    FailBeforeStopped,
    /// A supervisor restarted by its parent keeps its old window.
    WindowSurvivesRestart,
    /// A healthy run does not return the delay to its base.
    BackoffNeverForgets,
    /// Incarnations are given again from the fortieth on.
    IncarnationsReused,
    /// A supervisor that stops goes on starting what waited below it.
    StartsWhileStopping,
    /// A changed spec restarts every process that it names.
    ApplyRestartsAll,
    /// The end of significant children ends nothing.
    SignificantIgnored,
    /// A stop by an operator is forgotten when the supervisor above starts again.
    HoldForgotten,
    /// Words about runs that are over, or of other nodes, are taken for words about the run that is.
    LateWordsCount,
    /// A run that was promised never to start counts as one that is to start.
    PromiseForgotten,
    /// A child that a node could not start is tried there for ever, at the node's charge.
    StartFailuresFree,
    /// A temporary child that a node could not start is not tried elsewhere.
    TemporaryTriedOnce,
    /// A new session of a node ends its older ones without proof.
    NewSessionEndsOld,
    /// Children of a lost node all start at once, however many.
    BrakeOff,
    /// A normal ending of a transient child restarts it.
    TransientRestarts,
    /// The rules of `on_exit` are not looked at.
    ExitRulesIgnored,
    /// Siblings are not spread.
    SpreadIgnored,
    /// Siblings whose places are kept count for nothing where others are spread.
    SpreadSeesRunsOnly,
    /// A delay that a lost node had begun is forgotten.
    OwedDelayForgotten,
    /// A further ending in a group restart that is paid for is charged again.
    GroupChargesTwice,
    /// The same, while the group waits out its delay.
    WaitingGroupChargesAgain,
    /// `one_for_all` takes down only what `rest_for_one` would.
    AllIsOne,
    /// The next generation of a group starts while the former still stops.
    GenerationsOverlap,
    /// The members of a group start at once and not in turn.
    GroupStartsAtOnce,
    /// A temporary child that its group took down starts again.
    TemporaryReturns,
    /// What is to stay on one node does not.
    ColocationIgnored,
    /// Room that was kept for a child counts as taken for ever.
    PlacesLeak,
    /// A drained node is given work.
    DrainIgnored,
    /// A move off a drained node looks for room for one run, and not for what its group takes along.
    MovesAlone,
    /// What ends on a drained node cannot go back there, whatever room there is elsewhere.
    NoWayBack,
    /// A member of a group without a way back does not start beside the others on a drained node.
    NothingBeside,
    /// Only the group right above what is new is asked who waits for it.
    BesideParentOnly,
    /// What is new in a group starts beside others of it on a drained node though none of them waits for it.
    BesideAnyone,
    /// A changed spec costs a child the way back that it cannot use for now.
    WayBackForgotten,
    /// A temporary child on a drained node ends at once, though its group goes on there.
    TemporaryEndsFirst,
    /// A temporary child on a drained node outlives its group there.
    TemporaryIsLeft,
    /// A drain names what runs on its node, and not what has its next run there.
    DrainNamesRunsOnly,
    /// A rule panics when the delay of a member whose name ends in 0 is over.
    DelayPanics,
    /// Every delay is as long as the first one.
    DelaysDoNotGrow,
    /// Delays grow past their cap.
    CapIgnored,
    /// What waits does not say for what.
    WaitingIsSilent,
    /// An escalation does not hold the cause below it.
    ChainBroken,
    /// Old events are kept for ever.
    EventsKeptForEver,
    /// Old endings are kept for ever.
    HistoryKeptForEver,
    /// Clients are remembered for ever.
    ClientsKeptForEver,
    /// What clients were answered weighs nothing.
    RepliesWeighNothing,
    /// The end of a lease ends what is kept too, and it starts elsewhere.
    KeepIgnored,
    /// What goes on under a new session of its node counts as ended.
    KeptForgotten,
    /// What a node that is back does not name goes on counting as running.
    RestStays,
    /// A node whose lease may run is removed as dead.
    DeadByWordAlone,
    /// A group restart loses sight of what it takes down where a new spec moves that in the list.
    TakenDownFromElsewhere,
    /// A temporary child that a node gives back before it ever ran is never run.
    TemporaryForgottenUnbegun,
    /// Messages that are accused of the loss of a node are handed out together on one node.
    RiskyTogether,
    /// A worker that is taken for sick gets as many messages as ever.
    SickWorkerPrefetches,
    /// A worker is handed more ahead than it works off meanwhile.
    AheadOfThePace,
    /// Workers are handed messages ahead while another one's crash is unexplained.
    AheadInDoubt,
    /// A worker is handed messages ahead though it has settled nothing of late.
    AheadOfTheStuck,
    /// A message of an id that is known is taken in again.
    IdsForgotten,
    /// Suspects are handed out beside other messages.
    SuspectsTogether,
    /// A message goes to the worker that had it last though another is free.
    SameWorkerAgain,
    /// A message that was given back is charged.
    ReturnsAreCharged,
    /// Messages that were prefetched and not started are accused of a crash, too.
    NeighboursAccused,
    /// No worker is ever taken for sick.
    NobodyIsSick,
    /// Each of several accused messages is charged.
    SeveralPay,
    /// A message has one attempt more than it is allowed.
    OneAttemptMore,
    /// The loss of a node is charged to the messages held there.
    LossesAreCharged,
    /// A message is set aside for losses of nodes though others were under suspicion, too.
    LossesKillTogether,
    /// A message is never set aside for losses of nodes.
    LossesNeverKill,
    /// A message that is set aside is forgotten.
    DeadForgotten,
    /// A redriven message keeps the attempts of its former life.
    RedriveKeepsCount,
    /// A message that was charged is handed out again without its delay.
    RetriesAtOnce,
    /// A mailbox that is paused hands out.
    PauseIgnored,
    /// Nothing but a success ends a streak, also where nothing is left to try its worker with.
    VerdictsNeverEnd,
    /// A worker whose crash none of the accused messages did never pays for it.
    NobodyPaysLate,
    /// The messages pay for the streak of a worker that was replaced while it was taken for sick.
    ReplacedPays,
    /// A mailbox takes in more messages than it may hold.
    BoundsIgnored,
    /// A lower limit of attempts does not hold for messages that wait.
    LimitsNotLowered,
    /// A worker with a streak gets messages that were accused though another one is well.
    DoubtIgnored,
    /// The sum of what all mailboxes weigh is not kept.
    SumForgotten,
    /// What is done with all messages of a mailbox is done in one entry of the log.
    SweepsAtOnce,
    /// What closed a mailbox goes on where it is opened again.
    SweepGoesOn,
    /// Evidence of attempts is kept without bound.
    EvidenceUnbounded,
    /// What is left over in a mailbox that was taken out of its tree is kept where it is to be purged.
    LeftoverMixed,
    /// Purged messages are not counted as such.
    PurgesUncounted,
    /// A reply is kept for a message that nobody asked with, and none for one that somebody did.
    RepliesSwapped,
    /// A worker that does not say what it starts holds several messages.
    CreditWithoutStarts,
    /// A mailbox takes in more bytes than it may hold.
    BytesIgnored,
    /// The ids of messages that are done or purged are known for ever.
    IdsKnownForEver,
    /// What is redriven at a pace waits all at once.
    PaceIgnored,
}

impl Mutation {
    /// Every one.
    pub const ALL: [Self; 101] = [
        Self::BudgetOffByOne,
        Self::WindowClosedInterval,
        Self::NoBackoff,
        Self::UnpaidForEver,
        Self::ReplaceBeforeStopped,
        Self::ObservationsTwice,
        Self::RetriesTwice,
        Self::StopIsCharged,
        Self::LossIsCharged,
        Self::RoomForgotten,
        Self::SlotsIgnored,
        Self::LabelsIgnored,
        Self::FailBeforeStopped,
        Self::WindowSurvivesRestart,
        Self::BackoffNeverForgets,
        Self::IncarnationsReused,
        Self::StartsWhileStopping,
        Self::ApplyRestartsAll,
        Self::SignificantIgnored,
        Self::HoldForgotten,
        Self::LateWordsCount,
        Self::PromiseForgotten,
        Self::StartFailuresFree,
        Self::TemporaryTriedOnce,
        Self::NewSessionEndsOld,
        Self::BrakeOff,
        Self::TransientRestarts,
        Self::ExitRulesIgnored,
        Self::SpreadIgnored,
        Self::SpreadSeesRunsOnly,
        Self::OwedDelayForgotten,
        Self::GroupChargesTwice,
        Self::WaitingGroupChargesAgain,
        Self::AllIsOne,
        Self::GenerationsOverlap,
        Self::GroupStartsAtOnce,
        Self::TemporaryReturns,
        Self::ColocationIgnored,
        Self::PlacesLeak,
        Self::DrainIgnored,
        Self::MovesAlone,
        Self::NoWayBack,
        Self::NothingBeside,
        Self::BesideParentOnly,
        Self::BesideAnyone,
        Self::WayBackForgotten,
        Self::TemporaryEndsFirst,
        Self::TemporaryIsLeft,
        Self::DrainNamesRunsOnly,
        Self::DelayPanics,
        Self::DelaysDoNotGrow,
        Self::CapIgnored,
        Self::WaitingIsSilent,
        Self::ChainBroken,
        Self::EventsKeptForEver,
        Self::HistoryKeptForEver,
        Self::ClientsKeptForEver,
        Self::RepliesWeighNothing,
        Self::KeepIgnored,
        Self::KeptForgotten,
        Self::RestStays,
        Self::DeadByWordAlone,
        Self::TakenDownFromElsewhere,
        Self::TemporaryForgottenUnbegun,
        Self::RiskyTogether,
        Self::SickWorkerPrefetches,
        Self::AheadOfThePace,
        Self::AheadInDoubt,
        Self::AheadOfTheStuck,
        Self::IdsForgotten,
        Self::SuspectsTogether,
        Self::SameWorkerAgain,
        Self::ReturnsAreCharged,
        Self::NeighboursAccused,
        Self::NobodyIsSick,
        Self::SeveralPay,
        Self::OneAttemptMore,
        Self::LossesAreCharged,
        Self::LossesKillTogether,
        Self::LossesNeverKill,
        Self::DeadForgotten,
        Self::RedriveKeepsCount,
        Self::RetriesAtOnce,
        Self::PauseIgnored,
        Self::VerdictsNeverEnd,
        Self::NobodyPaysLate,
        Self::ReplacedPays,
        Self::BoundsIgnored,
        Self::LimitsNotLowered,
        Self::DoubtIgnored,
        Self::SumForgotten,
        Self::SweepsAtOnce,
        Self::SweepGoesOn,
        Self::EvidenceUnbounded,
        Self::LeftoverMixed,
        Self::PurgesUncounted,
        Self::RepliesSwapped,
        Self::CreditWithoutStarts,
        Self::BytesIgnored,
        Self::IdsKnownForEver,
        Self::PaceIgnored,
    ];
}

/// Something is looked at to choose what is handed out next.
#[cfg(not(feature = "mutations"))]
pub(crate) const fn look() {}

/// Something is looked at to choose what is handed out next: counted, so that a test can tell what a choice costs without a clock.
#[cfg(feature = "mutations")]
pub(crate) fn look() {
    switch::LOOKS.with(|looks| looks.set(looks.get() + 1));
}

/// Messages that one entry of the log sweeps.
#[cfg(not(feature = "mutations"))]
pub(crate) const fn swept_at_once() -> usize {
    crate::mail::SWEPT_AT_ONCE
}

/// Messages that one entry of the log sweeps: as many as a test says, so that a few messages take several.
#[cfg(feature = "mutations")]
pub(crate) fn swept_at_once() -> usize {
    switch::SWEPT.with(std::cell::Cell::get)
}

/// Whether `mutation` is switched on.
#[cfg(not(feature = "mutations"))]
pub(crate) const fn broken(_mutation: Mutation) -> bool {
    false
}

/// Whether `mutation` is switched on.
#[cfg(feature = "mutations")]
pub(crate) fn broken(mutation: Mutation) -> bool {
    switch::ACTIVE.with(|active| active.get() == Some(mutation))
}

#[cfg(feature = "mutations")]
pub use switch::{looks, with_mutation, with_sweeps_of};

#[cfg(feature = "mutations")]
mod switch {
    use std::cell::Cell;

    use super::Mutation;

    thread_local! {
        pub(super) static ACTIVE: Cell<Option<Mutation>> = const { Cell::new(None) };
        pub(super) static LOOKS: Cell<u64> = const { Cell::new(0) };
        pub(super) static SWEPT: Cell<usize> = const { Cell::new(crate::mail::SWEPT_AT_ONCE) };
    }

    /// Looks on this thread so far.
    pub fn looks() -> u64 {
        LOOKS.with(Cell::get)
    }

    /// Runs `body` on this thread with sweeps of so many messages in each entry of the log.
    pub fn with_sweeps_of<T>(messages: usize, body: impl FnOnce() -> T) -> T {
        struct Restore;
        impl Drop for Restore {
            fn drop(&mut self) {
                SWEPT.with(|swept| swept.set(crate::mail::SWEPT_AT_ONCE));
            }
        }
        SWEPT.with(|swept| swept.set(messages));
        let _restore = Restore;
        body()
    }

    /// Runs `body` on this thread with one rule broken.
    pub fn with_mutation<T>(mutation: Mutation, body: impl FnOnce() -> T) -> T {
        struct Restore;
        impl Drop for Restore {
            fn drop(&mut self) {
                ACTIVE.with(|active| active.set(None));
            }
        }
        ACTIVE.with(|active| active.set(Some(mutation)));
        let _restore = Restore;
        body()
    }
}
