//! The linear layer, and the initializers that all layers share.

use std::ops::Range;

use burn::module::{Module, Param, ParamId};
use burn::tensor::{Device, Distribution, Tensor};

use crate::graph::{Graph, Value};
use vitrine_kernels::{Int8Weight, PackedWeight, linear_int8, linear_packed, round_to_int8};

/// `x · weight + bias` over the last dimension.
#[derive(Module, Debug)]
pub struct Linear {
    /// `[input, output]`.
    pub weight: Param<Tensor<2>>,
    /// `[output]`.
    pub bias: Option<Param<Tensor<1>>>,
    #[module(skip)]
    prepared: Option<Prepared>,
}

/// The weight as this CPU's products for inference read it.
#[derive(Clone, Debug)]
enum Prepared {
    /// Parameters that are replaced afterwards have no effect on it.
    Int8(Int8Weight),
    /// It counts as long as nothing has replaced or read the parameter, which then has the weight.
    Packed(PackedWeight),
}

impl Prepared {
    fn outputs(&self, range: Range<usize>) -> Self {
        match self {
            Self::Int8(weight) => Self::Int8(weight.outputs(range)),
            Self::Packed(weight) => Self::Packed(weight.outputs(range)),
        }
    }

    /// The layer, with GELU if `is_gelu`; `None` if gradients are wanted.
    fn forward<const D: usize>(
        &self,
        x: &Tensor<D>,
        bias: Option<Tensor<1>>,
        is_gelu: bool,
    ) -> Option<Tensor<D>> {
        match self {
            Self::Int8(weight) => linear_int8(x, weight, bias, is_gelu),
            Self::Packed(weight) => linear_packed(x, weight, bias, is_gelu),
        }
    }
}

impl Linear {
    /// Weights from a normal distribution with a standard deviation of 0.02, truncated to [-2, 2] as in timm; a bias of
    /// zeros.
    pub fn new(input: usize, output: usize, bias: bool, device: &Device) -> Self {
        Self::of(normal([input, output], 0.02, device), bias.then(|| constant([output], 0.0, device)))
    }

    /// A layer of these parameters.
    pub fn of(weight: Param<Tensor<2>>, bias: Option<Param<Tensor<1>>>) -> Self {
        Self { weight, bias, prepared: None }
    }

    /// Rounds the weight to bytes, and multiplies bytes from now on where the device can.
    pub(crate) fn quantize(&mut self) {
        let weight =
            round_to_int8(self.packed().map_or_else(|| self.weight.val(), PackedWeight::unpacked), 1);
        self.prepared = Int8Weight::of_linear(weight.clone()).map(Prepared::Int8);
        self.weight = Param::initialized(self.weight.id, weight);
    }

    /// Packs the weight for the products of this CPU, if they have a use for it. The parameter gives it up, and has it again when
    /// something reads it.
    pub(crate) fn pack(&mut self) {
        if self.prepared().is_some() {
            return;
        }
        let weight = self.weight.val();
        if !PackedWeight::suits(&weight) {
            return;
        }
        let (shape, device) = (weight.shape(), weight.device());
        // Without the parameter, the weight may be packed where it lies.
        let none = move |device: &Device, _: bool| Tensor::empty([0, 0], device);
        self.weight = Param::uninitialized(self.weight.id, none, device.clone(), false, [0, 0].into());
        let packed = PackedWeight::new(weight);
        let copy = packed.clone();
        let unpack = move |device: &Device, require_grad: bool| {
            let weight = copy.unpacked().to_device(device);
            if require_grad { weight.require_grad() } else { weight }
        };
        self.weight = Param::uninitialized(self.weight.id, unpack, device, true, shape);
        self.prepared = Some(Prepared::Packed(packed));
    }

    /// Gives the parameter a weight of its own again.
    pub(crate) fn unpack(&mut self) {
        if let Some(packed) = self.packed() {
            self.weight = Param::initialized(self.weight.id, packed.unpacked());
            self.prepared = None;
        }
    }

    /// The weight as products for inference read it.
    fn prepared(&self) -> Option<&Prepared> {
        let is_packed = matches!(self.prepared, Some(Prepared::Packed(_)));
        self.prepared.as_ref().filter(|_| !is_packed || !self.weight.is_initialized())
    }

    /// The weight, if it was [packed](Self::pack).
    fn packed(&self) -> Option<&PackedWeight> {
        match self.prepared() {
            Some(Prepared::Packed(weight)) => Some(weight),
            _ => None,
        }
    }

    /// Whether the layer multiplies bytes where no gradient is wanted.
    pub(crate) fn is_on_bytes(&self) -> bool {
        matches!(self.prepared, Some(Prepared::Int8(_)))
    }

    /// # Shapes
    /// - x: `[..., input]`
    /// - output: `[..., output]`
    ///
    /// # Examples
    ///
    /// ```
    /// use burn::module::Param;
    /// use burn::tensor::{Device, Tensor};
    /// use vitrine_models::linear::Linear;
    ///
    /// let device = Device::default();
    /// let mut layer = Linear::new(2, 3, true, &device); // its bias is zero
    /// layer.weight = Param::from_tensor(Tensor::from_floats([[1.0, 2.0, 3.0], [10.0, 20.0, 30.0]], &device));
    /// let y = layer.forward(Tensor::<2>::from_floats([[1.0, 1.0], [2.0, -1.0]], &device));
    /// assert_eq!(y.into_data().try_into_vec_as::<f32>()?, [11.0, 22.0, 33.0, -8.0, -16.0, -24.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        self.forward_with(x, self.bias.as_ref().map(Param::val))
    }

    /// [`Self::forward`] with another bias, `[output]`.
    pub(crate) fn forward_with<const D: usize>(&self, x: Tensor<D>, bias: Option<Tensor<1>>) -> Tensor<D> {
        let prepared = self.prepared().and_then(|weight| weight.forward(&x, bias.clone(), false));
        prepared.unwrap_or_else(|| vitrine_kernels::linear(x, self.weight.val(), bias))
    }

    /// [`Self::forward_with`] for some of the outputs.
    pub(crate) fn forward_part<const D: usize>(
        &self,
        x: Tensor<D>,
        bias: Option<Tensor<1>>,
        outputs: Range<usize>,
    ) -> Tensor<D> {
        let prepared = self.prepared().map(|weight| weight.outputs(outputs.clone()));
        let prepared = prepared.and_then(|weight| weight.forward(&x, bias.clone(), false));
        let weight = || self.weight.val().narrow(1, outputs.start, outputs.len());
        prepared.unwrap_or_else(|| vitrine_kernels::linear(x, weight(), bias))
    }

    /// [`Self::forward`] followed by GELU, in one pass on the CPU.
    pub fn forward_gelu<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        let bias = self.bias.as_ref().map(Param::val);
        let prepared = self.prepared().and_then(|weight| weight.forward(&x, bias.clone(), true));
        prepared.unwrap_or_else(|| vitrine_kernels::linear_gelu(x, self.weight.val(), bias))
    }

    /// [`Self::forward`] as operators; `name` is the name of the layer.
    pub(crate) fn trace(&self, graph: &mut Graph, name: &str, x: &Value) -> Value {
        graph.linear(name, x, self.weight.val(), self.bias.as_ref().map(Param::val))
    }
}

/// A parameter that is drawn at its first use from a normal distribution, truncated to [-2, 2].
pub(crate) fn normal<const D: usize>(shape: [usize; D], deviation: f64, device: &Device) -> Param<Tensor<D>> {
    lazy(shape, device, move |device| {
        Tensor::random(shape, Distribution::Normal(0.0, deviation), device).clamp(-2.0, 2.0)
    })
}

/// A parameter that is drawn at its first use from a uniform distribution between `-bound` and `bound`.
pub(crate) fn uniform<const D: usize>(shape: [usize; D], bound: f64, device: &Device) -> Param<Tensor<D>> {
    lazy(shape, device, move |device| Tensor::random(shape, Distribution::Uniform(-bound, bound), device))
}

/// A parameter whose elements all start with this value.
pub(crate) fn constant<const D: usize>(shape: [usize; D], value: f64, device: &Device) -> Param<Tensor<D>> {
    lazy(shape, device, move |device| Tensor::full(shape, value, device))
}

/// A parameter that is drawn when something reads it.
pub(crate) fn lazy<const D: usize>(
    shape: [usize; D],
    device: &Device,
    draw: impl Fn(&Device) -> Tensor<D> + Send + Sync + 'static,
) -> Param<Tensor<D>> {
    Param::uninitialized(
        ParamId::new(),
        move |device, require_grad| {
            let value = draw(device);
            if require_grad { value.require_grad() } else { value }
        },
        device.clone(),
        true,
        shape.into(),
    )
}
