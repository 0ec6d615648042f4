//! Trains variants of a small model and prints a table of their sizes, accuracies, and speeds:
//! `cargo run --release --example compare -- --epochs 3`.
//!
//! All variants have the same data, recipe, seed, and number of epochs, and are measured on the test images.

#![allow(clippy::print_stdout)]

use std::time::Instant;

use anyhow::{Context, Result, bail};
use burn::module::Module;
use clap::Parser;
use vitrine::device;
use vitrine::evaluate::{Metrics, predict};
use vitrine::events::Quiet;
use vitrine::plan::{Evidence, Overrides, Plan};
use vitrine::predict::Classifier;
use vitrine::recipe::AskedLength;
use vitrine::run_folder::{HoldOut, Origin, RunConfig, RunData, RunFolder};
use vitrine::runtime::Runtime;
use vitrine::train::{Beginning, Start, Trainer};
use vitrine_datasets::{ClassSizes, Dataset, DecodeLimits, OpenOptions};
use vitrine_models::{
    ChannelAttention, ChannelGate, Complexity, GatePlace, Mixer, ModelConfig, Position, preset,
};

#[derive(Parser)]
struct Arguments {
    /// Passes over the training images.
    #[arg(long, default_value_t = 3)]
    epochs: usize,
    /// Data set: a name or a path.
    #[arg(long, default_value = "shapes")]
    data: String,
    /// Variants to train; all by default.
    variants: Vec<String>,
}

/// The variants by name. Most change one choice of `vit_pico_patch4_32`.
fn variants() -> Result<Vec<(&'static str, ModelConfig)>> {
    let find = |name| preset::find(name).with_context(|| format!("{name} is not listed"));
    let base = find("vit_pico_patch4_32")?;
    let gate = |kind: ChannelGate| {
        let reduction = (kind != ChannelGate::Efficient).then_some(8);
        Some(ChannelAttention { kind, reduction, place: GatePlace::Mixer })
    };
    let mixed = |mixers: &[Mixer]| ModelConfig { mixers: mixers.to_vec(), ..base.clone() };
    let placed = |position| ModelConfig { position, ..base.clone() };
    let gated = |kind, base: &ModelConfig| ModelConfig { channel_attention: gate(kind), ..base.clone() };
    let shifted = mixed(&[Mixer::Window(4), Mixer::ShiftedWindow(4)]);
    Ok(vec![
        ("global", base.clone()),
        ("global, learned positions", placed(Position::Learned)),
        ("global, sinusoidal positions", placed(Position::Sinusoidal)),
        ("global, rotary positions", placed(Position::Rotary)),
        ("global, no positions", placed(Position::None)),
        ("windows", mixed(&[Mixer::Window(4)])),
        ("windows and shifted windows", shifted.clone()),
        ("neighborhood of 2", mixed(&[Mixer::Neighborhood(2)])),
        ("cross-covariance", mixed(&[Mixer::CrossCovariance])),
        ("global, squeeze-and-excitation", gated(ChannelGate::SqueezeExcitation, &base)),
        ("global, ECA", gated(ChannelGate::Efficient, &base)),
        ("global, CBAM", gated(ChannelGate::Cbam, &base)),
        ("shifted windows, squeeze-and-excitation", gated(ChannelGate::SqueezeExcitation, &shifted)),
        ("hierarchical Swin", find("swin_pico_patch2_window4_32")?),
        ("CCT-2/3x2", find("cct_2_3x2")?),
    ])
}

fn main() -> Result<()> {
    vitrine::allocator::keep_pages();
    let arguments = Arguments::parse();
    let all = variants()?;
    if let Some(unknown) = arguments.variants.iter().find(|name| all.iter().all(|(known, _)| known != name)) {
        let names: Vec<&str> = all.iter().map(|(name, _)| *name).collect();
        bail!("there is no variant `{unknown}`; there are: {}", names.join("; "));
    }
    println!("| variant | parameters | M multiply-adds | test accuracy | images/s, validation included |");
    println!("|---|---|---|---|---|");
    for (name, model) in all {
        if arguments.variants.is_empty() || arguments.variants.iter().any(|wanted| wanted == name) {
            println!("{}", row(name, model, &arguments)?);
        }
    }
    Ok(())
}

const SEED: u64 = 0;
const VAL_FRACTION: f64 = 0.2;

/// Trains one variant in a temporary folder, and returns its row of the table.
fn row(name: &str, model: ModelConfig, arguments: &Arguments) -> Result<String> {
    let dataset = vitrine_datasets::open(&arguments.data, &OpenOptions::default())?;
    let hold_out = HoldOut { fraction: VAL_FRACTION, seed: SEED, fold: None };
    let data = RunData::choose(dataset, &arguments.data, hold_out, None, &DecodeLimits::default())?;
    let dataset = data.dataset();
    let config = run_config(name, model, arguments, &dataset)?;
    let complexity = Complexity::of(&config.model).total();
    let folder = tempfile::tempdir()?;
    let run = RunFolder::create(Some(&folder.path().join("run")), &config, &dataset.info.name, &Quiet)?;
    let (found, _) = device::select(None)?;
    let threads = std::thread::available_parallelism()?.get();
    let start = Instant::now();
    let runtime = Runtime { device: &found, threads, events: &Quiet };
    let beginning = Beginning { start: Start::Fresh, begun: start };
    let mut trainer = Trainer::new(config, run.clone(), &data, beginning, runtime)?;
    trainer.run(&|| Ok(Start::Fresh))?;
    let seconds = start.elapsed().as_secs_f64();
    let seen = (arguments.epochs * dataset.train.len()) as f64;
    let (accuracy, parameters) = measure(&run, dataset, runtime)?;
    Ok(format!(
        "| {name} | {:.2} M | {:.1} | {:.1}% | {:.0} |",
        parameters as f64 / 1e6,
        complexity as f64 / 1e6,
        100.0 * accuracy,
        seen / seconds,
    ))
}

/// The configuration of a variant's run. Everything but the architecture is chosen from the data, as `vitrine train`
/// chooses it.
fn run_config(name: &str, model: ModelConfig, arguments: &Arguments, dataset: &Dataset) -> Result<RunConfig> {
    let survey = vitrine_datasets::survey(&dataset.train, 512, &DecodeLimits::default())?;
    let length = AskedLength { epochs: Some(arguments.epochs), seconds: None };
    let classes = dataset.info.classes.clone();
    let evidence = Evidence {
        info: &dataset.info,
        survey: &survey,
        train: dataset.train.len(),
        class_sizes: &ClassSizes::of(&dataset.train, classes.len()),
        pretrained: None,
        budget: None,
    };
    let plan = Plan::new(&Overrides { length, ..Overrides::default() }, &evidence)?;
    let model = ModelConfig { image_size: plan.model.image_size, channels: plan.model.channels, ..model };
    Ok(RunConfig {
        program: "compare".to_owned(),
        data: arguments.data.clone(),
        data_path: None,
        data_dir: OpenOptions::default().data_dir,
        val_fraction: VAL_FRACTION,
        seed: SEED,
        split_seed: None,
        fold: None,
        model_name: name.to_owned(),
        pretrained: None,
        pretrained_path: None,
        lengthened: false,
        max_file_size: None,
        model: model.with_num_classes(classes.len()),
        classes,
        preprocessing: plan.preprocessing,
        recipe: plan.recipe,
        origin: Origin::default(),
    })
}

/// The accuracy of a run's best model on the test images, or on the validation images if there are none, and its number
/// of parameters.
fn measure(run: &RunFolder, dataset: Dataset, runtime: Runtime<'_>) -> Result<(f64, usize)> {
    let images = if dataset.test.is_empty() { dataset.val } else { dataset.test };
    let classifier = Classifier::load_on(&run.model(), runtime.device)?;
    let predictor = classifier.predictor();
    let predicted = predict(predictor, &predictor.loader(images.into(), 64, runtime.threads)?)?;
    let accuracy = Metrics::compute(&predicted.predictions, &classifier.card().classes).top1;
    Ok((accuracy, predictor.model().num_params()))
}
