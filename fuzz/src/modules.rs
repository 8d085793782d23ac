//! Modules that read a peer's bytes: 9P frames, zstd, TLS.
//!
//! In: any bytes, divided in any way. Checks: 9P messages are those that a plain `split` finds; compressed or encrypted
//! data arrives unchanged, or there is an error; a stream holds at most its limit, one write, and the output of one
//! piece.

use std::sync::{Arc, Mutex, OnceLock};
use std::task::Poll;
use std::time::Duration;

use nine_net::modules::{TlsClient, TlsServer, modules};
use nine_net::{ClientAuth, ClientTls, Clock, ServerTls, Timer, TlsFiles, Trust};
use nine_proto::frame::{MSIZE_MAX, Split, split};
use nine_stream::{Block, Chain, Device, Limit, Make, Modules, Pool, Stream};

/// Message boundaries do not depend on how the bytes are divided, up to the first invalid message.
pub fn frame9p(data: &[u8]) {
    let Some((how, bytes)) = data.split_first_chunk::<2>() else { return };
    let (mut expected, mut rest) = (Vec::new(), bytes);
    let ends = loop {
        match split(rest, MSIZE_MAX) {
            Ok(Split::Whole(size)) => {
                expected.push(&rest[..size]);
                rest = &rest[size..];
            }
            Ok(Split::Partial(_)) => break rest.is_empty(),
            Err(_) => break false,
        }
    };
    let mut end = Ended::new(Modules::default().with("frame9p", nine_io::frame9p::open), "frame9p");
    end.feed(bytes, *how);
    end.device.finish();
    end.drain(usize::MAX);
    assert!(end.blocks == expected, "other messages than those that were sent");
    assert_eq!(end.fault.is_none(), ends, "{:?}", end.fault);
}

/// Input of a peer that may know zstd: raw bytes, or compressed bytes with one change.
pub fn zstd(data: &[u8]) {
    let Some((&[kind, at, bit, a, b], bytes)) = data.split_first_chunk::<5>() else { return };
    let mut end = Ended::new(modules(), "zstd");
    if kind % 4 == 0 {
        end.feed(bytes, [a, b]);
        return end.drain(BOMB);
    }
    let mut from = Ended::new(modules(), "zstd");
    // A lot of data may compress to a few bytes.
    let (many, how) = if kind & 4 == 0 { (0, [b, a]) } else { (usize::from(at) << 12, [255, 7]) };
    let plain = [&vec![bit; many], bytes].concat();
    let mut packed = from.sent(&plain, how);
    if kind % 4 == 1 {
        end.feed(&packed, [a, b]);
        end.device.finish();
        end.drain(usize::MAX);
        assert!(end.fault.is_none() && end.blocks.concat() == plain, "{:?}", end.fault);
        return;
    }
    bend(&mut packed, at, bit);
    end.feed(&packed, [a, b]);
    end.drain(BOMB);
}

/// TLS between two honest ends with one flipped bit, or with one end that sends arbitrary bytes.
pub fn tls(data: &[u8]) {
    let Some((&[kind, at, bit, a, b], bytes)) = data.split_first_chunk::<5>() else { return };
    let lab = lab();
    let mut client = Ended::new(modules().with("tls", lab.client()), "tls");
    let mut server = Ended::new(modules().with("tls", lab.server()), "tls");
    if kind % 4 == 0 {
        let end = if kind & 4 == 0 { &mut server } else { &mut client };
        end.feed(bytes, [a, b]);
        end.device.finish();
        end.drain(usize::MAX);
        assert!(end.blocks.is_empty(), "something came through without a handshake");
        return;
    }
    let mut put = Some(Chain::from(Block::from(bytes.to_vec())));
    // The flight with the flipped bit; 0 is the client's first.
    let bent = usize::from(kind / 4) % 6;
    for flight in 0..8 {
        let (from, to) =
            if flight % 2 == 0 { (&mut client, &mut server) } else { (&mut server, &mut client) };
        if flight % 2 == 0
            && let Some(chain) = put.take()
            && let Err((chain, _)) = from.stream.try_put(chain)
        {
            put = Some(chain);
        }
        let mut records = from.taken();
        if flight == bent && kind % 4 > 1 {
            bend(&mut records, at, bit);
        }
        to.feed(&records, [a, b]);
        to.drain(usize::MAX);
    }
    assert!(client.blocks.concat().is_empty(), "the server has said nothing");
    let came = server.blocks.concat();
    assert!(
        came == bytes || came.is_empty() || bytes.starts_with(&came),
        "other bytes than those that were sent"
    );
    assert!(kind % 4 > 1 || came == bytes, "{:?} {:?}", client.fault, server.fault);
}

fn bend(bytes: &mut [u8], at: u8, bit: u8) {
    let at = usize::from(at) * 7 % bytes.len().max(1);
    if let Some(byte) = bytes.get_mut(at) {
        *byte ^= 1 << (bit % 8);
    }
}

/// A stream with one module, and the received blocks.
struct Ended {
    stream: Stream,
    device: Device,
    blocks: Vec<Vec<u8>>,
    fault: Option<String>,
}

impl Ended {
    fn new(modules: Modules, push: &str) -> Self {
        let (stream, device) = Stream::new(&Make { limit: LIMIT, modules, ..Make::new(Pool::new(0)) });
        stream.push(push).expect("pushed");
        Self { stream, device, blocks: Vec::new(), fault: None }
    }

    /// Passes bytes up in chains of about `how[1]` pieces of about `how[0]` bytes. If there is no room, blocks are read
    /// first.
    fn feed(&mut self, bytes: &[u8], how: [u8; 2]) {
        for chain in chains(bytes, how) {
            let most = LIMIT.bytes + chain.len().max(PIECE);
            let mut given = chain;
            while let Err((back, gone)) = self.device.try_put(given) {
                if gone.is_some() {
                    return;
                }
                let before = self.blocks.len();
                self.drain(1);
                assert_ne!(before, self.blocks.len(), "it is full, and nothing comes out");
                given = back;
            }
            assert!(self.stream.waiting().0 <= most, "{:?} wait", self.stream.waiting());
        }
    }

    /// Reads at most this many blocks.
    fn drain(&mut self, blocks: usize) {
        for _ in 0..blocks {
            match self.stream.try_read_block() {
                Poll::Ready(Ok(Some(block))) => {
                    assert!(block.len() <= LIMIT.bytes.max(PIECE).max(MSIZE_MAX as usize));
                    self.blocks.push(block.data().to_vec());
                }
                Poll::Ready(Err(fault)) => return self.fault = Some(fault.to_string()),
                Poll::Ready(Ok(None)) | Poll::Pending => return,
            }
        }
    }

    /// Writes bytes and the end of the stream. Returns the bytes that reach the device.
    fn sent(&mut self, bytes: &[u8], how: [u8; 2]) -> Vec<u8> {
        let mut all = Vec::new();
        for chain in chains(bytes, how) {
            self.stream.try_put(chain).expect("there is room");
            all.extend(self.taken());
        }
        self.stream.finish();
        all.extend(self.taken());
        all
    }

    /// Returns the bytes that wait for the device.
    fn taken(&mut self) -> Vec<u8> {
        let mut all = Vec::new();
        while let Poll::Ready(Ok(Some(block))) = self.device.try_take() {
            all.extend(block.data());
        }
        all
    }
}

/// Splits bytes into chains of several pieces.
fn chains(bytes: &[u8], [size, pieces]: [u8; 2]) -> impl Iterator<Item = Chain> {
    let size = match size {
        0..200 => 1 + usize::from(size),
        _ => usize::from(size - 199) << 8,
    };
    bytes.chunks(size * (1 + usize::from(pieces % 8))).map(move |bytes| {
        let mut chain = Chain::default();
        chain.extend(bytes.chunks(size).map(|piece| Block::from(piece.to_vec())));
        chain.end_message();
        chain
    })
}

/// Two ends that trust each other, the same for all inputs.
struct Lab {
    client: ClientTls,
    server: Arc<Mutex<ServerTls>>,
}

impl Lab {
    fn client(&self) -> TlsClient {
        TlsClient { tls: self.client.clone(), host: "fs.lab".into() }
    }

    fn server(&self) -> TlsServer {
        TlsServer { tls: self.server.clone(), clock: Arc::new(Still) }
    }
}

fn lab() -> &'static Lab {
    static LAB: OnceLock<Lab> = OnceLock::new();
    LAB.get_or_init(|| {
        let made = rcgen::generate_simple_self_signed(["fs.lab".to_owned()]).expect("a certificate");
        let dir = tempfile::tempdir().expect("a directory");
        let [cert, key] = ["cert.pem", "key.pem"].map(|name| dir.path().join(name));
        std::fs::write(&cert, made.cert.pem()).expect("written");
        std::fs::write(&key, made.signing_key.serialize_pem()).expect("written");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&key, mode).expect("set");
        let client = ClientTls::new(&Trust::Ca(cert.clone()), None).expect("a client");
        let files = TlsFiles { cert, key, client_ca: None, crl: None };
        let server =
            ServerTls::new(files, ClientAuth::None, Duration::ZERO, Duration::ZERO).expect("a server");
        Lab { client, server: Arc::new(Mutex::new(server)) }
    })
}

/// A clock that stands still, so files are not checked again.
struct Still;

impl Clock for Still {
    fn now(&self) -> Duration {
        Duration::ZERO
    }

    fn wall(&self) -> Duration {
        Duration::ZERO
    }

    fn sleep_until(&self, _: Duration) -> Timer {
        Box::pin(std::future::pending())
    }

    fn entropy(&self, _: &mut [u8]) {}
}

/// Maximum number of blocks that are read when the amount of data is unknown.
const BOMB: usize = 64;
const LIMIT: Limit = Limit { bytes: 64 << 10, blocks: 64 };
/// Maximum number of bytes that a module passes on at once.
const PIECE: usize = 64 << 10;
