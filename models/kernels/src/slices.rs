//! Arithmetic on plain slices, for programs that are built for size: here it is built for speed.

/// The partial sums of a dot product.
const LANES: usize = 8;

/// The dot products of a row with four others of the same length. Their terms are added in an order that depends on the length alone.
///
/// # Panics
///
/// If one of the others is shorter.
///
/// # Examples
///
/// ```
/// let (row, other) = ([1.0, 2.0, 3.0], [1.0, 1.0, 1.0]);
/// assert_eq!(vitrine_kernels::dot_products(&row, [&row, &other, &row, &other]), [14.0, 6.0, 14.0, 6.0]);
/// ```
#[inline(never)]
pub fn dot_products(row: &[f32], others: [&[f32]; 4]) -> [f32; 4] {
    let mut sums = [[0.0f32; LANES]; 4];
    let (whole, rest) = row.as_chunks::<LANES>();
    let others = others.map(|other| other[..row.len()].as_chunks::<LANES>());
    for (place, row) in whole.iter().enumerate() {
        for (sums, (other, _)) in sums.iter_mut().zip(&others) {
            let other = &other[place];
            for lane in 0..LANES {
                sums[lane] += row[lane] * other[lane];
            }
        }
    }
    std::array::from_fn(|index| {
        let of_rest = rest.iter().zip(others[index].1).map(|(a, b)| a * b);
        sums[index].iter().sum::<f32>() + of_rest.sum::<f32>()
    })
}

/// `sums += factor * values`, element by element, as far as both go.
///
/// # Examples
///
/// ```
/// let mut sums = [1.0, 2.0];
/// vitrine_kernels::add_scaled(&mut sums, 10.0, &[3.0, 4.0]);
/// assert_eq!(sums, [31.0, 42.0]);
/// ```
#[inline(never)]
pub fn add_scaled(sums: &mut [f32], factor: f32, values: &[f32]) {
    sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += factor * value);
}
