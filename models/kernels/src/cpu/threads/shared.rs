//! Memory that several tasks write at the same time, each its own part.

use std::marker::PhantomData;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ops::Range;

/// Memory for numbers that tasks write. It is not initialized, so that fresh pages are not zeroed twice.
pub(crate) struct Buffer<T = f32>(Vec<MaybeUninit<T>>);

impl<T> Buffer<T> {
    /// Memory for this many elements, none of them written.
    pub(crate) fn new(length: usize) -> Self {
        let mut data = Vec::with_capacity(length);
        data.resize_with(length, MaybeUninit::uninit);
        Self(data)
    }

    /// The elements as memory that tasks write.
    pub(crate) fn shared(&mut self) -> Shared<'_, T> {
        Shared { start: self.0.as_mut_ptr().cast(), length: self.0.len(), marker: PhantomData }
    }

    /// The elements as a vector.
    ///
    /// # Safety
    ///
    /// Each element must have been written.
    pub(crate) unsafe fn written(self) -> Vec<T> {
        let mut data = ManuallyDrop::new(self.0);
        // SAFETY: pointer, length and capacity are those of a vector that is not dropped; `MaybeUninit<T>` has the
        // size and alignment of `T`, and each element holds a value, as the caller promises.
        unsafe { Vec::from_raw_parts(data.as_mut_ptr().cast(), data.len(), data.capacity()) }
    }
}

/// A mutable slice that several tasks write at the same time, each its own part.
#[derive(Clone, Copy)]
pub(crate) struct Shared<'a, T = f32> {
    start: *mut T,
    length: usize,
    marker: PhantomData<&'a mut [T]>,
}

// SAFETY: all access is through unsafe methods, whose callers promise disjoint parts.
unsafe impl<T: Send> Send for Shared<'_, T> {}
// SAFETY: see `Send`.
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
    /// While elements are accessed through the result, no other task may read or write them.
    ///
    /// # Panics
    ///
    /// If the slice does not have these elements.
    pub(crate) unsafe fn pointer(&self, offset: usize, length: usize) -> *mut T {
        assert!(offset.checked_add(length).is_some_and(|end| length == 0 || end <= self.length));
        // In bounds by the assertion; the address of an empty part is never dereferenced.
        self.start.wrapping_add(offset)
    }

    /// The elements of `range`.
    ///
    /// # Safety
    ///
    /// - While the result is in use, no other task may read or write these elements.
    /// - Elements of a [`Buffer`] must be written before they are read.
    ///
    /// # Panics
    ///
    /// If the slice does not have this range.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn slice(&self, range: Range<usize>) -> &'a mut [T] {
        assert!(range.start <= range.end && range.end <= self.length);
        // SAFETY: in bounds by the assertion; no other task uses these elements, as the caller promises.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}
