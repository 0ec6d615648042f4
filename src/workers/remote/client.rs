//! The trainer's side: one connection to a worker.

use std::future::ready;
use std::net::{SocketAddr, ToSocketAddrs};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{SystemTime, UNIX_EPOCH};

use burn::backend::{
    BackendTensor, DispatchAutodiffContext, DispatchDevice, DispatchTensor, DispatchTensorKind,
};
use burn::remote::{ConnectError, CustomOpClient, EndpointAddr, EndpointId, IrohHost, RemoteHost};
use burn::tensor::{DType, Device, Shape, Tensor, TensorData};
use burn_ir::{CustomOpIr, ScalarIr, TensorIr};

use super::endpoint::Dialer;
use super::{ABOUT, ABOUT_LENGTH, About, GRADIENTS};
use crate::device::FoundDevice;
use crate::learner::micro_batch::Contribution;
use crate::token::Token;
use crate::workers::message::{Header, answer_length, read_answer, read_text};
use crate::workers::{Address, Answer, Failure, Task, Worker};

/// The reason if a connection breaks.
const BROKEN: &str = "the connection is broken";

/// A worker in another process.
pub struct Remote {
    address: Address,
    token: Token,
    /// What the trainer would say of itself.
    own: About,
    /// The number of the connection.
    number: u64,
    device: Option<Device>,
    /// The weights that the worker has, with their version.
    weights: Option<(u64, Tensor<1>)>,
}

impl Remote {
    /// A worker at an address. The device and the number of threads are the trainer's, with which the worker's are compared.
    pub fn new(address: Address, token: &Token, (device, threads): (&FoundDevice, usize)) -> Self {
        let own = About::of(device, threads);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
        let number = now.wrapping_mul(1 << 16);
        Self { address, token: token.clone(), own, number, device: None, weights: None }
    }

    /// Connects to the worker, which is shown the token first.
    fn dial(&self) -> Result<Device, Failure> {
        let Address { id, host } = &self.address;
        let id: EndpointId =
            id.parse().map_err(|_| Failure::Refused(format!("{id} is no public key of a worker")))?;
        let addresses = host.to_socket_addrs().map_err(|error| Failure::Lost(format!("{host}: {error}")))?;
        let addresses: Vec<SocketAddr> = addresses.collect();
        let dialer = Dialer::to(&addresses)?;
        let worker = addresses.into_iter().fold(EndpointAddr::new(id), EndpointAddr::with_ip_addr);
        dialer.show(&self.token, worker.clone())?;
        let host = RemoteHost::iroh(IrohHost::new(worker).with_endpoint(dialer.endpoint()));
        // Burn returns to a connection that is broken if the credential is the same.
        let host = host.with_credential(self.number.to_string());
        Device::remote_options(&host).init().map_err(failure)
    }

    /// What the worker says of itself.
    fn about(&self, device: &Device) -> Result<About, Failure> {
        let numbers = numbers_of(operation(device, ABOUT, &[], ABOUT_LENGTH, Vec::new()).try_into_data())?;
        serde_json::from_str(&read_text(&numbers)).map_err(|_| {
            Failure::Refused(format!("it runs another version than {}, the trainer's", self.own.program))
        })
    }

    /// Remarks about what may change the last bits of the result.
    fn remarks(&self, other: &About) -> Vec<String> {
        let About { device, threads, .. } = &self.own;
        let mut differences = Vec::new();
        if other.threads != *threads {
            differences.push(format!("{} compute threads, not {threads} (--threads)", other.threads));
        }
        if other.device != *device {
            differences.push(format!("{}, not {device}", other.device));
        }
        if differences.is_empty() {
            return Vec::new();
        }
        let name = self.name();
        vec![format!(
            "worker {name} has {}: the last bits of the result depend on who computes what",
            differences.join(" and ")
        )]
    }

    fn try_send(&mut self, task: &Task) -> Result<Answer, Failure> {
        let Some(device) = self.device.clone() else { return Err(Failure::Lost("not connected".to_owned())) };
        let send = |values: Vec<f32>| {
            let length = values.len();
            Tensor::<1>::from_data(TensorData::new(values, [length]), &device)
        };
        let weights = &task.weights;
        if self.weights.as_ref().is_none_or(|(version, _)| *version != weights.version) {
            self.weights = Some((weights.version, send(weights.values.clone())));
        }
        let Some((version, parameters)) = &self.weights else { unreachable!("they were just sent") };
        let images = task.batch.size;
        let inputs = [parameters.clone(), send(task.batch.images.clone()), send(task.batch.targets.clone())];
        let header = Header::of(task).to_words();
        let scalars = std::iter::once(*version).chain(header).map(ScalarIr::UInt).collect();
        let length = answer_length(&weights.sizes, images);
        let numbers = operation(&device, GRADIENTS, &inputs, length, scalars).into_data_async();
        let sizes = weights.sizes.clone();
        let mut answer: Answer = Box::pin(Guarded(Box::pin(async move {
            read_answer(numbers_of(numbers.await)?, &sizes, images).map_err(Failure::Refused)
        })));
        // The first poll sends the request for the numbers, before whatever is sent next.
        Ok(match answer.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(outcome) => Box::pin(ready(outcome)),
            Poll::Pending => answer,
        })
    }
}

impl Worker for Remote {
    fn name(&self) -> String {
        self.address.host.clone()
    }

    fn connect(&mut self) -> Result<Vec<String>, Failure> {
        guarded(|| self.try_connect())
    }

    fn send(&mut self, task: &Task) -> Result<Answer, Failure> {
        guarded(|| self.try_send(task))
    }
}

impl Remote {
    fn try_connect(&mut self) -> Result<Vec<String>, Failure> {
        if self.device.take().is_some() {
            self.number += 1;
            self.weights = None;
        }
        let device = self.dial()?;
        // From here on the connection has its number, whatever follows.
        self.device = Some(device.clone());
        let about = self.about(&device)?;
        if about.program != self.own.program {
            let (its, own) = (about.program, &self.own.program);
            return Err(Failure::Refused(format!("it is {its}, and this is {own}: use the same version")));
        }
        Ok(self.remarks(&about))
    }
}

/// The result of a call in which burn may panic if the connection is broken. [`Pool`](crate::workers::Pool) keeps the panics of its threads
/// from being printed.
fn guarded<T>(call: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|_| Err(Failure::Lost(BROKEN.to_owned())))
}

/// An answer that is [`guarded`].
struct Guarded(Answer);

impl Future for Guarded {
    type Output = Result<Contribution, Failure>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match guarded(|| Ok(self.0.as_mut().poll(context))) {
            Ok(outcome) => outcome,
            Err(failure) => Poll::Ready(Err(failure)),
        }
    }
}

/// Why no connection was made.
fn failure(error: ConnectError) -> Failure {
    match error {
        ConnectError::Unreachable { reason } | ConnectError::Handshake { reason } => {
            Failure::Lost(format!("it cannot be reached ({reason})"))
        }
        ConnectError::Interrupted => Failure::Lost("interrupted".to_owned()),
        error => Failure::Refused(error.to_string()),
    }
}

/// The one output of a custom operation of the worker, a vector of `length` numbers, which is not read yet.
fn operation(
    device: &Device,
    name: &'static str,
    inputs: &[Tensor<1>],
    length: usize,
    scalars: Vec<ScalarIr>,
) -> Tensor<1> {
    let DispatchDevice::Remote(remote) = device.as_dispatch() else { unreachable!("the device is remote") };
    let client = CustomOpClient::new(remote);
    let handle = |tensor: &Tensor<1>| match tensor.clone().into_dispatch().kind {
        DispatchTensorKind::Remote(BackendTensor::Float(tensor)) => tensor.into_ir(),
        _ => unreachable!("the tensor is on the device"),
    };
    let inputs: Vec<TensorIr> = inputs.iter().map(handle).collect();
    let output = TensorIr::uninit(client.create_empty_handle(), Shape::new([length]), DType::F32);
    let operation = CustomOpIr::with_scalars(name, &inputs, &[output], scalars);
    let Some(output) = client.register(operation).pop() else { unreachable!("the operation has one output") };
    Tensor::<1>::from_dispatch(DispatchTensor {
        kind: DispatchTensorKind::Remote(BackendTensor::Float(output)),
        autodiff: DispatchAutodiffContext::Disabled,
    })
}

/// The numbers of an output that was read.
fn numbers_of<E>(read: Result<TensorData, E>) -> Result<Vec<f32>, Failure> {
    let data = read.map_err(|_| Failure::Lost(BROKEN.to_owned()))?;
    data.try_into_vec::<f32>().map_err(|_| Failure::Refused("the answer is no vector of numbers".to_owned()))
}
