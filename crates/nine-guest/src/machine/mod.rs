//! Machines without an operating system (docs/guest.md): the start of an image, its channels, and its end.
//!
//! In: `hvm_start_info`, and the PCI device of the channels. Out: a [`Partition`] for the image's main. Code for the
//! processor itself is in `sys.rs`.
//!
//! Always holds: if the machine lacks something, or the firmware has left it in an unusable state, the machine ends
//! with a line that says so.

mod clock;
mod pci;
mod start;
mod sys;

use alloc::boxed::Box;
use alloc::rc::Rc;
use core::fmt::{self, Write};
use core::panic::PanicInfo;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use core::time::Duration;

use nine_proto::{Errno, Error, Result};
use nine_ring::Memory;

use crate::client::{self, Client, Options};
use crate::line::Line;
use crate::partition::{self, Outcome};
use clock::ProcessorClock;
use start::StartParameters;
use sys::{DeviceRegisters, PciPorts};

pub use sys::Heap;
#[doc(hidden)]
pub use sys::begin;

/// The argument of a machine's main.
pub type Partition = partition::Partition<Bells>;

/// The two doorbells of a channel: an interrupt, and a register that rings the host. If the device has none, both
/// sides poll.
pub struct Bells {
    doorbell: Option<DeviceRegisters>,
    /// The channel's number in the memory.
    number: u32,
    looks: u32,
    clock: Rc<ProcessorClock>,
}

/// The memory of the channels, and the host's doorbell.
struct ChannelMemory {
    memory: Memory,
    doorbell: Option<DeviceRegisters>,
    looks: u32,
    clock: Rc<ProcessorClock>,
    options: Options,
}

/// The interrupt of all doorbells, and the spurious one.
const BELL: u32 = 0x40;
const SPURIOUS: u32 = 0xff;
/// The number of spins between two polls, if there are no doorbells.
const POLL_SPINS: u32 = 1000;
/// About the time of a wake-up, in ticks of the processor.
const WAKE_TICKS: u64 = 125_000;
/// The offset of the host's doorbell register.
const DOORBELL: u64 = 12;
/// The exit status after a panic.
const PANICKED: u8 = 101;

/// Returns the whole memory that the machine shares with its host, for use with other protocols.
///
/// # Errors
/// The machine has no such device.
pub fn memory() -> Result<Memory> {
    let function = pci::find(&mut PciPorts).ok_or_else(|| failed("the machine has no device of channels"))?;
    // It was prepared at the start, so this assigns no more addresses.
    let device = pci::prepare(&mut PciPorts, function, 0).map_err(failed)?;
    sys::shared(device.memory.0, device.memory.1)
        .ok_or_else(|| failed("the memory of the channels lies where nothing can be"))
}

/// Runs a main and ends the machine. `info` is the address of `hvm_start_info`.
fn run<T: Outcome>(info: u32, name: &str, main: fn(&mut Partition) -> T) -> ! {
    sys::interrupts();
    let ended = started(info.into()).and_then(|mut partition| {
        let outcome = main(&mut partition);
        partition.end(outcome)
    });
    if let Err(error) = ended {
        let _ = writeln!(DebugPort, "{name}: {error}");
    }
    sys::end()
}

/// Ends a machine after a panic. A panic in here is reported instead, once.
#[doc(hidden)]
pub fn panicked(info: &PanicInfo<'_>) -> ! {
    static PANICS: AtomicU32 = AtomicU32::new(0);
    sys::give_kept();
    if PANICS.fetch_add(1, Relaxed) < 2 {
        let mut words = MessageBuffer { bytes: [0; 512], len: 0 };
        // A longer message is cut off.
        let _ = writeln!(words, "{info}");
        if !sys::kept().is_some_and(|last| last.say(words.as_str(), PANICKED)) {
            let _ = DebugPort.write_str(words.as_str());
        }
    }
    sys::end()
}

/// Reports an exception and ends the machine. An exception in here ends it at once.
extern "C" fn fault(vector: u64, error: u64, rip: u64, cr2: u64) -> ! {
    static IS_SAID: AtomicBool = AtomicBool::new(false);
    if !IS_SAID.swap(true, Relaxed) {
        let why = if sys::is_below_stack(cr2) { ": the stack is full" } else { "" };
        let _ = writeln!(DebugPort, "exception {vector}, error {error:#x}, at {rip:#x}, cr2 {cr2:#x}{why}");
    }
    sys::end()
}

fn started(info: u64) -> Result<Partition> {
    let start = StartParameters::read(info, sys::image_end(), sys::peek).map_err(failed)?;
    sys::give(start.heap);
    let channels = ChannelMemory::find(Options { wait: start.wait, ..Options::default() }, start.end)?;
    let own = channels.join("self")?;
    let root = match channels.join("root") {
        Err(error) if error.errno == Errno::ENOENT => None,
        root => Some(root?),
    };
    Partition::new(own, root, Box::new(move |name| channels.join(name)), sys::keep)
}

impl ChannelMemory {
    /// Finds the device of this machine. `end` is the end of the machine's own memory.
    fn find(options: Options, end: u64) -> Result<Self> {
        let function =
            pci::find(&mut PciPorts).ok_or_else(|| failed("the machine has no device of channels"))?;
        let device = pci::prepare(&mut PciPorts, function, end).map_err(failed)?;
        let nowhere = || failed("the memory of the channels lies where nothing can be");
        let memory = sys::shared(device.memory.0, device.memory.1).ok_or_else(nowhere)?;
        let registers = DeviceRegisters::new(device.registers, 256).ok_or_else(nowhere)?;
        let message = apic::begin();
        let doorbell = match device.bells {
            None => None,
            Some(bells) => {
                bells.enable(&mut PciPorts, function, true);
                let (at, count) = bells.table;
                let table = DeviceRegisters::new(at, 16 * u64::from(count)).ok_or_else(nowhere)?;
                for entry in (0..count).map(|n| 16 * u64::from(n)) {
                    [message, 0, BELL, 0].iter().enumerate().for_each(|(n, word)| {
                        table.write(entry + 4 * n as u64, *word);
                    });
                }
                bells.enable(&mut PciPorts, function, false);
                Some(registers)
            }
        };
        let (looks, clock) = (looks(), Rc::default());
        Ok(Self { memory, doorbell, looks, clock, options })
    }

    /// Returns a client of the channel of this name. There must be no other client of it, since that one's channel
    /// would end. `ENOENT`: there is none.
    fn join(&self, name: &str) -> Result<Client<Bells>> {
        let (number, memory) = client::named(&self.memory, name)?;
        let Self { doorbell, looks, ref clock, options, .. } = *self;
        Client::join(memory, Bells { doorbell, number, looks, clock: clock.clone() }, options)
    }
}

/// Returns how many polls take [`WAKE_TICKS`]: the duration of a processor's spin hint differs by model. The fastest of
/// several tries counts, since others may have been interrupted.
fn looks() -> u32 {
    const TRIED: u64 = 64;
    let tried = (0..4).map(|_| {
        let begun = sys::ticks();
        (0..TRIED).for_each(|_| core::hint::spin_loop());
        sys::ticks().wrapping_sub(begun)
    });
    (WAKE_TICKS * TRIED / tried.min().unwrap_or(1).max(1)).clamp(16, 1 << 16) as u32
}

impl Line for Bells {
    fn ring(&self) {
        if let Some(registers) = &self.doorbell {
            registers.write(DOORBELL, self.number);
        }
    }

    fn sleep(&self) -> bool {
        match self.doorbell {
            Some(_) => sys::halt(),
            None => (0..POLL_SPINS).for_each(|_| core::hint::spin_loop()),
        }
        true
    }

    /// A host that ends also ends its machines.
    fn is_gone(&self) -> bool {
        false
    }

    fn now(&self) -> Duration {
        self.clock.now()
    }

    fn sleep_until(&self, end: Duration) -> bool {
        if self.doorbell.is_some() {
            // If the time has passed already, it does not sleep. `true`: the host has not gone.
            return !self.clock.ring_at(end) || self.sleep();
        }
        self.sleep()
    }

    fn looks(&self) -> u32 {
        self.looks
    }
}

/// The local APIC.
mod apic {
    use super::sys::DeviceRegisters;
    use super::{BELL, SPURIOUS};

    const ID: u64 = 0x20;
    const PRIORITY: u64 = 0x80;
    const VECTOR: u64 = 0xf0;
    const PINS: [u64; 2] = [0x350, 0x360];
    const TIMER: u64 = 0x320;
    const COUNT: u64 = 0x380;
    const LEFT: u64 = 0x390;
    const DIVIDE: u64 = 0x3e0;
    const MASKED: u32 = 1 << 16;
    /// Divides by 16.
    const DIVIDED: u32 = 3;

    /// Makes it accept messages of any priority, and nothing else. Returns the address of such a message.
    pub(super) fn begin() -> u32 {
        let apic = DeviceRegisters::apic();
        PINS.iter().for_each(|pin| apic.write(*pin, MASKED));
        apic.write(TIMER, MASKED);
        apic.write(PRIORITY, 0);
        apic.write(VECTOR, 1 << 8 | SPURIOUS);
        0xfee0_0000 | apic.read(ID) >> 24 << 12
    }

    /// Counts down from `from` and rings the doorbell at 0. A 0 stops the timer.
    pub(super) fn count(from: u32) {
        let apic = DeviceRegisters::apic();
        apic.write(DIVIDE, DIVIDED);
        apic.write(TIMER, BELL);
        apic.write(COUNT, from);
    }

    /// Returns the rest of the count.
    pub(super) fn left() -> u32 {
        DeviceRegisters::apic().read(LEFT)
    }
}

fn failed(why: &'static str) -> Error {
    Error::new(Errno::ENODEV, why)
}

/// The debug port, for output before there is a channel.
struct DebugPort;

impl Write for DebugPort {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.bytes().for_each(sys::say);
        Ok(())
    }
}

/// A buffer for a message without a heap.
struct MessageBuffer {
    bytes: [u8; 512],
    len: usize,
}

impl MessageBuffer {
    fn as_str(&self) -> &str {
        let said = &self.bytes[..self.len];
        core::str::from_utf8(said)
            .unwrap_or_else(|bad| core::str::from_utf8(&said[..bad.valid_up_to()]).unwrap_or_default())
    }
}

impl Write for MessageBuffer {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let len = text.len().min(self.bytes.len() - self.len);
        self.bytes[self.len..self.len + len].copy_from_slice(&text.as_bytes()[..len]);
        self.len += len;
        if len == text.len() { Ok(()) } else { Err(fmt::Error) }
    }
}
