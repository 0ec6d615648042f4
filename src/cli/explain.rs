//! `vitrine explain`: what a model looked at in images.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use vitrine_datasets::ImageSource;

use super::console::Log;
use super::file_size::FileSizeArgs;
use super::inputs::{Input, InputArgs};
use super::model::ModelArgs;
use super::output_file;
use super::{DeviceArgs, Status, ThreadArgs};
use crate::bounds;
use crate::cli::aliases;
use crate::cli::output::{OutputError, note, outln};
use crate::cli::within::within;
use crate::events::EventSink;
use crate::explain::{Asked, Explainer, Explanation, Method, OutputFolder};
use crate::flags::explained;
use crate::predict;
use crate::text::{count, first_few, printable};
use crate::usage::{did_you_mean, usage};

/// Show what a model looked at: maps of each image that say how much each patch counts for the answer.
///
/// Writes for each image and method an overlay (.png, on the image as the model sees it, resized or cropped) and the
/// values (.npy), and index.html, which shows everything. An image that cannot be read gives a message on standard error and
/// status 1 at the end; it never stops the others.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  vitrine explain runs/photos-hybrid_nano_patch16_128-1 cat.jpg photos/ --output looked\n  \
    vitrine explain model.safetensors '*.png' --method rollout --method grad-cam --class dog --output looked"
)]
pub(super) struct Explain {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    inputs: InputArgs,
    /// Folder to create; one that is not empty is refused.
    #[arg(long, value_name = "DIR", aliases = aliases::OUTPUT)]
    output: PathBuf,
    /// Method, repeatable; by default grad-cam and, if the model attends among all patches, gradient-attention.
    #[arg(long = "method", value_enum, value_name = "METHOD")]
    methods: Vec<Method>,
    /// Class that the maps are about; by default the one predicted for each image.
    #[arg(long, value_name = "NAME")]
    class: Option<String>,
    /// Block whose attention is shown, from 0; by default the last one (with --method attention).
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    block: Option<usize>,
    /// Show the attention of each head, and not their mean (with --method attention or pooling).
    #[arg(long)]
    heads: bool,
    /// Images per batch; fewer where the memory does not suffice for as many.
    #[arg(long, value_name = "N", default_value_t = 8, allow_negative_numbers = true, value_parser = within(bounds::BATCH_SIZE), aliases = aliases::BATCH_SIZE)]
    batch_size: usize,
    #[command(flatten)]
    file_size: FileSizeArgs,
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    threads: ThreadArgs,
}

impl Explain {
    pub(super) fn run(&self) -> Result<Status> {
        self.model.check()?;
        self.inputs.check()?;
        self.check_output()?;
        self.threads.apply()?;
        let log: &dyn EventSink = &Log::text();
        let device = self.device.select(log)?;
        let explainer = self.model.explainer(&device, log)?.with_limits(self.file_size.limits());
        let asked = self.asked(&explainer)?;
        // There may be fewer images than a batch can have, and a slow list may begin with a small batch.
        let fitting = explainer.largest_batch(self.batch_size).unwrap_or(1);
        log.emit_warning(explainer.check_memory(fitting)?);
        let mut results = Results::new(OutputFolder::create(&self.output)?);
        let mut is_told = fitting == self.batch_size;
        for batch in self.inputs.batches(None, fitting, self.file_size.limits())? {
            if !is_told && batch.len() == fitting {
                is_told = true;
                let images = count(fitting, "image");
                let message =
                    format!("{images} per batch: the memory may not suffice for {}", self.batch_size);
                log.emit_notice(Some(message));
            }
            for (input, explanation) in explain(&explainer, batch, &asked) {
                results.add(&input, explanation)?;
            }
        }
        let page = results.folder.finish(&self.facts(&asked), &explainer.card().classes)?;
        results.printed?;
        outln!("page: {}", page.display())?;
        Ok(results.status)
    }

    /// Checks the folder for the results.
    ///
    /// # Errors
    /// If it is in an object store, a file, not empty, or in a folder of inputs, whose images the results would become.
    fn check_output(&self) -> Result<()> {
        output_file::check_local("--output", &self.output)?;
        OutputFolder::check(&self.output)?;
        if let Some(folder) = self.inputs.around(&self.output) {
            usage!(
                "--output {}: it would be among the images of {}; choose another place",
                self.output.display(),
                folder.display()
            );
        }
        Ok(())
    }

    /// What is asked about each image.
    ///
    /// # Errors
    /// If an option has no effect, or does not suit the model.
    fn asked(&self, explainer: &Explainer) -> Result<Asked> {
        let (model, classes) = (explainer.model(), &explainer.card().classes);
        let mut methods = Vec::new();
        for &method in &self.methods {
            method.check(model)?;
            if !methods.contains(&method) {
                methods.push(method);
            }
        }
        if methods.is_empty() {
            methods = Method::by_default(model);
        }
        if self.heads && !methods.iter().any(|method| method.has_heads()) {
            usage!(
                "--heads has no effect: it is about --method attention or pooling, which are not asked for"
            );
        }
        if self.block.is_some() && !methods.contains(&Method::Attention) {
            usage!("--block has no effect: it is about --method attention, which is not asked for");
        }
        let blocks = model.config().depth.sum();
        let block = self.block.unwrap_or(blocks - 1);
        if block >= blocks {
            usage!("--block {block}: the model has {blocks} blocks, from 0 to {}", blocks - 1);
        }
        if self.class.is_some() && !methods.iter().any(|method| method.is_about_class(model)) {
            usage!("--class has no effect: these methods give the same map for all classes");
        }
        let class = self.class.as_deref().map(|name| index_of(name, classes)).transpose()?;
        Ok(Asked { methods, class, block, heads: self.heads })
    }

    /// What the page says of the model.
    fn facts(&self, asked: &Asked) -> Vec<(&'static str, String)> {
        let mut facts = vec![("model", self.model.model.display().to_string())];
        if let Some(class) = &self.class {
            facts.push(("class", class.clone()));
        }
        if asked.methods.contains(&Method::Attention) {
            facts.push(("attention of block", asked.block.to_string()));
        }
        facts
    }
}

/// The results so far.
struct Results {
    folder: OutputFolder,
    status: Status,
    /// The first error of standard output. The files are complete whether or not someone reads the lines.
    printed: Result<(), OutputError>,
}

impl Results {
    fn new(folder: OutputFolder) -> Self {
        Self { folder, status: Status::Done, printed: Ok(()) }
    }

    /// Writes the files of an image and prints its line, or reports why there is no explanation.
    fn add(&mut self, input: &str, explanation: Result<Explanation>) -> Result<()> {
        match explanation {
            Ok(explanation) => {
                let stem = self.folder.add(input, &explanation)?;
                if self.printed.is_ok() {
                    self.printed = outln!("{}", line(input, &explanation, &stem));
                }
            }
            Err(error) => {
                let message = explained(&error);
                let message = message.strip_prefix(&format!("{input}: ")).unwrap_or(&message);
                note!("error: {}: {}", printable(input), printable(message));
                self.status = Status::Partial;
            }
        }
        Ok(())
    }
}

/// The index of a class.
fn index_of(name: &str, classes: &[String]) -> Result<usize> {
    let Some(index) = classes.iter().position(|class| class == name) else {
        let similar = did_you_mean(name, classes.iter().map(String::as_str));
        usage!("--class {name}: the model has the classes {}{similar}", first_few(classes));
    };
    Ok(index)
}

/// The explanation or the error for each input of a batch, in order.
fn explain(
    explainer: &Explainer,
    batch: Vec<predict::Asked<Input, ImageSource>>,
    asked: &Asked,
) -> Vec<(Input, Result<Explanation>)> {
    let mut images = Vec::new();
    let entries: Vec<(Input, Result<()>)> =
        batch.into_iter().map(|entry| (entry.tag, entry.value.map(|image| images.push(image)))).collect();
    let mut explanations = explainer.explain(&images, asked).into_iter();
    let answered = |(input, entry): (Input, Result<()>)| {
        (input, entry.and_then(|()| explanations.next().context("an answer is missing")?))
    };
    entries.into_iter().map(answered).collect()
}

/// The line about one image.
fn line(input: &str, explanation: &Explanation, stem: &str) -> String {
    let Explanation { predicted, class, .. } = explanation;
    let about = if class.index == predicted.index {
        String::new()
    } else {
        format!(", maps for {} {:.1}%", printable(&class.label), 100.0 * class.probability)
    };
    let (label, percent) = (printable(&predicted.label), 100.0 * predicted.probability);
    format!("{}: {label} {percent:.1}%{about} -> {stem}.*", printable(input))
}
