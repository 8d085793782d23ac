//! `tls`: TLS on a connection that is already in use. Both ends push it at the same byte: one as the server, with its
//! certificate, the other as the client, which knows what to expect.
//!
//! Always holds: nothing is sent in plain text after the push. Data put before the handshake is done waits above the
//! module. An end without `close_notify` is an error. The transport's own proof of the peer stays unchanged; the
//! identity in its certificate is in `status` ([`proof_in`]).

use std::io::{self, Read, Write};
use std::sync::Arc;

use nine_stream::{Block, Chain, Fault, Halves, Module, ModuleKind, Next};
use rustls::{ClientConnection, Connection, ServerConnection};

use crate::Proof;
use crate::env::Clock;
use crate::lock::{Mutex, lock};
use crate::tls::{self, ClientTls, ServerTls, server_name};

/// The memory of rustls: incomplete records, keys, and a handshake.
const COST: usize = 256 << 10;

/// The server's end.
pub struct TlsServer {
    /// The configuration, shared with the listener, which checks whether its files have changed.
    pub tls: Arc<std::sync::Mutex<ServerTls>>,
    /// The clock for the validity of certificates.
    pub clock: Arc<dyn Clock>,
}

/// The client's end.
pub struct TlsClient {
    /// The trusted authorities or certificate.
    pub tls: ClientTls,
    /// The expected name in the server's certificate, if the arguments give none.
    pub host: String,
}

impl ModuleKind for TlsServer {
    /// The arguments are the client's: the name that it expects.
    fn open(&self, _: &str) -> Result<Halves, Fault> {
        let config = {
            let mut tls = self.tls.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            tls.config(self.clock.now(), self.clock.wall())
        };
        halves(ServerConnection::new(config).map(Connection::from).map_err(io::Error::other))
    }

    fn is_single(&self) -> bool {
        true
    }

    fn cost(&self, _: &str) -> usize {
        COST
    }
}

impl ModuleKind for TlsClient {
    fn open(&self, arguments: &str) -> Result<Halves, Fault> {
        // The arguments may give a name other than the address.
        let host = if arguments.is_empty() { &self.host } else { arguments };
        let conn = server_name(host).and_then(|name| {
            let conn = ClientConnection::new(self.tls.config.clone(), name);
            conn.map(Connection::from).map_err(io::Error::other)
        });
        halves(conn)
    }

    fn is_single(&self) -> bool {
        true
    }

    fn cost(&self, _: &str) -> usize {
        COST
    }
}

fn halves(conn: io::Result<Connection>) -> Result<Halves, Fault> {
    let mut conn = conn.map_err(said)?;
    // A put is encrypted and passed on at once, or not accepted.
    conn.set_buffer_limit(None);
    let shared = Arc::new(Mutex::new(TlsModuleState { conn, failed: None, told: false }));
    Ok(Halves { up: Box::new(TlsReceiver(shared.clone())), down: Box::new(TlsSender(shared)) })
}

struct TlsModuleState {
    conn: Connection,
    /// Why no more input is accepted.
    failed: Option<Fault>,
    /// The alert for the peer has been passed on.
    told: bool,
}

impl TlsModuleState {
    /// The finished records. The caller passes them on after it has released the lock.
    fn records(&mut self) -> Result<Vec<Block>, Fault> {
        let mut all = Vec::new();
        while self.conn.wants_write() {
            let mut records = Vec::new();
            self.conn.write_tls(&mut records).map_err(said)?;
            let mut block = Block::from(records);
            block.delim = true;
            all.push(block);
        }
        Ok(all)
    }

    /// Decrypts input.
    fn take(&mut self, chain: Chain) -> Result<Vec<Block>, Fault> {
        let mut plain = Vec::new();
        for block in chain {
            let mut data = block.data();
            while !data.is_empty() && self.failed.is_none() {
                if self.conn.read_tls(&mut data).map_err(said)? == 0 {
                    // Input after the peer's close_notify is ignored.
                    return Ok(plain);
                }
                match self.conn.process_new_packets().map(|state| state.plaintext_bytes_to_read()) {
                    Ok(0) => {}
                    Ok(n) => {
                        let mut piece = vec![0; n];
                        self.conn.reader().read_exact(&mut piece).map_err(said)?;
                        let mut block = Block::from(piece);
                        block.delim = true;
                        plain.push(block);
                    }
                    // The other half sends the alert to the peer; then this one fails.
                    Err(error) => self.failed = Some(said(error)),
                }
            }
        }
        Ok(plain)
    }
}

struct TlsReceiver(Arc<Mutex<TlsModuleState>>);

impl Module for TlsReceiver {
    fn put(&mut self, chain: Chain, next: &mut Next<'_, '_>) -> Result<(), Fault> {
        let mut shared = lock(&self.0);
        let was_shaking = shared.conn.is_handshaking();
        let plain = shared.take(chain)?;
        let is_news = was_shaking != shared.conn.is_handshaking();
        if shared.failed.is_some() || shared.conn.wants_write() || is_news {
            next.kick();
        }
        drop(shared);
        plain.into_iter().for_each(|block| next.put(block));
        Ok(())
    }

    fn resume(&mut self, _: &mut Next<'_, '_>) -> Result<(), Fault> {
        let shared = lock(&self.0);
        match &shared.failed {
            Some(fault) if shared.told => Err(fault.clone()),
            _ => Ok(()),
        }
    }

    fn close(&mut self, _: &mut Next<'_, '_>) -> Result<(), Fault> {
        let mut shared = lock(&self.0);
        let closed = shared.conn.process_new_packets().is_ok_and(|state| state.peer_has_closed());
        if closed { Ok(()) } else { Err(Fault::new("it ended without saying so: something may be missing")) }
    }
}

struct TlsSender(Arc<Mutex<TlsModuleState>>);

impl Module for TlsSender {
    fn put(&mut self, chain: Chain, next: &mut Next<'_, '_>) -> Result<(), Fault> {
        let mut shared = lock(&self.0);
        for block in chain {
            shared.conn.writer().write_all(block.data()).map_err(said)?;
        }
        let records = shared.records()?;
        drop(shared);
        records.into_iter().for_each(|block| next.put(block));
        Ok(())
    }

    fn is_full(&self) -> bool {
        lock(&self.0).conn.is_handshaking()
    }

    fn resume(&mut self, next: &mut Next<'_, '_>) -> Result<(), Fault> {
        let mut shared = lock(&self.0);
        let records = shared.records()?;
        if shared.failed.is_some() && !shared.told {
            shared.told = true;
            next.kick();
        }
        drop(shared);
        records.into_iter().for_each(|block| next.put(block));
        Ok(())
    }

    fn close(&mut self, next: &mut Next<'_, '_>) -> Result<(), Fault> {
        let mut shared = lock(&self.0);
        shared.conn.send_close_notify();
        let records = shared.records()?;
        drop(shared);
        records.into_iter().for_each(|block| next.put(block));
        Ok(())
    }

    /// `TLSv1.3`. If the peer has presented a certificate, its SHA-256 and its name follow.
    fn status(&self) -> String {
        let shared = lock(&self.0);
        if shared.conn.is_handshaking() {
            return "handshake".into();
        }
        let version = shared.conn.protocol_version().map_or(String::new(), |v| format!("{v:?}"));
        let version = version.replace('_', ".");
        match tls::proof(&shared.conn) {
            Proof::Certificate { name, fingerprint } => {
                format!("{version} {} {name}", tls::hex(&fingerprint))
            }
            _ => version,
        }
    }
}

/// Parses the peer's proof from a `status` with a line of this module. A truncated line gives none.
pub fn proof_in(status: &str) -> Proof {
    let lines = status.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
    let shown = lines.filter_map(|line| line.strip_prefix("tls ")).next_back();
    let mut words = shown.unwrap_or_default().splitn(3, ' ').skip(1);
    match words.next().and_then(tls::fingerprint).zip(words.next()) {
        Some((fingerprint, name)) => Proof::Certificate { name: name.into(), fingerprint },
        None => Proof::None,
    }
}

fn said(error: impl std::error::Error) -> Fault {
    Fault::new(error.to_string())
}
