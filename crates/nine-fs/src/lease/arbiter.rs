//! The contents of an arbiter: its header, and a slot with two copies for each machine (docs/lease.md).
//!
//! In: bytes of the disk, or values. Out: the other form. No bytes cause a panic.

use std::time::Duration;

use bytes::Bytes;
use nine_block::{Device, Error, Kind, Result, SECTOR};

use crate::cw::{FsIdentity, get32, get64, put32, put64, sum};

/// The version of the format that this program writes.
const VERSION: u32 = 1;
/// Bytes reserved for each copy of the header or of a slot.
const PLACE: usize = 4096;
/// Sectors of such a copy.
pub(super) const PER: u64 = PLACE as u64 / SECTOR;
/// Number of first copies, after which the second copies begin.
const COPIES: u64 = 16;
/// Sectors that an arbiter needs.
const SECTORS: u64 = 2 * COPIES * PER;
/// Maximum number of machines.
const MACHINES: usize = 15;
/// Maximum bytes of a name.
const NAME: usize = 64;
/// Bytes of a slot's record.
const RECORD: usize = 512;
/// Possible periods in milliseconds.
const PERIODS: std::ops::RangeInclusive<u64> = 100..=3_600_000;
/// Larger numbers are rejected, so that counters cannot overflow.
const FIELD_NUMBER_MAX: u64 = 1 << 62;

const HEADER: &[u8; 8] = b"9foldA\0\0";
const SLOT: &[u8; 8] = b"9foldM\0\0";

/// The options with which an arbiter is created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arbiter {
    /// The names of the machines, 2 to 15, of 1 to 64 bytes each.
    pub names: Vec<String>,
    /// The period, 100 ms to an hour: a machine whose record has not changed for so long is no longer the primary.
    pub period: Duration,
    /// The identity of the arbiter; it must be random.
    pub identity: [u8; 16],
}

impl Arbiter {
    /// Reads the options of the arbiter on this device.
    ///
    /// # Errors
    /// [`Kind::Unsupported`]: there is none. Errors of the device.
    pub async fn read(device: &dyn Device) -> Result<Self> {
        let ArbiterHeader { identity, period, names, .. } = header(device).await?;
        Ok(Self { names, period, identity })
    }
}

/// The header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ArbiterHeader {
    pub(crate) identity: FsIdentity,
    pub(crate) period: Duration,
    /// All epochs are larger.
    pub(crate) floor: u64,
    pub(crate) names: Vec<String>,
}

/// The state of a machine in its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum MachineStatus {
    /// It neither has nor claims the lease.
    Nothing = 0,
    /// It has started. An earlier instance of it may not know that yet.
    Here = 1,
    /// It claims the lease.
    Claiming = 2,
    /// It is, or was, the primary.
    Held = 3,
}

/// A record of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MachineRecord {
    /// From 1, in the order of the names.
    pub(crate) machine: u8,
    pub(crate) is: MachineStatus,
    /// The largest epoch that it has claimed; 0: none.
    pub(crate) epoch: u64,
    /// The largest epoch with which it may have been the primary.
    pub(crate) held: u64,
    /// One more with each record of the slot.
    pub(crate) serial: u64,
    /// The instance of the machine: random.
    pub(crate) instance: [u8; 16],
}

/// One of the two copies of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlotCopy {
    Right(MachineRecord),
    /// Invalid: the sum of its bytes; 0 if it cannot be read.
    Wrong(u32),
}

/// The two copies of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordSlot(pub(crate) [SlotCopy; 2]);

impl ArbiterHeader {
    pub(super) fn encode(&self) -> Bytes {
        let mut bytes = vec![0; PLACE];
        bytes[..8].copy_from_slice(HEADER);
        put32(&mut bytes, 8, VERSION);
        put32(&mut bytes, 20, self.period.as_millis() as u32);
        bytes[24..40].copy_from_slice(&self.identity);
        put64(&mut bytes, 40, self.floor);
        put32(&mut bytes, 48, self.names.len() as u32);
        for (name, place) in self.names.iter().zip(bytes[64..].chunks_exact_mut(NAME)) {
            place[..name.len()].copy_from_slice(name.as_bytes());
        }
        seal(&mut bytes);
        bytes.into()
    }

    pub(crate) fn decode(bytes: &[u8]) -> std::result::Result<Self, &'static str> {
        if bytes.len() != PLACE || bytes[..8] != HEADER[..] {
            return Err("it is no arbiter");
        }
        if !is_sealed(bytes) {
            return Err("its header is not right");
        }
        if get32(bytes, 8) > VERSION || get32(bytes, 12) != 0 || get32(bytes, 16) != 0 {
            return Err("it was made by a newer program: use that one, or a newer one still");
        }
        let (period, floor, count) =
            (u64::from(get32(bytes, 20)), get64(bytes, 40), get32(bytes, 48) as usize);
        let names = bytes[64..].chunks_exact(NAME).take(count).map(|place| {
            let len = place.iter().position(|byte| *byte == 0).unwrap_or(NAME);
            std::str::from_utf8(&place[..len]).map(str::to_owned)
        });
        let names =
            names.collect::<std::result::Result<Vec<_>, _>>().map_err(|_| "a name in it is no text")?;
        let header = Self {
            identity: bytes[24..40].try_into().expect("16 bytes"),
            period: Duration::from_millis(period),
            floor,
            names,
        };
        if count != header.names.len() || floor > FIELD_NUMBER_MAX {
            return Err("its header makes no sense");
        }
        header.judge()?;
        Ok(header)
    }

    fn judge(&self) -> std::result::Result<(), &'static str> {
        let count = self.names.len();
        let is_name = |name: &String| (1..=NAME).contains(&name.len()) && !name.contains(char::is_control);
        let twice = |(n, name): (usize, &String)| self.names[..n].contains(name);
        match () {
            () if !(2..=MACHINES).contains(&count) => Err("an arbiter is of 2 to 15 machines"),
            () if !self.names.iter().all(is_name) => {
                Err("a machine's name has 1 to 64 bytes, all to be seen")
            }
            () if self.names.iter().enumerate().any(twice) => Err("two machines have one name"),
            () if !PERIODS.contains(&(self.period.as_millis() as u64)) => {
                Err("the period is from 100 ms to an hour")
            }
            () => Ok(()),
        }
    }
}

impl MachineRecord {
    /// Returns the first sector of this record's copy.
    pub(crate) fn at(&self) -> u64 {
        at(self.machine, self.copy())
    }

    /// Returns which of the two copies it is written to.
    pub(crate) fn copy(&self) -> usize {
        (self.serial % 2) as usize
    }

    pub(crate) fn encode(&self, of: &FsIdentity) -> Bytes {
        let mut bytes = vec![0; PLACE];
        bytes[..8].copy_from_slice(SLOT);
        put32(&mut bytes, 8, VERSION);
        (bytes[12], bytes[13]) = (self.machine, self.is as u8);
        put64(&mut bytes, 16, self.epoch);
        put64(&mut bytes, 24, self.held);
        put64(&mut bytes, 32, self.serial);
        bytes[40..56].copy_from_slice(&self.instance);
        bytes[56..72].copy_from_slice(of);
        seal(&mut bytes[..RECORD]);
        bytes.into()
    }

    fn decode(bytes: &[u8], of: &FsIdentity) -> Option<Self> {
        let bytes = bytes.get(..RECORD)?;
        if bytes[..8] != SLOT[..] || !is_sealed(bytes) || get32(bytes, 8) != VERSION || bytes[56..72] != *of {
            return None;
        }
        let is = match bytes[13] {
            0 => MachineStatus::Nothing,
            1 => MachineStatus::Here,
            2 => MachineStatus::Claiming,
            3 => MachineStatus::Held,
            _ => return None,
        };
        let (epoch, held, serial) = (get64(bytes, 16), get64(bytes, 24), get64(bytes, 32));
        let instance = bytes[40..56].try_into().expect("16 bytes");
        let record = Self { machine: bytes[12], is, epoch, held, serial, instance };
        (epoch.max(serial) <= FIELD_NUMBER_MAX && held <= epoch).then_some(record)
    }

    /// Returns the initial record of an unused slot.
    pub(super) fn fresh(machine: u8, copy: usize) -> Self {
        Self {
            machine,
            is: MachineStatus::Nothing,
            epoch: 0,
            held: 0,
            serial: copy as u64,
            instance: [0; 16],
        }
    }
}

impl SlotCopy {
    /// Decodes what was read from this copy of this machine's slot.
    ///
    /// # Errors
    /// The disk did not answer, so nothing is known.
    pub(crate) fn of(read: Result<Bytes>, machine: u8, copy: usize, of: &FsIdentity) -> Result<Self> {
        match read {
            Ok(bytes) => match MachineRecord::decode(&bytes, of) {
                Some(record) if record.machine == machine && record.copy() == copy => Ok(Self::Right(record)),
                _ => Ok(Self::Wrong(sum(&bytes))),
            },
            Err(error) if error.kind == Kind::Failed || error.kind == Kind::Unwritten => Ok(Self::Wrong(0)),
            Err(error) => Err(error),
        }
    }

    fn right(&self) -> Option<MachineRecord> {
        match self {
            Self::Right(record) => Some(*record),
            Self::Wrong(_) => None,
        }
    }
}

impl RecordSlot {
    /// Returns the newest record. `None`: the slot cannot be read.
    pub(crate) fn newest(&self) -> Option<MachineRecord> {
        self.0.iter().filter_map(SlotCopy::right).max_by_key(|record| record.serial)
    }

    /// Returns whether a copy is invalid. It may have been the newer one.
    pub(crate) fn is_hurt(&self) -> bool {
        self.0.iter().any(|copy| copy.right().is_none())
    }

    /// Returns whether the newest record is `Nothing`, and both copies are from the same instance. Records of two
    /// instances could hide that one of them holds the lease.
    pub(crate) fn is_free(&self) -> bool {
        let [one, two] = self.0.map(|copy| copy.right().map(|record| record.instance));
        one.is_some() && one == two && self.newest().is_some_and(|record| record.is == MachineStatus::Nothing)
    }

    /// Returns the largest epoch that may have been claimed in this slot. A lost record may have had the next one.
    pub(crate) fn epoch(&self) -> u64 {
        let hurt = if self.is_hurt() { EPOCHS } else { 0 };
        self.newest().map_or(0, |record| record.epoch + hurt)
    }

    /// Returns the largest epoch with which its machine may have been the primary. A record lost after a claim may have
    /// said that the claim succeeded.
    pub(crate) fn held(&self) -> u64 {
        match self.newest() {
            Some(record) if record.is == MachineStatus::Claiming && self.is_hurt() => record.epoch,
            record => record.map_or(0, |record| record.held),
        }
    }
}

/// The distance between the epochs of a machine: an epoch modulo this is the machine's number.
pub(crate) const EPOCHS: u64 = 16;

/// Returns the smallest epoch of a machine that is larger than `epoch`.
pub(crate) fn epoch_behind(epoch: u64, machine: u8) -> u64 {
    let (round, rest) = (epoch / EPOCHS, epoch % EPOCHS);
    let round = if rest < u64::from(machine) { round } else { round + 1 };
    round * EPOCHS + u64::from(machine)
}

/// Returns the first sector of a copy of a slot; for machine 0, of the header.
pub(super) fn at(machine: u8, copy: usize) -> u64 {
    (copy as u64 * COPIES + u64::from(machine)) * PER
}

/// Creates an arbiter on a device.
///
/// # Errors
/// [`Kind::Unsupported`]: the device cannot be one, or has other data and `force` is not set. Errors of the device.
pub async fn format(device: &dyn Device, arbiter: &Arbiter, force: bool) -> Result<()> {
    let wrong = |text: &str| Error::new(Kind::Unsupported, text).of(device.name());
    let Arbiter { names, period, identity } = arbiter.clone();
    let header = ArbiterHeader { identity, period, floor: 0, names };
    header.judge().map_err(wrong)?;
    let shape = device.shape();
    if shape.read_only || shape.sectors < SECTORS {
        return Err(wrong("an arbiter is written, and has 256 sectors (128 KiB) or more"));
    }
    if !force && device.read(0, SECTORS).await?.iter().any(|byte| *byte != 0) {
        return Err(wrong("something is on it: say --force if that may go"));
    }
    put(device, &header).await
}

/// Returns the records of all machines, one per line: name, state, epoch.
///
/// # Errors
/// There is no arbiter; errors of the device.
pub async fn shown(device: &dyn Device) -> Result<String> {
    let header = header(device).await?;
    let mut text = format!("period {:?}\n", header.period);
    for machine in header.machines() {
        let mut copies = [SlotCopy::Wrong(0); 2];
        for (copy, place) in copies.iter_mut().enumerate() {
            *place =
                SlotCopy::of(device.read(at(machine, copy), PER).await, machine, copy, &header.identity)?;
        }
        let what = match RecordSlot(copies).newest().map(|record| (record.is, record.epoch, record.held)) {
            None => "cannot be read".to_owned(),
            Some((MachineStatus::Held, epoch, _)) => {
                format!("the main one, if it is alive, with epoch {epoch}")
            }
            Some((MachineStatus::Claiming, epoch, _)) => format!("claims epoch {epoch}"),
            Some((_, _, 0)) => "never was the main one".to_owned(),
            Some((_, _, held)) => format!("not the main one; it was, with epoch {held}"),
        };
        text += &format!("{}: {what}\n", header.name(machine));
    }
    Ok(text)
}

/// Creates an arbiter anew if slots are unreadable, or machines cannot go on. Names and period stay. Later epochs are
/// larger than all that it has, and than `floor`, which must be the largest epoch on the archive's worm. No machine may
/// be the primary meanwhile: one that believes it is loses the lease at its next look.
///
/// Returns the floor of later epochs.
///
/// # Errors
/// There is no arbiter; errors of the device.
pub async fn reset(device: &dyn Device, identity: [u8; 16], floor: u64) -> Result<u64> {
    let header = header(device).await?;
    let mut floor = floor.max(header.floor);
    for machine in header.machines() {
        for copy in 0..2 {
            let read = device.read(at(machine, copy), PER).await;
            if let SlotCopy::Right(record) = SlotCopy::of(read, machine, copy, &header.identity)? {
                floor = floor.max(record.epoch);
            }
        }
    }
    // An unreadable record may have claimed the next epoch.
    let header = ArbiterHeader { identity, floor: (floor + EPOCHS).min(FIELD_NUMBER_MAX), ..header };
    put(device, &header).await?;
    Ok(header.floor)
}

/// Reads the header of an arbiter. If two valid copies differ, a reset was interrupted; the copy with the larger floor
/// is from the reset.
pub(crate) async fn header(device: &dyn Device) -> Result<ArbiterHeader> {
    let mut found: Option<ArbiterHeader> = None;
    let mut why = Error::new(Kind::Unsupported, "it is no arbiter");
    for copy in 0..2 {
        match device.read(at(0, copy), PER).await {
            Ok(bytes) => match ArbiterHeader::decode(&bytes) {
                Ok(header) if found.as_ref().is_none_or(|found| found.floor < header.floor) => {
                    found = Some(header)
                }
                Ok(_) => {}
                Err(text) => why = Error::new(Kind::Unsupported, text),
            },
            Err(error) => why = error,
        }
    }
    found.ok_or_else(|| why.of(device.name()))
}

impl ArbiterHeader {
    /// Returns the numbers of the machines.
    pub(crate) fn machines(&self) -> std::ops::RangeInclusive<u8> {
        1..=self.names.len() as u8
    }

    /// Returns the name of a machine, for messages.
    pub(crate) fn name(&self, machine: u8) -> &str {
        &self.names[usize::from(machine) - 1]
    }
}

/// Writes the slots first, so that a valid header always finds valid slots.
async fn put(device: &dyn Device, header: &ArbiterHeader) -> Result<()> {
    for machine in header.machines() {
        for copy in 0..2 {
            let record = MachineRecord::fresh(machine, copy);
            device.write(record.at(), record.encode(&header.identity)).await?;
        }
    }
    device.flush().await?;
    for copy in 0..2 {
        device.write(at(0, copy), header.encode()).await?;
        device.flush().await?;
    }
    Ok(())
}

pub(super) fn seal(bytes: &mut [u8]) {
    let end = bytes.len() - 4;
    let sum = sum(&bytes[..end]);
    put32(bytes, end, sum);
}

fn is_sealed(bytes: &[u8]) -> bool {
    let end = bytes.len() - 4;
    sum(&bytes[..end]) == get32(bytes, end)
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use nine_block::Ram;

    use super::*;

    fn ready<T>(future: impl Future<Output = T>) -> T {
        match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(result) => result,
            Poll::Pending => panic!("a disk of memory ends at once"),
        }
    }

    fn two() -> Arbiter {
        let names = vec!["mars".to_owned(), "venus".to_owned()];
        Arbiter { names, period: Duration::from_secs(4), identity: [7; 16] }
    }

    fn text<T>(result: Result<T>) -> String {
        result.err().expect("it is refused").to_string()
    }

    #[test]
    fn what_is_on_the_disk_is_what_the_document_says() {
        let disk: &dyn Device = &Ram::new(SECTORS);
        ready(format(disk, &two(), false)).unwrap();
        let all = ready(disk.read(0, SECTORS)).unwrap();
        assert!(all[..4096] == all[16 * 4096..17 * 4096], "both headers are the same");
        assert_eq!(&all[..12], b"9foldA\0\0\x01\0\0\0");
        assert_eq!((get32(&all, 20), get64(&all, 40), get32(&all, 48)), (4000, 0, 2));
        assert_eq!(
            (&all[24..40], &all[64..69], &all[128..134]),
            (&[7; 16][..], &b"mars\0"[..], &b"venus\0"[..])
        );
        assert_eq!(get32(&all, 4092), sum(&all[..4092]));
        // Machine 2, copy 1.
        let record = &all[18 * 4096..][..512];
        assert_eq!(&record[..14], b"9foldM\0\0\x01\0\0\0\x02\0");
        assert_eq!((get64(record, 16), get64(record, 24), get64(record, 32)), (0, 0, 1));
        assert_eq!((&record[56..72], get32(record, 508)), (&[7; 16][..], sum(&record[..508])));
    }

    #[test]
    fn an_arbiter_is_made_where_nothing_is_and_of_what_makes_sense() {
        let disk: &dyn Device = &Ram::new(SECTORS);
        ready(disk.write(255, vec![1; 512].into())).unwrap();
        assert!(text(ready(format(disk, &two(), false))).contains("--force"));
        ready(format(disk, &two(), true)).unwrap();
        let bad = |names: &[&str], millis| {
            let names = names.iter().map(|name| (*name).to_owned()).collect();
            text(ready(format(
                disk,
                &Arbiter { names, period: Duration::from_millis(millis), ..two() },
                true,
            )))
        };
        assert!(bad(&["mars"], 4000).contains("2 to 15"));
        assert!(bad(&["m"; 16], 4000).contains("2 to 15"));
        assert!(bad(&["mars", "mars"], 4000).contains("one name"));
        assert!(bad(&["mars", ""], 4000).contains("1 to 64"));
        assert!(bad(&["mars", "venus"], 99).contains("100 ms"));
        assert!(text(ready(format(&Ram::new(SECTORS - 1), &two(), true))).contains("256 sectors"));
        assert_eq!(ready(header(disk)).unwrap().names, two().names);
    }

    #[test]
    fn a_reset_goes_on_behind_every_epoch_that_was_seen_or_is_said() {
        let disk: &dyn Device = &Ram::new(SECTORS);
        ready(format(disk, &two(), false)).unwrap();
        let record =
            MachineRecord { is: MachineStatus::Held, epoch: 33, held: 33, ..MachineRecord::fresh(1, 0) };
        ready(disk.write(record.at(), record.encode(&[7; 16]))).unwrap();
        // One header and a slot rot.
        for at in [0, at(2, 0), at(2, 1)] {
            ready(disk.write(at, vec![9; 512].into())).unwrap();
        }
        assert_eq!(ready(reset(disk, [8; 16], 7)), Ok(33 + EPOCHS));
        assert_eq!(ready(reset(disk, [9; 16], 1000)), Ok(1000 + EPOCHS));
        let header = ready(header(disk)).unwrap();
        assert_eq!((header.floor, header.identity, header.names), (1016, [9; 16], two().names));
    }

    #[test]
    fn epochs_are_of_their_machines_and_grow() {
        for behind in 0..100 {
            for machine in 1..=15 {
                let epoch = epoch_behind(behind, machine);
                assert!(epoch > behind && epoch <= behind + EPOCHS && epoch % EPOCHS == u64::from(machine));
            }
        }
    }

    #[test]
    fn a_hurt_slot_counts_as_the_worst_that_it_may_have_said() {
        let claim =
            MachineRecord { is: MachineStatus::Claiming, epoch: 33, held: 17, ..MachineRecord::fresh(1, 0) };
        let (old, wrong) = (SlotCopy::Right(MachineRecord::fresh(1, 1)), SlotCopy::Wrong(5));
        let claim = MachineRecord { serial: 2, ..claim };
        let (whole, hurt) =
            (RecordSlot([SlotCopy::Right(claim), old]), RecordSlot([SlotCopy::Right(claim), wrong]));
        assert_eq!((whole.newest(), whole.epoch(), whole.held()), (Some(claim), 33, 17));
        assert_eq!((hurt.newest(), hurt.epoch(), hurt.held()), (Some(claim), 33 + EPOCHS, 33));
        assert_eq!(RecordSlot([wrong; 2]).newest(), None);
        let fresh = [0, 1].map(|copy| MachineRecord::fresh(1, copy));
        let other = MachineRecord { instance: [1; 16], ..fresh[0] };
        assert!(
            RecordSlot(fresh.map(SlotCopy::Right)).is_free()
                && !RecordSlot([SlotCopy::Right(claim), old]).is_free()
        );
        assert!(!RecordSlot([SlotCopy::Right(other), old]).is_free() && !RecordSlot([wrong, old]).is_free());
    }
}
