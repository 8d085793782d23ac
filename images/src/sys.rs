//! A device of virtio-9p by its legacy interface, for measurements: one queue, one request at a time, polled.
//!
//! In: a message, and bytes behind it that were made where the device takes them. Out: the answer.
//!
//! Always holds: the device is told of memory that is its own alone, and never freed; what it has written is copied
//! out.

#![allow(unsafe_code)]

use alloc::alloc::{Layout, alloc_zeroed};
use core::arch::asm;
use core::hint::spin_loop;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, Ordering::SeqCst, fence};

use nine_guest::{Errno, Error, Result};

/// The device, and the memory that it and we use.
pub struct Device {
    port: u16,
    /// The queue's length, which is what its places are counted by.
    places: u16,
    memory: NonNull<u8>,
    asked: u16,
}

const IDS: u32 = 0x1009_1af4;
/// Where there are no others.
const PORT: u32 = 0xc000;
/// Of the registers.
const FEATURES: u16 = 4;
const QUEUE: u16 = 8;
const PLACES: u16 = 12;
const SELECT: u16 = 14;
const NOTIFY: u16 = 16;
const STATUS: u16 = 18;
/// Of the memory: descriptors, what is asked, what was answered, and messages.
const ASKED: usize = 16 * PLACES_MOST as usize;
const ANSWERED: usize = 4096;
const HEAD: usize = 8192;
const ANSWER: usize = HEAD + ROOM;
const DATA: usize = ANSWER + ROOM;
/// Bytes of a message without its data, and of an answer; of data; and places of a queue.
const ROOM: usize = 4096;
pub const DATA_MOST: usize = 1 << 20;
const PLACES_MOST: u16 = 128;

impl Device {
    /// The only one, once.
    pub fn find() -> Result<Self> {
        static IS_TAKEN: AtomicBool = AtomicBool::new(false);
        let none = |why| Error::new(Errno::ENODEV, why);
        if IS_TAKEN.swap(true, SeqCst) {
            return Err(none("virtio-9p is in use"));
        }
        let at = (0..32).map(|n| 1 << 31 | n << 11).find(|at| config(*at, None) == IDS);
        let at = at.ok_or_else(|| none("there is no virtio-9p on the first bus"))?;
        let port = match config(at + 16, None) {
            port if port & 1 == 0 => return Err(none("virtio-9p has no legacy interface")),
            // No firmware has given it a place.
            1 => config(at + 16, Some(PORT)),
            port => port,
        };
        config(at + 4, Some(config(at + 4, None) & 0xffff | 5));
        // SAFETY: its size is not 0.
        let memory = unsafe { alloc_zeroed(Layout::from_size_align_unchecked(DATA + DATA_MOST, 4096)) };
        let memory = NonNull::new(memory).ok_or(Errno::ENOMEM)?;
        let device = Self { port: port as u16 & !3, places: PLACES_MOST, memory, asked: 0 };
        [0, 1, 3].iter().for_each(|status| device.out8(STATUS, *status));
        device.out32(FEATURES, 0);
        device.out16(SELECT, 0);
        if device.in16(PLACES) != PLACES_MOST {
            return Err(none("virtio-9p has a queue of another length"));
        }
        device.word(ASKED, 1); // It need not interrupt.
        device.out32(QUEUE, (device.address(0) >> 12) as u32);
        device.out8(STATUS, 7);
        Ok(device)
    }

    /// Makes data for the next message.
    ///
    /// # Panics
    /// There is no room for it.
    pub fn fill(&mut self, len: usize, byte: u8) {
        assert!(len <= DATA_MOST, "room");
        // SAFETY: it is our memory, and the device has none of it between two requests.
        unsafe { self.memory.add(DATA).write_bytes(byte, len) }
    }

    /// Sends a message with so many bytes of data behind it, and waits: how long the answer is, in `answer`.
    ///
    /// # Panics
    /// There is no room for one of them.
    pub fn ask(&mut self, head: &[u8], data: usize, answer: &mut [u8]) -> usize {
        assert!(head.len() <= ROOM && data <= DATA_MOST && answer.len() <= ROOM, "room");
        // SAFETY: it is our memory, and the device has none of it between two requests.
        unsafe { self.memory.add(HEAD).copy_from_nonoverlapping(NonNull::from(head).cast(), head.len()) }
        let last = usize::from(data > 0) + 1;
        self.describe(0, HEAD, head.len(), 1);
        if data > 0 {
            self.describe(1, DATA, data, 1);
        }
        self.describe(last, ANSWER, answer.len(), 2);
        let place = usize::from(self.asked % self.places);
        self.word(ASKED + 4 + 2 * place, 0);
        fence(SeqCst);
        self.asked = self.asked.wrapping_add(1);
        self.word(ASKED + 2, self.asked);
        fence(SeqCst);
        self.out16(NOTIFY, 0);
        // SAFETY: a word of our memory, aligned, which the device writes.
        while unsafe { self.memory.add(ANSWERED + 2).cast::<u16>().read_volatile() } != self.asked {
            spin_loop();
        }
        fence(SeqCst);
        // SAFETY: the same; and what it says is looked at.
        let len = unsafe { self.memory.add(ANSWERED + 8 + 8 * place).cast::<u32>().read_volatile() };
        let len = answer.len().min(len as usize);
        // SAFETY: the device has written it, and does no more.
        unsafe { NonNull::from(answer).cast().copy_from_nonoverlapping(self.memory.add(ANSWER), len) }
        len
    }

    fn address(&self, at: usize) -> u64 {
        self.memory.as_ptr() as u64 + at as u64
    }

    /// Writes a descriptor. `flags`: 1, the next one goes with it; 2, the device writes there.
    fn describe(&self, n: usize, at: usize, len: usize, flags: u32) {
        let words = [self.address(at), len as u64 | u64::from(flags | (n as u32 + 1) << 16) << 32];
        // SAFETY: it is the n-th descriptor, of 3 at most, in our memory.
        unsafe { self.memory.add(16 * n).cast::<[u64; 2]>().write_volatile(words) }
    }

    fn word(&self, at: usize, value: u16) {
        assert!(at.is_multiple_of(2) && at < HEAD, "a word of the queue");
        // SAFETY: just looked at.
        unsafe { self.memory.add(at).cast::<u16>().write_volatile(value) }
    }

    fn out8(&self, at: u16, value: u8) {
        // SAFETY: a register of the device, which writes to memory that it was told of.
        unsafe {
            asm!("out dx, al", in("dx") self.port + at, in("al") value, options(nostack, preserves_flags))
        }
    }

    fn out16(&self, at: u16, value: u16) {
        // SAFETY: as above.
        unsafe {
            asm!("out dx, ax", in("dx") self.port + at, in("ax") value, options(nostack, preserves_flags))
        }
    }

    fn out32(&self, at: u16, value: u32) {
        out32(self.port + at, value);
    }

    fn in16(&self, at: u16) -> u16 {
        let value;
        // SAFETY: as above.
        unsafe {
            asm!("in ax, dx", in("dx") self.port + at, out("ax") value, options(nostack, preserves_flags));
        }
        value
    }
}

/// A word of PCI's configuration space, which may be replaced.
fn config(at: u32, word: Option<u32>) -> u32 {
    out32(0xcf8, at);
    if let Some(word) = word {
        out32(0xcfc, word);
    }
    let value;
    // SAFETY: it reads a register.
    unsafe { asm!("in eax, dx", in("dx") 0xcfc_u16, out("eax") value, options(nostack, preserves_flags)) };
    value
}

fn out32(port: u16, value: u32) {
    // SAFETY: of the device, or of PCI's configuration space, where this file lets a device of virtio answer.
    unsafe { asm!("out dx, eax", in("dx") port, in("eax") value, options(nostack, preserves_flags)) }
}
