//! An HTTP server for models: an API, metrics, and a page, on the predictor that the command line asks too.
//!
//! Requests that wait are computed together: a thread for each model and kind of answer takes them in batches
//! (`worker.rs`), while one thread reads and writes all connections.

mod access;
mod api;
mod body;
mod connections;
mod layers;
mod metrics;
mod models;
mod page;
mod refusal;
mod server;
mod state;
mod worker;

pub use models::NamedSource;
pub use server::{Settings, serve};
