//! Memory from the system on huge pages: mappings that many buffers share.
//!
//! A model has hundreds of matrices, and most of a small model's are smaller than a huge page. Each in a mapping of its
//! own would lie on pages of 4 KiB, and reading them would spend its time on looking up addresses. Knows no contents.

use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::memory::ALIGN;

/// From this length on a buffer is worth a place here.
pub(super) const WORTHWHILE: usize = 64 << 10;
/// Length of a mapping that buffers share: addresses, of which pages take memory when they are first touched.
const SHARED: usize = 64 << 20;
/// From this length on a buffer has a mapping of its own.
const ALONE: usize = 16 << 20;
/// The huge page of x86-64 and of most aarch64 systems.
const HUGE: usize = 2 << 20;
/// Real page sizes are at most 64 KiB on the targets; trimming at this grain is valid for all of them.
const GRAIN: usize = 64 << 10;

/// Anonymous, zeroed memory that starts at a huge page.
pub(super) struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the address and the length never change; the bytes belong to the buffers that were cut from the mapping.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Only whole huge pages are asked for, so that the tail does not make 2 MiB resident for a few bytes.
    fn new(len: usize) -> Option<Mapping> {
        let len = len.checked_next_multiple_of(GRAIN)?;
        let reserved = len.checked_add(HUGE)?;
        // SAFETY: a fresh anonymous mapping; no address is asked for, so nothing existing is touched.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                reserved,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANON,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return None;
        }
        let base = base as usize;
        let start = base.next_multiple_of(HUGE);
        let (head, tail) = (start - base, reserved - (start - base) - len);
        // SAFETY: head and tail lie inside the mapping just made, outside the part that is kept, and nobody has
        // their address. A failure leaves them mapped, which costs address space only.
        unsafe {
            if head > 0 {
                libc::munmap(base as *mut libc::c_void, head);
            }
            if tail > 0 {
                libc::munmap((start + len) as *mut libc::c_void, tail);
            }
            #[cfg(target_os = "linux")]
            libc::madvise(start as *mut libc::c_void, len / HUGE * HUGE, libc::MADV_HUGEPAGE);
        }
        Some(Mapping { start: NonNull::new(start as *mut u8)?, len })
    }

    /// Lets the system have the whole pages of some bytes, while others keep the mapping. Nothing is cut there again.
    /// Neighbours on the same huge page lie on small ones from then on: rather that than memory of models long gone.
    ///
    /// # Safety
    /// The bytes lie in this mapping, and nobody uses them any more.
    pub(super) unsafe fn give_back(&self, data: NonNull<u8>, len: usize) {
        let (start, end) = (data.as_ptr() as usize, data.as_ptr() as usize + len);
        let (first, last) = (start.next_multiple_of(GRAIN), end / GRAIN * GRAIN);
        if first < last {
            // SAFETY: whole pages inside of the bytes, which nobody uses (the caller's promise). A failure keeps them.
            unsafe { libc::madvise(first as *mut libc::c_void, last - first, libc::MADV_DONTNEED) };
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `new` kept exactly this range, and the last buffer in it is gone.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// The mapping that buffers are cut from at present, and how much of it is taken.
struct Current {
    mapping: Weak<Mapping>,
    taken: usize,
}

/// `len` zero bytes that nobody else has, aligned to [`ALIGN`], for as long as the mapping is kept; `None` when there are
/// no such addresses. Nothing is cut from the same place twice: a mapping lives until its last buffer is gone, and what
/// other buffers had is [given back](Mapping::give_back) before.
pub(super) fn take(len: usize) -> Option<(Arc<Mapping>, NonNull<u8>)> {
    static CURRENT: Mutex<Current> = Mutex::new(Current { mapping: Weak::new(), taken: 0 });
    if len < ALONE {
        let mut current = CURRENT.lock().unwrap_or_else(PoisonError::into_inner);
        let old = current.mapping.upgrade().filter(|mapping| mapping.len - current.taken >= len);
        let mapping = match old {
            Some(mapping) => Some(mapping),
            None => Mapping::new(SHARED).map(|mapping| {
                let mapping = Arc::new(mapping);
                *current = Current { mapping: Arc::downgrade(&mapping), taken: 0 };
                mapping
            }),
        };
        if let Some(mapping) = mapping {
            // SAFETY: `taken + len` is inside the mapping (checked, or shorter than a new one).
            let place = unsafe { mapping.start.add(current.taken) };
            // At most the mapping's length, which is a multiple of the alignment.
            current.taken += len.next_multiple_of(ALIGN);
            return Some((mapping, place));
        }
        // Where so many addresses are not to be had, a few may be.
    }
    let mapping = Mapping::new(len)?;
    let place = mapping.start;
    Some((Arc::new(mapping), place))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::memory::Buffer;

    /// Some bytes of a buffer, its first and last among them.
    fn some(buffer: &Buffer) -> impl Iterator<Item = u8> + '_ {
        let bytes = buffer.as_slice();
        bytes.iter().step_by(997).chain(bytes.last()).copied()
    }

    #[test]
    fn buffers_share_mappings_and_no_bytes() {
        let sizes = [WORTHWHILE, WORTHWHILE + 1, 3 << 20, 100, ALONE - 1, ALONE, 5 << 20];
        let mut buffers: Vec<Buffer> =
            (0..20).map(|i| Buffer::zeroed(sizes[i % sizes.len()]).expect("memory")).collect();
        for (i, buffer) in buffers.iter_mut().enumerate() {
            assert!(buffer.as_slice().as_ptr().addr().is_multiple_of(ALIGN));
            assert!(some(buffer).all(|byte| byte == 0), "buffer {i} is not fresh");
            buffer.as_mut_slice().fill(i as u8 + 1);
        }
        // Every second one goes, so that mappings are left with holes, which are not filled again.
        let mut count = 0;
        buffers.retain(|_| {
            count += 1;
            count % 2 == 0
        });
        buffers.extend((0..10).map(|_| Buffer::zeroed(1 << 20).expect("memory")));
        for (i, buffer) in buffers.iter().enumerate() {
            let expected = if i < 10 { 2 * i as u8 + 2 } else { 0 };
            assert!(some(buffer).all(|byte| byte == expected), "buffer {i}");
        }
    }

    #[test]
    fn short_buffers_share_a_mapping_and_long_ones_have_their_own() {
        let shared = |len| {
            let ((a, _), (b, _)) = (take(len).expect("memory"), take(len).expect("memory"));
            Arc::ptr_eq(&a, &b)
        };
        // A mapping may be full between the two.
        assert!((0..3).any(|_| shared(WORTHWHILE)));
        assert!((0..3).all(|_| !shared(ALONE)));
    }

    #[test]
    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    fn a_buffer_gives_its_pages_back_while_others_keep_the_mapping() {
        let mut buffer = Buffer::zeroed(3 * GRAIN).expect("memory");
        let mapping = buffer.mapping().expect("a place in a mapping");
        buffer.as_mut_slice().fill(7);
        let start = buffer.as_slice().as_ptr();
        let edge = start.addr().next_multiple_of(GRAIN) - start.addr();
        drop(buffer);
        // SAFETY: the mapping is kept, and nothing is cut there again.
        let bytes = unsafe { std::slice::from_raw_parts(start, 3 * GRAIN) };
        assert!(bytes[edge..edge + 2 * GRAIN].iter().all(|&byte| byte == 0), "pages that the system has again");
        assert!(bytes[..edge].iter().all(|&byte| byte == 7), "the page before has other buffers too");
        drop(mapping);
    }

    #[test]
    fn too_much_is_none() {
        assert!(Buffer::zeroed(isize::MAX as usize / 2).is_none());
        assert!(Buffer::zeroed(usize::MAX).is_none());
    }
}
