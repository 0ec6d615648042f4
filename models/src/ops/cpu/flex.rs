//! How a fused operation runs on flex, burn's CPU backend: taken out of burn's dispatch, recorded for the backward pass, put back.
//!
//! An operation is written once, as an [`Operation`] on flex tensors; [`apply`] does the rest.

use super::gemm::Matrix;
use burn::backend::{
    Autodiff, BackendTensor, DispatchAutodiffContext, DispatchDevice, DispatchTensor, DispatchTensorKind,
    Flex, TensorMetadata,
    autodiff::{
        checkpoint::{base::Checkpointer, strategy::NoCheckpointing},
        grads::Gradients,
        ops::{Backward, Ops, OpsKind},
    },
    flex::{FlexTensor, Layout},
    tensor::FloatTensor,
};
use burn::tensor::{Bytes, DType, Shape, Tensor};
use std::fmt::Debug;
use std::marker::PhantomData;

/// A flex tensor that burn's autodiff follows.
type TrackedTensor = FloatTensor<Autodiff<Flex>>;

/// A differentiable operation of `N` inputs on float32 flex tensors. An input that the caller left out is `None`.
pub(in crate::ops) trait Operation<const N: usize>: Clone + Debug + Send + 'static {
    /// What the backward pass needs of the forward pass.
    type Saved: Clone + Debug + Send + 'static;

    /// The output alone: inference. May work in the inputs' memory.
    fn forward(&self, inputs: [Option<FlexTensor>; N]) -> FlexTensor;

    /// The output and what [`backward`](Self::backward) needs to give the gradients of the `wanted` inputs.
    fn forward_saving(&self, inputs: [Option<FlexTensor>; N], wanted: [bool; N])
    -> (FlexTensor, Self::Saved);

    /// The gradients of the `wanted` inputs from the gradient of the output.
    fn backward(self, saved: Self::Saved, gradient: FlexTensor, wanted: [bool; N])
    -> [Option<FlexTensor>; N];
}

/// Whether the fused operations take this tensor: float32, on flex, with or without autodiff.
pub(in crate::ops) fn takes<const D: usize>(tensor: &Tensor<D>) -> bool {
    tensor.dtype() == DType::F32
        && match tensor.device().as_dispatch() {
            DispatchDevice::Flex(_) => true,
            DispatchDevice::Autodiff(device) => matches!(device.clone().inner(), DispatchDevice::Flex(_)),
            #[allow(unreachable_patterns)] // a build may have flex alone
            _ => false,
        }
}

/// Whether it is a float32 tensor on flex that autodiff does not follow.
pub(in crate::ops) fn takes_untracked<const D: usize>(tensor: &Tensor<D>) -> bool {
    takes(tensor) && !tensor.device().is_autodiff()
}

/// The flex tensor in one that [`takes_untracked`] accepts.
pub(in crate::ops) fn untracked<const D: usize>(tensor: Tensor<D>) -> FlexTensor {
    plain(tensor.into_dispatch())
}

/// A tensor without autodiff.
pub(in crate::ops) fn wrap<const D: usize>(tensor: FlexTensor) -> Tensor<D> {
    let kind = DispatchTensorKind::Flex(BackendTensor::Float(tensor));
    Tensor::from_dispatch(DispatchTensor { kind, autodiff: DispatchAutodiffContext::Disabled })
}

/// [`takes`] for an input that may be absent.
pub(in crate::ops) fn takes_option<const D: usize>(tensor: &Option<Tensor<D>>) -> bool {
    tensor.as_ref().is_none_or(takes)
}

/// Runs `operation`, recorded for the backward pass where an input needs a gradient.
///
/// # Panics
///
/// If an input is not one that [`takes`] accepts.
pub(in crate::ops) fn apply<O: Operation<N>, const N: usize, const D: usize>(
    operation: O,
    inputs: [Option<DispatchTensor>; N],
) -> Tensor<D> {
    let context = inputs
        .iter()
        .flatten()
        .fold(DispatchAutodiffContext::Disabled, |context, input| context.merge(input.autodiff));
    let kind = match context {
        DispatchAutodiffContext::Disabled => DispatchTensorKind::Flex(BackendTensor::Float(
            operation.forward(inputs.map(|input| input.map(plain))),
        )),
        DispatchAutodiffContext::Enabled(_) => {
            let output = record(operation, inputs.map(|input| input.map(tracked)));
            DispatchTensorKind::Autodiff(Box::new(DispatchTensorKind::Flex(BackendTensor::Autodiff(output))))
        }
    };
    Tensor::from_dispatch(DispatchTensor { kind, autodiff: context })
}

fn plain(tensor: DispatchTensor) -> FlexTensor {
    match tensor.kind {
        DispatchTensorKind::Flex(BackendTensor::Float(tensor)) => tensor,
        other => panic!("expected a float tensor on flex, got {other:?}"),
    }
}

/// A tensor without autodiff joins an operation with autodiff as a constant.
fn tracked(tensor: DispatchTensor) -> TrackedTensor {
    match tensor.kind {
        DispatchTensorKind::Autodiff(inner) => match *inner {
            DispatchTensorKind::Flex(BackendTensor::Autodiff(tensor)) => tensor,
            other => panic!("expected a float tensor on flex, got {other:?}"),
        },
        DispatchTensorKind::Flex(BackendTensor::Float(tensor)) => TrackedTensor::new(tensor),
        #[allow(unreachable_patterns)] // a build may have flex alone
        other => panic!("expected a float tensor on flex, got {other:?}"),
    }
}

fn record<O: Operation<N>, const N: usize>(
    operation: O,
    inputs: [Option<TrackedTensor>; N],
) -> TrackedTensor {
    let wanted = inputs.each_ref().map(|input| input.as_ref().is_some_and(TrackedTensor::is_tracked));
    // burn wants a node for every parent: an absent input is an untracked constant
    let nodes = inputs.each_ref().map(|input| match input {
        Some(input) => input.node(),
        None => TrackedTensor::new(filled(0, Shape::new([0]), 0.0)).node(),
    });
    let inputs = inputs.map(|input| input.map(TrackedTensor::into_primitive));
    match Step::<O>(PhantomData).prepare::<NoCheckpointing>(nodes).compute_bound().stateful() {
        OpsKind::Tracked(prepared) => {
            let (output, saved) = operation.forward_saving(inputs, wanted);
            prepared.finish((operation, saved), output)
        }
        OpsKind::UnTracked(prepared) => prepared.finish(operation.forward(inputs)),
    }
}

/// The backward step of an operation in burn's graph.
#[derive(Debug)]
struct Step<O>(PhantomData<O>);

impl<O: Operation<N>, const N: usize> Backward<Flex, N> for Step<O> {
    type State = (O, O::Saved);

    fn backward(self, ops: Ops<Self::State, N>, gradients: &mut Gradients, _checkpointer: &mut Checkpointer) {
        let gradient = gradients.consume::<Flex>(&ops.node);
        let (operation, saved) = ops.state;
        let wanted = ops.parents.each_ref().map(Option::is_some);
        for (parent, gradient) in ops.parents.into_iter().zip(operation.backward(saved, gradient, wanted)) {
            if let (Some(parent), Some(gradient)) = (parent, gradient) {
                gradients.register::<Flex>(parent.id, gradient);
            }
        }
    }
}

/// A row-major tensor over `data`.
pub(in crate::ops) fn tensor(data: Vec<f32>, shape: impl Into<Shape>) -> FlexTensor {
    let shape = shape.into();
    debug_assert_eq!(data.len(), shape.num_elements());
    FlexTensor::new(Bytes::from_elems(data), Layout::contiguous(shape), DType::F32)
}

/// A tensor of one value.
pub(in crate::ops) fn filled(length: usize, shape: impl Into<Shape>, value: f32) -> FlexTensor {
    tensor(vec![value; length], shape)
}

/// The tensor with its elements in row-major order from the start of its buffer; copies only if they are not.
pub(in crate::ops) fn contiguous(tensor: FlexTensor) -> FlexTensor {
    tensor.to_contiguous()
}

/// The tensor's sizes.
pub(in crate::ops) fn sizes<const D: usize>(tensor: &FlexTensor) -> [usize; D] {
    tensor.shape().dims()
}

/// The two-dimensional tensor as a matrix, where it lies; `None` if it has negative strides.
pub(in crate::ops) fn matrix(tensor: &FlexTensor) -> Option<Matrix<'_>> {
    let [rows, columns] = sizes(tensor);
    let strides = [
        usize::try_from(tensor.layout().strides()[0]).ok()?,
        usize::try_from(tensor.layout().strides()[1]).ok()?,
    ];
    if rows == 0 || columns == 0 {
        return Some(Matrix::new(&[], [rows, columns], strides));
    }
    Some(Matrix::new(&tensor.storage::<f32>()[tensor.layout().start_offset()..], [rows, columns], strides))
}
