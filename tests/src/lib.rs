//! Fixtures for the tests of Pando.
