//! Workers over burn's remote engine, over Iroh (QUIC): encrypted, and authenticated by the worker's key and the trainers' token. A task is
//! one custom operation of the worker's engine.

mod client;
mod endpoint;
mod server;

use burn::backend::flex::FlexTensor;
use burn::backend::{BackendTensor, DispatchAutodiffContext, DispatchTensor, DispatchTensorKind, Flex};
use burn::tensor::Tensor;
use sysinfo::{CpuRefreshKind, System};

use crate::device::FoundDevice;

pub use client::Remote;
pub use server::{Listen, Settings, serve};

/// The name and version of this program, and of what it sends and answers: raise the last number with every change of
/// [`message`](super::message), which another build of the same version would misread.
const PROGRAM: &str = concat!("vitrine ", env!("CARGO_PKG_VERSION"), ", messages 2");
/// The operation that computes a task: weights, images, and targets go in, and the numbers of an answer come out. The header is in its
/// scalars.
const GRADIENTS: &str = "vitrine.gradients";
/// The operation that says what the worker is: nothing goes in, and a text comes out.
const ABOUT: &str = "vitrine.about";
/// The length of the text of [`ABOUT`].
const ABOUT_LENGTH: usize = 1024;

/// What a worker says of itself.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
struct About {
    /// Name and version of the program.
    program: String,
    /// The device and its hardware.
    device: String,
    /// The number of compute threads.
    threads: usize,
}

impl About {
    /// What this process says of itself.
    fn of(device: &FoundDevice, threads: usize) -> Self {
        let processor = || {
            let mut system = System::new().ok()?;
            system.refresh_cpu_list(CpuRefreshKind::nothing());
            system.cpus().first().map(|cpu| cpu.brand().trim().to_owned())
        };
        let hardware = if device.is_gpu {
            device.hardware()
        } else {
            let amx = if vitrine_kernels::amx::wanted() == Ok(true) { "" } else { ", AMX off" };
            format!("{} ({}{amx})", processor().unwrap_or_else(|| "a CPU".to_owned()), instructions())
        };
        Self { program: PROGRAM.to_owned(), device: format!("{} on {hardware}", device.name), threads }
    }
}

/// The vector instructions of the processor, which decide about the last bits. Its name need not, on a virtual machine.
fn instructions() -> &'static str {
    #[cfg(target_arch = "x86_64")]
    {
        match (is_x86_feature_detected!("avx512f"), is_x86_feature_detected!("avx2")) {
            (true, _) => "AVX-512",
            (false, true) => "AVX2",
            (false, false) => "SSE2",
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    std::env::consts::ARCH
}

/// The tensor of the engine that carries the numbers, as one of burn's tensors.
fn from_flex(tensor: FlexTensor) -> Tensor<1> {
    Tensor::from_dispatch(DispatchTensor {
        kind: DispatchTensorKind::Flex(BackendTensor::Float(tensor)),
        autodiff: DispatchAutodiffContext::Disabled,
    })
}

/// The reverse of [`from_flex`].
fn to_flex(tensor: Tensor<1>) -> FlexTensor {
    match tensor.into_dispatch().kind {
        DispatchTensorKind::Flex(BackendTensor::Float(tensor)) => tensor,
        _ => unreachable!("the tensor was made on the engine of the CPU"),
    }
}

/// The engine that carries the numbers.
type Engine = Flex;
