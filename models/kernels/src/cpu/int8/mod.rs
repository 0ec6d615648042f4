//! Products of bytes: activations of eight bits, weights of eight bits, sums of 32 bits. They run on AVX512-VNNI, and blocks of
//! many rows on AMX.
//!
//! An activation is `scale * (byte - zero)`, with a scale and a zero of its own for each row (linear layers) or image
//! (convolutions); a weight is `scale * byte`, with a scale of its own for each column. A product of a row and a column is then
//!
//! ```text
//! sum scale (byte - zero) * scale' byte'  =  scale scale' (sum byte byte'  -  zero * sum byte')
//! ```
//!
//! in which the last sum is known beforehand. Both sums are exact, before they become floating point numbers.

mod convolution;
mod detect;
mod kernels;
mod linear;
mod panels;
mod rows;

pub(crate) use convolution::convolve;
pub(crate) use detect::Int8;
pub(crate) use linear::multiply;
pub(crate) use panels::Panels;

#[cfg(test)]
mod tests;
