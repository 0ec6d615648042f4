//! The report of a finished run: its best model is measured on images that were not trained on, and the result is
//! written.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context, Result};
use burn::module::Module;
use vitrine_datasets::{Dataset, LoaderConfig, Sample, Split};

use super::embedded::{MapImages, map_of};
use super::mistakes::{Maps, mistakes};
use super::views::ViewGain;
use super::{Caveat, Report, render};
use crate::embed::Map;
use crate::evaluate::{Metrics, Predicted, interval, percent, predict, reliability};
use crate::events::{EpochRow, Event, EventSink, clock};
use crate::model_file::{self, ModelCard};
use crate::predict::{Predictor, Views};
use crate::recipe::Metric;
use crate::run_folder::{BadFiles, RunConfig, RunFolder};
use crate::runtime::Runtime;
use crate::text::count;
use crate::train::{Progress, Trained, add_undecodable, part};

/// The result of a finished run.
#[derive(Clone, Debug)]
pub struct RunReport {
    /// The split that was measured last: test, or validation if there is no test split.
    pub split: Split,
    /// The figures of that split.
    pub metrics: Metrics,
    /// The result in one line.
    pub line: String,
    /// Reasons not to trust the result, or not to stop at it.
    pub caveats: Vec<Caveat>,
}

/// A finished run, and its best model, that the report is about.
struct ReportedRun<'a> {
    config: &'a RunConfig,
    dataset: &'a Dataset,
    progress: Progress,
    runtime: Runtime<'a>,
    predictor: Predictor,
    maps: Maps,
    /// Number of images in the map of embeddings, at most.
    embedded: usize,
}

/// The samples of a split that were measured, all or a part, with the model's predictions for them.
struct MeasuredSplit {
    samples: Arc<[Sample]>,
    predicted: Predicted,
    metrics: Metrics,
}

/// Measures the best model of `folder` and writes `metrics.json` and `report.html`.
///
/// The model is measured on the validation split, unless training has just done so, and on the test split if there is
/// one. The returned result is that of the test split, or else of the validation split. `in_series` says that the run is one of a
/// series.
///
/// # Errors
/// When the model cannot be read, more images are unreadable than the limit allows, or a file cannot be written.
pub fn of_run(
    (folder, config): (&RunFolder, &RunConfig),
    dataset: &Dataset,
    trained: Trained,
    in_series: bool,
    runtime: Runtime<'_>,
) -> Result<RunReport> {
    let Trained {
        progress,
        mut bad_files,
        validated,
        mirrored,
        pixel_copies,
        test_images,
        views,
        maps,
        embedded,
    } = trained;
    let (card, model) = model_file::load(&folder.model(), &runtime.device.device)?;
    let predictor = Predictor::new(model, card.preprocessing.clone(), runtime.device)
        .with_limits(config.limits())
        .with_multi_label(config.multi_label);
    let maps = Maps { model: folder.model(), most: maps };
    let mut run = ReportedRun { config, dataset, progress, runtime, predictor, maps, embedded };
    let validation = run.measure_split(Split::Val, validated, None)?;
    let validation = run.choose_views((folder, card), (validation, mirrored), views)?;
    let measured: BTreeMap<Split, MeasuredSplit> =
        [validation, run.measure_split(Split::Test, None, test_images)?].into_iter().flatten().collect();
    folder.write_results(&measured.iter().map(|(split, of)| (*split, &of.metrics)).collect())?;
    if let Some(MeasuredSplit { samples, predicted, .. }) = measured.get(&Split::Test) {
        runtime.events.emit_notice(pixel_copies.remark_on_test(samples, predicted));
    }
    let (&split, result) = measured.last_key_value().context("there is no split to measure the model on")?;
    let validation_images = run.progress.best.as_ref().map_or(0, |best| best.samples);
    let has_chosen = split != Split::Test && run.has_epochs();
    let metric = config.recipe.metric();
    let caveats =
        Caveat::of(&result.metrics, run.epochs(), metric, validation_images, has_chosen).into_iter();
    let caveats: Vec<Caveat> =
        caveats.map(|caveat| if in_series { caveat.in_series() } else { caveat }).collect();
    let map = run.map(measured.get(&Split::Val));
    folder.write_report(&run.page((split, result), &caveats, map.as_ref())?)?;
    note_undecodable((folder, config), &measured, &mut bad_files, runtime.events);
    for (split, MeasuredSplit { samples, predicted, .. }) in &measured {
        let bad = (predicted.bad.as_slice(), samples.len());
        bad_files.judge(config.recipe.bad_file_limit, *split, bad, runtime.events)?;
    }
    Ok(RunReport { split, metrics: result.metrics.clone(), line: run.line(split, result), caveats })
}

/// Notes in the state of the run which of the measured images cannot be decoded. The test images are read for the first time. A warning
/// says if that fails, as on a full disk: the run is finished without it.
fn note_undecodable(
    (folder, config): (&RunFolder, &RunConfig),
    measured: &BTreeMap<Split, MeasuredSplit>,
    bad_files: &mut BadFiles,
    events: &dyn EventSink,
) {
    for MeasuredSplit { samples, predicted, .. } in measured.values() {
        bad_files.note(samples, &predicted.bad, &config.limits());
    }
    if let Err(error) = add_undecodable(folder.path(), bad_files.take_noted()) {
        events.emit(Event::warning(format!(
            "images that cannot be decoded could not be noted, so that --resume still needs their files: {error:#}"
        )));
    }
}

impl ReportedRun<'_> {
    /// Whether there were epochs to choose from, and not a probe alone.
    fn has_epochs(&self) -> bool {
        !self.config.recipe.fit_head && self.progress.epoch > 0
    }

    /// The rows of the epochs, without that of a probe before them.
    fn epochs(&self) -> &[EpochRow] {
        let history = &self.progress.history;
        let probes = history.iter().take_while(|row| row.epoch == 0).count();
        &history[probes..]
    }

    /// A split as sentences call it.
    fn split_name(&self, split: Split) -> &'static str {
        match split {
            Split::Test => "the test split",
            Split::Val | Split::Train if !self.has_epochs() => "the validation split",
            Split::Val | Split::Train => "the validation split, which was also used to choose the best epoch",
        }
    }

    /// Measures the model on the split, or on `images` images of it; `None` if it has none. `predicted` are the
    /// predictions if they are known already.
    fn measure_split(
        &self,
        split: Split,
        predicted: Option<Predicted>,
        images: Option<usize>,
    ) -> Result<Option<(Split, MeasuredSplit)>> {
        let images = match split {
            Split::Test => images,
            Split::Val | Split::Train => self.progress.validation_images,
        };
        let samples = part(self.dataset.split(split), images, self.config.seed);
        if samples.is_empty() {
            return Ok(None);
        }
        // Training has compared those of the validation images.
        let hash_pixels = split == Split::Test;
        let predicted = predicted.map_or_else(|| self.predict(&samples, hash_pixels), Ok)?;
        let metrics = Metrics::compute(&predicted.predictions, &self.config.classes);
        Ok(Some((split, MeasuredSplit { samples, predicted, metrics })))
    }

    /// Lets the validation images decide about which of the `affordable` views of each image the model is asked: mirror images, if the
    /// recipe wants that and the model was trained with them, and then shifts. Notes it in the model file. Returns the validation with the
    /// chosen views. `mirrored` are the predictions for each image together with its mirror image, if they are known already.
    fn choose_views(
        &mut self,
        (folder, card): (&RunFolder, ModelCard),
        (validation, mirrored): (Option<(Split, MeasuredSplit)>, Option<Predicted>),
        affordable: Views,
    ) -> Result<Option<(Split, MeasuredSplit)>> {
        let Some(mut validation) = validation else { return Ok(None) };
        let recipe = &self.config.recipe;
        let trained_flips = card.recipe.as_ref().map_or(0.0, |recipe| recipe.augmentation.horizontal_flip);
        let wants_mirror_images = recipe.mirror_views && trained_flips > 0.0;
        if wants_mirror_images && affordable.has_mirror_image() {
            validation = self.judge_views(Views::Mirrored, validation, mirrored)?;
        } else if wants_mirror_images {
            let message = "images are classified without mirror images: the time did not allow to measure what their mirror images add \
                           (--tta adds these)";
            self.emit_views(message.to_owned());
        }
        if recipe.shifted_views && affordable.has_shifts() {
            let shifted = Views::new(self.predictor.views().has_mirror_image(), true);
            validation = self.judge_views(shifted, validation, None)?;
        }
        // An earlier report of this run may have chosen others.
        self.note_views(folder, card)?;
        Ok(Some(validation))
    }

    /// Lets the validation images decide between the present views and `more`, for which their predictions may be `known`. Returns the
    /// validation with those that are chosen.
    fn judge_views(
        &mut self,
        more: Views,
        (split, present): (Split, MeasuredSplit),
        known: Option<Predicted>,
    ) -> Result<(Split, MeasuredSplit)> {
        let fewer = self.predictor.views();
        self.predictor.set_views(more);
        let Some((_, measured)) = self.measure_split(split, known, None)? else {
            self.predictor.set_views(fewer);
            return Ok((split, present));
        };
        let gain = ViewGain::new(&self.config.recipe, [fewer, more], [&present.metrics, &measured.metrics]);
        self.predictor.set_views(gain.views());
        self.emit_views(gain.to_string());
        Ok((split, if gain.views() == more { measured } else { present }))
    }

    /// Says why the model is asked about the present views.
    fn emit_views(&self, message: String) {
        let views = self.predictor.views();
        let (mirrored, shifted) = (views.has_mirror_image(), views.has_shifts());
        self.runtime.events.emit(Event::Views { mirrored, shifted, message });
    }

    /// Writes into the model file about which views the model is asked, if it says otherwise.
    fn note_views(&self, folder: &RunFolder, card: ModelCard) -> Result<()> {
        let views = self.predictor.views();
        if views == Views::of(&card) {
            return Ok(());
        }
        let (mirror_views, shifted_views) = (views.has_mirror_image(), views.has_shifts());
        folder.write_model(&ModelCard { mirror_views, shifted_views, ..card }, self.predictor.model())
    }

    /// The predictions of the model for some samples, in batches as large as the recipe's if the memory allows, with the hashes
    /// of their pixels if `hash_pixels` is set.
    fn predict(&self, samples: &Arc<[Sample]>, hash_pixels: bool) -> Result<Predicted> {
        let batch_size = self.predictor.largest_batch(self.config.recipe.batch_size);
        let loader = self.predictor.loader(Arc::clone(samples), batch_size, rayon::current_num_threads())?;
        let loader = loader.reconfigured(LoaderConfig { hash_pixels, ..loader.config().clone() })?;
        predict(&self.predictor, &loader)
    }

    /// The map of the validation images, if time allows. Why there is none otherwise is a warning.
    fn map(&self, validation: Option<&MeasuredSplit>) -> Option<Map> {
        let Self { config, predictor, runtime, .. } = self;
        if self.embedded == 0 {
            return None;
        }
        let samples = part(&validation?.samples, Some(self.embedded), config.seed);
        let images = MapImages { samples, batch_size: predictor.largest_batch(config.recipe.batch_size) };
        map_of(images, predictor, config).unwrap_or_else(|error| {
            let message = format!("the report has no map of the validation images: {error:#}");
            runtime.events.emit_warning(Some(message));
            None
        })
    }

    /// The page of the report, with the result of a split.
    fn page(
        &self,
        (split, result): (Split, &MeasuredSplit),
        caveats: &[Caveat],
        map: Option<&Map>,
    ) -> Result<String> {
        let Self { config, progress, runtime, maps, .. } = self;
        let measured = (&result.predicted, &*result.samples);
        Ok(render(&Report {
            title: &format!("{} on {}", config.model_name, self.dataset.info.name),
            summary: self.summary(),
            // A fitted head alone has no course of training to show.
            history: if self.has_epochs() { &progress.history } else { &[] },
            best_epoch: progress.best.as_ref().map(|best| best.epoch),
            metrics: Some(&result.metrics),
            split: self.split_name(split),
            caveats,
            reliability: &reliability(&result.predicted.predictions),
            map,
            mistakes: &mistakes(measured, config, maps, *runtime),
            config_toml: &toml::to_string(config)?,
        }))
    }

    /// The result in one line.
    fn line(&self, split: Split, result: &MeasuredSplit) -> String {
        let best = match self.config.recipe.metric() {
            _ if !self.has_epochs() => String::new(),
            _ if self.is_probe() => format!(", the probe: no epoch of {} was as good", self.progress.epoch),
            Metric::Accuracy => format!(", best epoch {}", self.best_epoch()),
            metric => format!(", best epoch {} by {metric}", self.best_epoch()),
        };
        if let Some(of_labels) = &result.metrics.multi_label {
            return format!(
                "mean average precision {:.3} (chance {:.3}) on {} ({}{}){best}",
                of_labels.mean_average_precision,
                of_labels.chance_average_precision,
                self.split_name(split),
                counted(result, self.dataset.split(split).len()),
                self.predictor.views().described(),
            );
        }
        format!(
            "top-1 {} on {} (95% interval {}, {}{}){best}",
            percent(result.metrics.top1),
            self.split_name(split),
            interval(result.metrics.top1_interval),
            counted(result, self.dataset.split(split).len()),
            self.predictor.views().described(),
        )
    }

    /// The number of the epoch whose model was kept.
    fn best_epoch(&self) -> usize {
        self.progress.best.as_ref().map_or(0, |best| best.epoch)
    }

    /// Whether the probe was kept with which the run began, and no epoch.
    fn is_probe(&self) -> bool {
        self.progress.probe.is_some() && self.best_epoch() == 0
    }

    /// The facts of the run, as name and value.
    fn summary(&self) -> Vec<(String, String)> {
        let Self { config, dataset, progress, runtime, predictor, .. } = self;
        let (device, parameters) = (runtime.device, predictor.model().num_params());
        let fact = |name: &str, value: String| (name.to_owned(), value);
        let hardware = match device.is_gpu {
            true => device.hardware(),
            false => format!("CPU, {}", count(runtime.threads, "thread")),
        };
        let (train, val, test) = (dataset.train.len(), dataset.val.len(), dataset.test.len());
        let mut facts = vec![
            fact("Data", format!("{}, {}", dataset.info.name, count(config.classes.len(), "class"))),
            fact("Images", format!("{train} training, {val} validation, and {test} test images")),
            fact("Model", format!("{}, {} parameters", config.model_name, parameters)),
            fact("Input", format!("{} pixels, {} channels", config.model.image_size, config.model.channels)),
            fact("Device", format!("{} ({hardware})", device.name)),
            fact("Time", progress.history.last().map_or_else(String::new, |row| clock(row.seconds))),
            fact("Seed", config.seed.to_string()),
            fact("Program", config.program.clone()),
        ];
        facts.extend(progress.fitted.as_ref().map(|fitted| match &progress.probe {
            Some(probe) => {
                fact("Probe", format!("top-1 {} on the validation split; {fitted}", percent(probe.top1)))
            }
            None => fact("Head", fitted.clone()),
        }));
        if !config.recipe.fit_head {
            facts.extend([
                fact("Epochs", progress.epoch.to_string()),
                fact("Best epoch by", config.recipe.metric().to_string()),
            ]);
        }
        facts.extend(progress.flips.as_ref().map(|verdict| fact("Flips", verdict.in_short())));
        match predictor.views() {
            Views::One | Views::MirrorImage => {}
            Views::Mirrored => facts.push(fact("Views", "each image and its mirror image".to_owned())),
            Views::Shifted => facts.push(fact("Views", "two shifts of each image".to_owned())),
            Views::ShiftedMirrored => {
                facts.push(fact("Views", "two shifts of each image and of its mirror image".to_owned()));
            }
        }
        facts.extend(progress.given_up.iter().map(|attempt| fact("Started over", attempt.to_string())));
        facts
    }
}

/// How many of `all` images of a split were measured, in words.
fn counted(result: &MeasuredSplit, all: usize) -> String {
    let images = result.metrics.samples;
    if result.samples.len() < all {
        format!("{images} of {all} images, as the time paid for no more: `vitrine evaluate` measures all")
    } else {
        count(images, "image")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use vitrine_datasets::{BadFile, Fault, ImageSource};

    use super::*;
    use crate::evaluate::Predictions;
    use crate::events::Quiet;
    use crate::events::testing::Lines;
    use crate::run_folder::testing;

    /// A test split of one image that can be read and one that cannot be decoded.
    fn measured(config: &RunConfig) -> BTreeMap<Split, MeasuredSplit> {
        let bytes = b"\x89PNG\r\n\x1a\n".as_slice().into();
        let cut = ImageSource::Encoded { name: "cut.png".to_owned(), bytes };
        let bad = vec![BadFile::new(cut.name(), &Fault::Other("cut short".to_owned()))];
        let sources = [ImageSource::Drawn { class: 0, seed: 1 }, cut];
        let samples = sources.map(|source| Sample { labels: 0.into(), source });
        let mut predictions = Predictions::new(config.classes.len());
        predictions.push(&[0], &[1.0, 0.0]);
        let metrics = Metrics::compute(&predictions, &config.classes);
        let predicted = Predicted { predictions, indices: vec![0], pixel_keys: Vec::new(), bad };
        BTreeMap::from([(Split::Test, MeasuredSplit { samples: Arc::new(samples), predicted, metrics })])
    }

    #[test]
    fn images_that_cannot_be_noted_are_a_warning() {
        let place = tempfile::tempdir().unwrap();
        let config = testing::config(&["circle", "ring"]);
        // Nothing was saved there to which they could be added.
        let folder = RunFolder::create(Some(&place.path().join("run")), &config, "data", &Quiet).unwrap();
        let events = Lines::default();
        note_undecodable((&folder, &config), &measured(&config), &mut BadFiles::default(), &events);
        let said = events.0.into_inner().unwrap();
        assert!(said.len() == 1 && said[0].contains("could not be noted"), "{said:?}");
    }
}
