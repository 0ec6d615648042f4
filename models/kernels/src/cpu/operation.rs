//! The frame of a fused operation: taken out of burn's dispatch, recorded for the backward pass, and put back.
//!
//! An operation is written once, as an [`Operation`] on flex tensors; [`apply`] does the rest.

use super::flex;
use burn::backend::{
    Autodiff, BackendTensor, DispatchAutodiffContext, DispatchTensor, DispatchTensorKind, Flex,
    autodiff::{
        checkpoint::{base::Checkpointer, strategy::NoCheckpointing},
        grads::Gradients,
        ops::{Backward, Ops, OpsKind},
    },
    flex::FlexTensor,
    tensor::FloatTensor,
};
use burn::tensor::{Shape, Tensor};
use std::fmt::Debug;
use std::marker::PhantomData;

/// A flex tensor that burn's autodiff follows.
type TrackedTensor = FloatTensor<Autodiff<Flex>>;

/// The names of an operation's `N` inputs, of which some may be optional.
pub(crate) trait Inputs<const N: usize>: 'static {
    /// The inputs themselves: a `T` for each name, an `Option<T>` for an optional one.
    type Of<T>;

    /// Changes every input that is there.
    fn map<T, U>(inputs: Self::Of<T>, change: impl FnMut(T) -> U) -> Self::Of<U>;

    /// The inputs in the order of their gradients; `None` for an optional one that is absent.
    fn in_order<T>(inputs: &Self::Of<T>) -> [Option<&T>; N];
}

/// `N` inputs, none of them optional: an array.
impl<const N: usize> Inputs<N> for [(); N] {
    type Of<T> = [T; N];

    fn map<T, U>(inputs: [T; N], change: impl FnMut(T) -> U) -> [U; N] {
        inputs.map(change)
    }

    fn in_order<T>(inputs: &[T; N]) -> [Option<&T>; N] {
        inputs.each_ref().map(Some)
    }
}

/// The inputs of an operation with a weight and an optional bias.
#[derive(Clone, Debug)]
pub(crate) struct WithBias<T = ()> {
    pub(crate) x: T,
    pub(crate) weight: T,
    pub(crate) bias: Option<T>,
}

impl WithBias<DispatchTensor> {
    /// The inputs of an operation on burn's tensors.
    pub(crate) fn new<const D: usize>(x: Tensor<D>, weight: Tensor<2>, bias: Option<Tensor<1>>) -> Self {
        Self { x: x.into_dispatch(), weight: weight.into_dispatch(), bias: bias.map(Tensor::into_dispatch) }
    }
}

impl Inputs<3> for WithBias {
    type Of<T> = WithBias<T>;

    fn map<T, U>(WithBias { x, weight, bias }: WithBias<T>, mut change: impl FnMut(T) -> U) -> WithBias<U> {
        WithBias { x: change(x), weight: change(weight), bias: bias.map(change) }
    }

    fn in_order<T>(WithBias { x, weight, bias }: &WithBias<T>) -> [Option<&T>; 3] {
        [Some(x), Some(weight), bias.as_ref()]
    }
}

/// A differentiable operation of `N` inputs on float32 flex tensors.
pub(crate) trait Operation<const N: usize>: Clone + Debug + Send + 'static {
    /// The names of the inputs.
    type Inputs: Inputs<N>;

    /// What the backward pass needs of the forward pass.
    type Saved: Clone + Debug + Send + 'static;

    /// The output alone, for inference. May work in the memory of the inputs.
    fn forward(&self, inputs: InputsOf<Self, FlexTensor, N>) -> FlexTensor;

    /// The output, and what [`backward`](Self::backward) needs to compute the gradients of the `wanted` inputs.
    fn forward_saving(
        &self,
        inputs: InputsOf<Self, FlexTensor, N>,
        wanted: [bool; N],
    ) -> (FlexTensor, Self::Saved);

    /// The gradients of the `wanted` inputs from `dy`, the gradient of the output.
    fn backward(self, saved: Self::Saved, dy: FlexTensor, wanted: [bool; N]) -> [Option<FlexTensor>; N];
}

/// The inputs of an operation as tensors of type `T`.
pub(crate) type InputsOf<O, T, const N: usize> = <<O as Operation<N>>::Inputs as Inputs<N>>::Of<T>;

/// Runs `operation`, and records it for the backward pass if autodiff follows an input.
///
/// # Panics
///
/// If [`flex::takes`] does not accept an input.
pub(crate) fn apply<O: Operation<N>, const N: usize, const D: usize>(
    operation: O,
    inputs: InputsOf<O, DispatchTensor, N>,
) -> Tensor<D> {
    let context = O::Inputs::in_order(&inputs)
        .into_iter()
        .flatten()
        .fold(DispatchAutodiffContext::Disabled, |context, input| context.merge(input.autodiff));
    let kind = match context {
        DispatchAutodiffContext::Disabled => DispatchTensorKind::Flex(BackendTensor::Float(
            operation.forward(O::Inputs::map(inputs, flex::plain)),
        )),
        DispatchAutodiffContext::Enabled(_) => {
            let output = record(operation, O::Inputs::map(inputs, tracked));
            DispatchTensorKind::Autodiff(Box::new(DispatchTensorKind::Flex(BackendTensor::Autodiff(output))))
        }
    };
    Tensor::from_dispatch(DispatchTensor { kind, autodiff: context })
}

/// The tracked tensor inside `tensor`. A tensor without autodiff becomes a constant.
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
    inputs: InputsOf<O, TrackedTensor, N>,
) -> TrackedTensor {
    let in_order = O::Inputs::in_order(&inputs);
    let wanted = in_order.map(|input| input.is_some_and(TrackedTensor::is_tracked));
    // burn asks for a node for every input: an absent one gets that of an empty constant.
    let nodes = in_order.map(|input| match input {
        Some(input) => input.node(),
        None => TrackedTensor::new(flex::filled(0, Shape::new([0]), 0.0)).node(),
    });
    let inputs = O::Inputs::map(inputs, TrackedTensor::into_primitive);
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
        let dy = gradients.consume::<Flex>(&ops.node);
        let (operation, saved) = ops.state;
        let wanted = ops.parents.each_ref().map(Option::is_some);
        for (parent, gradient) in ops.parents.into_iter().zip(operation.backward(saved, dy, wanted)) {
            if let (Some(parent), Some(gradient)) = (parent, gradient) {
                gradients.register::<Flex>(parent.id, gradient);
            }
        }
    }
}
