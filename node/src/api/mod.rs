//! Answers clients.
