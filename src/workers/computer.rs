//! What computes tasks in a process: a replica of the model, kept from one task to the next.

use burn::tensor::Device;
use vitrine_models::{ImageSize, ModelConfig};

use super::Task;
use crate::learner::micro_batch::{Contribution, MicroBatch, Replica, ReplicaConfig};

/// Computes tasks, one at a time.
pub struct Computer {
    device: Device,
    replica: Option<Replica>,
    /// The version of the replica's weights.
    version: Option<u64>,
}

impl Computer {
    /// A computer on a device, without autodiff.
    pub fn new(device: &Device) -> Self {
        Self { device: device.clone().autodiff(), replica: None, version: None }
    }

    /// Computes what a micro-batch contributes.
    ///
    /// # Errors
    /// If the task contradicts itself: the message says how.
    pub fn compute(&mut self, task: &Task) -> Result<Contribution, String> {
        check(&task.config, &task.batch)?;
        if self.has_weights(&task.config, task.weights.version)
            && let Some(replica) = &mut self.replica
        {
            return Ok(replica.contribution(&task.batch));
        }
        // If anything fails, the weights are of no version.
        self.version = None;
        let known = self.replica.take().filter(|replica| replica.config() == &*task.config);
        let new = || Replica::new(ReplicaConfig::clone(&task.config), &self.device);
        let replica = known.map_or_else(new, Ok).map_err(|error| error.to_string())?;
        let replica = self.replica.insert(replica);
        let (given, wanted) = (task.weights.values.len(), replica.sizes().iter().sum::<usize>());
        if given != wanted {
            return Err(format!("the model has {wanted} parameters, and {given} came"));
        }
        replica.set_parameters(&task.weights.values);
        self.version = Some(task.weights.version);
        Ok(replica.contribution(&task.batch))
    }

    /// Whether it has these weights of this model, so that those of a task are not read.
    pub fn has_weights(&self, config: &ReplicaConfig, version: u64) -> bool {
        self.version == Some(version)
            && self.replica.as_ref().is_some_and(|replica| replica.config() == config)
    }

    /// The sizes of the model's tensors, once a task was computed.
    pub fn sizes(&self) -> Option<Vec<usize>> {
        self.replica.as_ref().map(Replica::sizes)
    }
}

/// Checks the model, and the numbers of images and targets.
pub(super) fn check(ReplicaConfig { model, .. }: &ReplicaConfig, batch: &MicroBatch) -> Result<(), String> {
    let ImageSize { height, width } = batch.image_size;
    model.validate().map_err(|error| error.to_string())?;
    if batch.image_size != model.image_size {
        if !model.fits_all_sizes() {
            return Err(format!("the model takes images of one size, and not of {height} by {width} pixels"));
        }
        let at_size = ModelConfig { image_size: batch.image_size, ..model.clone() };
        at_size.validate().map_err(|error| error.to_string())?;
    }
    let of_images = [batch.size, model.channels, height, width];
    let product = |numbers: &[usize]| {
        numbers.iter().try_fold(1_usize, |product, number| product.checked_mul(*number)).unwrap_or(usize::MAX)
    };
    let counts = [
        ("pixels", batch.images.len(), product(&of_images)),
        ("targets", batch.targets.len(), product(&[batch.size, model.num_classes])),
    ];
    for (what, given, wanted) in counts {
        if given != wanted || given == 0 {
            return Err(format!("{} images need {wanted} {what}, and {given} came", batch.size));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;

    use vitrine_models::preset;

    use super::*;
    use crate::learner::micro_batch::{parameters, sizes};
    use crate::recipe::Precision;
    use crate::workers::Weights;

    /// A task for a model of 16 by 16 pixels, after a change.
    fn task(change: impl FnOnce(&mut ReplicaConfig, &mut MicroBatch, &mut Weights)) -> Task {
        let preset = preset::find("vit_pico_patch4_32").unwrap().with_num_classes(3);
        let image_size = ImageSize { height: 16, width: 16 };
        let model = ModelConfig { image_size, ..preset };
        let own = model.init(&Device::default().autodiff()).unwrap();
        let mut weights = Weights { version: 1, values: parameters(&own), sizes: sizes(&own) };
        let mut config = ReplicaConfig {
            model,
            freeze: None,
            multi_label: false,
            gradient_checkpointing: false,
            precision: Precision::F32,
        };
        let (images, targets) = (vec![0.5; 2 * 3 * 16 * 16], vec![1.0, 0.0, 0.0, 0.0, 1.0, 0.0]);
        let mut batch = MicroBatch { size: 2, image_size, images, targets, seed: 0 };
        change(&mut config, &mut batch, &mut weights);
        Task { config: Arc::new(config), weights: Arc::new(weights), batch }
    }

    #[test]
    fn tasks_that_contradict_themselves_are_refused_and_others_are_computed() {
        let mut computer = Computer::new(&Device::default());
        let mut problem = |task: Task| computer.compute(&task).unwrap_err();
        let size = |height, width| ImageSize { height, width };
        for (task, part) in [
            (task(|_, batch, _| batch.size = 3), "3 images need 2304 pixels, and 1536 came"),
            (task(|_, batch, _| batch.size = usize::MAX), "pixels"),
            (task(|_, batch, _| batch.targets.truncate(5)), "need 6 targets, and 5 came"),
            (task(|_, _, weights| _ = weights.values.pop()), "parameters, and"),
            (task(|config, _, _| config.model.patch_size = 0), "patch_size"),
            (task(|config, _, _| config.model.num_classes = 0), "num_classes"),
            (task(|_, batch, _| batch.image_size = size(18, 16)), "18"),
        ] {
            let message = problem(task);
            assert!(message.contains(part), "{message}");
        }
        let contribution = computer.compute(&task(|_, _, _| {})).unwrap();
        assert!(contribution.loss.is_finite() && contribution.answers.len() == 2);
        assert_eq!(contribution.values.len(), computer.sizes().unwrap().iter().sum::<usize>());
    }
}
