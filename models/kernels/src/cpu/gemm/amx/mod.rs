//! Products of float32 matrices on AMX, matrix instructions of some CPUs that multiply bytes and add the products
//! exactly in 32 bits.
//!
//! The elements of a row of the left factor, or of a column of the right one, are divided by a common unit and rounded
//! to integers of 24 bits. An integer has three digits, each a signed byte: `x = x1 2^16 + x2 2^8 + x3`. The product of
//! two integers is computed as `x1 y1 2^32 + (x1 y2 + x2 y1) 2^24 + (x1 y3 + x2 y2 + x3 y1) 2^16`. (The scheme is from
//! Ootomo, Ozaki and Yokota, "DGEMM on Integer Matrix Multiplication Unit", arXiv:2306.11975, section 3.) For each
//! term, rounding and the omitted products of digits cost less than 2^-21 of the product of the largest elements of the
//! row and of the column; in the root mean square they cost 2^-25 of it.
//!
//! If the elements of the factors are of similar size, the error over a whole matrix is no larger than that of sums in
//! float32. If large elements of a row are multiplied with small elements of most columns, the error is large compared
//! with the results. Each block of 32 rows by 32 columns is therefore checked before it is written, and computed again
//! in float32 if
//!
//! - most results of a row or a column are smaller than 2^18 times their error, which is `sqrt(terms) * 2^-25` of the
//!   product of the largest elements: the error of a row or a column of a block then stays below 4e-6 of its size;
//! - a result is smaller than 32 times its error, so that no result is lost;
//! - an element is not finite, or the largest element of a row or column lies outside [2^-90, 2^110].
//!
//! Rows and columns of zeros are exact. The results of a block depend only on its rows and columns, wherever a product
//! is cut at multiples of 32.
//!
//! Factors are packed into panels of two tiles. A tile has 16 lines of 16 words of four digits. The inner elements `i`,
//! `i + 16`, `i + 32` and `i + 48` of a tile share a word, in both factors, so that packing needs few shuffles.

pub(crate) use shape::{GROUP, PANEL};

/// AMX, if the CPU has it and the product is large enough: packing an element that is used in few products takes longer
/// than AMX saves.
pub(super) fn takes(rows: usize, inner: usize, columns: usize) -> Option<Amx> {
    if rows >= 96 && inner >= 64 && columns >= 64 { Amx::find() } else { None }
}

/// Whether the CPU has AMX, and may use it.
pub(super) fn is_present() -> bool {
    // Plain code that stands in for it, in tests, is no reason to do without other instructions.
    Amx::find().is_some_and(|amx| !amx.is_emulated())
}

/// AMX, if the CPU has it and the left factor has so few rows that it should be packed once, and the right factor by
/// each task for its own columns: a few rows do not make up for packing the right factor to memory and reading it back.
pub(super) fn few_rows(rows: usize, inner: usize, columns: usize) -> Option<Amx> {
    const LARGEST: usize = 256 * 1024;
    takes(rows, inner, columns).filter(|_| rows * inner <= LARGEST)
}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
use detect::Amx;
#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
use elsewhere::Amx;
pub(crate) use product::{LeftPanels, RightPanels, multiply};

mod shape;
// Stands for AMX on other systems. Tests compile it on all systems, so that it keeps the same interface.
#[cfg(any(test, not(all(target_arch = "x86_64", target_os = "linux"))))]
#[cfg_attr(all(target_arch = "x86_64", target_os = "linux"), allow(dead_code))]
mod elsewhere;
#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
use elsewhere as product;
#[cfg(all(target_arch = "x86_64", not(target_os = "linux")))]
pub(crate) use elsewhere::direct;

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod block;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod detect;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub(crate) mod direct;
#[cfg(all(test, target_arch = "x86_64", target_os = "linux"))]
mod emulated;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod kernel;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod pack;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod product;

#[cfg(all(test, target_arch = "x86_64", target_os = "linux"))]
mod tests;
