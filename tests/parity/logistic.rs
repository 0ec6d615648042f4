//! Logistic regression against scikit-learn's: coefficients and probabilities on the same features with the same `C`.

use vitrine_datasets::{ClassSizes, ImageSource, Sample};
use vitrine_models::linear_probe::{Samples, logistic_regression};

use super::reference::{arrays, assert_close};

/// The weights of `class_weight="balanced"`.
fn balanced(labels: &[usize], classes: usize) -> Vec<f64> {
    let source = ImageSource::Drawn { class: 0, seed: 0 };
    let samples: Vec<Sample> =
        labels.iter().map(|&label| Sample { labels: label.into(), source: source.clone() }).collect();
    ClassSizes::of(&samples, classes).balanced_weights().into_iter().map(f64::from).collect()
}

/// The probabilities of rows of logits.
fn softmax(logits: &[f32], classes: usize) -> Vec<f32> {
    let of_row = |row: &[f32]| {
        let powers: Vec<f64> = row.iter().map(|&logit| f64::from(logit - row[0]).exp()).collect();
        let sum: f64 = powers.iter().sum();
        powers.into_iter().map(move |power| (power / sum) as f32)
    };
    logits.chunks_exact(classes).flat_map(of_row).collect()
}

#[test]
fn logistic_regression_is_that_of_scikit_learn() {
    let io = arrays("logistic", "io.safetensors");
    for classes in [2, 5] {
        let features = &io[&format!("{classes}.features")].values;
        let labels: Vec<usize> =
            io[&format!("{classes}.labels")].values.iter().map(|&label| label as usize).collect();
        let samples = Samples::new(features, &labels, classes);
        for strength in [0.01, 1.0, 100.0] {
            for (name, weights) in [("plain", vec![1.0; classes]), ("balanced", balanced(&labels, classes))] {
                let (head, convergence) = logistic_regression(&samples, &weights, strength, None, &|| false);
                assert!(convergence.converged, "{convergence:?}");
                let case = format!("{classes}.{strength}.{name}");
                let expected = |part: &str| &io[&format!("{case}.{part}")].values;
                let found = softmax(&head.logits(features), classes);
                assert_close(&format!("{case}.probabilities"), &found, expected("probabilities"), 1e-4);
                // For two classes scikit-learn has one row: the difference of both.
                let (weight, bias) = match classes {
                    2 => {
                        let [first, second] = [&head.weight[..12], &head.weight[12..]];
                        (
                            second.iter().zip(first).map(|(b, a)| b - a).collect(),
                            vec![head.bias[1] - head.bias[0]],
                        )
                    }
                    _ => (head.weight.clone(), head.bias.clone()),
                };
                assert_close(&format!("{case}.weight"), &weight, expected("weight"), 1e-4);
                assert_close(&format!("{case}.bias"), &bias, expected("bias"), 1e-4);
            }
        }
    }
}
