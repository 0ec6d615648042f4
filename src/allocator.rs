//! The allocator of the command-line program: mimalloc, set to keep freed memory instead of returning it to the system. A program
//! that uses this library chooses for itself, and is fastest with the same.

#[cfg(not(target_env = "msvc"))]
pub use mimalloc::MiMalloc;

/// The index of mimalloc's option `purge_delay`, for which the bindings define no constant.
#[cfg(not(target_env = "msvc"))]
const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;

/// Makes mimalloc keep freed pages. Every training step frees and allocates the same memory, and the system would have
/// to zero all pages that it got back in between. Call this at the start of `main`, if mimalloc is the global allocator.
pub fn keep_pages() {
    #[cfg(not(target_env = "msvc"))]
    // SAFETY: mimalloc 2 and 3 both have an option of this index. mimalloc reads its value at each use, so that the
    // value may change at any time.
    unsafe {
        libmimalloc_sys::mi_option_set(PURGE_DELAY, -1);
    }
}

#[cfg(all(test, not(target_env = "msvc")))]
mod tests {
    use super::*;
    use std::process::Command;

    /// mimalloc takes the initial value of an option from an environment variable of its name. If the option at the
    /// index `PURGE_DELAY` has that value, it is the right one. The test runs itself once more with the variable set.
    #[test]
    fn the_index_is_that_of_the_purge_delay() {
        const VARIABLE: &str = "MIMALLOC_PURGE_DELAY";
        const VALUE: libmimalloc_sys::mi_option_t = 4321;
        // SAFETY: mimalloc has an option of this index, as for `keep_pages`.
        let delay = || unsafe { libmimalloc_sys::mi_option_get(PURGE_DELAY) };
        if std::env::var_os(VARIABLE).is_some_and(|value| value == *VALUE.to_string()) {
            assert_eq!(delay(), std::ffi::c_long::from(VALUE));
            keep_pages();
            assert_eq!(delay(), -1);
            return;
        }
        let test = "allocator::tests::the_index_is_that_of_the_purge_delay";
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test])
            .env(VARIABLE, VALUE.to_string())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
    }
}
