//! A limit on the images that are in memory before their turn.

use std::ops::ControlFlow;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// What holds an image for each call of [`Self::one`].
pub(super) struct Held(SyncSender<()>);

/// What takes the images that are held.
pub(super) struct Taken(Receiver<()>);

/// A limit of so many images, which come in the order in which they are taken.
pub(super) fn limit(images: usize) -> (Taken, Held) {
    let (sender, receiver) = sync_channel(images);
    (Taken(receiver), Held(sender))
}

impl Held {
    /// Waits until another image may be held. Breaks off if nobody takes any.
    pub(super) fn one(&self) -> ControlFlow<()> {
        self.0.send(()).map_or(ControlFlow::Break(()), |()| ControlFlow::Continue(()))
    }
}

impl Taken {
    /// Takes an image that is held.
    pub(super) fn one(&self) {
        // It was held before it came here.
        let _ = self.0.try_recv();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    use super::*;

    #[test]
    fn no_more_images_are_held_than_the_limit_says() {
        let (taken, held) = limit(3);
        let most = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&most);
        let holder = thread::spawn(move || {
            while held.one().is_continue() {
                count.fetch_add(1, Ordering::SeqCst);
            }
        });
        for number in 0..100 {
            while most.load(Ordering::SeqCst) <= number {
                thread::yield_now();
            }
            // The fourth waits: counted after it was held.
            assert!(most.load(Ordering::SeqCst) <= number + 3, "after {number}");
            taken.one();
        }
        drop(taken);
        holder.join().expect("it breaks off");
    }
}
