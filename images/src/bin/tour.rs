//! What a machine can do without an operating system: `tour FILE URL` says hello, then the first line of a file, then
//! what is at a place of the web.

#![no_std]
#![no_main]

extern crate alloc;

use alloc::string::ToString;
use core::fmt::Write;

use nine_guest::machine::Partition;
use nine_guest::{Errno, Error, OpenFlags, Result};

nine_guest::partition!(main);

fn main(part: &mut Partition) -> Result<()> {
    let [_, path, url] = &part.args[..] else { return Err(images::usage("tour FILE URL")) };
    let (path, url) = (path.clone(), url.clone());
    say(part, format_args!("hello from a machine that has 9P through memory as its files"))?;
    let file = part.space.open(&path, OpenFlags::READ)?;
    let mut bytes = [0; 1024];
    let len = file.read(0, &mut bytes)?;
    let text = alloc::string::String::from_utf8_lossy(&bytes[..len]).into_owned();
    say(part, format_args!("{path}: {}", text.lines().next().unwrap_or_default()))?;
    say(part, format_args!("{url}:"))?;
    images::http::get(part, &url, |part, bytes| part.stdout.write(bytes))
}

fn say(part: &mut Partition, words: core::fmt::Arguments<'_>) -> Result<()> {
    writeln!(part.stdout, "{words}").map_err(|error| Error::new(Errno::EIO, error.to_string()))
}
