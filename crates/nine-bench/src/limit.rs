//! The physical limits: the same bytes over the same sockets, without a protocol.

use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use nine_proto::frame::{Split, split};
use rustix::event::epoll;

use crate::child::{self, ChildProcess};

/// A limit, in a process of its own.
pub struct LimitServer {
    pub child: ChildProcess,
    pub socket: PathBuf,
}

impl LimitServer {
    /// Starts a role; its socket is its first word.
    pub fn start(role: &str, sockets: &Path, words: &[&OsStr]) -> io::Result<Self> {
        let socket = sockets.join(role);
        let child = ChildProcess::role(&[&[OsStr::new(role), socket.as_os_str()], words].concat())?;
        Ok(Self { child, socket })
    }
}

/// Size of one read or write, bytes.
const CHUNK_LEN: usize = 256 * 1024;

/// Sizes of the answers with a fixed size, by request type, bytes: Rgetattr, Rversion, Rattach, Ropen, Rcreate, Rwrite,
/// Rclunk, Rremove, Rstat of a short name, Rwstat.
const ANSWERS: &[(u8, usize)] = &[
    (24, 160),
    (100, 19),
    (104, 20),
    (112, 24),
    (114, 24),
    (118, 11),
    (120, 7),
    (122, 7),
    (124, 65),
    (126, 7),
];

/// Answers frames with as many bytes as 9P would, by epoll(7): one read and one write for each wake-up.
pub fn echo(socket: &Path) -> io::Result<()> {
    let (mut came, mut out) = (vec![0; CHUNK_LEN], Vec::new());
    let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
    readable(
        socket,
        flags,
        |client| Ok(vec![client]),
        |lanes, n| {
            let Some(stream) = &mut lanes[n] else { return Ok(()) };
            match stream.read(&mut came) {
                Ok(0) | Err(_) => lanes[n] = None,
                Ok(read) => {
                    answer(&came[..read], &mut out)?;
                    stream.write_all(&out)?;
                }
            }
            Ok(())
        },
    )
}

/// Listens, and calls `turn` with the number of each readable stream. `admit` returns the streams for a new client.
fn readable(
    socket: &Path,
    flags: epoll::EventFlags,
    admit: impl Fn(UnixStream) -> io::Result<Vec<UnixStream>>,
    mut turn: impl FnMut(&mut [Option<UnixStream>], usize) -> io::Result<()>,
) -> io::Result<()> {
    let listener = UnixListener::bind(socket)?;
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(&epoll, &listener, epoll::EventData::new_u64(u64::MAX), epoll::EventFlags::IN)?;
    child::ready();
    let (mut streams, mut events) = (Vec::new(), Vec::with_capacity(1024));
    loop {
        events.clear();
        match epoll::wait(&epoll, rustix::buffer::spare_capacity(&mut events), None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for event in &events {
            let n = event.data.u64();
            if n != u64::MAX {
                turn(&mut streams, n as usize)?;
                continue;
            }
            for stream in admit(listener.accept()?.0)? {
                epoll::add(&epoll, &stream, epoll::EventData::new_u64(streams.len() as u64), flags)?;
                streams.push(Some(stream));
            }
        }
    }
}

/// Answers the received frames. They are complete, because they are small and their sender waits for the answers.
fn answer(mut came: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
    out.clear();
    while let Split::Whole(size) = split(came, u32::MAX).map_err(io::Error::other)? {
        let len = weight(&came[..size]).ok_or(io::ErrorKind::InvalidData)?;
        let at = out.len();
        out.resize(at + len, 0);
        out[at..at + 4].copy_from_slice(&(len as u32).to_le_bytes());
        out[at + 4] = came[4] + 1;
        out[at + 5..at + 7].copy_from_slice(&came[5..7]);
        came = &came[size..];
    }
    if came.is_empty() { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) }
}

/// Returns the size of a request's answer: as requested for Tread, and by the number of names for Twalk.
fn weight(request: &[u8]) -> Option<usize> {
    let word = |at: usize| Some(u32::from_le_bytes(request.get(at..at + 4)?.try_into().ok()?) as usize);
    match request[4] {
        116 => Some(11 + word(19)?),
        110 => Some(9 + 13 * usize::from(*request.get(15)?)),
        ty => ANSWERS.iter().find(|(known, _)| *known == ty).map(|(_, len)| *len),
    }
}

/// Relays bytes between each client and a connection of its own to `to`: one read and one write for each wake-up.
pub fn relay(socket: &Path, to: &Path) -> io::Result<()> {
    let mut came = vec![0; CHUNK_LEN];
    // Streams are numbered in pairs: data from one goes to the other.
    readable(
        socket,
        epoll::EventFlags::IN,
        |client| Ok(vec![client, UnixStream::connect(to)?]),
        |ends, n| {
            let (Some(mut from), Some(mut to)) = (ends[n].as_ref(), ends[n ^ 1].as_ref()) else {
                return Ok(());
            };
            let passed = match from.read(&mut came) {
                Ok(0) | Err(_) => false,
                Ok(read) => to.write_all(&came[..read]).is_ok(),
            };
            if !passed {
                (ends[n], ends[n ^ 1]) = (None, None);
            }
            Ok(())
        },
    )
}

/// Relays a TCP connection to one client at a time: one read, one write. The client names the port on this machine (two
/// bytes, little-endian).
pub fn gate(socket: &Path) -> io::Result<()> {
    let listener = UnixListener::bind(socket)?;
    let mut came = vec![0; CHUNK_LEN];
    child::ready();
    loop {
        let (mut client, _) = listener.accept()?;
        let mut port = [0; 2];
        client.read_exact(&mut port)?;
        let mut from = TcpStream::connect((Ipv4Addr::LOCALHOST, u16::from_le_bytes(port)))?;
        loop {
            match from.read(&mut came)? {
                0 => break,
                n => client.write_all(&came[..n])?,
            }
        }
    }
}

/// A request to [`bulk`] for a number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BulkRequest {
    /// Send them from memory, by write(2).
    Write,
    /// Send them from the file, by sendfile(2).
    Sendfile,
    /// Receive them, then send one byte.
    Receive,
}

/// Moves bytes in one direction, from or to one client at a time.
pub fn bulk(socket: &Path, file: &Path) -> io::Result<()> {
    let listener = UnixListener::bind(socket)?;
    let file = std::fs::File::open(file)?;
    let (mut memory, mut content) = (vec![0; CHUNK_LEN], Vec::new());
    child::ready();
    loop {
        let (mut stream, _) = listener.accept()?;
        let mut order = [0; 9];
        // The client disconnects when it has enough.
        while stream.read_exact(&mut order).is_ok() {
            let [how, count @ ..] = order;
            let mut left = u64::from_le_bytes(count);
            let (mut at, total) = (0, left);
            if how == BulkRequest::Write as u8 && content.is_empty() {
                (&file).read_to_end(&mut content)?;
            }
            while left > 0 {
                let piece = left.min(CHUNK_LEN as u64) as usize;
                let sent = (total - left) as usize;
                left -= match how {
                    // Send from a copy of the whole file: it takes as much memory as the page cache does for sendfile.
                    0 => {
                        stream.write(content.get(sent..sent + piece).ok_or(io::ErrorKind::UnexpectedEof)?)?
                    }
                    1 => rustix::fs::sendfile(&stream, &file, Some(&mut at), piece)?,
                    _ => stream.read(&mut memory[..piece])?,
                } as u64;
            }
            if how == BulkRequest::Receive as u8 && total > 0 {
                stream.write_all(&[1])?;
            }
        }
    }
}

impl BulkRequest {
    /// Requests `count` bytes and waits until they are moved.
    pub fn move_bytes(self, stream: &mut UnixStream, count: u64, buf: &mut [u8]) -> io::Result<()> {
        let mut order = [self as u8; 9];
        order[1..].copy_from_slice(&count.to_le_bytes());
        stream.write_all(&order)?;
        let mut left = count;
        while left > 0 {
            let piece = left.min(buf.len() as u64) as usize;
            let n = match self {
                Self::Receive => stream.write(&buf[..piece])?,
                _ => stream.read(&mut buf[..piece])?,
            };
            if n == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            left -= n as u64;
        }
        match self {
            Self::Receive => stream.read_exact(&mut [0]),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_have_the_tag_and_the_size_of_real_ones() {
        let mut out = Vec::new();
        let ask = |ty: u8, tag: u8| [&[8, 0, 0, 0, ty, tag, 0][..], b"x"].concat();
        answer(&[ask(24, 5), ask(120, 6)].concat(), &mut out).unwrap();
        assert_eq!(out.len(), 160 + 7);
        assert_eq!((&out[..7], &out[160..]), (&[160, 0, 0, 0, 25, 5, 0][..], &[7, 0, 0, 0, 121, 6, 0][..]));
        assert!(answer(&ask(99, 1), &mut out).is_err());
        assert!(answer(&ask(24, 1)[..7], &mut out).is_err());
    }
}
