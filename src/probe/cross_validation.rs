//! The choice of a classifier by cross-validation on the training images alone.

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use vitrine_models::linear_probe::{
    LinearHead, LogisticRegression, MANY_PARAMETERS, Preconditioner, Samples, Solution, Stop, nearest_mean,
    parameters, preconditioner,
};

use crate::evaluate::Predictions;

/// The number of folds.
pub const FOLDS: usize = 5;
/// With more images, a single fold tells the methods apart: it has more than 4,000 images, so that the standard error of an accuracy is
/// below 0.8 points.
const MANY_IMAGES: usize = 20_000;
/// The exponents of the strengths, powers of ten, that are tried for features of variance 1.
const EXPONENTS: [i32; 5] = [-3, -2, -1, 0, 1];
/// A class with fewer images also makes the nearest class mean a candidate.
const FEW_IMAGES: usize = 5;
/// The margins of the nearest class mean that are tried. The first is the one that is taken without cross-validation.
const MARGINS: [f64; 4] = [4.0, 16.0, 64.0, 256.0];
/// The largest component of the gradient of the mean loss at the end of fits that are only compared with each other:
/// scikit-learn's default.
const TOLERANCE: f64 = 1e-4;

/// A way to make a classifier from features.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Method {
    /// Logistic regression with this strength, scikit-learn's `C`: the inverse of the penalty.
    Logistic(f64),
    /// The nearest class mean. The logit of a class at its own mean exceeds those of the others by this margin, on average.
    NearestMean(f64),
}

/// The judgment of held-out predictions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Judgment {
    /// The score by which methods are compared; higher is better.
    pub score: f64,
    /// The standard error of the score. Methods within it of the best one count as equal, and the least loss decides.
    pub error: f64,
    /// Mean cross-entropy.
    pub loss: f64,
    /// Accuracy, from 0 to 1.
    pub top1: f64,
}

/// The methods for these samples. The strengths are powers of ten around the inverse of the features' variance, so that
/// they do not depend on the scale of the features.
fn candidates(samples: &Samples<'_>) -> Vec<Method> {
    let variance = samples.variances().iter().sum::<f64>() / samples.width() as f64;
    let scale = if variance > 0.0 { -variance.log10().round() as i32 } else { 0 };
    // Parsed, so that every strength is the number that is printed.
    let strength = |exponent: i32| format!("1e{}", exponent + scale).parse().unwrap_or(1.0);
    let logistic = EXPONENTS.map(|exponent| Method::Logistic(strength(exponent)));
    let mut sizes = vec![0; samples.classes()];
    samples.labels().iter().for_each(|&label| sizes[label] += 1);
    let has_few = sizes.iter().any(|&size| size < FEW_IMAGES);
    let nearest = MARGINS.iter().filter(|_| has_few).map(|&margin| Method::NearestMean(margin));
    logistic.into_iter().chain(nearest).collect()
}

/// The fold in which each image is held out; `None` for the only image of a class, which is always trained on.
///
/// Each class is divided in its order, not at random: similar images often follow each other, such as those of one scene,
/// and should be on one side. Copies of an image, whose `originals` are the same, are in one fold.
pub(super) fn folds(labels: &[usize], originals: &[usize], classes: usize) -> Vec<Option<usize>> {
    let mut of_class = vec![Vec::new(); classes];
    for (image, (&label, &original)) in labels.iter().zip(originals).enumerate() {
        if image == original {
            of_class[label].push(image);
        }
    }
    let mut folds = vec![None; labels.len()];
    for images in of_class.iter().filter(|images| images.len() > 1) {
        for (place, &image) in images.iter().enumerate() {
            folds[image] = Some(place * FOLDS / images.len());
        }
    }
    let mut folds: Vec<Option<usize>> = originals.iter().map(|&original| folds[original]).collect();
    // A class of copies of another class's image would be held out as a whole.
    let mut is_divided = vec![false; classes];
    let mut first = vec![None; classes];
    for (fold, &label) in folds.iter().zip(labels) {
        is_divided[label] |= *first[label].get_or_insert(*fold) != *fold;
    }
    for (fold, &label) in folds.iter_mut().zip(labels) {
        *fold = fold.filter(|_| is_divided[label]);
    }
    folds
}

/// The folds that are held out, of samples as many as these.
fn judged_folds(images: usize) -> usize {
    if images > MANY_IMAGES { 1 } else { FOLDS }
}

/// A chosen method.
#[derive(Clone, Debug)]
pub struct Choice {
    /// The method.
    pub method: Method,
    /// The judgment of its predictions for held-out images; `None` if no image could be held out.
    pub held_out: Option<Judgment>,
    /// The number of folds, of [`FOLDS`], that were held out: all but with many images.
    pub folds: usize,
    /// The methods that were compared.
    pub compared: Vec<Method>,
    /// Whether all of them were, with fits that had converged: the comparison was not stopped.
    pub is_complete: bool,
    /// A solution that was fitted to most of the images, if the method has one.
    pub start: Option<Solution>,
}

/// Chooses the method of a classifier by the predictions for held-out images, in a stratified cross-validation among the samples. Without an
/// image that can be held out, it is the nearest class mean.
///
/// `originals` has for each sample the index of the first one with the same content, which is its own unless it is a copy: copies are
/// held out together. `class_weights` has the factor of each class's losses. `judge` judges the predictions for held-out images. `stop`
/// ends the comparison: the best method until then is taken.
pub fn choose(
    samples: &Samples<'_>,
    originals: &[usize],
    class_weights: &[f64],
    judge: &dyn Fn(&Predictions) -> Judgment,
    stop: Stop<'_>,
) -> Choice {
    let places = folds(samples.labels(), originals, samples.classes());
    let folds = judged_folds(samples.len());
    if places.iter().all(Option::is_none) {
        let method = Method::NearestMean(MARGINS[0]);
        let compared = vec![method];
        return Choice { method, held_out: None, folds, compared, is_complete: true, start: None };
    }
    let of_folds = (0..folds).map(|fold| Fold::new(samples, &places, fold));
    let mut of_folds: Vec<Fold<'_>> = of_folds.filter(|fold| !fold.held_out.is_empty()).collect();
    let (mut judged, mut starts, mut is_stopped) = (Vec::new(), Vec::new(), false);
    for method in candidates(samples) {
        if is_stopped {
            break;
        }
        let prepared = match method {
            Method::Logistic(strength) => {
                Prepared::Logistic(strength, preconditioner(samples, class_weights, strength))
            }
            Method::NearestMean(margin) => Prepared::NearestMean(margin),
        };
        let predicted = |fold: &mut Fold<'_>| fold.predictions(&prepared, class_weights, stop);
        let parts: Vec<Predictions> = match parameters(samples.width(), samples.classes()) {
            ..=MANY_PARAMETERS => of_folds.par_iter_mut().map(predicted).collect(),
            _ => of_folds.iter_mut().map(predicted).collect(),
        };
        is_stopped = stop();
        if is_stopped && !judged.is_empty() {
            break;
        }
        let mut all = Predictions::new(samples.classes());
        parts.into_iter().for_each(|part| all.append(part));
        judged.push((method, judge(&all)));
        starts.push(of_folds.first().and_then(|fold| fold.last.clone()));
    }
    let (chosen, (method, judgment)) = best(&judged);
    Choice {
        method,
        held_out: Some(judgment),
        folds,
        compared: judged.into_iter().map(|(method, _)| method).collect(),
        is_complete: !is_stopped,
        start: starts.swap_remove(chosen),
    }
}

/// A method with what its fits to all folds share.
enum Prepared {
    Logistic(f64, Preconditioner),
    NearestMean(f64),
}

/// The images of a fold, and those that its methods are fitted to.
struct Fold<'a> {
    samples: &'a Samples<'a>,
    trained: Vec<usize>,
    held_out: Vec<usize>,
    /// The last regression, where the next one begins.
    last: Option<Solution>,
}

impl<'a> Fold<'a> {
    fn new(samples: &'a Samples<'a>, folds: &[Option<usize>], fold: usize) -> Self {
        let (held_out, trained): (Vec<usize>, Vec<usize>) =
            (0..samples.len()).partition(|&row| folds[row] == Some(fold));
        Self { samples, trained, held_out, last: None }
    }

    /// The predictions of a method, fitted to the other images, for those of the fold.
    fn predictions(&mut self, method: &Prepared, class_weights: &[f64], stop: Stop<'_>) -> Predictions {
        let Self { samples, trained: rows, .. } = self;
        let head = match method {
            &Prepared::Logistic(strength, ref preconditioner) => {
                let regression =
                    LogisticRegression { samples, preconditioner, rows, class_weights, strength };
                let solution = regression.fit(self.last.as_ref(), TOLERANCE, stop);
                let head = regression.head(&solution);
                self.last = Some(solution);
                head
            }
            Prepared::NearestMean(margin) => nearest_mean(samples, rows, *margin),
        };
        let features: Vec<f32> = self.held_out.iter().flat_map(|&row| samples.row(row)).copied().collect();
        let labels: Vec<usize> = self.held_out.iter().map(|&row| samples.labels()[row]).collect();
        predictions(&head, &features, &labels)
    }
}

/// The predictions of a head for images with these features, `[images, width]`, whose logits are never in memory all at once.
pub fn predictions(head: &LinearHead, features: &[f32], labels: &[usize]) -> Predictions {
    const IMAGES: usize = 4096;
    let width = features.len() / labels.len().max(1);
    let mut predictions = Predictions::new(head.bias.len());
    for (labels, features) in labels.chunks(IMAGES).zip(features.chunks(IMAGES * width.max(1))) {
        predictions.push(labels, &head.logits(features));
    }
    predictions
}

/// Of the methods whose score is within the standard error of the best one, that with the least loss, and its place.
fn best(judged: &[(Method, Judgment)]) -> (usize, (Method, Judgment)) {
    let highest = judged.iter().max_by(|(_, a), (_, b)| a.score.total_cmp(&b.score));
    let (_, highest) = highest.expect("there are methods");
    let all = judged.iter().copied().enumerate();
    let near = all.filter(|(_, (_, judgment))| judgment.score >= highest.score - highest.error);
    near.min_by(|(_, (_, a)), (_, (_, b))| a.loss.total_cmp(&b.loss)).expect("the best one is among them")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_class_is_divided_in_its_order_and_a_single_image_is_never_held_out() {
        let labels: Vec<usize> = (0..20).map(|image| image % 2).chain([2, 3, 3]).collect();
        let originals: Vec<usize> = (0..labels.len()).collect();
        let folds = folds(&labels, &originals, 4);
        for class in [0, 1] {
            let of_class: Vec<_> =
                (0..20).filter(|image| image % 2 == class).map(|image| folds[image]).collect();
            assert_eq!(of_class, [0, 0, 1, 1, 2, 2, 3, 3, 4, 4].map(Some));
        }
        assert_eq!(folds[20], None);
        assert!(folds[21].is_some() && folds[21] != folds[22], "one of two images is always trained on");
    }

    #[test]
    fn copies_are_in_the_fold_of_their_original() {
        // Image 9 is a copy of image 2; class 1 has one image three times, and class 2 only copies of image 1, which are always
        // trained on.
        let labels = [0, 0, 0, 0, 0, 0, 1, 1, 1, 0, 2, 2];
        let originals = [0, 1, 2, 3, 4, 5, 6, 6, 6, 2, 1, 1];
        let folds = folds(&labels, &originals, 3);
        assert_eq!(folds[..6], [0, 0, 1, 2, 3, 4].map(Some));
        assert_eq!(folds[6..], [None, None, None, folds[2], None, None]);
    }

    #[test]
    fn strengths_follow_the_scale_of_the_features_and_few_images_add_the_nearest_mean() {
        let features: Vec<f32> = (0..24).map(|place| if place % 2 == 0 { 1.0 } else { -1.0 }).collect();
        let labels = [0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1];
        let methods = |scale: f32, labels: &[usize]| {
            let scaled: Vec<f32> =
                (0..24).map(|place| scale * features[(place * 7 + place / 12) % 24]).collect();
            candidates(&Samples::new(&scaled, labels, 2))
        };
        let strengths = |values: [f64; 5]| values.map(Method::Logistic).to_vec();
        assert_eq!(methods(1.0, &labels), strengths([0.001, 0.01, 0.1, 1.0, 10.0]));
        assert_eq!(methods(0.1, &labels), strengths([0.1, 1.0, 10.0, 100.0, 1000.0]));
        let few = [0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1];
        assert_eq!(methods(1.0, &few).len(), 9);
    }

    #[test]
    fn within_the_standard_error_the_least_loss_decides() {
        let judged = |method, top1: f64, loss| {
            (Method::Logistic(method), Judgment { score: top1, error: 0.01, loss, top1 })
        };
        let all = [judged(0.1, 0.95, 0.3), judged(1.0, 0.945, 0.2), judged(10.0, 0.93, 0.1)];
        assert_eq!(best(&all).1.0, Method::Logistic(1.0));
        let exact: Vec<_> =
            all.iter().map(|(method, judgment)| (*method, Judgment { error: 0.0, ..*judgment })).collect();
        assert_eq!(best(&exact).1.0, Method::Logistic(0.1));
    }
}
