//! Operations on flex, burn's CPU backend: [`flex`] is the way in, the files named as the operations are their fused implementations, and
//! below them lie matrix products ([`gemm`]), threads ([`parallel`], [`thread_pool`]) and vectors ([`simd`]).

pub(super) mod adamw;
pub(super) mod attention;
pub(super) mod cross_entropy;
pub(super) mod flex;
pub(super) mod gather_rows;
pub(super) mod gelu;
mod gemm;
pub(super) mod layer_norm;
pub(super) mod linear;
mod parallel;
pub(super) mod residual;
mod simd;
mod thread_pool;
