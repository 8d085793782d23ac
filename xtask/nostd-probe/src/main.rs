//! A program without std that uses nine-proto, and a channel with a guest and its host: it links only if nine-proto,
//! nine-ring and nine-guest need no std, and it runs.
//!
//! Memory, the start and the end come from the C library of the host, which is all that is under it.

#![no_std]
#![no_main]

use core::alloc::{GlobalAlloc, Layout};
use core::cell::{RefCell, UnsafeCell};
use core::ffi::{c_int, c_void};
use core::ptr::NonNull;

use nine_guest::{Client, Line, Options};
use nine_proto::msg::{Rmsg, Tmsg};
use nine_proto::{Dialect, Qid};
use nine_ring::{End, Kind, Life, MOST, Memory, Note};

extern crate alloc;

/// Decodes a Tversion and encodes it again, and attaches through a channel; 0 when that went as it must.
// SAFETY: no other symbol of the program is named main, and C calls it so.
#[unsafe(no_mangle)]
extern "C" fn main() -> c_int {
    let bytes = *b"\x13\0\0\0\x64\xff\xff\0\x20\0\0\x06\09P2000";
    let Ok((tag, message)) = Tmsg::decode(&bytes, Dialect::P2000) else { return 1 };
    let mut again = alloc::vec::Vec::new();
    message.encode(tag, Dialect::P2000, &mut again);
    if again != bytes {
        return 2;
    }
    // SAFETY: they are there as long as the program, aligned, and nobody else refers to them: `main` is called once.
    let memory =
        unsafe { Memory::new(NonNull::new_unchecked(PAGES.0.get()).cast(), size_of::<Pages>(), None) };
    let layout = nine_ring::Layout::new(Kind::GuestAsks, 64, 1, "probe");
    let host = Host(RefCell::new(End::open(memory.clone(), layout)));
    match Client::join_named(&memory, "probe", host, Options::default())
        .map(|mut client| client.attach("", ""))
    {
        Ok(Ok(_)) => 0,
        _ => 3,
    }
}

/// A host that has its turn when the guest sleeps.
struct Host(RefCell<End>);

impl Line for Host {
    fn ring(&self) {}

    fn sleep(&self) -> bool {
        let mut end = self.0.borrow_mut();
        if end.life() == Life::Another {
            end.serve();
            return true;
        }
        let mut bytes = [0; MOST];
        let Ok(Some(piece)) = end.take(&mut bytes) else { return false };
        let Ok((tag, asked)) = Tmsg::decode(&bytes[..piece.len], Dialect::L) else { return false };
        let answer = match asked {
            Tmsg::Version { msize, version } => Rmsg::Version { msize, version },
            Tmsg::Attach { .. } => Rmsg::Attach { qid: Qid::default() },
            _ => Rmsg::Lerror { ecode: 95 },
        };
        let mut message = alloc::vec::Vec::new();
        answer.encode(tag, Dialect::L, &mut message);
        end.put(&message, Note::None) == Ok(true)
    }

    fn is_gone(&self) -> bool {
        false
    }

    fn looks(&self) -> u32 {
        0
    }
}

/// The page, two rings and one page of an arena.
#[repr(align(4096))]
struct Pages(UnsafeCell<[u8; 4 * 4096]>);

// SAFETY: this program has one thread.
unsafe impl Sync for Pages {}

static PAGES: Pages = Pages(UnsafeCell::new([0; 4 * 4096]));

struct Malloc;

// SAFETY: malloc and free keep the contract of GlobalAlloc for alignments up to 16; a larger one gets no
// memory.
unsafe impl GlobalAlloc for Malloc {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.align() > 16 {
            return core::ptr::null_mut();
        }
        // SAFETY: any size may be asked for.
        unsafe { malloc(layout.size()).cast() }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, _: Layout) {
        // SAFETY: the caller got `ptr` from alloc.
        unsafe { free(ptr.cast()) }
    }
}

#[global_allocator]
static MALLOC: Malloc = Malloc;

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // SAFETY: abort may be called at any time.
    unsafe { abort() }
}

/// The ready-made `alloc` names it for unwinding; nothing unwinds here.
// SAFETY: no other symbol of the program has this name, and nobody calls it.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}

/// The same.
// SAFETY: as above.
#[unsafe(no_mangle)]
extern "C" fn _Unwind_Resume() -> ! {
    // SAFETY: abort may be called at any time.
    unsafe { abort() }
}

// SAFETY: the signatures are those of the C standard.
#[link(name = "c")]
unsafe extern "C" {
    fn malloc(size: usize) -> *mut c_void;
    fn free(ptr: *mut c_void);
    fn abort() -> !;
}
