//! The layers around the handlers: who may ask, a limit on the time of a request, its line in the log, and its place in the metrics.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use axum::Extension;
use axum::extract::{MatchedPath, Request, State};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::body;
use super::refusal::Refusal;
use super::state::Server;
use crate::events::Event;

/// The address at the other end of a connection, which `connections` adds to its requests.
#[derive(Clone, Copy)]
pub(super) struct Client(pub(super) SocketAddr);

/// The layer that logs and counts requests.
pub(super) async fn logged(
    State(server): State<Arc<Server>>,
    Extension(Client(client)): Extension<Client>,
    request: Request,
    next: Next,
) -> Response {
    let begin = Instant::now();
    let method = request.method().to_string();
    let path = request.uri().path().to_owned();
    let route = request.extensions().get::<MatchedPath>().map(|route| route.as_str().to_owned());
    let response = next.run(request).await;
    let (status, seconds) = (response.status().as_u16(), begin.elapsed().as_secs_f64());
    server.metrics.request(route.as_deref().unwrap_or("other"), status, seconds);
    server.events.emit(Event::Request {
        client: client.ip().to_string(),
        method,
        path,
        status,
        milliseconds: (seconds * 1e4).round() / 10.0,
    });
    response
}

/// The layer that bounds the time of a request, and how many are read and answered at once.
pub(super) async fn bounded(State(server): State<Arc<Server>>, request: Request, next: Next) -> Response {
    let Ok(_place) = server.requests.try_acquire() else {
        body::discard(request).await;
        return Refusal::busy("too many requests at once: send it again in a moment").into_response();
    };
    match tokio::time::timeout(server.time_limit, next.run(request)).await {
        Ok(response) => response,
        Err(_) => {
            let message = format!("it took longer than {} seconds", server.time_limit.as_secs_f64());
            Refusal::new(StatusCode::REQUEST_TIMEOUT, message).into_response()
        }
    }
}

/// The layer that asks for the token.
pub(super) async fn with_token(State(server): State<Arc<Server>>, request: Request, next: Next) -> Response {
    match server.access.check_token(request.headers()) {
        Ok(()) => next.run(request).await,
        Err(refusal) => refused(refusal, request).await,
    }
}

/// The answer to a request that is refused, when what its client sends has been read.
async fn refused(refusal: Refusal, request: Request) -> Response {
    body::discard(request).await;
    refusal.into_response()
}

/// The layer that refuses other pages.
pub(super) async fn of_own_page(State(server): State<Arc<Server>>, request: Request, next: Next) -> Response {
    match server.access.check_page(request.headers()) {
        Ok(()) => next.run(request).await,
        Err(refusal) => refused(refusal, request).await,
    }
}
