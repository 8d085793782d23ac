//! For measurements only, a peer of `latency`: the same by virtio-9p of QEMU, `virtio FILE SIZE TIMES [SIZE TIMES]...`.
//!
//! It wants `--qemu-word=-fsdev --qemu-word=local,id=p,path=DIR,security_model=none --qemu-word=-device
//! --qemu-word=virtio-9p-pci,fsdev=p,mount_tag=peer`.

#![no_std]
#![no_main]

extern crate alloc;

use alloc::vec::Vec;
use core::fmt::Write;

use images::sys::{DATA_MOST, Device};
use nine_guest::machine::Partition;
use nine_guest::{Errno, Error, Result};

nine_guest::partition!(main);

const VERSION: u8 = 100;
const ATTACH: u8 = 104;
const WALK: u8 = 110;
const LOPEN: u8 = 12;
const WRITE: u8 = 118;
const NONE: [u8; 4] = [0xff; 4];

fn main(part: &mut Partition) -> Result<()> {
    let usage = || images::usage("virtio FILE SIZE TIMES [SIZE TIMES]...");
    let path = part.args.get(1).filter(|_| part.args.len().is_multiple_of(2)).ok_or_else(usage)?;
    let mut device = Device::find()?;
    let msize = (DATA_MOST as u32).to_le_bytes();
    ask(&mut device, VERSION, &[&msize, &text("9P2000.L")], 0)?;
    ask(&mut device, ATTACH, &[&fid(0), &NONE, &text("glenda"), &text(""), &NONE], 0)?;
    let names: Vec<Vec<u8>> = path.split('/').filter(|name| !name.is_empty()).map(text).collect();
    let walk = [&fid(0)[..], &fid(1), &(names.len() as u16).to_le_bytes(), &names.concat()];
    ask(&mut device, WALK, &walk, 0)?;
    ask(&mut device, LOPEN, &[&fid(1), &1_u32.to_le_bytes()], 0)?;
    for n in (2..part.args.len()).step_by(2) {
        let numbers = (part.args[n].parse().ok(), part.args[n + 1].parse::<u32>().ok());
        let (Some(size), Some(times @ 1..)) = numbers else { return Err(usage()) };
        if size > DATA_MOST / 2 {
            return Err(Errno::EFBIG.into());
        }
        let begun = part.clock()?.steady;
        for n in 0..times {
            device.fill(size, n as u8);
            let count = (size as u32).to_le_bytes();
            if ask(&mut device, WRITE, &[&fid(1), &[0; 8], &count], size)? != count {
                return Err(Error::new(Errno::EIO, "the host takes less"));
            }
        }
        let took = part.clock()?.steady.saturating_sub(begun);
        writeln!(part.stdout, "{size} {}", took.as_nanos() / u128::from(times))
            .map_err(|_| Error::from(Errno::EIO))?;
    }
    Ok(())
}

/// Asks, and says the first word of what is answered.
fn ask(device: &mut Device, ty: u8, fields: &[&[u8]], data: usize) -> Result<[u8; 4]> {
    const HEADER: usize = 7;
    let len = HEADER + fields.iter().map(|field| field.len()).sum::<usize>();
    let mut head = [0; 512];
    let mut at = 0;
    let head_of =
        [&((len + data) as u32).to_le_bytes()[..], &[ty], if ty == VERSION { &[0xff; 2] } else { &[0; 2] }];
    for field in head_of.iter().chain(fields) {
        let place = head.get_mut(at..at + field.len()).ok_or(Errno::ENAMETOOLONG)?;
        place.copy_from_slice(field);
        at += field.len();
    }
    let mut answer = [0; 256];
    let len = device.ask(&head[..len], data, &mut answer);
    let mut word = [0; 4];
    let said = answer[..len].get(HEADER..).unwrap_or_default();
    let few = said.len().min(4);
    word[..few].copy_from_slice(&said[..few]);
    match answer[4] {
        _ if len < HEADER => Err(Errno::EPROTO.into()),
        said if said == ty + 1 => Ok(word),
        7 => Err(Errno(u32::from_le_bytes(word)).into()),
        _ => Err(Errno::EPROTO.into()),
    }
}

fn fid(n: u32) -> [u8; 4] {
    n.to_le_bytes()
}

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u16).to_le_bytes(), text.as_bytes()].concat()
}
