//! Tests of `vitrine::import` with weights and configurations that were altered: each is imported as the same model, or
//! refused, and never imported as another model.

#![allow(clippy::unwrap_used)]

mod alterations;
mod files;
mod image_size;
mod names;
#[path = "../support/reference.rs"]
mod reference;
mod stated;
mod verify;

use std::collections::BTreeMap;
use std::path::Path;

use assert_cmd::Command;
use reference::fixture;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};
use vitrine::import::{self, Imported, Options};

/// A tensor as it is stored in a file.
#[derive(Clone)]
struct Stored {
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

/// The tensors of a file by name.
type File = BTreeMap<String, Stored>;

/// The weights of a fixture.
fn stored(case: &str) -> File {
    let bytes = std::fs::read(fixture(case).join("weights.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let stored = |view: &TensorView| Stored {
        dtype: view.dtype(),
        shape: view.shape().to_vec(),
        bytes: view.data().to_vec(),
    };
    file.iter().map(|(name, view)| (name.to_owned(), stored(&view))).collect()
}

/// The configuration of a fixture, with the image size that the tests use where it states none.
fn config(case: &str) -> Value {
    let mut config: Value =
        serde_json::from_slice(&std::fs::read(fixture(case).join("config.json")).unwrap()).unwrap();
    if case == "torchvision_swin" {
        config["image_size"] = json!(32);
    }
    config
}

/// A temporary folder with weights and a configuration.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new(file: &File, config: Option<&Value>) -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        folder.weights("model.safetensors", file);
        if let Some(config) = config {
            std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
        }
        folder
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn weights(&self, name: &str, file: &File) {
        let views = file.iter().map(|(name, tensor)| {
            (name, TensorView::new(tensor.dtype, tensor.shape.clone(), &tensor.bytes).unwrap())
        });
        safetensors::serialize_to_file(views, None, &self.path().join(name)).unwrap();
    }

    fn load(&self) -> Result<Imported, String> {
        load(self.path(), &Options::default())
    }
}

/// Imports a source. The error is the whole message.
fn load(path: &Path, options: &Options) -> Result<Imported, String> {
    import::load(path, options).map_err(|error| format!("{error:#}"))
}

/// A configuration as timm writes it, for the weights of `timm_vit`.
fn timm_folder(architecture: &str) -> Value {
    json!({
        "architecture": architecture,
        "num_classes": 10,
        "model_args": { "img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 2, "num_heads": 3 },
        "pretrained_cfg": { "input_size": [3, 32, 32], "mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5],
            "crop_pct": 0.9, "interpolation": "bicubic" },
    })
}

/// The command `vitrine import`.
fn import_command(weights: &Path, output: &Path) -> Command {
    let mut command = Command::cargo_bin("vitrine").unwrap();
    command.env("NO_COLOR", "1").arg("import").arg(weights).arg("--output").arg(output);
    command
}
