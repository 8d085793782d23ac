//! The two ioctls of /dev/fuse that no crate wraps (Linux' include/uapi/linux/fuse.h).

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::rc::Rc;

use rustix::ioctl::{self, Opcode, Setter, opcode};

/// A file of the host that the kernel itself reads and writes while this exists.
#[derive(Clone)]
pub(super) struct BackingFile(Rc<BackingId>);

struct BackingId {
    device: Rc<OwnedFd>,
    id: u32,
}

/// `struct fuse_backing_map`.
#[repr(C)]
struct BackingMap {
    fd: i32,
    flags: u32,
    padding: u64,
}

/// `FUSE_DEV_IOC_MAGIC`.
const MAGIC: u8 = 229;
const OPEN: Opcode = opcode::write::<BackingMap>(MAGIC, 1);
const CLOSE: Opcode = opcode::write::<u32>(MAGIC, 2);

impl BackingFile {
    /// Registers a file of the host with the kernel. Needs CAP_SYS_ADMIN, and `PASSTHROUGH` agreed on in INIT.
    pub(super) fn new(device: &Rc<OwnedFd>, file: impl AsFd) -> io::Result<Self> {
        let map = BackingMap { fd: file.as_fd().as_raw_fd(), flags: 0, padding: 0 };
        // SAFETY: the kernel reads a `BackingMap` of this layout and keeps no pointer. It returns a positive number.
        let id = unsafe { ioctl::ioctl(device.as_fd(), BackingOpenIoctl(map)) }?;
        Ok(Self(Rc::new(BackingId { device: device.clone(), id })))
    }

    /// Its number, for the answer to an OPEN.
    pub(super) fn id(&self) -> u32 {
        self.0.id
    }
}

impl Drop for BackingId {
    fn drop(&mut self) {
        // SAFETY: the kernel reads one word.
        let _ = unsafe { ioctl::ioctl(self.device.as_fd(), Setter::<CLOSE, u32>::new(self.id)) };
    }
}

/// An ioctl that takes a [`BackingMap`] and returns a number.
struct BackingOpenIoctl(BackingMap);

// SAFETY: the opcode gives the number of bytes read from the pointer, which points to a `BackingMap`; nothing is
// written there.
unsafe impl ioctl::Ioctl for BackingOpenIoctl {
    type Output = u32;

    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        OPEN
    }

    fn as_ptr(&mut self) -> *mut rustix::ffi::c_void {
        (&raw mut self.0).cast()
    }

    unsafe fn output_from_ptr(
        out: ioctl::IoctlOutput,
        _: *mut rustix::ffi::c_void,
    ) -> rustix::io::Result<u32> {
        Ok(out as u32)
    }
}
