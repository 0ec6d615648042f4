//! NumPy's file format: a magic string, a version, the length of the header, the header, padded with blanks to a multiple
//! of 64 bytes, and the values.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail, ensure};
use vitrine_datasets::open_regular;

const MAGIC: &[u8] = b"\x93NUMPY";
/// Bytes before the header in version 1.0.
const BEFORE_HEADER: usize = 10;
/// The longest header that is read, in bytes. That of an array without fields has about a hundred.
const LONGEST_HEADER: usize = 1 << 16;

/// Everything before the values of an array in row-major order, in version 1.0. `kind` is NumPy's name of the type, such as
/// `<f4`.
pub(crate) fn header(kind: &str, shape: &[usize]) -> Vec<u8> {
    let sides = shape.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
    let comma = if shape.len() == 1 { "," } else { "" };
    let header = format!("{{'descr': '{kind}', 'fortran_order': False, 'shape': ({sides}{comma}), }}");
    let length = (BEFORE_HEADER + header.len() + 1).next_multiple_of(64) - BEFORE_HEADER;
    let mut file = [MAGIC, b"\x01\x00"].concat();
    file.extend((length as u16).to_le_bytes());
    file.extend(format!("{header:<width$}\n", width = length - 1).bytes());
    file
}

/// Whether a file begins as one of NumPy. One that cannot be read does not.
pub(crate) fn begins(path: &Path) -> bool {
    let mut start = [0; MAGIC.len()];
    let opened = open_regular(path, u64::MAX);
    opened.is_ok_and(|(mut file, _)| file.read_exact(&mut start).is_ok() && start == *MAGIC)
}

/// Reads a matrix of 32-bit floating point numbers, row by row.
///
/// # Shapes
/// - output: the numbers of rows and columns, and the values `[rows, columns]`
///
/// # Errors
/// If the file cannot be read, is cut short, or holds an array of another type or shape. The message names the file.
pub(crate) fn read_matrix(path: &Path) -> Result<([usize; 2], Vec<f32>)> {
    let named = || path.display().to_string();
    let (file, bytes) = open_regular(path, u64::MAX)
        .map_err(|problem| anyhow!("cannot be opened: {problem}"))
        .with_context(named)?;
    matrix_of(file, bytes).with_context(named)
}

fn matrix_of(file: File, bytes: u64) -> Result<([usize; 2], Vec<f32>)> {
    const CUT_SHORT: &str = "not a NumPy file (.npy), or cut short";
    let mut file = BufReader::new(file);
    let mut read = |length: usize| -> Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        file.read_exact(&mut bytes).context(CUT_SHORT)?;
        Ok(bytes)
    };
    let start = read(8)?;
    ensure!(start.starts_with(MAGIC), CUT_SHORT);
    // From version 2.0 on, the length has four bytes.
    let width = if start[6] == 1 { 2 } else { 4 };
    let length = read(width)?.iter().rev().fold(0, |length, &byte| (length << 8) | usize::from(byte));
    ensure!(length <= LONGEST_HEADER, CUT_SHORT);
    let header = String::from_utf8_lossy(&read(length)?).into_owned();
    let [rows, columns] = shape_of(&header)?;
    let values = rows.checked_mul(columns).filter(|values| *values <= usize::MAX / size_of::<f32>());
    let values = values.context("its shape is too large")?;
    let expected = 8 + width + length + values * size_of::<f32>();
    ensure!(
        bytes == expected as u64,
        "it has {bytes} bytes, and {expected} are expected for {rows} rows of {columns} values: it is cut short or damaged"
    );
    let mut matrix = vec![0.0f32; values];
    file.read_exact(bytemuck::cast_slice_mut(&mut matrix)).context(CUT_SHORT)?;
    Ok(([rows, columns], matrix))
}

/// The shape in a header, if the array is a matrix of 32-bit floating point numbers in row-major order.
fn shape_of(header: &str) -> Result<[usize; 2]> {
    let header: String = header.split_whitespace().collect::<String>().replace('"', "'");
    if !header.contains("'descr':'<f4'") {
        bail!("it does not hold 32-bit floating point numbers (NumPy's float32)");
    }
    ensure!(
        header.contains("'fortran_order':False"),
        "its values are in column-major order; save numpy.ascontiguousarray of them"
    );
    let sides = header.split_once("'shape':(").and_then(|(_, rest)| rest.split_once(')'));
    let sides = sides.map(|(sides, _)| sides.split(',').filter(|side| !side.is_empty()).map(str::parse));
    let sides: Vec<usize> =
        sides.into_iter().flatten().collect::<Result<_, _>>().context("its header is damaged")?;
    <[usize; 2]>::try_from(sides).map_err(|sides| anyhow!("its array has {} dimensions, not 2", sides.len()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_header_is_that_of_numpy() {
        // numpy.save of numpy.array([1.0], dtype="<f4")
        let mut expected =
            b"\x93NUMPY\x01\x00\x76\x00{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }".to_vec();
        expected.resize(127, b' ');
        expected.push(b'\n');
        assert_eq!(header("<f4", &[1]), expected);
    }

    #[test]
    fn a_matrix_is_read_as_it_was_written_and_other_files_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.npy");
        let bytes =
            |header: Vec<u8>, values: &[f32]| [header, bytemuck::cast_slice(values).to_vec()].concat();
        let whole = bytes(header("<f4", &[2, 3]), &[1.0, 2.0, 3.0, -4.0, 5.5, 0.0]);
        std::fs::write(&path, &whole).unwrap();
        assert_eq!(read_matrix(&path).unwrap(), ([2, 3], vec![1.0, 2.0, 3.0, -4.0, 5.5, 0.0]));
        let cases: [(Vec<u8>, &str); 6] = [
            (whole[..whole.len() - 1].to_vec(), "cut short"),
            (whole[..50].to_vec(), "cut short"),
            (b"no array".to_vec(), "not a NumPy file"),
            (bytes(header("<f8", &[1, 1]), &[0.0; 2]), "float32"),
            (bytes(header("<f4", &[6]), &[0.0; 6]), "1 dimensions"),
            (bytes(header("<f4", &[usize::MAX, 2]), &[0.0; 2]), "too large"),
        ];
        for (content, message) in cases {
            std::fs::write(&path, content).unwrap();
            let error = format!("{:#}", read_matrix(&path).unwrap_err());
            assert!(error.contains("a.npy") && error.contains(message), "{error}");
        }
    }
}
