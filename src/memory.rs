//! Memory estimates of training and inference, which are compared with the available memory before work begins.

use anyhow::{Result, bail};
use sysinfo::{ProcessRefreshKind, ProcessesToUpdate, System, get_current_pid};
use vitrine_models::{ModelConfig, StepMemory, linear_probe};

use crate::device::FoundDevice;
use crate::recipe::Recipe;

/// Bytes of the program itself, its threads, and their buffers.
const PROGRAM_BYTES: u64 = 64 << 20;
/// Number of batches of images in memory at once, waiting or in preparation: see `LoaderConfig::prefetch`.
const BATCHES_IN_MEMORY: u64 = 6;
/// Folds of a cross-validation whose regressions are fitted at once: see `probe`.
const FOLDS_AT_ONCE: usize = 5;
/// Work is refused if its estimate exceeds the available memory by more than this factor. Estimates differ from
/// measured peaks by less, as a test below checks.
const ESTIMATE_ERROR: f64 = 1.5;

/// The work whose memory is estimated.
#[derive(Clone, Copy, Debug)]
pub enum Work<'a> {
    /// Training with this recipe, on this number of images.
    Training(&'a Recipe, usize),
    /// Fitting a head to the features of this number of images, mirror images included.
    Fitting(usize),
    /// Forward passes of this number of images at once.
    Inference(usize),
    /// Maps of this number of images at once: a forward and a backward pass without an optimizer, and the attention weights
    /// of all blocks with their gradients.
    Explaining(usize),
}

/// Refuses work that clearly exceeds the memory of this machine, or of the control group (such as a container's) in
/// which the program runs. Returns a warning if the work may just fit. The memory of a GPU is not checked.
///
/// # Errors
/// If the work is refused; the message states how much memory is needed and available, and what to lower.
pub fn check(model: &ModelConfig, work: Work<'_>, device: &FoundDevice) -> Result<Option<String>> {
    if device.is_gpu {
        return Ok(None);
    }
    let Some(available) = available() else { return Ok(None) };
    let needed = needed(model, work);
    if needed as f64 > ESTIMATE_ERROR * available as f64 {
        bail!("{}", message(needed, available, most(model, work)));
    }
    Ok((needed > available).then(|| message(needed, available, most(model, work))))
}

/// Whether the estimate is within the available memory. Also true for a GPU, or if the available memory is unknown.
pub fn suffices(model: &ModelConfig, work: Work<'_>, device: &FoundDevice) -> bool {
    device.is_gpu || available().is_none_or(|available| needed(model, work) <= available)
}

/// The largest batch for `work`, which takes a number of images: `wanted`, or 1 if that is 0, halved until the work fits the
/// available memory. `None` if not even a single image fits.
pub fn largest_batch(
    model: &ModelConfig,
    wanted: usize,
    work: fn(usize) -> Work<'static>,
    device: &FoundDevice,
) -> Option<usize> {
    let mut halves =
        std::iter::successors(Some(wanted.max(1)), |images| Some(images / 2).filter(|half| *half > 0));
    halves.find(|images| suffices(model, work(*images), device))
}

/// Estimated memory of the work in bytes.
fn needed(model: &ModelConfig, work: Work<'_>) -> u64 {
    let memory = StepMemory::of(model);
    let size = model.image_size;
    let image = 4 * (model.channels * size.height * size.width) as u64;
    match work {
        Work::Training(recipe, images) => {
            let batch = recipe.batch_size.min(images);
            let average = if recipe.ema_decay > 0.0 { memory.parameters } else { 0 };
            let sums = if recipe.accumulate > 1 { memory.parameters } else { 0 };
            let batches = BATCHES_IN_MEMORY * batch as u64 * image;
            let moments = recipe.optimizer.moments();
            let step = memory.training(batch, recipe.gradient_checkpointing, moments);
            let steps = PROGRAM_BYTES + step + average + sums + batches;
            // A time limit limits the images whose features are computed.
            let is_whole = recipe.probe_first && recipe.time_seconds.is_none();
            if is_whole { steps.max(needed(model, Work::Fitting(images))) } else { steps }
        }
        Work::Fitting(images) => {
            let width = model.embedding_dim();
            // Those in the cache, those just computed, and all together in order; later those of two splits, and both joined.
            let features = 3 * 4 * (images * width) as u64;
            let fit = linear_probe::fit_bytes(images, width, model.num_classes, FOLDS_AT_ONCE);
            // The backbone's weights are kept, and copied as products read them.
            needed(model, Work::Inference(1)) + memory.parameters + features + fit
        }
        Work::Inference(batch) => PROGRAM_BYTES + memory.inference(batch) + 2 * batch as u64 * image,
        Work::Explaining(batch) => {
            // Weights, what is added to them, and both of their gradients, and the sum over blocks.
            let weights = 4 * 5 * attention_weights(model);
            PROGRAM_BYTES + memory.training(batch, false, 0) + batch as u64 * (weights + 2 * image)
        }
    }
}

/// The part of the work that needs the most memory.
fn most<'a>(model: &ModelConfig, work: Work<'a>) -> Work<'a> {
    match work {
        Work::Training(recipe, images) if recipe.probe_first && recipe.time_seconds.is_none() => {
            let probe = Work::Fitting(images);
            if needed(model, probe) >= needed(model, work) { probe } else { work }
        }
        _ => work,
    }
}

/// The attention weights of one image between all tokens, in all blocks; 0 for a model of several stages, whose attention is
/// in windows.
fn attention_weights(model: &ModelConfig) -> u64 {
    if model.num_stages() > 1 {
        return 0;
    }
    let tokens = model.num_tokens() as u64;
    (model.depth.sum() * model.num_heads[0]) as u64 * tokens * tokens
}

/// Bytes that this program can still allocate: the machine's available memory, or the rest of the control group's limit
/// if that is less. `None` if the system does not report its memory.
pub fn available() -> Option<u64> {
    let mut system = System::new().ok()?;
    system.refresh_memory();
    let machine = Some(system.available_memory()).filter(|bytes| *bytes > 0)?;
    let mut group = || {
        let process = get_current_pid().ok()?;
        let refresh = ProcessRefreshKind::nothing();
        system.refresh_processes_specifics(ProcessesToUpdate::Some(&[process]), false, refresh);
        let limits = system.process(process)?.cgroup_limits()?;
        // Not the group's free memory: that excludes cached files, which the system drops when memory is needed.
        Some(limits.total_memory.saturating_sub(limits.rss))
    };
    Some(group().map_or(machine, |group| group.min(machine)))
}

/// Bytes for a loader's cache of decoded images: an eighth of the available memory, and at most 1 GiB. If the available
/// memory is unknown, 1 GiB.
pub fn for_cache() -> u64 {
    available().map_or(1 << 30, |bytes| (bytes / 8).min(1 << 30))
}

/// The message about work that may exceed the memory, with the options to change.
fn message(needed: u64, available: u64, work: Work<'_>) -> String {
    let gigabytes = |bytes: u64| format!("{:.1} GB", bytes as f64 / 1e9);
    let lower = match work {
        Work::Training(recipe, _) if recipe.gradient_checkpointing => {
            "use a smaller --batch-size, --image-size or --model"
        }
        Work::Training(..) => {
            "use a smaller --batch-size, --image-size or --model, or --gradient-checkpointing"
        }
        Work::Fitting(_) => {
            "the features of all images, and with --flips of their mirror images, are in memory at once: use --pool own, if they are those \
             of two depths, --pretrained weights of a narrower model, fewer images, or --time; --recipe fine-tune goes without"
        }
        Work::Explaining(1) => "use a smaller model, or one for smaller images",
        Work::Inference(_) | Work::Explaining(_) => "use a smaller --batch-size",
    };
    format!(
        "about {} of memory is needed, and {} is available: {lower}",
        gigabytes(needed),
        gigabytes(available)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use vitrine_models::preset;

    #[test]
    fn the_available_memory_is_known() {
        let available = available().unwrap();
        assert!(available > 64 << 20, "{available}");
    }

    #[test]
    fn the_features_of_many_images_count() {
        let model = preset::find("vit_pico_patch4_32").expect("a preset");
        let fitting = |images| needed(&model, Work::Fitting(images));
        let features = 12_000_000 * model.embedding_dim() as u64;
        assert_eq!(fitting(2_000_000) - fitting(1_000_000), features);
        let many_classes = model.clone().with_num_classes(10_000);
        assert!(needed(&many_classes, Work::Fitting(1_000)) > fitting(1_000) + (300 << 20));
        let recipe = |probe_first| Recipe { probe_first, ..Recipe::default() };
        let training = |probe_first, images| needed(&model, Work::Training(&recipe(probe_first), images));
        assert_eq!(training(true, 1_000), training(false, 1_000), "the steps need more");
        assert_eq!(training(true, 100_000_000), fitting(100_000_000));
        let with_probe = recipe(true);
        for (images, way_out) in [(1_000, "--gradient-checkpointing"), (100_000_000, "--pool own")] {
            let text = message(2, 1, most(&model, Work::Training(&with_probe, images)));
            assert!(text.contains(way_out), "{text}");
        }
    }

    #[test]
    fn a_batch_for_inference_is_halved_until_it_fits_the_memory() {
        let device = crate::device::select(Some("cpu")).expect("a CPU").0;
        let model = preset::find("vit_pico_patch4_32").expect("a preset");
        let largest = |wanted| largest_batch(&model, wanted, Work::Inference, &device);
        assert_eq!([0, 1, 64].map(largest), [Some(1), Some(1), Some(64)]);
        let fitting = largest(1 << 40).unwrap();
        assert!((2..1 << 40).contains(&fitting), "{fitting}");
        assert!(suffices(&model, Work::Inference(fitting / 2), &device));
        assert!(!suffices(&model, Work::Inference(fitting * 4), &device));
        // Maps need a backward pass as well.
        assert!(largest_batch(&model, fitting, Work::Explaining, &device).unwrap() < fitting);
        let large = ModelConfig { embed_dim: 1 << 16, mlp_ratio: 256.0, depth: 64.into(), ..model.clone() };
        assert_eq!(largest_batch(&large, 8, Work::Explaining, &device), None);
    }

    /// Each case has a model, a batch size, whether `--gradient-checkpointing` is on, and the peak memory in MiB that
    /// `vitrine bench --model NAME --batch-size N --steps 1 --threads 2` reported.
    #[test]
    fn estimates_are_close_to_measured_peaks() {
        let cases: [(&str, usize, bool, f64); 11] = [
            ("vit_tiny_patch16_224", 16, false, 813.0),
            ("vit_tiny_patch16_224", 16, true, 292.0),
            ("vit_tiny_patch16_224", 64, false, 3276.0),
            ("vit_small_patch16_224", 16, false, 1713.0),
            ("vit_small_patch16_224", 16, true, 646.0),
            ("vit_base_patch16_224", 4, false, 1839.0),
            ("vit_pico_patch4_32", 64, false, 202.0),
            ("vit_pico_patch4_32", 512, false, 1238.0),
            ("swin_tiny_patch4_window7_224", 8, false, 1550.0),
            ("swin_tiny_patch4_window7_224", 8, true, 939.0),
            ("cait_xxs24_224", 8, false, 1456.0),
        ];
        for (name, batch, gradient_checkpointing, measured) in cases {
            let model = preset::find(name).unwrap();
            let recipe = Recipe { batch_size: batch, gradient_checkpointing, ..Recipe::default() };
            // `vitrine bench` trains on a single batch.
            let estimate = needed(&model, Work::Training(&recipe, batch)) as f64 / 1048576.0;
            let ratio = estimate / measured;
            assert!(
                (1.0 / ESTIMATE_ERROR..ESTIMATE_ERROR).contains(&ratio),
                "{name}, {batch}: {estimate:.0} MB, measured {measured}"
            );
        }
    }
}
