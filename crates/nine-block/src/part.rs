//! A partition of a device.

use std::sync::Arc;

use crate::device::{Device, Io, Op, SECTOR, Shape};
use crate::error::{Error, Kind, Result};
use crate::owner::{SectorOwner, ShiftedOwner};
use crate::plain::above;

/// A range of sectors of another device. It does not grow.
pub struct Part {
    of: Arc<dyn Device>,
    name: String,
    start: u64,
    sectors: u64,
}

/// The sector of the partition table.
const TABLE: u64 = 1;

impl Part {
    /// Creates a partition from sector `start` on; `name` is its expression.
    pub fn new(of: Arc<dyn Device>, name: String, start: u64, sectors: u64) -> Result<Self> {
        let whole = of.shape().sectors;
        if start.checked_add(sectors).is_none_or(|end| end > whole) {
            let text = format!("sectors {start}+{sectors} are not among the {whole} of {}", of.name());
            return Err(Error::new(Kind::Range, text));
        }
        Ok(Self { of, name, start, sectors })
    }

    /// Creates a partition as `p D base.size` describes it, with blocks of `block` sectors.
    pub fn numbered(of: Arc<dyn Device>, base: u64, size: u64, block: u64) -> Result<Self> {
        let name = format!("p({}){base}.{size}", of.name());
        let unit = if size > 100 { block } else { of.shape().sectors / block / 100 * block };
        if unit == 0 {
            let text =
                format!("{} has not a hundred blocks, which could be cut in as many pieces", of.name());
            return Err(Error::new(Kind::Range, text));
        }
        match (base.checked_mul(unit), size.checked_mul(unit)) {
            (Some(start), Some(sectors)) => Self::new(of, name, start, sectors),
            _ => Err(Error::new(Kind::Range, format!("no device has {base} and {size} blocks"))),
        }
    }

    /// Creates the partition with this name in the table in sector 1 (prep(8)).
    pub async fn named(of: Arc<dyn Device>, wanted: &str) -> Result<Self> {
        let name = format!("p({})\"{wanted}\"", of.name());
        let table = of.read(TABLE, 1).await?;
        let text = table.split(|byte| *byte == 0).next().unwrap_or_default();
        let text = str::from_utf8(text).unwrap_or_default();
        let mut known = Vec::new();
        for line in text.lines() {
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            let &["part", name_here, start, end] = words.as_slice() else { continue };
            let (Ok(start), Ok(end)) = (start.parse::<u64>(), end.parse::<u64>()) else { continue };
            if name_here == wanted {
                let Some(sectors) = end.checked_sub(start) else {
                    return Err(Error::new(Kind::Range, format!("its table says `{line}`")));
                };
                return Self::new(of, name, start, sectors);
            }
            known.push(name_here);
        }
        let text = match known.as_slice() {
            [] => {
                format!("no table of partitions (`part NAME START END`) in sector {TABLE} of {}", of.name())
            }
            known => format!("no partition `{wanted}` of {}; there are {}", of.name(), known.join(", ")),
        };
        Err(Error::new(Kind::Failed, text))
    }
}

impl Device for Part {
    fn shape(&self) -> Shape {
        let shape = self.of.shape();
        // Alignment on the device below.
        let aligned = 1u32.checked_shl(self.start.trailing_zeros()).unwrap_or(u32::MAX);
        let atom = if self.start == 0 { shape.atom } else { shape.atom.min(aligned) };
        Shape { sectors: self.sectors, atom, ..shape }
    }

    fn unbacked(&self) -> u64 {
        self.of.unbacked().min(self.sectors * SECTOR)
    }

    fn submit(&self, mut io: Io) {
        if let Err(error) = io.judge(&self.shape()) {
            return io.end(Err(error.of(&self.name)));
        }
        if !matches!(io.op, Op::Flush | Op::Look) {
            io.at += self.start;
        }
        self.of.submit(io);
    }

    fn name(&self) -> String {
        self.name.clone()
    }

    fn status(&self) -> String {
        above(self, &[&self.of])
    }

    fn owned_by(&self, owner: Arc<dyn SectorOwner>) {
        let below = self.start..self.start + self.sectors;
        self.of.owned_by(Arc::new(ShiftedOwner { owner, below, here: 0 }));
    }

    fn trouble(&self) -> Vec<String> {
        self.of.trouble()
    }

    fn control(&self, words: &[&str]) -> Result<()> {
        self.of.control(words)
    }
}

const _: () = assert!(SECTOR == 512, "tables of partitions count sectors of 512 bytes");
