//! What every request gets: a limit on its time, a line in the log, and a place in the metrics.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use axum::Extension;
use axum::extract::{MatchedPath, Request, State};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::refusal::Refusal;
use super::server::Server;
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
