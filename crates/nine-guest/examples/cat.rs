//! Prints a file of the host, or writes one: `cat [-s SOCKET] FILE`, `cat [-s SOCKET] -w FILE <TEXT`.
//!
//! Without `-s` the program has inherited its channel: `ninefold partition run -- cat FILE`.

use std::error::Error;
use std::io::{Read, Write};

use nine_guest::{OpenFlags, Process};

fn main() {
    if let Err(error) = cat() {
        eprintln!("cat: {error}");
        std::process::exit(1);
    }
}

fn cat() -> Result<(), Box<dyn Error>> {
    let (mut socket, mut writes, mut file) = (None, false, None);
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "-s" => socket = args.next(),
            "-w" => writes = true,
            _ => file = Some(arg),
        }
    }
    let file = file.ok_or("usage: cat [-s SOCKET] [-w] FILE")?;
    let channel = match socket {
        Some(path) => Process::dial(path)?,
        None => Process::inherited()?,
    };
    let mut host = channel.client()?;
    let root = host.attach(&std::env::var("USER").unwrap_or_default(), "")?;
    let mut buffer = host.buffer(64 << 10)?;
    let mut bytes = vec![0; buffer.len()];
    let mut offset = 0;
    if writes {
        let file = host.create(&root, &file, OpenFlags::WRITE | OpenFlags::TRUNC, 0o644)?;
        loop {
            let len = std::io::stdin().read(&mut bytes)?;
            if len == 0 {
                return Ok(host.clunk(file)?);
            }
            buffer.write(0, &bytes[..len]);
            let mut done = 0;
            while done < len {
                done += match host.write_from(&file, offset + done as u64, &buffer, done..len)? {
                    0 => return Err("the host takes no more".into()),
                    taken => taken,
                };
            }
            offset += len as u64;
        }
    }
    let file = host.open(&root, &file, OpenFlags::READ)?;
    loop {
        let len = host.read_into(&file, offset, &mut buffer, ..)?;
        if len == 0 {
            return Ok(());
        }
        buffer.read(0, &mut bytes[..len]);
        std::io::stdout().write_all(&bytes[..len])?;
        offset += len as u64;
    }
}
