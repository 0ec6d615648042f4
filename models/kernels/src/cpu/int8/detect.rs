//! Whether the CPU multiplies bytes.

use crate::cpu::gemm::amx::direct::Bytes;
use crate::cpu::simd::{Vectors, vectors};

/// The proof that the CPU has the instructions that products of bytes use: AVX-512 with VNNI; and AMX, if it may be used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Int8 {
    pub(super) amx: Option<Bytes>,
}

impl Int8 {
    /// The proof, if the CPU has the instructions.
    pub(crate) fn find() -> Option<Self> {
        let has_vnni = is_x86_feature_detected!("avx512bw") && is_x86_feature_detected!("avx512vnni");
        (has_vnni && vectors() == Vectors::Avx512).then(|| Self { amx: Bytes::find() })
    }

    /// The same without AMX.
    #[cfg(test)]
    pub(super) fn without_amx(self) -> Self {
        Self { amx: None }
    }
}
