//! How many threads compute where nobody says.

use std::num::NonZero;
use std::thread;

use anyhow::Result;

use crate::bounds;
use crate::usage::usage;

const VARIABLE: &str = "RAYON_NUM_THREADS";

/// One thread for each physical core that the program may use: two threads of a core share its vector and AMX tiles. A limit of the
/// container or of the system on the CPU time counts, too; `RAYON_NUM_THREADS` comes before all.
pub fn by_default() -> usize {
    let allowed = thread::available_parallelism().map_or(1, NonZero::get);
    asked().unwrap_or_else(|| allowed.min(num_cpus::get_physical()).max(1))
}

/// Checks what the environment asks for, for all that takes it from there.
///
/// # Errors
/// When it is more threads than there may be.
pub fn check() -> Result<()> {
    asked().map_or(Ok(()), allow)
}

/// The threads that the environment asks for.
fn asked() -> Option<usize> {
    number(&std::env::var(VARIABLE).ok()?)
}

fn number(text: &str) -> Option<usize> {
    text.parse().ok().filter(|&count| count > 0)
}

fn allow(count: usize) -> Result<()> {
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
    fn more_threads_than_any_machine_has_are_refused() {
        assert!(by_default() > 0);
        let numbers = ["5", "0", "many", "-1", ""].map(number);
        assert_eq!(numbers, [Some(5), None, None, None, None]);
        assert!(allow(1024).is_ok());
        let message = allow(100_000).unwrap_err().to_string();
        assert!(message.contains(VARIABLE) && message.contains("at most 1024"), "{message}");
    }
}
