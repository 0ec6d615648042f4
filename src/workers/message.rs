//! A task and its answer as numbers, which is what the engine between the processes carries.

use serde::{Deserialize, Serialize};
use vitrine_models::ImageSize;

use super::Task;
use crate::learner::micro_batch::{Contribution, MicroBatch, ReplicaConfig};

/// The longest header in bytes.
const LONGEST_HEADER: usize = 1 << 20;
/// Numbers at the end of an answer: the loss, and whether it is an error.
const LAST: usize = 2;

/// What a task says besides weights, images, and targets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    /// The model.
    pub config: ReplicaConfig,
    /// Number of images.
    pub size: usize,
    /// Height and width of the images.
    pub image_size: ImageSize,
    /// The seed of dropout and stochastic depth, which TOML cannot hold.
    #[serde(skip)]
    pub seed: u64,
}

impl Header {
    /// The header of a task.
    pub fn of(task: &Task) -> Self {
        let MicroBatch { size, image_size, seed, .. } = task.batch;
        Self { config: ReplicaConfig::clone(&task.config), size, image_size, seed }
    }

    /// The header as numbers: the seed, the length of the rest as TOML, which keeps every bit of a float, and eight bytes of it in each
    /// of the others.
    pub fn to_words(&self) -> Vec<u64> {
        let text = toml::to_string(self).expect("a header has a form as TOML");
        let bytes = text.as_bytes();
        let word = |chunk: &[u8]| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            u64::from_le_bytes(word)
        };
        [self.seed, bytes.len() as u64].into_iter().chain(bytes.chunks(8).map(word)).collect()
    }

    /// Reads [`to_words`](Self::to_words).
    ///
    /// # Errors
    /// If the words are no header of this version.
    pub fn from_words(words: &[u64]) -> Result<Self, String> {
        let [seed, length, words @ ..] = words else { return Err("the header is missing".to_owned()) };
        let length = usize::try_from(*length).unwrap_or(usize::MAX);
        if length > LONGEST_HEADER || length.div_ceil(8) != words.len() {
            return Err(format!("the header states {length} bytes and has {} words", words.len()));
        }
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).take(length).collect();
        let header =
            toml::from_slice(&bytes).map_err(|error| format!("the header cannot be read: {error}"))?;
        Ok(Self { seed: *seed, ..header })
    }
}

/// The length of the answer about `images` images, from a model with tensors of these sizes.
pub fn answer_length(sizes: &[usize], images: usize) -> usize {
    sizes.iter().sum::<usize>() + sizes.len() + images + LAST
}

/// An answer of `length` numbers, which is that of [`answer_length`], or else an error that says so. The values of a contribution come
/// first, so that they are not moved.
pub fn write_answer(outcome: Result<Contribution, String>, length: usize) -> Vec<f32> {
    let outcome = outcome.and_then(|contribution| {
        let Contribution { loss, answers, has_gradient, values: mut numbers } = contribution;
        numbers.extend(has_gradient.iter().map(|has| f32::from(u8::from(*has))));
        numbers.extend(answers.iter().map(|answer| *answer as f32));
        numbers.extend([loss, 0.0]);
        let found = numbers.len();
        if found == length {
            Ok(numbers)
        } else {
            Err(format!("the answer has {found} numbers, not {length}"))
        }
    });
    outcome.unwrap_or_else(|message| {
        let mut numbers = write_text(&message, length.saturating_sub(1));
        numbers.push(1.0);
        numbers
    })
}

/// Reads [`write_answer`].
///
/// # Errors
/// The message of an answer that is an error, or what is wrong with it.
pub fn read_answer(mut numbers: Vec<f32>, sizes: &[usize], images: usize) -> Result<Contribution, String> {
    let (found, wanted) = (numbers.len(), answer_length(sizes, images));
    if found != wanted {
        return Err(format!("the answer has {found} numbers, not {wanted}"));
    }
    let values = sizes.iter().sum();
    if numbers[found - 1] != 0.0 {
        return Err(read_text(&numbers[..found - 1]));
    }
    let loss = numbers[found - LAST];
    let (has_gradient, answers) = numbers[values..found - LAST].split_at(sizes.len());
    let has_gradient = has_gradient.iter().map(|has| *has != 0.0).collect();
    let answers = answers.iter().map(|answer| *answer as u32).collect();
    numbers.truncate(values);
    Ok(Contribution { loss, answers, has_gradient, values: numbers })
}

/// A text as numbers, one a byte, filled with zeros up to `length` of them, or cut.
pub fn write_text(text: &str, length: usize) -> Vec<f32> {
    let mut numbers: Vec<f32> = text.bytes().map(f32::from).take(length).collect();
    numbers.resize(length, 0.0);
    numbers
}

/// Reads [`write_text`], up to the first zero. Control characters become spaces.
pub fn read_text(numbers: &[f32]) -> String {
    let bytes =
        numbers.iter().take_while(|number| **number != 0.0).map(|number| *number as u8).collect::<Vec<_>>();
    String::from_utf8_lossy(&bytes).replace(char::is_control, " ")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use vitrine_models::{ModelConfig, preset};

    use super::*;
    use crate::recipe::Precision;

    fn header() -> Header {
        // A ratio whose last digit matters.
        let model =
            ModelConfig { mlp_ratio: 320.0 / 176.0, ..preset::find("hybrid_pico_patch4_32").unwrap() };
        let image_size = model.image_size;
        let config = ReplicaConfig {
            model,
            freeze: None,
            multi_label: false,
            gradient_checkpointing: true,
            precision: Precision::Bf16,
        };
        Header { config, size: 7, image_size, seed: u64::MAX }
    }

    #[test]
    fn headers_are_read_as_they_were_written_and_others_are_refused() {
        let words = header().to_words();
        assert_eq!(Header::from_words(&words).unwrap(), header());
        let problem = |words: &[u64]| Header::from_words(words).unwrap_err();
        assert!(problem(&[]).contains("missing"));
        assert!(problem(&words[..words.len() - 1]).contains("bytes"));
        assert!(problem(&[0, u64::MAX, 1, 2]).contains("bytes"));
        let mut garbage = words.clone();
        garbage[5] = u64::MAX;
        assert!(problem(&garbage).contains("cannot be read"));
        let later = format!("later = 1\n{}", toml::to_string(&header()).unwrap());
        let mut words = vec![0, later.len() as u64];
        words.extend(later.as_bytes().chunks(8).map(|chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            u64::from_le_bytes(word)
        }));
        assert!(problem(&words).contains("later"), "{}", problem(&words));
    }

    #[test]
    fn answers_are_read_as_they_were_written_to_the_bit() {
        let sizes = [2, 3];
        let contribution = Contribution {
            loss: 0.1,
            answers: vec![3, 1_000_000],
            has_gradient: vec![true, false],
            values: vec![f32::MIN_POSITIVE / 2.0, -0.0, f32::NAN, f32::INFINITY, 1.0 / 3.0],
        };
        let length = answer_length(&sizes, 2);
        let numbers = write_answer(Ok(contribution.clone()), length);
        let read = read_answer(numbers, &sizes, 2).unwrap();
        let bits = |contribution: &Contribution| -> Vec<u32> {
            contribution.values.iter().map(|value| value.to_bits()).collect()
        };
        assert_eq!(bits(&read), bits(&contribution));
        assert_eq!(
            (read.loss, read.answers, read.has_gradient),
            (0.1, vec![3, 1_000_000], vec![true, false])
        );
        for (outcome, length, part) in [
            (Err("no memory for 7 images".to_owned()), 60, "no memory for 7 images"),
            (Err("no memory".to_owned()), 6, "no me"),
            (Ok(contribution), length + 40, "the answer has 11 numbers, not 51"),
        ] {
            let numbers = write_answer(outcome, length);
            assert_eq!(numbers.len(), length);
            let sizes = [length - LAST - 1];
            assert_eq!(read_answer(numbers, &sizes, 0).unwrap_err(), part);
        }
        assert!(read_answer(vec![0.0; 5], &sizes, 2).unwrap_err().contains("5 numbers"));
    }

    #[test]
    fn texts_are_cut_and_cleaned() {
        assert_eq!(read_text(&write_text("größer", 20)), "größer");
        assert_eq!(read_text(&write_text("larger", 3)), "lar");
        assert_eq!(read_text(&[65.0, 27.0, 66.0, 0.0, 67.0]), "A B");
    }
}
