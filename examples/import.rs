//! Reads another library's weights (timm, Hugging Face, torchvision, Microsoft) and writes a model file:
//! `cargo run --release --example import -- vit_b_16-c867db91.pth vit_b_16.safetensors`.

#![allow(clippy::print_stdout)]

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use burn::module::Module;
use burn::tensor::Device;
use vitrine::import::{self, Options};
use vitrine::model_file;
use vitrine::weights_file::Precision;

fn main() -> Result<()> {
    let mut arguments = std::env::args_os().skip(1).map(PathBuf::from);
    let source =
        arguments.next().context("name a file or folder of weights, then the model file to write")?;
    let output = arguments.next().context("name the model file to write")?;

    // Every tensor is accounted for. One that is missing, unexpected, or of another shape is an error that names it.
    let imported = import::load(&source, &Options::default())?;
    for line in imported.account.lines() {
        println!("{line}");
    }
    ensure!(imported.has_head, "{}: these weights have no classifier", source.display());

    let card = imported.card.clone();
    println!("{}", import::summary(&card.model));
    let model = imported.model(&Device::default())?;
    println!("{} parameters, {} classes", model.num_params(), card.classes.len());
    model_file::save(&output, &card, &model, Precision::F32)?;
    println!("model: {}", output.display());
    Ok(())
}
