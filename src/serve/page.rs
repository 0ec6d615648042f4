//! The page that the server shows: four files inside the program.

use axum::Router;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName};
use axum::routing::get;

/// What the page may load: its own files, images that it makes itself, and answers of its server.
pub(super) const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
     img-src 'self' blob: data:; connect-src 'self'; media-src 'self' blob:; form-action 'none'; base-uri 'none'; \
     frame-ancestors 'none'";

/// The path, type, and content of each file.
const FILES: [(&str, &str, &str); 4] = [
    ("/", "text/html; charset=utf-8", include_str!("page/index.html")),
    ("/app.js", "text/javascript; charset=utf-8", include_str!("page/app.js")),
    (
        "/style.css",
        "text/css; charset=utf-8",
        concat!(include_str!("../page/base.css"), include_str!("page/style.css")),
    ),
    ("/icon.svg", "image/svg+xml", include_str!("page/icon.svg")),
];

/// The routes of the page.
pub(super) fn routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    FILES.into_iter().fold(Router::new(), |router, (path, kind, content)| {
        let headers: [(HeaderName, &str); 2] = [(CONTENT_TYPE, kind), (CACHE_CONTROL, "no-cache")];
        router.route(path, get(async move || (headers, content)))
    })
}
