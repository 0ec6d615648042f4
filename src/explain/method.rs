//! The methods: what a map says, and which models it suits.

use anyhow::Result;
use clap::ValueEnum;
use vitrine_models::VisionTransformer;

use crate::usage::UsageError;

/// How the map of an image is computed. `vitrine_models::VisionTransformer` has a method of the same name for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Method {
    /// The attention weights of one block: those of the class token, or their mean over all patches.
    Attention,
    /// Attention rollout: the weights of all blocks, multiplied (Abnar and Zuidema 2020).
    Rollout,
    /// Attention weighted by the gradient of the class, accumulated over blocks (Chefer et al. 2021).
    #[value(alias = "gradient_attention")]
    GradientAttention,
    /// Grad-CAM at the input of the last block, for any architecture (Selvaraju et al. 2017).
    #[value(alias = "grad_cam")]
    GradCam,
    /// The logit of the class at each patch: the head applied to the patch alone, without pooling.
    #[value(alias = "patch_logits")]
    PatchLogits,
}

impl Method {
    /// All methods.
    pub const ALL: [Self; 5] =
        [Self::Attention, Self::Rollout, Self::GradientAttention, Self::GradCam, Self::PatchLogits];

    /// The name on the command line and in the names of files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Attention => "attention",
            Self::Rollout => "rollout",
            Self::GradientAttention => "gradient-attention",
            Self::GradCam => "grad-cam",
            Self::PatchLogits => "patch-logits",
        }
    }

    /// What a large value means.
    pub fn meaning(self) -> &'static str {
        match self {
            Self::Attention => {
                "the share of a block's attention that goes to the patch: that of the class token, or of all patches on \
                 average in a model without one. It does not depend on the class."
            }
            Self::Rollout => {
                "the share of the final tokens that comes from the patch, if attention and residual connections carry it \
                 in equal parts. It does not depend on the class."
            }
            Self::GradientAttention => {
                "attention to the patch, over all blocks, that raises the logit of the class (positive part of gradient times \
                 attention)."
            }
            Self::GradCam => {
                "the patch, at the input of the last block, has the features that raise the logit of the class."
            }
            Self::PatchLogits => {
                "the logit of the class if the patch alone were pooled. In a model with a class token, the head was trained \
                 on that token and not on patches, so compare places rather than values."
            }
        }
    }

    /// Whether the map is about a class. The others are the same for all classes.
    pub fn is_about_class(self) -> bool {
        match self {
            Self::Attention | Self::Rollout => false,
            Self::GradientAttention | Self::GradCam | Self::PatchLogits => true,
        }
    }

    /// Whether the map is made of attention weights among all patches.
    fn reads_attention(self) -> bool {
        match self {
            Self::Attention | Self::Rollout | Self::GradientAttention => true,
            Self::GradCam | Self::PatchLogits => false,
        }
    }

    /// Checks that the method means something for the model.
    ///
    /// # Errors
    /// If it does not; the message says why, and which methods do.
    pub fn check(self, model: &VisionTransformer) -> Result<()> {
        match model.check_attention_among_patches() {
            Err(reason) if self.reads_attention() => {
                let others: Vec<&str> = Self::suitable(model).into_iter().map(Self::name).collect();
                Err(UsageError::new(format!(
                    "--method {} does not suit this model: {reason}; these methods do: {}",
                    self.name(),
                    others.join(", ")
                ))
                .into())
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// The methods that mean something for the model.
    pub fn suitable(model: &VisionTransformer) -> Vec<Self> {
        let is_global = model.check_attention_among_patches().is_ok();
        Self::ALL.into_iter().filter(|method| is_global || !method.reads_attention()).collect()
    }

    /// The methods for a model if the user names none: those that are about the class and computed from gradients.
    pub fn by_default(model: &VisionTransformer) -> Vec<Self> {
        let of_gradients = [Self::GradCam, Self::GradientAttention];
        let suitable = Self::suitable(model);
        of_gradients.into_iter().filter(|method| suitable.contains(method)).collect()
    }
}
