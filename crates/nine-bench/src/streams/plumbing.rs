//! Connections between two threads: our pipes, the kernel's, and none.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::{self, Thread};
use std::time::Instant;

use nine_net::wait;
use nine_stream::{Block, Fault, Halves, Limit, Make, Modules, Pass, Pool, Stream, pipe};

use super::WRITE;

/// The connection between the two threads.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum ThreadPlumbing {
    /// Our pipe, with this many modules pushed on its near end.
    Ours(usize),
    Pipe,
    Socketpair,
    Tcp,
    /// Only a counter, and a thread that is woken when it changes.
    Park,
}

pub(super) struct ConnectionEnds {
    pub(super) near: Box<dyn BlockingEnd>,
    pub(super) far: Box<dyn BlockingEnd>,
}

/// One end, blocking.
pub(super) trait BlockingEnd: Send {
    /// Reads some bytes; 0 at the end.
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize>;

    /// Writes all bytes.
    fn write(&mut self, buf: &[u8]) -> io::Result<()>;

    /// Reads and looks at every byte.
    fn look(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.read(buf)?;
        std::hint::black_box(sum(&buf[..n]));
        Ok(n)
    }

    /// Hands over [`WRITE`] bytes of this value.
    fn give(&mut self, value: u8, buf: &mut [u8]) -> io::Result<()> {
        buf.fill(value);
        self.write(buf)
    }
}

/// Sums all bytes, eight at a time.
pub(super) fn sum(bytes: &[u8]) -> u64 {
    let (eights, rest) = bytes.as_chunks::<8>();
    let of_eights = eights.iter().fold(0u64, |sum, eight| sum.wrapping_add(u64::from_ne_bytes(*eight)));
    rest.iter().fold(of_eights, |sum, &byte| sum.wrapping_add(byte.into()))
}

impl ThreadPlumbing {
    pub(super) fn make(self) -> io::Result<ConnectionEnds> {
        let ends = |near: Box<dyn BlockingEnd>, far: Box<dyn BlockingEnd>| Ok(ConnectionEnds { near, far });
        match self {
            Self::Ours(pushed) => {
                let (near, far) = ours(pushed);
                ends(Box::new(near), Box::new(far))
            }
            Self::Pipe => {
                let (there, back) = (io::pipe()?, io::pipe()?);
                ends(Box::new(PipeTwoWay(back.0, there.1)), Box::new(PipeTwoWay(there.0, back.1)))
            }
            Self::Socketpair => {
                let (near, far) = UnixStream::pair()?;
                ends(Box::new(SocketEnd(near)), Box::new(SocketEnd(far)))
            }
            Self::Tcp => {
                let listener = TcpListener::bind("127.0.0.1:0")?;
                let near = TcpStream::connect(listener.local_addr()?)?;
                let far = listener.accept()?.0;
                near.set_nodelay(true)?;
                far.set_nodelay(true)?;
                ends(Box::new(SocketEnd(near)), Box::new(SocketEnd(far)))
            }
            Self::Park => {
                let both = Arc::<[ParkBell; 2]>::default();
                ends(
                    Box::new(ParkedEnd { bells: both.clone(), side: 0 }),
                    Box::new(ParkedEnd { bells: both, side: 1 }),
                )
            }
        }
    }
}

fn ours(pushed: usize) -> (Stream, Stream) {
    let pass = |_: &str| Ok::<_, Fault>(Halves { up: Box::new(Pass), down: Box::new(Pass) });
    let make = Make {
        modules: Modules::default().with("pass", pass),
        limit: Limit { bytes: 4 * WRITE, blocks: 256 },
        ..Make::new(Pool::new(4 << 20))
    };
    let (near, far) = pipe(&make);
    for _ in 0..pushed {
        near.push("pass").expect("nothing is under way");
    }
    (near, far)
}

/// Measures putting a block on one end and getting it at the other, with its memory; nanoseconds.
pub(super) fn nanos_a_block(pushed: usize, times: u32) -> f64 {
    let (near, far) = ours(pushed);
    let memory = Block::from(vec![0; WRITE]);
    let mut block = Some(memory);
    let begun = Instant::now();
    for _ in 0..times {
        let mut given = block.take().expect("it has come back");
        given.delim = true;
        wait(near.put(given)).expect("it is open");
        block = wait(far.read_block()).expect("it is open");
    }
    begun.elapsed().as_secs_f64() * 1e9 / f64::from(times)
}

impl BlockingEnd for Stream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        wait(Stream::read(self, buf)).map_err(io::Error::other)
    }

    fn write(&mut self, buf: &[u8]) -> io::Result<()> {
        wait(Stream::write(self, buf)).map_err(io::Error::other).map(drop)
    }

    fn look(&mut self, _: &mut [u8]) -> io::Result<usize> {
        let block = wait(self.read_block()).map_err(io::Error::other)?;
        Ok(block.map_or(0, |block| {
            std::hint::black_box(sum(block.data()));
            block.len()
        }))
    }

    fn give(&mut self, value: u8, _: &mut [u8]) -> io::Result<()> {
        let mut block = wait(self.pool().alloc(WRITE));
        block.room().into_iter().for_each(|room| room.fill(value));
        block.filled(WRITE);
        block.delim = true;
        wait(self.put(block)).map_err(io::Error::other)
    }
}

struct SocketEnd<S>(S);

impl<S: Read + Write + Send> BlockingEnd for SocketEnd<S> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.0.read(buf)
    }

    fn write(&mut self, buf: &[u8]) -> io::Result<()> {
        self.0.write_all(buf)
    }
}

struct PipeTwoWay(io::PipeReader, io::PipeWriter);

impl BlockingEnd for PipeTwoWay {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.0.read(buf)
    }

    fn write(&mut self, buf: &[u8]) -> io::Result<()> {
        self.1.write_all(buf)
    }
}

/// The cost of a byte without a carrier: waking a thread.
struct ParkedEnd {
    bells: Arc<[ParkBell; 2]>,
    side: usize,
}

#[derive(Default)]
struct ParkBell {
    /// Bytes written and not yet read; the highest bit means that the writer is gone.
    count: AtomicU32,
    reader: std::sync::OnceLock<Thread>,
}

const GONE: u32 = 1 << 31;

impl ParkedEnd {
    fn ring(&self, by: u32) {
        let bell = &self.bells[1 - self.side];
        bell.count.fetch_add(by, Ordering::Release);
        bell.reader.get().into_iter().for_each(Thread::unpark);
    }
}

impl BlockingEnd for ParkedEnd {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        let bell = &self.bells[self.side];
        bell.reader.get_or_init(thread::current);
        loop {
            match bell.count.load(Ordering::Acquire) {
                0 => thread::park(),
                GONE => return Ok(0),
                _ => {
                    bell.count.fetch_sub(1, Ordering::Relaxed);
                    return Ok(1);
                }
            }
        }
    }

    fn write(&mut self, _: &[u8]) -> io::Result<()> {
        self.ring(1);
        Ok(())
    }
}

impl Drop for ParkedEnd {
    fn drop(&mut self) {
        self.ring(GONE);
    }
}
