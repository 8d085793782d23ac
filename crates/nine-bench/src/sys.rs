//! Kernel counters for which rustix has no function.

#![allow(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;
use std::time::Duration;

/// Returns the processor time of all children that were waited for, and of their own such children.
pub fn cpu_of_children() -> io::Result<Duration> {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the call writes one `rusage` to this memory.
    if unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, usage.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `rusage` consists of numbers, and the memory was zeroed.
    let usage = unsafe { usage.assume_init() };
    let time = |time: libc::timeval| {
        Duration::from_secs(time.tv_sec.unsigned_abs()) + Duration::from_micros(time.tv_usec.unsigned_abs())
    };
    Ok(time(usage.ru_utime) + time(usage.ru_stime))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_child_and_its_own_have_had_is_counted() {
        let before = cpu_of_children().unwrap();
        let busy = "sh -c 'n=0; while [ $n -lt 100000 ]; do n=$((n + 1)); done'; :";
        assert!(std::process::Command::new("sh").args(["-c", busy]).status().unwrap().success());
        assert!(cpu_of_children().unwrap() - before > Duration::from_millis(1));
    }
}
