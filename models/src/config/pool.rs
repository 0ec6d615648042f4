//! The choice of pooling.

use serde::{Deserialize, Serialize};

/// The pooling, which combines the tokens into the input of the head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Pool {
    /// The class token, after the final norm.
    #[default]
    ClassToken,
    /// The mean of the patches. A plain model normalizes the mean (timm's `avg` with `fc_norm`). A model of stages
    /// normalizes the tokens before it computes the mean.
    Mean,
    /// The mean of the patches of a plain model after its final norm (timm's `avg` without `fc_norm`; transformers'
    /// classifier of SigLIP).
    NormalizedMean,
    /// The class token and, concatenated with it, the mean of the patches, both after the final norm (transformers'
    /// classifier of DINOv2).
    ClassTokenMean,
    /// The class token (if the model has one) and the mean of the patches after the last block, and the mean of the patches after block
    /// number `early`, all after the final norm, concatenated: an earlier block knows less of the task that a backbone was trained for,
    /// and may tell more about images of another kind (linear classifiers on several blocks: Oquab et al. 2024, DINOv2, appendix B.3;
    /// Evci et al. 2022, Head2Toe).
    TwoDepths {
        /// The number of blocks before the earlier mean, at least 1 and less than `depth`.
        early: usize,
    },
    /// The mean of the patches, weighted by a softmax over learned scores (Hassani et al. 2021, section 3.2).
    Sequence,
    /// Attention of a learned query to the patches, then a residual MLP (Zhai et al. 2022, 'Scaling Vision
    /// Transformers'; SigLIP).
    Attention,
    /// Attention of this many learned queries to the patches, whose results are concatenated (after Lee et al. 2019,
    /// 'Set Transformer', section 3.2).
    Queries(usize),
    /// A query that reads the patches several times: a GRU cell updates it with each answer (Bahdanau et al. 2015,
    /// appendix A.2.2; Xu et al. 2015, 'Show, Attend and Tell', section 3.1).
    Recurrent {
        /// How many times the patches are read.
        steps: usize,
    },
    /// A decoder with one learned query per class, whose logit is computed from that query alone (Vaswani et al. 2017,
    /// section 3.1; Liu et al. 2021, Query2Label, section 3.2).
    ClassQueries {
        /// The number of layers, each with attention among queries, attention to the patches, and an MLP.
        depth: usize,
    },
}

impl Pool {
    /// Every kind of pooling, with an example for each number.
    pub const EXAMPLES: &[Self] = &[
        Self::ClassToken,
        Self::Mean,
        Self::NormalizedMean,
        Self::ClassTokenMean,
        Self::TwoDepths { early: 1 },
        Self::Sequence,
        Self::Attention,
        Self::Queries(4),
        Self::Recurrent { steps: 4 },
        Self::ClassQueries { depth: 2 },
    ];

    /// Whether the pooling reads the class token.
    pub(crate) fn reads_class_token(self) -> bool {
        match self {
            Self::ClassToken | Self::ClassTokenMean => true,
            Self::Mean
            | Self::NormalizedMean
            | Self::TwoDepths { .. }
            | Self::Sequence
            | Self::Attention
            | Self::Queries(_)
            | Self::Recurrent { .. }
            | Self::ClassQueries { .. } => false,
        }
    }

    /// Whether the pooling reads the class token of a model that has one, and the patches.
    pub(crate) fn reads_class_token_and_patches(self) -> bool {
        matches!(self, Self::ClassTokenMean | Self::TwoDepths { .. })
    }

    /// Whether queries attend to the patches, so that there is a score to choose.
    pub fn attends(self) -> bool {
        match self {
            Self::ClassToken
            | Self::Mean
            | Self::NormalizedMean
            | Self::ClassTokenMean
            | Self::TwoDepths { .. }
            | Self::Sequence => false,
            Self::Attention | Self::Queries(_) | Self::Recurrent { .. } | Self::ClassQueries { .. } => true,
        }
    }
}
