//! The worker's side: serves tasks until the process is asked to stop.

use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, bail};
use burn::server::{CustomOpIr, HandleContainer, IrohIdentity, RemoteServer};
use burn::tensor::{Device, Tensor, TensorData};
use burn_ir::{BackendIr, ScalarIr};
use iroh::SecretKey;
use sysinfo::System;
#[cfg(unix)]
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::endpoint::Served;
use super::{ABOUT, ABOUT_LENGTH, About, Engine, GRADIENTS, from_flex, to_flex};
use crate::device::FoundDevice;
use crate::learner::micro_batch::{Contribution, MicroBatch, ReplicaConfig};
use crate::token::Token;
use crate::workers::computer::check;
use crate::workers::message::{Header, write_answer, write_text};
use crate::workers::{Address, Computer, Task, Weights};

/// The longest answer, as a multiple of the numbers that came with the task.
const LONGEST_ANSWER: usize = 4;

/// Where a worker listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listen(SocketAddr);

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const FORMS: &str =
            "it must be 0.0.0.0:PORT or [::]:PORT, or 127.0.0.1:PORT or [::1]:PORT for this machine alone";
        let address: SocketAddr = text.parse().map_err(|_| FORMS)?;
        if address.port() == 0 || !(address.ip().is_unspecified() || address.ip().is_loopback()) {
            return Err(FORMS.to_owned());
        }
        Ok(Self(address))
    }
}

/// How a worker serves.
pub struct Settings {
    /// Where it listens.
    pub listen: Listen,
    /// The file with its key, which is made if it does not exist.
    pub key: PathBuf,
    /// What a trainer must show.
    pub token: Token,
    /// Where it computes.
    pub device: FoundDevice,
    /// The number of compute threads.
    pub threads: usize,
    /// Whether a task is admitted, by its model and its number of images, or else why not.
    pub admits: fn(&ReplicaConfig, usize, &FoundDevice) -> Result<(), String>,
}

/// Serves tasks until Ctrl-C or `SIGTERM`. `ready` is given the address for the list of workers.
///
/// # Errors
/// If the key cannot be read, or the port is taken.
pub fn serve(settings: Settings, ready: impl FnOnce(&Address) -> Result<()>) -> Result<()> {
    let Settings { listen: Listen(listen), key, token, device, threads, admits } = settings;
    let identity = IrohIdentity::load_or_create(&key).with_context(|| format!("--key {}", key.display()))?;
    let address = Address { id: identity.id().to_string(), host: host(listen) };
    let about = About::of(&device, threads);
    let about = serde_json::to_string(&about).context("the worker cannot describe itself")?;
    let computer = Mutex::new(Admitting { computer: Computer::new(&device.device), admitted: None });
    let gradients = move |inputs: &[Tensor<1>], words: &[u64], length: usize| {
        let admits = |config: &ReplicaConfig, images| admits(config, images, &device);
        write_answer(answer(inputs, words, &computer, &admits), length)
    };
    let server = RemoteServer::new([Device::flex()])
        .with_custom_op::<Engine, _>(ABOUT, move |handles, operation, _| {
            reply(handles, operation, write_text(&about, ABOUT_LENGTH));
        })
        .with_custom_op::<Engine, _>(GRADIENTS, move |handles, operation, _| {
            let take = |input| from_flex(handles.get_float_tensor::<Engine>(input));
            let inputs: Vec<Tensor<1>> = operation.inputs.iter().map(take).collect();
            let words: Vec<u64> = operation.scalars.iter().copied().map(ScalarIr::elem::<u64>).collect();
            let came: usize = inputs.iter().map(|input| input.dims()[0]).sum();
            let asked = operation.outputs.first().map_or(0, |output| output.shape.num_elements());
            let length = asked.min(LONGEST_ANSWER * came + ABOUT_LENGTH);
            reply(handles, operation, gradients(&inputs, &words, length));
        });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let served =
            Served::start(server, listen, SecretKey::from_bytes(&identity.to_bytes()), token).await?;
        let stop = Stop::listen()?;
        ready(&address)?;
        tokio::select! {
            () = served.ended() => bail!("the connections have ended by a defect: start the worker again"),
            () = stop.asked() => {
                served.shut_down().await;
                Ok(())
            }
        }
    })
}

/// The host in a worker's address: what the list of workers has.
fn host(listen: SocketAddr) -> String {
    if listen.ip().is_loopback() {
        return listen.to_string();
    }
    let name = System::host_name().unwrap_or_else(|_| "HOST".to_owned());
    format!("{name}:{}", listen.port())
}

/// Waits for Ctrl-C or `SIGTERM`, from when it exists.
#[cfg(unix)]
struct Stop {
    interrupt: Signal,
    terminate: Signal,
}

#[cfg(unix)]
impl Stop {
    fn listen() -> Result<Self> {
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    async fn asked(mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {},
            _ = self.terminate.recv() => {},
        }
    }
}

/// Waits for Ctrl-C, from when it exists.
#[cfg(windows)]
struct Stop(tokio::signal::windows::CtrlC);

#[cfg(windows)]
impl Stop {
    fn listen() -> Result<Self> {
        Ok(Self(tokio::signal::windows::ctrl_c()?))
    }

    async fn asked(mut self) {
        let _ = self.0.recv().await;
    }
}

/// Gives an operation its one output.
fn reply(
    handles: &mut HandleContainer<<Engine as BackendIr>::Handle>,
    operation: &CustomOpIr,
    numbers: Vec<f32>,
) {
    if let Some(output) = operation.outputs.first() {
        let length = numbers.len();
        let tensor = Tensor::from_data(TensorData::new(numbers, [length]), &Device::flex());
        handles.register_float_tensor::<Engine>(&output.id, to_flex(tensor));
    }
}

/// Computes the task in the inputs of an operation.
fn answer(
    inputs: &[Tensor<1>],
    words: &[u64],
    computer: &Mutex<Admitting>,
    admits: &dyn Fn(&ReplicaConfig, usize) -> Result<(), String>,
) -> Result<Contribution, String> {
    let ([weights, images, targets], [version, header @ ..]) = (inputs, words) else {
        return Err(format!("three inputs and a header are needed, and {} inputs came", inputs.len()));
    };
    let Header { config, size, image_size, seed } = Header::from_words(header)?;
    let numbers = |tensor: &Tensor<1>| {
        tensor.to_data().try_into_vec::<f32>().map_err(|_| "an input holds no numbers".to_owned())
    };
    let batch = MicroBatch { size, image_size, images: numbers(images)?, targets: numbers(targets)?, seed };
    // One task at a time: the seed of dropout is the device's.
    let mut computer = computer.lock().unwrap_or_else(PoisonError::into_inner);
    check(&config, &batch)?;
    // Once for each kind of task: afterwards the memory is this process's own.
    let admitted = &mut computer.admitted;
    if admitted.as_ref().is_none_or(|(known, images)| *known != config || *images < size) {
        admits(&config, size)?;
        *admitted = Some((config.clone(), size));
    }
    let is_known = computer.computer.has_weights(&config, *version);
    let values = if is_known { Vec::new() } else { numbers(weights)? };
    let weights = Weights { version: *version, values, sizes: Vec::new() };
    let task = Task { config: Arc::new(config), weights: Arc::new(weights), batch };
    let computed = catch_unwind(AssertUnwindSafe(|| computer.computer.compute(&task)));
    computed.unwrap_or_else(|_| Err("the task cannot be computed".to_owned()))
}

/// What computes tasks, and the last model and number of images that were admitted.
struct Admitting {
    computer: Computer,
    admitted: Option<(ReplicaConfig, usize)>,
}
