//! Tensors of flex, burn's CPU backend: which of burn's tensors are, taken out of burn's dispatch and put back, and
//! read as matrices.

use super::gemm::Matrix;
use burn::backend::{
    BackendTensor, DispatchAutodiffContext, DispatchDevice, DispatchTensor, DispatchTensorKind,
    TensorMetadata,
    flex::{FlexTensor, Layout},
};
use burn::tensor::{Bytes, DType, Device, Shape, Tensor};

/// Whether the fused operations take this tensor: float32, on flex, with or without autodiff.
pub(crate) fn takes<const D: usize>(tensor: &Tensor<D>) -> bool {
    tensor.dtype() == DType::F32 && is_flex(&tensor.device())
}

/// Whether a device is flex, with or without autodiff.
pub(crate) fn is_flex(device: &Device) -> bool {
    match device.as_dispatch() {
        DispatchDevice::Flex(_) => true,
        DispatchDevice::Autodiff(device) => matches!(device.clone().inner(), DispatchDevice::Flex(_)),
        #[allow(unreachable_patterns)] // a build may have flex alone
        _ => false,
    }
}

/// [`takes`] for an input that may be absent.
pub(crate) fn takes_option<const D: usize>(tensor: &Option<Tensor<D>>) -> bool {
    tensor.as_ref().is_none_or(takes)
}

/// Whether this is a float32 tensor on flex that autodiff does not follow.
pub(crate) fn takes_untracked<const D: usize>(tensor: &Tensor<D>) -> bool {
    takes(tensor) && !tensor.device().is_autodiff()
}

/// The flex tensor inside a tensor that [`takes_untracked`] accepts.
///
/// # Panics
///
/// If [`takes_untracked`] does not accept it.
pub(crate) fn untracked<const D: usize>(tensor: Tensor<D>) -> FlexTensor {
    plain(tensor.into_dispatch())
}

/// The flex tensor inside a tensor of burn's dispatch.
///
/// # Panics
///
/// If the tensor is on another backend, or autodiff follows it.
pub(crate) fn plain(tensor: DispatchTensor) -> FlexTensor {
    match tensor.kind {
        DispatchTensorKind::Flex(BackendTensor::Float(tensor)) => tensor,
        other => panic!("expected a float tensor on flex, got {other:?}"),
    }
}

/// A flex tensor as one of burn's, without autodiff.
pub(crate) fn wrap<const D: usize>(tensor: FlexTensor) -> Tensor<D> {
    let kind = DispatchTensorKind::Flex(BackendTensor::Float(tensor));
    Tensor::from_dispatch(DispatchTensor { kind, autodiff: DispatchAutodiffContext::Disabled })
}

/// A row-major tensor over `data`.
pub(crate) fn tensor(data: Vec<f32>, shape: impl Into<Shape>) -> FlexTensor {
    let shape = shape.into();
    debug_assert_eq!(data.len(), shape.num_elements());
    FlexTensor::new(Bytes::from_elems(data), Layout::contiguous(shape), DType::F32)
}

/// A tensor of `length` elements that all have this value.
pub(crate) fn filled(length: usize, shape: impl Into<Shape>, value: f32) -> FlexTensor {
    tensor(vec![value; length], shape)
}

/// The tensor with its elements in row-major order from the start of its buffer; copies only a tensor that is not laid
/// out so already.
pub(crate) fn contiguous(tensor: FlexTensor) -> FlexTensor {
    tensor.to_contiguous()
}

/// The sizes of a tensor of `D` dimensions.
pub(crate) fn sizes<const D: usize>(tensor: &FlexTensor) -> [usize; D] {
    tensor.shape().dims()
}

/// The rows of a tensor seen as a matrix of its last dimension: the product of all sizes but the last.
pub(crate) fn rows(shape: &Shape) -> usize {
    shape[..shape.num_dims() - 1].iter().product()
}

/// The two-dimensional tensor as a matrix over its own memory; `None` if it has negative strides.
pub(crate) fn matrix(tensor: &FlexTensor) -> Option<Matrix<'_>> {
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
