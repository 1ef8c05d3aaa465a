//! Fixtures for the tests of Pando.
//!
//! Modules that need more than the rules stand behind the feature `fixtures`, which is on by default.

pub mod rules;
