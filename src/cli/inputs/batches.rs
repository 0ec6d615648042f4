//! Batches of inputs that another thread lists. A batch is complete when it is full, or when no further input arrives
//! for a tenth of a second.

use std::io::{BufRead, Read};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result};

/// How long a partial batch waits for the next input: a delay that a person hardly notices, but long enough to list
/// more files of a folder.
const PATIENCE: Duration = Duration::from_millis(100);
/// The number of inputs that may be listed ahead of their use.
const LISTED_AHEAD: usize = 1024;
/// The longest path that is accepted in a list, in bytes. Systems do not accept longer ones.
const LONGEST_PATH: u64 = 1 << 16;

/// An iterator over batches of the inputs that another thread lists.
pub(super) struct Batches<T> {
    inputs: Receiver<T>,
    /// The thread that lists them, until it has ended.
    lister: Option<JoinHandle<()>>,
    size: usize,
    patience: Duration,
}

impl<T: Send + 'static> Batches<T> {
    /// Batches of up to `size` inputs, in the order in which `list` sends them in a thread of its own.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub(super) fn of(size: usize, list: impl FnOnce(SyncSender<T>) + Send + 'static) -> Result<Self> {
        let (sender, receiver) = sync_channel(LISTED_AHEAD);
        let list = move || list(sender);
        let lister =
            thread::Builder::new().spawn(list).context("a thread that lists the inputs cannot be started")?;
        Ok(Self { inputs: receiver, lister: Some(lister), size, patience: PATIENCE })
    }
}

impl<T> Iterator for Batches<T> {
    type Item = Vec<T>;

    fn next(&mut self) -> Option<Vec<T>> {
        let Ok(first) = self.inputs.recv() else {
            // If the thread has panicked, these are not all inputs.
            let ended = self.lister.take().map_or(Ok(()), JoinHandle::join);
            ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            return None;
        };
        let mut batch = vec![first];
        while batch.len() < self.size {
            match self.inputs.recv_timeout(self.patience) {
                Ok(input) => batch.push(input),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
            }
        }
        Some(batch)
    }
}

/// The paths of a list in which the byte `separator`, a line break or a zero, ends each path. Empty paths are skipped,
/// and nothing is read after an error.
pub(super) fn listed(reader: impl BufRead, separator: u8) -> impl Iterator<Item = Result<PathBuf, String>> {
    let mut reader = Some(reader);
    std::iter::from_fn(move || {
        let path = next_path(reader.as_mut()?, separator);
        if !matches!(path, Some(Ok(_))) {
            reader = None;
        }
        path
    })
}

fn next_path(reader: &mut impl BufRead, separator: u8) -> Option<Result<PathBuf, String>> {
    loop {
        let mut bytes = Vec::new();
        match reader.by_ref().take(LONGEST_PATH).read_until(separator, &mut bytes) {
            Err(error) => return Some(Err(error.to_string())),
            Ok(0) => return None,
            Ok(_) => {}
        }
        if bytes.last() == Some(&separator) {
            bytes.pop();
        } else if bytes.len() as u64 == LONGEST_PATH {
            return Some(Err(format!("not a list of paths: one is longer than {LONGEST_PATH} bytes")));
        }
        if separator == b'\n' && bytes.last() == Some(&b'\r') {
            bytes.pop();
        }
        if bytes.contains(&0) {
            return Some(Err("zero bytes separate the paths of this list: give -0".to_owned()));
        }
        if !bytes.is_empty() {
            return Some(path(bytes));
        }
    }
}

#[cfg(unix)]
fn path(bytes: Vec<u8>) -> Result<PathBuf, String> {
    use std::os::unix::ffi::OsStringExt;
    Ok(std::ffi::OsString::from_vec(bytes).into())
}

#[cfg(not(unix))]
fn path(bytes: Vec<u8>) -> Result<PathBuf, String> {
    String::from_utf8(bytes).map(PathBuf::from).map_err(|_| "a path is not UTF-8".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_full_or_has_the_inputs_that_arrived_in_time() {
        let (sender, inputs) = sync_channel(8);
        // The first iterator does not wait at all, and the second waits longer than any delay of a busy machine.
        let mut hasty = Batches { inputs, lister: None, size: 3, patience: Duration::ZERO };
        sender.send(1).unwrap();
        assert_eq!(hasty.next(), Some(vec![1]), "a partial batch is returned although the sender is open");
        let mut patient = Batches { patience: Duration::from_secs(600), ..hasty };
        (2..=5).for_each(|input| sender.send(input).unwrap());
        assert_eq!(patient.next(), Some(vec![2, 3, 4]));
        drop(sender);
        assert_eq!((patient.next(), patient.next()), (Some(vec![5]), None));
        let list = |sender: SyncSender<u32>| (0..5000).for_each(|number| sender.send(number).unwrap());
        let numbers: Vec<Vec<u32>> = Batches::of(4, list).unwrap().collect();
        assert_eq!(
            numbers.concat(),
            (0..5000).collect::<Vec<_>>(),
            "more inputs than may be listed ahead arrive in order"
        );
    }

    #[test]
    fn inputs_that_a_panic_ends_are_not_taken_for_all_of_them() {
        let list = |sender: SyncSender<u32>| {
            sender.send(1).unwrap();
            panic!("a bug");
        };
        let mut batches = Batches::of(1, list).unwrap();
        assert_eq!(batches.next(), Some(vec![1]));
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| batches.next()));
        assert!(ended.is_err());
    }

    #[test]
    fn paths_in_a_list_are_separated_by_line_breaks_or_zeros() {
        let paths = |text: &[u8], separator| -> Vec<String> {
            let shown = |path: Result<PathBuf, String>| {
                path.map_or_else(|error| error, |path| path.display().to_string())
            };
            listed(text, separator).map(shown).collect()
        };
        assert_eq!(paths(b"a b.png\n\nc\r\nd", b'\n'), ["a b.png", "c", "d"]);
        assert_eq!(paths(b"a\nb.png\0\0c\r\0", 0), ["a\nb.png", "c\r"]);
        let endless = vec![b'x'; 1 << 20];
        let paths = paths(&endless, b'\n');
        assert!(paths.len() == 1 && paths[0].contains("not a list of paths"), "{paths:?}");
    }

    #[cfg(unix)]
    #[test]
    fn a_path_need_not_be_utf8() {
        use std::os::unix::ffi::OsStrExt;
        let path = listed(&b"\xff.png\n"[..], b'\n').next().unwrap().unwrap();
        assert_eq!(path.as_os_str().as_bytes(), b"\xff.png");
    }
}
