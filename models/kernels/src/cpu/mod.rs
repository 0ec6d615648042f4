//! The fused forms of the operations, on flex, burn's CPU backend.
//!
//! A file or folder that is named after an operation holds its fused form. They stand on [`operation`] (what an
//! operation is, and how it is recorded for the backward pass), [`flex`] (tensors of flex), [`gemm`] (matrix products),
//! [`threads`] and [`simd`] (vectors).

pub(crate) mod attention;
#[cfg(target_arch = "x86_64")]
mod coarse;
pub(crate) mod convolution;
pub(crate) mod cross_entropy;
pub(crate) mod flex;
pub(crate) mod gather_rows;
pub(crate) mod gelu;
pub(crate) mod gemm;
#[cfg(target_arch = "x86_64")]
pub(crate) mod int8;
pub(crate) mod linear;
pub(crate) mod norm;
pub(crate) mod operation;
pub(crate) mod optimizer;
pub(crate) mod residual;
pub(crate) mod sequence_pool;
mod simd;
mod threads;
