//! Updates whose micro-batches several processes compute (`--workers`).

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Result, anyhow};
use burn::tensor::Device;

use crate::events::{Event, EventSink, Share};
use crate::learner::micro_batch::{MicroBatch, ReplicaConfig, parameters, sizes};
use crate::learner::{BatchResult, Learner};
use crate::recipe::Recipe;
use crate::run_folder::RunConfig;
use crate::workers::{Computer, Pool, Task, Weights};

/// The trainer's part in updates that it shares with workers.
pub(super) struct SharedUpdates<'a> {
    pool: &'a Pool,
    /// Computes the trainer's own micro-batches.
    computer: Computer,
    /// What the tasks of the present update have in common; `None` before its first.
    common: Option<(Arc<ReplicaConfig>, Arc<Weights>)>,
    /// The version of the next weights. Other trainers of the same workers have other numbers.
    version: u64,
    /// Who had computed how many micro-batches when the epoch began.
    before: (Vec<(String, usize)>, usize),
}

impl<'a> SharedUpdates<'a> {
    /// Updates that are shared with the workers of a pool; `device` is the trainer's.
    pub(super) fn new(pool: &'a Pool, device: &Device) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
        let version = crate::seed::mix(now ^ u64::from(std::process::id()).rotate_left(32));
        Self { pool, computer: Computer::new(device), common: None, version, before: pool.shares() }
    }

    /// Adds a micro-batch to the present update.
    pub(super) fn submit(
        &mut self,
        learner: &Learner,
        (recipe, config): (&Recipe, &RunConfig),
        batch: MicroBatch,
    ) {
        let version = &mut self.version;
        let (config, weights) = self.common.get_or_insert_with(|| {
            *version = version.wrapping_add(1);
            let of_replica = ReplicaConfig {
                model: config.model.clone(),
                freeze: config.recipe.freeze,
                multi_label: config.multi_label,
                gradient_checkpointing: recipe.gradient_checkpointing,
                precision: recipe.precision,
            };
            let (values, sizes) = (parameters(&learner.model), sizes(&learner.model));
            (Arc::new(of_replica), Arc::new(Weights { version: *version, values, sizes }))
        });
        self.pool.submit(Task { config: Arc::clone(config), weights: Arc::clone(weights), batch });
    }

    /// Adds what the micro-batches of the present update contribute to the learner, in their order.
    ///
    /// # Errors
    /// If the trainer cannot compute a micro-batch.
    pub(super) fn finish(
        &mut self,
        learner: &mut Learner,
        events: &dyn EventSink,
    ) -> Result<Vec<BatchResult>> {
        self.common = None;
        let computer = &mut self.computer;
        let mut results = Vec::new();
        self.pool
            .finish(|task| computer.compute(task), |contribution| results.push(learner.add(&contribution)))
            .map_err(|problem| anyhow!(problem))?;
        self.pool.messages().into_iter().for_each(|message| events.emit(Event::notice(message)));
        Ok(results)
    }

    /// Emits who has computed how many micro-batches since the last call.
    pub(super) fn report(&mut self, events: &dyn EventSink) {
        let (workers, own) = self.pool.shares();
        let (workers_before, own_before) = &self.before;
        let since = |(share, before): (&(String, usize), &(String, usize))| Share {
            name: share.0.clone(),
            micro_batches: share.1 - before.1,
        };
        let shares = workers.iter().zip(workers_before).map(since).collect();
        events.emit(Event::Shares { workers: shares, own: own - own_before });
        self.before = (workers, own);
    }
}
