//! TLS over any transport, as a transport: rustls without I/O of its own, so that it needs no runtime.
//!
//! In: a [`Transport`], the files with our identity and trust, a deadline for the handshake. Out: a [`Tls`], whose peer
//! carries the proof of its certificate.
//!
//! Always holds: a `Tls` exists only after a complete handshake. An end without `close_notify` is an error, never a
//! regular end. The buffers of both directions have limits, and an idle connection buffers nothing.

mod cert;
mod files;

use std::future::{Future, poll_fn};
use std::io::{self, IoSlice, Read, Write};
use std::pin::pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustls::pki_types::ServerName;
use rustls::{AlertDescription, CertificateError, ClientConnection, Connection, Error, ServerConnection};

pub use cert::{Certificate, Revocations};
pub use files::{ClientAuth, ClientJudge, ClientTls, ServerTls, TlsFiles, Trust, fingerprint};

use crate::end::tried;
use crate::transport::{Peer, Proof, Transport};

/// A transport inside TLS. One task drives it. Call [`Transport::poll_flush`] after writing.
#[derive(Debug)]
pub struct Tls<T> {
    io: T,
    conn: Connection,
    peer: Peer,
    inbox: TlsInbox,
    closing: bool,
}

impl ServerTls {
    /// Performs the server's handshake on `io`, with the present certificate. `now` is the monotonic time, `wall` the
    /// time since 1970. Fails with `TimedOut` when `deadline` completes. The future borrows nothing, so many handshakes
    /// may run concurrently.
    pub fn accept<T: Transport, D: Future<Output = ()>>(
        &mut self,
        io: T,
        now: Duration,
        wall: Duration,
        deadline: D,
    ) -> impl Future<Output = io::Result<Tls<T>>> + use<T, D> {
        let conn = ServerConnection::new(self.config(now, wall)).map(Connection::from);
        handshake(io, conn.map_err(io::Error::other), deadline)
    }
}

impl ClientTls {
    /// Performs the client's handshake on `io` with the server dialled as `host`. Fails with `TimedOut` when `deadline`
    /// completes.
    ///
    /// A server of TLS 1.3 verifies our certificate after our handshake has ended: its refusal is the error of the
    /// first read.
    pub fn connect<T: Transport, D: Future<Output = ()>>(
        &self,
        io: T,
        host: &str,
        deadline: D,
    ) -> impl Future<Output = io::Result<Tls<T>>> + use<T, D> {
        let conn = server_name(host).and_then(|name| {
            ClientConnection::new(self.config.clone(), name).map(Connection::from).map_err(io::Error::other)
        });
        handshake(io, conn, deadline)
    }
}

/// The expected name of the server.
pub(crate) fn server_name(host: &str) -> io::Result<ServerName<'static>> {
    ServerName::try_from(host.to_owned())
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, format!("{host} is no name TLS can verify")))
}

async fn handshake<T: Transport>(
    io: T,
    conn: io::Result<Connection>,
    deadline: impl Future<Output = ()>,
) -> io::Result<Tls<T>> {
    let mut conn = conn?;
    conn.set_buffer_limit(Some(OUTBOX));
    let below = &io.peer().addr;
    let addr = below.strip_prefix("tcp!").map_or_else(|| below.clone(), |at| format!("tls!{at}"));
    let peer = Peer { addr, proof: Proof::None };
    let mut tls = Tls { io, conn, peer, inbox: TlsInbox::default(), closing: false };
    let mut deadline = pin!(deadline);
    poll_fn(|cx| match tls.poll_handshake(cx) {
        Poll::Pending => deadline.as_mut().poll(cx).map(|()| Err(tls.too_late())),
        done => done,
    })
    .await?;
    tls.peer.proof = match (proof(&tls.conn), &tls.io.peer().proof) {
        // A client of this machine without a certificate.
        (Proof::None, Proof::Loopback { uid }) => Proof::Loopback { uid: *uid },
        (proof, _) => proof,
    };
    Ok(tls)
}

/// The peer's proof after the handshake.
pub(crate) fn proof(conn: &Connection) -> Proof {
    let Some([first, ..]) = conn.peer_certificates() else { return Proof::None };
    let fingerprint = cert::fingerprint(first);
    let name = cert::name(first).unwrap_or_else(|| hex(&fingerprint));
    Proof::Certificate { name, fingerprint }
}

/// A fingerprint in hex.
pub(crate) fn hex(fingerprint: &[u8; 32]) -> String {
    fingerprint.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl<T: Transport> Transport for Tls<T> {
    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        loop {
            match self.conn.reader().read(buf) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => ready!(self.poll_pull(cx))?,
                Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => {
                    return Poll::Ready(Err(self.truncated()));
                }
                done => return Poll::Ready(done),
            }
        }
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        if self.closing {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        if bufs.iter().all(|b| b.is_empty()) {
            return Poll::Ready(Ok(0));
        }
        loop {
            let taken = self.conn.writer().write_vectored(bufs)?;
            let pushed = self.poll_push(cx)?;
            if taken > 0 {
                return Poll::Ready(Ok(taken));
            }
            ready!(pushed);
        }
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_push(cx))?;
        self.io.poll_flush(cx)
    }

    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.closing {
            self.closing = true;
            self.conn.send_close_notify();
        }
        ready!(self.poll_flush(cx))?;
        self.io.poll_close(cx)
    }

    fn poll_hangup(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.io.poll_hangup(cx)
    }

    fn certificates(&self) -> Vec<&[u8]> {
        self.conn.peer_certificates().unwrap_or_default().iter().map(|der| &**der).collect()
    }

    fn peer(&self) -> &Peer {
        &self.peer
    }
}

impl<T: Transport> Tls<T> {
    fn poll_handshake(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.poll_flush(cx))?;
            if !self.conn.is_handshaking() {
                return Poll::Ready(Ok(()));
            }
            ready!(self.poll_pull(cx))?;
        }
    }

    /// Reads more from below, until there is plaintext to read, a step of the handshake is done, or the end was read.
    fn poll_pull(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.inbox.is_empty() {
            let n = ready!(self.inbox.poll_fill(&mut self.io, cx))?;
            if n == 0 && self.conn.is_handshaking() {
                return Poll::Ready(Err(
                    self.error(io::ErrorKind::UnexpectedEof, "ended in the TLS handshake")
                ));
            }
        }
        loop {
            // The inbox is empty here only at the end, which this call reports to rustls.
            self.conn.read_tls(&mut self.inbox)?;
            let state = match self.conn.process_new_packets() {
                Ok(state) => state,
                Err(e) => {
                    // The alert explains the error to the peer, if it still reads. Our caller gets the error in any
                    // case.
                    let _ = self.poll_push(cx);
                    return Poll::Ready(Err(self.explained(e)));
                }
            };
            // A response of rustls itself (a key update) is sent now, or with the next write, which also reports a
            // failure.
            if !self.conn.is_handshaking() {
                let _ = self.poll_push(cx);
            }
            if self.inbox.is_empty() || state.plaintext_bytes_to_read() > 0 || state.peer_has_closed() {
                return Poll::Ready(Ok(()));
            }
        }
    }

    /// Writes all finished records to the transport.
    fn poll_push(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.conn.wants_write() {
            match self.conn.write_tls(&mut TransportWriter { io: &mut self.io, cx }) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Poll::Pending,
                done => done?,
            };
        }
        Poll::Ready(Ok(()))
    }

    fn truncated(&self) -> io::Error {
        self.error(
            io::ErrorKind::UnexpectedEof,
            "ended without saying so (no close_notify): something may be missing",
        )
    }

    fn too_late(&self) -> io::Error {
        self.error(io::ErrorKind::TimedOut, "took too long with the TLS handshake")
    }

    fn error(&self, kind: io::ErrorKind, what: &str) -> io::Error {
        io::Error::new(kind, format!("{} {what}", self.peer.addr))
    }

    /// Explains a rustls error to people: the fault, and its side.
    fn explained(&self, e: Error) -> io::Error {
        use io::ErrorKind::{InvalidData, PermissionDenied};
        let denied = |what: &str| self.error(PermissionDenied, what);
        match e {
            Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure) => {
                denied("shows another certificate than the pinned one")
            }
            Error::InvalidCertificate(ref fault) if let Some(said) = files::said(fault) => {
                denied(&format!("shows a certificate that {said}"))
            }
            Error::InvalidCertRevocationList(_) => {
                denied("cannot be judged: our list of revoked certificates is not signed by its authority")
            }
            Error::NoCertificatesPresented => denied("shows no certificate, and must"),
            // TLS has one alert for both cases.
            Error::AlertReceived(AlertDescription::CertificateExpired) => {
                denied("refuses our certificate: it has expired, or is not good yet by the clock there")
            }
            Error::AlertReceived(AlertDescription::CertificateRevoked) => {
                denied("refuses our certificate: it was revoked")
            }
            Error::AlertReceived(AlertDescription::UnknownCA) => {
                denied("refuses our certificate: it does not know its authority")
            }
            Error::AlertReceived(AlertDescription::DecryptError) => {
                denied("refuses our certificate: it knows an authority of this name, but with another key")
            }
            Error::AlertReceived(AlertDescription::UnsupportedCertificate) => {
                denied("refuses our certificate: it is not one for clients")
            }
            Error::AlertReceived(AlertDescription::CertificateRequired) => {
                denied("wants a certificate of ours and got none")
            }
            Error::InvalidMessage(_) => self.error(InvalidData, &format!("does not speak TLS: {e}")),
            Error::InvalidCertificate(_) | Error::AlertReceived(_) => {
                tried(&self.peer.addr, io::Error::new(PermissionDenied, e))
            }
            _ => tried(&self.peer.addr, io::Error::new(InvalidData, e)),
        }
    }
}

/// The transport below, as a writer for rustls.
struct TransportWriter<'a, 'c, T> {
    io: &'a mut T,
    cx: &'a mut Context<'c>,
}

impl<T: Transport> Write for TransportWriter<'_, '_, T> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(buf)])
    }

    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        match self.io.poll_write(self.cx, bufs) {
            Poll::Ready(done) => done,
            Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Bytes from below that rustls, which takes 4 KiB at a time, has not taken yet. It owns memory only while bytes
/// arrive.
#[derive(Debug, Default)]
struct TlsInbox {
    buf: Box<[u8]>,
    from: usize,
    to: usize,
}

impl TlsInbox {
    fn is_empty(&self) -> bool {
        self.from == self.to
    }

    fn poll_fill(&mut self, io: &mut impl Transport, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.buf.is_empty() {
            self.buf = vec![0; INBOX].into();
        }
        (self.from, self.to) = (0, 0);
        match io.poll_read(cx, &mut self.buf) {
            Poll::Ready(Ok(n)) => {
                self.to = n;
                Poll::Ready(Ok(n))
            }
            other => {
                self.buf = Box::default();
                other
            }
        }
    }
}

impl Read for TlsInbox {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = (&self.buf[self.from..self.to]).read(buf)?;
        self.from += n;
        Ok(n)
    }
}

/// Bytes read from below at once: two records. While it is not empty nothing more is read.
const INBOX: usize = 32 << 10;

/// Maximum number of bytes that rustls may buffer for output. Beyond it a write waits.
const OUTBOX: usize = 64 << 10;

#[cfg(test)]
mod tests;
