//! Tensor operations of Vision Transformers on [burn](https://burn.dev), each with a fused form for the CPU and a
//! definition in burn's own operations for every other device.
//!
//! A training step of burn's CPU backend, flex, spends more time between the matrix products than in them: autodiff
//! breaks layer norm, softmax and GELU into single passes over memory, on one thread. Here each of them is one pass,
//! and one more for its gradients.
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//!
//! let device = Device::default();
//! let x = Tensor::<2>::from_floats([[1.0, 2.0]], &device);
//! let weight = Tensor::<2>::from_floats([[1.0, 0.0, -1.0], [0.0, 10.0, 1.0]], &device); // [in_features, out_features]
//! let y = vitrine_kernels::linear(x, weight, None);
//! assert_eq!(y.into_data().try_into_vec_as::<f32>()?, [1.0, 20.0, 1.0]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Which form runs
//!
//! Every operation is a function on burn's [`Tensor`](burn::tensor::Tensor). The fused form runs if the crate has the
//! feature `flex`, all inputs are float32 and their device is flex. On other devices, for other types and without the
//! feature, the function of the same name with `_composed` runs: the definition. The choice is made at run time from
//! the tensor, so that a build with a GPU backend or with burn's `fusion` next to flex needs nothing from those
//! backends; burn's extension macro, which would ask each backend of the build for an implementation, is not used.
//! Fused operations can be differentiated once. On a device without autodiff a fused operation keeps nothing for a
//! backward pass, and works in its input's memory if no other tensor shares it.
//!
//! # Results
//!
//! Work is cut into chunks that depend on the sizes and the number of threads alone, and sums over chunks are added in
//! order: the same inputs give the same bits in every run with the same number of threads on the same kind of CPU.
//! Another number of threads adds the gradients of weights in another order, and the gemm crate cuts products by the
//! size of the caches.
//!
//! # Threads
//!
//! Fused operations run on their own threads: with the calling thread, as many as rayon has where the operation is
//! called. After each operation these threads stay awake for half a millisecond, which a program that computes only now
//! and then pays in CPU time. One operation at a time uses them; if several threads compute at once, all but one
//! compute alone.
//!
//! # Where things are
//!
//! A file outside `cpu/` holds a public operation, its definition and the tests that compare its two forms. `cpu/`
//! holds the fused forms, and what they stand on: the way into and out of burn (`operation`, `flex`), threads, vectors
//! (`simd`) and matrix products (`gemm`).
//!
//! # How to add an operation
//!
//! Write the public function and its definition, implement `cpu::operation::Operation` in a file of `cpu/`, and compare
//! the two forms in the tests with `testing::assert_same`.

#![warn(missing_docs)]

pub mod amx;
mod attention;
mod convolution;
mod counting;
#[cfg(feature = "flex")]
mod cpu;
mod cross_entropy;
mod double;
mod gather_rows;
mod gelu;
mod int8;
mod linear;
mod neighbors;
mod norm;
mod optimizer;
mod packed;
mod precision;
mod product;
mod residual;
mod row_map;
mod sequence_pool;
mod slices;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use attention::{
    DotProduct, attention, attention_composed, bias_of_batch, l2_normalize, neighborhood_attention,
    neighborhood_attention_composed, rotate, rotate_heads, self_attention, self_attention_bfloat16,
    self_attention_composed,
};
pub use convolution::{
    Convolution, MaxPool, convolution, convolution_composed, convolution_max_pool,
    convolution_max_pool_composed, depthwise_convolution, depthwise_convolution_composed, max_pool,
    max_pool_composed,
};
pub use cross_entropy::{cross_entropy, cross_entropy_composed};
pub use double::{Cholesky, DoubleMatrix, add_product, covariance};
pub use gather_rows::{gather_rows, gather_rows_composed};
pub use gelu::{gelu, gelu_composed};
pub use int8::{
    Int8Weight, convolution_int8, int8_byte, int8_scale, linear_int8, multiplies_bytes, round_to_int8,
};
pub use linear::{
    linear, linear_composed, linear_gelu, linear_gelu_composed, multiplies_bfloat16, reads_transposed_weights,
};
pub use neighbors::{Border, Neighborhood};
pub use norm::{
    BatchNorm, Moments, batch_norm, batch_norm_composed, layer_norm, layer_norm_composed, moments,
    moments_composed,
};
pub use optimizer::{
    AdamW, adamw, adamw_composed, orthogonalize, orthogonalize_composed, scaled, sum_of_squares,
};
pub use packed::{PackedWeight, linear_packed};
pub use precision::Precision;
pub use product::{matmul, same_conv2d};
pub use residual::{residual, residual_composed};
pub use row_map::RowMap;
pub use sequence_pool::{sequence_pool, sequence_pool_composed};
pub use slices::{add_scaled, all_finite, dot_products, resize_with_zeros, scale_bytes};
