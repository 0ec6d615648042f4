//! The number of compute threads: the default, the check of `RAYON_NUM_THREADS`, which rayon also reads, and the pool.

use std::num::NonZero;
use std::thread;

use anyhow::{Context, Result};

use crate::bounds;
use crate::usage::{UsageError, usage};

/// The environment variable for the number of compute threads.
const VARIABLE: &str = "RAYON_NUM_THREADS";

/// The number of compute threads if `--threads` does not state it: `RAYON_NUM_THREADS` if that is set, or else one
/// thread for each available physical core, because two threads of a core share its vector units and AMX tiles. A limit
/// on CPU time, such as a container's, also lowers the number.
pub fn by_default() -> usize {
    let allowed = thread::available_parallelism().map_or(1, NonZero::get);
    from_environment().unwrap_or_else(|| allowed.min(num_cpus::get_physical()).max(1))
}

/// Makes the process compute with `count` threads, or with [`by_default`]. Call it once, before the first model is loaded. A program
/// that does not gets rayon's own number: `RAYON_NUM_THREADS`, or one thread for each logical core, which is slower where two share a
/// core. The last bits of answers may depend on the number.
///
/// # Errors
/// If the number is out of range, an environment variable about computing is wrong, or the process computes already.
///
/// # Examples
///
/// ```
/// assert_eq!(vitrine::threads::set(Some(2))?, 2);
/// assert!(vitrine::threads::set(Some(3)).is_err()); // it is too late
/// # Ok::<(), anyhow::Error>(())
/// ```
pub fn set(count: Option<usize>) -> Result<usize> {
    set_up(count, |pool| pool)
}

/// [`set`] with a change of the pool.
pub(crate) fn set_up(
    count: Option<usize>,
    change: impl FnOnce(rayon::ThreadPoolBuilder) -> rayon::ThreadPoolBuilder,
) -> Result<usize> {
    vitrine_kernels::amx::wanted().map_err(|error| UsageError::new(error.to_string()))?;
    check()?;
    if let Some(count) = count.filter(|&count| !bounds::THREADS.contain(count)) {
        usage!("{count} threads: the number must be {}", bounds::THREADS);
    }
    let pool = rayon::ThreadPoolBuilder::new().num_threads(count.unwrap_or_else(by_default));
    change(pool)
        .build_global()
        .context("the number of threads can be set once, before the first model is loaded")?;
    Ok(rayon::current_num_threads())
}

/// Checks `RAYON_NUM_THREADS`.
///
/// # Errors
/// If the number is larger than the limit of [`bounds::THREADS`].
pub(crate) fn check() -> Result<()> {
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
