//! Memory that another program or machine writes, too.
//!
//! In: mapped memory. Out: atomic words, and copies of bytes. Always holds: no reference to its bytes exists; it is
//! accessed only as atomic words and by copies. A change by the other side during a copy may or may not be in the copy.
//! Copies are validated after they are made, so this does no harm.

#![allow(unsafe_code)]

#[cfg(not(all(test, any(nine_loom, nine_shuttle))))]
pub use real::{Memory, Owner};
#[cfg(all(test, any(nine_loom, nine_shuttle)))]
pub use tried::Memory;

/// A mapping of a file, which is unmapped with its last [`Memory`].
#[cfg(all(feature = "linux", not(all(test, any(nine_loom, nine_shuttle)))))]
struct Mapping {
    base: core::ptr::NonNull<u8>,
    len: usize,
}

#[cfg(all(feature = "linux", not(all(test, any(nine_loom, nine_shuttle)))))]
// SAFETY: the type is an address and a length; any thread may unmap.
unsafe impl Send for Mapping {}
#[cfg(all(feature = "linux", not(all(test, any(nine_loom, nine_shuttle)))))]
// SAFETY: as above.
unsafe impl Sync for Mapping {}

#[cfg(all(feature = "linux", not(all(test, any(nine_loom, nine_shuttle)))))]
impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `map` has mapped exactly this range, and every user of it held a reference to this mapping.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// Maps the first `len` bytes of a file, which must not be able to shrink.
#[cfg(all(feature = "linux", not(all(test, any(nine_loom, nine_shuttle)))))]
pub(crate) fn map(file: rustix::fd::BorrowedFd<'_>, len: usize) -> rustix::io::Result<Memory> {
    use rustix::mm::{MapFlags, ProtFlags, mmap};
    let both = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the kernel chooses an unused address for the new mapping.
    let base = unsafe { mmap(core::ptr::null_mut(), len, both, MapFlags::SHARED, file, 0)? };
    let base = core::ptr::NonNull::new(base.cast()).expect("a mapping is not at 0");
    let mapping = Mapping { base, len };
    // SAFETY: the range is mapped as long as `mapping` lives, and starts at a page boundary. The file cannot shrink, so
    // that no page of it is missing. Only this module knows the address.
    Ok(unsafe { Memory::new(base, len, Some(alloc::sync::Arc::new(mapping))) })
}

/// Takes a descriptor that this program has inherited, and closes it on exec(2). `None` if there is no such descriptor.
#[cfg(all(feature = "linux", not(all(test, any(nine_loom, nine_shuttle)))))]
pub(crate) fn take_inherited(number: i32) -> Option<rustix::fd::OwnedFd> {
    use rustix::fd::{FromRawFd, OwnedFd};
    // SAFETY: the descriptor is open, and by the contract of the variable the parent has passed it for this channel
    // alone.
    close_on_exec(number).then(|| unsafe { OwnedFd::from_raw_fd(number) })
}

/// Sets a descriptor to close on exec(2). Returns whether the descriptor exists.
#[cfg(all(feature = "linux", not(all(test, any(nine_loom, nine_shuttle)))))]
pub(crate) fn close_on_exec(number: i32) -> bool {
    // SAFETY: the borrow lasts for this call, which fails if the descriptor is not open.
    let fd = unsafe { rustix::fd::BorrowedFd::borrow_raw(number) };
    number >= 0 && rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::CLOEXEC).is_ok()
}

/// Passes the memory to system calls that take an address and a length. They return the system call's result.
#[cfg(all(feature = "linux", not(all(test, any(nine_loom, nine_shuttle)))))]
pub(crate) mod calls {
    extern crate std;
    use core::slice;
    use std::io::{IoSlice, IoSliceMut};

    use rustix::fd::BorrowedFd;
    use rustix::io::{ReadWriteFlags, Result, preadv2, pwritev2};

    use super::Memory;

    /// Writes `len` bytes to a file at `offset`. Returns the number of bytes written.
    pub(crate) fn write_at(
        memory: &Memory,
        (at, len): (usize, usize),
        file: BorrowedFd<'_>,
        offset: u64,
        flags: ReadWriteFlags,
    ) -> Result<usize> {
        let from = memory.address(at, len);
        // SAFETY: the slice lives only for this call, and only the kernel accesses it. The kernel copies bytes from an
        // address and tolerates concurrent changes.
        let bytes = unsafe { slice::from_raw_parts(from.as_ptr(), len) };
        pwritev2(file, &[IoSlice::new(bytes)], offset, flags)
    }

    /// Reads at most `len` bytes of a file from `offset`. Returns the number of bytes read.
    pub(crate) fn read_at(
        memory: &Memory,
        (at, len): (usize, usize),
        file: BorrowedFd<'_>,
        offset: u64,
        flags: ReadWriteFlags,
    ) -> Result<usize> {
        let into = memory.address(at, len);
        // SAFETY: as above. The bytes are initialised, because those of a file are.
        let bytes = unsafe { slice::from_raw_parts_mut(into.as_ptr(), len) };
        preadv2(file, &mut [IoSliceMut::new(bytes)], offset, flags)
    }
}

/// Signals eventfds from within the kernel.
#[cfg(all(feature = "linux", not(all(test, any(nine_loom, nine_shuttle)))))]
pub(crate) mod signal {
    extern crate std;
    use core::mem;
    use std::io;
    use std::os::fd::AsRawFd;
    use std::sync::OnceLock;

    use rustix::fd::BorrowedFd;

    /// The AIO context of the requests. `None` if the kernel does not supply one.
    static CONTEXT: OnceLock<Option<libc::c_ulong>> = OnceLock::new();
    /// Number of unread completion events that fit into the context. They are then discarded.
    const ANSWERS: usize = 64;

    /// Adds 1 to an eventfd without waiting, as the notification of a completed AIO request. Returns false if the
    /// kernel does not support this.
    pub(crate) fn signal(eventfd: BorrowedFd<'_>) -> bool {
        let Some(context) = *CONTEXT.get_or_init(context) else { return false };
        // SAFETY: all zeros are a valid `iocb`.
        let mut ask: libc::iocb = unsafe { mem::zeroed() };
        let fd = eventfd.as_raw_fd() as u32;
        // An eventfd is always readable or writable, so this poll request completes at once.
        (ask.aio_lio_opcode, ask.aio_buf) = (POLL, (libc::POLLIN | libc::POLLOUT) as u64);
        (ask.aio_fildes, ask.aio_flags, ask.aio_resfd) = (fd, RESFD, fd);
        let mut asked = [&raw mut ask];
        for _ in 0..MAP_TRIES_MAX {
            // SAFETY: this submits one request. The kernel does not access the `iocb` after the call.
            if unsafe { libc::syscall(libc::SYS_io_submit, context, 1, asked.as_mut_ptr()) } == 1 {
                return true;
            }
            if io::Error::last_os_error().raw_os_error() != Some(libc::EAGAIN) {
                return false;
            }
            forget(context);
        }
        false
    }

    fn context() -> Option<libc::c_ulong> {
        let mut context: libc::c_ulong = 0;
        // SAFETY: only this call writes to `context`.
        let made = unsafe { libc::syscall(libc::SYS_io_setup, ANSWERS, &raw mut context) };
        (made == 0).then_some(context)
    }

    /// Discards the available completion events, without waiting.
    fn forget(context: libc::c_ulong) {
        // struct io_event
        let mut answers = [[0u64; 4]; ANSWERS];
        let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the buffer holds that many events. The buffer and the timeout outlive the call, which does not retain
        // them.
        unsafe {
            libc::syscall(
                libc::SYS_io_getevents,
                context,
                0,
                ANSWERS,
                answers.as_mut_ptr(),
                &raw const at_once,
            )
        };
    }

    /// IOCB_CMD_POLL and IOCB_FLAG_RESFD of linux/aio_abi.h.
    const POLL: u16 = 5;
    const RESFD: u32 = 1;
    /// Number of attempts: other threads may use the space that `forget` has freed.
    const MAP_TRIES_MAX: usize = 8;
}

#[cfg(not(all(test, any(nine_loom, nine_shuttle))))]
mod real {
    use alloc::sync::Arc;
    use core::any::Any;
    use core::fmt;
    use core::ptr::{NonNull, copy_nonoverlapping, write_bytes};

    use crate::sync::AtomicU32;

    /// A value that unmaps the memory when the last reference is dropped.
    pub type Owner = Arc<dyn Any + Send + Sync>;

    /// A part of shared memory. The memory stays mapped as long as any part exists.
    #[derive(Clone)]
    pub struct Memory {
        base: NonNull<u8>,
        len: usize,
        owner: Option<Owner>,
    }

    // SAFETY: the type is an address; accesses are atomic or copies, and are allowed from any thread.
    unsafe impl Send for Memory {}
    // SAFETY: as above.
    unsafe impl Sync for Memory {}

    impl Memory {
        /// Creates memory of zeros.
        #[cfg(test)]
        pub(crate) fn zeros(len: usize) -> Self {
            extern crate std;
            #[repr(align(4096))]
            #[derive(Clone)]
            struct AlignedPage(#[allow(dead_code)] [u8; crate::PAGE]);
            let mut pages = std::vec![AlignedPage([0; crate::PAGE]); len.div_ceil(crate::PAGE)];
            let base = NonNull::new(pages.as_mut_ptr()).expect("a vector is not at 0");
            // SAFETY: the pages are aligned, do not move while their owner lives, and have no other users.
            unsafe { Self::new(base.cast(), len, Some(Arc::new(pages))) }
        }

        /// Creates memory from `len` bytes at `base`.
        ///
        /// # Safety
        /// The bytes must be mapped for reading and writing as long as the owner lives, or for ever without an owner.
        /// `base` must be a multiple of 4096. No reference to any of the bytes may exist meanwhile.
        pub unsafe fn new(base: NonNull<u8>, len: usize, owner: Option<Owner>) -> Self {
            debug_assert!(base.as_ptr().addr().is_multiple_of(crate::PAGE));
            Self { base, len, owner }
        }

        /// Returns the length in bytes.
        pub fn len(&self) -> usize {
            self.len
        }

        /// Whether the length is 0.
        pub fn is_empty(&self) -> bool {
            self.len == 0
        }

        /// Returns a part of the memory. `None` if the part is not within it, or `at` is not a multiple of a page.
        pub fn part(&self, at: usize, len: usize) -> Option<Self> {
            let within = at.is_multiple_of(crate::PAGE) && len <= self.len.checked_sub(at)?;
            // SAFETY: `at` is within the range for which the caller of `new` has vouched.
            within.then(|| Self { base: unsafe { self.base.add(at) }, len, owner: self.owner.clone() })
        }

        /// Returns the address of `len` bytes, for callers that copy the data themselves: system calls. Do not create
        /// references to the bytes.
        ///
        /// # Panics
        /// If the bytes are not in the memory.
        pub fn address(&self, at: usize, len: usize) -> NonNull<u8> {
            assert!(at <= self.len && len <= self.len - at, "within the memory");
            #[cfg(feature = "fuzz")]
            crate::fuzz::looks(self, at, len);
            // SAFETY: the assertion above has checked the range.
            unsafe { self.base.add(at) }
        }

        /// Copies bytes out of the memory.
        ///
        /// # Panics
        /// If the bytes are not in the memory.
        #[inline]
        pub fn read(&self, at: usize, into: &mut [u8]) {
            let from = self.address(at, into.len());
            // SAFETY: both ranges are as long as `into`. `into` is borrowed exclusively, so they do not overlap. The
            // other side may write during the copy: every mixture of old and new bytes is valid.
            unsafe { copy_nonoverlapping(from.as_ptr(), into.as_mut_ptr(), into.len()) }
        }

        /// Copies bytes into the memory.
        ///
        /// # Panics
        /// If the bytes do not fit into the memory.
        #[inline]
        pub fn write(&self, at: usize, from: &[u8]) {
            let into = self.address(at, from.len());
            // SAFETY: as in `read`.
            unsafe { copy_nonoverlapping(from.as_ptr(), into.as_ptr(), from.len()) }
        }

        /// Fills a range with zeros.
        ///
        /// # Panics
        /// If the range is not in the memory.
        pub fn clear(&self, at: usize, len: usize) {
            self.fill(at, len, 0);
        }

        /// Fills a range with one byte.
        ///
        /// # Panics
        /// If the range is not in the memory.
        pub fn fill(&self, at: usize, len: usize, byte: u8) {
            // SAFETY: `address` has checked the range.
            unsafe { write_bytes(self.address(at, len).as_ptr(), byte, len) }
        }

        /// Returns an atomic word.
        ///
        /// # Panics
        /// If the word is not in the memory, or `at` is not a multiple of 4.
        #[inline]
        pub(crate) fn word(&self, at: usize) -> &AtomicU32 {
            assert!(at.is_multiple_of(4), "a word");
            // SAFETY: the word is in the memory and aligned, because the base is aligned to a page. Both sides access
            // shared words atomically. Copies that cover a word are made only while no side reads it.
            unsafe { AtomicU32::from_ptr(self.address(at, 4).as_ptr().cast()) }
        }
    }

    impl fmt::Debug for Memory {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "{} bytes at {:p}", self.len, self.base)
        }
    }
}

#[cfg(all(test, any(nine_loom, nine_shuttle)))]
mod tried {
    extern crate std;
    use std::sync::Arc;
    use std::vec::Vec;

    use crate::layout::LINE;
    use crate::sync::{AtomicU32, Ordering};

    /// Memory for a checker: each word is an atomic of the checker. Copies go to separate lines, which detect that a
    /// thread writes a line while another one uses it.
    #[derive(Clone, Debug)]
    pub struct Memory(Arc<(Vec<AtomicU32>, Vec<Line>)>);

    #[cfg(all(test, nine_loom))]
    type Line = loom::cell::UnsafeCell<[u8; LINE]>;
    #[cfg(all(test, nine_shuttle))]
    type Line = std::sync::Mutex<[u8; LINE]>;

    // SAFETY: loom checks each access to a line, and fails if two may be concurrent.
    unsafe impl Send for Memory {}
    // SAFETY: as above.
    unsafe impl Sync for Memory {}

    impl Memory {
        /// Creates memory of zeros.
        pub fn new(len: usize) -> Self {
            let words = (0..len / 4).map(|_| AtomicU32::new(0)).collect();
            Self(Arc::new((words, (0..len / LINE).map(|_| Line::new([0; LINE])).collect())))
        }

        /// See the real `Memory`.
        pub fn len(&self) -> usize {
            self.0.1.len() * LINE
        }

        /// See the real `Memory`.
        pub fn is_empty(&self) -> bool {
            self.len() == 0
        }

        /// See the real `Memory`.
        pub fn read(&self, at: usize, into: &mut [u8]) {
            let mut at = at;
            for part in chunks(at, into) {
                self.line(at, |line| part.copy_from_slice(&line[at % LINE..at % LINE + part.len()]));
                at += part.len();
            }
        }

        /// See the real `Memory`.
        pub fn write(&self, at: usize, from: &[u8]) {
            let mut done = 0;
            while done < from.len() {
                let here = at + done;
                let n = (LINE - here % LINE).min(from.len() - done);
                self.line(here, |line| {
                    line[here % LINE..here % LINE + n].copy_from_slice(&from[done..done + n])
                });
                done += n;
            }
        }

        /// See the real `Memory`.
        pub fn clear(&self, at: usize, len: usize) {
            self.0.0[at / 4..(at + len) / 4].iter().for_each(|word| word.store(0, Ordering::Relaxed));
            self.write(at, &std::vec![0; len]);
        }

        pub(crate) fn word(&self, at: usize) -> &AtomicU32 {
            &self.0.0[at / 4]
        }

        fn line<T>(&self, at: usize, f: impl FnOnce(&mut [u8; LINE]) -> T) -> T {
            #[cfg(all(test, nine_loom))]
            // SAFETY: loom has checked that no other thread uses this line.
            return self.0.1[at / LINE].with_mut(|line| f(unsafe { &mut *line }));
            #[cfg(all(test, nine_shuttle))]
            return f(&mut self.0.1[at / LINE].lock().unwrap());
        }
    }

    /// Splits `into`, whose first byte is at offset `at`, into parts that are each within a line.
    fn chunks(at: usize, into: &mut [u8]) -> impl Iterator<Item = &mut [u8]> {
        let first = (LINE - at % LINE).min(into.len());
        let (first, rest) = into.split_at_mut(first);
        std::iter::once(first).chain(rest.chunks_mut(LINE))
    }
}
