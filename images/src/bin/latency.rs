//! How long a write takes, as PROSE measured it: `latency FILE SIZE TIMES [SIZE TIMES]...` writes SIZE bytes into the
//! file TIMES times, other ones each time, as they lie in the arena, and prints SIZE and the nanoseconds of one write.

#![no_std]
#![no_main]

use core::fmt::Write;

use nine_guest::machine::Partition;
use nine_guest::{Errno, Error, OpenFlags, Result};

nine_guest::partition!(main);

fn main(part: &mut Partition) -> Result<()> {
    let usage = || images::usage("latency FILE SIZE TIMES [SIZE TIMES]...");
    let file = part.args.get(1).filter(|_| part.args.len().is_multiple_of(2)).ok_or_else(usage)?;
    let file = part.space.open(file, OpenFlags::WRITE)?;
    for n in (2..part.args.len()).step_by(2) {
        let numbers = (part.args[n].parse().ok(), part.args[n + 1].parse::<u32>().ok());
        let (Some(size), Some(times @ 1..)) = numbers else { return Err(usage()) };
        let mut buffer = file.buffer(size)?;
        let begun = part.clock()?.steady;
        for n in 0..times {
            buffer.fill(0, size, n as u8);
            if file.write_from(0, &buffer, ..)? != size {
                return Err(Error::new(Errno::EIO, "the host takes less"));
            }
        }
        let took = part.clock()?.steady.saturating_sub(begun);
        writeln!(part.stdout, "{size} {}", took.as_nanos() / u128::from(times))
            .map_err(|_| Error::from(Errno::EIO))?;
    }
    Ok(())
}
