//! Intel's AMX-INT8 on Linux, which asks programs to say that they use it: the proof that it is there, and its configuration.

use super::super::avx512::Avx512;
use super::shape::SIDE;
use crate::amx;
use std::arch::asm;
use std::arch::x86_64::__cpuid_count;
use std::sync::LazyLock;

/// The proof that the CPU has AMX and the AVX-512 instructions that pack for it, that the system lets the program use it, and
/// that the environment does, too.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Amx {
    avx512: Avx512,
    /// Whether plain code takes the place of AMX's own instructions.
    #[cfg(test)]
    pub(super) emulated: bool,
}

impl Amx {
    /// AMX, if it may be used; asked once. Tests get an [emulated](Self::emulated) one where there is none.
    pub(crate) fn find() -> Option<Self> {
        static FOUND: LazyLock<Option<Amx>> = LazyLock::new(|| {
            if !amx::wanted().unwrap_or(false) {
                return None;
            }
            let found = Amx::real();
            #[cfg(test)]
            let found = found.or_else(Amx::emulated);
            found
        });
        *FOUND
    }

    /// AMX of this CPU. Asks the system for its use.
    pub(super) fn real() -> Option<Self> {
        const TILE: u32 = 1 << 24;
        const INT8: u32 = 1 << 25;
        const ARCH_REQ_XCOMP_PERM: libc::c_int = 0x1023;
        const XFEATURE_XTILEDATA: libc::c_ulong = 18;
        let avx512 = Self::packs()?;
        if __cpuid_count(7, 0).edx & (TILE | INT8) != TILE | INT8 {
            return None;
        }
        // SAFETY: the call changes nothing but what all threads of the program may use, and what stacks for signals they may ask for next:
        // ones too small for the tiles are refused. Where a thread has such a stack already, the call is.
        let refused = unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) };
        (refused == 0).then_some(Self {
            avx512,
            #[cfg(test)]
            emulated: false,
        })
    }

    /// The same in plain code, on any CPU with the AVX-512 instructions that pack for it.
    #[cfg(test)]
    pub(super) fn emulated() -> Option<Self> {
        Self::packs().map(|avx512| Self { avx512, emulated: true })
    }

    /// Whether the CPU has what packing takes.
    fn packs() -> Option<Avx512> {
        let more = is_x86_feature_detected!("avx512bw") && is_x86_feature_detected!("avx512vbmi");
        Avx512::find().filter(|_| more)
    }

    /// The vector instructions that a CPU with AMX has.
    pub(super) fn avx512(self) -> Avx512 {
        self.avx512
    }

    /// Sets AMX up on this thread for full tiles, until the result is dropped.
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
        // SAFETY: a valid configuration of 64 bytes; `self` proves that AMX is there and that the system allows it.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const FULL, options(nostack, readonly)) };
        Configured { amx: self }
    }
}

/// AMX, set up on this thread; given back when dropped, so that a change of threads has no tiles to save.
pub(super) struct Configured {
    pub(super) amx: Amx,
}

impl Drop for Configured {
    fn drop(&mut self) {
        #[cfg(test)]
        if self.amx.emulated {
            return;
        }
        // SAFETY: AMX is there (`amx`), and what its tiles held was stored by each kernel.
        unsafe { asm!("tilerelease", options(nomem, nostack)) };
    }
}
