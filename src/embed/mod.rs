//! Embeddings: the vectors that a model makes of images before its head. Their files, the search for the most similar
//! images, and a map of them.
//!
//! [`Classifier::embed`](crate::Classifier::embed) computes them, [`Embeddings`] holds a row per image, and
//! [`Embeddings::nearest`] finds the images that are most similar by the cosine of the angle between two rows, for which
//! [`Whitening`] makes them ready.
//!
//! # Examples
//!
//! The photos of a folder that are most similar to one image:
//!
//! ```no_run
//! use vitrine::embed::Embeddings;
//! use vitrine::Classifier;
//! use vitrine_datasets::ImageSource;
//!
//! let classifier = Classifier::load("runs/photos-hybrid_nano_patch16_128-1".as_ref())?;
//! let embedded = |files: &[&str]| -> anyhow::Result<Embeddings> {
//!     let mut embeddings = Embeddings::new(classifier.card().model.embedding_dim());
//!     let sources: Vec<_> = files.iter().map(|file| ImageSource::File(file.into())).collect();
//!     for (file, embedding) in files.iter().zip(classifier.embed(&sources)) {
//!         embeddings.push((*file).to_owned(), &embedding?);
//!     }
//!     Ok(embeddings)
//! };
//! let photos = embedded(&["a.jpg", "b.jpg", "c.jpg"])?;
//! for found in &photos.nearest(&embedded(&["cat.jpg"])?, 2, |_, _| true)[0] {
//!     println!("{:.3} {}", found.similarity, photos.paths[found.index]);
//! }
//! # Ok::<(), anyhow::Error>(())
//! ```

mod components;
mod embeddings;
mod file;
mod map;
mod search;
mod similar_page;
mod span;
mod whitening;

pub use components::Components;
pub use embeddings::{Embeddings, normalize};
pub use file::{DESCRIPTION, Description, HeaderPaths, StoredEmbeddings, paths_beside};
pub use map::{ImageClasses, Map};
pub use search::Neighbor;
pub use similar_page::{Found, Query, THUMBNAIL, similar_page};
pub use span::{Placing, Span};
pub use whitening::{FEWEST_IMAGES, Whitening};
