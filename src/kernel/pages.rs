//! Memory from the system on huge pages: mappings that many buffers share.
//!
//! A model has hundreds of matrices, and most of a small model's are smaller than a huge page. Each in a mapping of its
//! own would lie on pages of 4 KiB, and reading them would spend its time on looking up addresses. Knows no contents.

use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::memory::ALIGN;

/// From this length on a buffer is worth a place here.
pub(super) const WORTHWHILE: usize = 64 << 10;
/// Length of a mapping that buffers share: addresses, of which only touched pages take memory.
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

/// `len` zero bytes that nobody else has, aligned to [`ALIGN`], for as long as the mapping is kept; `None` when there is
/// no memory. Nothing is cut from the same place twice: a mapping lives until its last buffer is gone.
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

    #[test]
    fn buffers_share_mappings_and_no_bytes() {
        let sizes = [WORTHWHILE, WORTHWHILE + 1, 3 << 20, ALONE - 1, ALONE, 100, 5 << 20];
        let mut buffers: Vec<Buffer> =
            (0..40).map(|i| Buffer::zeroed(sizes[i % sizes.len()]).expect("memory")).collect();
        for (i, buffer) in buffers.iter_mut().enumerate() {
            let bytes = buffer.as_mut_slice();
            assert!(bytes.as_ptr().addr().is_multiple_of(ALIGN));
            assert!(bytes.iter().all(|&byte| byte == 0), "buffer {i} is not fresh");
            bytes.fill(i as u8 + 1);
        }
        // Every second one goes, so that mappings are left with holes.
        let mut count = 0;
        buffers.retain(|_| {
            count += 1;
            count % 2 == 0
        });
        buffers.extend((0..10).map(|_| Buffer::zeroed(1 << 20).expect("memory")));
        for (i, buffer) in buffers.iter().enumerate() {
            let expected = if i < 20 { 2 * i as u8 + 2 } else { 0 };
            assert!(buffer.as_slice().iter().all(|&byte| byte == expected), "buffer {i}");
        }
    }

    #[test]
    fn too_much_is_none() {
        assert!(Buffer::zeroed(isize::MAX as usize / 2).is_none());
        assert!(Buffer::zeroed(usize::MAX).is_none());
    }
}
