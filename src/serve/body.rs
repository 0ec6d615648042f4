//! The images in the body of a request: one as it is, several as a form, or as base64 in JSON.

use std::path::Path;
use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use axum::extract::{FromRequest, Multipart, Request};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::http::request::Parts;
use base64::prelude::{BASE64_STANDARD, Engine};
use futures_util::StreamExt;
use serde::Deserialize;
use tokio::sync::OwnedSemaphorePermit;
use utoipa::ToSchema;
use vitrine_datasets::ImageSource;

use super::refusal::Refusal;
use super::state::Queue;

/// The types of a TGA image, a format without a signature: programs do not agree on one.
const TGA: [&str; 4] = ["image/x-tga", "image/x-targa", "image/tga", "image/targa"];

/// The types of a body that is an image file, besides those of images. The last is what curl says of `--data-binary`.
const AS_IT_IS: [&str; 3] = ["", "application/octet-stream", "application/x-www-form-urlencoded"];

/// The images of a request.
pub(super) struct Images {
    pub(super) images: Vec<NamedImage>,
    /// The memory that the body has taken.
    pub(super) memory: OwnedSemaphorePermit,
    /// Whether the body was one image, and not a list.
    pub(super) is_single: bool,
}

/// An image file with the name that its answer gets.
pub(super) struct NamedImage {
    pub(super) name: Option<String>,
    bytes: Vec<u8>,
    /// Whether it is a TGA image unless its bytes say otherwise.
    is_tga: bool,
}

impl NamedImage {
    /// An image of a list, whose name has the extension of its format.
    fn listed(name: Option<String>, bytes: Vec<u8>) -> Self {
        let extension = name.as_ref().and_then(|name| Path::new(name).extension());
        let is_tga = extension.is_some_and(|extension| extension.eq_ignore_ascii_case("tga"));
        Self { name, bytes, is_tga }
    }

    /// The image for the predictor.
    pub(super) fn source(self) -> ImageSource {
        let name = if self.is_tga { UNNAMED_TGA } else { UNNAMED };
        ImageSource::Encoded { name: name.to_owned(), bytes: self.bytes.into() }
    }
}

/// The name of every image in messages of the predictor, but for those of TGA, which are recognized by it.
const UNNAMED: &str = "image";
const UNNAMED_TGA: &str = "image.tga";

/// A message of the predictor without the name.
pub(super) fn without_name(message: &str) -> &str {
    let without = |name: &str| message.strip_prefix(name)?.strip_prefix(": ");
    without(UNNAMED).or_else(|| without(UNNAMED_TGA)).unwrap_or(message)
}

/// Images as JSON.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct EncodedImages {
    /// The images, in the order of the answers.
    #[schema(min_items = 1)]
    images: Vec<EncodedImage>,
}

/// An image file as base64.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct EncodedImage {
    /// A name that the answer repeats.
    name: Option<String>,
    /// The bytes of the file in base64, with padding (RFC 4648, section 4).
    #[schema(content_encoding = "base64")]
    data: String,
}

/// Reads the images of a request, whose body has at most `limit` bytes.
///
/// # Errors
/// If the body is too large (413), of another type (415), or not what its type says (400).
pub(super) async fn images(request: Request, limit: usize, queue: &Queue) -> Result<Images, Refusal> {
    let (parts, body) = request.into_parts();
    let (body, memory) = bytes(body, limit, queue).await?;
    let kind = parts.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let images = match kind.as_str() {
        "multipart/form-data" => form(parts, body, queue).await?,
        "application/json" => {
            let (most, body) = apart(move || (most_images(&body), body)).await?;
            queue.check_number(most)?;
            apart(move || json(&body)).await??
        }
        image if AS_IT_IS.contains(&image) || image.starts_with("image/") => {
            if body.is_empty() {
                return Err(Refusal::bad("the body is empty: send the bytes of an image file"));
            }
            let images = vec![NamedImage { name: None, bytes: body, is_tga: TGA.contains(&image) }];
            return Ok(Images { images, memory, is_single: true });
        }
        other => {
            let message = format!(
                "the content type {other} is not one of image/*, application/octet-stream, multipart/form-data, and application/json"
            );
            return Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
        }
    };
    if images.is_empty() {
        return Err(Refusal::bad("there is no image in the body"));
    }
    Ok(Images { images, memory, is_single: false })
}

/// Reads a body of at most `limit` bytes, and takes the memory for it. The rest of a larger one is discarded.
///
/// # Errors
/// 413 if the body is larger, 503 if there is no memory for it, and 400 if it ends early.
async fn bytes(body: Body, limit: usize, queue: &Queue) -> Result<(Vec<u8>, OwnedSemaphorePermit), Refusal> {
    let mut stream = body.into_data_stream();
    let (mut bytes, mut memory) = (Vec::new(), queue.memory(0, 0)?);
    while let Some(part) = stream.next().await {
        let part = part.map_err(|error| Refusal::bad(format!("the body ends early: {error}")))?;
        let refusal = if bytes.len() + part.len() > limit {
            let message =
                format!("the body is larger than {limit} bytes, which is the most that this server takes");
            Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, message)
        } else {
            match queue.memory(bytes.len(), part.len()) {
                Ok(more) => {
                    memory.merge(more);
                    bytes.extend_from_slice(&part);
                    continue;
                }
                Err(refusal) => refusal,
            }
        };
        drop((bytes, memory));
        discard_stream(stream).await;
        return Err(refusal);
    }
    Ok((bytes, memory))
}

/// Reads and drops what a client is still sending, so that it sees the answer: at most 64 MiB, for two seconds.
pub(super) async fn discard(request: Request) {
    discard_stream(request.into_body().into_data_stream()).await;
}

async fn discard_stream(mut stream: BodyDataStream) {
    const BYTES: usize = 64 << 20;
    const TIME: Duration = Duration::from_secs(2);
    let rest = async {
        let mut dropped = 0;
        while let Some(Ok(part)) = stream.next().await {
            dropped += part.len();
            if dropped > BYTES {
                break;
            }
        }
    };
    // Whether the body has ended or not, the answer is a refusal.
    let _ = tokio::time::timeout(TIME, rest).await;
}

async fn form(parts: Parts, body: Vec<u8>, queue: &Queue) -> Result<Vec<NamedImage>, Refusal> {
    let request = Request::from_parts(parts, Body::from(body));
    let mut form = Multipart::from_request(request, &())
        .await
        .map_err(|rejection| Refusal::new(rejection.status(), rejection.body_text()))?;
    let failed =
        |error: axum::extract::multipart::MultipartError| Refusal::new(error.status(), error.body_text());
    let mut images = Vec::new();
    while let Some(field) = form.next_field().await.map_err(failed)? {
        let Some(name) = field.file_name().map(str::to_owned) else {
            let field = field.name().unwrap_or_default();
            return Err(Refusal::bad(format!("the field `{field}` of the form holds no file")));
        };
        queue.check_number(images.len() + 1)?;
        images.push(NamedImage::listed(Some(name), field.bytes().await.map_err(failed)?.to_vec()));
    }
    Ok(images)
}

/// Computes something on another thread: a long text would keep all other requests waiting on this one.
async fn apart<T: Send + 'static>(compute: impl FnOnce() -> T + Send + 'static) -> Result<T, Refusal> {
    tokio::task::spawn_blocking(compute).await.map_err(|_| Refusal::bad("the JSON is not usable"))
}

/// The largest number of images that JSON may hold, which is that of its objects and lists within the outermost object and its list. It is
/// known before the JSON is read, as many small objects would take many times the memory of their text. Brackets in names and other
/// strings do not count.
fn most_images(body: &[u8]) -> usize {
    let (mut opened, mut in_string) = (0_usize, false);
    let mut bytes = body.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => in_string = !in_string,
            // A quotation mark after it does not end the string.
            b'\\' if in_string => {
                bytes.next();
            }
            b'{' | b'[' if !in_string => opened += 1,
            _ => {}
        }
    }
    opened.saturating_sub(2)
}

fn json(body: &[u8]) -> Result<Vec<NamedImage>, Refusal> {
    let EncodedImages { images } = serde_json::from_slice(body)
        .map_err(|error| Refusal::bad(format!("the JSON is not usable: {error}")))?;
    let decoded = |(index, EncodedImage { name, data }): (usize, EncodedImage)| {
        let bytes = BASE64_STANDARD
            .decode(data)
            .map_err(|error| Refusal::bad(format!("images[{index}].data is not base64: {error}")))?;
        Ok(NamedImage::listed(name, bytes))
    };
    images.into_iter().enumerate().map(decoded).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_holds_files_in_base64_with_names_or_without() {
        let body = br#"{"images": [{"name": "a", "data": "AQI="}, {"data": ""}]}"#;
        let images = json(body).map_err(|refusal| refusal.status).unwrap();
        assert_eq!((images[0].name.as_deref(), images[0].bytes.as_slice()), (Some("a"), &[1, 2][..]));
        assert_eq!((images[1].name.as_deref(), images[1].bytes.as_slice()), (None, &[][..]));
        for wrong in ["{}", "[]", r#"{"images": [{"data": "A"}]}"#, r#"{"images": [{"data": "", "x": 1}]}"#] {
            assert_eq!(json(wrong.as_bytes()).err().unwrap().status, StatusCode::BAD_REQUEST, "{wrong}");
        }
    }

    #[test]
    fn json_of_many_small_objects_is_refused_before_it_is_read() {
        let queue = Queue::new(2, 1 << 20);
        for object in ["{}", "[null, \"\"]"] {
            let body = |objects: usize| format!("{{\"images\": [{}]}}", vec![object; objects].join(","));
            let check = |objects| queue.check_number(most_images(body(objects).as_bytes()));
            assert!(check(2).is_ok());
            assert_eq!(check(3).err().unwrap().status, StatusCode::PAYLOAD_TOO_LARGE);
        }
    }

    #[test]
    fn brackets_in_names_are_no_images() {
        for name in ["[{[{", r#"\"[{"#, r"\\", r#"[\\\"{"#] {
            let body = format!(r#"{{"images": [{{"name": "{name}", "data": ""}}, {{"data": ""}}]}}"#);
            assert_eq!(most_images(body.as_bytes()), 2, "{body}");
            assert_eq!(json(body.as_bytes()).map_err(|refusal| refusal.status).unwrap().len(), 2);
        }
        assert_eq!([&b""[..], b"3", b"\"[[[", b"{}"].map(most_images), [0; 4]);
    }

    #[tokio::test]
    async fn small_parts_take_no_more_memory_than_large_ones() {
        let queue = Queue::new(1, 8192);
        let parts = (0..100).map(|_| Ok::<_, std::io::Error>(vec![0_u8; 64]));
        let body = Body::from_stream(futures_util::stream::iter(parts));
        let (bytes, _memory) = bytes(body, 1 << 20, &queue).await.map_err(|refusal| refusal.status).unwrap();
        assert_eq!(bytes.len(), 6400);
    }

    #[test]
    fn messages_lose_the_name_that_nobody_gave() {
        assert_eq!(without_name("image: cut short"), "cut short");
        assert_eq!(without_name("image.tga: cut short"), "cut short");
        assert_eq!(without_name("images are wrong"), "images are wrong");
    }
}
