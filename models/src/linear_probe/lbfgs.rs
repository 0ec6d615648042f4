//! Limited-memory BFGS for smooth convex functions (Nocedal & Wright 2006, algorithms 7.4 and 7.5), with the line search
//! by bisection of Lewis & Overton 2013 (algorithm 2.6).

use std::collections::VecDeque;

/// The number of earlier steps from which the curvature is estimated.
const MEMORY: usize = 20;
/// The vectors that a minimization holds: two for each earlier step, and the points, gradients, and directions of a search.
pub(super) const VECTORS: usize = 2 * MEMORY + 8;
/// The largest number of steps.
const MAX_STEPS: usize = 5000;
/// The largest number of points that a line search tries.
const MAX_TRIALS: usize = 40;
/// The share of the decrease that the slope promises which a step must reach (Armijo's condition).
const DECREASE: f64 = 1e-4;
/// The share of a value that may be rounding: near the minimum, decreases are smaller, and the slopes alone decide.
const ROUNDING: f64 = 1e-13;
/// The share of the slope that may be left after a step (Wolfe's condition).
const CURVATURE: f64 = 0.9;

/// The end of a minimization.
#[derive(Clone, Debug)]
pub(super) struct Minimum {
    /// The point.
    pub(super) point: Vec<f64>,
    /// Number of steps.
    pub(super) steps: usize,
    /// Whether the gradient is as small as was asked for.
    pub(super) converged: bool,
}

/// A function that returns its value and gradient at a point.
type Function<'a> = &'a dyn Fn(&[f64]) -> (f64, Vec<f64>);

/// A point with the value and the gradient there.
struct Place {
    point: Vec<f64>,
    value: f64,
    gradient: Vec<f64>,
}

/// A step, and the change of the gradient over it.
struct Step {
    moved: Vec<f64>,
    turned: Vec<f64>,
    /// One over their product.
    rho: f64,
}

/// Minimizes `function`, which returns its value and gradient, from `start` until no component of the gradient is larger
/// than `tolerance`, or until `stop`. `precondition` multiplies a vector by an estimate of the inverse Hessian.
pub(super) fn minimize(
    function: Function<'_>,
    start: Vec<f64>,
    precondition: &dyn Fn(&mut [f64]),
    tolerance: f64,
    stop: &dyn Fn() -> bool,
) -> Minimum {
    let (value, gradient) = function(&start);
    let mut place = Place { point: start, value, gradient };
    let mut memory: VecDeque<Step> = VecDeque::with_capacity(MEMORY);
    for steps in 0..MAX_STEPS {
        if place.gradient.iter().all(|slope| slope.abs() <= tolerance) {
            return Minimum { point: place.point, steps, converged: true };
        }
        if stop() {
            return Minimum { point: place.point, steps, converged: false };
        }
        let direction = direction(&place.gradient, &memory, precondition);
        let Some(next) = search(function, &place, &direction, stop) else {
            return Minimum { point: place.point, steps, converged: false };
        };
        let moved = difference(&next.point, &place.point);
        let turned = difference(&next.gradient, &place.gradient);
        let product = dot(&moved, &turned);
        if product > 0.0 {
            if memory.len() == MEMORY {
                memory.pop_front();
            }
            memory.push_back(Step { moved, turned, rho: 1.0 / product });
        }
        place = next;
    }
    Minimum { point: place.point, steps: MAX_STEPS, converged: false }
}

/// The direction of the next step: minus the gradient, times the estimate of the inverse Hessian (the two-loop recursion).
fn direction(gradient: &[f64], memory: &VecDeque<Step>, precondition: &dyn Fn(&mut [f64])) -> Vec<f64> {
    let mut direction: Vec<f64> = gradient.iter().map(|slope| -slope).collect();
    let mut shares = Vec::with_capacity(memory.len());
    for step in memory.iter().rev() {
        let share = step.rho * dot(&step.moved, &direction);
        add(&mut direction, -share, &step.turned);
        shares.push(share);
    }
    precondition(&mut direction);
    if let Some(Step { turned, rho, .. }) = memory.back() {
        let mut changed = turned.clone();
        precondition(&mut changed);
        let scale = 1.0 / (rho * dot(turned, &changed));
        direction.iter_mut().for_each(|value| *value *= scale);
    }
    for (step, share) in memory.iter().zip(shares.into_iter().rev()) {
        let correction = share - step.rho * dot(&step.turned, &direction);
        add(&mut direction, correction, &step.moved);
    }
    direction
}

/// The first point along `direction` that satisfies both conditions; `None` if rounding hides the decrease, or `stop` says so before
/// there is one.
fn search(function: Function<'_>, from: &Place, direction: &[f64], stop: &dyn Fn() -> bool) -> Option<Place> {
    let slope = dot(&from.gradient, direction);
    let (mut short, mut long, mut length) = (0.0, f64::INFINITY, 1.0);
    for trial in 0..MAX_TRIALS {
        if trial > 0 && stop() {
            return None;
        }
        let mut point = from.point.clone();
        add(&mut point, length, direction);
        let (value, gradient) = function(&point);
        let rounding = ROUNDING * from.value.abs();
        if value.is_nan() || value > from.value + DECREASE * length * slope + rounding {
            long = length;
        } else if dot(&gradient, direction) < CURVATURE * slope {
            short = length;
        } else {
            return Some(Place { point, value, gradient });
        }
        length = if long.is_finite() { f64::midpoint(short, long) } else { 2.0 * short };
    }
    None
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn difference(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a - b).collect()
}

fn add(sum: &mut [f64], factor: f64, values: &[f64]) {
    sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += factor * value);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quadratic_with_very_different_curvatures_is_minimized() {
        let curvatures = [1e-3, 1.0, 10.0, 1e4];
        let function = |point: &[f64]| {
            let gradient: Vec<f64> =
                point.iter().zip(curvatures).map(|(value, curvature)| curvature * (value - 3.0)).collect();
            let value = point.iter().zip(curvatures).map(|(value, c)| 0.5 * c * (value - 3.0).powi(2)).sum();
            (value, gradient)
        };
        for diagonal in [[1.0; 4], curvatures.map(|curvature| 1.0 / curvature)] {
            let precondition = |vector: &mut [f64]| {
                vector.iter_mut().zip(diagonal).for_each(|(value, inverse)| *value *= inverse);
            };
            let found = minimize(&function, vec![0.0; 4], &precondition, 1e-9, &|| false);
            assert!(found.converged && found.steps < 40, "{found:?}");
            assert!(found.point.iter().all(|value| (value - 3.0).abs() < 1e-5), "{found:?}");
        }
        let done = minimize(&function, vec![3.0; 4], &|_| {}, 1e-9, &|| false);
        assert!(done.converged && done.steps == 0, "there is nothing to do: {done:?}");
    }

    #[test]
    fn a_function_that_is_not_quadratic_is_minimized() {
        // log(exp(x) + exp(-2x)) has its minimum where exp(3x) = 2.
        let function = |point: &[f64]| {
            let [a, b] = [point[0].exp(), (-2.0 * point[0]).exp()];
            ((a + b).ln(), vec![(a - 2.0 * b) / (a + b)])
        };
        let found = minimize(&function, vec![20.0], &|_| {}, 1e-10, &|| false);
        assert!(found.converged && (found.point[0] - 2f64.ln() / 3.0).abs() < 1e-9, "{found:?}");
        let stopped_at = |count: usize| {
            let asked = std::cell::Cell::new(0);
            let stop = || asked.replace(asked.get() + 1) == count;
            minimize(&function, vec![20.0], &|_| {}, 1e-10, &stop)
        };
        // The first line search tries seven points.
        let searching = stopped_at(3);
        assert!(!searching.converged && searching.steps == 0 && searching.point == [20.0], "{searching:?}");
        let stopped = stopped_at(7);
        assert!(!stopped.converged && stopped.steps == 1, "{stopped:?}");
        assert!(function(&stopped.point).0 < function(&[20.0]).0, "what was won is kept");
    }
}
