//! The confusion matrix, stored sparsely, since it has no more nonzero cells than there are images.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The largest number of classes for which JSON holds the whole matrix, up to a million numbers. With more classes it
/// holds only the nonzero cells: the whole matrix of 21,841 classes would have 477 million.
pub const WHOLE_MATRIX_CLASSES: usize = 1000;

/// The confusion matrix: for each pair of classes, the number of images of the first for which the second was
/// predicted.
///
/// In JSON it is the key `confusion`, the whole matrix (rows true, columns predicted), or with more than
/// [`WHOLE_MATRIX_CLASSES`] classes the key `confusion_cells`, a list of `[true, predicted, count]` in this order. With
/// several labels an image there is neither key, since no label is mistaken for another.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "ConfusionJson", into = "ConfusionJson")]
pub struct Confusion {
    /// Counts above zero, by true and predicted class.
    counts: BTreeMap<(usize, usize), usize>,
    form: ConfusionForm,
}

/// What is serialized of a confusion matrix.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum ConfusionForm {
    /// The whole matrix of this number of classes.
    Whole(usize),
    /// The nonzero cells.
    Cells,
    /// Nothing.
    #[default]
    Absent,
}

/// One nonzero cell of a confusion matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConfusionCell {
    /// The true class.
    pub truth: usize,
    /// The predicted class.
    pub predicted: usize,
    /// The number of images.
    pub count: usize,
}

/// The form of a [`Confusion`] in JSON, which has one of the two keys.
#[derive(Serialize, Deserialize)]
struct ConfusionJson {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    confusion: Option<Vec<Vec<usize>>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    confusion_cells: Option<Vec<[usize; 3]>>,
}

impl Confusion {
    /// A matrix of zeros for a model with this number of classes.
    pub(super) fn new(classes: usize) -> Self {
        let form = match classes {
            ..=WHOLE_MATRIX_CLASSES => ConfusionForm::Whole(classes),
            _ => ConfusionForm::Cells,
        };
        Self { counts: BTreeMap::new(), form }
    }

    /// Counts a prediction.
    pub(super) fn add(&mut self, truth: usize, predicted: usize) {
        *self.counts.entry((truth, predicted)).or_default() += 1;
    }

    /// The number of images of class `truth` for which class `predicted` was predicted.
    pub fn count(&self, truth: usize, predicted: usize) -> usize {
        self.counts.get(&(truth, predicted)).copied().unwrap_or(0)
    }

    /// The nonzero cells, row by row.
    pub fn cells(&self) -> impl Iterator<Item = ConfusionCell> {
        self.counts.iter().map(|(&(truth, predicted), &count)| ConfusionCell { truth, predicted, count })
    }
}

impl TryFrom<ConfusionJson> for Confusion {
    type Error = &'static str;

    /// # Errors
    /// If the matrix is not square, as in a damaged file.
    fn try_from(ConfusionJson { confusion, confusion_cells }: ConfusionJson) -> Result<Self, Self::Error> {
        let form = match (&confusion, &confusion_cells) {
            (None, None) => ConfusionForm::Absent,
            (Some(matrix), None) if matrix.len() <= WHOLE_MATRIX_CLASSES => {
                ConfusionForm::Whole(matrix.len())
            }
            _ => ConfusionForm::Cells,
        };
        let matrix = confusion.unwrap_or_default();
        if matrix.iter().any(|row| row.len() != matrix.len()) {
            return Err("`confusion` is not a square matrix");
        }
        let of_matrix = matrix.into_iter().enumerate().flat_map(|(truth, row)| {
            row.into_iter().enumerate().map(move |(predicted, count)| [truth, predicted, count])
        });
        let cells = of_matrix.chain(confusion_cells.into_iter().flatten()).filter(|[.., count]| *count > 0);
        Ok(Self {
            counts: cells.map(|[truth, predicted, count]| ((truth, predicted), count)).collect(),
            form,
        })
    }
}

impl From<Confusion> for ConfusionJson {
    fn from(confusion: Confusion) -> Self {
        let cells = confusion.cells();
        let classes = match confusion.form {
            ConfusionForm::Whole(classes) => classes,
            ConfusionForm::Cells => {
                let cells = cells.map(|cell| [cell.truth, cell.predicted, cell.count]);
                return Self { confusion: None, confusion_cells: Some(cells.collect()) };
            }
            ConfusionForm::Absent => return Self { confusion: None, confusion_cells: None },
        };
        let mut matrix = vec![vec![0; classes]; classes];
        for ConfusionCell { truth, predicted, count } in cells {
            matrix[truth][predicted] = count;
        }
        Self { confusion: Some(matrix), confusion_cells: None }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use serde_json::json;

    use super::*;

    fn of(classes: usize, pairs: &[(usize, usize)]) -> Confusion {
        let mut confusion = Confusion::new(classes);
        pairs.iter().for_each(|&(truth, predicted)| confusion.add(truth, predicted));
        confusion
    }

    #[test]
    fn json_holds_a_matrix_for_few_classes_and_cells_for_many() {
        let pairs = [(2, 0), (0, 0), (2, 0), (1, 2)];
        let few = of(3, &pairs);
        let written = serde_json::to_value(&few).unwrap();
        assert_eq!(written, json!({ "confusion": [[1, 0, 0], [0, 0, 1], [2, 0, 0]] }));
        assert_eq!(serde_json::from_value::<Confusion>(written).unwrap(), few);
        let many = of(WHOLE_MATRIX_CLASSES + 1, &pairs);
        let written = serde_json::to_value(&many).unwrap();
        assert_eq!(written, json!({ "confusion_cells": [[0, 0, 1], [1, 2, 1], [2, 0, 2]] }));
        assert_eq!(serde_json::from_value::<Confusion>(written).unwrap(), many);
        let last = serde_json::to_value(of(WHOLE_MATRIX_CLASSES, &pairs)).unwrap();
        assert_eq!(last["confusion"].as_array().unwrap().len(), WHOLE_MATRIX_CLASSES);
    }

    #[test]
    fn a_large_matrix_of_an_earlier_version_is_read() {
        let classes = WHOLE_MATRIX_CLASSES + 1;
        let mut rows = vec![vec![0; classes]; classes];
        rows[4][9] = 7;
        let read: Confusion = serde_json::from_value(json!({ "confusion": rows })).unwrap();
        assert_eq!((read.count(4, 9), read.count(9, 4), read.cells().count()), (7, 0, 1));
        assert!(serde_json::to_value(&read).unwrap().get("confusion_cells").is_some());
        let error = serde_json::from_value::<Confusion>(json!({ "confusion": [[1, 2], [3]] })).unwrap_err();
        assert!(error.to_string().contains("square"), "{error}");
    }
}
