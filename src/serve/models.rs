//! The models of the server, by name, and their replacement when their files have changed.

use std::str::FromStr;
use std::sync::{Arc, PoisonError, RwLock};

use anyhow::{Context, Result, ensure};
use burn::module::Module;
use vitrine_datasets::DecodeLimits;
use vitrine_models::ModelConfig;

use super::metrics::Metrics;
use super::refusal::Refusal;
use super::worker::{Batching, Worker};
use crate::device::FoundDevice;
use crate::events::{Event, EventSink};
use crate::explain::{Explainer, Method};
use crate::hub;
use crate::model_file::{self, ModelCard};
use crate::named_model::{self, NamedModel};
use crate::predict::{Classifier, Output};
use crate::usage::UsageError;

/// A model to serve, as the user names it: `MODEL`, or `NAME=MODEL`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedSource {
    /// The name in the API; by default that of the run folder or file.
    pub name: Option<String>,
    /// What [`named_model::load`] takes.
    pub source: String,
}

impl FromStr for NamedSource {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, source) = match text.split_once('=') {
            Some((name, source)) if !std::path::Path::new(text).exists() => (Some(name), source),
            _ => (None, text),
        };
        if name.is_some_and(str::is_empty) || source.is_empty() {
            return Err("it must be MODEL or NAME=MODEL".to_owned());
        }
        Ok(Self { name: name.map(str::to_owned), source: source.to_owned() })
    }
}

/// How models are loaded and asked.
#[derive(Clone)]
pub(super) struct Loading {
    pub(super) device: FoundDevice,
    pub(super) limits: DecodeLimits,
    pub(super) batching: Batching,
    pub(super) offline: bool,
    pub(super) metrics: Arc<Metrics>,
    pub(super) events: Arc<dyn EventSink>,
}

/// A model that answers requests. When it is dropped, its threads answer what they were asked, and end.
pub(super) struct ServedModel {
    pub(super) name: String,
    pub(super) card: ModelCard,
    pub(super) parameters: usize,
    /// The methods for which the model has overlays.
    pub(super) methods: Vec<Method>,
    /// `None` without a classifier.
    pub(super) logits: Option<Worker<(), Vec<f32>>>,
    pub(super) embeddings: Worker<(), Vec<f32>>,
    pub(super) overlays: Worker<Method, Vec<u8>>,
    /// The SHA-256 of its files.
    checksum: String,
}

impl ServedModel {
    fn load(name: &str, source: &str, loading: &Loading) -> Result<Self> {
        let Loading { device, limits, batching, offline, metrics, events } = loading;
        let change = ModelConfig::deterministic;
        let NamedModel { card, model, files } =
            named_model::load(source, *offline, &device.device, change, &**events)?;
        let checksum = model_file::checksum(&files)?;
        let with_limits = || Classifier::new(card.clone(), model.clone(), device).with_limits(*limits);
        let worker = |output| {
            let (metrics, name) = (Arc::clone(metrics), name.to_owned());
            let observe = move |images| metrics.batch(&name, output, images);
            Worker::of_output(with_limits(), output, *batching, observe, Arc::clone(events))
        };
        if let Some(warning) = with_limits().predictor().check_memory(batching.images)? {
            events.emit(Event::warning(warning));
        }
        let has_classifier = card.has_classifier();
        let methods = if has_classifier { Method::by_default(&model) } else { Vec::new() };
        let explainer = {
            let (card, model, device, limits) = (card.clone(), model.clone(), device.clone(), *limits);
            move || Explainer::new(card, model.train(), &device).with_limits(limits)
        };
        Ok(Self {
            name: name.to_owned(),
            parameters: model.num_params(),
            methods,
            logits: has_classifier.then(|| worker(Output::Logits)).transpose()?,
            embeddings: worker(Output::Embedding)?,
            overlays: Worker::of_overlays(explainer)?,
            checksum,
            card,
        })
    }
}

/// All models, in the order in which the user named them.
pub(super) struct Models {
    loading: Loading,
    sources: Vec<(String, String)>,
    loaded: RwLock<Vec<Arc<ServedModel>>>,
}

impl Models {
    /// Loads all models.
    ///
    /// # Errors
    /// If one cannot be loaded, or two have the same name.
    pub(super) fn load(sources: &[NamedSource], loading: Loading) -> Result<Self> {
        let mut named: Vec<(String, String)> = Vec::new();
        for NamedSource { name, source } in sources {
            let name = match name {
                Some(name) => name.clone(),
                None => hub::locate(source, loading.offline, &*loading.events)?.1,
            };
            if named.iter().any(|(other, _)| *other == name) {
                let message = format!("{source}: there is another model `{name}`; write NAME={source}");
                return Err(UsageError::new(message).into());
            }
            named.push((name, source.clone()));
        }
        ensure!(!named.is_empty(), "there is no model to serve");
        let loaded = named
            .iter()
            .map(|(name, source)| Ok(Arc::new(ServedModel::load(name, source, &loading)?)))
            .collect::<Result<_>>()?;
        Ok(Self { loading, sources: named, loaded: RwLock::new(loaded) })
    }

    /// All models.
    pub(super) fn all(&self) -> Vec<Arc<ServedModel>> {
        self.loaded.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The model of this name, or the first one.
    ///
    /// # Errors
    /// If there is none of this name.
    pub(super) fn get(&self, name: Option<&str>) -> Result<Arc<ServedModel>, Refusal> {
        let all = self.all();
        let found = all.iter().find(|model| name.is_none_or(|name| model.name == name));
        found.cloned().ok_or_else(|| {
            let names: Vec<&str> = all.iter().map(|model| model.name.as_str()).collect();
            let message =
                format!("there is no model `{}`; there is {}", name.unwrap_or_default(), names.join(", "));
            Refusal::new(axum::http::StatusCode::NOT_FOUND, message)
        })
    }

    /// Loads the models whose files have changed. Requests that wait for the earlier one get its answers. A model that cannot be
    /// loaded stays as it is, with a warning.
    pub(super) fn reload(&self) {
        for (index, (name, source)) in self.sources.iter().enumerate() {
            let events = &self.loading.events;
            match self.reloaded(index) {
                Ok(Some(model)) => {
                    let mut loaded = self.loaded.write().unwrap_or_else(PoisonError::into_inner);
                    loaded[index] = Arc::new(model);
                    events.emit(Event::notice(format!("model {name}: loaded {source} again")));
                }
                Ok(None) => events.emit(Event::notice(format!("model {name}: {source} has not changed"))),
                Err(error) => {
                    events.emit(Event::warning(format!("model {name}: kept as it was: {error:#}")));
                }
            }
        }
    }

    /// The model at an index if its files have changed.
    fn reloaded(&self, index: usize) -> Result<Option<ServedModel>> {
        let (name, source) = &self.sources[index];
        let before =
            self.all().get(index).map(|model| model.checksum.clone()).context("there is no such model")?;
        let model = ServedModel::load(name, source, &self.loading)?;
        Ok((model.checksum != before).then_some(model))
    }
}
