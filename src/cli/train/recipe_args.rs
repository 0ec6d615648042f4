//! The options of `vitrine train` that replace values of the recipe, with their help and bounds.
//!
//! To add one, give [`RecipeOverrides`] a field, and [`RecipeArgs`] the field and its line in
//! [`RecipeArgs::overrides`]. An option whose value is chosen from a list, such as `--optimizer`, has an enum that
//! derives `ValueEnum`. It needs an arm in the test below, with a value other than the default.

use std::time::Duration;

use clap::Args;

use crate::bounds;
use crate::cli::aliases;
use crate::cli::within::within;
use crate::recipe::{AskedLength, Freeze, Metric, Optimizer, Precision, RecipeOverrides};

/// The options that replace values of the recipe.
#[derive(Args, Clone, Debug, Default, PartialEq)]
pub(super) struct RecipeArgs {
    /// Freeze part of the pretrained model: the first N blocks, or backbone (everything but the head: a linear probe). Each
    /// image then goes through the backbone once, and the head is fitted to the features, unless an option such as
    /// --epochs or --recipe asks for training by steps on augmented images.
    #[arg(long, value_name = "backbone|N", requires = "pretrained")]
    pub(super) freeze: Option<Freeze>,
    /// Multiply the learning rate by this for each block from the head toward the input.
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = within(bounds::FACTOR))]
    pub(super) layer_decay: Option<f64>,
    /// Images per step.
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = within(bounds::BATCH_SIZE), aliases = aliases::BATCH_SIZE)]
    pub(super) batch_size: Option<usize>,
    /// Sum the gradients of this many batches for each update, as one batch of all their images would have them: the batches are those
    /// that --workers share.
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = within(bounds::BATCH_SIZE))]
    pub(super) accumulate: Option<usize>,
    /// Peak learning rate.
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = within(bounds::LEARNING_RATE), alias = "lr")]
    pub(super) learning_rate: Option<f64>,
    /// How gradients become updates: adamw, or muon for the matrices of hidden layers and adamw for the rest.
    #[arg(long, value_enum, value_name = "NAME")]
    pub(super) optimizer: Option<Optimizer>,
    /// Weight decay.
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = within(bounds::NOT_NEGATIVE), alias = "wd")]
    pub(super) weight_decay: Option<f64>,
    /// Validation result that chooses the best epoch and that --patience waits for; by default accuracy.
    #[arg(long, value_name = "METRIC", value_enum)]
    pub(super) metric: Option<Metric>,
    /// Stop after this many epochs without a better validation result.
    #[arg(long, value_name = "EPOCHS", allow_negative_numbers = true, value_parser = within(bounds::EPOCHS))]
    pub(super) patience: Option<usize>,
    /// Fail if more than this share of a split's images is unreadable; up to five are tolerated where they are at most a tenth, unless
    /// this is 0.
    #[arg(long, value_name = "SHARE", allow_negative_numbers = true, value_parser = within(bounds::SHARE))]
    pub(super) bad_file_limit: Option<f64>,
    /// Compute each block again in the backward pass instead of storing its activations: less memory, about a third
    /// more computation.
    #[arg(long)]
    pub(super) gradient_checkpointing: bool,
    /// Numbers that matrix products and convolutions multiply: bf16 rounds them to bfloat16, which is faster on processors with AVX512-BF16,
    /// and what these do by default if --time alone says the length; otherwise f32.
    #[arg(long, value_enum, value_name = "NAME")]
    pub(super) precision: Option<Precision>,
    /// Multiply the loss of an image by a weight for its class, the larger the rarer it is: all classes count the same
    /// together.
    #[arg(long, conflicts_with = "balanced_sampling")]
    pub(super) class_weights: bool,
    /// Draw from all classes equally often, however many images they have.
    #[arg(long)]
    pub(super) balanced_sampling: bool,
    /// Mirror half of the images from the beginning on. By default, images of folders, manifests and archives are
    /// mirrored only once validation has shown that mirror images are recognized, too. With --freeze backbone, the head is fitted to
    /// each image and to its mirror image, which takes twice the time.
    #[arg(long, conflicts_with = "no_flips")]
    pub(super) flips: bool,
    /// Mirror no images: where left and right make a difference, such as in letters and signs. The finished model is then asked without
    /// mirror images, too.
    #[arg(long)]
    pub(super) no_flips: bool,
    /// Ask the finished model about each image as it is, not also about its mirror image and shifts if these recognize more validation
    /// images.
    #[arg(long)]
    pub(super) no_tta: bool,
}

impl RecipeArgs {
    /// The values that were stated.
    pub(super) fn overrides(&self) -> RecipeOverrides {
        // Without `..`, so that the compiler names a field that is missing here.
        let Self {
            freeze,
            layer_decay,
            batch_size,
            accumulate,
            learning_rate,
            optimizer,
            weight_decay,
            metric,
            patience,
            bad_file_limit,
            gradient_checkpointing,
            precision,
            class_weights,
            balanced_sampling,
            flips,
            no_flips,
            no_tta,
        } = self.clone();
        RecipeOverrides {
            freeze,
            layer_decay,
            batch_size,
            accumulate,
            learning_rate,
            optimizer,
            weight_decay,
            metric,
            patience,
            bad_file_limit,
            gradient_checkpointing,
            precision,
            class_weights,
            balanced_sampling,
            flips: (flips || no_flips).then_some(flips),
            one_view: no_tta,
        }
    }
}

/// The options for the length of a run, which may also be stated to lengthen a resumed run.
#[derive(Args, Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct LengthArgs {
    /// Passes over the training images.
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = within(bounds::EPOCHS), alias = "epoch")]
    pub(super) epochs: Option<usize>,
    /// Length of the run (of each with --seeds or --folds), such as 90s, 30m or 2h; the learning rate follows the
    /// clock. Such a run cannot be repeated bit for bit.
    #[arg(long, value_name = "TIME", value_parser = time, allow_hyphen_values = true)]
    pub(super) time: Option<Duration>,
}

impl LengthArgs {
    /// The length that was stated.
    pub(super) fn length(self) -> AskedLength {
        AskedLength { epochs: self.epochs, seconds: self.time.map(|time| time.as_secs_f64()) }
    }
}

/// A value parser for a duration such as `30m`.
fn time(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(_) if text.contains('M') => Err("M stands for months; write 30m for minutes".to_owned()),
        Ok(time) if !bounds::SECONDS.contain(time.as_secs_f64()) => {
            Err(format!("it must be a number of seconds that is {}", bounds::SECONDS))
        }
        Ok(time) => Ok(time),
        Err(error) => Err(format!("{error}; write 90s, 30m or 2h")),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::recipe::Recipe;
    use clap::{CommandFactory, FromArgMatches, Parser};

    #[derive(Parser)]
    struct Program {
        #[arg(long)]
        pretrained: Option<String>,
        #[command(flatten)]
        options: RecipeArgs,
        #[command(flatten)]
        length: LengthArgs,
    }

    /// A recipe after the options in `arguments` have replaced values of it.
    fn applied(arguments: &[&str]) -> Recipe {
        let matches = Program::command().try_get_matches_from([&["program"], arguments].concat()).unwrap();
        let program = Program::from_arg_matches(&matches).unwrap();
        assert!(program.pretrained.is_none() || arguments.contains(&"--pretrained"));
        let mut recipe =
            Recipe { epochs: Some(9), judge_flips: true, mirror_views: true, ..Recipe::default() };
        recipe.augmentation.horizontal_flip = 0.25;
        program.options.overrides().apply(&mut recipe);
        program.length.length().apply(&mut recipe);
        recipe
    }

    #[test]
    fn every_option_changes_its_own_key_and_no_other() {
        let unchanged = serde_json::to_value(applied(&[])).unwrap();
        for option in Program::command().get_arguments().map(|argument| argument.get_long().unwrap()) {
            let arguments: &[&str] = match option {
                "pretrained" | "resume" => continue,
                "freeze" => &["--freeze", "3", "--pretrained", "weights"],
                "optimizer" => &["--optimizer", "muon"],
                "metric" => &["--metric", "macro-f1"],
                "precision" => &["--precision", "bf16"],
                "layer-decay" => &["--layer-decay", "0.5"],
                "gradient-checkpointing"
                | "class-weights"
                | "balanced-sampling"
                | "flips"
                | "no-flips"
                | "no-tta" => &[&format!("--{option}")],
                "time" => &["--time", "90s", "--epochs", "9"],
                "learning-rate" | "weight-decay" | "bad-file-limit" => &[&format!("--{option}"), "0.125"],
                _ => &[&format!("--{option}"), "7"],
            };
            let mut changed = serde_json::to_value(applied(arguments)).unwrap();
            let key = match option {
                "time" => "time_seconds".to_owned(),
                // Either option also turns `judge_flips` off.
                "flips" | "no-flips" => {
                    assert!(changed["judge_flips"].take().is_null());
                    changed["judge_flips"] = unchanged["judge_flips"].clone();
                    // Without flips there are no mirror images to ask about.
                    assert_eq!(changed["mirror_views"].is_null(), option == "no-flips");
                    changed["mirror_views"] = unchanged["mirror_views"].clone();
                    "augmentation".to_owned()
                }
                "no-tta" => "mirror_views".to_owned(),
                _ => option.replace('-', "_"),
            };
            if option == "flips" {
                assert_eq!(changed[&key], unchanged[&key], "the recipe's own share of images stays");
                continue;
            }
            assert_ne!(changed[&key], unchanged[&key], "{option}");
            changed[&key] = unchanged[&key].clone();
            // An optional key that is missing in `unchanged` has just become null in `changed`.
            changed.as_object_mut().unwrap().retain(|_, value| !value.is_null());
            assert_eq!(changed, unchanged, "{option}");
        }
    }

    #[test]
    fn flips_are_turned_on_and_off() {
        let share = |arguments: &[&str]| applied(arguments).augmentation.horizontal_flip;
        assert_eq!([share(&[]), share(&["--flips"]), share(&["--no-flips"])], [0.25, 0.25, 0.0]);
        let mut gray = Recipe::default();
        RecipeOverrides { flips: Some(true), ..RecipeOverrides::default() }.apply(&mut gray);
        assert_eq!(gray.augmentation.horizontal_flip, 0.5, "--flips adds flips to a recipe that has none");
        let both = ["program", "--flips", "--no-flips"];
        assert!(Program::command().try_get_matches_from(both).is_err());
    }

    #[test]
    fn time_replaces_the_epochs_of_the_recipe_but_not_those_of_an_option() {
        let recipe = applied(&["--time", "2m"]);
        assert_eq!((recipe.epochs, recipe.time_seconds), (None, Some(120.0)));
        let recipe = applied(&["--time", "2m", "--epochs", "4"]);
        assert_eq!((recipe.epochs, recipe.time_seconds), (Some(4), Some(120.0)));
        assert!(time("30M").unwrap_err().contains("write 30m for minutes"));
    }
}
