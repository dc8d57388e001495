//! Handing disjoint parts of one mutable slice to the tasks of the pool.

use std::marker::PhantomData;

use super::Cpu;

/// A mutable slice that several tasks write at once, each its own part.
pub(super) struct Shared<'a, T> {
    start: *mut T,
    len: usize,
    owner: PhantomData<&'a mut [T]>,
}

// SAFETY: only `slice` reaches the memory, and its callers promise disjoint parts.
unsafe impl<T: Send> Sync for Shared<'_, T> {}

impl<'a, T> Shared<'a, T> {
    pub(super) fn new(slice: &'a mut [T]) -> Shared<'a, T> {
        Shared { start: slice.as_mut_ptr(), len: slice.len(), owner: PhantomData }
    }

    /// The part of `len` elements from `at`.
    ///
    /// # Safety
    /// Parts that are alive at the same time must not overlap.
    #[allow(clippy::mut_from_ref)]
    pub(super) unsafe fn slice(&self, at: usize, len: usize) -> &mut [T] {
        assert!(at <= self.len && len <= self.len - at, "part outside the slice");
        // SAFETY: inside the slice (checked), and not aliased (the caller's promise).
        unsafe { std::slice::from_raw_parts_mut(self.start.add(at), len) }
    }
}

impl Cpu {
    /// Calls `f(offset, part)` for consecutive parts of `chunk` elements (the last may be shorter), in parallel.
    pub(crate) fn for_each_chunk<T: Send>(&self, data: &mut [T], chunk: usize, f: &(dyn Fn(usize, &mut [T]) + Sync)) {
        let (len, chunk) = (data.len(), chunk.max(1));
        if len <= chunk {
            if len > 0 {
                f(0, data);
            }
            return;
        }
        let shared = Shared::new(data);
        self.pool.run(len.div_ceil(chunk), &|task| {
            let at = task * chunk;
            // SAFETY: tasks have different numbers, hence disjoint parts.
            f(at, unsafe { shared.slice(at, chunk.min(len - at)) });
        });
    }
}
