//! Prints files, or what it reads: `cat [FILE...]`.

#![no_std]
#![no_main]

extern crate alloc;

use nine_guest::machine::Partition;
use nine_guest::{OpenFlags, Result};

nine_guest::partition!(main);

fn main(part: &mut Partition) -> Result<()> {
    let mut bytes = alloc::vec![0; 64 << 10];
    let Partition { args, space, stdin, stdout, .. } = part;
    for path in args.iter().skip(1) {
        let file = space.open(path, OpenFlags::READ)?;
        let mut offset = 0;
        loop {
            let len = file.read(offset, &mut bytes)?;
            if len == 0 {
                break;
            }
            stdout.write(&bytes[..len])?;
            offset += len as u64;
        }
    }
    while args.len() < 2 {
        match stdin.read(&mut bytes)? {
            0 => break,
            len => stdout.write(&bytes[..len])?,
        }
    }
    Ok(())
}
