//! Whether what is asked for fits the memory, judged before anything is begun.

use anyhow::{Result, bail};
use sysinfo::{ProcessRefreshKind, ProcessesToUpdate, System, get_current_pid};
use vitrine_models::{ModelConfig, StepMemory};

use crate::device::FoundDevice;
use crate::recipe::Recipe;

/// The program itself, its threads and their buffers.
const PROGRAM: u64 = 64 << 20;
/// Batches of images that wait or are made: see `LoaderConfig::prefetch`.
const BATCHES: u64 = 6;
/// How far an estimate may be above what is there before it is refused: estimates were within this of what was measured.
const DOUBT: f64 = 1.5;

/// What a command is going to do.
#[derive(Clone, Copy, Debug)]
pub enum Work<'a> {
    /// Train on so many images with a recipe.
    Training(&'a Recipe, usize),
    /// Forward passes of so many images at once.
    Inference(usize),
}

/// Refuses work that clearly does not fit the memory of this machine or of the control group that this program is in. Returns
/// a warning if it may just fit. The memory of a GPU is not considered.
///
/// # Errors
/// Says how much is needed and available, and what to lower.
pub fn check(model: &ModelConfig, work: Work<'_>, device: &FoundDevice) -> Result<Option<String>> {
    if device.is_gpu {
        return Ok(None);
    }
    let Some(available) = available() else { return Ok(None) };
    let needed = needed(model, work);
    if needed as f64 > DOUBT * available as f64 {
        bail!("{}", refusal(needed, available, work));
    }
    Ok((needed > available).then(|| refusal(needed, available, work)))
}

/// Whether work fits the memory without a doubt, or nothing is known of it.
pub fn suffices(model: &ModelConfig, work: Work<'_>, device: &FoundDevice) -> bool {
    device.is_gpu || available().is_none_or(|available| needed(model, work) <= available)
}

/// The most images at once, up to `wanted`, whose forward pass fits the memory; 1 where none does.
pub fn images_at_once(model: &ModelConfig, wanted: usize, device: &FoundDevice) -> usize {
    let halves =
        std::iter::successors(Some(wanted.max(1)), |images| Some(images / 2).filter(|half| *half > 0));
    halves
        .take_while(|images| *images > 1)
        .find(|images| suffices(model, Work::Inference(*images), device))
        .unwrap_or(1)
}

/// Bytes that the work takes.
fn needed(model: &ModelConfig, work: Work<'_>) -> u64 {
    let memory = StepMemory::of(model);
    let size = model.image_size;
    let image = 4 * (model.channels * size.height * size.width) as u64;
    match work {
        Work::Training(recipe, images) => {
            let batch = recipe.batch_size.min(images);
            let average = if recipe.ema_decay > 0.0 { memory.parameters } else { 0 };
            let sums = if recipe.accumulate > 1 { memory.parameters } else { 0 };
            let batches = BATCHES * batch as u64 * image;
            let moments = recipe.optimizer.moments();
            let step = memory.training(batch, recipe.gradient_checkpointing, moments);
            PROGRAM + step + average + sums + batches
        }
        Work::Inference(batch) => PROGRAM + memory.inference(batch) + 2 * batch as u64 * image,
    }
}

/// Bytes that this program can have: what the machine has free or can free, or what its control group has left.
pub fn available() -> Option<u64> {
    let mut system = System::new().ok()?;
    system.refresh_memory();
    let machine = Some(system.available_memory()).filter(|bytes| *bytes > 0)?;
    let mut group = || {
        let process = get_current_pid().ok()?;
        let refresh = ProcessRefreshKind::nothing();
        system.refresh_processes_specifics(ProcessesToUpdate::Some(&[process]), false, refresh);
        let limits = system.process(process)?.cgroup_limits()?;
        // Not what is free: pages of files count as taken there, and make room when it is needed.
        Some(limits.total_memory.saturating_sub(limits.rss))
    };
    Some(group().map_or(machine, |group| group.min(machine)))
}

/// Bytes that a loader may keep decoded images in: a part of what there is.
pub fn for_cache() -> u64 {
    available().map_or(1 << 30, |bytes| (bytes / 8).min(1 << 30))
}

fn refusal(needed: u64, available: u64, work: Work<'_>) -> String {
    let gigabytes = |bytes: u64| format!("{:.1} GB", bytes as f64 / 1e9);
    let lower = match work {
        Work::Training(recipe, _) if recipe.gradient_checkpointing => {
            "use a smaller --batch-size, --image-size or --model"
        }
        Work::Training(..) => {
            "use a smaller --batch-size, --image-size or --model, or --gradient-checkpointing"
        }
        Work::Inference(_) => "use a smaller --batch-size",
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
    fn the_machine_tells_its_memory() {
        let available = available().unwrap();
        assert!(available > 64 << 20, "{available}");
    }

    #[test]
    fn as_many_images_are_measured_at_once_as_the_memory_holds() {
        let device = crate::device::select(Some("cpu")).expect("a CPU").0;
        let model = preset::find("vit_pico_patch4_32").expect("a preset");
        assert_eq!([1, 64].map(|wanted| images_at_once(&model, wanted, &device)), [1, 64]);
        let fitting = images_at_once(&model, 1 << 40, &device);
        assert!((2..1 << 40).contains(&fitting), "{fitting}");
        assert!(suffices(&model, Work::Inference(fitting / 2), &device));
        assert!(!suffices(&model, Work::Inference(fitting * 4), &device));
    }

    /// Megabytes that `vitrine bench --model NAME --batch-size N --steps 1 --threads 2` reported as its peak.
    #[test]
    fn estimates_are_near_what_was_measured() {
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
            // The images of a bench are made once.
            let estimate = needed(&model, Work::Training(&recipe, batch)) as f64 / 1048576.0;
            let ratio = estimate / measured;
            assert!(
                (1.0 / DOUBT..DOUBT).contains(&ratio),
                "{name}, {batch}: {estimate:.0} MB, measured {measured}"
            );
        }
    }
}
