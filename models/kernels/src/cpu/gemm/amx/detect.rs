//! Detection and configuration of Intel's AMX-INT8 on Linux, where a program must ask the system before it uses AMX.

use super::super::avx512::Avx512;
use super::shape::SIDE;
use crate::amx;
use std::arch::asm;
use std::arch::x86_64::__cpuid_count;
use std::sync::atomic::{AtomicU8, Ordering};

/// The proof that AMX may be used: the CPU has it, and the AVX-512 instructions that pack for it; the system lets this
/// program use it; and the environment does not forbid it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Amx {
    avx512: Avx512,
    /// Whether plain code stands in for AMX's instructions.
    #[cfg(test)]
    pub(super) emulated: bool,
}

impl Amx {
    /// AMX, if it may be used. The answer is found once and kept. In tests, an [emulated](Self::emulated) one stands in
    /// for AMX that the CPU lacks.
    pub(crate) fn find() -> Option<Self> {
        const UNKNOWN: u8 = 0;
        const MISSING: u8 = 1;
        const PRESENT: u8 = 2;
        const EMULATED: u8 = 3;
        // An atomic, because ThreadSanitizer does not see how the standard library's `LazyLock` synchronizes.
        static FOUND: AtomicU8 = AtomicU8::new(UNKNOWN);
        match FOUND.load(Ordering::Relaxed) {
            UNKNOWN => {
                let found = Self::wanted();
                let state = found.map_or(MISSING, |amx| if amx.is_emulated() { EMULATED } else { PRESENT });
                FOUND.store(state, Ordering::Relaxed);
                found
            }
            MISSING => None,
            _state => Self::packs().map(|avx512| Self {
                avx512,
                #[cfg(test)]
                emulated: _state == EMULATED,
            }),
        }
    }

    /// AMX, if the environment does not forbid it.
    fn wanted() -> Option<Self> {
        if !amx::wanted().unwrap_or(false) {
            return None;
        }
        let found = Self::real();
        #[cfg(test)]
        let found = found.or_else(Self::emulated);
        found
    }

    /// The AMX of this CPU, after asking the system for permission.
    pub(super) fn real() -> Option<Self> {
        const TILE: u32 = 1 << 24;
        const INT8: u32 = 1 << 25;
        const ARCH_REQ_XCOMP_PERM: libc::c_int = 0x1023;
        const XFEATURE_XTILEDATA: libc::c_ulong = 18;
        let avx512 = Self::packs()?;
        if __cpuid_count(7, 0).edx & (TILE | INT8) != TILE | INT8 {
            return None;
        }
        // SAFETY: the call only lets all threads of the program use tiles, and makes the system refuse signal stacks
        // that are too small for tiles from now on; if a thread has such a stack already, the system refuses this call.
        let refused = unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) };
        (refused == 0).then_some(Self {
            avx512,
            #[cfg(test)]
            emulated: false,
        })
    }

    /// AMX in plain code, on any CPU with the AVX-512 instructions that pack for it.
    #[cfg(test)]
    pub(super) fn emulated() -> Option<Self> {
        Self::packs().map(|avx512| Self { avx512, emulated: true })
    }

    /// Whether plain code stands in for AMX's instructions, as in some tests.
    pub(in crate::cpu::gemm) fn is_emulated(self) -> bool {
        #[cfg(test)]
        return self.emulated;
        #[cfg(not(test))]
        false
    }

    /// The proof of AVX-512, if the CPU has all instructions that packing uses.
    fn packs() -> Option<Avx512> {
        let more = is_x86_feature_detected!("avx512bw") && is_x86_feature_detected!("avx512vbmi");
        Avx512::find().filter(|_| more)
    }

    /// The proof of AVX-512, which every CPU with AMX has.
    pub(super) fn avx512(self) -> Avx512 {
        self.avx512
    }

    /// Configures the tiles of this thread as full ones, until the result is dropped.
    pub(super) fn configure(self) -> Configured {
        #[repr(C, align(64))]
        struct Configuration {
            palette: u8,
            start_row: u8,
            reserved: [u8; 14],
            row_bytes: [u16; 16],
            rows: [u8; 16],
        }
        static FULL: Configuration = {
            let (mut row_bytes, mut rows) = ([0; 16], [0; 16]);
            let mut tile = 0;
            while tile < 8 {
                row_bytes[tile] = 64;
                rows[tile] = SIDE as u8;
                tile += 1;
            }
            Configuration { palette: 1, start_row: 0, reserved: [0; 14], row_bytes, rows }
        };
        #[cfg(test)]
        if self.emulated {
            return Configured { amx: self };
        }
        // SAFETY: `FULL` is a valid configuration of 64 bytes; `self` proves that the CPU has AMX and that the system
        // allows its use.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const FULL, options(nostack, readonly)) };
        Configured { amx: self }
    }
}

/// AMX configured on this thread. Dropping this releases the tiles, so that the system does not save them when it
/// switches threads.
pub(super) struct Configured {
    pub(super) amx: Amx,
}

impl Drop for Configured {
    fn drop(&mut self) {
        #[cfg(test)]
        if self.amx.emulated {
            return;
        }
        // SAFETY: `amx` proves that the CPU has AMX, and each kernel stored the contents of its tiles before it
        // returned.
        unsafe { asm!("tilerelease", options(nomem, nostack)) };
    }
}
