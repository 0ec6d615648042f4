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

/// Whether all values are finite.
///
/// # Examples
///
/// ```
/// assert!(vitrine_kernels::all_finite(&[0.0, f32::MAX]));
/// assert!(!vitrine_kernels::all_finite(&[0.0, f32::NAN]) && !vitrine_kernels::all_finite(&[f32::INFINITY]));
/// ```
#[inline(never)]
pub fn all_finite(values: &[f32]) -> bool {
    // Without a way out of the loop, whole vectors are checked.
    values.iter().fold(true, |finite, value| finite & value.is_finite())
}

/// Sets the length of a vector; new values are 0.
///
/// # Examples
///
/// ```
/// let mut values = vec![1.0];
/// vitrine_kernels::resize_with_zeros(&mut values, 3);
/// assert_eq!(values, [1.0, 0.0, 0.0]);
/// ```
#[inline(never)]
pub fn resize_with_zeros(values: &mut Vec<f32>, length: usize) {
    values.resize(length, 0.0);
}

/// `values = scale * bytes`, for signed bytes, as far as both go.
///
/// # Examples
///
/// ```
/// let mut values = [0.0; 2];
/// vitrine_kernels::scale_bytes(&mut values, 0.5, &[4, 0xff]);
/// assert_eq!(values, [2.0, -0.5]);
/// ```
#[inline(never)]
pub fn scale_bytes(values: &mut [f32], scale: f32, bytes: &[u8]) {
    values.iter_mut().zip(bytes).for_each(|(value, byte)| *value = f32::from(byte.cast_signed()) * scale);
}
