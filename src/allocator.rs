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
