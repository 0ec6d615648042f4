//! Forms of the weights for inference: of eight bits, and laid out as the products of the CPU read them.

use super::VisionTransformer;
use crate::attention::TokenMixer;
use crate::linear::Linear;
use crate::stage::Stage;

impl VisionTransformer {
    /// The model for inference with weights of eight bits: each weight of an attention's projections, of an MLP, of a patch merging, and of
    /// a convolution that does not read the image is rounded to a multiple of its output channel's scale
    /// ([`vitrine_kernels::round_to_int8`]). Where the device has products of bytes (the CPU with flex, if it has AVX512-VNNI), these layers use
    /// them, with activations of eight bits; elsewhere they compute with the rounded weights in floating point, as they do for gradients.
    ///
    /// A second time, this changes nothing. Parameters that are replaced afterwards have no effect on the products of bytes.
    ///
    /// # Examples
    ///
    /// ```
    /// use burn::tensor::{Device, Distribution, Tensor, Tolerance};
    /// use vitrine_models::preset;
    ///
    /// let device = Device::default();
    /// let model = preset::find("vit_pico_patch4_32").expect("listed").init(&device)?;
    /// let images = Tensor::<4>::random([3, 3, 32, 32], Distribution::Default, &device);
    /// let (exact, rounded) = (model.forward(images.clone()), model.quantized().forward(images));
    /// exact.into_data().assert_approx_eq::<f32>(&rounded.into_data(), Tolerance::absolute(0.05));
    /// # Ok::<(), vitrine_models::ConfigError>(())
    /// ```
    pub fn quantized(mut self) -> Self {
        self.patch_embed.quantize();
        self.stages.iter_mut().flat_map(Stage::linear_layers).for_each(Linear::quantize);
        self.is_quantized = true;
        self
    }

    /// The model for inference, with the biases of relative positions computed once, and the weights of its linear layers laid out as this
    /// CPU's products read them, where they have a use for it ([`vitrine_kernels::PackedWeight`]). A weight in this layout takes the place of the parameter. Something else that reads the
    /// parameter, such as an export or training, makes it again, and the layer then uses that.
    ///
    /// Outputs may differ from those without it in the last bits. A second time, this changes nothing.
    pub fn packed(mut self) -> Self {
        self.stages.iter_mut().flat_map(Stage::mixers).for_each(TokenMixer::fix_bias);
        self.linear_layers().for_each(Linear::pack);
        self
    }

    /// The model with all of its parameters in memory, for training, if it was [packed](Self::packed).
    pub fn unpacked(mut self) -> Self {
        self.stages.iter_mut().flat_map(Stage::mixers).for_each(TokenMixer::release_bias);
        self.linear_layers().for_each(Linear::unpack);
        self
    }

    /// The layers that map all patches or all tokens.
    pub(super) fn linear_layers(&mut self) -> impl Iterator<Item = &mut Linear> {
        let of_patches = self.patch_embed.linear_layer().into_iter();
        of_patches.chain(self.stages.iter_mut().flat_map(Stage::linear_layers))
    }

    /// Whether the model is [quantized](Self::quantized).
    pub fn is_quantized(&self) -> bool {
        self.is_quantized
    }
}
