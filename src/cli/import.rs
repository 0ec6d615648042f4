//! `vitrine import`: makes a model file from another library's weights.

use std::path::PathBuf;

use anyhow::Result;
use burn::tensor::Device;
use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use vitrine_models::VisionTransformer;
use vitrine_models::weights::{self, Layout};

use super::Status;
use crate::Classifier;
use crate::bounds;
use crate::cli::aliases;
use crate::cli::console::Log;
use crate::cli::output::{note, outln};
use crate::cli::output_file;
use crate::cli::within::within;
use crate::device;
use crate::files::same_file;
use crate::hub;
use crate::import::{self, Imported, Options, verify};
use crate::model_file::{self, ModelCard};
use crate::predict::Views;
use crate::text::{count, shell_word};
use crate::usage::usage;
use crate::weights_file::{self, Precision};

/// How far a logit may be off by default, relative to the image's largest.
const TOLERANCE: f64 = 1e-3;

/// Make a model file from another library's weights; `--layout` names the libraries.
///
/// WEIGHTS is a .safetensors file, a PyTorch file (.pth, .pt, .bin; nothing in it is run), or a folder with config.json
/// as Hugging Face and timm write it. The architecture is inferred from the shapes, the layout from the names, and the
/// rest from config.json and preprocessor_config.json if they are next to the weights. Every tensor is accounted for.
#[derive(Args)]
#[command(after_help = "Examples:\n  vitrine import vit_b_16-c867db91.pth --output vit_b_16.safetensors\n  \
    vitrine import vit-base-patch16-224/ --output vit.safetensors\n  \
    vitrine import hf:google/vit-base-patch16-224 --output vit.safetensors\n  \
    vitrine import weights.pth --heads 6 --image-size 224 --verify logits.json --output model.safetensors\n  \
    vitrine import weights.pth --config vit_tiny_patch16_224 --classes names.txt --output tiny.safetensors")]
pub(super) struct Import {
    /// Weights file, a folder with one, or hf:OWNER/NAME[@REVISION] on Hugging Face.
    #[arg(value_name = "WEIGHTS")]
    weights: String,
    /// Model file to write.
    #[arg(short, long, value_name = "MODEL", aliases = aliases::OUTPUT)]
    output: PathBuf,
    /// Naming scheme of the tensors; by default inferred from the names.
    #[arg(long, value_name = "LAYOUT", value_parser = layout())]
    layout: Option<Layout>,
    /// The model's configuration as its library writes it, a preset, or timm's name for the architecture; by default
    /// config.json next to the weights.
    #[arg(long, value_name = "FILE|PRESET")]
    config: Option<String>,
    /// File with one class name per line, in the order of the logits.
    #[arg(long, value_name = "FILE")]
    classes: Option<PathBuf>,
    /// Attention heads, if no file says how many: one number, or one per stage (3,6,12,24).
    #[arg(long, value_name = "N", value_delimiter = ',', allow_negative_numbers = true, value_parser = positive)]
    heads: Option<Vec<usize>>,
    /// Image size in pixels: N or HEIGHTxWIDTH. Positions that are stored for another size are resampled; by default,
    /// what the files state or the shapes tell.
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = image_size)]
    image_size: Option<[usize; 2]>,
    /// Side of a patch in pixels, if it is to be another than that of the weights: the patch embedding is resized by a pseudo-inverse
    /// (FlexiViT), and positions are resampled. Half the side makes four times the tokens.
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = positive)]
    patch_size: Option<usize>,
    /// Mean of each channel, from 0 to 1, if no file states it.
    #[arg(long, value_name = "A,B,C", value_delimiter = ',', value_parser = within(bounds::CHANNEL_MEAN), allow_hyphen_values = true)]
    mean: Option<Vec<f32>>,
    /// Standard deviation of each channel, from 0 to 1, if no file states it.
    #[arg(long, value_name = "A,B,C", value_delimiter = ',', value_parser = within(bounds::CHANNEL_DEVIATION), allow_hyphen_values = true)]
    std: Option<Vec<f32>>,
    /// Share of the scaled image that is kept, above 0 and at most 1, if no file states it.
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = share)]
    crop: Option<f64>,
    /// Compare with logits computed by the original library: a JSON list of {"image": "a.png", "logits": [...]}, with
    /// paths relative to the list. No model is written if they differ. Weights that --dtype rounds are compared before and after.
    #[arg(long, value_name = "FILE")]
    verify: Option<PathBuf>,
    /// How far a logit may be off with --verify, relative to the image's largest logit; by default 0.001. After the weights are rounded, it
    /// may be off by 0.01 (--dtype f16) or 0.1 (bf16), or by X if that is more.
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = above_zero_f64, requires = "verify")]
    tolerance: Option<f64>,
    /// How the weights are stored.
    #[arg(long, value_enum, default_value_t = Precision::F32)]
    dtype: Precision,
    /// Use only what is already in the Hugging Face cache; never the network.
    #[arg(long)]
    offline: bool,
}

impl Import {
    /// Whether the model's logits are the expected ones: with its weights as they are, which shows a mistake of the import, and then with
    /// those that are to be stored, if they are rounded.
    fn agrees(
        &self,
        card: &ModelCard,
        model: &VisionTransformer,
        expected: &[verify::Expected],
    ) -> Result<bool> {
        let tolerance = self.tolerance.unwrap_or(TOLERANCE);
        if !are_equal((card, model.clone()), expected, ("", tolerance))? {
            return Ok(false);
        }
        let (rounded, usual) = match self.dtype {
            Precision::F32 => return Ok(true),
            Precision::F16 => (" in f16", 1e-2),
            Precision::Bf16 => (" in bf16", 0.1),
        };
        are_equal((card, self.as_stored(model.clone())?), expected, (rounded, tolerance.max(usual)))
    }

    /// The model with its weights as they are to be stored.
    fn as_stored(&self, model: VisionTransformer) -> Result<VisionTransformer> {
        let tensors = weights::to_timm(&model).into_iter();
        let tensors = tensors.map(|tensor| weights_file::rounded(tensor, self.dtype));
        Ok(weights::from_timm(model, tensors.collect::<Result<_>>()?)?)
    }

    pub(super) fn run(&self) -> Result<Status> {
        output_file::check_model("--output", &self.output)?;
        if self.offline && !hub::is_repository(&self.weights) {
            usage!("--offline has no effect for {}, which is not downloaded: leave it out", self.weights);
        }
        let located = hub::locate(&self.weights, self.offline, &Log::text())?;
        let imported = import::load(&located.path, &self.options())?.at_size_of_images()?;
        for line in imported.account.lines() {
            note!("{line}");
        }
        if let Some(about) = &imported.card.about_head {
            note!("warning: {about}");
        }
        self.check_imported(&imported)?;
        // The card says which commit of a repository the weights are of. A path would mean nothing elsewhere.
        let pretrained = hub::is_repository(&self.weights).then_some(located.source);
        let card = ModelCard { pretrained, ..imported.card.clone() };
        match card.has_classifier() {
            true => note!("{}, {}", import::summary(&card.model), count(card.classes.len(), "class")),
            false => note!(
                "{}, no classifier: train one with `vitrine train DATA --pretrained {}`",
                import::summary(&card.model),
                shell_word(self.output.display())
            ),
        }
        let model = imported.model(&Device::default())?;
        let expected =
            self.verify.as_deref().map(|path| verify::read(path, card.classes.len())).transpose()?;
        if let Some(expected) = expected
            && !self.agrees(&card, &model, &expected)?
        {
            note!("{}: not written, because the logits differ", self.output.display());
            return Ok(Status::Partial);
        }
        model_file::save(&self.output, &card, &model, self.dtype)?;
        outln!("model: {}", self.output.display())?;
        Ok(Status::Done)
    }

    fn options(&self) -> Options {
        Options {
            layout: self.layout,
            config: self.config.clone(),
            classes: self.classes.clone(),
            heads: self.heads.clone(),
            image_size: self.image_size,
            patch_size: self.patch_size,
            mean: self.mean.clone(),
            std: self.std.clone(),
            crop: self.crop,
        }
    }

    /// Refuses an output that is one of the imported files, and the comparison of logits of weights without a classifier.
    fn check_imported(&self, imported: &Imported) -> Result<()> {
        if let Some(file) = imported.account.files.iter().find(|file| same_file(&self.output, file)) {
            usage!("--output {}: this is the weights file {} itself", self.output.display(), file.display());
        }
        if let Some(path) = self.verify.as_ref().filter(|_| !imported.has_head) {
            usage!("--verify {}: these weights have no classifier, whose logits it compares", path.display());
        }
        Ok(())
    }
}

/// Compares a model's logits with the expected ones and prints the difference for each image, with the words `rounded` for the number format
/// of its weights. True if all are within the tolerance.
fn are_equal(
    (card, model): (&ModelCard, VisionTransformer),
    expected: &[verify::Expected],
    (rounded, tolerance): (&str, f64),
) -> Result<bool> {
    // The library answers for the image alone, also where the file says that `classify` adds its mirror image.
    let classifier =
        Classifier::new(card.clone(), model, &device::select(Some("cpu"))?.0).with_views(Views::One)?;
    let differences = verify::compare(&classifier, expected)?;
    for one in &differences {
        let verdict = if one.relative <= tolerance { "equal" } else { "DIFFERENT" };
        outln!(
            "{}: {verdict}{rounded}, largest difference {:.1e}, relative {:.1e}",
            one.image.display(),
            one.absolute,
            one.relative
        )?;
    }
    Ok(differences.iter().all(|one| one.relative <= tolerance))
}

/// A value parser for the name of a layout. The help lists all names with their explanations.
fn layout() -> impl TypedValueParser<Value = Layout> {
    let values = Layout::ALL.iter().map(|layout| PossibleValue::new(layout.name()).help(layout.about()));
    PossibleValuesParser::new(values).try_map(|name| {
        Layout::ALL.iter().copied().find(|layout| layout.name() == name).ok_or("there is no such layout")
    })
}

/// A whole number above 0.
fn positive(text: &str) -> Result<usize, String> {
    text.parse()
        .ok()
        .filter(|number| *number > 0)
        .ok_or_else(|| "it must be a whole number above 0".to_owned())
}

/// Height and width in pixels, from `N` or `HEIGHTxWIDTH`.
fn image_size(text: &str) -> Result<[usize; 2], String> {
    let (height, width) = text.split_once('x').unwrap_or((text, text));
    Ok([positive(height)?, positive(width)?])
}

/// A finite number above 0.
fn above_zero_f64(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|number: &f64| number.is_finite() && *number > 0.0)
        .ok_or_else(|| "it must be a number that is above 0".to_owned())
}

/// A number above 0 and at most 1.
fn share(text: &str) -> Result<f64, String> {
    above_zero_f64(text)
        .ok()
        .filter(|share| *share <= 1.0)
        .ok_or_else(|| "it must be a number that is above 0 and at most 1".to_owned())
}
