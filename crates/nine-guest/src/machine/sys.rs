//! Code for x86-64 processors: the entry of an image, ports, registers, pages, interrupts, the heap.
//!
//! Always holds:
//! - One processor runs one thread. Interrupts are taken in [`halt`] alone, between two calls, and change nothing but
//!   their controller. So nothing here needs a lock, and no code's registers or stack are touched.
//! - All memory below 4 GiB is mapped at its own address, and so is memory mapped later above it. Only the page below
//!   the stack is not mapped.
//! - The image and the heap belong to the program. Memory handed out as registers or shared memory lies elsewhere.

#![allow(unsafe_code)]

use alloc::rc::Rc;
use core::alloc::{GlobalAlloc, Layout};
use core::arch::{asm, global_asm};
use core::cell::UnsafeCell;
use core::ptr::{NonNull, addr_of, addr_of_mut};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use nine_ring::Memory;
use talc::{TalcCell, source::Manual};

use super::Bells;
use super::pci::{PciConfig, PciFunction};
use crate::partition::{Last, Outcome};

/// Builds an image from a `main`: `fn main(part: &mut Partition) -> impl Outcome`. Defines the image's entry, its
/// heap, and its panic handler.
#[macro_export]
macro_rules! partition {
    ($main:path) => {
        #[panic_handler]
        fn nine_guest_panic(info: &core::panic::PanicInfo<'_>) -> ! {
            $crate::machine::panicked(info)
        }

        #[global_allocator]
        // SAFETY: it is the heap of an image, which has one thread.
        static NINE_GUEST_HEAP: $crate::machine::Heap = unsafe { $crate::machine::Heap::new() };

        extern "C" fn nine_guest_begin(info: u32) -> ! {
            // SAFETY: an image begins here, once.
            unsafe { $crate::machine::begin(info, env!("CARGO_BIN_NAME"), $main) }
        }

        // Entered as defined by PVH: 32 bits, no paging, the address of `hvm_start_info` in ebx. Maps the first 4 GiB
        // with pages of 2 MiB, and the stack's with pages of 4 KiB, of which the lowest one is missing. Enables SSE,
        // and continues in 64 bits.
        core::arch::global_asm!(
            r#"
            .pushsection .note.Xen, "a", @note
            .balign 4
            .long 4, 8, 18
            .asciz "Xen"
            .quad nine_guest_entry
            .popsection

            .pushsection .nine_guest.first, "aw", @nobits
            .balign 4096
            nine_guest_pages: .skip 7 * 4096
            .globl nine_guest_guard
            nine_guest_guard: .skip 4096
            .skip 256 * 1024
            nine_guest_stack:
            .popsection

            .pushsection .nine_guest.entry, "ax", @progbits
            .code32
            .globl nine_guest_entry
            nine_guest_entry:
            cli
            cld
            movl $nine_guest_stack, %esp
            movl $nine_guest_pages, %edi
            # The first table leads to the second, and that to four that say where each 2 MiB are.
            leal 0x1003(%edi), %eax
            movl %eax, (%edi)
            leal 0x2003(%edi), %eax
            leal 0x1000(%edi), %edx
            movl $4, %ecx
        2:  movl %eax, (%edx)
            addl $0x1000, %eax
            addl $8, %edx
            loop 2b
            leal 0x2000(%edi), %edx
            movl $0x83, %eax
            movl $2048, %ecx
        2:  movl %eax, (%edx)
            addl $0x200000, %eax
            addl $8, %edx
            loop 2b
            # The 2 MiB of the stack, page by page.
            movl %edi, %eax
            shrl $21, %eax
            leal 0x6003(%edi), %ecx
            movl %ecx, 0x2000(%edi, %eax, 8)
            shll $21, %eax
            orl $3, %eax
            leal 0x6000(%edi), %edx
            movl $512, %ecx
        2:  movl %eax, (%edx)
            addl $0x1000, %eax
            addl $8, %edx
            loop 2b
            movl $nine_guest_guard, %eax
            shrl $12, %eax
            andl $511, %eax
            movl $0, 0x6000(%edi, %eax, 8)

            movl %cr4, %eax
            orl $0x620, %eax
            movl %eax, %cr4
            movl %edi, %cr3
            movl $0xc0000080, %ecx
            rdmsr
            orl $0x100, %eax
            wrmsr
            movl %cr0, %eax
            andl $0x1ffffff3, %eax
            orl $0x80010022, %eax
            movl %eax, %cr0
            lgdtl nine_guest_gdt_at
            ljmpl $8, $2f
            .code64
        2:  movl $16, %eax
            movl %eax, %ds
            movl %eax, %es
            movl %eax, %ss
            xorl %eax, %eax
            movl %eax, %fs
            movl %eax, %gs
            movl $nine_guest_stack, %esp
            fninit
            movl %ebx, %edi
            xorl %ebp, %ebp
            call {begin}
            ud2
            .balign 8
            nine_guest_gdt: .quad 0, 0x00af9b000000ffff, 0x00cf93000000ffff
            nine_guest_gdt_at: .word 23
            .long nine_guest_gdt
            .popsection
            "#,
            begin = sym nine_guest_begin,
            options(att_syntax)
        );

        $crate::__partition_for_host!();
    };
}

/// For an image built for Linux instead of no system: symbols that the C library defines otherwise.
#[doc(hidden)]
#[macro_export]
#[cfg(target_os = "linux")]
macro_rules! __partition_for_host {
    () => {
        core::arch::global_asm!(
            r#"
            .pushsection .text.nine_guest_bytes, "ax", @progbits
            .globl memcpy
            memcpy:
            movq %rdi, %rax
        3:  movq %rdx, %rcx
            shrq $3, %rcx
            rep movsq
            movl %edx, %ecx
            andl $7, %ecx
            rep movsb
            ret
            .globl memmove
            memmove:
            movq %rdi, %rax
            movq %rdi, %rcx
            subq %rsi, %rcx
            cmpq %rdx, %rcx
            jae 3b
            leaq -1(%rsi, %rdx), %rsi
            leaq -1(%rdi, %rdx), %rdi
            movq %rdx, %rcx
            std
            rep movsb
            cld
            ret
            .globl memset
            memset:
            movq %rdi, %r8
            movzbl %sil, %eax
            movabsq $0x0101010101010101, %rcx
            imulq %rcx, %rax
            movq %rdx, %rcx
            shrq $3, %rcx
            rep stosq
            movl %edx, %ecx
            andl $7, %ecx
            rep stosb
            movq %r8, %rax
            ret
            .globl memcmp
            memcmp:
            .globl bcmp
            bcmp:
            movq %rdx, %rcx
            cmpq %rcx, %rcx
            repe cmpsb
            je 2f
            movzbl -1(%rdi), %eax
            movzbl -1(%rsi), %edx
            subl %edx, %eax
            ret
        2:  xorl %eax, %eax
            ret
            # Nothing unwinds; they are named nevertheless.
            .globl rust_eh_personality
            rust_eh_personality:
            .globl _Unwind_Resume
            _Unwind_Resume:
            ud2
            .popsection
            "#,
            options(att_syntax)
        );
    };
}

/// The target defines all of it.
#[doc(hidden)]
#[macro_export]
#[cfg(not(target_os = "linux"))]
macro_rules! __partition_for_host {
    () => {};
}

// Exceptions arrive here with their number and their error code, 0 if they have none. Interrupts return at once.
global_asm!(
    r#"
    .pushsection .text.nine_guest_vectors, "ax", @progbits
    .set vector, 0
    .balign 16
    .globl nine_guest_vectors
    nine_guest_vectors:
    .rept 32
    .balign 16
    .set has_error, (vector == 8) || (vector >= 10 && vector <= 14) || (vector == 17) || (vector == 21)
    .if has_error || (vector == 29) || (vector == 30)
    .else
    pushq $0
    .endif
    pushq $vector
    jmp 2f
    .set vector, vector + 1
    .endr
    2:  cld
    popq %rdi
    popq %rsi
    popq %rdx
    movq %cr2, %rcx
    andq $-16, %rsp
    call {fault}
    .balign 16
    .globl nine_guest_bell
    nine_guest_bell:
    pushq %rax
    movl ${eoi}, %eax
    movl $0, (%rax)
    popq %rax
    iretq
    .popsection
    "#,
    fault = sym super::fault,
    eoi = const APIC + 0xb0,
    options(att_syntax)
);

// SAFETY: both are code of the block above.
unsafe extern "C" {
    static nine_guest_vectors: [[u8; 16]; 32];
    static nine_guest_bell: u8;
}

/// A value used by one thread alone.
struct SingleThreadCell<T>(UnsafeCell<T>);

// SAFETY: there is one thread.
unsafe impl<T> Sync for SingleThreadCell<T> {}

/// Starts as [`partition!`](crate::partition) does. `info` is the address of `hvm_start_info`.
///
/// # Safety
/// It must be called once, in the only thread of a processor that was started as the macro does it.
pub unsafe fn begin<T: Outcome>(info: u32, name: &str, main: fn(&mut super::Partition) -> T) -> ! {
    super::run(info, name, main)
}

/// The allocator of an image. It has no memory before [`give`].
pub struct Heap(());

impl Heap {
    /// Creates the allocator for [`partition!`](crate::partition).
    ///
    /// # Safety
    /// The program must have one thread.
    #[doc(hidden)]
    pub const unsafe fn new() -> Self {
        Self(())
    }
}

static HEAP: SingleThreadCell<TalcCell<Manual>> = SingleThreadCell(UnsafeCell::new(TalcCell::new(Manual)));

// SAFETY: TalcCell fulfils the contract for one thread, and there is only one (`Heap::new`).
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller fulfils the contract; the cell is referred to only during a call of it.
        unsafe { (*HEAP.0.get()).alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { (*HEAP.0.get()).dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above.
        unsafe { (*HEAP.0.get()).realloc(ptr, layout, size) }
    }
}

/// The end of the heap's memory, and the start of the part reserved for a panic.
static END: AtomicU64 = AtomicU64::new(0);
static KEPT_FROM: AtomicU64 = AtomicU64::new(0);
/// Bytes of the heap reserved for a panic.
const PANIC_RESERVE_LEN: u64 = 64 << 10;

/// Gives the heap its memory, once. It must be RAM behind the image that nothing uses.
pub(super) fn give((base, len): (u64, u64)) {
    let end = base + len;
    if END.swap(end, Relaxed) == 0 {
        let first = (len - PANIC_RESERVE_LEN.min(len / 2)) & !0xfff;
        KEPT_FROM.store(base + first, Relaxed);
        // SAFETY: by the caller's guarantee; and it is mapped, as all memory below 4 GiB is.
        let _ = unsafe { (*HEAP.0.get()).claim(base as *mut u8, first as usize) };
    }
}

/// Gives the heap the reserved part, once, so that a lack of memory can be reported.
pub(super) fn give_kept() {
    let end = END.load(Relaxed);
    let from = KEPT_FROM.swap(end, Relaxed);
    if from < end {
        // SAFETY: it is covered by the guarantee of `give`'s caller, and the heap does not have this part yet.
        let _ = unsafe { (*HEAP.0.get()).claim(from as *mut u8, (end - from) as usize) };
    }
}

/// The files for the end of the partition.
static LAST: SingleThreadCell<Option<Rc<Last<Bells>>>> = SingleThreadCell(UnsafeCell::new(None));

/// Stores them for [`kept`], once.
pub(super) fn keep(last: Rc<Last<Bells>>) {
    // SAFETY: references to the cell's contents exist only during `keep` and `kept`.
    unsafe { *LAST.0.get() = Some(last) }
}

/// Returns the stored files.
pub(super) fn kept() -> Option<Rc<Last<Bells>>> {
    // SAFETY: as above.
    unsafe { (*LAST.0.get()).clone() }
}

/// Returns the end of the image, as defined by its linker script.
pub(super) fn image_end() -> u64 {
    #[cfg(not(test))]
    {
        // SAFETY: a symbol of the linker script; only its address is taken.
        unsafe extern "C" {
            static nine_guest_end: u8;
        }
        addr_of!(nine_guest_end) as u64
    }
    #[cfg(test)]
    0
}

/// Returns whether an address is in the unmapped page below the stack, so that a stack overflow is recognized.
pub(super) fn is_below_stack(address: u64) -> bool {
    #[cfg(not(test))]
    {
        // SAFETY: a symbol of the entry code; only its address is taken.
        unsafe extern "C" {
            static nine_guest_guard: u8;
        }
        address & !0xfff == addr_of!(nine_guest_guard) as u64
    }
    #[cfg(test)]
    {
        let _ = address;
        false
    }
}

/// Reads a byte of memory below 4 GiB, before the heap may overwrite it. `None` if there is none or the heap exists.
pub(super) fn peek(address: u64) -> Option<u8> {
    let is_there = (1..1 << 32).contains(&address) && END.load(Relaxed) == 0;
    // SAFETY: it is mapped, any byte is valid, and only the firmware has written there.
    is_there.then(|| unsafe { (address as *const u8).read_volatile() })
}

/// The registers of a device.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeviceRegisters {
    base: NonNull<u8>,
    len: u64,
}

impl DeviceRegisters {
    /// Returns `len` bytes of registers from `base` on. `None` if they overlap the program's memory, or cannot be
    /// mapped.
    pub(super) fn new(base: u64, len: u64) -> Option<Self> {
        Some(Self { base: map(base, len)?, len })
    }

    /// Returns those of the local APIC.
    pub(super) fn apic() -> Self {
        // The address is not 0.
        Self { base: NonNull::new(APIC as *mut u8).unwrap_or(NonNull::dangling()), len: 4096 }
    }

    /// Reads a register; 0 if the offset is invalid.
    pub(super) fn read(&self, at: u64) -> u32 {
        match self.address(at) {
            // SAFETY: it is mapped, aligned, and not memory that Rust knows of.
            Some(register) => unsafe { register.read_volatile() },
            None => 0,
        }
    }

    /// Writes a register; nothing happens if the offset is invalid.
    pub(super) fn write(&self, at: u64, value: u32) {
        if let Some(register) = self.address(at) {
            // SAFETY: as above.
            unsafe { register.write_volatile(value) }
        }
    }

    fn address(&self, at: u64) -> Option<*mut u32> {
        let is_there = at.is_multiple_of(4) && at.checked_add(4).is_some_and(|end| end <= self.len);
        // SAFETY: it is within the `len` bytes.
        is_there.then(|| unsafe { self.base.as_ptr().add(at as usize).cast() })
    }
}

/// Returns a device's memory that another party shares. `None` if it overlaps the program's, or cannot be mapped.
pub(super) fn shared(base: u64, len: u64) -> Option<Memory> {
    let start = map(base, len)?;
    // SAFETY: it is mapped from now on, starts at a page, and has no other user, since it lies behind the image and
    // the heap.
    base.is_multiple_of(4096).then(|| unsafe { Memory::new(start, len as usize, None) })
}

/// Maps these bytes at their own address, write-back.
fn map(base: u64, len: u64) -> Option<NonNull<u8>> {
    const ADDRESS_MAX: u64 = 1 << 47;
    let end = base.checked_add(len).filter(|end| *end <= ADDRESS_MAX && len > 0)?;
    let first = END.load(Relaxed);
    if first == 0 || base < first.max(image_end()) {
        return None;
    }
    let mut at = base.max(1 << 32) & !(LARGE_PAGE_LEN - 1);
    while at < end {
        map_large(at)?;
        at += LARGE_PAGE_LEN;
    }
    NonNull::new(base as *mut u8)
}

/// The size of a large page in bytes.
const LARGE_PAGE_LEN: u64 = 2 << 20;

/// Maps a large page. New tables are allocated on the heap and never freed.
fn map_large(at: u64) -> Option<()> {
    let mut table: u64;
    // SAFETY: it only reads a register.
    unsafe { asm!("mov {}, cr3", out(reg) table, options(nomem, nostack, preserves_flags)) };
    for shift in [39, 30] {
        let entry = ((table & !0xfff) + 8 * (at >> shift & 511)) as *mut u64;
        // SAFETY: a table is a page below 4 GiB that no reference points to, and the processor permits writes to it.
        // A new table is a page of the heap, all zeros, which is never freed.
        unsafe {
            if entry.read_volatile() & 1 == 0 {
                let page = alloc::alloc::alloc_zeroed(Layout::from_size_align(4096, 4096).ok()?);
                if page.is_null() {
                    return None;
                }
                entry.write_volatile(page as u64 | 3);
            }
            table = entry.read_volatile();
        }
    }
    let entry = ((table & !0xfff) + 8 * (at >> 21 & 511)) as *mut u64;
    // SAFETY: as above; nothing was mapped there before, so no TLB entry is stale.
    unsafe { entry.write_volatile(at | 0x83) };
    Some(())
}

/// The I/O ports of PCI's configuration space.
pub(super) struct PciPorts;

impl PciConfig for PciPorts {
    fn read(&mut self, function: PciFunction, offset: u8) -> u32 {
        out32(0xcf8, address(function, offset));
        in32(0xcfc)
    }

    fn write(&mut self, function: PciFunction, offset: u8, word: u32) {
        out32(0xcf8, address(function, offset));
        out32(0xcfc, word);
    }
}

fn address(function: PciFunction, offset: u8) -> u32 {
    1 << 31 | u32::from(function.0) << 8 | u32::from(offset & !3)
}

fn out32(port: u16, value: u32) {
    // SAFETY: on QEMU's machines no write to a port makes a device write to memory.
    unsafe { asm!("out dx, eax", in("dx") port, in("eax") value, options(nomem, nostack, preserves_flags)) }
}

fn in32(port: u16) -> u32 {
    let value;
    // SAFETY: as above.
    unsafe { asm!("in eax, dx", in("dx") port, out("eax") value, options(nomem, nostack, preserves_flags)) };
    value
}

fn out8(port: u16, value: u8) {
    // SAFETY: as above.
    unsafe { asm!("out dx, al", in("dx") port, in("al") value, options(nomem, nostack, preserves_flags)) }
}

/// Writes a byte to the debug port.
pub(super) fn say(byte: u8) {
    out8(0xe9, byte);
}

/// Ends the machine.
pub(super) fn end() -> ! {
    loop {
        out32(0xf4, 0);
        // A machine without this port halts here for ever.
        // SAFETY: interrupts are off.
        unsafe { asm!("cli", "hlt", options(nomem, nostack)) }
    }
}

/// Waits for an interrupt. Returns at once if one has arrived since the last wait.
#[inline(never)]
pub(super) fn halt() {
    // SAFETY: no interrupt is taken between the first two instructions. The handler changes no register, and only the
    // stack below the pointer, which this block declares by allowing a push.
    unsafe { asm!("sti", "hlt", "cli") }
}

/// Returns the time-stamp counter.
pub(super) fn ticks() -> u64 {
    // SAFETY: it only reads a register.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// The processor's tables for interrupts: descriptors, and a stack for exceptions.
#[repr(C, align(16))]
struct InterruptTables {
    idt: [[u64; 2]; 256],
    gdt: [u64; 5],
    /// The task segment. The stack for exceptions is its ninth word.
    task: [u32; 26],
    stack: [u8; 8192],
}

static TABLES: SingleThreadCell<InterruptTables> = SingleThreadCell(UnsafeCell::new(InterruptTables {
    idt: [[0; 2]; 256],
    gdt: [0; 5],
    task: [0; 26],
    stack: [0; 8192],
}));

/// Enables exception handlers, and the APIC's interrupts during [`halt`]. Called once, at the start.
pub(super) fn interrupts() {
    #[repr(C, packed)]
    struct TablePointer(u16, u64);
    let tables = TABLES.0.get();
    // SAFETY: no reference to the tables exists. They have the format the processor expects and stay where they are,
    // and the segments are those in use already.
    unsafe {
        let gate = |handler: u64, stack: u64| {
            let low = handler & 0xffff | 8 << 16 | stack << 32 | 0x8e << 40 | (handler >> 16 & 0xffff) << 48;
            [low, handler >> 32]
        };
        (*tables).idt = core::array::from_fn(|n| match n {
            0..32 => gate(addr_of!(nine_guest_vectors[n]) as u64, 1),
            _ => gate(addr_of!(nine_guest_bell) as u64, 0),
        });
        let stack = addr_of!((*tables).stack).add(1) as u64;
        (*tables).task[9] = stack as u32;
        (*tables).task[10] = (stack >> 32) as u32;
        // No I/O permission bitmap, since there is no user mode.
        (*tables).task[25] = 104 << 16;
        let task = addr_of!((*tables).task) as u64;
        let low = 103 | (task & 0xff_ffff) << 16 | 0x89 << 40 | (task >> 24 & 0xff) << 56;
        (*tables).gdt = [0, 0x00af_9b00_0000_ffff, 0x00cf_9300_0000_ffff, low, task >> 32];
        let gdt = TablePointer(5 * 8 - 1, addr_of!((*tables).gdt) as u64);
        let idt = TablePointer(256 * 16 - 1, addr_of_mut!((*tables).idt) as u64);
        asm!("lgdt [{}]", "lidt [{}]", "ltr {:x}", in(reg) &gdt, in(reg) &idt, in(reg) 0x18, options(nostack));
    }
    // Masks the legacy interrupt controllers.
    out8(0x21, 0xff);
    out8(0xa1, 0xff);
}

/// The address of the local APIC after a reset.
const APIC: u32 = 0xfee0_0000;
