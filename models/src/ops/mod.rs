//! The model's tensor operations, each with a fused implementation for the CPU and a composed definition for everything else.
//!
//! A training step of burn's CPU backend, flex, spends more time between the matrix products than in them: autodiff breaks layer norm,
//! softmax and GELU into single passes over memory, on one thread. Each operation here is one pass with its own backward pass instead.
//!
//! # Which implementation runs
//!
//! Every operation is a function on burn's [`Tensor`](burn::tensor::Tensor). Where the crate has the feature `flex`, all inputs are
//! float32 and their device is flex, the fused implementation runs; otherwise (another device, another type, no such feature) the
//! `..._composed` function of the same name, which is the definition, does. The choice is made at run time from the tensor, so that a
//! build with a GPU backend or with burn's `fusion` next to flex needs nothing from those backends: burn's extension macro, which would ask each
//! backend of the build for an implementation, is not used. Fused operations can be differentiated once; a fused operation on a device
//! without autodiff keeps nothing for a backward pass and works in its input's memory where that is free.
//!
//! # Results
//!
//! Work is cut into chunks that depend on the sizes and the number of threads alone, and sums over chunks are taken in order: the same
//! inputs give the same bits in every run with the same number of threads on the same kind of CPU. Another number of threads adds up
//! gradients of weights in another order, and the gemm crate cuts products by the size of the caches.
//!
//! # Threads
//!
//! Fused operations have threads of their own, as many with their caller as rayon has where it calls. They wait awake for half a millisecond
//! after each operation: a program that computes now and then burns that time. One operation at a time has them; of several
//! threads that compute at once, all but one do so alone.
//!
//! # Where things are
//!
//! A file here holds a public operation, its composed definition and the tests that compare the two; `cpu/` the fused implementations, with the way
//! in and out of burn (`flex`), threads and vectors; `cpu/gemm/` matrix products. Uses go downwards alone.
//!
//! # How to add one
//!
//! Write the public function and its composed definition, implement `cpu::flex::Operation` in a file of `cpu/`, and
//! compare the two in the tests with `testing::assert_same`.

mod adamw;
pub mod amx;
mod attention;
mod batch_norm;
mod convolution;
#[cfg(test)]
pub(crate) mod counting;
/// Operations on flex, burn's CPU backend: `flex` is the way in, the files named as the operations are their fused implementations,
/// and below them lie matrix products (`gemm`), kernels that slide over maps (`sliding`), threads (`parallel`, `thread_pool`) and vectors (`simd`).
#[cfg(feature = "flex")]
mod cpu {
    pub(super) mod adamw;
    pub(super) mod attention;
    pub(super) mod batch_norm;
    pub(super) mod convolution;
    pub(super) mod cross_entropy;
    pub(super) mod depthwise_convolution;
    pub(super) mod flex;
    pub(super) mod gather_rows;
    pub(super) mod gelu;
    mod gemm;
    pub(super) mod layer_norm;
    pub(super) mod linear;
    pub(super) mod max_pool;
    pub(super) mod orthogonalize;
    mod parallel;
    pub(super) mod residual;
    pub(super) mod sequence_pool;
    mod simd;
    pub(super) mod sliding;
    mod sums;
    mod thread_pool;
}
mod cross_entropy;
mod depthwise_convolution;
mod dot_product;
mod gather_rows;
mod gelu;
mod layer_norm;
mod linear;
mod max_pool;
mod orthogonalize;
mod product;
mod residual;
mod row_map;
mod sequence_pool;
#[cfg(all(test, feature = "flex"))]
mod testing;

pub use adamw::{AdamW, adamw, adamw_composed, scaled, sum_of_squares};
pub(crate) use attention::bias_of_batch;
pub use attention::{attention, attention_composed, self_attention, self_attention_composed};
pub use batch_norm::{BatchNorm, Moments, batch_norm, batch_norm_composed, moments, moments_composed};
pub use convolution::{Convolution, convolution, convolution_composed};
pub use cross_entropy::{cross_entropy, cross_entropy_composed};
pub use depthwise_convolution::{depthwise_convolution, depthwise_convolution_composed};
pub use dot_product::DotProduct;
pub(crate) use dot_product::{l2_normalize, rotate};
pub use gather_rows::{gather_rows, gather_rows_composed};
pub use gelu::{gelu, gelu_composed};
pub use layer_norm::{layer_norm, layer_norm_composed};
pub use linear::{linear, linear_composed, linear_gelu, linear_gelu_composed};
pub use max_pool::{MaxPool, max_pool, max_pool_composed};
pub use orthogonalize::{orthogonalize, orthogonalize_composed};
pub(crate) use product::{matmul, same_conv2d};
pub use residual::{residual, residual_composed};
pub use row_map::RowMap;
pub use sequence_pool::{sequence_pool, sequence_pool_composed};
