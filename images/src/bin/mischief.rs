//! A machine that does not behave, for tests of its host: `mischief WORD...`.
//!
//! - `exit N` ends with this status, `linger N` says it and goes on; `panic`, `twice` (it panics while it panics),
//!   `fault` and `exhaust` (of all memory) end in other ways.
//! - `patience FILE` reads a file that nobody answers for 50 ms.
//! - `channels NAME...` mounts further channels and prints the file `file` of each.
//! - `again FILE` prints an open file anew for each line that it reads.
//! - `garbage SEED` writes into the memory of the channels whatever comes.

#![no_std]
#![no_main]

extern crate alloc;

use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt::{Display, Formatter, Write};
use core::hint::{black_box, spin_loop};
use core::time::Duration;

use nine_guest::machine::{Partition, memory};
use nine_guest::{Errno, Error, How, OpenFlags, Result};

nine_guest::partition!(main);

fn main(part: &mut Partition) -> Result<u8> {
    let words: Vec<String> = part.args.drain(1..).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["exit", status] => return number(status).map(|status| status as u8),
        ["linger", status] => {
            let exit = part.space.open("/self/exit", OpenFlags::WRITE)?;
            exit.write_all(0, status.as_bytes())?;
            loop {
                spin_loop();
            }
        }
        ["panic"] => panic!("it panics as it was told to"),
        ["twice"] => panic!("{}", Twice),
        ["exhaust"] => exhaust(part)?,
        ["patience", path] => {
            part.space.set_patience(path, Some(Duration::from_millis(50)))?;
            part.space.read(path, 4096)?;
        }
        ["fault"] => {
            black_box(deeper(black_box(1)));
        }
        ["channels", ref names @ ..] => {
            for name in names {
                let at = alloc::format!("/{name}");
                part.mount(name, &at, How::Replace)?;
                let text = part.space.read(&alloc::format!("{at}/file"), 4096)?;
                part.stdout.write(&text)?;
            }
        }
        ["again", path] => {
            let file = part.space.open(path, OpenFlags::READ)?;
            while part.stdin.line()?.is_some() {
                let mut bytes = [0; 4096];
                match file.read(0, &mut bytes) {
                    Ok(len) => part.stdout.write(&bytes[..len])?,
                    Err(error) => writeln!(part.stdout, "{error}")
                        .map_err(|error| Error::new(Errno::EIO, error.to_string()))?,
                }
            }
        }
        ["garbage", seed] => garbage(number(seed)?)?,
        _ => return Err(images::usage("mischief WORD [ARG]...")),
    }
    Ok(0)
}

fn number(word: &str) -> Result<u64> {
    word.parse().map_err(|_| Error::new(Errno::EINVAL, "this is no number"))
}

/// What panics when it is said.
struct Twice;

impl Display for Twice {
    fn fmt(&self, _: &mut Formatter<'_>) -> core::fmt::Result {
        panic!("it panics while it panics")
    }
}

/// Takes all memory there is, in parts that become smaller, and speaks until there is none to speak with.
fn exhaust(part: &mut Partition) -> Result<()> {
    let mut all = Vec::new();
    for size in (3..20).rev().map(|n| 1 << n) {
        let mut more = Vec::<u8>::new();
        while more.try_reserve_exact(size).is_ok() && all.try_reserve(1).is_ok() {
            all.push(core::mem::take(&mut more));
        }
    }
    loop {
        part.stdout.write(&black_box(Vec::from([b'x'; 100])))?;
    }
}

/// Needs more stack than there is.
fn deeper(n: u64) -> u64 {
    let frame = black_box([n; 512]);
    if n == 0 { 0 } else { deeper(n + 1) + black_box(frame)[n as usize % 512] }
}

/// A million writes, half of them where the words and the first lines of the first channel are.
fn garbage(seed: u64) -> Result<()> {
    let memory = memory()?;
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for _ in 0..1_000_000 {
        let (place, bytes) = (next(), next().to_le_bytes());
        let most = if place >> 63 == 0 { 16 << 10 } else { memory.len() };
        memory.write(place as usize % (most - bytes.len()), &bytes);
    }
    Ok(())
}
