#![allow(clippy::unwrap_used)]
use super::*;

/// Features of `images` images of three classes around the corners of a triangle, and their labels.
fn triangle(images: usize, noise: f32) -> (Vec<f32>, Vec<usize>) {
    let labels: Vec<usize> = (0..images).map(|image| image % 3).collect();
    let wave = |number: usize| (number as f32 * 12.9898).sin() * noise;
    let features = labels.iter().enumerate().flat_map(|(image, &label)| {
        let corner = [[2.0, 0.0], [-1.0, 1.7], [-1.0, -1.7]][label];
        [corner[0] + wave(2 * image), corner[1] + wave(2 * image + 1), wave(image * 7 + 3)]
    });
    (features.collect(), labels)
}

/// The mean loss, and the gradient's largest component by finite differences, of a head's objective.
fn slope_at(head: &LinearHead, samples: &Samples<'_>, weights: &[f64], strength: f64) -> f64 {
    let objective = |weight: &[f64], bias: &[f64]| {
        let penalty: f64 = weight.iter().map(|value| 0.5 * value * value).sum();
        let losses: f64 = (0..samples.len())
            .map(|image| {
                let logits: Vec<f64> = weight
                    .chunks_exact(samples.width())
                    .zip(bias)
                    .map(|(row, bias)| {
                        bias + row.iter().zip(samples.row(image)).map(|(w, x)| w * f64::from(*x)).sum::<f64>()
                    })
                    .collect();
                let label = samples.labels()[image];
                weights[label] * (logits.iter().map(|logit| logit.exp()).sum::<f64>().ln() - logits[label])
            })
            .sum();
        strength * losses + penalty
    };
    let wide = |values: &[f32]| values.iter().map(|value| f64::from(*value)).collect::<Vec<f64>>();
    let (weight, bias) = (wide(&head.weight), wide(&head.bias));
    let step = 1e-4;
    let mut largest: f64 = 0.0;
    for place in 0..weight.len() + bias.len() {
        let at = |change: f64| {
            let (mut weight, mut bias) = (weight.clone(), bias.clone());
            let length = weight.len();
            *(if place < length { &mut weight[place] } else { &mut bias[place - length] }) += change;
            objective(&weight, &bias)
        };
        largest = largest.max(((at(step) - at(-step)) / (2.0 * step)).abs());
    }
    largest
}

#[test]
fn the_fit_is_where_the_objective_has_no_slope() {
    let (features, labels) = triangle(60, 2.0);
    let samples = Samples::new(&features, &labels, 3);
    for weights in [[1.0; 3], [0.5, 1.0, 3.0]] {
        for strength in [0.01, 1.0, 100.0] {
            let (head, convergence) = logistic_regression(&samples, &weights, strength, None, &|| false);
            assert!(convergence.converged);
            let slope = slope_at(&head, &samples, &weights, strength) / (strength * 60.0);
            assert!(slope < 1e-5, "{strength}: {slope}");
        }
    }
}

#[test]
fn an_offset_of_the_features_changes_only_the_bias() {
    let (features, labels) = triangle(60, 2.0);
    let moved: Vec<f32> = features.iter().map(|value| value + 100.0).collect();
    let head = |features: &[f32]| {
        logistic_regression(&Samples::new(features, &labels, 3), &[1.0; 3], 1.0, None, &|| false).0
    };
    let (of_usual, of_moved) = (head(&features), head(&moved));
    let close = |a: &[f32], b: &[f32], error: f32| {
        assert!(a.iter().zip(b).all(|(a, b)| (a - b).abs() < error), "{of_usual:?} {of_moved:?}");
    };
    close(&of_usual.weight, &of_moved.weight, 1e-4);
    // The biases differ by a hundred times the sums of the weights, and the weights are rounded.
    close(&of_usual.logits(&features), &of_moved.logits(&moved), 1e-3);
}

#[test]
fn many_classes_images_and_features_are_fitted_across_all_blocks() {
    // More images than a block, more features than a part of the gradient and of the factor, and a number of classes that is no
    // multiple of vectors.
    let (images, width, classes) = (2_300, 197, 7);
    let labels: Vec<usize> = (0..images).map(|image| image * 5 % classes).collect();
    let noise = |number: usize| ((number * number) as f32 * 12.9898).sin();
    let features: Vec<f32> = (0..images * width)
        .map(|place| {
            let (image, feature) = (place / width, place % width);
            noise(place) + if feature % classes == labels[image] { 0.3 } else { 0.0 }
        })
        .collect();
    let samples = Samples::new(&features, &labels, classes);
    let (head, convergence) = logistic_regression(&samples, &vec![1.0; classes], 0.01, None, &|| false);
    assert!(convergence.converged && convergence.steps < 60, "{convergence:?}");
    let logits = head.logits(&features);
    // At the minimum, the probabilities of each class sum to its number of images, as the intercept is not penalized.
    let mut sums = vec![0.0; classes];
    for logits in logits.chunks_exact(classes) {
        let sum: f32 = logits.iter().map(|logit| logit.exp()).sum();
        sums.iter_mut().zip(logits).for_each(|(total, logit)| *total += logit.exp() / sum);
    }
    let mut sizes = vec![0.0; classes];
    labels.iter().for_each(|&label| sizes[label] += 1.0f32);
    assert!(sums.iter().zip(&sizes).all(|(sum, size)| (sum - size).abs() < 0.02), "{sums:?} {sizes:?}");
    // And the gradient by a weight is the penalty.
    for class in 0..classes {
        for feature in [0, 63, 64, 191, 192, 196] {
            let slope: f64 = (0..images)
                .map(|image| {
                    let logits = &logits[image * classes..][..classes];
                    let sum: f64 = logits.iter().map(|logit| f64::from(*logit).exp()).sum();
                    let probability = f64::from(logits[class]).exp() / sum;
                    let target = if labels[image] == class { 1.0 } else { 0.0 };
                    (probability - target) * f64::from(features[image * width + feature])
                })
                .sum();
            let weight = f64::from(head.weight[class * width + feature]);
            assert!((0.01 * slope + weight).abs() < 1e-4, "{class}, {feature}: {slope}, {weight}");
        }
    }
}

#[test]
fn features_that_are_all_equal_give_the_frequencies_of_the_classes() {
    let labels = [0, 0, 0, 0, 0, 0, 1, 1, 1];
    let features = [0.25f32; 27];
    let samples = Samples::new(&features, &labels, 2);
    let (head, _) = logistic_regression(&samples, &[1.0; 2], 1.0, None, &|| false);
    let logits = head.logits(&features[..3]);
    assert!((logits[0] - logits[1] - 2f32.ln()).abs() < 1e-4, "{logits:?}");
}
