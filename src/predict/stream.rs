//! Inference on a stream of images of any length, in which the next images are decoded while the model computes.

use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;

use anyhow::{Context, Result};
use vitrine_datasets::ImageSource;

use super::decoder::{Decoded, Decoder};
use super::{Output, Predictor};
use crate::events::EventSink;

/// The number of decoded batches that may wait for the model.
const BATCHES_AHEAD: usize = 2;

/// One entry of a stream: an image, or the error that prevents it, with a tag by which the caller recognizes it.
pub struct Asked<T, A> {
    /// The caller's identification of the entry, such as a path.
    pub tag: T,
    /// The image in a batch of the input, and the answer for it in a batch of the output.
    pub value: Result<A>,
}

/// A batch whose images are decoded. Entries without an image keep their error.
struct DecodedBatch<T> {
    entries: Vec<Asked<T, ()>>,
    decoded: Decoded,
}

impl Predictor {
    /// Computes the answers for every batch of `batches` and passes them to `handle`, in order. The answers for the
    /// first batch are passed on before the second batch is requested. From then on, a thread decodes ahead, in a pool
    /// of as many threads as the current rayon pool. An event warns if the memory may not suffice.
    ///
    /// # Errors
    /// If `handle` fails, a batch does not fit the memory, or the threads cannot be started.
    pub fn ask_stream<T: Send + 'static>(
        &self,
        output: Output,
        batches: impl Iterator<Item = Vec<Asked<T, ImageSource>>> + Send + 'static,
        events: &dyn EventSink,
        handle: impl FnMut(Vec<Asked<T, Vec<f32>>>) -> Result<()>,
    ) -> Result<()> {
        let mut largest = 0;
        let check = |size: usize| -> Result<()> {
            if size > largest {
                largest = size;
                events.emit_warning(self.check_memory(size)?);
            }
            Ok(())
        };
        self.stream(output, batches, check, handle)
    }

    /// [`Self::ask_stream`] for a server, which has checked the memory for its largest batch, and must not end because others
    /// take memory for a while.
    ///
    /// # Errors
    /// If `handle` fails, or the threads cannot be started.
    #[cfg(feature = "serve")]
    pub(crate) fn ask_checked_stream<T: Send + 'static>(
        &self,
        output: Output,
        batches: impl Iterator<Item = Vec<Asked<T, ImageSource>>> + Send + 'static,
        handle: impl FnMut(Vec<Asked<T, Vec<f32>>>) -> Result<()>,
    ) -> Result<()> {
        self.stream(output, batches, |_| Ok(()), handle)
    }

    /// Computes the answers, after `check` has seen the number of images in a batch.
    fn stream<T: Send + 'static>(
        &self,
        output: Output,
        mut batches: impl Iterator<Item = Vec<Asked<T, ImageSource>>> + Send + 'static,
        mut check: impl FnMut(usize) -> Result<()>,
        mut handle: impl FnMut(Vec<Asked<T, Vec<f32>>>) -> Result<()>,
    ) -> Result<()> {
        // The first batch is decoded on this thread, so that a single image on the command line starts no other.
        let Some(first) = batches.next() else { return Ok(()) };
        let mut answer = |batch: DecodedBatch<T>| -> Result<_> {
            check(batch.decoded.outcomes.len())?;
            Ok(self.answer(output, batch))
        };
        let (entries, images) = separate(first);
        let decoded = self.decoder.decode(&images);
        handle(answer(DecodedBatch { entries, decoded })?)?;
        let (sender, receiver) = sync_channel(BATCHES_AHEAD);
        let decoder = self.decoder.clone();
        // The thread is not scoped, because a scope would wait for it: if `handle` fails while `batches` is blocked on
        // its input, this function must still return.
        let thread = thread::Builder::new()
            .name("decoder".to_owned())
            .spawn(move || decoder.decode_ahead(batches, &sender))
            .context("a thread that decodes images cannot be started")?;
        for batch in receiver {
            handle(answer(batch)?)?;
        }
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Computes the answers for a decoded batch. Entries without an image keep their error.
    fn answer<T>(&self, output: Output, batch: DecodedBatch<T>) -> Vec<Asked<T, Vec<f32>>> {
        let mut answers = self.ask_decoded(output, batch.decoded).into_iter();
        let answered = |Asked { tag, value }: Asked<T, ()>| {
            let answer = value.and_then(|()| answers.next().context("an answer is missing")?);
            Asked { tag, value: answer }
        };
        batch.entries.into_iter().map(answered).collect()
    }
}

impl Decoder {
    /// Decodes batches and sends them, until there are no more or the receiver is dropped.
    fn decode_ahead<T>(
        &self,
        batches: impl Iterator<Item = Vec<Asked<T, ImageSource>>>,
        sender: &SyncSender<DecodedBatch<T>>,
    ) -> Result<()> {
        let mut batches = batches.peekable();
        if batches.peek().is_none() {
            return Ok(());
        }
        let pool = rayon::ThreadPoolBuilder::new().num_threads(rayon::current_num_threads()).build()?;
        for batch in batches {
            let (entries, images) = separate(batch);
            let decoded = pool.install(|| self.decode(&images));
            if sender.send(DecodedBatch { entries, decoded }).is_err() {
                break;
            }
        }
        Ok(())
    }
}

/// Splits a batch into its entries and the images of those entries that have one.
fn separate<T>(batch: Vec<Asked<T, ImageSource>>) -> (Vec<Asked<T, ()>>, Vec<ImageSource>) {
    let mut images = Vec::with_capacity(batch.len());
    let entries = batch
        .into_iter()
        .map(|Asked { tag, value }| Asked { tag, value: value.map(|image| images.push(image)) })
        .collect();
    (entries, images)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use anyhow::{anyhow, bail};
    use vitrine_datasets::{CropRounding, Interpolation, Preprocessing, ResizeRule};
    use vitrine_models::preset;

    use super::*;
    use crate::device;
    use crate::events::Quiet;

    /// A small model with random parameters.
    fn predictor() -> Predictor {
        let device = device::select(Some("cpu")).unwrap().0;
        let config = preset::find("vit_pico_patch4_32").unwrap().with_num_classes(2);
        let model = config.init(&device.device).unwrap();
        model.initialize();
        let preprocessing = Preprocessing {
            image_size: [32, 32],
            channels: 3,
            resize: ResizeRule::Squash,
            interpolation: Interpolation::Bicubic,
            mean: vec![0.5; 3],
            std: vec![0.25; 3],
            crop_rounding: CropRounding::default(),
        };
        Predictor::new(model, preprocessing, &device)
    }

    /// Entries of which every third is an error.
    fn entries(count: usize) -> Vec<Asked<usize, ImageSource>> {
        (0..count)
            .map(|tag| {
                let value = match tag % 3 {
                    2 => Err(anyhow!("no image {tag}")),
                    class => Ok(ImageSource::Drawn { class, seed: tag as u64 }),
                };
                Asked { tag, value }
            })
            .collect()
    }

    #[test]
    fn a_stream_gives_the_answers_of_single_images_in_order() {
        let predictor = predictor();
        let mut list = entries(11).into_iter();
        let batches = std::iter::from_fn(move || {
            Some(list.by_ref().take(4).collect::<Vec<_>>()).filter(|batch| !batch.is_empty())
        });
        let mut answers = Vec::new();
        predictor
            .ask_stream(Output::Logits, batches, &Quiet, |batch| {
                answers.extend(batch);
                Ok(())
            })
            .unwrap();
        assert_eq!(answers.iter().map(|answer| answer.tag).collect::<Vec<_>>(), (0..11).collect::<Vec<_>>());
        for (answer, alone) in answers.iter().zip(entries(11)) {
            match (&answer.value, alone.value) {
                (Ok(logits), Ok(image)) => {
                    let alone = predictor.ask_images(Output::Logits, &[image]).remove(0).unwrap();
                    assert!(
                        logits.iter().zip(&alone).all(|(a, b)| (a - b).abs() < 1e-4),
                        "{logits:?} {alone:?}"
                    );
                }
                (Err(error), Err(_)) => assert_eq!(error.to_string(), format!("no image {}", answer.tag)),
                (answer, _) => panic!("{answer:?}"),
            }
        }
    }

    #[test]
    fn a_failure_of_the_receiver_ends_the_stream() {
        let predictor = predictor();
        let mut handled = 0;
        let endless = std::iter::repeat_with(|| entries(2));
        let result = predictor.ask_stream(Output::Logits, endless, &Quiet, |_| {
            handled += 1;
            if handled < 3 { Ok(()) } else { bail!("the pipe is closed") }
        });
        assert_eq!((handled, result.unwrap_err().to_string()), (3, "the pipe is closed".to_owned()));
    }
}
