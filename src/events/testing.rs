//! A sink for tests.

use std::sync::Mutex;

use super::{Event, EventSink};

/// Keeps the text of every event.
#[derive(Default)]
pub(crate) struct Lines(pub(crate) Mutex<Vec<String>>);

impl EventSink for Lines {
    fn emit(&self, event: Event) {
        self.0.lock().expect("no test fails while it holds the lock").push(event.to_string());
    }
}
