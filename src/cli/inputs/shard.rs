//! One of several parts of the inputs: `--shard I/N`.

use std::path::Path;
use std::str::FromStr;

use anyhow::Result;
use sha2::{Digest, Sha256};

use crate::usage::usage;

/// The value of `--shard`: `I/N`, or `auto` and `auto/N`, whose number a scheduler gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShardArg {
    Stated(Shard),
    /// The number of shards, if it is stated.
    Auto(Option<u32>),
}

/// A part of the inputs, numbered from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shard {
    pub(crate) index: u32,
    pub(crate) count: u32,
}

impl FromStr for ShardArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| text.parse::<u32>().map_err(|_| format!("{text:?} is no number"));
        let Some((index, count)) = text.split_once('/') else {
            return match text {
                "auto" => Ok(Self::Auto(None)),
                _ => Err("give I/N, such as 0/16 for the first of 16, or auto".to_owned()),
            };
        };
        let count = number(count)?;
        if count == 0 {
            return Err("there is at least one shard".to_owned());
        }
        match index {
            "auto" => Ok(Self::Auto(Some(count))),
            _ => Shard::new(number(index)?, count).map(Self::Stated),
        }
    }
}

impl ShardArg {
    /// The shard, whose number and, if it is not stated, count `variable` gives: the environment variables of Slurm's job arrays, or of
    /// Kubernetes's indexed jobs, which know no count.
    ///
    /// # Errors
    /// If a variable is missing or does not fit.
    pub(crate) fn resolve(self, variable: impl Fn(&str) -> Option<String>) -> Result<Shard> {
        let stated = match self {
            Self::Stated(shard) => return Ok(shard),
            Self::Auto(count) => count,
        };
        let number = |name: &str| -> Result<Option<u32>> {
            let Some(text) = variable(name) else { return Ok(None) };
            match text.parse() {
                Ok(number) => Ok(Some(number)),
                Err(_) => usage!("--shard auto: {name} is {text:?}, which is no number"),
            }
        };
        let (index, count) = if let Some(task) = number("SLURM_ARRAY_TASK_ID")? {
            let first = number("SLURM_ARRAY_TASK_MIN")?.unwrap_or(0);
            let step = number("SLURM_ARRAY_TASK_STEP")?.unwrap_or(1).max(1);
            (task.saturating_sub(first) / step, number("SLURM_ARRAY_TASK_COUNT")?)
        } else if let Some(index) = number("JOB_COMPLETION_INDEX")? {
            (index, None)
        } else {
            usage!(
                "--shard auto: neither SLURM_ARRAY_TASK_ID nor JOB_COMPLETION_INDEX is set; give --shard I/N"
            );
        };
        let Some(count) = stated.or(count) else {
            usage!(
                "--shard auto: the environment does not say how many shards there are; give --shard auto/N"
            );
        };
        match Shard::new(index, count) {
            Ok(shard) => Ok(shard),
            Err(problem) => usage!("--shard auto: {problem}"),
        }
    }
}

impl Shard {
    fn new(index: u32, count: u32) -> Result<Self, String> {
        if index >= count {
            return Err(format!(
                "{count} shards are numbered from 0 to {}, not {index}",
                count.saturating_sub(1)
            ));
        }
        Ok(Self { index, count })
    }

    /// Whether an input belongs to this shard. It depends on the path alone, as the command names it, so that no input changes its shard
    /// because others come or go.
    pub(crate) fn takes(self, path: &Path) -> bool {
        let hash = Sha256::digest(path.as_os_str().as_encoded_bytes());
        let [first, ..] = hash.as_chunks::<8>().0 else { return false };
        u64::from_be_bytes(*first) % u64::from(self.count) == u64::from(self.index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolved(text: &str, variables: &[(&str, &str)]) -> Result<Shard, String> {
        let variable = |name: &str| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        };
        text.parse::<ShardArg>()?.resolve(variable).map_err(|error| error.to_string())
    }

    #[test]
    fn a_shard_is_stated_or_that_of_a_scheduler() {
        let shard = |index, count| Ok(Shard { index, count });
        assert_eq!(resolved("3/16", &[]), shard(3, 16));
        let slurm = [
            ("SLURM_ARRAY_TASK_ID", "14"),
            ("SLURM_ARRAY_TASK_MIN", "10"),
            ("SLURM_ARRAY_TASK_STEP", "2"),
            ("SLURM_ARRAY_TASK_COUNT", "8"),
        ];
        assert_eq!(resolved("auto", &slurm), shard(2, 8));
        assert_eq!(resolved("auto/3", &slurm), shard(2, 3));
        assert_eq!(resolved("auto/16", &[("JOB_COMPLETION_INDEX", "5")]), shard(5, 16));
    }

    #[test]
    fn what_is_no_shard_is_refused_with_the_way_out() {
        let kubernetes = [("JOB_COMPLETION_INDEX", "5")];
        for (text, variables, word) in [
            ("16/16", &[][..], "numbered from 0 to 15"),
            ("1/0", &[], "at least one"),
            ("1", &[], "give I/N"),
            ("a/4", &[], "\"a\" is no number"),
            ("-1/4", &[], "\"-1\" is no number"),
            ("auto", &[], "give --shard I/N"),
            ("auto", &kubernetes, "give --shard auto/N"),
            ("auto/5", &kubernetes, "numbered from 0 to 4"),
            ("auto/5", &[("SLURM_ARRAY_TASK_ID", "x")], "SLURM_ARRAY_TASK_ID is \"x\""),
        ] {
            let error = resolved(text, variables).expect_err(text);
            assert!(error.contains(word), "{text}: {error}");
        }
    }

    #[test]
    fn every_path_is_in_one_shard_and_shards_have_about_the_same_size() {
        let mut sizes = [0; 7];
        for number in 0..7000 {
            let path = format!("photos/{number}.jpg");
            let shards: Vec<usize> = (0..7)
                .filter(|&index| Shard { index, count: 7 }.takes(Path::new(&path)))
                .map(|index| index as usize)
                .collect();
            assert_eq!(shards.len(), 1, "{path}");
            sizes[shards[0]] += 1;
        }
        assert!(sizes.iter().all(|size| (900..1100).contains(size)), "{sizes:?}");
        // Parts that were finished by another version stay valid.
        assert!(Shard { index: 9, count: 16 }.takes(Path::new("photos/0.jpg")));
    }
}
