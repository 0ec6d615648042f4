//! `vitrine train`: trains a model, or a series of models, on a data set and writes a run folder for each.

mod cache_args;
mod recipe_args;
#[cfg(test)]
mod tests;
mod workers_args;

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Result;
use clap::{Args, Command};
use vitrine_datasets::{Dataset, Fold};

use self::cache_args::CacheArgs;
use self::recipe_args::{LengthArgs, RecipeArgs};
use self::workers_args::WorkersArgs;
use super::console::{Log, LogFormat};
use super::data::{DataArgs, check_files, check_folds, check_val_fraction};
use super::{DeviceArgs, Status, ThreadArgs, interrupt};
use crate::bounds;
use crate::cli::aliases;
use crate::cli::output::{note, out, outln};
use crate::cli::within::within;
use crate::events::{Event, clock};
use crate::hub;
use crate::plan::{Overrides, Pooling, Resize};
use crate::pretrained::{self, Pretrained};
use crate::run::series::{Series, Sources};
use crate::run::{Changes, Earlier, FinishedRun, Kind, NewRun, PlannedRun, Resumed, Run};
use crate::run_folder::{RunConfig, RunFolder};
use crate::runtime::Runtime;
use crate::text::{count, shell_word};
use crate::train::{Progress, progress};
use crate::usage::usage;

/// Train a classifier on a data set.
///
/// DATA is shapes (drawn by the program), mnist, fashion-mnist, cifar10, cifar100, a folder with one folder per class
/// (or with train/, val/ and test/ of that kind), a folder of IDX or CIFAR files, a manifest (.csv, .tsv, .jsonl with
/// path and label; see --label-separator for several labels an image) or an archive (.tar, .tar.gz, .zip).
#[derive(Args)]
#[command(after_help = "Examples:\n  vitrine train\n  vitrine train photos/ --time 30m\n  \
    vitrine train --resume runs/photos-hybrid_nano_patch16_128-1\n  \
    vitrine train --config runs/photos-hybrid_nano_patch16_128-1\n  vitrine train photos/ --folds 5")]
pub(super) struct Train {
    /// Data set: a name or a path (default: shapes). With --resume or --config, the place where the images of the run
    /// are now.
    #[arg(value_name = "DATA")]
    data: Option<String>,
    /// Architecture: a preset's name (see `vitrine presets`) or a TOML file; by default chosen from the data.
    #[arg(long, value_name = "NAME|FILE", aliases = aliases::MODEL)]
    model: Option<String>,
    /// Height and width of the input in pixels.
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = within(bounds::IMAGE_SIZE), aliases = aliases::IMAGE_SIZE)]
    image_size: Option<usize>,
    /// How images of other shapes become that size; by default chosen from the data, or the pretrained model's own.
    #[arg(long, value_enum, value_name = "RULE")]
    resize: Option<Resize>,
    /// Recipe: plain, short, long, fine-tune, a published one (cct, vit-lite, sl-vit, swin-small-data; see `vitrine
    /// presets`) or a TOML file; by default chosen from the data.
    #[arg(long, value_name = "NAME|FILE")]
    recipe: Option<String>,
    #[command(flatten)]
    length: LengthArgs,
    #[command(flatten)]
    options: RecipeArgs,
    /// Weights to start from: a published backbone such as dinov2-small (see `vitrine presets`), a model file, a run folder,
    /// another library's file or folder (see `vitrine import`), or hf:OWNER/NAME[@REVISION] on Hugging Face.
    #[arg(long, value_name = "NAME|FILE|DIR|hf:OWNER/NAME", conflicts_with = "model")]
    pretrained: Option<String>,
    /// What the head of the pretrained backbone reads; by default two depths where the head is fitted and the weights allow it, and
    /// otherwise what it read before. Other libraries have no pooling of two depths, so that `export` to them needs `own`.
    #[arg(long, value_enum, value_name = "POOLING", requires = "pretrained")]
    pool: Option<Pooling>,
    /// Share of the training images kept for validation if the data set has no validation split; by default 0.2 and at
    /// most about 5000 images, or 0.1 and 2000 if it has a test split. Images are chosen by content, so adding or removing some does not move the others.
    #[arg(long, value_name = "SHARE", allow_negative_numbers = true, value_parser = within(bounds::PART), aliases = aliases::VAL_FRACTION)]
    val_fraction: Option<f64>,
    /// Random seed.
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true, value_parser = within(bounds::SEED))]
    seed: u64,
    /// Train N runs with the seeds --seed, --seed + 1, ..., and print their mean and standard deviation. All have the
    /// same architecture, recipe and validation images, those of the first seed.
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = within(bounds::RUNS), conflicts_with = "folds")]
    seeds: Option<usize>,
    /// Cross-validate: split the training images into K parts, class by class, train K runs that each keep another part
    /// for validation, and print their mean and standard deviation. Images with the same content are in the same part.
    #[arg(long, value_name = "K", allow_negative_numbers = true, value_parser = within(bounds::RUNS), conflicts_with = "val_fraction")]
    folds: Option<usize>,
    /// Run folder to create; by default the first unused runs/DATA-MODEL-N. With --seeds or --folds, each run has a
    /// folder in it.
    #[arg(long, value_name = "DIR", aliases = aliases::OUTPUT)]
    output: Option<PathBuf>,
    /// Repeat a run bit for bit: a run folder or its config.toml, which says everything. Only DATA, if the images were
    /// moved, --output, --device, --threads, --data-dir, --log-format, --workers, --token-file, --workers-only, --cache, --no-cache and --cache-limit go with it.
    #[arg(long, value_name = "RUN")]
    config: Option<PathBuf>,
    /// Continue an interrupted run, or the runs of --seeds and --folds. --epochs or --time (for the whole run) makes it
    /// longer, even if it is finished. If the images were moved, give their new place as DATA.
    #[arg(long, value_name = "RUN")]
    resume: Option<PathBuf>,
    /// Form of the messages on standard error: text for people, or json, one object per line for programs.
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = LogFormat::Text)]
    log_format: LogFormat,
    #[command(flatten)]
    workers: WorkersArgs,
    #[command(flatten)]
    cache: CacheArgs,
    #[command(flatten)]
    data_args: DataArgs,
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    threads: ThreadArgs,
}

/// The options that go with `--config`, which repeats a run; all others conflict with it.
const WITH_CONFIG: [&str; 13] = [
    "config",
    "data",
    "output",
    "device",
    "threads",
    "data_dir",
    "log_format",
    "workers",
    "token_file",
    "workers_only",
    "cache",
    "no_cache",
    "cache_limit",
];
/// The options that go with `--resume`; all others conflict with it.
const WITH_RESUME: [&str; 16] = [
    "resume",
    "data",
    "bad_file_limit",
    "epochs",
    "time",
    "device",
    "threads",
    "data_dir",
    "offline",
    "log_format",
    "workers",
    "token_file",
    "workers_only",
    "cache",
    "no_cache",
    "cache_limit",
];

/// Makes options conflict with `--config` and `--resume`, unless they are listed as going with it.
pub(super) fn with_conflicts(train: Command) -> Command {
    train.mut_args(|mut argument| {
        for (option, allowed) in [("config", &WITH_CONFIG[..]), ("resume", &WITH_RESUME[..])] {
            if !allowed.contains(&argument.get_id().as_str()) {
                argument = argument.conflicts_with(option);
            }
        }
        argument
    })
}

impl Train {
    pub(super) fn run(&self) -> Result<Status> {
        let log = Log::new(self.log_format, self.seeds.is_some() || self.folds.is_some());
        let mut earlier = self.config.as_deref().map(Earlier::open).transpose()?;
        let mut series = self.resume.as_deref().map_or(Ok(None), Series::open)?;
        let (data, data_dir) = (self.data.as_deref(), self.data_args.stated_folder()?);
        earlier.iter_mut().for_each(|earlier| earlier.config.move_data(data, data_dir.as_deref()));
        if let Some(series) = &mut series {
            series.move_data(data, data_dir.as_deref());
            series.set_bad_file_limit(self.options.bad_file_limit);
        }
        // The last bits of results depend on the number of threads, so a repeated or resumed run uses as many as
        // before.
        let before = earlier.as_ref().map(|earlier| &earlier.config).or(series.as_ref().map(Series::config));
        let before = before.and_then(|config| config.origin.threads);
        // A run that cannot be read is refused below.
        let resumed = self.resume.as_ref().and_then(|run| progress(run).ok());
        let before = before.or(resumed.map(|progress| progress.threads).filter(|&threads| threads > 0));
        let threads = ThreadArgs { threads: self.threads.threads.or(before) }.apply()?;
        let device = self.device.select(&log)?;
        let cache = self.cache.store();
        let pool = self.workers.pool(&device, threads)?;
        let runtime =
            Runtime { device: &device, threads, events: &log, cache: cache.as_ref(), workers: pool.as_ref() };
        interrupt::listen()?;
        if let Some(series) = series {
            log.show_results();
            self.cache.check(series.config())?;
            self.workers.ready(pool.as_ref(), series.config(), &log)?;
            return self.series(&series, None, runtime);
        }
        let run = match (&self.resume, &earlier) {
            (Some(run), _) => match self.resumed(run, runtime)? {
                Resumed::Ready(run) => *run,
                Resumed::Finished(progress) => return Ok(self.left_alone(run, &progress, runtime)),
            },
            (None, Some(earlier)) => self.repeated(earlier, runtime)?,
            (None, None) => {
                let planned = self.planned(runtime)?;
                self.cache.check(planned.config())?;
                if let (Some(runs), true) = (self.seeds, planned.config().recipe.fit_head) {
                    usage!(
                        "--seeds {runs} has no effect on a head that is fitted to features (--freeze backbone, or for lack of \
                         memory), where nothing is random: use --folds, or --epochs to train it by steps"
                    );
                }
                self.workers.ready(pool.as_ref(), planned.config(), &log)?;
                if let Some(several) = self.several() {
                    let (series, first) = Series::begin(several, planned, self.output.as_deref(), runtime)?;
                    return self.series(&series, Some(first), runtime);
                }
                Run::begin(planned, self.output.as_deref(), runtime)?
            }
        };
        self.cache.check(run.config())?;
        self.conclude(&run.train(runtime)?, runtime)
    }

    /// The kind and the number of runs, if several are asked for.
    fn several(&self) -> Option<(Kind, usize)> {
        let seeds = self.seeds.map(|runs| (Kind::Seeds, runs));
        seeds.or(self.folds.map(|runs| (Kind::Folds, runs)))
    }

    /// Trains the unfinished runs of a series.
    fn series(&self, series: &Series, first: Option<Run>, runtime: Runtime<'_>) -> Result<Status> {
        let folder = series.folder().display();
        if first.is_none() && self.length != LengthArgs::default() {
            usage!(
                "--resume {folder}: a series of runs keeps its length: leave --epochs and --time out, or train a new series with \
                 more of them"
            );
        }
        let sources = Sources {
            dataset: &|config| self.dataset_of(config, config.pretrained.is_some(), runtime),
            pretrained: &|config| self.pretrained_of(config, runtime),
        };
        let Some(summary) = series.train(first, &sources, runtime)? else {
            runtime.events.emit(Event::notice(stopped(series.folder())));
            return Ok(Status::Partial);
        };
        out!("{}", summary.table())?;
        outln!("summary: {}", series.summary().display())?;
        Ok(Status::Done)
    }

    fn overrides(&self) -> Overrides {
        Overrides {
            model: self.model.clone(),
            image_size: self.image_size,
            pool: self.pool,
            resize: self.resize,
            recipe: self.recipe.clone(),
            length: self.length.length(),
            options: self.options.overrides(),
        }
    }

    /// Opens the data and the pretrained weights of a new run, and plans it.
    fn planned(&self, runtime: Runtime<'_>) -> Result<PlannedRun> {
        let begun = Instant::now();
        let fetches = self.pretrained.as_ref().is_some_and(|source| hub::is_repository(source));
        let data = self.data.as_deref().unwrap_or("shapes");
        match (&self.output, self.several()) {
            (Some(output), Some(_)) => Series::check_output(output, data)?,
            (output, _) => RunFolder::check_output(output.as_deref(), data)?,
        }
        self.check_data(&self.data_args.folder(), data, fetches)?;
        let dataset = self.data_args.open(data, runtime.events)?;
        self.check_bad_file_limit(data, &dataset)?;
        check_val_fraction(self.val_fraction, &dataset.info)?;
        check_folds(self.folds, &dataset.info)?;
        let new = NewRun {
            data,
            dataset,
            data_dir: self.data_args.folder(),
            max_file_size: self.data_args.file_size.max_file_size,
            label_separator: self.data_args.label_separator,
            overrides: &self.overrides(),
            pretrained: self.open_pretrained(self.pretrained.as_deref(), runtime)?,
            val_fraction: self.val_fraction,
            seed: self.seed,
            fold: self.folds.map(|of| Fold { number: 1, of }),
            begun,
        };
        PlannedRun::new(new, runtime)
    }

    /// Begins a run that repeats an earlier one, for `--config`.
    fn repeated(&self, earlier: &Earlier, runtime: Runtime<'_>) -> Result<Run> {
        let begun = Instant::now();
        for difference in earlier.differences(&runtime.device.name, runtime.threads) {
            runtime.events.emit(Event::notice(difference));
        }
        self.cache.check(&earlier.config)?;
        RunFolder::check_output(self.output.as_deref(), &earlier.config.data)?;
        self.workers.ready(runtime.workers, &earlier.config, runtime.events)?;
        let dataset = self.dataset_of(&earlier.config, false, runtime)?;
        let pretrained = self.pretrained_of(&earlier.config, runtime)?;
        let planned = PlannedRun::again(earlier.repetition(dataset, pretrained, begun), runtime)?;
        Run::begin(planned, self.output.as_deref(), runtime)
    }

    /// Opens an interrupted run, for `--resume`.
    fn resumed(&self, run: &Path, runtime: Runtime<'_>) -> Result<Resumed> {
        let open = |config: &RunConfig| {
            self.workers.ready(runtime.workers, config, runtime.events)?;
            self.dataset_of(config, false, runtime)
        };
        let data_dir = self.data_args.stated_folder()?;
        let data = self.data.as_deref();
        let changes = Changes { length: self.length.length(), data, data_dir: data_dir.as_deref() };
        Ok(match Run::resume(run, changes, runtime, open)? {
            Resumed::Ready(run) => {
                Resumed::Ready(Box::new(run.with_bad_file_limit(self.options.bad_file_limit)))
            }
            finished => finished,
        })
    }

    /// Says that a run is finished already. A place of its images is no wrong usage, because the same command was right until then.
    fn left_alone(&self, run: &Path, progress: &Progress, runtime: Runtime<'_>) -> Status {
        runtime.events.emit(Event::notice(already_finished(run, progress)));
        if let Some(data) = &self.data {
            runtime.events.emit(Event::notice(format!("{data} has no effect: nothing was read from there")));
        }
        Status::Done
    }

    /// Checks that the options for files have an effect for `data`, where named data sets are kept in `folder`. For `fetches`, see
    /// [`DataArgs::check`].
    fn check_data(&self, folder: &Path, data: &str, fetches: bool) -> Result<()> {
        self.data_args.check_kept_in(folder, data, fetches)?;
        if self.options.bad_file_limit.is_some() && vitrine_datasets::is_known_name(data, folder) {
            usage!("--bad-file-limit has no effect for {data}, whose images are no files: leave it out");
        }
        Ok(())
    }

    /// Opens the data set of a run that was begun before. `fetches` states whether the command also opens pretrained
    /// weights, which may be downloaded.
    fn dataset_of(&self, config: &RunConfig, fetches: bool, runtime: Runtime<'_>) -> Result<Dataset> {
        let mut data_args = self.data_args.or_data_dir(config.data_dir.clone());
        let source = config.data_now();
        self.check_data(&data_args.folder(), &source, fetches)?;
        data_args.file_size.max_file_size = config.max_file_size;
        data_args.label_separator = config.label_separator;
        if let Some(path) = config.data_path.as_deref().filter(|_| !Path::new(&source).exists()) {
            usage!(
                "the images of this run were in {}, where nothing is any more: put them back, or give their new place \
                 as DATA",
                path.display()
            );
        }
        let dataset = data_args.reopen(&source, runtime.events)?;
        self.check_bad_file_limit(&source, &dataset)?;
        Ok(dataset)
    }

    /// Checks that `--bad-file-limit`, if it is given, has an effect.
    fn check_bad_file_limit(&self, data: &str, dataset: &Dataset) -> Result<()> {
        let stated = self.options.bad_file_limit;
        stated.map_or(Ok(()), |_| check_files("--bad-file-limit", data, &dataset.info))
    }

    /// Opens the pretrained weights that a run's configuration names.
    fn pretrained_of(&self, config: &RunConfig, runtime: Runtime<'_>) -> Result<Option<Pretrained>> {
        self.open_pretrained(config.pretrained_now().as_deref(), runtime)
    }

    fn open_pretrained(&self, source: Option<&str>, runtime: Runtime<'_>) -> Result<Option<Pretrained>> {
        source.map(|source| pretrained::open(source, self.data_args.offline, runtime.events)).transpose()
    }

    /// Prints the result and the files of a finished run, or how to resume an interrupted one.
    fn conclude(&self, run: &FinishedRun, runtime: Runtime<'_>) -> Result<Status> {
        let Some(report) = &run.report else {
            runtime.events.emit(Event::notice(stopped(run.folder.path())));
            return Ok(Status::Partial);
        };
        let seconds = run.progress.history.last().map_or(0.0, |row| row.seconds);
        let caveats: String = report.caveats.iter().map(|caveat| format!("; {}", caveat.name())).collect();
        outln!("{}, after {}{caveats}", report.line, clock(seconds))?;
        // The result is on standard output already. The event of the result, which a JSON log shows, has them too.
        if self.log_format == LogFormat::Text {
            report.caveats.iter().for_each(|caveat| note!("{caveat}"));
        }
        outln!("model: {}", run.folder.model().display())?;
        outln!("report: {}", run.folder.report().display())?;
        Ok(Status::Done)
    }
}

/// The message for a run or a series of runs that was stopped.
fn stopped(folder: &Path) -> String {
    format!("stopped and saved; resume with: vitrine train --resume {}", shell_word(folder.display()))
}

/// The message for `--resume` of a run that is finished already.
fn already_finished(run: &Path, progress: &Progress) -> String {
    if progress.fitted.is_some() && progress.probe.is_none() {
        return format!(
            "{} is finished: its head is fitted, so there is nothing to train longer",
            run.display()
        );
    }
    let done = format!(
        "{} is finished: {} in {}",
        run.display(),
        count(progress.epoch, "epoch"),
        clock(progress.seconds)
    );
    if Series::includes(run) {
        return format!("{done}; to train longer, train a new series with more --epochs or --time");
    }
    format!(
        "{done}; to train longer, use --epochs above {} or a total --time above {}",
        progress.length.epochs.unwrap_or(progress.epoch),
        clock(progress.seconds)
    )
}
