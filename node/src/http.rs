//! Health and metrics over HTTP, on loopback unless told otherwise.
//!
//! `/healthz`: this process runs. `/readyz`: a leader is known here. `/readyz/<tree>`: that tree is not failed and whole.
//! `/metrics`: for Prometheus.

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

type Voter = Option<Control<TokioRuntime>>;

/// Serves until `stop`. One that is no voter has no state that is kept up: it is ready when it runs, and its `/metrics` and trees say whom to ask.
pub async fn serve(listener: TcpListener, control: Voter, stop: CancellationToken) {
    let routes = Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/readyz/{tree}", get(tree_ready))
        .route("/metrics", get(metrics))
        .with_state(control);
    let served = axum::serve(listener, routes).with_graceful_shutdown(stop.cancelled_owned()).await;
    if let Err(error) = served {
        tracing::warn!(%error, "metrics and health are not served any more");
    }
}

async fn ready(State(voter): State<Voter>) -> Response {
    let Some(control) = voting(voter) else { return "ok: no voter\n".into_response() };
    match &control.leadership.borrow().leader {
        Some(leader) => format!("ok: {} leads\n", leader.name).into_response(),
        None => (StatusCode::SERVICE_UNAVAILABLE, "no leader is known\n").into_response(),
    }
}

async fn tree_ready(State(voter): State<Voter>, Path(tree): Path<String>) -> Response {
    let Some(control) = voting(voter) else { return on_a_voter() };
    match telemetry::tree_ready(&control, &tree) {
        Ok(()) => "ok\n".into_response(),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")).into_response(),
    }
}

async fn metrics(State(voter): State<Voter>) -> Response {
    let Some(control) = voting(voter) else { return on_a_voter() };
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(CONTENT_TYPE, kind)], telemetry::metrics(&control)).into_response()
}

fn voting(voter: Voter) -> Voter {
    voter.filter(Control::votes)
}

fn on_a_voter() -> Response {
    (StatusCode::NOT_FOUND, "this node is no voter and holds no state: ask a voter\n").into_response()
}
