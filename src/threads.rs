//! How many threads compute where nobody says.

use std::num::NonZero;
use std::thread;

/// One thread for each physical core that the program may use: two threads of a core share its vector and matrix units. A limit of the
/// container or of the system on the CPU time counts, too; `RAYON_NUM_THREADS` comes before all.
pub fn by_default() -> usize {
    let allowed = thread::available_parallelism().map_or(1, NonZero::get);
    count(std::env::var("RAYON_NUM_THREADS").ok().as_deref(), allowed, num_cpus::get_physical())
}

/// The threads for these that are allowed and these physical cores, unless a number is `asked` for.
fn count(asked: Option<&str>, allowed: usize, physical: usize) -> usize {
    let asked = asked.and_then(|asked| asked.parse().ok()).filter(|&count| count > 0);
    asked.unwrap_or_else(|| allowed.min(physical).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_a_thread_for_each_physical_core_that_may_be_used() {
        assert_eq!(count(None, 16, 8), 8);
        assert_eq!(count(None, 2, 8), 2);
        assert_eq!(count(Some("5"), 2, 8), 5);
        assert_eq!(count(Some("0"), 4, 8), 4);
        assert_eq!(count(Some("many"), 4, 0), 1);
        assert!(by_default() > 0);
    }
}
