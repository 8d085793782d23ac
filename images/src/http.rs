//! GET by HTTP/1.0, over the files of a network (docs/net.md): a `clone`, a call, and the bytes.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use nine_guest::machine::Partition;
use nine_guest::{Errno, Error, Line, OpenFlags, Opened, Result, Space};

/// Bytes of the head of an answer.
const HEAD: usize = 64 << 10;

/// Tells `each` the body of what the URL names, as it comes.
pub fn get(
    part: &mut Partition,
    url: &str,
    mut each: impl FnMut(&mut Partition, &[u8]) -> Result<()>,
) -> Result<()> {
    let wrong = |errno, why: &str| Error::new(errno, format!("{url}: {why}"));
    let rest = url.strip_prefix("http://").ok_or_else(|| wrong(Errno::EINVAL, "no http://"))?;
    let (place, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let (host, port) = match place.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, port),
        _ => (place, "80"),
    };
    // What is in brackets has colons in it.
    let host = host.trim_start_matches('[').trim_end_matches(']');
    if host.is_empty() || url.contains(|c: char| c.is_whitespace() || c == '!') {
        return Err(wrong(Errno::EINVAL, "it names nobody"));
    }
    let (ctl, data) =
        dial(&part.space, host, port).map_err(|error| wrong(error.errno, &error.to_string()))?;
    let path = if path.is_empty() { "/" } else { path };
    data.write_all(0, format!("GET {path} HTTP/1.0\r\nHost: {place}\r\n\r\n").as_bytes())?;
    let mut bytes = Vec::new();
    let begin = loop {
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break end + 4;
        }
        let done = bytes.len();
        bytes.resize(done + 4096, 0);
        let len = data.read(0, &mut bytes[done..])?;
        bytes.truncate(done + len);
        if len == 0 || bytes.len() > HEAD {
            return Err(wrong(Errno::EPROTO, "no answer of HTTP"));
        }
    };
    let head = String::from_utf8_lossy(&bytes[..begin]).into_owned();
    let mut lines = head.lines();
    let status = lines.next().unwrap_or_default().strip_prefix("HTTP/1.");
    match status.and_then(|status| status.split_once(' ')) {
        Some((_, said)) if said.starts_with('2') => {}
        Some((_, said)) => return Err(wrong(Errno::EIO, said)),
        None => return Err(wrong(Errno::EPROTO, "no answer of HTTP")),
    }
    let due = lines
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        .and_then(|(_, len)| len.trim().parse::<u64>().ok());
    let mut left = due.unwrap_or(u64::MAX);
    // What is behind the end is none of it.
    let mut take = |part: &mut Partition, bytes: &[u8]| {
        let len = bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        left -= len as u64;
        each(part, &bytes[..len]).map(|()| left)
    };
    let mut more = take(part, &bytes[begin..])?;
    bytes.resize(64 << 10, 0);
    while more > 0 {
        let len = data.read(0, &mut bytes)?;
        if len == 0 {
            break;
        }
        more = take(part, &bytes[..len])?;
    }
    drop(ctl);
    match due {
        Some(_) if more > 0 => Err(wrong(Errno::EPIPE, "the answer ends before its end")),
        _ => Ok(()),
    }
}

/// Calls: the conversation's `ctl`, which keeps it, and its `data`.
fn dial<L: Line>(space: &Space<L>, host: &str, port: &str) -> Result<(Opened<L>, Opened<L>)> {
    let mut failed = Errno::ENOENT.into();
    for answer in looked_up(space, host, port)? {
        let Some((clone, to)) = answer.split_once(' ') else { continue };
        let call = || {
            let ctl = space.open(clone, OpenFlags::RDWR)?;
            let number = text(&ctl)?;
            ctl.write_all(0, format!("connect {to}").as_bytes())?;
            let dir = clone.rsplit_once('/').map_or("", |(dir, _)| dir);
            let data = space.open(&format!("{dir}/{}/data", number.trim()), OpenFlags::RDWR)?;
            Ok((ctl, data))
        };
        match call() {
            Ok(called) => return Ok(called),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

/// What to open and what to write there: as the connection server says, if there is one.
fn looked_up<L: Line>(space: &Space<L>, host: &str, port: &str) -> Result<Vec<String>> {
    let Ok(cs) = space.open("/net/cs", OpenFlags::RDWR) else {
        return Ok(Vec::from([format!("/net/tcp/clone {host}!{port}")]));
    };
    cs.write_all(0, format!("tcp!{host}!{port}").as_bytes())?;
    let mut answers = Vec::new();
    // One a read, or all in one.
    loop {
        let said = text(&cs)?;
        if said.is_empty() || answers.len() > 16 {
            return Ok(answers);
        }
        answers.extend(said.lines().map(String::from));
    }
}

fn text<L: Line>(file: &Opened<L>) -> Result<String> {
    let mut bytes = [0; 1024];
    let len = file.read(0, &mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes[..len]).into_owned())
}
