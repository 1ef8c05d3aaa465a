//! Health and metrics over HTTP, on loopback unless told otherwise.
//!
//! `/healthz`: this process runs. `/readyz`: a voter whose state a leader with a majority confirms, while no tree is failed; any
//! other node that holds a session. `/readyz/<tree>`: confirmed, and that tree is not failed and whole; on voters only.
//! `/metrics`: for Prometheus.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use openraft::impls::TokioRuntime;
use pando_protocol::ids::NodeName;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::control::Control;
use crate::freshness::{Freshness, View};
use crate::local::LocalChildren;
use crate::telemetry;
use crate::transport::Credentials;

/// What is told.
pub struct Told {
    /// This node.
    pub node: NodeName,
    /// The replicated state, and how fresh it is; `None` on an agent.
    pub state: Option<(Control<TokioRuntime>, Freshness<TokioRuntime>)>,
    /// What runs here.
    pub children: LocalChildren,
    /// The certificate of this node.
    pub credentials: Credentials,
}

/// Serves until `stop`.
pub async fn serve(listener: TcpListener, told: Told, stop: CancellationToken) {
    let routes = Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/readyz/{tree}", get(tree_ready))
        .route("/metrics", get(metrics))
        .with_state(Arc::new(told));
    let served = axum::serve(listener, routes).with_graceful_shutdown(stop.cancelled_owned()).await;
    if let Err(error) = served {
        tracing::warn!(%error, "metrics and health are not served any more");
    }
}

impl Told {
    /// The state, where it is kept up: not on an agent, nor on a node that is no voter yet or no more.
    fn voting(&self) -> Option<&(Control<TokioRuntime>, Freshness<TokioRuntime>)> {
        self.state.as_ref().filter(|(control, _)| control.votes())
    }
}

async fn ready(State(told): State<Arc<Told>>) -> Response {
    let Some((control, freshness)) = told.voting() else { return holds_a_session(&told) };
    let view = freshness.view().await;
    let leader = match confirmed(&told.node, &view) {
        Ok(leader) => leader,
        Err(why) => return not_ready(&why),
    };
    match telemetry::failed_trees(control).as_slice() {
        [] => format!("ok: {leader} leads\n").into_response(),
        failed => not_ready(&failed.join("\n")),
    }
}

/// What a node without a state knows is whether the cluster lets it run anything.
fn holds_a_session(told: &Told) -> Response {
    match told.children.presence().session {
        Some(session) => format!("ok: {} holds session {session}\n", told.node).into_response(),
        None => not_ready(&format!("{} holds no session, so nothing runs here: no leader has granted one", told.node)),
    }
}

async fn tree_ready(State(told): State<Arc<Told>>, Path(tree): Path<String>) -> Response {
    let Some((control, freshness)) = told.voting() else {
        let why = format!("{} is no voter and holds no state: ask a voter\n", told.node);
        return (StatusCode::NOT_FOUND, why).into_response();
    };
    let ready = confirmed(&told.node, &freshness.view().await).and_then(|_| telemetry::tree_ready(control, &tree));
    match ready {
        Ok(()) => "ok\n".into_response(),
        Err(why) => not_ready(&why),
    }
}

async fn metrics(State(told): State<Arc<Told>>) -> Response {
    let here = telemetry::Here {
        presence: told.children.presence(),
        room: told.children.room(),
        certificate_end: told.credentials.now().valid_until(),
    };
    let text = match told.voting() {
        Some((control, freshness)) => telemetry::metrics(Some((control, &freshness.view().await)), &here),
        None => telemetry::metrics::<TokioRuntime>(None, &here),
    };
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(CONTENT_TYPE, kind)], text).into_response()
}

/// The confirmed leader; else the sentence for the body.
fn confirmed<'a>(node: &NodeName, view: &'a View<TokioRuntime>) -> Result<&'a NodeName, String> {
    view.leader.as_ref().ok_or_else(|| format!("no leader; view of {node}, {} s old", view.age().as_secs()))
}

fn not_ready(why: &str) -> Response {
    (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")).into_response()
}
