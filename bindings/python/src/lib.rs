//! The module `vitrine._vitrine`, on which `python/vitrine/__init__.py` stands.

use std::path::PathBuf;
use std::sync::Arc;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;
use vitrine::predict::probabilities;
use vitrine::{Classifier, LoadOptions, threads};
use vitrine_datasets::{Image, ImageSource};

#[cfg(not(target_env = "msvc"))]
#[global_allocator]
static ALLOCATOR: vitrine::allocator::MiMalloc = vitrine::allocator::MiMalloc;

/// A loaded model.
#[pyclass(frozen, module = "vitrine._vitrine")]
struct Model {
    classifier: Classifier,
}

/// An image as Python passes it.
#[derive(FromPyObject)]
enum Input {
    /// Bytes, height, width, and channels.
    Pixels(PyBackedBytes, u32, u32, u8),
    Encoded(PyBackedBytes),
    File(PathBuf),
}

/// An error with the message of the program.
fn failure(error: anyhow::Error) -> PyErr {
    PyRuntimeError::new_err(format!("{error:#}"))
}

#[pymethods]
impl Model {
    #[new]
    fn new(
        py: Python<'_>,
        model: PathBuf,
        device: Option<String>,
        offline: bool,
        batch_size: usize,
    ) -> PyResult<Self> {
        let loaded = py.detach(|| vitrine::load(model, &LoadOptions { device, offline }));
        Ok(Self { classifier: loaded.map_err(failure)?.with_batch_size(batch_size) })
    }

    #[getter]
    fn classes(&self) -> Vec<String> {
        self.classifier.card().classes.clone()
    }

    #[getter]
    fn multi_label(&self) -> bool {
        self.classifier.card().multi_label
    }

    #[getter]
    fn embedding_dim(&self) -> usize {
        self.classifier.card().model.embedding_dim()
    }

    #[getter]
    fn image_size(&self) -> (usize, usize) {
        let [height, width] = self.classifier.card().preprocessing.image_size;
        (height, width)
    }

    /// The logits of each image, or their probabilities in float64, one row after the other; and for each image its error, if it
    /// could not be read, whose row is missing.
    fn classify<'py>(
        &self,
        py: Python<'py>,
        images: Vec<Input>,
        as_probabilities: bool,
    ) -> (Bound<'py, PyBytes>, Vec<Option<String>>) {
        let (values, errors) = py.detach(|| {
            let answers = self.classifier.classify(&sources(images));
            let card = self.classifier.card();
            collect(answers, |row, bytes| match as_probabilities {
                true => bytes.extend(probabilities(card, row).into_iter().flat_map(f64::to_ne_bytes)),
                false => bytes.extend(row.iter().copied().flat_map(f32::to_ne_bytes)),
            })
        });
        (PyBytes::new(py, &values), errors)
    }

    /// The embedding of each image in float32, and the errors as of [`Self::classify`].
    fn embed<'py>(&self, py: Python<'py>, images: Vec<Input>) -> (Bound<'py, PyBytes>, Vec<Option<String>>) {
        let (values, errors) = py.detach(|| {
            let answers = self.classifier.embed(&sources(images));
            collect(answers, |row, bytes| bytes.extend(row.iter().copied().flat_map(f32::to_ne_bytes)))
        });
        (PyBytes::new(py, &values), errors)
    }
}

fn sources(images: Vec<Input>) -> Vec<ImageSource> {
    let source = |(index, image): (usize, Input)| {
        let name = format!("image {index}");
        match image {
            Input::File(path) => ImageSource::File(path),
            Input::Encoded(bytes) => ImageSource::Encoded { name, bytes: bytes[..].into() },
            Input::Pixels(pixels, height, width, channels) => {
                let pixels = pixels.to_vec();
                ImageSource::Pixels { name, image: Arc::new(Image { width, height, channels, pixels }) }
            }
        }
    };
    images.into_iter().enumerate().map(source).collect()
}

/// The bytes of all answers, and the error of each image that has none.
fn collect(
    answers: Vec<anyhow::Result<Vec<f32>>>,
    add: impl Fn(&[f32], &mut Vec<u8>),
) -> (Vec<u8>, Vec<Option<String>>) {
    let mut values = Vec::new();
    let errors = answers.into_iter().map(|answer| match answer {
        Ok(row) => {
            add(&row, &mut values);
            None
        }
        Err(error) => Some(format!("{error:#}")),
    });
    let errors = errors.collect();
    (values, errors)
}

/// Lets the process compute with this many threads.
#[pyfunction]
fn set_threads(count: Option<usize>) -> PyResult<usize> {
    threads::set(count).map_err(failure)
}

/// The native part of the package.
#[pymodule]
fn _vitrine(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<Model>()?;
    module.add_function(wrap_pyfunction!(set_threads, module)?)
}
