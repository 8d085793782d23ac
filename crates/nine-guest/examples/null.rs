//! Measures the time of many writes of one size to a file of the host: `null [-s SOCKET] [-p | -i] [-z] FILE SIZE
//! [WRITES]`; `-p` polls, `-i` sleeps at once, `-z` writes from the arena without a copy.
//!
//! Without `-s` the program has inherited its channel: `ninefold partition run -- null dev/null 4096`.

use std::error::Error;
use std::time::Instant;

use nine_guest::{OpenFlags, Options, Process, Wait};

fn main() {
    if let Err(error) = null() {
        eprintln!("null: {error}");
        std::process::exit(1);
    }
}

fn null() -> Result<(), Box<dyn Error>> {
    let (mut socket, mut options, mut copies, mut rest) = (None, Options::default(), true, Vec::new());
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "-s" => socket = args.next(),
            "-p" => options.wait = Wait::Poll,
            "-i" => options.wait = Wait::Interrupt,
            "-z" => copies = false,
            _ => rest.push(arg),
        }
    }
    let [file, size, writes @ ..] = &rest[..] else {
        return Err("usage: null [-s SOCKET] [-p | -i] [-z] FILE SIZE [WRITES]".into());
    };
    let size: usize = size.parse()?;
    let writes: u32 = writes.first().map_or(Ok(10_000), |writes| writes.parse())?;
    let channel = match socket {
        Some(path) => Process::dial(path)?,
        None => Process::inherited()?,
    };
    let mut host = channel.client_with(options)?;
    let root = host.attach(&std::env::var("USER").unwrap_or_default(), "")?;
    let file = host.open(&root, file, OpenFlags::WRITE)?;
    let data = vec![b'x'; size];
    let mut buffer = if copies { None } else { Some(host.buffer(size)?) };
    if let Some(buffer) = &mut buffer {
        buffer.write(0, &data);
    }
    let begun = Instant::now();
    for _ in 0..writes {
        let taken = match &buffer {
            None => host.write(&file, 0, &data)?,
            Some(buffer) => host.write_from(&file, 0, buffer, ..)?,
        };
        if taken != size {
            return Err(format!("the host has taken {taken} of {size} bytes").into());
        }
    }
    let each = begun.elapsed().as_secs_f64() * 1e6 / f64::from(writes.max(1));
    println!("{size} {each:.3} us");
    Ok(())
}
