//! Memory: zeroed, 64-byte aligned, on huge pages where the system has them, for weights and the KV cache; working
//! memory that threads keep; views of bytes as numbers.
//!
//! Reading weights is what bounds decoding, and 4 KiB pages cost up to half of the bandwidth. Knows no formats.

use std::cell::RefCell;
use std::ptr::NonNull;

/// Alignment of every buffer: a cache line, and the widest vector.
pub(crate) const ALIGN: usize = 64;

/// A zeroed block of bytes that never moves.
pub(crate) struct Buffer {
    data: NonNull<u8>,
    len: usize,
    memory: Memory,
}

/// What holds a buffer's bytes.
enum Memory {
    Heap,
    #[cfg(unix)]
    /// Unmapped when the last buffer in it is gone.
    Pages(std::sync::Arc<super::pages::Mapping>),
}

// SAFETY: a Buffer owns its bytes as a Vec would; access follows Rust's borrowing of the Buffer.
unsafe impl Send for Buffer {}
// SAFETY: as above; shared access only reads.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// `len` zero bytes, or `None` when there is no memory. `len` is not 0.
    pub(crate) fn zeroed(len: usize) -> Option<Buffer> {
        #[cfg(unix)]
        if len >= super::pages::WORTHWHILE && !cfg!(miri) {
            if let Some((mapping, data)) = super::pages::take(len) {
                return Some(Buffer { data, len, memory: Memory::Pages(mapping) });
            }
        }
        let layout = Self::layout(len)?;
        // SAFETY: the layout's size is not 0 (`layout` refuses it).
        let data = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) })?;
        Some(Buffer { data, len, memory: Memory::Heap })
    }

    fn layout(len: usize) -> Option<std::alloc::Layout> {
        if len == 0 {
            return None;
        }
        std::alloc::Layout::from_size_align(len, ALIGN).ok()
    }

    /// The mapping that the buffer lies in.
    #[cfg(all(test, unix))]
    pub(super) fn mapping(&self) -> Option<std::sync::Arc<super::pages::Mapping>> {
        match &self.memory {
            Memory::Pages(mapping) => Some(std::sync::Arc::clone(mapping)),
            Memory::Heap => None,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        // SAFETY: `len` initialized bytes that live as long as self.
        unsafe { std::slice::from_raw_parts(self.data.as_ptr(), self.len) }
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as `as_slice`, and self is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.data.as_ptr(), self.len) }
    }
}

impl Buffer {
    /// Some of the bytes, to be written, where tasks divide a buffer among them.
    ///
    /// # Safety
    /// Nobody else has any of these bytes meanwhile.
    #[allow(clippy::mut_from_ref)]
    pub(super) unsafe fn shared_part(&self, range: std::ops::Range<usize>) -> &mut [u8] {
        assert!(range.start <= range.end && range.end <= self.len, "a part of the buffer");
        // SAFETY: inside the buffer, whose bytes are reached through its pointer alone; not aliased (the caller's
        // promise).
        unsafe { std::slice::from_raw_parts_mut(self.data.as_ptr().add(range.start), range.end - range.start) }
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({} bytes)", self.len)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        match &self.memory {
            Memory::Heap => {
                if let Some(layout) = Self::layout(self.len) {
                    // SAFETY: allocated with this layout.
                    unsafe { std::alloc::dealloc(self.data.as_ptr(), layout) };
                }
            }
            #[cfg(unix)]
            Memory::Pages(mapping) => {
                // SAFETY: the bytes were cut for this buffer, which is not used any more.
                unsafe { mapping.give_back(self.data, self.len) }
            }
        }
    }
}

/// Numbers for which any bits are a value.
pub(super) trait Plain: Copy {}
impl Plain for f32 {}
impl Plain for u16 {}
impl Plain for u32 {}
impl Plain for i8 {}

/// Bytes as numbers.
///
/// # Panics
/// If the bytes are not whole, aligned numbers.
pub(super) fn view<T: Plain>(bytes: &[u8]) -> &[T] {
    // SAFETY: any bits are a T; `align_to` sees to alignment and length.
    let (head, values, tail) = unsafe { bytes.align_to() };
    assert!(head.is_empty() && tail.is_empty(), "aligned numbers");
    values
}

/// [`view`], to be written.
pub(super) fn view_mut<T: Plain>(bytes: &mut [u8]) -> &mut [T] {
    // SAFETY: as `view`; any bits of a T are bytes.
    let (head, values, tail) = unsafe { bytes.align_to_mut() };
    assert!(head.is_empty() && tail.is_empty(), "aligned numbers");
    values
}

/// The bits of numbers, to be written.
pub(super) fn words_mut(values: &mut [f32]) -> &mut [u32] {
    // SAFETY: the types have one size and alignment, and any bits are valid for both.
    unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), values.len()) }
}

/// A line of scratch memory.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([f32; 16]);

/// Lends a task `len` values of its thread's scratch memory, aligned to a line, with whatever was left there. The
/// memory is kept for the next call. Not to be called from inside `f`.
pub(super) fn with_scratch<R>(len: usize, f: impl FnOnce(&mut [f32]) -> R) -> R {
    thread_local! {
        static SCRATCH: RefCell<Vec<Line>> = const { RefCell::new(Vec::new()) };
    }
    SCRATCH.with_borrow_mut(|lines| lend(lines, len, f))
}

/// The same for the thread that dispatches tasks, some of which it runs itself meanwhile.
pub(super) fn with_shared_scratch<R>(len: usize, f: impl FnOnce(&mut [f32]) -> R) -> R {
    thread_local! {
        static SCRATCH: RefCell<Vec<Line>> = const { RefCell::new(Vec::new()) };
    }
    SCRATCH.with_borrow_mut(|lines| lend(lines, len, f))
}

fn lend<R>(lines: &mut Vec<Line>, len: usize, f: impl FnOnce(&mut [f32]) -> R) -> R {
    if lines.len() < len.div_ceil(16) {
        lines.resize(len.div_ceil(16), Line([0.0; 16]));
    }
    // SAFETY: a line is 16 values without padding, and there are lines for `len` of them.
    f(unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), len) })
}

/// Hints that a line will be read soon (`NEAR`: from the first-level cache, else the second). Any address is allowed.
#[inline(always)]
pub(super) fn prefetch<const NEAR: bool>(line: *const u8) {
    // SAFETY: SSE is part of x86-64, and a prefetch of any address is harmless.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        use std::arch::x86_64::{_mm_prefetch, _MM_HINT_T0, _MM_HINT_T1};
        if NEAR {
            _mm_prefetch::<_MM_HINT_T0>(line.cast());
        } else {
            _mm_prefetch::<_MM_HINT_T1>(line.cast());
        }
    }
    // SAFETY: as above; the instruction reads no memory that Rust knows of.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        use std::arch::asm;
        if NEAR {
            asm!("prfm pldl1keep, [{0}]", in(reg) line, options(nostack, readonly, preserves_flags));
        } else {
            asm!("prfm pldl2keep, [{0}]", in(reg) line, options(nostack, readonly, preserves_flags));
        }
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = line;
}

/// A pointer that tasks of one pool job share; each task touches its own part.
#[derive(Clone, Copy)]
pub(crate) struct Shared<T>(pub(crate) *mut T);

impl<T> Shared<T> {
    /// The pointer. A method, so that closures capture the wrapper and not the bare pointer.
    pub(crate) fn get(self) -> *mut T {
        self.0
    }
}

// SAFETY: the creator guarantees that tasks write disjoint parts and that the memory outlives the job.
unsafe impl<T> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Shared<T> {}
