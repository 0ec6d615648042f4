//! Products of float32 matrices on the CPU, AMX, which multiplies bytes and adds up in 32 bits, exactly.
//!
//! The elements of a row of the left factor, or of a column of the right one, are divided by a common unit and rounded to integers of 24
//! bits. An integer is three digits, each a signed byte: `x = x1 2^16 + x2 2^8 + x3`. The product is computed as
//! `x1 y1 2^32 + (x1 y2 + x2 y1) 2^24 + (x1 y3 + x2 y2 + x3 y1) 2^16`. What is left out and what rounding takes are together less than 2^-21
//! of the product of the row's and the column's largest elements, for each term, and 2^-25 of it in the root mean square. (The scheme is
//! that of Ootomo, Ozaki and Yokota, "DGEMM on Integer Matrix Multiplication Unit", arXiv:2306.11975, section 3.)
//!
//! Where elements are alike in size, the error over a whole matrix is no larger than that of sums in float32. Where large elements of a row
//! meet small ones of most columns, it is large next to the results. So these are looked at before they are written: a block of 32 rows by 32
//! columns is computed again in float32 if
//!
//! - in a row or a column most results are smaller than 2^18 times their error, `sqrt(terms) * 2^-25` of the largest elements' product, which
//!   leaves 4e-6 of the size of a row or a column of a block as its error;
//! - any is smaller than 32 times its error, so that none is lost;
//! - an element is not finite, or the largest of a row or column lies outside [2^-90, 2^110].
//!
//! Rows and columns of zeros are exact. A block's results depend on its rows and columns alone, however a product is cut at multiples of 32.
//!
//! Factors are packed into panels of two tiles, 16 lines of 16 words of four digits each. Inner elements `i`, `i + 16`, `i + 32` and
//! `i + 48` of a tile share a word, in both factors, so that packing needs few shuffles.

pub(crate) use shape::{GROUP, PANEL};

/// AMX, if a product is one for it: an element that is used in fewer products takes longer to pack than AMX saves.
pub(super) fn takes(rows: usize, inner: usize, columns: usize) -> Option<Amx> {
    if rows >= 96 && inner >= 64 && columns >= 64 { Amx::find() } else { None }
}

/// AMX, if a left factor of these rows is better packed once, and the right one by each task for the columns that it computes: a few
/// rows do not make up for a right factor that is packed to memory and read back.
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
// Elsewhere `elsewhere` is AMX; tests compile it everywhere.
#[cfg(any(test, not(all(target_arch = "x86_64", target_os = "linux"))))]
#[cfg_attr(all(target_arch = "x86_64", target_os = "linux"), allow(dead_code))]
mod elsewhere;
#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
use elsewhere as product;

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod block;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod detect;
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
