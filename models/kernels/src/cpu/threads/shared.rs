//! Memory that several tasks write at the same time, each its own part.

use std::marker::PhantomData;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ops::Range;

/// Memory for floats that tasks write: fresh pages are not zeroed twice.
pub(crate) struct Buffer(Vec<MaybeUninit<f32>>);

impl Buffer {
    /// Room for so many elements, none of them written.
    pub(crate) fn new(length: usize) -> Self {
        let mut data = Vec::with_capacity(length);
        data.resize_with(length, MaybeUninit::uninit);
        Self(data)
    }

    /// The elements, for tasks to write.
    pub(crate) fn shared(&mut self) -> Shared<'_> {
        Shared { start: self.0.as_mut_ptr().cast(), length: self.0.len(), marker: PhantomData }
    }

    /// The elements.
    ///
    /// # Safety
    ///
    /// Each of them was written.
    pub(crate) unsafe fn written(self) -> Vec<f32> {
        let mut data = ManuallyDrop::new(self.0);
        // SAFETY: pointer, length and capacity are those of a vector that is not dropped; `MaybeUninit<f32>` has the size and alignment of
        // f32, and each element holds one, as the caller promises.
        unsafe { Vec::from_raw_parts(data.as_mut_ptr().cast(), data.len(), data.capacity()) }
    }
}

/// A mutable buffer that several tasks write at once, each its own part.
#[derive(Clone, Copy)]
pub(crate) struct Shared<'a, T = f32> {
    start: *mut T,
    length: usize,
    marker: PhantomData<&'a mut [T]>,
}

// SAFETY: every way to write through it is unsafe and asks for disjoint parts.
unsafe impl<T: Send> Send for Shared<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Shared<'_, T> {}

impl<'a, T> Shared<'a, T> {
    pub(crate) fn new(data: &'a mut [T]) -> Self {
        Self { start: data.as_mut_ptr(), length: data.len(), marker: PhantomData }
    }

    pub(crate) fn len(&self) -> usize {
        self.length
    }

    /// The address of `length` elements from `offset` on.
    ///
    /// # Safety
    ///
    /// What is written through it must not be in use elsewhere at the same time.
    pub(crate) unsafe fn pointer(&self, offset: usize, length: usize) -> *mut T {
        assert!(offset.checked_add(length).is_some_and(|end| length == 0 || end <= self.length));
        // SAFETY: in bounds by the assertion, but for an empty part, which is never followed.
        self.start.wrapping_add(offset)
    }

    /// The elements of `range`. Those of a [`Buffer`] are written before they are read.
    ///
    /// # Safety
    ///
    /// No other part in use at the same time may overlap it.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn slice(&self, range: Range<usize>) -> &'a mut [T] {
        assert!(range.start <= range.end && range.end <= self.length);
        // SAFETY: in bounds by the assertion; no other part that is in use overlaps `range`, as the caller promises.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}
