//! What runs with default settings reach whose images look like these: regression with a Gaussian process on measured runs
//! (Rasmussen & Williams 2006, 'Gaussian Processes for Machine Learning', sections 2.2 and 2.7).

use serde::Deserialize;
use vitrine_kernels::Cholesky;

use super::Look;

/// The measured runs. `benches/peers/expectation.py` makes this table and chooses the next four numbers, by how well runs are expected
/// by the other ones and by those of other sources.
const TABLE: &str = include_str!("measured.csv");
/// What the logit of the accuracy lacks after one epoch. It falls with the square root of their number.
const LOST: f64 = 1.5;
/// The differences of the [places](place) of two looks that make them unlike each other.
const SCALES: [f64; PLACE] = [0.5, 0.3, 1.0];
/// The standard deviation of the gains of runs that look unlike each other, as logits...
const RANGE: f64 = 2.0;
/// ... and that of runs that look the same.
const NOISE: f64 = 0.1;

/// The number of coordinates of a place.
const PLACE: usize = 3;
/// The widest interval of which the user is told, and the largest share of the variance of gains that measured runs may leave open.
const WIDEST: f64 = 0.4;
const KNOWN: f64 = 0.5;
/// The quantile of the normal distribution that one of ten values exceeds.
const TENTH: f64 = 1.2816;
/// Accuracies closer than this to 0 or 1 are all the same.
const NEAR: f64 = 0.003;

/// A row of the table. Accuracies are from 0 to 1.
#[derive(Debug, Deserialize)]
struct MeasuredRun {
    name: String,
    training: usize,
    classes: usize,
    epochs: f64,
    images: usize,
    linear_top1: f64,
    linear_loss: f64,
    top1: f64,
}

impl MeasuredRun {
    fn look(&self) -> Look {
        Look {
            training: self.training,
            classes: self.classes,
            chance: 1.0 / self.classes as f64,
            epochs: self.epochs,
            images: self.images,
            top1: self.linear_top1,
            loss: self.linear_loss,
        }
    }

    /// How much better than the linear classifier the run would be after many epochs, as a difference of logits.
    fn gain(&self) -> f64 {
        logit(self.top1) - logit(self.linear_top1) + LOST / self.epochs.sqrt()
    }
}

/// The accuracy to expect on new images, from 0 to 1, and not below chance.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Expected {
    /// The median.
    pub(super) top1: f64,
    /// One of ten runs stays below this...
    pub(super) low: f64,
    /// ... and one of ten exceeds this.
    pub(super) high: f64,
    /// The images of the measured run that looked most alike, and its accuracy.
    pub(super) likest: (String, f64),
    /// Whether measured runs have had such images.
    is_known: bool,
}

/// The expectation from a look at the images; `None` if no measured run has had any like them.
pub(super) fn expected(look: &Look) -> Option<Expected> {
    let table = table();
    by(&table.iter().collect::<Vec<_>>(), look).filter(|expected| expected.is_known)
}

fn table() -> Vec<MeasuredRun> {
    let rows = csv::Reader::from_reader(TABLE.as_bytes()).into_deserialize();
    rows.collect::<Result<_, _>>().expect("the table is part of the program")
}

/// The expectation by these measured runs; `None` without any.
fn by(runs: &[&MeasuredRun], look: &Look) -> Option<Expected> {
    let count = runs.len();
    let places: Vec<[f64; PLACE]> = runs.iter().map(|run| place(&run.look())).collect();
    let noise = |row: usize, column: usize| if row == column { NOISE.powi(2) } else { 0.0 };
    let covariances: Vec<f64> = (0..count * count)
        .map(|at| (at / count, at % count))
        .map(|(row, column)| covariance(&places[row], &places[column]) + noise(row, column))
        .collect();
    let factor = Cholesky::new(&covariances, count, NOISE.powi(2));
    let whitened = |mut values: Vec<f64>| {
        factor.solve_lower(&mut values, 1);
        values
    };
    let here = place(look);
    let alike: Vec<f64> = places.iter().map(|place| covariance(place, &here)).collect();
    // Of the same images, the run of about as many epochs.
    let distance = |run: &MeasuredRun| (run.epochs / look.epochs).ln().abs();
    let (likest, _) = runs.iter().zip(&alike).max_by(|(run, a), (other, b)| {
        a.total_cmp(b).then_with(|| distance(other).total_cmp(&distance(run)))
    })?;
    let ones = whitened(vec![1.0; count]);
    let gains = whitened(runs.iter().map(|run| run.gain()).collect());
    let mean = dot(&ones, &gains) / dot(&ones, &ones);
    let deviations: Vec<f64> = gains.iter().zip(&ones).map(|(gain, one)| gain - mean * one).collect();
    let alike = whitened(alike);
    let unknown = RANGE.powi(2) - dot(&alike, &alike);
    let variance = unknown + NOISE.powi(2);
    let center = logit(look.top1) + mean + dot(&alike, &deviations) - LOST / look.epochs.sqrt();
    let half = TENTH * variance.max(0.0).sqrt();
    let [top1, low, high] = [center, center - half, center + half].map(|value| 1.0 / (1.0 + (-value).exp()));
    let is_known = unknown <= KNOWN * RANGE.powi(2) && high - low <= WIDEST;
    // What a few steps lose is known of longer runs alone.
    let [top1, low, high] = [top1, low, high].map(|share: f64| share.max(look.chance));
    Some(Expected { top1, low, high, likest: (likest.name.clone(), likest.top1), is_known })
}

/// What a look says, as coordinates: how well the linear classifier does, how sure it is of what it gets wrong, and from how many images
/// the run learns.
fn place(look: &Look) -> [f64; PLACE] {
    [logit(look.top1), look.loss / (look.classes as f64).ln(), (look.training as f64).ln()]
}

/// The covariance of the gains of runs at these places.
fn covariance(a: &[f64; PLACE], b: &[f64; PLACE]) -> f64 {
    let squares = a.iter().zip(b).zip(SCALES).map(|((a, b), scale)| ((a - b) / scale).powi(2));
    RANGE.powi(2) * (-0.5 * squares.sum::<f64>()).exp()
}

fn logit(share: f64) -> f64 {
    let share = share.clamp(NEAR, 1.0 - NEAR);
    (share / (1.0 - share)).ln()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// The share of the measured runs for which this holds of the run and what others let expect of it.
    fn share(
        is_known: impl Fn(&MeasuredRun, &MeasuredRun) -> bool,
        holds: impl Fn(&MeasuredRun, &Expected) -> bool,
    ) -> f64 {
        let table = table();
        let holds = table.iter().filter(|run| {
            let known: Vec<&MeasuredRun> = table.iter().filter(|other| is_known(run, other)).collect();
            holds(run, &by(&known, &run.look()).unwrap())
        });
        holds.count() as f64 / table.len() as f64
    }

    fn is_within(run: &MeasuredRun, expected: &Expected) -> bool {
        (expected.low..=expected.high).contains(&run.top1)
    }

    #[test]
    fn measured_runs_are_expected_within_three_points() {
        let found = share(|_, _| true, |run, expected| (expected.top1 - run.top1).abs() <= 0.03);
        assert!(found >= 0.8, "{found}");
    }

    #[test]
    fn intervals_hold_about_four_of_five_runs_that_they_do_not_know() {
        let others = share(|run, other| run.name != other.name, is_within);
        assert!((0.75..0.95).contains(&others), "{others}");
        let source = |run: &MeasuredRun| {
            let sources = ["CIFAR-10", "emoji", "MNIST", "shapes", "hands"];
            sources.iter().position(|source| run.name.contains(source)).unwrap()
        };
        let foreign = share(|run, other| source(run) != source(other), is_within);
        assert!((0.7..0.95).contains(&foreign), "{foreign}");
    }

    #[test]
    fn the_likest_run_is_named_and_nothing_is_expected_of_what_no_run_has_seen() {
        let table = table();
        for run in &table {
            let expected = expected(&run.look()).unwrap();
            assert_eq!(expected.likest, (run.name.clone(), run.top1));
            assert!(0.0 < expected.low && expected.low < expected.top1, "{expected:?}");
            assert!(expected.top1 < expected.high && expected.high < 1.0, "{expected:?}");
        }
        for top1 in [0.5, 0.95, 0.999] {
            assert_eq!(expected(&Look { loss: 40.0, top1, ..table[0].look() }), None);
        }
        assert!(by(&[], &table[0].look()).is_none());
    }

    #[test]
    fn more_epochs_reach_more() {
        let look = table()[0].look();
        let reached = |epochs: f64| expected(&Look { epochs, ..look }).unwrap().top1;
        assert!(reached(3.0) < reached(10.0) && reached(10.0) < reached(100.0));
        assert!(reached(1000.0) - reached(100.0) < 0.04);
    }

    #[test]
    fn of_very_short_runs_no_less_than_chance_is_expected() {
        let look = Look { epochs: 0.01, ..table()[0].look() };
        for chance in [0.1, 0.3] {
            let Expected { top1, low, high, .. } = expected(&Look { chance, ..look }).unwrap();
            assert_eq!([top1, low, high], [chance; 3]);
        }
    }
}
