//! `vitrine import`: a model file from another library's weights.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use burn::tensor::Device;
use clap::{Args, ValueEnum};
use vitrine_models::weights::Layout;

use super::Status;
use crate::Classifier;
use crate::aliases;
use crate::bounds::{self, within};
use crate::hub;
use crate::import::{self, Account, Options, verify};
use crate::model_file;
use crate::output::{note, outln};
use crate::usage::usage;
use crate::weights_file::Precision;

/// Make a model file from the weights of timm, Hugging Face, torchvision or Microsoft.
///
/// WEIGHTS is a .safetensors file, a PyTorch file (.pth, .pt, .bin; nothing in it is run), or a folder with config.json as Hugging
/// Face and timm write it. The architecture is read off the shapes, the layout off the names, and the rest off config.json and
/// preprocessor_config.json where they lie next to the weights. Every tensor is accounted for.
#[derive(Args)]
#[command(after_help = "Examples:\n  vitrine import vit_b_16-c867db91.pth --output vit_b_16.safetensors\n  \
    vitrine import vit-base-patch16-224/ --output vit.safetensors\n  \
    vitrine import hf:google/vit-base-patch16-224 --output vit.safetensors\n  \
    vitrine import weights.pth --heads 6 --image-size 224 --verify logits.json --output model.safetensors\n  \
    vitrine import weights.pth --config vit_tiny_patch16_224 --classes names.txt --output tiny.safetensors")]
pub(super) struct Import {
    /// File of weights, a folder with them, or hf:OWNER/NAME[@REVISION] of Hugging Face.
    #[arg(value_name = "WEIGHTS")]
    weights: String,
    /// Model file to write.
    #[arg(long, value_name = "MODEL", aliases = aliases::OUTPUT)]
    output: PathBuf,
    /// Whose names the tensors have; by default told from the names.
    #[arg(long, value_enum, value_name = "LAYOUT")]
    layout: Option<LayoutName>,
    /// Configuration of the model as its library writes it, or a preset's or timm's name; by default config.json next to the weights.
    #[arg(long, value_name = "FILE|PRESET")]
    config: Option<String>,
    /// File with one class name per line, in the order of the logits.
    #[arg(long, value_name = "FILE")]
    classes: Option<PathBuf>,
    /// Attention heads, where no file says how many: one number, or one per stage (3,6,12,24).
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = positive)]
    heads: Option<Vec<usize>>,
    /// Image size in pixels, where no file says it: N, or HEIGHTxWIDTH.
    #[arg(long, value_name = "N", value_parser = image_size)]
    image_size: Option<[usize; 2]>,
    /// Mean of each channel, from 0 to 1, where no file says it.
    #[arg(long, value_name = "A,B,C", value_delimiter = ',', value_parser = within(bounds::CHANNEL_MEAN), allow_hyphen_values = true)]
    mean: Option<Vec<f32>>,
    /// Standard deviation of each channel, from 0 to 1, where no file says it.
    #[arg(long, value_name = "A,B,C", value_delimiter = ',', value_parser = within(bounds::CHANNEL_DEVIATION), allow_hyphen_values = true)]
    std: Option<Vec<f32>>,
    /// Share of the scaled image that is kept, above 0 and at most 1, where no file says it.
    #[arg(long, value_name = "X", value_parser = share)]
    crop: Option<f64>,
    /// Compare with logits that the library gave: a JSON list of {"image": "a.png", "logits": [...]}, paths relative to it. No model is
    /// written where they differ.
    #[arg(long, value_name = "FILE")]
    verify: Option<PathBuf>,
    /// How far a logit may be off with --verify, relative to the image's largest.
    #[arg(long, value_name = "X", default_value_t = 1e-3, value_parser = above_zero_f64, requires = "verify")]
    tolerance: f64,
    /// How the weights are stored.
    #[arg(long, value_enum, default_value_t = Precision::F32)]
    dtype: Precision,
    /// Use of Hugging Face what was fetched before, and never the network.
    #[arg(long)]
    offline: bool,
}

/// How [`Layout`] is typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LayoutName {
    /// timm, and what derives from it.
    Timm,
    /// Hugging Face's transformers.
    HuggingFace,
    /// torchvision.
    Torchvision,
    /// Microsoft's Swin, and timm's of old.
    Microsoft,
}

impl From<LayoutName> for Layout {
    fn from(name: LayoutName) -> Self {
        match name {
            LayoutName::Timm => Self::Timm,
            LayoutName::HuggingFace => Self::HuggingFace,
            LayoutName::Torchvision => Self::Torchvision,
            LayoutName::Microsoft => Self::Microsoft,
        }
    }
}

impl Import {
    /// Whether the model gives the expected logits; each image's difference is printed.
    fn agrees(&self, classifier: &Classifier, expected: Vec<verify::Expected>) -> Result<bool> {
        let differences = verify::compare(classifier, expected)?;
        for one in &differences {
            let verdict = if one.relative <= self.tolerance { "equal" } else { "DIFFERENT" };
            outln!(
                "{}: {verdict}, largest difference {:.1e}, relative {:.1e}",
                one.image.display(),
                one.absolute,
                one.relative
            )?;
        }
        Ok(differences.iter().all(|one| one.relative <= self.tolerance))
    }

    pub(super) fn run(&self) -> Result<Status> {
        if self.output.is_dir() {
            bail!("--output {}: this is a folder; name the model file to write", self.output.display());
        }
        if self.offline && !hub::is_repository(&self.weights) {
            usage!("--offline has no effect for {}, which is not downloaded: leave it out", self.weights);
        }
        let (weights, _) = hub::locate(&self.weights, self.offline)?;
        let options = Options {
            layout: self.layout.map(Layout::from),
            config: self.config.clone(),
            classes: self.classes.clone(),
            heads: self.heads.clone(),
            image_size: self.image_size,
            mean: self.mean.clone(),
            std: self.std.clone(),
            crop: self.crop,
        };
        let imported = import::load(&weights, &options)?;
        tell(&imported.account);
        if let Some(file) = imported.account.files.iter().find(|file| same_file(&self.output, file)) {
            bail!(
                "--output {}: this is the file of weights {} itself",
                self.output.display(),
                file.display()
            );
        }
        if !imported.has_head {
            bail!(
                "{}: these weights have no classifier; train one: vitrine train DATA --pretrained {}",
                self.weights,
                self.weights
            );
        }
        let card = imported.card.clone();
        note!("{}, {} classes", import::summary(&card.model), card.classes.len());
        let model = imported.model(&Device::default())?;
        let expected =
            self.verify.as_deref().map(|path| verify::read(path, card.classes.len())).transpose()?;
        if let Some(expected) = expected {
            let classifier = Classifier::new(card.clone(), model.clone(), &Device::default());
            if !self.agrees(&classifier, expected)? {
                note!("{}: not written, for the logits differ", self.output.display());
                return Ok(Status::Partial);
            }
        }
        model_file::save(&self.output, &card, &model, self.dtype)?;
        outln!("model: {}", self.output.display())?;
        Ok(Status::Done)
    }
}

/// Numbers of an option, in the range that each can be meant in.
fn positive(text: &str) -> Result<usize, String> {
    text.parse()
        .ok()
        .filter(|number| *number > 0)
        .ok_or_else(|| "a whole number above 0 is needed".to_owned())
}

fn image_size(text: &str) -> Result<[usize; 2], String> {
    let (height, width) = text.split_once('x').unwrap_or((text, text));
    Ok([positive(height)?, positive(width)?])
}

fn above_zero_f64(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|number: &f64| number.is_finite() && *number > 0.0)
        .ok_or_else(|| "a number above 0 is needed".to_owned())
}

fn share(text: &str) -> Result<f64, String> {
    above_zero_f64(text)
        .ok()
        .filter(|share| *share <= 1.0)
        .ok_or_else(|| "a number above 0 and at most 1 is needed".to_owned())
}

/// Whether two paths lead to one file that is there.
pub(super) fn same_file(a: &Path, b: &Path) -> bool {
    matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b)
}

/// What became of every tensor, and what was assumed, on standard error.
pub(super) fn tell(account: &Account) {
    note!("layout: {}", account.layout.name());
    for note in &account.notes {
        note!("{note}");
    }
    for warning in &account.warnings {
        note!("warning: {warning}");
    }
    note!("tensors: {} used, {} not needed", account.used, account.unused.len());
    let mut reasons: Vec<&str> = account.unused.iter().map(|(_, reason)| *reason).collect();
    reasons.sort_unstable();
    reasons.dedup();
    for reason in reasons {
        let keys: Vec<&str> =
            account.unused.iter().filter(|(_, why)| *why == reason).map(|(key, _)| key.as_str()).collect();
        let shown = keys.iter().take(3).copied().collect::<Vec<_>>().join(", ");
        let more = if keys.len() > 3 { format!(" and {} more", keys.len() - 3) } else { String::new() };
        note!("not needed ({reason}): {shown}{more}");
    }
}
