//! In tests: how many multiply-adds the products of this thread take.

use std::cell::Cell;

thread_local! {
    static PRODUCTS: Cell<u64> = const { Cell::new(0) };
}

/// Adds a product's multiply-adds.
pub(crate) fn count(factors: &[usize]) {
    let product: u64 = factors.iter().map(|&factor| factor as u64).product();
    PRODUCTS.with(|products| products.set(products.get() + product));
}

/// The multiply-adds of a call.
pub(crate) fn products_of<T>(call: impl FnOnce() -> T) -> u64 {
    let before = PRODUCTS.with(Cell::get);
    call();
    PRODUCTS.with(Cell::get) - before
}
