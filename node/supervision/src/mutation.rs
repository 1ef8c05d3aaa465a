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
    /// A child whose node is lost is placed while its old session still stands.
    ReplaceBeforeLoss,
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
    /// Incarnations of a path are counted anew when it is added again.
    IncarnationsReused,
}

impl Mutation {
    /// Every one.
    pub const ALL: [Self; 16] = [
        Self::BudgetOffByOne,
        Self::WindowClosedInterval,
        Self::NoBackoff,
        Self::UnpaidForEver,
        Self::ReplaceBeforeLoss,
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
