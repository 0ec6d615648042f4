//! A memory budget for decoding, shared by all threads, so that several large images together stay within it.
//!
//! A thread reserves the estimated cost of an image before it decodes the pixels, and waits while too little of the
//! budget is left. Large files are read by one thread at a time, which holds a lock. There is no deadlock: a thread
//! that waits for memory holds at most the lock, and a thread that holds memory never waits for the lock.

use std::path::Path;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use image::ImageFormat;

/// The budget of all threads together, in bytes.
const TOTAL: u64 = 1 << 30;
/// Files of at least this size, in bytes, are read one at a time.
const LARGE_FILE: u64 = 16 << 20;
/// Costs below this, in bytes, are not counted.
const SMALL: u64 = 1 << 20;

static LEFT: Mutex<u64> = Mutex::new(TOTAL);
static RETURNED: Condvar = Condvar::new();
static LARGE_FILES: Mutex<()> = Mutex::new(());

/// A number of bytes reserved in the budget, which are released on drop.
#[derive(Debug)]
pub(crate) struct Reserved(u64);

#[cfg(test)]
impl Reserved {
    pub(crate) fn bytes(&self) -> u64 {
        self.0
    }
}

/// Reserves `bytes`, waiting until they are free. A request for more than the whole budget reserves the whole budget.
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

/// The lock for reading a large file, or `None` for a small one.
pub(crate) fn lock_for_large_file(path: &Path) -> Option<MutexGuard<'static, ()>> {
    let is_large = std::fs::metadata(path).is_ok_and(|metadata| metadata.len() >= LARGE_FILE);
    is_large.then(|| LARGE_FILES.lock().unwrap_or_else(PoisonError::into_inner))
}

/// An upper bound of the bytes that decoding needs, for an image of `decoded` bytes: the image, a copy for rotating or
/// converting it, and for a progressive JPEG file all coefficients, of two bytes each.
pub(crate) fn cost(format: ImageFormat, decoded: u64, bytes: &[u8]) -> u64 {
    let is_progressive =
        format == ImageFormat::Jpeg && decoded > SMALL && bytes.windows(2).any(|pair| pair == b"\xff\xc2");
    decoded.saturating_mul(if is_progressive { 4 } else { 2 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reservations_never_exceed_the_budget_and_are_released() {
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
