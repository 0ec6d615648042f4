//! The classifier by the nearest class mean, for classes of very few images: a linear classifier whose logits are the
//! negative squared distances, less what is the same for all classes.

use super::linear_head::LinearHead;
use super::samples::{Samples, mean_of};

/// How many times lower than all other biases that of a class without images is.
const UNSEEN: f64 = 100.0;

/// The classifier of `rows` by the nearest class mean. The mean of a class has a logit that exceeds that of another class
/// by `margin`, averaged over all pairs of classes. A class without images is never the answer.
///
/// # Panics
/// If a row is not below the number of images.
pub fn nearest_mean(samples: &Samples<'_>, rows: &[usize], margin: f64) -> LinearHead {
    let width = samples.width();
    let mut of_class = vec![Vec::new(); samples.classes()];
    rows.iter().for_each(|&row| of_class[samples.labels()[row]].push(row));
    let mean_of_class = |of_class: &Vec<usize>| -> Option<Vec<f64>> {
        of_class.first()?;
        let mean = mean_of(of_class.iter().map(|&row| samples.row(row)), width);
        Some(mean.iter().zip(samples.mean()).map(|(value, mean)| value - mean).collect())
    };
    let means: Vec<Option<Vec<f64>>> = of_class.iter().map(mean_of_class).collect();
    let distance = half_square_distance(&means.iter().flatten().collect::<Vec<_>>());
    let factor = if distance > 0.0 { margin / distance } else { 1.0 };
    let biases = means.iter().map(|mean| mean.as_ref().map(|mean| -0.5 * factor * square(mean)));
    let lowest = biases.clone().flatten().fold(0.0, f64::min);
    // A class without images has no mean, and is never the nearest one.
    let bias: Vec<f64> = biases.map(|bias| bias.unwrap_or(UNSEEN * (lowest - margin))).collect();
    let none = vec![0.0; width];
    let weight: Vec<f64> =
        means.iter().flat_map(|mean| mean.as_ref().unwrap_or(&none)).map(|value| factor * value).collect();
    LinearHead::of_centered(&weight, &bias, samples.mean())
}

/// Half the squared distance of two different class means, averaged over all pairs.
fn half_square_distance(means: &[&Vec<f64>]) -> f64 {
    let classes = means.len().max(1) as f64;
    let width = means.first().map_or(0, |mean| mean.len());
    let center: Vec<f64> =
        (0..width).map(|place| means.iter().map(|mean| mean[place]).sum::<f64>() / classes).collect();
    let spread: f64 = means.iter().map(|mean| square(mean)).sum::<f64>() / classes - square(&center);
    spread * classes / (classes - 1.0).max(1.0)
}

fn square(vector: &[f64]) -> f64 {
    vector.iter().map(|value| value * value).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_get_the_class_of_the_nearest_mean_with_the_stated_margin() {
        // Means [0, 1], [4, 1] and [0, 9].
        let features = [-1.0, 1.0, 1.0, 1.0, 4.0, 1.0, 0.0, 9.0];
        let labels = [0, 0, 1, 2];
        let samples = Samples::new(&features, &labels, 3);
        let head = nearest_mean(&samples, &[0, 1, 2, 3], 4.0);
        let predicted = |x: [f32; 2]| {
            let logits = head.logits(&x);
            (0..3).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).expect("three classes")
        };
        assert_eq!([[1.9, 1.0], [2.1, 1.0], [0.0, 4.9], [0.0, 5.1]].map(predicted), [0, 1, 0, 2]);
        let mut margins = Vec::new();
        for (class, mean) in [[0.0, 1.0], [4.0, 1.0], [0.0, 9.0]].iter().enumerate() {
            let logits = head.logits(mean);
            margins.extend((0..3).filter(|&other| other != class).map(|other| logits[class] - logits[other]));
        }
        assert!((margins.iter().sum::<f32>() / 6.0 - 4.0).abs() < 1e-5, "{margins:?}");
    }

    #[test]
    fn a_class_without_images_is_never_the_nearest_and_changes_no_other_logit() {
        let features = [-1.0, 1.0, 1.0, 1.0, 4.0, 1.0, 0.0, 9.0];
        let labels = [0, 0, 1, 3];
        let head = nearest_mean(&Samples::new(&features, &labels, 4), &[0, 1, 2, 3], 4.0);
        let without = nearest_mean(&Samples::new(&features, &[0, 0, 1, 2], 3), &[0, 1, 2, 3], 4.0);
        for x in [[0.0, 1.0], [0.0, 0.0], [4.0, 1.0], [1.25, 3.0], [-5.0, -5.0], [20.0, 20.0]] {
            let (logits, expected) = (head.logits(&x), without.logits(&x));
            assert_eq!([logits[0], logits[1], logits[3]], expected[..]);
            assert!(expected.iter().all(|other| *other > logits[2] + 4.0), "{x:?}: {logits:?}");
        }
    }
}
