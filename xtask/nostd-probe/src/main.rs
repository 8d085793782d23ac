//! A program without std that uses nine-proto: it links only if nine-proto needs no std, and it runs.
//!
//! Memory, the start and the end come from the C library of the host, which is all that is under it.

#![no_std]
#![no_main]

use core::alloc::{GlobalAlloc, Layout};
use core::ffi::{c_int, c_void};

use nine_proto::Dialect;
use nine_proto::msg::Tmsg;

extern crate alloc;

/// Decodes a Tversion and encodes it again; 0 when that went as it must.
// SAFETY: no other symbol of the program is named main, and C calls it so.
#[unsafe(no_mangle)]
extern "C" fn main() -> c_int {
    let bytes = *b"\x13\0\0\0\x64\xff\xff\0\x20\0\0\x06\09P2000";
    let Ok((tag, message)) = Tmsg::decode(&bytes, Dialect::P2000) else { return 1 };
    let mut again = alloc::vec::Vec::new();
    message.encode(tag, Dialect::P2000, &mut again);
    c_int::from(again != bytes)
}

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

// SAFETY: the signatures are those of the C standard.
#[link(name = "c")]
unsafe extern "C" {
    fn malloc(size: usize) -> *mut c_void;
    fn free(ptr: *mut c_void);
    fn abort() -> !;
}
