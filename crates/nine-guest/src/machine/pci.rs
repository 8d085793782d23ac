//! The PCI device of the channels (docs/guest.md, "Images"): where it is, and where its registers, memory and
//! interrupts are.
//!
//! In: a configuration space, word by word, and the end of the machine's memory. Out: an enabled [`ChannelDevice`].
//! Addresses that the firmware has assigned stay; missing ones are assigned here. This terminates for any contents of
//! the bus.

/// A PCI configuration space.
pub(super) trait PciConfig {
    /// Reads the word of a function at this offset, a multiple of 4.
    fn read(&mut self, function: PciFunction, offset: u8) -> u32;

    /// Writes the word.
    fn write(&mut self, function: PciFunction, offset: u8, word: u32);
}

/// A function of a device on a bus: 8 bits of bus, 5 of device, 3 of function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PciFunction(pub(super) u16);

/// The device of the channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChannelDevice {
    pub(super) function: PciFunction,
    /// The address of its registers.
    pub(super) registers: u64,
    /// The address and length of the shared memory, in bytes.
    pub(super) memory: (u64, u64),
    pub(super) bells: Option<MsixTable>,
}

/// Its MSI-X interrupt table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MsixTable {
    /// The address of the table, and the number of its entries.
    pub(super) table: (u64, u16),
    /// The offset of the capability in the configuration space.
    at: u8,
}

const IDS: u32 = 0x1110_1af4;
const COMMAND: u8 = 4;
/// Memory space and bus master.
const ENABLED: u32 = 1 << 1 | 1 << 2;
const CAPABILITIES: u8 = 0x34;
const MSIX: u32 = 0x11;
const HEADER: u8 = 0xc;
const BAR: u8 = 0x10;
/// The addresses for regions without one, as QEMU's machines have them: for registers, and for memory below 4 GiB of
/// at most `MEMORY_LEN_MAX` bytes.
const REGISTERS_BASE: u64 = 0xfe00_0000;
const MEMORY_BASE: u64 = 0xc000_0000;
const MEMORY_LEN_MAX: u64 = 512 << 20;

/// Finds the device on any bus, the first bus first.
pub(super) fn find(config: &mut impl PciConfig) -> Option<PciFunction> {
    for first in (0..1 << 13).map(|n| PciFunction(n << 3)) {
        if config.read(first, 0) == u32::MAX {
            continue;
        }
        let functions = if config.read(first, HEADER) & 1 << 23 == 0 { 1 } else { 8 };
        let mut functions = (0..functions).map(|n| PciFunction(first.0 | n));
        if let Some(found) = functions.find(|function| config.read(*function, 0) == IDS) {
            return Some(found);
        }
    }
    None
}

/// Assigns missing addresses and enables the device. `end` is the end of the machine's own memory.
pub(super) fn prepare(
    config: &mut impl PciConfig,
    function: PciFunction,
    end: u64,
) -> Result<ChannelDevice, &'static str> {
    let command = config.read(function, COMMAND) & 0xffff;
    // It must not decode addresses while its regions are sized.
    config.write(function, COMMAND, command & !ENABLED);
    let bells = capability(config, function, MSIX);
    let (small, large) = (REGISTERS_BASE, if end > 1 << 32 { end } else { 1 << 32 });
    let registers = bar(config, function, 0, |len| small.next_multiple_of(len))?;
    let table = match bells {
        Some(_) => Some(bar(config, function, 1, |len| (small + registers.1).next_multiple_of(len))?),
        None => None,
    };
    let memory = bar(config, function, 2, |len| match len <= MEMORY_LEN_MAX {
        true => MEMORY_BASE,
        false => large.next_multiple_of(len),
    })?;
    if memory.1 < 4096 {
        return Err("the device of the channels has no memory");
    }
    config.write(function, COMMAND, command | ENABLED);
    let bells = match (bells, table) {
        (Some(at), Some(bar)) => {
            Some(table_of(config, function, at, [Some(registers), Some(bar), Some(memory)])?)
        }
        _ => None,
    };
    Ok(ChannelDevice { function, registers: registers.0, memory, bells })
}

impl MsixTable {
    /// Enables interrupts, masked or not. They stay masked while the table is written.
    pub(super) fn enable(&self, config: &mut impl PciConfig, function: PciFunction, is_masked: bool) {
        let word = config.read(function, self.at) & !(1 << 30);
        config.write(function, self.at, word | 1 << 31 | u32::from(is_masked) << 30);
    }
}

/// Returns the offset of a capability.
fn capability(config: &mut impl PciConfig, function: PciFunction, number: u32) -> Option<u8> {
    if config.read(function, COMMAND) >> 16 & 1 << 4 == 0 {
        return None;
    }
    let mut at = config.read(function, CAPABILITIES) as u8 & !3;
    // A configuration space has room for no more.
    for _ in 0..48 {
        if at < 0x40 {
            return None;
        }
        let word = config.read(function, at);
        if word & 0xff == number {
            return Some(at);
        }
        at = (word >> 8) as u8 & !3;
    }
    None
}

/// Returns the address and length of a memory region in bytes. If it has no address, `place` chooses one for its
/// length.
fn bar(
    config: &mut impl PciConfig,
    function: PciFunction,
    number: u8,
    place: impl FnOnce(u64) -> u64,
) -> Result<(u64, u64), &'static str> {
    let at = BAR + 4 * number;
    let low = config.read(function, at);
    if low & 1 != 0 {
        return Err("the device of the channels has ports where its memory should be");
    }
    let is_wide = low & 6 == 4;
    let high = if is_wide { config.read(function, at + 4) } else { 0 };
    let mut ask = |at: u8, was: u32| {
        config.write(function, at, u32::MAX);
        let mask = config.read(function, at);
        config.write(function, at, was);
        mask
    };
    let mask =
        u64::from(ask(at, low) & !0xf) | u64::from(if is_wide { ask(at + 4, high) } else { u32::MAX }) << 32;
    if mask as u32 == 0 && (mask >> 32) as u32 == if is_wide { 0 } else { u32::MAX } {
        return Err("the device of the channels lacks a region");
    }
    let len = 1 << mask.trailing_zeros();
    let mut address = u64::from(high) << 32 | u64::from(low & !0xf);
    if address == 0 {
        address = place(len);
        config.write(function, at, address as u32);
        if is_wide {
            config.write(function, at + 4, (address >> 32) as u32);
        }
    }
    if address.checked_add(len).is_none() || !is_wide && address + len > 1 << 32 {
        return Err("a region of the device of the channels lies nowhere");
    }
    Ok((address, len))
}

fn table_of(
    config: &mut impl PciConfig,
    function: PciFunction,
    at: u8,
    regions: [Option<(u64, u64)>; 3],
) -> Result<MsixTable, &'static str> {
    let count = (config.read(function, at) >> 16 & 0x7ff) as u16 + 1;
    let place = config.read(function, at + 4);
    let offset = u64::from(place & !7);
    match regions.get(place as usize & 7).copied().flatten() {
        Some((base, len)) if offset + 16 * u64::from(count) <= len => {
            Ok(MsixTable { table: (base + offset, count), at })
        }
        _ => Err("the device of the channels has its interrupts nowhere"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    const AT: PciFunction = PciFunction(3 << 3);

    /// A bus with the device, with regions of these lengths.
    struct FakeBus {
        words: [u32; 64],
        lens: [u64; 3],
        written: Vec<(u8, u32)>,
    }

    impl FakeBus {
        fn new(memory: u64, is_msix: bool) -> Self {
            let mut words = [0; 64];
            words[0] = IDS;
            words[1] = u32::from(is_msix) << 20;
            words[6] = 0xc;
            words[13] = 0x40;
            words[16] = 0x11 | 0x50 << 8 | 1 << 16;
            words[17] = 1;
            // A capability list with a cycle.
            words[20] = 0x09 | 0x50 << 8;
            Self { words, lens: [256, if is_msix { 4096 } else { 0 }, memory], written: Vec::new() }
        }
    }

    impl PciConfig for FakeBus {
        fn read(&mut self, function: PciFunction, offset: u8) -> u32 {
            match function == AT {
                true => self.words[usize::from(offset / 4)],
                false => u32::MAX,
            }
        }

        fn write(&mut self, function: PciFunction, offset: u8, word: u32) {
            assert!(function == AT && offset.is_multiple_of(4));
            self.written.push((offset, word));
            let was = self.words[usize::from(offset / 4)];
            self.words[usize::from(offset / 4)] = match offset {
                0x10 | 0x14 | 0x18 => {
                    let len = self.lens[usize::from(offset - 0x10) / 4];
                    ((word & !(len.wrapping_sub(1) as u32) & !0xf) * u32::from(len > 0)) | (was & 0xf)
                }
                0x1c => word & !(((self.lens[2] - 1) >> 32) as u32),
                4 => was & 0xffff_0000 | word & 0xffff,
                _ => word,
            };
        }
    }

    #[test]
    fn a_machine_without_firmware_gives_the_device_its_places() {
        let mut bus = FakeBus::new(64 << 20, true);
        assert_eq!(find(&mut bus), Some(AT));
        let device = prepare(&mut bus, AT, 32 << 20).unwrap();
        assert_eq!((device.registers, device.memory), (REGISTERS_BASE, (MEMORY_BASE, 64 << 20)));
        let bells = device.bells.unwrap();
        assert_eq!(bells.table, (REGISTERS_BASE + 4096, 2));
        assert_eq!(bus.words[1] & 0xffff, ENABLED);
        assert_eq!(
            (bus.words[4], bus.words[5], bus.words[6], bus.words[7]),
            (0xfe00_0000, 0xfe00_1000, 0xc000_000c, 0)
        );
        bells.enable(&mut bus, AT, true);
        assert_eq!(bus.words[16] >> 16, 0xc001);
        bells.enable(&mut bus, AT, false);
        assert_eq!(bus.words[16] >> 16, 0x8001);
        // A large region is placed behind all memory.
        let mut bus = FakeBus::new(8 << 30, true);
        assert_eq!(prepare(&mut bus, AT, 9 << 30).unwrap().memory, (16 << 30, 8 << 30));
    }

    #[test]
    fn what_a_firmware_has_assigned_stays() {
        let mut bus = FakeBus::new(1 << 30, true);
        (bus.words[4], bus.words[5], bus.words[6], bus.words[7]) = (0xfebf_1000, 0xfebf_2000, 0xc, 0x40);
        bus.words[1] |= 0x107;
        let device = prepare(&mut bus, AT, 0).unwrap();
        assert_eq!((device.registers, device.memory), (0xfebf_1000, (0x40 << 32, 1 << 30)));
        assert_eq!(device.bells.unwrap().table, (0xfebf_2000, 2));
        assert_eq!(bus.words[1] & 0xffff, 0x107);
        assert_eq!(bus.written[0], (4, 0x101), "it answers nowhere while it is asked how large it is");
    }

    #[test]
    fn a_device_without_bells_is_one_that_is_looked_at() {
        let mut bus = FakeBus::new(1 << 20, false);
        assert_eq!(prepare(&mut bus, AT, 0).unwrap().bells, None);
        assert_eq!(bus.words[5], 0);
    }

    #[test]
    fn a_device_that_contradicts_itself_is_refused() {
        let nowhere = |spoil: fn(&mut FakeBus)| {
            let mut bus = FakeBus::new(1 << 20, true);
            spoil(&mut bus);
            prepare(&mut bus, AT, 0).is_err()
        };
        assert!(nowhere(|bus| bus.words[4] = 1));
        assert!(nowhere(|bus| bus.words[17] = 3));
        assert!(nowhere(|bus| bus.words[17] = 0xff1));
        assert!(nowhere(|bus| bus.lens[1] = 0));
        // A device with an endless list has no doorbells.
        let mut bus = FakeBus::new(1 << 20, true);
        bus.words[13] = 0x50;
        assert_eq!(prepare(&mut bus, AT, 0).unwrap().bells, None);
        bus.words[0] = 0;
        assert_eq!(find(&mut bus), None);
    }
}
