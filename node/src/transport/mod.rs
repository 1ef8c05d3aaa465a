//! QUIC between nodes.
