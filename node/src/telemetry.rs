//! Metrics and tracing.
