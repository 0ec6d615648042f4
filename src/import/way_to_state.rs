//! How a user of `vitrine import` states a fact that the weights leave open.

use vitrine_models::weights::{Guess, OpenFact, UnknownArchitecture};

/// A guess with the way to state what was guessed.
pub(super) fn warning(guess: &Guess) -> String {
    let way = match guess.fact {
        OpenFact::NumHeads => "state them with `vitrine import --heads`",
        OpenFact::ImageSize => "state it with `vitrine import --image-size`",
        OpenFact::Window | OpenFact::NormEpsilon | OpenFact::Activation | OpenFact::Positions => {
            "state it in a configuration file (--config)"
        }
    };
    format!("{guess}: {way}")
}

/// An error with the way to state the fact that is missing, if there is one.
pub(super) fn error(error: UnknownArchitecture) -> anyhow::Error {
    let Some(fact) = error.open else { return error.into() };
    let way = match fact {
        OpenFact::NumHeads => {
            "state it with `vitrine import --heads`, or put the model's config.json next to the weights"
        }
        OpenFact::ImageSize => "state it with `vitrine import --image-size`",
        OpenFact::Window | OpenFact::NormEpsilon | OpenFact::Activation | OpenFact::Positions => {
            "put the model's config.json next to the weights, or name it (`vitrine import --config`)"
        }
    };
    anyhow::anyhow!("{error}: {way}")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use burn::tensor::Device;
    use vitrine_models::weights::{Facts, Layout, read_architecture, to_timm};
    use vitrine_models::{ModelConfig, preset};

    #[test]
    fn guesses_and_errors_name_the_option_that_states_the_fact() {
        let tensors = |config: &ModelConfig| to_timm(&config.init(&Device::default()).unwrap());
        let read =
            |config: &ModelConfig| read_architecture(&tensors(config), Layout::Timm, &Facts::default());
        let vit = preset::find("vit_tiny_patch4_32").unwrap();
        let warning = super::warning(&read(&vit).unwrap().guesses[0]);
        assert!(warning.contains("heads are guessed") && warning.contains("--heads"), "{warning}");
        let odd = ModelConfig { embed_dim: 60, num_heads: 5.into(), depth: 2.into(), ..vit };
        let swin = preset::find("swinv2_tiny_window8_256").unwrap();
        for (config, option) in [(odd, "--heads"), (swin, "--config")] {
            let error = super::error(read(&config).unwrap_err()).to_string();
            assert!(error.contains(option), "{error}");
        }
    }
}
