//! Memory for decoding, shared by all threads: what large images need together stays bounded, whatever their number.
//!
//! An image takes its cost from one account before its pixels are decoded and waits while too little is left. Large
//! files take turns. A thread that waits for memory holds at most its turn, and a turn waits for nothing that a thread
//! with memory needs: nobody waits in a circle.

use std::path::Path;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use image::ImageFormat;

/// Bytes that decoding may take at a time, all threads together.
const TOTAL: u64 = 1 << 30;
/// Files from this size on are read one at a time.
const LARGE_FILE: u64 = 16 << 20;
/// Costs below this are not counted.
const SMALL: u64 = 1 << 20;

static LEFT: Mutex<u64> = Mutex::new(TOTAL);
static RETURNED: Condvar = Condvar::new();
static LARGE_FILES: Mutex<()> = Mutex::new(());

/// Bytes taken from the account, given back when dropped.
#[derive(Debug)]
pub(crate) struct Reserved(u64);

#[cfg(test)]
impl Reserved {
    pub(crate) fn bytes(&self) -> u64 {
        self.0
    }
}

/// Waits until `bytes` are free; more than there are in all counts as all.
pub(crate) fn reserve(bytes: u64) -> Reserved {
    let bytes = if bytes < SMALL { 0 } else { bytes.min(TOTAL) };
    let mut left = LEFT.lock().unwrap_or_else(PoisonError::into_inner);
    while *left < bytes {
        left = RETURNED.wait(left).unwrap_or_else(PoisonError::into_inner);
    }
    *left -= bytes;
    Reserved(bytes)
}

impl Drop for Reserved {
    fn drop(&mut self) {
        *LEFT.lock().unwrap_or_else(PoisonError::into_inner) += self.0;
        RETURNED.notify_all();
    }
}

/// The right to read a large file; none is needed for a small one.
pub(crate) fn turn_of_large_file(path: &Path) -> Option<MutexGuard<'static, ()>> {
    let is_large = std::fs::metadata(path).is_ok_and(|metadata| metadata.len() >= LARGE_FILE);
    is_large.then(|| LARGE_FILES.lock().unwrap_or_else(PoisonError::into_inner))
}

/// What decoding takes at most: the decoded image, a copy of it to turn or convert, and for a progressive JPEG all its
/// coefficients, two bytes each.
pub(crate) fn cost(format: ImageFormat, decoded: u64, bytes: &[u8]) -> u64 {
    let is_progressive =
        format == ImageFormat::Jpeg && decoded > SMALL && bytes.windows(2).any(|pair| pair == b"\xff\xc2");
    decoded.saturating_mul(if is_progressive { 4 } else { 2 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_comes_back_and_never_exceeds_what_there_is() {
        let most = std::sync::atomic::AtomicU64::new(0);
        let held = Mutex::new(0);
        std::thread::scope(|scope| {
            for thread in 0..8u64 {
                let (most, held) = (&most, &held);
                scope.spawn(move || {
                    for round in 1..50 {
                        let bytes = (thread * 37 + round) % 11 * (TOTAL / 8);
                        let reserved = reserve(bytes);
                        {
                            let mut held = held.lock().unwrap();
                            *held += reserved.0;
                            most.fetch_max(*held, std::sync::atomic::Ordering::Relaxed);
                        }
                        *held.lock().unwrap() -= reserved.0;
                        drop(reserved);
                    }
                });
            }
        });
        let most = most.into_inner();
        assert!(most > TOTAL / 8 && most <= TOTAL, "{most}");
        drop(reserve(u64::MAX));
    }
}
