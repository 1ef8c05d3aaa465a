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
    /// A delay that a lost node had begun is forgotten.
    OwedDelayForgotten,
    /// A further ending in a group restart that is paid for is charged again.
    GroupChargesTwice,
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
    /// The end of a lease ends what is kept too, and it starts elsewhere.
    KeepIgnored,
    /// What goes on under a new session of its node counts as ended.
    KeptForgotten,
    /// What a node that is back does not name goes on counting as running.
    RestStays,
    /// A node whose lease may run is removed as dead.
    DeadByWordAlone,
}

impl Mutation {
    /// Every one.
    pub const ALL: [Self; 49] = [
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
        Self::NewSessionEndsOld,
        Self::BrakeOff,
        Self::TransientRestarts,
        Self::ExitRulesIgnored,
        Self::SpreadIgnored,
        Self::OwedDelayForgotten,
        Self::GroupChargesTwice,
        Self::AllIsOne,
        Self::GenerationsOverlap,
        Self::GroupStartsAtOnce,
        Self::TemporaryReturns,
        Self::ColocationIgnored,
        Self::PlacesLeak,
        Self::DrainIgnored,
        Self::DelayPanics,
        Self::DelaysDoNotGrow,
        Self::CapIgnored,
        Self::WaitingIsSilent,
        Self::ChainBroken,
        Self::EventsKeptForEver,
        Self::HistoryKeptForEver,
        Self::ClientsKeptForEver,
        Self::KeepIgnored,
        Self::KeptForgotten,
        Self::RestStays,
        Self::DeadByWordAlone,
    ];
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
pub use switch::with_mutation;

#[cfg(feature = "mutations")]
mod switch {
    use std::cell::Cell;

    use super::Mutation;

    thread_local! {
        pub(super) static ACTIVE: Cell<Option<Mutation>> = const { Cell::new(None) };
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
