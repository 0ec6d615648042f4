//! The server: its settings, its routes with their layers, and its life from the models' loading to the last answer.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use axum::extract::{DefaultBodyLimit, Request};
use axum::http::header::{AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderName, HeaderValue, Method, StatusCode};
use axum::response::Response;
use axum::routing::get;
use axum::{Json, Router, middleware};
use tokio::sync::{Notify, Semaphore};
use tower_http::cors::{AllowOrigin, CorsLayer};
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use vitrine_datasets::DecodeLimits;

use super::access::Access;
use super::metrics::Metrics;
use super::models::{Loading, Models, NamedSource};
use super::refusal::Refusal;
use super::state::{Queue, Server};
use super::worker::{Batching, Defects};
use super::{api, body, connections, layers, page};
use crate::device::FoundDevice;
use crate::events::{Event, EventSink};
use crate::token::Token;

/// Requests that are read and answered at once; further ones are refused with 503.
const REQUESTS_AT_ONCE: usize = 256;

/// The memory that bodies of requests may take together, in bytes; or that of four of the largest.
const BODIES_AT_ONCE: usize = 512 << 20;

/// What the user chooses about a server.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Address and port to listen on. Port 0 takes a free one, which [`Event::Serving`] states.
    pub listen: SocketAddr,
    /// The token that requests must have; `None` for no token.
    pub token: Option<Token>,
    /// Origins of other servers' pages that may ask, such as `https://example.com`; `*` for all.
    pub allowed_origins: Vec<String>,
    /// The largest batch, in images.
    pub batch_size: usize,
    /// How long a batch that is not full waits for more images.
    pub batch_delay: Duration,
    /// The largest number of images that wait for their answer; further ones are refused with 503.
    pub queue: usize,
    /// The largest body of a request in bytes.
    pub max_body_bytes: usize,
    /// The time that a request may take, from its header to its answer.
    pub time_limit: Duration,
    /// Whether models are taken from the cache alone, and never from the network.
    pub offline: bool,
}

/// The description of the API, to which every route adds its own.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "vitrine",
        description = "Classification of images by the models of this server. If it asks for a token, every path but /, /health, and \
                       /ready needs the header `Authorization: Bearer TOKEN`."
    ),
    tags((name = "images"), (name = "server"))
)]
struct Description;

/// The routes with their layers.
pub(super) fn router(server: &Arc<Server>, settings: &Settings) -> Router {
    let (api, description) = OpenApiRouter::with_openapi(Description::openapi())
        .routes(routes!(api::classify))
        .routes(routes!(api::embed))
        .routes(routes!(api::explain))
        .routes(routes!(api::models))
        .routes(routes!(api::metrics))
        .split_for_parts();
    let (open, open_description) =
        OpenApiRouter::new().routes(routes!(api::health)).routes(routes!(api::ready)).split_for_parts();
    let mut description = description;
    description.merge(open_description);
    // The outermost layer comes last.
    let of_models = api
        .route("/openapi.json", get(async move || Json(description.clone())))
        .route_layer(middleware::from_fn_with_state(Arc::clone(server), layers::with_token))
        .route_layer(middleware::from_fn_with_state(Arc::clone(server), layers::of_own_page))
        .route_layer(middleware::from_fn_with_state(Arc::clone(server), layers::bounded));
    let router = Router::new()
        .merge(of_models)
        .merge(open)
        .merge(page::routes())
        .fallback(async |request| refused(StatusCode::NOT_FOUND, "there is no such path", request).await)
        .method_not_allowed_fallback(async |request| {
            refused(StatusCode::METHOD_NOT_ALLOWED, "this path has another method", request).await
        })
        // `body` has its own limit.
        .layer(DefaultBodyLimit::disable())
        .layer(middleware::map_response(with_security_headers))
        .layer(middleware::from_fn_with_state(Arc::clone(server), layers::logged));
    let router = match cors(&settings.allowed_origins) {
        Some(cors) => router.layer(cors),
        None => router,
    };
    router.with_state(Arc::clone(server))
}

/// The answer to a request that no route takes.
async fn refused(status: StatusCode, message: &str, request: Request) -> Refusal {
    body::discard(request).await;
    Refusal::new(status, message)
}

/// The headers for pages of other origins; `None` if there are none that may ask.
fn cors(origins: &[String]) -> Option<CorsLayer> {
    if origins.is_empty() {
        return None;
    }
    let origins = match origins.iter().any(|origin| origin == "*") {
        true => AllowOrigin::any(),
        false => AllowOrigin::list(origins.iter().filter_map(|origin| HeaderValue::from_str(origin).ok())),
    };
    Some(
        CorsLayer::new()
            .allow_origin(origins)
            .allow_methods([Method::GET, Method::POST])
            .allow_headers([AUTHORIZATION, CONTENT_TYPE])
            .expose_headers([RETRY_AFTER]),
    )
}

async fn with_security_headers(mut response: Response) -> Response {
    let headers = response.headers_mut();
    for (name, value) in [
        ("content-security-policy", page::CONTENT_SECURITY_POLICY),
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "no-referrer"),
        ("cross-origin-resource-policy", "same-origin"),
    ] {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

/// Serves models until the process is asked to end. Images larger than `limits` are refused.
///
/// # Errors
/// If a model cannot be loaded, or the address cannot be listened on.
pub fn serve(
    sources: &[NamedSource],
    settings: &Settings,
    device: &FoundDevice,
    limits: DecodeLimits,
    events: Arc<dyn EventSink>,
) -> Result<()> {
    let metrics = Arc::new(Metrics::new());
    let defects = Defects(Arc::new(Notify::new()));
    let loading = Loading {
        device: device.clone(),
        limits,
        batching: Batching { images: settings.batch_size, delay: settings.batch_delay },
        offline: settings.offline,
        metrics: Arc::clone(&metrics),
        events: Arc::clone(&events),
        defects: defects.clone(),
    };
    let server = Arc::new(Server {
        models: Models::load(sources, loading)?,
        metrics,
        events: Arc::clone(&events),
        access: Access { token: settings.token.clone(), origins: settings.allowed_origins.clone() },
        time_limit: settings.time_limit,
        max_body_bytes: settings.max_body_bytes,
        requests: Semaphore::new(REQUESTS_AT_ONCE),
        queue: Queue::new(settings.queue, BODIES_AT_ONCE.max(4 * settings.max_body_bytes)),
    });
    if !settings.listen.ip().is_loopback() && settings.token.is_none() {
        events.emit(Event::warning(format!(
            "whoever reaches {} may ask: there is no token (--token-file)",
            settings.listen
        )));
    }
    let router = router(&server, settings);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("the server cannot be started")?;
    let ended = runtime.block_on(connections::accept(settings.listen, router, server, &defects.0));
    // A model that is being loaded again must not keep the process.
    runtime.shutdown_background();
    ended
}
