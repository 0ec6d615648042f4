//! Fuzz target for the text files that the program reads: a model file's header, `--model` and `--recipe` files, a
//! run's `config.toml`, and the `config.json` and `preprocessor_config.json` of other libraries. Arbitrary text gives
//! an error or a value, never a panic, and takes no more memory than the weights next to it.
//!
//! The first byte, a digit from 0 to 5, selects the kind of file. Make the initial corpus from the configurations in
//! `tests/fixtures` and the output of `vitrine inspect MODEL --json`, each with its digit in front. `weights.rs` says
//! how to run a target.

#![no_main]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use burn::tensor::Device;
use libfuzzer_sys::fuzz_target;
use tempfile::TempDir;
use vitrine::import::{self, Options};
use vitrine::recipe::Recipe;
use vitrine::plan;
use vitrine::run_folder::RunFolder;
use vitrine::model_file;

/// Weights of a small model with timm's tensor names.
const TIMM: &[u8] = include_bytes!("../../tests/fixtures/timm_vit/weights.safetensors");
/// Weights of a small model with Hugging Face's tensor names.
const HUGGING_FACE: &[u8] = include_bytes!("../../tests/fixtures/hf_vit/weights.safetensors");

/// A temporary folder with weights for the text files to lie next to.
struct Workspace {
    _folder: TempDir,
    path: PathBuf,
}

/// The folder of this process, which the first call makes.
fn workspace() -> &'static Path {
    static WORKSPACE: OnceLock<Workspace> = OnceLock::new();
    &WORKSPACE
        .get_or_init(|| {
            let folder = tempfile::tempdir().expect("a folder for temporary files");
            let path = folder.path().to_owned();
            for name in ["timm", "hugging_face", "preprocessor", "run/last/0"] {
                fs::create_dir_all(path.join(name)).expect("folders in it");
            }
            for (name, content) in [
                ("timm/model.safetensors", TIMM),
                ("hugging_face/model.safetensors", HUGGING_FACE),
                ("preprocessor/model.safetensors", HUGGING_FACE),
                ("preprocessor/config.json", include_bytes!("../../tests/fixtures/hf_vit/config.json")),
                ("run/last/current", b"0"),
            ] {
                fs::write(path.join(name), content).expect("files in them");
            }
            Workspace { _folder: folder, path }
        })
        .path
}

/// A model file with `text` as the model card in its header.
fn with_card(text: &str) -> Vec<u8> {
    let (length, rest) = TIMM.split_at(8);
    let length = u64::from_le_bytes(length.try_into().expect("eight bytes")) as usize;
    let mut header: serde_json::Value = serde_json::from_slice(&rest[..length]).expect("a header");
    header["__metadata__"] = serde_json::json!({ "vitrine": text });
    let header = serde_json::to_vec(&header).expect("text");
    [&(header.len() as u64).to_le_bytes()[..], &header, &rest[length..]].concat()
}

/// Writes a file in the folder and returns its path.
fn write(name: &str, content: &[u8]) -> PathBuf {
    let path = workspace().join(name);
    fs::write(&path, content).expect("a file in the folder");
    path
}

fuzz_target!(|content: &[u8]| {
    let Some((kind, rest)) = content.split_first() else { return };
    let text = String::from_utf8_lossy(rest);
    match kind {
        b'0' => {
            let path = write("card.safetensors", &with_card(&text));
            if let Ok(card) = model_file::read_card(&path) {
                let again = serde_json::to_string(&card).expect("what was read can be written");
                let _ = serde_json::from_str::<model_file::ModelCard>(&again).expect("and read again");
            }
            let _ = model_file::load(&path, &Device::flex());
        }
        b'1' => {
            let _ = plan::read_model(&write("model.toml", rest));
        }
        b'2' => {
            let _ = Recipe::read(&write("recipe.toml", rest));
        }
        b'3' => {
            write("run/config.toml", rest);
            let _ = RunFolder::open(&workspace().join("run"));
        }
        b'4' => {
            for folder in ["timm", "hugging_face"] {
                write(&format!("{folder}/config.json"), rest);
                let imported = import::load(&workspace().join(folder), &Options::default());
                if let Ok(imported) = imported {
                    let _ = imported.model(&Device::flex());
                }
            }
        }
        b'5' => {
            write("preprocessor/preprocessor_config.json", rest);
            let _ = import::load(&workspace().join("preprocessor"), &Options::default());
        }
        _ => {}
    }
});
