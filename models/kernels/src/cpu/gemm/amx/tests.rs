//! Products on AMX, real and emulated, against products in float64 and in float32.

use super::super::library::gemm;
use super::super::small;
use super::super::testing::assert_product;
use super::super::view::{Epilogue, Matrix, MatrixMut};
use super::*;
use crate::testing::numbers;

/// Rows, inner elements and columns: whole panels, single tiles, parts of both in every dimension, several KC blocks of
/// inner elements, and factors larger than the caches.
const SIZES: [[usize; 3]; 12] = [
    [64, 64, 64],
    [32, 32, 32],
    [16, 16, 128],
    [65, 64, 65],
    [65, 65, 64],
    [17, 40, 100],
    [100, 33, 49],
    [8, 600, 9],
    [300, 513, 33],
    [33, 1030, 70],
    [33, 1030, 500],
    [1100, 65, 33],
];

/// The AMX of this CPU, if it has one, and the emulated one, which needs only AVX-512.
#[allow(clippy::print_stderr)] // a test may say why it does nothing
fn both_kinds() -> Vec<Amx> {
    let kinds: Vec<Amx> = [Amx::real(), Amx::emulated()].into_iter().flatten().collect();
    if kinds.is_empty() {
        eprintln!("not run: this CPU has no AVX-512 with VBMI");
    }
    kinds
}

/// The product of two row-major matrices that `multiply` computes.
fn run(
    [rows, inner, columns]: [usize; 3],
    (a, b): (&[f32], &[f32]),
    multiply: impl Fn(MatrixMut<'_>, Epilogue<'_>, f32, Matrix<'_>, Matrix<'_>),
) -> Vec<f32> {
    let mut out = vec![0.0; rows * columns];
    let (left, right) = (Matrix::row_major(a, inner), Matrix::row_major(b, columns));
    multiply(MatrixMut::row_major(&mut out, columns), Epilogue::Overwrite, 1.0, left, right);
    out
}

fn on_amx(amx: Amx, sizes: [usize; 3], factors: (&[f32], &[f32])) -> Vec<f32> {
    run(sizes, factors, |out, epilogue, scale, left, right| multiply(amx, out, epilogue, scale, left, right))
}

fn in_float32(sizes: [usize; 3], factors: (&[f32], &[f32])) -> Vec<f32> {
    run(sizes, factors, |out, epilogue, scale, left, right| gemm(out, epilogue, scale, left, right, false))
}

fn exact([rows, inner, columns]: [usize; 3], (a, b): (&[f32], &[f32])) -> Vec<f64> {
    let term = |row, column, step| f64::from(a[row * inner + step]) * f64::from(b[step * columns + column]);
    (0..rows * columns)
        .map(|index| (0..inner).map(|step| term(index / columns, index % columns, step)).sum())
        .collect()
}

/// The Euclidean distance between the found and the exact values, divided by the norm of the exact values.
fn relative_error(found: &[f32], exact: &[f64]) -> f64 {
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>().sqrt();
    let distance = norm(&mut found.iter().zip(exact).map(|(found, exact)| f64::from(*found) - exact));
    distance / norm(&mut exact.iter().copied())
}

#[test]
fn products_agree_with_exact_ones() {
    const FLOAT32: f64 = 1e-6;
    for amx in both_kinds() {
        for size in SIZES {
            assert_product(size, FLOAT32, |out, epilogue, scale, left, right| {
                multiply(amx, out, epilogue, scale, left, right);
            });
            assert_product(size, FLOAT32, |out, epilogue, scale, left, right| {
                RightPanels::new(amx, right).after(left, out, epilogue, scale);
            });
            assert_product(size, FLOAT32, |out, epilogue, scale, left, right| {
                LeftPanels::new(amx, left).before(right, out, epilogue, scale);
            });
        }
    }
}

#[test]
fn the_emulation_gives_the_bits_of_amx() {
    let [Some(real), Some(emulated)] = [Amx::real(), Amx::emulated()] else {
        eprintln!("not run: this CPU has no AMX");
        return;
    };
    for size @ [rows, inner, columns] in SIZES {
        let (a, b) = (numbers(rows * inner, 1), numbers(inner * columns, 2));
        assert_eq!(on_amx(real, size, (&a, &b)), on_amx(emulated, size, (&a, &b)), "{size:?}");
    }
}

#[test]
fn errors_over_a_whole_matrix_are_no_larger_than_those_of_float32() {
    for amx in both_kinds() {
        for size @ [rows, inner, columns] in [[128, 192, 96], [96, 768, 64], [96, 4160, 64]] {
            let (a, b) = (numbers(rows * inner, 1), numbers(inner * columns, 2));
            let exact = exact(size, (&a, &b));
            let found = relative_error(&on_amx(amx, size, (&a, &b)), &exact);
            let float32 = relative_error(&in_float32(size, (&a, &b)), &exact);
            assert!(found <= float32, "{size:?}: {found:e}, in float32 {float32:e}");
        }
    }
}

#[test]
fn rows_and_columns_of_any_size_keep_their_precision() {
    for amx in both_kinds() {
        let size @ [rows, inner, columns] = [48, 100, 40];
        let power = |index: usize, step: i32| 2.0f32.powi(step * (index as i32 - 20));
        let (mut a, mut b) = (numbers(rows * inner, 1), numbers(inner * columns, 2));
        let exact = exact(size, (&a, &b));
        a.iter_mut().enumerate().for_each(|(index, value)| *value *= power(index / inner, 2));
        b.iter_mut().enumerate().for_each(|(index, value)| *value *= power(index % columns, -2));
        for (index, (&found, &exact)) in on_amx(amx, size, (&a, &b)).iter().zip(&exact).enumerate() {
            let (row, column) = (index / columns, index % columns);
            let found = f64::from(found / power(row, 2) / power(column, -2));
            // A sum has 100 terms of at most 1.
            assert!((found - exact).abs() < 2e-5, "row {row}, column {column}: {found}, not {exact}");
        }
    }
}

/// Multiplies one inner element (a channel) of every `rows`-th row of the left factor by `by`, and divides the same
/// inner element of the right factor by it.
fn outlier(
    a: &mut [f32],
    b: &mut [f32],
    [_, inner, columns]: [usize; 3],
    channel: usize,
    by: f32,
    rows: usize,
) {
    a.chunks_exact_mut(inner).step_by(rows).for_each(|row| row[channel] *= by);
    b[channel * columns..][..columns].iter_mut().for_each(|value| *value /= by);
}

/// A change of two factors with these sizes.
type Change = fn(&mut [f32], &mut [f32], [usize; 3]);

/// Changes that make some elements much larger than the others of their row or column.
const UNEVEN: [(&str, Change); 8] = [
    ("a channel times 30, its weights over 30", |a, b, sizes| outlier(a, b, sizes, 7, 30.0, 1)),
    ("a channel times 1000, its weights over 1000", |a, b, sizes| outlier(a, b, sizes, 7, 1e3, 1)),
    ("a channel times 10^4, its weights over 10^4", |a, b, sizes| outlier(a, b, sizes, 7, 1e4, 1)),
    ("a channel of one row in eight", |a, b, sizes| outlier(a, b, sizes, 7, 1e4, 8)),
    ("a third of all channels", |a, b, sizes| {
        (0..sizes[1] / 3).for_each(|channel| outlier(a, b, sizes, channel, 1e4, 1));
    }),
    (
        "a channel of each factor, which are not multiplied with each other",
        |a, b, sizes @ [_, inner, columns]| {
            outlier(a, b, sizes, 7, 1e5, 1);
            a.chunks_exact_mut(inner).for_each(|row| row[9] *= 1e-5);
            b[9 * columns..][..columns].iter_mut().for_each(|value| *value *= 1e5);
        },
    ),
    ("a column of weights in four", |_, b, [_, inner, columns]| {
        (0..inner).for_each(|step| b[step * columns + step % columns / 4] *= 1e6);
    }),
    ("2^24 and ones by 0 and ones", |a, b, [_, inner, columns]| {
        a.fill(1.0);
        b.fill(1.0);
        a.iter_mut().step_by(inner).for_each(|value| *value = 16_777_216.0);
        b[..columns].fill(0.0);
    }),
];

#[test]
fn large_elements_times_small_ones_cost_no_precision() {
    for amx in both_kinds() {
        for (name, change) in UNEVEN {
            for size @ [rows, inner, columns] in [[96, 64, 64], [128, 512, 96], [100, 1030, 70]] {
                let (mut a, mut b) = (numbers(rows * inner, 1), numbers(inner * columns, 2));
                change(&mut a, &mut b, size);
                let exact = exact(size, (&a, &b));
                let found = relative_error(&on_amx(amx, size, (&a, &b)), &exact);
                let float32 = relative_error(&in_float32(size, (&a, &b)), &exact);
                assert!(found <= 4e-6, "{name}, {size:?}: {found:e}, in float32 {float32:e}");
            }
        }
    }
}

#[test]
fn no_single_result_is_lost() {
    let size @ [rows, inner, columns] = [96, 512, 64];
    let (mut a, mut b) = (numbers(rows * inner, 1), numbers(inner * columns, 2));
    a[40 * inner..][..inner].fill(1.0);
    a[40 * inner] = 16_777_216.0;
    (1..inner).for_each(|step| b[step * columns + 50] = 1.0);
    b[50] = 0.0;
    for amx in both_kinds() {
        assert_eq!(on_amx(amx, size, (&a, &b))[40 * columns + 50], 511.0);
    }
}

#[test]
fn ordinary_rows_and_rows_of_zeros_are_computed_on_amx() {
    let size @ [rows, inner, columns] = [128, 192, 96];
    let (mut a, mut b) = (numbers(rows * inner, 1), numbers(inner * columns, 2));
    a[3 * inner..20 * inner].fill(0.0);
    (0..inner).for_each(|step| b[step * columns + 33] = 0.0);
    let plain = |out: MatrixMut<'_>, epilogue: Epilogue<'_>, scale, left: Matrix<'_>, right: Matrix<'_>| {
        let instructions = small::takes(1, 1, 1).expect("a CPU that packs for AMX has AVX-512");
        small::multiply(instructions, out, epilogue, scale, left, right);
    };
    for amx in both_kinds() {
        let (found, plain) = (on_amx(amx, size, (&a, &b)), run(size, (&a, &b), plain));
        let blocks = (0..rows)
            .step_by(PANEL)
            .flat_map(|row| (0..columns).step_by(PANEL).map(move |column| (row, column)));
        assert_eq!(blocks.clone().count(), 12);
        for (row, column) in blocks {
            let mut block =
                (row..row + PANEL).flat_map(|row| (column..column + PANEL).map(move |c| row * columns + c));
            assert!(
                block.any(|index| found[index] != plain[index]),
                "the block at {row}, {column} was computed in float32"
            );
        }
        assert!(found[3 * columns..20 * columns].iter().all(|&value| value == 0.0));
        assert!(found.iter().skip(33).step_by(columns).all(|&value| value == 0.0));
    }
}

#[test]
fn the_largest_digits_and_sums_fit() {
    for amx in both_kinds() {
        for largest in [1.0, -1.0, f32::MAX.sqrt() / 64.0, 1e-15] {
            for inner in [512, 1030] {
                assert_near(
                    amx,
                    &vec![largest; 40 * inner],
                    &vec![largest.abs(); inner * 40],
                    [40, inner, 40],
                );
            }
        }
        // Zeros, and elements near the ends of float32, times factors that bring the products back into the middle.
        for (left, right) in [(0.0, 1.0), (f32::MAX, 1e-30), (-f32::MAX, 3e-32), (1e-31, 1e30), (1e33, 1e-33)]
        {
            assert_near(amx, &vec![left; 40 * 64], &vec![right; 64 * 40], [40, 64, 40]);
        }
    }
}

#[test]
fn products_in_the_range_of_float32_are_finite_whatever_their_factors() {
    let size @ [rows, inner, columns] = [96, 64, 64];
    let meeting_zeros = |large: f32| {
        let (mut a, mut b) = (vec![1.0; rows * inner], vec![1.0; inner * columns]);
        (0..rows).for_each(|row| a[row * inner..][..2].copy_from_slice(&[large, 0.0]));
        b[..columns].fill(0.0);
        b[columns..2 * columns].fill(large);
        (a, b)
    };
    let next_to_ones = || {
        let mut a = vec![1.0; rows * inner];
        a.iter_mut().step_by(inner).for_each(|value| *value = f32::MAX);
        (a, vec![1.0 / 128.0; inner * columns])
    };
    for amx in both_kinds() {
        for (a, b) in [meeting_zeros(4e19), meeting_zeros(1e33), meeting_zeros(f32::MAX), next_to_ones()] {
            assert_near(amx, &a, &b, size);
            assert!(relative_error(&on_amx(amx, size, (&a, &b)), &exact(size, (&a, &b))) < 1e-6);
        }
    }
}

/// Checks products against sums in float64: an error of 2^-20 of the product of the largest elements for each term.
fn assert_near(amx: Amx, a: &[f32], b: &[f32], size @ [_, inner, columns]: [usize; 3]) {
    let largest = |values: &mut dyn Iterator<Item = &f32>| {
        values.fold(0.0f64, |largest, value| largest.max(f64::from(value.abs())))
    };
    for (index, (found, exact)) in on_amx(amx, size, (a, b)).iter().zip(exact(size, (a, b))).enumerate() {
        let (row, column) = (index / columns, index % columns);
        let row_largest = largest(&mut a[row * inner..][..inner].iter());
        let column_largest = largest(&mut b[column..].iter().step_by(columns));
        let bound = inner as f64 * row_largest * column_largest / f64::from(1 << 20);
        assert!(
            (f64::from(*found) - exact).abs() <= bound,
            "row {row}, column {column}: {found:e}, not {exact:e}"
        );
    }
}

#[test]
fn nan_and_infinities_give_the_same_as_in_float32() {
    let size @ [rows, inner, columns] = [40, 600, 60];
    let kind = |value: &f32| (value.is_nan(), value.is_infinite().then_some(*value > 0.0));
    for amx in both_kinds() {
        for special in [
            f32::NAN,
            f32::INFINITY,
            f32::NEG_INFINITY,
            f32::from_bits(0x7f80_0001),
            f32::from_bits(u32::MAX),
        ] {
            let (mut a, b) = (numbers(rows * inner, 1), numbers(inner * columns, 2));
            a[20 * inner + 530] = special;
            let expected: Vec<_> = in_float32(size, (&a, &b)).iter().map(kind).collect();
            assert_eq!(on_amx(amx, size, (&a, &b)).iter().map(kind).collect::<Vec<_>>(), expected);
            // The same in the right factor, transposed and packed before the product.
            let (left, right) = (Matrix::row_major(&a, inner), Matrix::row_major(&b, columns));
            let (left, right) = (right.transposed(), left.transposed());
            let mut out = vec![0.0; columns * rows];
            let target = MatrixMut::row_major(&mut out, rows);
            RightPanels::new(amx, right).after(left, target, Epilogue::Overwrite, 1.0);
            for (index, value) in out.iter().enumerate() {
                assert_eq!(kind(value), expected[index % rows * columns + index / rows], "element {index}");
            }
        }
    }
}
