//! How many threads compute best: one for each physical core that this process may use.
//!
//! Two hardware threads of a core share its arithmetic units, which one thread of these kernels fills.

use std::collections::HashSet;

/// Physical cores that the process may use: those of its affinity mask, and no more than its share of processor time
/// (a control group's quota). At least 1.
pub fn usable_cores() -> usize {
    let granted = std::thread::available_parallelism().map_or(1, |n| n.get());
    granted.min(physical_cores().unwrap_or(granted)).max(1)
}

/// Cores behind the logical processors of the affinity mask; `None` where the system does not say.
#[cfg(target_os = "linux")]
fn physical_cores() -> Option<usize> {
    // SAFETY: a set of all zeros is an empty one, and the call writes within the size that it is told.
    let set = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        if libc::sched_getaffinity(0, std::mem::size_of_val(&set), &mut set) != 0 {
            return None;
        }
        set
    };
    // SAFETY: the number is below the size of the set.
    let allowed = (0..libc::CPU_SETSIZE as usize).filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) });
    let siblings = |cpu| {
        let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
        std::fs::read_to_string(path).ok()
    };
    Some(distinct(allowed, siblings))
}

#[cfg(not(target_os = "linux"))]
fn physical_cores() -> Option<usize> {
    None
}

/// Processors that differ in their list of siblings; one without a list is a core of its own.
#[cfg_attr(not(target_os = "linux"), allow(dead_code))]
fn distinct(processors: impl Iterator<Item = usize>, siblings: impl Fn(usize) -> Option<String>) -> usize {
    let key = |cpu| siblings(cpu).map_or_else(|| format!("processor {cpu}"), |list| list.trim().to_string());
    processors.map(key).collect::<HashSet<_>>().len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hardware_threads_of_a_core_count_once() {
        let pairs = |cpu: usize| Some(format!("{},{}\n", cpu % 4, cpu % 4 + 4));
        assert_eq!(distinct(0..8, pairs), 4);
        // A mask that leaves two whole cores and half of a third.
        assert_eq!(distinct([0, 1, 2, 4, 5].into_iter(), pairs), 3);
        assert_eq!(distinct(0..3, |_| None), 3);
    }

    #[test]
    fn there_are_cores_and_no_more_than_the_system_grants() {
        let granted = std::thread::available_parallelism().map_or(1, |n| n.get());
        assert!((1..=granted).contains(&usable_cores()));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn an_affinity_mask_of_one_processor_is_one_core() {
        // On a thread of its own: the mask is a thread's.
        let cores = std::thread::spawn(|| {
            // SAFETY: as in `physical_cores`; the mask has one of the processors that were allowed before.
            unsafe {
                let mut set: libc::cpu_set_t = std::mem::zeroed();
                let size = std::mem::size_of_val(&set);
                assert_eq!(libc::sched_getaffinity(0, size, &mut set), 0);
                let first = (0..libc::CPU_SETSIZE as usize).find(|&cpu| libc::CPU_ISSET(cpu, &set)).unwrap();
                libc::CPU_ZERO(&mut set);
                libc::CPU_SET(first, &mut set);
                assert_eq!(libc::sched_setaffinity(0, size, &set), 0);
            }
            usable_cores()
        });
        assert_eq!(cores.join().unwrap(), 1);
    }
}
