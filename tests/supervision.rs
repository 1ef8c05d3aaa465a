//! The rules as short stories, one file a subject.

#[path = "supervision/cases.rs"]
mod cases;
#[path = "supervision/departures.rs"]
mod departures;
#[path = "supervision/determinism.rs"]
mod determinism;
#[path = "supervision/endings.rs"]
mod endings;
#[path = "supervision/groups.rs"]
mod groups;
#[path = "supervision/large_groups.rs"]
mod large_groups;
#[path = "supervision/mail_blame.rs"]
mod mail_blame;
#[path = "supervision/mail_cases.rs"]
mod mail_cases;
#[path = "supervision/mailboxes.rs"]
mod mailboxes;
#[path = "supervision/nodes.rs"]
mod nodes;
#[path = "supervision/operators.rs"]
mod operators;
#[path = "supervision/placement.rs"]
mod placement;
#[path = "supervision/properties.rs"]
mod properties;
#[path = "supervision/reports.rs"]
mod reports;
#[path = "supervision/specs.rs"]
mod specs;
#[path = "supervision/supervisors.rs"]
mod supervisors;
#[path = "supervision/unreachable.rs"]
mod unreachable;
#[path = "supervision/ways_back.rs"]
mod ways_back;
#[path = "supervision/words.rs"]
mod words;
