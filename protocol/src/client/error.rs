//! Why a client has no reply.

use std::time::Duration;

use super::identity::IdentityError;
use super::quic;
use crate::rejection::Rejection;

/// Why a request has no reply.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No endpoint answered.
    #[error("no node of the cluster was reached ({}): {}", listed(.tried), advice(.tried))]
    Unreachable {
        /// Each endpoint that was tried, and why it failed.
        tried: Vec<(String, String)>,
    },
    /// The cluster refused.
    #[error(transparent)]
    Refused(#[from] Rejection),
    /// A node answered with something that this version does not understand.
    #[error("the node at {endpoint} answered with what this version does not understand: {why}")]
    Protocol {
        /// The node's endpoint.
        endpoint: String,
        /// Why.
        why: String,
    },
    /// The certificates cannot be used.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The endpoints given are none, or no client can be made on this machine.
    #[error("{0}")]
    Unusable(String),
    /// No reply came in time; a read or a signal, whose repetition is up to the caller.
    #[error(
        "no reply from {endpoint} within {limit:.1?}: the node or its way to the leader hangs; try again or another node"
    )]
    TimedOut {
        /// Who was asked.
        endpoint: String,
        /// The time it was given.
        limit: Duration,
    },
}

/// Where each endpoint answered and only the certificates do not belong together, the endpoints are not what to look at.
fn advice(tried: &[(String, String)]) -> &'static str {
    if !tried.is_empty() && tried.iter().all(|(_, why)| quic::is_of_certificates(why)) {
        "show a certificate that the CA of this cluster made: check --identity or PANDO_IDENTITY, or choose its context with \
         --context or PANDO_CONTEXT"
    } else {
        "check that it runs, and the endpoints in --endpoints, PANDO_ENDPOINTS or the context file"
    }
}

fn listed(tried: &[(String, String)]) -> String {
    tried.iter().map(|(endpoint, why)| format!("{endpoint}: {why}")).collect::<Vec<_>>().join("; ")
}
