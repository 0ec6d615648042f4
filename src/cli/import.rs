//! `vitrine import`: a model file from another library's weights.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use burn::tensor::Device;
use clap::{Args, ValueEnum};
use vitrine_models::weights::Layout;

use super::{Status, aliases};
use crate::hub;
use crate::import::{self, Account, Options};
use crate::model_file;
use crate::output::{note, outln};
use crate::usage::usage;
use crate::weights_file::Precision;

/// Make a model file from the weights of timm, Hugging Face, torchvision or Microsoft.
///
/// WEIGHTS is a .safetensors file, a PyTorch file (.pth, .pt, .bin; nothing in it is run), or a folder with config.json as Hugging
/// Face and timm write it. The architecture is read off the shapes, the layout off the names, and the rest off config.json and
/// preprocessor_config.json where they lie beside the weights. Every tensor is accounted for.
#[derive(Args)]
#[command(after_help = "Examples:\n  vitrine import vit_b_16-c867db91.pth --output vit_b_16.safetensors\n  \
    vitrine import vit-base-patch16-224/ --output vit.safetensors\n  \
    vitrine import hf:google/vit-base-patch16-224 --output vit.safetensors\n  \
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
    /// Configuration of the model as its library writes it, or a preset's name; by default config.json beside the weights.
    #[arg(long, value_name = "FILE|PRESET")]
    config: Option<String>,
    /// File with one class name a line, in the order of the logits.
    #[arg(long, value_name = "FILE")]
    classes: Option<PathBuf>,
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
        model_file::save(&self.output, &card, &model, self.dtype)?;
        outln!("model: {}", self.output.display())?;
        Ok(Status::Done)
    }
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
