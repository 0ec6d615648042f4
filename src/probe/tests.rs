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

/// The originals of images without copies.
fn all(images: usize) -> Vec<usize> {
    (0..images).collect()
}

fn judge(predictions: &Predictions) -> Judgment {
    let right = predictions.answers().zip(predictions.labels()).filter(|(a, b)| *a == b.only()).count();
    let top1 = right as f64 / predictions.len() as f64;
    Judgment { score: top1, error: 0.0, loss: 0.0, top1 }
}

#[test]
fn the_method_is_chosen_by_held_out_images_and_does_not_depend_on_threads() {
    let (features, labels) = triangle(90, 1.0);
    let samples = Samples::new(&features, &labels, 3);
    let fitted = fit(&samples, &all(labels.len()), &[1.0; 3], &judge, Stops::NEVER);
    assert!(matches!(fitted.choice.method, Method::Logistic(_)) && fitted.choice.compared.len() == 5);
    assert!(
        fitted.choice.is_complete
            && fitted.choice.held_out.unwrap().top1 > 0.95
            && fitted.convergence.converged
    );
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    assert_eq!(
        pool.install(|| fit(&samples, &all(labels.len()), &[1.0; 3], &judge, Stops::NEVER)).head,
        fitted.head
    );
}

#[test]
fn one_image_of_each_class_gives_the_nearest_class_mean() {
    let (features, labels) = triangle(3, 0.1);
    let fitted =
        fit(&Samples::new(&features, &labels, 3), &all(labels.len()), &[1.0; 3], &judge, Stops::NEVER);
    assert!(matches!(fitted.choice.method, Method::NearestMean(_)) && fitted.choice.held_out.is_none());
    let (features, labels) = triangle(30, 0.5);
    let logits = fitted.head.logits(&features);
    for (logits, label) in logits.chunks_exact(3).zip(labels) {
        assert!((0..3).all(|class| logits[class] <= logits[label]), "{logits:?}");
    }
}

#[test]
fn two_images_of_each_class_are_enough_for_cross_validation() {
    let (features, labels) = triangle(6, 0.3);
    let fitted =
        fit(&Samples::new(&features, &labels, 3), &all(labels.len()), &[1.0; 3], &judge, Stops::NEVER);
    assert_eq!(fitted.choice.held_out.unwrap().top1, 1.0);
}

#[test]
fn features_that_are_all_equal_give_finite_logits() {
    let labels = [0, 0, 0, 0, 0, 0, 1, 1, 1];
    let features = [0.25f32; 27];
    let samples = Samples::new(&features, &labels, 2);
    let fitted = fit(&samples, &all(labels.len()), &[1.0; 2], &judge, Stops::NEVER);
    let logits = fitted.head.logits(&features[..3]);
    assert!(logits.iter().all(|logit| logit.is_finite()), "{logits:?}");
}

#[test]
fn a_fit_whose_time_is_over_keeps_what_the_comparison_has_found() {
    let (features, labels) = triangle(90, 1.0);
    let samples = Samples::new(&features, &labels, 3);
    let fitted_until = |stops: Stops<'_>| fit(&samples, &all(labels.len()), &[1.0; 3], &judge, stops);
    let usual = fitted_until(Stops::NEVER);
    let fitted = fitted_until(Stops { choosing: &|| false, fitting: &|| true });
    assert!(!fitted.convergence.converged && fitted.convergence.steps == 0);
    // The solution of a fold has seen four fifths of the images.
    let right = |head: &LinearHead| {
        let logits = head.logits(&features);
        let answer = |logits: &[f32]| (0..3).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap();
        logits.chunks_exact(3).zip(&labels).filter(|(logits, label)| answer(logits) == **label).count()
    };
    assert!(right(&fitted.head) + 2 >= right(&usual.head), "{fitted:?}");
    // Without time for a comparison, the first method is taken.
    let first = fitted_until(Stops { choosing: &|| true, fitting: &|| false });
    assert_eq!(first.choice.compared, usual.choice.compared[..1]);
    assert_eq!(first.choice.method, usual.choice.compared[0]);
    assert!(first.convergence.converged && !first.choice.is_complete);
}
