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
    ChannelAttention, ChannelGate, Complexity, GatePlace, Mixer, ModelConfig, Position, preset,
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
