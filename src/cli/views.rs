//! The options for test-time augmentation, which several commands have.

use clap::Args;

use crate::predict::Views;

/// The views of each image that the model is asked about.
#[derive(Args, Clone, Copy, Debug)]
pub(super) struct ViewArgs {
    /// Test-time augmentation: average the logits of each image and its mirror image, which takes twice the time. Models for
    /// which validation has shown that it helps do so in any case.
    #[arg(long, conflicts_with = "no_tta")]
    tta: bool,
    /// Ask the model about each image as it is, even if validation has shown that mirror images help.
    #[arg(long)]
    no_tta: bool,
}

impl ViewArgs {
    /// The stated views; `None` leaves the choice to the model file.
    pub(super) fn stated(self) -> Option<Views> {
        match self {
            Self { tta: true, .. } => Some(Views::Mirrored),
            Self { no_tta: true, .. } => Some(Views::One),
            Self { tta: false, no_tta: false } => None,
        }
    }
}
