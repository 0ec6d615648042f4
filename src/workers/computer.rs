//! What computes tasks in a process: a replica of the model, kept from one task to the next.

use burn::tensor::Device;
use vitrine_models::ImageSize;

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
        let is_known = self.replica.as_ref().is_some_and(|replica| replica.config() == &*task.config);
        if !is_known {
            let replica = Replica::new(ReplicaConfig::clone(&task.config), &self.device);
            (self.replica, self.version) = (Some(replica.map_err(|error| error.to_string())?), None);
        }
        let Some(replica) = &mut self.replica else { return Err("there is no model".to_owned()) };
        check(&task.config, &task.batch)?;
        if self.version != Some(task.weights.version) {
            let (given, wanted) = (task.weights.values.len(), replica.sizes().iter().sum::<usize>());
            if given != wanted {
                return Err(format!("the model has {wanted} parameters, and {given} came"));
            }
            replica.set_parameters(&task.weights.values);
            self.version = Some(task.weights.version);
        }
        Ok(replica.contribution(&task.batch))
    }

    /// The sizes of the model's tensors, once a task was computed.
    pub fn sizes(&self) -> Option<Vec<usize>> {
        self.replica.as_ref().map(Replica::sizes)
    }
}

/// Checks the numbers of images and targets.
fn check(ReplicaConfig { model, .. }: &ReplicaConfig, batch: &MicroBatch) -> Result<(), String> {
    let ImageSize { height, width } = batch.image_size;
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
    if batch.image_size != model.image_size && !model.fits_all_sizes() {
        return Err(format!("the model takes images of one size, and not of {height} by {width} pixels"));
    }
    Ok(())
}
