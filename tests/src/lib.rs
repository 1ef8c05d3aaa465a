//! Fixtures for the tests of Pando.

pub mod rules;
