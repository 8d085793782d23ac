//! Memory that another program or machine writes, too.
//!
//! Always holds: no reference to its bytes exists, only words as atomics and copies in and out. What the other side
//! changes during a copy is in the copy or not; it was going to be checked after it anyhow.

#![allow(unsafe_code)]

#[cfg(not(all(test, any(nine_loom, nine_shuttle))))]
pub use real::{Memory, Owner};
#[cfg(all(test, any(nine_loom, nine_shuttle)))]
pub use tried::Memory;

/// A mapping of a file, unmapped with its last [`Memory`].
#[cfg(all(feature = "linux", not(all(test, any(nine_loom, nine_shuttle)))))]
struct Mapping {
    base: core::ptr::NonNull<u8>,
    len: usize,
}

#[cfg(all(feature = "linux", not(all(test, any(nine_loom, nine_shuttle)))))]
// SAFETY: it is an address and a length; unmapping is allowed from any thread.
unsafe impl Send for Mapping {}
#[cfg(all(feature = "linux", not(all(test, any(nine_loom, nine_shuttle)))))]
// SAFETY: as above.
unsafe impl Sync for Mapping {}

#[cfg(all(feature = "linux", not(all(test, any(nine_loom, nine_shuttle)))))]
impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `map` has mapped exactly these, and whoever could use them had a part of this.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// Maps the first `len` bytes of a file, which cannot become shorter.
#[cfg(all(feature = "linux", not(all(test, any(nine_loom, nine_shuttle)))))]
pub(crate) fn map(file: rustix::fd::BorrowedFd<'_>, len: usize) -> rustix::io::Result<Memory> {
    use rustix::mm::{MapFlags, ProtFlags, mmap};
    let both = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping, where nothing is.
    let base = unsafe { mmap(core::ptr::null_mut(), len, both, MapFlags::SHARED, file, 0)? };
    let base = core::ptr::NonNull::new(base.cast()).expect("a mapping is not at 0");
    let mapping = Mapping { base, len };
    // SAFETY: it is mapped as long as `mapping` lives, from a page's beginning on; the file stays as long as that, so
    // that no page of it is missing, and only this module knows where it is.
    Ok(unsafe { Memory::new(base, len, Some(alloc::sync::Arc::new(mapping))) })
}

/// Takes a descriptor that this program was born with, and lets no child have it. `None`: there is none of this number.
#[cfg(all(feature = "linux", not(all(test, any(nine_loom, nine_shuttle)))))]
pub(crate) fn take_inherited(number: i32) -> Option<rustix::fd::OwnedFd> {
    use rustix::fd::{FromRawFd, OwnedFd};
    // SAFETY: it is open, and whoever started this program has said that it is for this channel alone.
    close_on_exec(number).then(|| unsafe { OwnedFd::from_raw_fd(number) })
}

/// Lets no child have the descriptor of this number. Whether there is one.
#[cfg(all(feature = "linux", not(all(test, any(nine_loom, nine_shuttle)))))]
pub(crate) fn close_on_exec(number: i32) -> bool {
    // SAFETY: borrowed for the one call, which fails if there is none.
    let fd = unsafe { rustix::fd::BorrowedFd::borrow_raw(number) };
    number >= 0 && rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::CLOEXEC).is_ok()
}

/// Hands bytes of the memory to a system call that takes an address and a length: what it returns.
#[cfg(all(feature = "linux", not(all(test, any(nine_loom, nine_shuttle)))))]
pub(crate) mod calls {
    extern crate std;
    use core::slice;
    use std::io::{IoSlice, IoSliceMut};

    use rustix::fd::BorrowedFd;
    use rustix::io::{ReadWriteFlags, Result, preadv2, pwritev2};

    use super::Memory;

    /// Writes `len` bytes into a file at `offset`: how many.
    pub(crate) fn write_at(
        memory: &Memory,
        (at, len): (usize, usize),
        file: BorrowedFd<'_>,
        offset: u64,
        flags: ReadWriteFlags,
    ) -> Result<usize> {
        let from = memory.address(at, len);
        // SAFETY: the slice lives for this call alone, and nobody looks at it but the kernel, which copies bytes from
        // an address and minds nobody who changes them.
        let bytes = unsafe { slice::from_raw_parts(from.as_ptr(), len) };
        pwritev2(file, &[IoSlice::new(bytes)], offset, flags)
    }

    /// Reads at most `len` bytes of a file from `offset` on: how many.
    pub(crate) fn read_at(
        memory: &Memory,
        (at, len): (usize, usize),
        file: BorrowedFd<'_>,
        offset: u64,
        flags: ReadWriteFlags,
    ) -> Result<usize> {
        let into = memory.address(at, len);
        // SAFETY: as above; and the bytes are initialised: a file's are.
        let bytes = unsafe { slice::from_raw_parts_mut(into.as_ptr(), len) };
        preadv2(file, &mut [IoSliceMut::new(bytes)], offset, flags)
    }
}

/// Rings eventfds as parts of the kernel do.
#[cfg(all(feature = "linux", not(all(test, any(nine_loom, nine_shuttle)))))]
pub(crate) mod signal {
    extern crate std;
    use core::mem;
    use std::io;
    use std::os::fd::AsRawFd;
    use std::sync::OnceLock;

    use rustix::fd::BorrowedFd;

    /// The kernel's context of what is asked for; `None`: it has none to give.
    static CONTEXT: OnceLock<Option<libc::c_ulong>> = OnceLock::new();
    /// Of answers that nobody wants, so many lie in it before they are thrown away.
    const ANSWERS: usize = 64;

    /// Adds 1 to an eventfd and waits for nothing: completed AIO tells of itself so. `false`: this kernel cannot.
    pub(crate) fn signal(eventfd: BorrowedFd<'_>) -> bool {
        let Some(context) = *CONTEXT.get_or_init(context) else { return false };
        // SAFETY: all zeros are a request.
        let mut ask: libc::iocb = unsafe { mem::zeroed() };
        let fd = eventfd.as_raw_fd() as u32;
        // An eventfd is readable or writable, so that this is complete as soon as it is asked.
        (ask.aio_lio_opcode, ask.aio_buf) = (POLL, (libc::POLLIN | libc::POLLOUT) as u64);
        (ask.aio_fildes, ask.aio_flags, ask.aio_resfd) = (fd, RESFD, fd);
        let mut asked = [&raw mut ask];
        for _ in 0..TRIES {
            // SAFETY: one request, which is not looked at any more when the call returns.
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
        // SAFETY: it is written to by this call alone.
        let made = unsafe { libc::syscall(libc::SYS_io_setup, ANSWERS, &raw mut context) };
        (made == 0).then_some(context)
    }

    /// Takes answers and throws them away, without waiting for any.
    fn forget(context: libc::c_ulong) {
        // struct io_event
        let mut answers = [[0u64; 4]; ANSWERS];
        let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: there is room for so many; both live for the call, which is all that knows them.
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

    /// linux/aio_abi.h: IOCB_CMD_POLL and IOCB_FLAG_RESFD.
    const POLL: u16 = 5;
    const RESFD: u32 = 1;
    /// Other threads may take the room that was made.
    const TRIES: usize = 8;
}

#[cfg(not(all(test, any(nine_loom, nine_shuttle))))]
mod real {
    use alloc::sync::Arc;
    use core::any::Any;
    use core::fmt;
    use core::ptr::{NonNull, copy_nonoverlapping, write_bytes};

    use crate::sync::AtomicU32;

    /// Who unmaps memory when nobody has it any more.
    pub type Owner = Arc<dyn Any + Send + Sync>;

    /// A part of memory that is shared. It stays mapped as long as anybody has one.
    #[derive(Clone)]
    pub struct Memory {
        base: NonNull<u8>,
        len: usize,
        owner: Option<Owner>,
    }

    // SAFETY: it is an address; what is done there is atomic or a copy, from any thread.
    unsafe impl Send for Memory {}
    // SAFETY: as above.
    unsafe impl Sync for Memory {}

    impl Memory {
        /// Zeros.
        #[cfg(test)]
        pub(crate) fn zeros(len: usize) -> Self {
            extern crate std;
            #[repr(align(4096))]
            #[derive(Clone)]
            struct Page(#[allow(dead_code)] [u8; crate::PAGE]);
            let mut pages = std::vec![Page([0; crate::PAGE]); len.div_ceil(crate::PAGE)];
            let base = NonNull::new(pages.as_mut_ptr()).expect("a vector is not at 0");
            // SAFETY: they are aligned, stay where they are as long as their owner does, and nobody else looks at them.
            unsafe { Self::new(base.cast(), len, Some(Arc::new(pages))) }
        }

        /// Those `len` bytes.
        ///
        /// # Safety
        /// They are mapped for reading and writing as long as the owner lives, or for ever without one; `base` is a
        /// multiple of 4096; and no reference to any of them exists meanwhile.
        pub unsafe fn new(base: NonNull<u8>, len: usize, owner: Option<Owner>) -> Self {
            debug_assert!(base.as_ptr().addr().is_multiple_of(crate::PAGE));
            Self { base, len, owner }
        }

        /// Bytes.
        pub fn len(&self) -> usize {
            self.len
        }

        /// Whether it is none.
        pub fn is_empty(&self) -> bool {
            self.len == 0
        }

        /// A part of it. `None`: it is not in it, or `at` is no multiple of a page.
        pub fn part(&self, at: usize, len: usize) -> Option<Self> {
            let within = at.is_multiple_of(crate::PAGE) && len <= self.len.checked_sub(at)?;
            // SAFETY: `at` is within the bytes that `new` was promised.
            within.then(|| Self { base: unsafe { self.base.add(at) }, len, owner: self.owner.clone() })
        }

        /// The address of `len` bytes, for whoever copies by himself: a system call. Nothing there may be referred to.
        ///
        /// # Panics
        /// They are not in it.
        pub fn address(&self, at: usize, len: usize) -> NonNull<u8> {
            assert!(at <= self.len && len <= self.len - at, "within the memory");
            #[cfg(feature = "fuzz")]
            crate::fuzz::looks(self, at, len);
            // SAFETY: just looked at.
            unsafe { self.base.add(at) }
        }

        /// Copies out.
        ///
        /// # Panics
        /// They are not in it.
        #[inline]
        pub fn read(&self, at: usize, into: &mut [u8]) {
            let from = self.address(at, into.len());
            // SAFETY: both are as long as `into`, which is nobody else's, so they do not overlap. The other side may
            // write there meanwhile: bytes are bytes, whichever of them come.
            unsafe { copy_nonoverlapping(from.as_ptr(), into.as_mut_ptr(), into.len()) }
        }

        /// Copies in.
        ///
        /// # Panics
        /// There is no room for them.
        #[inline]
        pub fn write(&self, at: usize, from: &[u8]) {
            let into = self.address(at, from.len());
            // SAFETY: as in `read`.
            unsafe { copy_nonoverlapping(from.as_ptr(), into.as_ptr(), from.len()) }
        }

        /// Fills with zeros.
        ///
        /// # Panics
        /// They are not in it.
        pub fn clear(&self, at: usize, len: usize) {
            self.fill(at, len, 0);
        }

        /// Fills with one byte.
        ///
        /// # Panics
        /// They are not in it.
        pub fn fill(&self, at: usize, len: usize, byte: u8) {
            // SAFETY: they are in it.
            unsafe { write_bytes(self.address(at, len).as_ptr(), byte, len) }
        }

        /// A word.
        ///
        /// # Panics
        /// It is not in it, or `at` is no multiple of 4.
        #[inline]
        pub(crate) fn word(&self, at: usize) -> &AtomicU32 {
            assert!(at.is_multiple_of(4), "a word");
            // SAFETY: it is in the memory, and aligned: the base is, to a page. All that both sides see of a word is
            // atomic; copies that go over one are made when nobody looks at it.
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

    /// Memory as a checker knows it: each word is one that it lets threads meet at, and copies go past it, into lines
    /// that nobody may write while somebody else has them.
    #[derive(Clone, Debug)]
    pub struct Memory(Arc<(Vec<AtomicU32>, Vec<Line>)>);

    #[cfg(all(test, nine_loom))]
    type Line = loom::cell::UnsafeCell<[u8; LINE]>;
    #[cfg(all(test, nine_shuttle))]
    type Line = std::sync::Mutex<[u8; LINE]>;

    // SAFETY: loom looks at each access to a line, and fails where two of them may be at once.
    unsafe impl Send for Memory {}
    // SAFETY: as above.
    unsafe impl Sync for Memory {}

    impl Memory {
        /// Zeros.
        pub fn new(len: usize) -> Self {
            let words = (0..len / 4).map(|_| AtomicU32::new(0)).collect();
            Self(Arc::new((words, (0..len / LINE).map(|_| Line::new([0; LINE])).collect())))
        }

        /// See the real one.
        pub fn len(&self) -> usize {
            self.0.1.len() * LINE
        }

        /// See the real one.
        pub fn is_empty(&self) -> bool {
            self.len() == 0
        }

        /// See the real one.
        pub fn read(&self, at: usize, into: &mut [u8]) {
            let mut at = at;
            for part in chunks(at, into) {
                self.line(at, |line| part.copy_from_slice(&line[at % LINE..at % LINE + part.len()]));
                at += part.len();
            }
        }

        /// See the real one.
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

        /// See the real one.
        pub fn clear(&self, at: usize, len: usize) {
            self.0.0[at / 4..(at + len) / 4].iter().for_each(|word| word.store(0, Ordering::Relaxed));
            self.write(at, &std::vec![0; len]);
        }

        pub(crate) fn word(&self, at: usize) -> &AtomicU32 {
            &self.0.0[at / 4]
        }

        fn line<T>(&self, at: usize, f: impl FnOnce(&mut [u8; LINE]) -> T) -> T {
            #[cfg(all(test, nine_loom))]
            // SAFETY: loom has found nobody else in this line.
            return self.0.1[at / LINE].with_mut(|line| f(unsafe { &mut *line }));
            #[cfg(all(test, nine_shuttle))]
            return f(&mut self.0.1[at / LINE].lock().unwrap());
        }
    }

    /// Parts of `into`, whose first byte is at `at`, each within a line.
    fn chunks(at: usize, into: &mut [u8]) -> impl Iterator<Item = &mut [u8]> {
        let first = (LINE - at % LINE).min(into.len());
        let (first, rest) = into.split_at_mut(first);
        std::iter::once(first).chain(rest.chunks_mut(LINE))
    }
}
