//! Health and metrics over HTTP, on loopback unless told otherwise.
//!
//! `/healthz`: this process runs. `/readyz`: a leader is known here. `/readyz/<tree>`: that tree is not failed and whole.
//! `/metrics`: for Prometheus; on an agent, which holds no state, only what concerns the node itself.

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use openraft::impls::TokioRuntime;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::control::Control;
use crate::telemetry;
use crate::transport::Credentials;

/// What is told about.
#[derive(Debug, Clone)]
pub struct Told {
    /// The replicated state; `None` on an agent.
    pub control: Option<Control<TokioRuntime>>,
    /// The certificate of this node.
    pub credentials: Credentials,
}

/// Serves until `stop`. An agent has no state: it is ready when it runs, and its trees say whom to ask.
pub async fn serve(listener: TcpListener, told: Told, stop: CancellationToken) {
    let routes = Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/readyz/{tree}", get(tree_ready))
        .route("/metrics", get(metrics))
        .with_state(told);
    let served = axum::serve(listener, routes).with_graceful_shutdown(stop.cancelled_owned()).await;
    if let Err(error) = served {
        tracing::warn!(%error, "metrics and health are not served any more");
    }
}

async fn ready(State(told): State<Told>) -> Response {
    let Some(control) = told.control else { return "ok: an agent\n".into_response() };
    match &control.leadership.borrow().leader {
        Some(leader) => format!("ok: {} leads\n", leader.name).into_response(),
        None => (StatusCode::SERVICE_UNAVAILABLE, "no leader is known\n").into_response(),
    }
}

async fn tree_ready(State(told): State<Told>, Path(tree): Path<String>) -> Response {
    let Some(control) = told.control else { return on_a_voter() };
    match telemetry::tree_ready(&control, &tree) {
        Ok(()) => "ok\n".into_response(),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")).into_response(),
    }
}

async fn metrics(State(told): State<Told>) -> Response {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    let certificate_end = told.credentials.now().valid_until();
    ([(CONTENT_TYPE, kind)], telemetry::metrics(told.control.as_ref(), certificate_end)).into_response()
}

fn on_a_voter() -> Response {
    (StatusCode::NOT_FOUND, "this node is an agent and holds no state: ask a voter\n").into_response()
}
