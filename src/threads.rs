//! The default number of compute threads, and the check of `RAYON_NUM_THREADS`, which rayon also reads.

use std::num::NonZero;
use std::thread;

use anyhow::Result;

use crate::bounds;
use crate::usage::usage;

/// The environment variable for the number of compute threads.
const VARIABLE: &str = "RAYON_NUM_THREADS";

/// The number of compute threads if `--threads` does not state it: `RAYON_NUM_THREADS` if that is set, or else one
/// thread for each available physical core, because two threads of a core share its vector units and AMX tiles. A limit
/// on CPU time, such as a container's, also lowers the number.
pub fn by_default() -> usize {
    let allowed = thread::available_parallelism().map_or(1, NonZero::get);
    from_environment().unwrap_or_else(|| allowed.min(num_cpus::get_physical()).max(1))
}

/// Checks `RAYON_NUM_THREADS`.
///
/// # Errors
/// If the number is larger than the limit of [`bounds::THREADS`].
pub fn check() -> Result<()> {
    from_environment().map_or(Ok(()), check_limit)
}

/// The value of `RAYON_NUM_THREADS`, if it is a positive number.
fn from_environment() -> Option<usize> {
    positive(&std::env::var(VARIABLE).ok()?)
}

fn positive(text: &str) -> Option<usize> {
    text.parse().ok().filter(|&count| count > 0)
}

fn check_limit(count: usize) -> Result<()> {
    if !bounds::THREADS.contain(count) {
        usage!("{VARIABLE} is {count}: it must be {}", bounds::THREADS);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn too_many_threads_are_refused() {
        assert!(by_default() > 0);
        let counts = ["5", "0", "many", "-1", ""].map(positive);
        assert_eq!(counts, [Some(5), None, None, None, None]);
        assert!(check_limit(1024).is_ok());
        let message = check_limit(100_000).unwrap_err().to_string();
        assert!(message.contains(VARIABLE) && message.contains("at most 1024"), "{message}");
    }
}
