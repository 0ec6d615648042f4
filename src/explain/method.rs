//! The methods: what a map says, and which models it suits.

use clap::ValueEnum;
use vitrine_models::{NoMap, Pool, VisionTransformer};

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
    /// The weights by which a pooling with weights of its own reads the patches: learned queries, or a query per class.
    Pooling,
    /// Grad-CAM at the input of the last block, for any architecture (Selvaraju et al. 2017).
    #[value(alias = "grad_cam")]
    GradCam,
    /// The logit of the class at each patch: the head applied to the patch alone, without pooling.
    #[value(alias = "patch_logits")]
    PatchLogits,
}

impl Method {
    /// All methods.
    pub const ALL: [Self; 6] = [
        Self::Attention,
        Self::Rollout,
        Self::GradientAttention,
        Self::Pooling,
        Self::GradCam,
        Self::PatchLogits,
    ];

    /// The name on the command line and in the names of files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Attention => "attention",
            Self::Rollout => "rollout",
            Self::GradientAttention => "gradient-attention",
            Self::Pooling => "pooling",
            Self::GradCam => "grad-cam",
            Self::PatchLogits => "patch-logits",
        }
    }

    /// What a large value means.
    pub fn meaning(self) -> &'static str {
        match self {
            Self::Attention => {
                "the share of a block's attention that goes to the patch: that of the class token, or of all patches on \
                 average in a model without one, or half of each where the head reads both. It does not depend on the class."
            }
            Self::Rollout => {
                "the share of the final tokens that comes from the patch, if attention and residual connections carry it \
                 in equal parts. It does not depend on the class."
            }
            Self::GradientAttention => {
                "attention to the patch, over all blocks, that raises the logit of the class (positive part of gradient times \
                 attention)."
            }
            Self::Pooling => {
                "the share of the patch in what the pooling reads. With a query per class, it is what the query of the class \
                 reads in its last layer; other poolings read the same for all classes, and the mean over queries or steps is \
                 shown."
            }
            Self::GradCam => {
                "the patch, at the input of the last block, has the features that raise the logit of the class. What the head reads of \
                 an earlier block is left out."
            }
            Self::PatchLogits => {
                "the logit of the class if the patch alone were pooled. Where the head reads the class token alone, it was trained \
                 on that token and not on patches, and where it reads both, the token is that of the whole image: compare places \
                 rather than values."
            }
        }
    }

    /// Whether the map of a model is about a class. The others are the same for all classes.
    pub fn is_about_class(self, model: &VisionTransformer) -> bool {
        match self {
            Self::Attention | Self::Rollout => false,
            Self::Pooling => matches!(model.config().pool, Pool::ClassQueries { .. }),
            Self::GradientAttention | Self::GradCam | Self::PatchLogits => true,
        }
    }

    /// Whether the map has a layer for each head, if they are asked for.
    pub fn has_heads(self) -> bool {
        match self {
            Self::Attention | Self::Pooling => true,
            Self::Rollout | Self::GradientAttention | Self::GradCam | Self::PatchLogits => false,
        }
    }

    /// Whether the model has such a map, and if not, why.
    fn suits(self, model: &VisionTransformer) -> Result<(), NoMap> {
        match self {
            Self::Attention | Self::Rollout | Self::GradientAttention => {
                model.check_attention_among_patches()
            }
            Self::Pooling => model.check_pooling_weighs_patches(),
            Self::GradCam | Self::PatchLogits => Ok(()),
        }
    }

    /// Checks that the method means something for the model.
    ///
    /// # Errors
    /// If it does not; the message says why, and which methods do.
    pub fn check(self, model: &VisionTransformer) -> anyhow::Result<()> {
        self.suits(model).map_err(|reason| {
            let others: Vec<&str> = Self::suitable(model).into_iter().map(Self::name).collect();
            let others = others.join(", ");
            let message = format!(
                "--method {} does not suit this model: {reason}; these methods do: {others}",
                self.name()
            );
            UsageError::new(message).into()
        })
    }

    /// The methods that mean something for the model.
    pub fn suitable(model: &VisionTransformer) -> Vec<Self> {
        Self::ALL.into_iter().filter(|method| method.suits(model).is_ok()).collect()
    }

    /// The methods for a model if the user names none: those that are about the class and computed from gradients.
    pub fn by_default(model: &VisionTransformer) -> Vec<Self> {
        let of_gradients = [Self::GradCam, Self::GradientAttention];
        let suitable = Self::suitable(model);
        of_gradients.into_iter().filter(|method| suitable.contains(method)).collect()
    }
}
