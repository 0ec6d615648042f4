//! A run that goes on with another number of threads: sums over a batch are then taken in another order.

use super::checkpoint::Progress;
use crate::output::note;

/// Notes the number of threads that compute from now on, and says so where it was another.
pub fn change(progress: &mut Progress, threads: usize) {
    let before = std::mem::replace(&mut progress.threads, threads);
    if before != 0 && before != threads {
        note!(
            "the run has used {before} threads so far and now uses {threads}: its results will differ in the last bits from those of a \
             run that was never stopped; --threads {before} avoids this"
        );
    }
}
