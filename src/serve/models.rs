//! The models of the server, by name, and their replacement when their files have changed.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use anyhow::{Result, ensure};
use burn::module::Module;
use vitrine_datasets::DecodeLimits;
use vitrine_models::{ModelConfig, VisionTransformer};

use super::metrics::Metrics;
use super::refusal::Refusal;
use super::worker::{Batching, Defects, Worker};
use crate::device::FoundDevice;
use crate::events::{Event, EventSink};
use crate::explain::{Explainer, Method};
use crate::import;
use crate::memory::{self, Work};
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
    pub source: PathBuf,
}

impl FromStr for NamedSource {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, source) = match text.split_once('=') {
            Some((name, source)) if !Path::new(text).exists() => (Some(name), source),
            _ => (None, text),
        };
        if name.is_some_and(str::is_empty) || source.is_empty() {
            return Err("it must be MODEL or NAME=MODEL".to_owned());
        }
        Ok(Self { name: name.map(str::to_owned), source: source.into() })
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
    pub(super) defects: Defects,
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
    /// The files that it was read from, and their SHA-256.
    files: Vec<PathBuf>,
    /// Whether they are another library's.
    is_imported: bool,
    checksum: String,
}

impl Loading {
    /// The methods for which a model has overlays; none if the memory does not suffice, with a warning.
    fn methods(&self, model: &VisionTransformer, name: &str) -> Vec<Method> {
        match memory::check(model.config(), Work::Explaining(1), &self.device) {
            Ok(_) => Method::by_default(model),
            Err(error) => {
                self.events.emit(Event::warning(format!("model {name}: without /explain: {error:#}")));
                Vec::new()
            }
        }
    }
}

impl ServedModel {
    /// Loads a model. Without a `name`, it gets that of its file, folder, or repository.
    fn load(name: Option<&str>, source: &Path, loading: &Loading) -> Result<Self> {
        let Loading { device, limits, batching, offline, metrics, events, .. } = loading;
        let change = ModelConfig::deterministic;
        let named = named_model::load(source, *offline, &device.device, change, &**events)?;
        let checksum = model_file::checksum(&named.files)?;
        named.warn_of_head(&**events);
        let NamedModel { card, model, files, is_imported, .. } = named;
        let name = name.map_or(named.name, str::to_owned);
        // All classifiers share the copies; the first overlay gets parameters of its own.
        let model = model.packed();
        let with_limits = || Classifier::new(card.clone(), model.clone(), device).with_limits(*limits);
        let worker = |output| {
            let (metrics, name) = (Arc::clone(metrics), name.clone());
            let observe = move |images| metrics.batch(&name, output, images);
            Worker::of_output(with_limits(), output, *batching, observe, loading.defects.clone())
        };
        if let Some(warning) = with_limits().predictor().check_memory(batching.images)? {
            events.emit(Event::warning(warning));
        }
        let has_classifier = card.has_classifier();
        let methods = if has_classifier { loading.methods(&model, &name) } else { Vec::new() };
        let explainer = {
            let (card, model, device, limits) = (card.clone(), model.clone(), device.clone(), *limits);
            move || Explainer::new(card, model.unpacked().train(), &device).with_limits(limits)
        };
        Ok(Self {
            parameters: model.num_params(),
            methods,
            logits: has_classifier.then(|| worker(Output::Logits)).transpose()?,
            embeddings: worker(Output::Embedding)?,
            overlays: Worker::of_overlays(explainer, loading.defects.clone())?,
            name,
            card,
            files,
            is_imported,
            checksum,
        })
    }
}

/// All models, in the order in which the user named them.
pub(super) struct Models {
    loading: Loading,
    sources: Vec<PathBuf>,
    loaded: RwLock<Vec<Arc<ServedModel>>>,
    /// Held while models are loaded again, so that this happens once at a time.
    reloading: Mutex<()>,
}

impl Models {
    /// Loads all models.
    ///
    /// # Errors
    /// If one cannot be loaded, or two have the same name.
    pub(super) fn load(sources: &[NamedSource], loading: Loading) -> Result<Self> {
        let mut loaded: Vec<Arc<ServedModel>> = Vec::new();
        for NamedSource { name, source } in sources {
            let model = ServedModel::load(name.as_deref(), source, &loading)?;
            if loaded.iter().any(|other| other.name == model.name) {
                let source = source.display();
                let message =
                    format!("{source}: there is another model `{}`; write NAME={source}", model.name);
                return Err(UsageError::new(message).into());
            }
            loaded.push(Arc::new(model));
        }
        ensure!(!loaded.is_empty(), "there is no model to serve");
        let sources = sources.iter().map(|named| named.source.clone()).collect();
        Ok(Self { loading, sources, loaded: RwLock::new(loaded), reloading: Mutex::new(()) })
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
        let _alone = self.reloading.lock().unwrap_or_else(PoisonError::into_inner);
        for (index, (source, before)) in self.sources.iter().zip(self.all()).enumerate() {
            let (name, shown) = (&before.name, source.display());
            let event = match self.reloaded(source, &before) {
                Ok(Some(model)) => {
                    let mut loaded = self.loaded.write().unwrap_or_else(PoisonError::into_inner);
                    loaded[index] = Arc::new(model);
                    Event::notice(format!("model {name}: loaded {shown} again"))
                }
                Ok(None) => Event::notice(format!("model {name}: {shown} has not changed")),
                Err(error) => Event::warning(format!("model {name}: kept as it was: {error:#}")),
            };
            self.loading.events.emit(event);
        }
    }

    /// A model from its source, if its files have changed.
    fn reloaded(&self, source: &Path, before: &ServedModel) -> Result<Option<ServedModel>> {
        // The files are compared as they are before they are read: what is replaced meanwhile is found by the next signal.
        // A description may have come that was not there.
        let files = if before.is_imported { import::files_now(&before.files) } else { before.files.clone() };
        let checksum = model_file::checksum(&files)?;
        if checksum == before.checksum {
            return Ok(None);
        }
        let model = ServedModel::load(Some(&before.name), source, &self.loading)?;
        Ok(Some(ServedModel { checksum, ..model }))
    }
}
