//! Configuration, merged and checked once at start.
