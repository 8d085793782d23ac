//! `net_vs_relay`: a connection read as a file. `net:` is mounted in a mux, as in `ninefold serve`, with a client on a
//! unix socket. The peer is a relay that reads the same connection and writes to a unix socket. The limit has nothing
//! in between.
//!
//! Always holds: source and reader share a processor, and everything between them has the other one; or all share one.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::thread::{self, JoinHandle};
use std::time::Instant;

use futures_util::StreamExt;
use futures_util::stream::FuturesOrdered;
use nine_io::client::Net;

use crate::args::BenchPace;
use crate::limit::LimitServer;
use crate::place::CpuPlacement;
use crate::report::{BenchRace, BenchReport, BenchTurn, interleave};
use crate::scratch::ScratchDir;
use crate::server::{MeasuredServer, SILENCE};
use crate::turns::rate;

/// Size of one read, bytes, as the relay's. The server of `/net` reads as much of a socket at once.
pub(super) const READ: usize = 256 << 10;
/// Reads of one file in flight: one at a time, as for a file of events, and several.
const DEPTHS: [usize; 2] = [1, 4];
/// The name space.
pub(super) const SPACE: &str = "mount ram: /\nmount net: /net\n";

pub(super) fn measure(pace: &BenchPace, report: &mut BenchReport) -> io::Result<()> {
    let sockets = ScratchDir::for_sockets()?;
    let script = sockets.path().join("ns");
    std::fs::write(&script, SPACE)?;
    let ours = MeasuredServer::role("mux", &[script.as_os_str()], sockets.path().join("net"))?;
    let relay = LimitServer::start("gate", sockets.path(), &[])?;
    report.notes.push(
        "/net: source and reader on one processor, mux or relay on the other (cross); all on one (same core)"
            .into(),
    );
    let size = pace.of(256 << 20, 128 << 20, 4 << 20);
    let bare = || -> Option<BenchTurn<'_>> { Some(Box::new(move || through(size, connected))) };
    let relayed = || -> Option<BenchTurn<'_>> {
        Some(Box::new(|| {
            through(size, |port| {
                let mut stream = UnixStream::connect(&relay.socket)?;
                stream.set_read_timeout(Some(SILENCE))?;
                stream.write_all(&port.to_le_bytes())?;
                Ok(stream)
            })
        }))
    };
    for place in [CpuPlacement::Cross, CpuPlacement::Same] {
        place.arrange(&[ours.pid(), relay.child.pid()])?;
        let mut races = Vec::new();
        for depth in DEPTHS {
            let (client, root) = ours.client()?;
            let net = client.wait(root.file().walk("net")).map(Net::new).map_err(io::Error::other)?;
            let file: BenchTurn<'_> = Box::new(move || {
                let source = ByteSource::new(size)?;
                client.wait(async {
                    let call = net.dial(&format!("tcp!127.0.0.1!{}", source.port)).await?;
                    let begun = Instant::now();
                    let (mut seen, mut reads) = (0, FuturesOrdered::new());
                    loop {
                        while reads.len() < depth {
                            reads.push_back(call.data.read(0, READ as u32));
                        }
                        match reads.next().await.transpose()?.map_or(0, |data| data.len()) {
                            0 => break,
                            n => seen += n,
                        }
                    }
                    source.ended()?;
                    rate(begun, seen as u64, size as u64)
                })
            });
            let reads =
                if depth == 1 { "one read at a time".into() } else { format!("{depth} reads under way") };
            races.push(BenchRace {
                what: format!("a connection as a file, {reads}, {}: ours / relay", place.label()),
                unit: "GB/s",
                turns: [Some(file), relayed(), bare()],
            });
        }
        let rows = interleave(pace.rounds(), pace.patience(), races)?;
        let keys = match place {
            CpuPlacement::Cross => ["net_vs_relay", "net_4_reads_vs_relay"],
            _ => ["net_same_core_vs_relay", "net_4_reads_same_core_vs_relay"],
        };
        for (row, key) in rows.into_iter().zip(keys) {
            report.key(key, row.vs_peer());
            report.push(row);
        }
    }
    Ok(())
}

/// Sends `size` bytes to the first client, from a thread beside the reader.
struct ByteSource {
    port: u16,
    sender: JoinHandle<io::Result<()>>,
}

impl ByteSource {
    fn new(size: usize) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = listener.local_addr()?.port();
        // The thread inherits the processor of its creator.
        let sender = thread::spawn(move || {
            let (mut stream, mut left) = (listener.accept()?.0, size);
            let piece = vec![0x5a; READ];
            while left > 0 {
                left -= stream.write(&piece[..left.min(READ)])?;
            }
            Ok(())
        });
        Ok(Self { port, sender })
    }

    fn ended(self) -> io::Result<()> {
        self.sender.join().map_err(|_| io::Error::other("the source has failed"))?
    }
}

fn connected(port: u16) -> io::Result<TcpStream> {
    TcpStream::connect((Ipv4Addr::LOCALHOST, port))
}

/// Reads a source through the connection that `open` makes to its port; GB/s.
fn through<S: Read>(size: usize, open: impl FnOnce(u16) -> io::Result<S>) -> io::Result<f64> {
    let source = ByteSource::new(size)?;
    let mut stream = open(source.port)?;
    let (begun, mut seen, mut buf) = (Instant::now(), 0, vec![0; READ]);
    loop {
        match stream.read(&mut buf)? {
            0 => break,
            n => seen += n,
        }
    }
    source.ended()?;
    rate(begun, seen as u64, size as u64)
}
