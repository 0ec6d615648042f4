//! Trains variants of a small model, each with several seeds and the same budget, and prints a table of their sizes,
//! accuracies, speeds, and memory:
//!
//! ```sh
//! cargo build --release && cargo run --release --example compare -- --data shapes --epochs 3 --output compared
//! ```
//!
//! Every figure comes from the program as users run it: `vitrine train --seeds` for the accuracy, and `vitrine bench`
//! for speed and memory, in a process of its own. What is in the output folder already is not computed again.

#![allow(clippy::print_stdout)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use serde::Deserialize;
use serde_json::Value;
use vitrine_models::{
    AttentionOptions, ChannelAttention, ChannelGate, Complexity, GatePlace, Mixer, ModelConfig, Normalizer,
    Pool, Position, PositionPlace, Score, preset,
};

#[derive(Parser)]
struct Arguments {
    /// Data set: a name or a path. Several are compared one after the other.
    #[arg(long, default_value = "shapes")]
    data: Vec<String>,
    /// Passes over the training images.
    #[arg(long, default_value_t = 3, conflicts_with = "time")]
    epochs: usize,
    /// The time of each run instead, as for `vitrine train`: 60s, 2m.
    #[arg(long)]
    time: Option<String>,
    /// Runs per variant, which differ in the seed.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(2..))]
    seeds: u64,
    /// Images per step when speed and memory are measured.
    #[arg(long, default_value_t = 64)]
    batch_size: usize,
    /// Folder for the runs and measurements.
    #[arg(long)]
    output: PathBuf,
    /// The program; by default the one that cargo built next to this example.
    #[arg(long)]
    vitrine: Option<PathBuf>,
    /// Variants to train; all by default.
    variants: Vec<String>,
}

/// The variants by name. Most change one choice of `vit_pico_patch4_32`.
fn variants() -> Result<Variants> {
    let find = |name| preset::find(name).with_context(|| format!("{name} is not listed"));
    let base = find("vit_pico_patch4_32")?;
    let mut all = vec![("global", base.clone())];
    all.extend(mixers(&base));
    all.extend(attentions(&base));
    all.extend(positions(&base));
    all.extend(gates(&base));
    all.extend(poolings(&base));
    for (name, preset) in [
        ("MLP head", "vit_pico_mlp_head_patch4_32"),
        ("pixels of 16 x 16, squeeze-and-excitation, MLP head", "vit_pico_se_pixel_16"),
        ("hierarchical Swin", "swin_pico_patch2_window4_32"),
        ("CCT-2/3x2", "cct_2_3x2"),
        ("CCT-2/3x2, squeeze-and-excitation of maps", "cct_2_3x2_se"),
        ("hybrid (the default of train)", "hybrid_pico_patch4_32"),
    ] {
        all.push((name, find(preset)?));
    }
    Ok(all)
}

type Variants = Vec<(&'static str, ModelConfig)>;

fn mixers(base: &ModelConfig) -> Variants {
    let mixed = |mixers: &[Mixer]| ModelConfig { mixers: mixers.to_vec(), ..base.clone() };
    vec![
        ("windows", mixed(&[Mixer::Window(4)])),
        ("windows and shifted windows", mixed(&SHIFTED)),
        ("neighborhood of 2", mixed(&[Mixer::Neighborhood(2)])),
        ("full neighborhood of 2", mixed(&[Mixer::FullNeighborhood(2)])),
        ("graph of 8 nearest patches", mixed(&[Mixer::Graph { neighbors: 8 }])),
        ("cross-covariance", mixed(&[Mixer::CrossCovariance])),
    ]
}

const SHIFTED: [Mixer; 2] = [Mixer::Window(4), Mixer::ShiftedWindow(4)];

fn attentions(base: &ModelConfig) -> Variants {
    let with = |attention| ModelConfig { attention, ..base.clone() };
    let scored = |score| with(AttentionOptions { score, ..base.attention });
    let normalized = |normalizer| with(AttentionOptions { normalizer, ..base.attention });
    vec![
        ("dot score, not scaled", scored(Score::Dot)),
        ("bilinear score", scored(Score::Bilinear)),
        ("additive score", scored(Score::Additive)),
        ("cosine score", scored(Score::Cosine)),
        ("locality score", scored(Score::Locality)),
        ("ReLU for softmax", normalized(Normalizer::Relu)),
        ("hard attention", normalized(Normalizer::Hard)),
        ("hard attention, sampled", normalized(Normalizer::HardSampled)),
        ("norm of queries and keys", with(AttentionOptions { qk_norm: true, ..base.attention })),
        ("talking heads", with(AttentionOptions { talking_heads: true, ..base.attention })),
    ]
}

fn positions(base: &ModelConfig) -> Variants {
    let placed = |position| ModelConfig { position, ..base.clone() };
    let in_blocks = |position_place| ModelConfig { position_place, ..base.clone() };
    vec![
        ("no positions", placed(Position::None)),
        ("learned positions", placed(Position::Learned)),
        ("sinusoidal positions of one dimension", placed(Position::Sinusoidal)),
        ("rotary positions", placed(Position::Rotary)),
        ("conditional positions", placed(Position::Conditional)),
        ("positions of a network", placed(Position::CoordinateMlp)),
        ("positions in queries and keys of every block", in_blocks(PositionPlace::QueryKey)),
        ("positions in queries and keys of the first block", in_blocks(PositionPlace::FirstQueryKey)),
    ]
}

fn gates(base: &ModelConfig) -> Variants {
    let gated = |kind: ChannelGate, mixers: &[Mixer]| {
        let reduction = kind.has_bottleneck().then_some(8);
        let channel_attention = Some(ChannelAttention { kind, reduction, place: GatePlace::Mixer });
        ModelConfig { channel_attention, mixers: mixers.to_vec(), ..base.clone() }
    };
    vec![
        ("squeeze-and-excitation", gated(ChannelGate::SqueezeExcitation, &base.mixers)),
        ("ECA", gated(ChannelGate::Efficient, &base.mixers)),
        ("CBAM", gated(ChannelGate::Cbam, &base.mixers)),
        ("spatial gate", gated(ChannelGate::Spatial, &base.mixers)),
        ("shifted windows, squeeze-and-excitation", gated(ChannelGate::SqueezeExcitation, &SHIFTED)),
    ]
}

fn poolings(base: &ModelConfig) -> Variants {
    let pooled = |pool| ModelConfig { pool, ..base.clone() };
    vec![
        ("class token", ModelConfig { class_token: true, ..pooled(Pool::ClassToken) }),
        ("sequence pooling", pooled(Pool::Sequence)),
        ("attention pooling", pooled(Pool::Attention)),
        ("four queries", pooled(Pool::Queries(4))),
        ("a query that reads four times", pooled(Pool::Recurrent { steps: 4 })),
        ("class queries in two layers", pooled(Pool::ClassQueries { depth: 2 })),
    ]
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let mut chosen = variants()?;
    for wanted in &arguments.variants {
        if chosen.iter().all(|(name, _)| name != wanted) {
            let names: Vec<&str> = chosen.iter().map(|(name, _)| *name).collect();
            bail!("there is no variant `{wanted}`; there are: {}", names.join("; "));
        }
    }
    chosen.retain(|(name, _)| {
        arguments.variants.is_empty() || arguments.variants.iter().any(|wanted| wanted == name)
    });
    let program = Program::find(&arguments)?;
    let mut rows = Vec::new();
    for (name, config) in chosen {
        rows.push(Row::measure(name, &config, &program)?);
    }
    print_table(&rows, &arguments.data);
    Ok(())
}

/// One line of the table.
struct Row {
    name: &'static str,
    multiply_adds: u64,
    speed: Speed,
    /// Mean and standard deviation of the accuracy on each data set.
    accuracies: Vec<(f64, f64)>,
}

impl Row {
    fn measure(name: &'static str, config: &ModelConfig, program: &Program) -> Result<Self> {
        let file: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        let model = program.output.join(file).with_extension("toml");
        fs::write(&model, toml::to_string(config)?)
            .with_context(|| format!("cannot write {}", model.display()))?;
        let accuracies =
            program.data.iter().map(|data| program.accuracy(&model, data)).collect::<Result<_>>()?;
        Ok(Self {
            name,
            multiply_adds: Complexity::of(config).total(),
            speed: program.speed(&model)?,
            accuracies,
        })
    }
}

/// What `vitrine bench --json` prints, as far as the table shows it.
#[derive(Deserialize)]
struct Speed {
    parameters: usize,
    train_images_per_second: f64,
    infer_images_per_second: f64,
    latency_ms_batch1: f64,
    peak_rss_mb: Option<f64>,
}

/// The program with the options of all runs.
struct Program {
    path: PathBuf,
    output: PathBuf,
    data: Vec<String>,
    batch_size: usize,
    options: Vec<String>,
}

impl Program {
    fn find(arguments: &Arguments) -> Result<Self> {
        let beside = || -> Result<PathBuf> {
            let folder = std::env::current_exe()?.parent().and_then(Path::parent).map(Path::to_owned);
            Ok(folder.context("this example has no folder above its own")?.join("vitrine"))
        };
        let path = arguments.vitrine.clone().map_or_else(beside, Ok)?;
        ensure!(path.is_file(), "{} is missing: build it with `cargo build --release`", path.display());
        fs::create_dir_all(&arguments.output)
            .with_context(|| format!("cannot create {}", arguments.output.display()))?;
        let length = match &arguments.time {
            Some(time) => ["--time".to_owned(), time.clone()],
            None => ["--epochs".to_owned(), arguments.epochs.to_string()],
        };
        let seeds = ["--seeds".to_owned(), arguments.seeds.to_string()];
        Ok(Self {
            path,
            output: arguments.output.clone(),
            data: arguments.data.clone(),
            batch_size: arguments.batch_size,
            options: [length, seeds].concat(),
        })
    }

    /// Mean and standard deviation of the accuracy over the seeds, on the test images or else the validation images.
    fn accuracy(&self, model: &Path, data: &str) -> Result<(f64, f64)> {
        let place = Path::new(data).file_name().unwrap_or_default();
        let series = model.with_extension("").join(place);
        let summary = series.join("summary.json");
        if !summary.is_file() {
            let mut train = Command::new(&self.path);
            train.arg("train");
            match series.exists() {
                true => train.arg("--resume").arg(&series),
                false => {
                    train.arg(data).arg("--model").arg(model).args(&self.options).arg("--output").arg(&series)
                }
            };
            run(train)?;
        }
        let text =
            fs::read_to_string(&summary).with_context(|| format!("cannot read {}", summary.display()))?;
        let summary: Value = serde_json::from_str(&text)?;
        let of = |statistic: &str| {
            let splits = &summary[statistic];
            ["test", "val"].iter().find_map(|split| splits[split]["top1"].as_f64())
        };
        of("mean").zip(of("std")).with_context(|| format!("{}: no accuracy", series.display()))
    }

    fn speed(&self, model: &Path) -> Result<Speed> {
        let file = model.with_extension("bench.json");
        if !file.is_file() {
            let mut bench = Command::new(&self.path);
            bench
                .args(["bench", "--json", "--batch-size"])
                .arg(self.batch_size.to_string())
                .arg("--model")
                .arg(model);
            fs::write(&file, run(bench)?).with_context(|| format!("cannot write {}", file.display()))?;
        }
        Ok(serde_json::from_slice(&fs::read(&file)?)?)
    }
}

/// Runs a command whose messages go to the terminal, and returns its standard output.
fn run(mut command: Command) -> Result<Vec<u8>> {
    let output = command.stderr(std::process::Stdio::inherit()).output()?;
    ensure!(output.status.success(), "{command:?} ended with {}", output.status);
    Ok(output.stdout)
}

fn print_table(rows: &[Row], data: &[String]) {
    let names: String = data.iter().map(|data| format!(" {data} |")).collect();
    println!(
        "| variant | parameters | M multiply-adds |{names} training, images/s | inference, images/s | one image | memory |"
    );
    println!("|---|---|---|{}---|---|---|---|", "---|".repeat(data.len()));
    for Row { name, multiply_adds, speed, accuracies } in rows {
        let accuracies: String = accuracies
            .iter()
            .map(|(mean, deviation)| format!(" {:.1} ± {:.1} % |", 100.0 * mean, 100.0 * deviation))
            .collect();
        println!(
            "| {name} | {:.2} M | {:.1} |{accuracies} {:.0} | {:.0} | {:.2} ms | {} |",
            speed.parameters as f64 / 1e6,
            *multiply_adds as f64 / 1e6,
            speed.train_images_per_second,
            speed.infer_images_per_second,
            speed.latency_ms_batch1,
            speed.peak_rss_mb.map_or("?".to_owned(), |memory| format!("{memory:.0} MB")),
        );
    }
}
