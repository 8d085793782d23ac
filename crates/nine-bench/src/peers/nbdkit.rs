//! nbdkit, a disk server over TCP, and a minimal client for its protocol (NBD): fixed newstyle, many requests in
//! flight, simple replies.
//!
//! Always holds for the client: it writes all possible requests at once, and reads with as few calls as possible. Large
//! answers are read directly into the caller's buffer.

use std::ffi::OsString;
use std::io::{self, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;

use nine_sim::delay::Side;

use super::{PeerServer, find};
use crate::far::RemoteLink;
use crate::server::SILENCE;

/// Serves a file on all addresses of the far side with its defaults: 16 threads. `None` if it is not installed.
pub fn start(far: &RemoteLink, file: &Path, run: &Path) -> io::Result<Option<PeerServer>> {
    let Some(program) = find("nbdkit") else { return Ok(None) };
    let (log, port) = (run.join("nbdkit.log"), far.free_port(Side::There)?);
    let mut words: Vec<OsString> = vec![program.into()];
    words.extend(["-f", "-p", &port.to_string(), "file"].map(OsString::from));
    words.push(file.into());
    let mut child = far.start(Side::There, &words, &log)?;
    far.wait_for(&mut child, Side::There, port, &log)?;
    Ok(Some(PeerServer { child, port }))
}

/// Returns the version of the package, or `None` if it is not installed.
pub fn version() -> Option<String> {
    super::version("nbdkit", "nbdkit")
}

const MAGIC: &[u8; 16] = b"NBDMAGICIHAVEOPT";
/// Flags of both sides: fixed newstyle, no padding.
const FLAGS: u16 = 3;
/// The option that ends the negotiation.
const EXPORT_NAME: u32 = 1;
const REQUEST: u32 = 0x2560_9513;
const REPLY: u32 = 0x6744_6698;

pub const READ: u16 = 0;
pub const WRITE: u16 = 1;
const DISCONNECT: u16 = 2;

/// Size of a request without data, bytes.
const HEADER: usize = 28;
/// Read-ahead buffer: large for small answers. For large answers it is small, because buffered data is copied once
/// more.
const AHEAD_SMALL: usize = 64 << 10;
const AHEAD_LARGE: usize = 16 << 10;

/// A connection for requests of one kind and size.
pub struct NbdClient {
    stream: TcpStream,
    replies: BufReader<TcpStream>,
    kind: u16,
    /// Requests to write, with their data.
    out: Vec<u8>,
    /// A write request: space for its header, then its data.
    data: Vec<u8>,
}

impl NbdClient {
    pub fn dial(at: SocketAddr, kind: u16, size: usize) -> io::Result<Self> {
        let mut stream = TcpStream::connect(at)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(SILENCE))?;
        stream.set_write_timeout(Some(SILENCE))?;
        greet(&mut stream)?;
        let ahead = if size < AHEAD_SMALL { AHEAD_SMALL } else { AHEAD_LARGE };
        let replies = BufReader::with_capacity(ahead, stream.try_clone()?);
        Ok(Self { stream, replies, kind, out: Vec::new(), data: vec![0x5a; HEADER + size] })
    }

    /// Adds a request to the output. A request with much data is written at once.
    pub fn ask(&mut self, cookie: u64, at: u64) -> io::Result<()> {
        let header = header(self.kind, cookie, at, (self.data.len() - HEADER) as u32);
        self.data[..HEADER].copy_from_slice(&header);
        if self.kind == READ {
            self.out.extend(header);
        } else if self.data.len() > AHEAD_LARGE {
            self.stream.write_all(&self.data)?;
        } else {
            self.out.extend(&self.data);
        }
        Ok(())
    }

    /// Writes all pending requests.
    pub fn send(&mut self) -> io::Result<()> {
        self.stream.write_all(&self.out)?;
        self.out.clear();
        Ok(())
    }

    /// Reads the next reply and returns its request's cookie. For a read, `data` gets the data.
    pub fn reply(&mut self, data: &mut [u8]) -> io::Result<u64> {
        let mut head = [0; 16];
        self.replies.read_exact(&mut head)?;
        let cookie = replied(head)?;
        if self.kind == READ {
            self.replies.read_exact(data)?;
        }
        Ok(cookie)
    }

    /// Disconnects when no request is in flight, and waits until the server closes: this nbdkit may abort if a client
    /// leaves without that.
    pub fn end(mut self) -> io::Result<()> {
        self.stream.write_all(&header(DISCONNECT, 0, 0, 0))?;
        match self.replies.read(&mut [0])? {
            0 => Ok(()),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Returns whether the next reply is at least partly buffered.
    pub fn has_more(&self) -> bool {
        self.replies.buffer().len() >= 16
    }
}

fn greet(stream: &mut (impl Read + Write)) -> io::Result<()> {
    let mut said = [0; 18];
    stream.read_exact(&mut said)?;
    let flags = u16::from_be_bytes([said[16], said[17]]);
    if said[..16] != MAGIC[..] || flags & FLAGS != FLAGS {
        return Err(io::Error::other("this is no NBD as we know it"));
    }
    let mut words = u32::from(FLAGS).to_be_bytes().to_vec();
    words.extend(&MAGIC[8..]);
    words.extend(EXPORT_NAME.to_be_bytes());
    // The export name is empty.
    words.extend(0u32.to_be_bytes());
    stream.write_all(&words)?;
    // The export's size and flags.
    stream.read_exact(&mut [0; 10])
}

fn header(kind: u16, cookie: u64, at: u64, len: u32) -> [u8; HEADER] {
    let mut bytes = [0; HEADER];
    bytes[..4].copy_from_slice(&REQUEST.to_be_bytes());
    bytes[6..8].copy_from_slice(&kind.to_be_bytes());
    bytes[8..16].copy_from_slice(&cookie.to_be_bytes());
    bytes[16..24].copy_from_slice(&at.to_be_bytes());
    bytes[24..].copy_from_slice(&len.to_be_bytes());
    bytes
}

/// Returns the cookie of a successful reply.
fn replied(head: [u8; 16]) -> io::Result<u64> {
    let [magic, error, high, low] = [0, 4, 8, 12].map(|at| {
        let [a, b, c, d, ..] = head[at..] else { return 0 };
        u32::from_be_bytes([a, b, c, d])
    });
    match (magic, error) {
        (REPLY, 0) => Ok(u64::from(high) << 32 | u64::from(low)),
        (REPLY, error) => Err(io::Error::other(format!("nbdkit says error {error}"))),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a fixed text, and records everything written to it.
    struct ScriptedStream(io::Cursor<Vec<u8>>, Vec<u8>);

    impl Read for ScriptedStream {
        fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
            self.0.read(buf)
        }
    }

    impl Write for ScriptedStream {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.1.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn the_greeting_asks_for_the_export_without_a_name() {
        let mut said = b"NBDMAGICIHAVEOPT\0\x03".to_vec();
        said.extend([0, 0, 0, 0, 0, 16, 0, 0, 0, 1]);
        let mut mouth = ScriptedStream(io::Cursor::new(said.clone()), Vec::new());
        greet(&mut mouth).unwrap();
        assert_eq!(mouth.1, b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\0");
        said[17] = 1;
        assert!(greet(&mut ScriptedStream(io::Cursor::new(said), Vec::new())).is_err());
    }

    #[test]
    fn requests_and_replies_are_as_the_protocol_has_them() {
        let mut expected = vec![0x25, 0x60, 0x95, 0x13, 0, 0, 0, 1];
        expected.extend([0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0x10, 0]);
        assert_eq!(header(WRITE, 7, 1 << 32, 4096)[..], expected);
        let mut reply = [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 9];
        assert_eq!(replied(reply).unwrap(), 1 << 56 | 9);
        reply[7] = 5;
        assert!(replied(reply).unwrap_err().to_string().contains("error 5"));
        reply[0] = 0;
        assert_eq!(replied(reply).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
