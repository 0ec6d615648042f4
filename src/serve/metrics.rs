//! What the server counts, for Prometheus.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

use crate::predict::Output;

/// The metrics of the server.
pub(super) struct Metrics {
    registry: Registry,
    requests: Family<RequestLabels, Counter>,
    seconds: Family<PathLabels, Histogram>,
    images: Family<ModelLabels, Counter>,
    batches: Family<ModelLabels, Histogram>,
    /// Images in the queues and in batches that are computed.
    pub(super) waiting: Gauge,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RequestLabels {
    path: String,
    status: u16,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct PathLabels {
    path: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ModelLabels {
    model: String,
    answer: &'static str,
}

impl Metrics {
    pub(super) fn new() -> Self {
        let requests = Family::default();
        let seconds: Family<PathLabels, Histogram> =
            Family::new_with_constructor(|| Histogram::new(exponential_buckets(0.001, 2.0, 15)));
        let images = Family::default();
        let batches: Family<ModelLabels, Histogram> =
            Family::new_with_constructor(|| Histogram::new(exponential_buckets(1.0, 2.0, 9)));
        let waiting = Gauge::default();
        let mut registry = Registry::with_prefix("vitrine");
        registry.register("http_requests", "Requests by path and status", requests.clone());
        registry.register_with_unit(
            "http_request_duration",
            "Time from the header of a request to its answer",
            Unit::Seconds,
            seconds.clone(),
        );
        registry.register("images", "Images that a model was asked about", images.clone());
        registry.register("batch_images", "Images of a batch", batches.clone());
        registry.register("waiting_images", "Images whose answer is not there yet", waiting.clone());
        Self { registry, requests, seconds, images, batches, waiting }
    }

    /// Counts a request. `path` is that of a route, not what a client has made up.
    pub(super) fn request(&self, path: &str, status: u16, seconds: f64) {
        self.requests.get_or_create(&RequestLabels { path: path.to_owned(), status }).inc();
        self.seconds.get_or_create(&PathLabels { path: path.to_owned() }).observe(seconds);
    }

    /// Counts a batch.
    pub(super) fn batch(&self, model: &str, output: Output, images: usize) {
        let answer = match output {
            Output::Logits => "logits",
            Output::Embedding => "embedding",
            Output::Layout => "layout",
        };
        let labels = ModelLabels { model: model.to_owned(), answer };
        self.images.get_or_create(&labels).inc_by(images as u64);
        self.batches.get_or_create(&labels).observe(images as f64);
    }

    /// All metrics in the text format of OpenMetrics.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        encode(&mut text, &self.registry).expect("text in memory can be written");
        text
    }
}
