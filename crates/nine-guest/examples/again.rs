//! Opens a file of the host once, and prints it again for each input line: `again [-s SOCKET] FILE`.
//!
//! Without `-s` the program has inherited its channel: `ninefold partition run -- again FILE`.

use std::error::Error;
use std::io::Write;

use nine_guest::{OpenFlags, Process};

fn main() {
    if let Err(error) = again() {
        eprintln!("again: {error}");
        std::process::exit(1);
    }
}

fn again() -> Result<(), Box<dyn Error>> {
    let (mut socket, mut file) = (None, None);
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "-s" => socket = args.next(),
            _ => file = Some(arg),
        }
    }
    let file = file.ok_or("usage: again [-s SOCKET] FILE")?;
    let channel = match socket {
        Some(path) => Process::dial(path)?,
        None => Process::inherited()?,
    };
    let mut host = channel.client()?;
    let root = host.attach(&std::env::var("USER").unwrap_or_default(), "")?;
    let mut buffer = host.buffer(64 << 10)?;
    let mut bytes = vec![0; buffer.len()];
    let file = host.open(&root, &file, OpenFlags::READ)?;
    for line in std::io::stdin().lines() {
        line?;
        let mut offset = 0;
        loop {
            let len = host.read_into(&file, offset, &mut buffer, ..)?;
            if len == 0 {
                break;
            }
            buffer.read(0, &mut bytes[..len]);
            std::io::stdout().write_all(&bytes[..len])?;
            offset += len as u64;
        }
        std::io::stdout().flush()?;
    }
    Ok(host.clunk(file)?)
}
