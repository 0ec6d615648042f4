//! The allocator of the command-line program: mimalloc, set to keep freed memory instead of returning it to the system. A program
//! that uses this library chooses for itself, and is fastest with the same.

#[cfg(not(target_env = "msvc"))]
pub use self::mimalloc::MiMalloc;

/// Makes mimalloc keep freed pages. Every training step frees and allocates the same memory, and the system would have
/// to zero all pages that it got back in between. Call this at the start of `main`, if mimalloc is the global allocator.
pub fn keep_pages() {
    #[cfg(not(target_env = "msvc"))]
    mimalloc::keep_pages();
}

#[cfg(not(target_env = "msvc"))]
mod mimalloc {
    use std::alloc::{GlobalAlloc, Layout};

    use libmimalloc_sys::{
        mi_free, mi_malloc, mi_malloc_aligned, mi_option_set, mi_option_t, mi_realloc, mi_realloc_aligned,
        mi_zalloc, mi_zalloc_aligned,
    };

    /// The index of mimalloc's option `purge_delay`, for which the bindings define no constant.
    pub(super) const PURGE_DELAY: mi_option_t = 15;

    pub(super) fn keep_pages() {
        // SAFETY: mimalloc 2 and 3 both have an option of this index. mimalloc reads its value at each use, so that the
        // value may change at any time.
        unsafe {
            mi_option_set(PURGE_DELAY, -1);
        }
    }

    /// mimalloc as a global allocator.
    ///
    /// Unlike the type of this name in the crate `mimalloc`, it states no alignment for large blocks that have it anyway: mimalloc
    /// takes a few more bytes for a stated one, and rounds a tensor of 9 MiB up to 10. Among smaller blocks, those few bytes are
    /// worth having: without them, tensors lie whole pages apart, and one image takes the default
    /// network 4% longer.
    #[derive(Clone, Copy, Debug, Default)]
    pub struct MiMalloc;

    /// The number of bytes from which mimalloc rounds sizes up to 64 KiB and more (`_mi_os_good_alloc_size`).
    const LARGE: usize = 512 << 10;

    /// The alignment of all large blocks (`MI_MAX_ALIGN_SIZE` of mimalloc).
    const ALIGNMENT: usize = 16;

    /// Whether a block is large and has the alignment without a word of it.
    const fn is_aligned_anyway(size: usize, alignment: usize) -> bool {
        size >= LARGE && alignment <= ALIGNMENT
    }

    // SAFETY: a block has the size and alignment of its layout, as each function of mimalloc promises, and stays where it is until it
    // is freed or reallocated. mimalloc frees and reallocates blocks of all of these functions, and does not unwind.
    unsafe impl GlobalAlloc for MiMalloc {
        #[inline]
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            let (size, alignment) = (layout.size(), layout.align());
            // SAFETY: an alignment of a layout is a power of two.
            let block = unsafe {
                if is_aligned_anyway(size, alignment) {
                    mi_malloc(size)
                } else {
                    mi_malloc_aligned(size, alignment)
                }
            };
            block.cast()
        }

        #[inline]
        unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
            let (size, alignment) = (layout.size(), layout.align());
            // SAFETY: as for `alloc`.
            let block = unsafe {
                if is_aligned_anyway(size, alignment) {
                    mi_zalloc(size)
                } else {
                    mi_zalloc_aligned(size, alignment)
                }
            };
            block.cast()
        }

        #[inline]
        unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
            // SAFETY: the caller has the block from this allocator; otherwise as for `alloc`.
            let block = unsafe {
                if is_aligned_anyway(size, layout.align()) {
                    mi_realloc(block.cast(), size)
                } else {
                    mi_realloc_aligned(block.cast(), size, layout.align())
                }
            };
            block.cast()
        }

        #[inline]
        unsafe fn dealloc(&self, block: *mut u8, _: Layout) {
            // SAFETY: the caller has the block from this allocator.
            unsafe { mi_free(block.cast()) };
        }
    }
}

#[cfg(all(test, not(target_env = "msvc")))]
mod tests {
    use super::mimalloc::PURGE_DELAY;
    use super::*;
    use std::alloc::{GlobalAlloc, Layout};
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

    #[test]
    fn blocks_have_their_alignment_and_keep_their_content() {
        for alignment in [1, 4, 8, 16, 64, 4096] {
            for size in [1, 5, 8, 12, 16, 24, 100, 5000, 600_000, 9 << 20] {
                let layout = Layout::from_size_align(size, alignment).unwrap();
                let larger = size + 1;
                // SAFETY: the block is used within its size, and with the layout that it was allocated with.
                unsafe {
                    let block = MiMalloc.alloc_zeroed(layout);
                    assert_eq!((block.align_offset(alignment), *block.add(size - 1)), (0, 0), "{layout:?}");
                    block.write_bytes(7, size);
                    let block = MiMalloc.realloc(block, layout, larger);
                    assert_eq!((block.align_offset(alignment), *block.add(size - 1)), (0, 7), "{layout:?}");
                    let block =
                        MiMalloc.realloc(block, Layout::from_size_align(larger, alignment).unwrap(), 1);
                    assert_eq!((block.align_offset(alignment), *block), (0, 7), "{layout:?}");
                    let one = Layout::from_size_align(1, alignment).unwrap();
                    MiMalloc.dealloc(block, one);
                    let block = MiMalloc.alloc(layout);
                    assert_eq!(block.align_offset(alignment), 0, "{layout:?}");
                    MiMalloc.dealloc(block, layout);
                }
            }
        }
    }

    #[test]
    fn a_tensor_of_whole_mebibytes_takes_no_more() {
        let layout = Layout::array::<f32>(9 << 18).unwrap();
        // SAFETY: the block is of this allocator, and freed with its layout.
        let usable = unsafe {
            let block = MiMalloc.alloc(layout);
            let usable = libmimalloc_sys::mi_usable_size(block.cast());
            MiMalloc.dealloc(block, layout);
            usable
        };
        assert_eq!(usable, 9 << 20);
    }
}
