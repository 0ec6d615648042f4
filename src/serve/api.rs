//! The API: what models answer about images, and what the server says of itself.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, Request, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, IntoResponses, ToSchema};

use super::body::{self, EncodedImages, Images, NamedImage, without_name};
use super::refusal::{Problem, Refusal};
use super::state::{Queue, Server};
use super::worker::{Pending, Place, Worker};
use crate::embed::normalize;
use crate::explain::Method;
use crate::flags::explained;
use crate::predict::{Prediction, rank};

/// The most classes that an answer names.
const LARGEST_TOP: u32 = 1000;

/// Refusals of requests about images.
#[derive(IntoResponses)]
#[allow(dead_code)] // the documentation of `Refusal`
pub(super) enum Refused {
    /// The request cannot be meant.
    #[response(status = 400)]
    Bad(Problem),
    /// The token is missing or wrong.
    #[response(status = 401)]
    Token(Problem),
    /// A page of another server asks.
    #[response(status = 403)]
    Page(Problem),
    /// There is no model of this name.
    #[response(status = 404)]
    Model(Problem),
    /// The request took too long.
    #[response(status = 408)]
    Slow(Problem),
    /// The body is larger, or holds more images, than the server takes.
    #[response(status = 413)]
    Large(Problem),
    /// The body is of another type.
    #[response(status = 415)]
    Type(Problem),
    /// The body is no readable image, or the model has no such answer.
    #[response(status = 422)]
    Unreadable(Problem),
    /// More images wait than the server takes: send the request again after `Retry-After` seconds.
    #[response(status = 503)]
    Busy(Problem),
}

/// What is asked of a classifier.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ClassifyQuery {
    /// The name of the model; by default the first one.
    model: Option<String>,
    /// How many classes to name for each image, at most.
    #[param(minimum = 1, maximum = 1000, default = 5)]
    top: Option<u32>,
    /// Whether to add the logits of all classes.
    #[serde(default)]
    logits: bool,
}

/// What is asked of a backbone.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct EmbedQuery {
    /// The name of the model; by default the first one.
    model: Option<String>,
    /// Whether to scale each embedding to a length of 1.
    #[serde(default)]
    normalize: bool,
}

/// What is asked of an explanation.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ExplainQuery {
    /// The name of the model; by default the first one.
    model: Option<String>,
    /// One of the methods that `/models` lists for the model; by default the first of them.
    method: Option<String>,
}

/// The classes of images.
#[derive(Serialize, ToSchema)]
pub(super) struct Classified {
    /// The name of the model.
    model: String,
    /// One for each image, in their order.
    results: Vec<Named<Classes>>,
}

/// The embeddings of images.
#[derive(Serialize, ToSchema)]
pub(super) struct Embedded {
    /// The name of the model.
    model: String,
    /// One for each image, in their order.
    results: Vec<Named<Embedding>>,
}

/// The answer for an image.
#[derive(Serialize, ToSchema)]
struct Named<A> {
    /// The name of the image in a form or in JSON, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(flatten)]
    outcome: Outcome<A>,
}

#[derive(Serialize, ToSchema)]
#[serde(untagged)]
enum Outcome<A> {
    Answer(A),
    Failed(Problem),
}

#[derive(Serialize, ToSchema)]
struct Classes {
    /// The most probable classes, the most probable first.
    predictions: Vec<ClassProbability>,
    /// The logits of all classes, in the order of `/models`.
    #[serde(skip_serializing_if = "Option::is_none")]
    logits: Option<Vec<f32>>,
}

/// A class with its probability.
#[derive(Serialize, ToSchema)]
struct ClassProbability {
    /// The name of the class.
    label: String,
    /// The index of the class among those of the model.
    index: usize,
    /// From 0 to 1. Of a model that gives an image several labels, each class by itself.
    probability: f64,
}

impl From<Prediction> for ClassProbability {
    fn from(Prediction { label, index, probability }: Prediction) -> Self {
        Self { label, index, probability }
    }
}

#[derive(Serialize, ToSchema)]
struct Embedding {
    /// What the model makes of the image before its head.
    embedding: Vec<f32>,
}

/// The models of the server.
#[derive(Serialize, ToSchema)]
pub(super) struct ModelList {
    models: Vec<ModelFacts>,
}

/// A model of the server.
#[derive(Serialize, ToSchema)]
struct ModelFacts {
    /// Its name in this API.
    name: String,
    /// The classes in the order of their indices; none for a backbone, which has embeddings alone.
    classes: Vec<String>,
    /// Whether an image may have several labels.
    multi_label: bool,
    /// Height and width of what the model sees, in pixels.
    image_size: [usize; 2],
    /// Number of parameters.
    parameters: usize,
    /// Length of an embedding.
    embedding_dim: usize,
    /// The methods of `/explain`.
    explain: Vec<&'static str>,
}

/// The query of a request.
fn query<Q>(query: Result<Query<Q>, QueryRejection>) -> Result<Q, Refusal> {
    query.map(|Query(query)| query).map_err(|rejection| Refusal::bad(rejection.body_text()))
}

/// An image whose answer is being computed.
struct AskedImage<A> {
    name: Option<String>,
    pending: Pending<A>,
}

/// Asks a worker about images, when there are places for all of them.
fn ask<Q: Copy, A>(
    worker: &Worker<Q, A>,
    question: Q,
    Images { images, memory, .. }: Images,
    queue: &Queue,
) -> Result<Vec<AskedImage<A>>, Refusal> {
    let places = queue.places(images.len(), memory)?;
    let ask = |(image, place): (NamedImage, Place)| {
        let name = image.name.clone();
        Ok(AskedImage { name, pending: worker.ask(question, image.source(), place)? })
    };
    images.into_iter().zip(places).map(ask).collect()
}

/// The answers about images, in their order. If the body was a single image, it must be readable.
async fn answers<T, A>(
    asked: Vec<AskedImage<A>>,
    is_single: bool,
    form: impl Fn(A) -> T,
) -> Result<Vec<Named<T>>, Refusal> {
    let mut results = Vec::with_capacity(asked.len());
    for AskedImage { name, pending } in asked {
        let outcome = match pending.answer().await? {
            Ok(answer) => Outcome::Answer(form(answer)),
            Err(error) => {
                let message = explained(&error);
                let error = without_name(&message).to_owned();
                if is_single {
                    return Err(Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, error));
                }
                Outcome::Failed(Problem { error })
            }
        };
        results.push(Named { name, outcome });
    }
    Ok(results)
}

/// Classify images.
///
/// The body is an image file, a form with a file in each field, under any names, or JSON with files in base64.
#[utoipa::path(
    post,
    path = "/classify",
    params(ClassifyQuery),
    request_body(content(
        ("application/octet-stream"), ("image/*"), ("multipart/form-data"),
        (EncodedImages = "application/json"),
    )),
    responses((status = 200, description = "The most probable classes of each image", body = Classified), Refused)
)]
pub(super) async fn classify(
    State(server): State<Arc<Server>>,
    asked: Result<Query<ClassifyQuery>, QueryRejection>,
    request: Request,
) -> Result<Json<Classified>, Refusal> {
    let images = body::images(request, server.max_body_bytes, &server.queue).await;
    let ClassifyQuery { model, top, logits: with_logits } = query(asked)?;
    let top = match top {
        Some(top @ 1..=LARGEST_TOP) => top as usize,
        None => 5,
        Some(_) => return Err(Refusal::bad(format!("top must be from 1 to {LARGEST_TOP}"))),
    };
    let model = server.models.get(model.as_deref())?;
    let Some(worker) = &model.logits else {
        let message = format!("the model {} has no classifier: ask for embeddings", model.name);
        return Err(Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, message));
    };
    let images = images?;
    let is_single = images.is_single;
    let asked = ask(worker, (), images, &server.queue)?;
    let classes = |logits: Vec<f32>| Classes {
        predictions: rank(&model.card, &logits, top).into_iter().map(ClassProbability::from).collect(),
        logits: with_logits.then_some(logits),
    };
    Ok(Json(Classified { model: model.name.clone(), results: answers(asked, is_single, classes).await? }))
}

/// Embed images: what a model makes of each before its head.
///
/// The body is as for `/classify`.
#[utoipa::path(
    post,
    path = "/embed",
    params(EmbedQuery),
    request_body(content(
        ("application/octet-stream"), ("image/*"), ("multipart/form-data"),
        (EncodedImages = "application/json"),
    )),
    responses((status = 200, description = "The embedding of each image", body = Embedded), Refused)
)]
pub(super) async fn embed(
    State(server): State<Arc<Server>>,
    asked: Result<Query<EmbedQuery>, QueryRejection>,
    request: Request,
) -> Result<Json<Embedded>, Refusal> {
    let images = body::images(request, server.max_body_bytes, &server.queue).await;
    let EmbedQuery { model, normalize: normalized } = query(asked)?;
    let model = server.models.get(model.as_deref())?;
    let images = images?;
    let is_single = images.is_single;
    let asked = ask(&model.embeddings, (), images, &server.queue)?;
    let embedding = |mut embedding: Vec<f32>| {
        if normalized {
            normalize(&mut embedding);
        }
        Embedding { embedding }
    };
    Ok(Json(Embedded { model: model.name.clone(), results: answers(asked, is_single, embedding).await? }))
}

/// Draw what a model looked at over an image, for the class that it finds most probable.
#[utoipa::path(
    post,
    path = "/explain",
    params(ExplainQuery),
    request_body(content(("application/octet-stream"), ("image/*"))),
    responses((status = 200, description = "A PNG file", content_type = "image/png"), Refused)
)]
pub(super) async fn explain(
    State(server): State<Arc<Server>>,
    asked: Result<Query<ExplainQuery>, QueryRejection>,
    request: Request,
) -> Result<Response, Refusal> {
    let images = body::images(request, server.max_body_bytes, &server.queue).await;
    let ExplainQuery { model, method } = query(asked)?;
    let model = server.models.get(model.as_deref())?;
    let method = match method {
        None => model.methods.first().copied(),
        Some(name) => Method::from_str(&name, false).ok().filter(|method| model.methods.contains(method)),
    };
    if model.methods.is_empty() {
        let message = match model.card.has_classifier() {
            true => format!("the memory does not suffice to explain answers of the model {}", model.name),
            false => format!("the model {} has no classifier, so there is no answer to explain", model.name),
        };
        return Err(Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, message));
    }
    let Some(method) = method else {
        let known: Vec<&str> = model.methods.iter().map(|method| method.name()).collect();
        let message = format!("the model {} has these methods alone: {}", model.name, known.join(", "));
        return Err(Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, message));
    };
    let images = images?;
    if !images.is_single {
        let message = "send one image as the body: the answer is one picture";
        return Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
    }
    let asked = ask(&model.overlays, method, images, &server.queue)?;
    let Some(AskedImage { pending, .. }) = asked.into_iter().next() else {
        return Err(Refusal::bad("there is no image in the body"));
    };
    match pending.answer().await? {
        Ok(png) => Ok(([(CONTENT_TYPE, "image/png")], png).into_response()),
        Err(error) => {
            let message = explained(&error);
            Err(Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, without_name(&message)))
        }
    }
}

/// The models that can be asked.
#[utoipa::path(
    get,
    path = "/models",
    responses(
        (status = 200, description = "All models, the one that is asked by default first", body = ModelList),
        (status = 401, description = "The token is missing or wrong", body = Problem),
        (status = 403, description = "A page of another server asks", body = Problem),
        (status = 408, description = "The request took too long", body = Problem),
        (status = 503, description = "Too many requests at once", body = Problem),
    )
)]
pub(super) async fn models(State(server): State<Arc<Server>>) -> Json<ModelList> {
    let facts = |model: Arc<super::models::ServedModel>| ModelFacts {
        name: model.name.clone(),
        classes: model.card.classes.clone(),
        multi_label: model.card.multi_label,
        image_size: model.card.preprocessing.image_size,
        parameters: model.parameters,
        embedding_dim: model.card.model.embedding_dim(),
        explain: model.methods.iter().map(|method| method.name()).collect(),
    };
    Json(ModelList { models: server.models.all().into_iter().map(facts).collect() })
}

/// Whether the server runs.
#[utoipa::path(get, path = "/health", responses((status = 200, description = "It runs", body = String)))]
pub(super) async fn health() -> &'static str {
    "ok"
}

/// Whether requests should be sent here: all models are loaded. The port is closed from the moment that the server is asked to end.
#[utoipa::path(get, path = "/ready", responses((status = 200, description = "Requests are answered", body = String)))]
pub(super) async fn ready() -> &'static str {
    "ready"
}

/// Counts and times for Prometheus.
#[utoipa::path(
    get,
    path = "/metrics",
    responses(
        (status = 200, description = "Metrics in the format of OpenMetrics", body = String, content_type = "application/openmetrics-text"),
        (status = 401, description = "The token is missing or wrong", body = Problem),
        (status = 403, description = "A page of another server asks", body = Problem),
        (status = 408, description = "The request took too long", body = Problem),
        (status = 503, description = "Too many requests at once", body = Problem),
    )
)]
pub(super) async fn metrics(State(server): State<Arc<Server>>) -> impl IntoResponse {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(CONTENT_TYPE, kind)], server.metrics_text())
}
