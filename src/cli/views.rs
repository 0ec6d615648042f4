//! The options for test-time augmentation, which several commands have.

use clap::{Args, ValueEnum};

use crate::predict::Views;

/// The views of each image that the model is asked about.
#[derive(Args, Clone, Copy, Debug)]
pub(super) struct ViewArgs {
    /// Test-time augmentation: average the logits of several views of each image, by default of the image and its mirror image. Models
    /// for which validation has shown that more views help do so in any case.
    #[arg(
        long,
        value_name = "VIEWS",
        value_enum,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "mirror",
        conflicts_with = "no_tta"
    )]
    tta: Option<Augmented>,
    /// Ask the model about each image as it is, even if validation has shown that more views help.
    #[arg(long)]
    no_tta: bool,
}

/// The views that are added to the image as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Augmented {
    /// Its mirror image, in twice the time.
    Mirror,
    /// In place of the image two shifts of it, by a 32nd of its sides, in twice the time.
    Shifts,
    /// Two shifts of the image and of its mirror image, in four times the time.
    All,
}

impl ViewArgs {
    /// The stated views; `None` leaves the choice to the model file.
    pub(super) fn stated(self) -> Option<Views> {
        let of = |augmented| match augmented {
            Augmented::Mirror => Views::Mirrored,
            Augmented::Shifts => Views::Shifted,
            Augmented::All => Views::ShiftedMirrored,
        };
        if self.no_tta { Some(Views::One) } else { self.tta.map(of) }
    }
}

/// The option that asks about these views; `None` for one view.
pub(super) fn option(views: Views) -> Option<&'static str> {
    match views {
        Views::One | Views::MirrorImage => None,
        Views::Mirrored => Some("--tta"),
        Views::Shifted => Some("--tta=shifts"),
        Views::ShiftedMirrored => Some("--tta=all"),
    }
}
