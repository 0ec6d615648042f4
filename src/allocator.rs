//! The memory of the program: mimalloc, set to keep what it has.

#[cfg(not(target_env = "msvc"))]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// mimalloc's `purge_delay`, which the binding has no name for.
#[cfg(not(target_env = "msvc"))]
const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;

/// Freed pages stay with the program: every training step frees and takes the same memory, and pages that go back to the system in
/// between would be zeroed again each time. To be called first of all.
pub fn keep_pages() {
    #[cfg(not(target_env = "msvc"))]
    // SAFETY: the option exists in mimalloc 2 and 3, and the allocator reads it with every use.
    unsafe {
        libmimalloc_sys::mi_option_set(PURGE_DELAY, -1);
    }
}

#[cfg(all(test, not(target_env = "msvc")))]
mod tests {
    use super::*;
    use std::process::Command;

    /// The allocator takes the value of an option from a variable of its name: an index that gives that value is the option's.
    #[test]
    fn the_option_that_is_set_is_the_delay_of_purges() {
        const VARIABLE: &str = "MIMALLOC_PURGE_DELAY";
        const VALUE: libmimalloc_sys::mi_option_t = 4321;
        // SAFETY: the option exists, as for `keep_pages`.
        let delay = || unsafe { libmimalloc_sys::mi_option_get(PURGE_DELAY) };
        if std::env::var_os(VARIABLE).is_some_and(|value| value == *VALUE.to_string()) {
            assert_eq!(delay(), std::ffi::c_long::from(VALUE));
            keep_pages();
            assert_eq!(delay(), -1);
            return;
        }
        let test = "allocator::tests::the_option_that_is_set_is_the_delay_of_purges";
        let status = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test])
            .env(VARIABLE, VALUE.to_string())
            .status()
            .unwrap();
        assert!(status.success());
    }
}
