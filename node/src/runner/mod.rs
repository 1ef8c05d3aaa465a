//! Starts and stops children on this node.
