//! The residual connection with LayerScale (Touvron et al., arXiv:2103.17239) and stochastic depth (Huang et al., arXiv:1603.09382).

#[cfg(feature = "flex")]
use super::flex;
use burn::tensor::Tensor;

/// `x + branch * gamma * keep`.
///
/// # Shapes
///
/// - x, branch, output: `[batch, tokens, dim]`
/// - gamma: `[dim]`, LayerScale
/// - keep: `[batch]`, 0 where the branch is dropped and `1 / (1 - rate)` where it is kept; gets no gradient
pub fn residual(
    x: Tensor<3>,
    branch: Tensor<3>,
    gamma: Option<Tensor<1>>,
    keep: Option<Tensor<1>>,
) -> Tensor<3> {
    let keep = keep.map(Tensor::detach);
    #[cfg(feature = "flex")]
    if flex::takes(&x) && flex::takes(&branch) && flex::takes_option(&gamma) && flex::takes_option(&keep) {
        let [batch, _tokens, dim] = x.dims();
        assert_eq!(x.dims(), branch.dims(), "residual: input and branch");
        assert!(gamma.as_ref().is_none_or(|gamma| gamma.dims() == [dim]), "residual: LayerScale's length");
        assert!(
            keep.as_ref().is_none_or(|keep| keep.dims() == [batch]),
            "residual: one drop-path factor for each sample"
        );
        let inputs = [
            Some(x.into_dispatch()),
            Some(branch.into_dispatch()),
            gamma.map(Tensor::into_dispatch),
            keep.map(Tensor::into_dispatch),
        ];
        return flex::apply(fused::Residual, inputs);
    }
    residual_composed(x, branch, gamma, keep)
}

/// The definition of [`residual`], in burn's own operations.
pub fn residual_composed(
    x: Tensor<3>,
    branch: Tensor<3>,
    gamma: Option<Tensor<1>>,
    keep: Option<Tensor<1>>,
) -> Tensor<3> {
    let branch = match gamma {
        Some(gamma) => branch * gamma.unsqueeze(),
        None => branch,
    };
    let branch = match keep {
        Some(keep) => branch * keep.reshape([-1, 1, 1]),
        None => branch,
    };
    x + branch
}

#[cfg(feature = "flex")]
mod fused {
    //! One pass for the output, one for all gradients; without LayerScale and drop path the gradients are the output's, uncopied.

    use super::super::flex::{self, Operation, contiguous, sizes};
    use super::super::math::{self, vectorized};
    use super::super::parallel::{Chunks, Shared, buffer, parallel, parallel_elements};
    use burn::backend::flex::FlexTensor;

    #[derive(Clone, Debug)]
    pub(super) struct Residual;

    #[derive(Clone, Debug)]
    pub(super) struct Saved {
        /// For gamma's gradient.
        branch: Option<FlexTensor>,
        gamma: Option<FlexTensor>,
        keep: Option<FlexTensor>,
    }

    impl Operation<4> for Residual {
        type Saved = Saved;

        fn forward(&self, inputs: [Option<FlexTensor>; 4]) -> FlexTensor {
            self.forward_saving(inputs, [false; 4]).0
        }

        fn forward_saving(&self, inputs: [Option<FlexTensor>; 4], wanted: [bool; 4]) -> (FlexTensor, Saved) {
            let [Some(x), Some(branch), gamma, keep] = inputs.map(|input| input.map(contiguous)) else {
                unreachable!("x and branch are given")
            };
            let output = add(x, &branch, gamma.as_ref(), keep.as_ref());
            (output, Saved { branch: wanted[2].then_some(branch), gamma, keep })
        }

        fn backward(self, saved: Saved, gradient: FlexTensor, wanted: [bool; 4]) -> [Option<FlexTensor>; 4] {
            let gradient = contiguous(gradient);
            let Saved { branch, gamma, keep } = saved;
            let (dbranch, dgamma) = if gamma.is_none() && keep.is_none() {
                (wanted[1].then(|| gradient.clone()), None)
            } else {
                scaled_backward(&gradient, branch.as_ref(), gamma.as_ref(), keep.as_ref(), wanted[1])
            };
            [wanted[0].then_some(gradient), dbranch, dgamma, None]
        }
    }

    /// The sum, in x's memory where nobody else needs it.
    fn add(
        mut x: FlexTensor,
        branch: &FlexTensor,
        gamma: Option<&FlexTensor>,
        keep: Option<&FlexTensor>,
    ) -> FlexTensor {
        let [_batch, tokens, dim] = sizes(branch);
        let branch = branch.storage::<f32>();
        let mut fresh = if x.is_unique() { Vec::new() } else { buffer(branch.len()) };
        let in_place = fresh.is_empty();
        let shape: [usize; 3] = sizes(&x);
        {
            let source = if in_place { None } else { Some(x.clone()) };
            let source = source.as_ref().map(|source| source.storage::<f32>());
            let output = if in_place { Shared::new(x.storage_mut()) } else { Shared::new(&mut fresh) };
            let task = |range: std::ops::Range<usize>| {
                // SAFETY: the ranges are disjoint.
                let output = unsafe { output.slice(range.clone()) };
                if let Some(source) = source {
                    output.copy_from_slice(&source[range.clone()]);
                }
                let branch = &branch[range.clone()];
                if gamma.is_none() && keep.is_none() {
                    math::add(output, branch);
                    return;
                }
                let gamma = gamma.map(|gamma| gamma.storage::<f32>());
                for (row, (output, branch)) in
                    output.chunks_exact_mut(dim).zip(branch.chunks_exact(dim)).enumerate()
                {
                    add_scaled(
                        output,
                        branch,
                        gamma,
                        keep.map_or(1.0, |keep| keep.storage::<f32>()[(range.start / dim + row) / tokens]),
                    );
                }
            };
            if gamma.is_none() && keep.is_none() {
                parallel_elements(branch.len(), task);
            } else {
                let chunks = Chunks::new(branch.len().checked_div(dim).unwrap_or(0), 16);
                parallel(chunks.count(), |index| {
                    task(chunks.range(index).start * dim..chunks.range(index).end * dim)
                });
            }
        }
        if in_place { x } else { flex::tensor(fresh, shape) }
    }

    /// The gradients of the branch, if `wanted`, and of gamma, if its branch was saved.
    fn scaled_backward(
        gradient: &FlexTensor,
        branch: Option<&FlexTensor>,
        gamma: Option<&FlexTensor>,
        keep: Option<&FlexTensor>,
        wanted: bool,
    ) -> (Option<FlexTensor>, Option<FlexTensor>) {
        let [batch, tokens, dim] = sizes(gradient);
        let chunks = Chunks::new(if dim == 0 { 0 } else { batch * tokens }, 16);
        let mut dbranch = buffer(if wanted { batch * tokens * dim } else { 0 });
        let mut partial = vec![0.0; if branch.is_some() { chunks.count() * dim } else { 0 }];
        {
            let (dbranch, partial) = (Shared::new(&mut dbranch), Shared::new(&mut partial));
            let dy = gradient.storage::<f32>();
            parallel(chunks.count(), |index| {
                for row in chunks.range(index) {
                    let elements = row * dim..(row + 1) * dim;
                    let dy = &dy[elements.clone()];
                    let keep = keep.map_or(1.0, |keep| keep.storage::<f32>()[row / tokens]);
                    if wanted {
                        // SAFETY: the rows are disjoint.
                        let dbranch = unsafe { dbranch.slice(elements.clone()) };
                        scale(dbranch, dy, gamma.map(|gamma| gamma.storage::<f32>()), keep);
                    }
                    if let Some(branch) = branch {
                        // SAFETY: each chunk has its own sums.
                        let sums = unsafe { partial.slice(index * dim..(index + 1) * dim) };
                        let branch = &branch.storage::<f32>()[elements];
                        add_scaled(sums, dy, Some(branch), keep);
                    }
                }
            });
        }
        let dgamma = branch.map(|_| {
            let mut sums = vec![0.0; dim];
            for partial in partial.chunks_exact(dim.max(1)) {
                sums.iter_mut().zip(partial).for_each(|(sum, partial)| *sum += partial);
            }
            flex::tensor(sums, [dim])
        });
        (wanted.then(|| flex::tensor(dbranch, [batch, tokens, dim])), dgamma)
    }

    vectorized! {
        /// `output += values * factors * factor`
        fn add_scaled(output: &mut [f32], values: &[f32], factors: Option<&[f32]>, factor: f32) {
            match factors {
                Some(factors) => output.iter_mut().zip(values).zip(factors).for_each(|((output, value), other)| *output += value * other * factor),
                None => output.iter_mut().zip(values).for_each(|(output, value)| *output += value * factor),
            }
        }

        /// `output = values * factors * factor`
        fn scale(output: &mut [f32], values: &[f32], factors: Option<&[f32]>, factor: f32) {
            match factors {
                Some(factors) => output.iter_mut().zip(values).zip(factors).for_each(|((output, value), other)| *output = value * other * factor),
                None => output.iter_mut().zip(values).for_each(|(output, value)| *output = value * factor),
            }
        }
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use super::super::testing::{assert_derivative, assert_same, assert_same_special};
    use super::*;

    type Residual = fn(Tensor<3>, Tensor<3>, Option<Tensor<1>>, Option<Tensor<1>>) -> Tensor<3>;

    fn run(
        operation: Residual,
        [batch, tokens, dim]: [usize; 3],
        gamma: bool,
        keep: bool,
    ) -> impl Fn(&[Tensor<1>]) -> Tensor<1> {
        move |leaf| {
            let factors: Vec<f32> =
                (0..batch).map(|sample| if sample % 3 == 1 { 0.0 } else { 1.25 }).collect();
            let keep = keep.then(|| Tensor::from_floats(factors.as_slice(), &leaf[0].device()));
            let [x, branch] = [0, 1].map(|index| leaf[index].clone().reshape([batch, tokens, dim]));
            operation(x, branch, gamma.then(|| leaf[2].clone()), keep).reshape([batch * tokens * dim])
        }
    }

    #[test]
    fn residual_agrees_with_its_definition() {
        for shape in [[2, 5, 7], [1, 1, 16], [64, 65, 24], [0, 4, 5], [5, 3, 64]] {
            let length = shape.iter().product();
            for (gamma, keep) in [(false, false), (false, true), (true, false), (true, true)] {
                let lengths = [length, length, shape[2]];
                let lengths = if gamma { &lengths[..] } else { &lengths[..2] };
                assert_same(
                    lengths,
                    run(residual, shape, gamma, keep),
                    run(residual_composed, shape, gamma, keep),
                );
            }
        }
    }

    #[test]
    fn residual_reads_views() {
        let view = |operation: Residual| {
            move |leaf: &[Tensor<1>]| {
                let x = leaf[0].clone().reshape([4, 6, 5]).permute([1, 2, 0]); // [6, 5, 4]
                let branch = leaf[1].clone().reshape([5, 6, 4]).swap_dims(0, 1);
                operation(x, branch, Some(leaf[2].clone()), None).swap_dims(0, 2).reshape([120])
            }
        };
        assert_same(&[120, 120, 4], view(residual), view(residual_composed));
    }

    #[test]
    fn residual_of_a_tensor_with_itself() {
        let twice = |operation: Residual| {
            move |leaf: &[Tensor<1>]| {
                let x = leaf[0].clone().reshape([2, 3, 4]);
                operation(x.clone(), x, None, None).reshape([24])
            }
        };
        assert_same(&[24], twice(residual), twice(residual_composed));
    }

    #[test]
    fn residual_has_the_derivative_of_central_differences() {
        assert_derivative(&[24, 24, 4], run(residual, [2, 3, 4], true, true));
    }

    #[test]
    fn residual_keeps_special_values() {
        assert_same_special(
            &[24, 24, 4],
            run(residual, [2, 3, 4], true, true),
            run(residual_composed, [2, 3, 4], true, true),
        );
    }
}
