//! Descriptions made of anything, each where the program reads it: a model file's header, `--model` and `--recipe` files, a run's
//! `config.toml`, `config.json` and `preprocessor_config.json` of other libraries. An error or a value, never a panic, and no more memory than
//! the weights next to it are worth.
//!
//! The first byte says which; begin with what `tests/fixtures` and `vitrine inspect MODEL --json` have, a digit from 0 to 5 before it.
//! Run it as `weights` is run.

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

/// A small model of timm, and one of Hugging Face.
const TIMM: &[u8] = include_bytes!("../../tests/fixtures/timm_vit/weights.safetensors");
const HUGGING_FACE: &[u8] = include_bytes!("../../tests/fixtures/hf_vit/weights.safetensors");

/// What is read lies in one folder, made once.
struct Place {
    _folder: TempDir,
    path: PathBuf,
}

fn place() -> &'static Path {
    static PLACE: OnceLock<Place> = OnceLock::new();
    &PLACE
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
            Place { _folder: folder, path }
        })
        .path
}

/// The weights of timm with `text` as our entry in the header.
fn with_card(text: &str) -> Vec<u8> {
    let (length, rest) = TIMM.split_at(8);
    let length = u64::from_le_bytes(length.try_into().expect("eight bytes")) as usize;
    let mut header: serde_json::Value = serde_json::from_slice(&rest[..length]).expect("a header");
    header["__metadata__"] = serde_json::json!({ "vitrine": text });
    let header = serde_json::to_vec(&header).expect("text");
    [&(header.len() as u64).to_le_bytes()[..], &header, &rest[length..]].concat()
}

fn write(name: &str, content: &[u8]) -> PathBuf {
    let path = place().join(name);
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
            let _ = RunFolder::open(&place().join("run"));
        }
        b'4' => {
            for folder in ["timm", "hugging_face"] {
                write(&format!("{folder}/config.json"), rest);
                let imported = import::load(&place().join(folder), &Options::default());
                if let Ok(imported) = imported {
                    let _ = imported.model(&Device::flex());
                }
            }
        }
        b'5' => {
            write("preprocessor/preprocessor_config.json", rest);
            let _ = import::load(&place().join("preprocessor"), &Options::default());
        }
        _ => {}
    }
});
