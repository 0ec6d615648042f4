//! Whether the CPU multiplies bfloat16 numbers.

use super::super::avx512::Avx512;

/// The proof that the CPU has AVX512-BF16, and what packing uses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bfloat16(());

impl Bfloat16 {
    /// The proof, if the CPU has these instructions. The standard library caches the answer.
    pub(crate) fn find() -> Option<Self> {
        let more = is_x86_feature_detected!("avx512bf16") && is_x86_feature_detected!("avx512bw");
        Avx512::find().filter(|_| more).map(|_| Self(()))
    }
}
