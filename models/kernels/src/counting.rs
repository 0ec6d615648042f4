//! A count of the multiply-adds of matrix products and convolutions, against which tests check formulas of cost.

#[cfg(any(test, feature = "testing"))]
use std::cell::Cell;

#[cfg(any(test, feature = "testing"))]
thread_local! {
    static MULTIPLY_ADDS: Cell<u64> = const { Cell::new(0) };
}

/// Adds the product of `factors`, the multiply-adds of one operation, to the count of this thread. Does nothing outside
/// tests.
pub(crate) fn count(factors: &[usize]) {
    #[cfg(any(test, feature = "testing"))]
    {
        let product: u64 = factors.iter().map(|&factor| factor as u64).product();
        MULTIPLY_ADDS.with(|count| count.set(count.get() + product));
    }
    #[cfg(not(any(test, feature = "testing")))]
    let _ = factors;
}

/// The multiply-adds of the operations that `call` runs on this thread.
#[cfg(any(test, feature = "testing"))]
pub fn multiply_adds_of<T>(call: impl FnOnce() -> T) -> u64 {
    let before = MULTIPLY_ADDS.with(Cell::get);
    call();
    MULTIPLY_ADDS.with(Cell::get) - before
}
