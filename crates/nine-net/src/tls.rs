//! TLS over any transport, as a transport: rustls driven by hand, so that it needs no runtime of its own.
//!
//! In: a [`Transport`], the files that say who we are and whom we trust, a deadline for the handshake. Out: a
//! [`Tls`], whose peer carries the proof of its certificate.
//!
//! Always holds: a `Tls` exists only after a complete handshake; an end without `close_notify` is an error,
//! never a clean end; what is held back in either direction has a limit, and an idle connection holds nothing
//! back.

mod cert;
mod files;

use std::future::{Future, poll_fn};
use std::io::{self, IoSlice, Read, Write};
use std::pin::pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustls::pki_types::ServerName;
use rustls::{AlertDescription, CertificateError, ClientConnection, Connection, Error, ServerConnection};

pub use files::{ClientAuth, ClientTls, ServerTls, TlsFiles, Trust, fingerprint};

use crate::end::tried;
use crate::transport::{Peer, Proof, Transport};

/// A transport inside TLS. One task drives it. Call [`Transport::poll_flush`] after writing.
#[derive(Debug)]
pub struct Tls<T> {
    io: T,
    conn: Connection,
    peer: Peer,
    inbox: Inbox,
    closing: bool,
}

impl ServerTls {
    /// The server's handshake on `io`, with the certificate as it is now. `now` is the monotonic time, `wall`
    /// the time since 1970; the handshake fails with `TimedOut` when `deadline` completes. The future borrows
    /// nothing: many handshakes may run beside each other.
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
    /// The client's handshake on `io` with the server that was dialled as `host`. Fails with `TimedOut` when
    /// `deadline` completes.
    ///
    /// A server of TLS 1.3 judges our certificate after our handshake has ended: its refusal is the first
    /// read's error.
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

/// The server that is expected.
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
    let mut tls = Tls { io, conn, peer, inbox: Inbox::default(), closing: false };
    let mut deadline = pin!(deadline);
    poll_fn(|cx| match tls.poll_handshake(cx) {
        Poll::Pending => deadline.as_mut().poll(cx).map(|()| Err(tls.too_late())),
        done => done,
    })
    .await?;
    tls.peer.proof = proof(&tls.conn);
    Ok(tls)
}

/// What the peer has shown of itself, after the handshake.
pub(crate) fn proof(conn: &Connection) -> Proof {
    let Some([first, ..]) = conn.peer_certificates() else { return Proof::None };
    let fingerprint = cert::fingerprint(first);
    let name = cert::name(first).unwrap_or_else(|| hex(&fingerprint));
    Proof::Certificate { name, fingerprint }
}

/// As people write it.
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

    /// Takes in more from below: until there is something to read, or a step of the handshake is done, or the
    /// end has been seen.
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
            // With an empty inbox, which only its end brings here, this tells rustls of the end.
            self.conn.read_tls(&mut self.inbox)?;
            let state = match self.conn.process_new_packets() {
                Ok(state) => state,
                Err(e) => {
                    // The peer is told why, if it listens; the error is what counts.
                    let _ = self.poll_push(cx);
                    return Poll::Ready(Err(self.explained(e)));
                }
            };
            // An answer of rustls's own (a new key) goes out now, or with the next write, which also tells of
            // a failure.
            if !self.conn.is_handshaking() {
                let _ = self.poll_push(cx);
            }
            if self.inbox.is_empty() || state.plaintext_bytes_to_read() > 0 || state.peer_has_closed() {
                return Poll::Ready(Ok(()));
            }
        }
    }

    /// Hands finished records down until none is left.
    fn poll_push(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.conn.wants_write() {
            match self.conn.write_tls(&mut Below { io: &mut self.io, cx }) {
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

    /// rustls's error for people: what is wrong, on which side.
    fn explained(&self, e: Error) -> io::Error {
        use io::ErrorKind::{InvalidData, PermissionDenied};
        let denied = |what: &str| self.error(PermissionDenied, what);
        match e {
            Error::InvalidCertificate(CertificateError::Expired) => {
                denied("shows a certificate that has expired")
            }
            Error::InvalidCertificate(CertificateError::ExpiredContext { time, not_after }) => {
                let days = time.as_secs().saturating_sub(not_after.as_secs()) / 86_400;
                denied(&format!("shows a certificate that has expired {days} days ago"))
            }
            // The second: an authority of the same name as ours, but with another key.
            Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature) => {
                denied("shows a certificate that none of our authorities has signed")
            }
            Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure) => {
                denied("shows another certificate than the pinned one")
            }
            Error::NoCertificatesPresented => denied("shows no certificate, and must"),
            Error::AlertReceived(AlertDescription::CertificateExpired) => {
                denied("refuses our certificate: it has expired")
            }
            Error::AlertReceived(AlertDescription::UnknownCA) => {
                denied("refuses our certificate: it does not know its authority")
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

/// The transport below, as rustls writes to it.
struct Below<'a, 'c, T> {
    io: &'a mut T,
    cx: &'a mut Context<'c>,
}

impl<T: Transport> Write for Below<'_, '_, T> {
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

/// Bytes from below that rustls, which takes 4 KiB at a time, has not taken yet. It owns memory only while
/// bytes come.
#[derive(Debug, Default)]
struct Inbox {
    buf: Box<[u8]>,
    from: usize,
    to: usize,
}

impl Inbox {
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

impl Read for Inbox {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = (&self.buf[self.from..self.to]).read(buf)?;
        self.from += n;
        Ok(n)
    }
}

/// What is read from below at once: two records. When it is full nothing more is read until rustls has taken
/// it.
const INBOX: usize = 32 << 10;

/// Bytes rustls may hold that are not yet written below. Beyond it a write waits.
const OUTBOX: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Env;
    use crate::rt::{Real, block_on};
    use crate::socket::Socket;
    use crate::transport::testing::{close, join, read, write};
    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, date_time_ymd};
    use std::future::{pending, ready};
    use std::os::unix::net::UnixStream;
    use std::path::PathBuf;

    /// An authority and a directory for what it signs.
    struct Lab {
        dir: tempfile::TempDir,
        authority: CertifiedIssuer<'static, KeyPair>,
    }

    impl Lab {
        fn new() -> Lab {
            let mut params = CertificateParams::default();
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            let key = KeyPair::generate().expect("a key");
            let authority = CertifiedIssuer::self_signed(params, key).expect("an authority");
            let dir = tempfile::tempdir().expect("a directory");
            std::fs::write(dir.path().join("ca"), authority.pem()).expect("written");
            Lab { dir, authority }
        }

        fn path(&self, name: &str) -> PathBuf {
            self.dir.path().join(name)
        }

        /// Signs a certificate for `name` that is good until `year`, and writes it and its key.
        fn sign(&self, file: &str, name: &str, year: i32) -> [u8; 32] {
            let mut params = CertificateParams::new([name.to_owned()]).expect("a name");
            params.not_after = date_time_ymd(year, 1, 1);
            let key = KeyPair::generate().expect("a key");
            let made = params.signed_by(&key, &self.authority).expect("signed");
            std::fs::write(self.path(file), made.pem()).expect("written");
            std::fs::write(self.path(&format!("{file}.key")), key.serialize_pem()).expect("written");
            cert::fingerprint(made.der())
        }

        fn files(&self) -> TlsFiles {
            TlsFiles { cert: self.path("fs"), key: self.path("fs.key"), client_ca: Some(self.path("ca")) }
        }

        fn server(&self, auth: ClientAuth) -> ServerTls {
            ServerTls::new(self.files(), auth, Duration::ZERO, Duration::ZERO).expect("good files")
        }

        fn client(&self, identity: Option<&str>) -> ClientTls {
            let identity = identity.map(|name| (self.path(name), self.path(&format!("{name}.key"))));
            let identity = identity.as_ref().map(|(cert, key)| (cert.as_path(), key.as_path()));
            ClientTls::new(&Trust::Ca(self.path("ca")), identity).expect("good files")
        }
    }

    fn pair() -> (Socket, Socket) {
        let (a, b) = UnixStream::pair().expect("a pair");
        let socket = |s: UnixStream| {
            s.set_nonblocking(true).expect("set");
            let peer = Peer { addr: "tcp!192.0.2.1!564".into(), proof: Proof::None };
            Socket::from_parts(s.into(), peer).expect("registered")
        };
        (socket(a), socket(b))
    }

    type Ends = (io::Result<Tls<Socket>>, io::Result<Tls<Socket>>);

    /// Shakes hands between a client and a server; the client dials `fs.lab`.
    async fn meet(client: &ClientTls, server: &mut ServerTls, now: Duration) -> Ends {
        let (near, far) = pair();
        let accept = server.accept(far, now, Real.wall(), pending());
        join(client.connect(near, "fs.lab", pending()), accept).await
    }

    async fn met(client: &ClientTls, server: &mut ServerTls, now: Duration) -> (Tls<Socket>, Tls<Socket>) {
        let (client, server) = meet(client, server, now).await;
        (client.expect("client"), server.expect("server"))
    }

    fn run<R>(test: impl AsyncFnOnce() -> R) -> R {
        block_on(async |_| test().await).expect("a runtime")
    }

    #[test]
    fn tls_is_pushed_on_a_conversation_that_runs_already() {
        use crate::modules::{TlsClient, TlsServer, modules};
        use crate::{Conversation, Env};
        let lab = Lab::new();
        lab.sign("fs", "fs.lab", 4000);
        let server = TlsServer {
            tls: std::sync::Arc::new(std::sync::Mutex::new(lab.server(ClientAuth::None))),
            clock: Real.clock(),
        };
        let ends = |host: &str| {
            let (near, far) = pair();
            let client = TlsClient { tls: lab.client(None), host: host.into() };
            let near = Conversation::new(near, modules().with("tls", client), Real.clock());
            (near, far)
        };
        let server = modules().with("tls", server);
        run(async || {
            let (mut near, far) = ends("fs.lab");
            let mut far = Conversation::new(far, server.clone(), Real.clock());
            write(&mut near, b"plain").await.expect("written");
            assert_eq!(read(&mut far).await.expect("read"), b"plain");
            far.control("push tls").expect("pushed");
            near.control("push tls").expect("pushed");
            let (sent, came) = join(write(&mut near, b"secret"), read(&mut far)).await;
            sent.expect("written");
            assert_eq!(came.expect("read"), b"secret");
            // Another module on top of it, and back again.
            for end in [&mut near, &mut far] {
                end.control("push zstd").expect("pushed");
            }
            let (sent, came) = join(write(&mut far, b"answer"), read(&mut near)).await;
            sent.expect("written");
            assert_eq!(came.expect("read"), b"answer");
            let (closed, end) = join(close(&mut near), read(&mut far)).await;
            closed.expect("closed");
            assert_eq!(end.expect("a good end"), b"");
        });
        run(async || {
            let (mut near, far) = ends("another.lab");
            let mut far = Conversation::new(far, server.clone(), Real.clock());
            far.control("push tls").expect("pushed");
            near.control("push tls").expect("pushed");
            let (here, there) = join(read(&mut near), read(&mut far)).await;
            let (here, there) = (text(here), text(there));
            assert!(here.starts_with("tls: invalid peer certificate"), "{here}");
            assert!(there.starts_with("tls: received fatal alert"), "the peer is told: {there}");
        });
        run(async || {
            let (mut near, mut far) = ends("fs.lab");
            near.control("push tls").expect("pushed");
            poll_fn(|cx| near.poll_flush(cx)).await.expect("sent");
            let _ = read(&mut far).await.expect("a greeting");
            write(&mut far, b"this is no TLS").await.expect("written");
            let here = text(read(&mut near).await);
            assert!(here.starts_with("tls: received corrupt message"), "{here}");
            drop(far);
            let (mut near, far) = ends("fs.lab");
            near.control("push tls").expect("pushed");
            drop(far);
            assert!(read(&mut near).await.is_err());
            assert!(near.control("push tls now").is_err());
        });
    }

    fn text<T>(result: io::Result<T>) -> String {
        result.err().expect("an error").to_string()
    }

    fn named(name: &str, fingerprint: [u8; 32]) -> Proof {
        Proof::Certificate { name: name.into(), fingerprint }
    }

    #[test]
    fn tls_mutual_auth_names_the_peer() {
        let lab = Lab::new();
        let (fs, glenda) = (lab.sign("fs", "fs.lab", 2999), lab.sign("glenda", "glenda.lab", 2999));
        run(async || {
            let mut server = lab.server(ClientAuth::Required);
            let (client, server) = met(&lab.client(Some("glenda")), &mut server, Duration::ZERO).await;
            assert_eq!(*client.peer(), Peer { addr: "tls!192.0.2.1!564".into(), proof: named("fs.lab", fs) });
            assert_eq!(server.peer().proof, named("glenda.lab", glenda));
        });
    }

    #[test]
    fn bytes_go_both_ways_and_end_with_close_notify() {
        let lab = Lab::new();
        lab.sign("fs", "fs.lab", 2999);
        run(async || {
            let mut server = lab.server(ClientAuth::None);
            let (mut client, mut server) = met(&lab.client(None), &mut server, Duration::ZERO).await;
            write(&mut client, b"there").await.expect("written");
            assert_eq!(read(&mut server).await.expect("read"), b"there");
            write(&mut server, b"back").await.expect("written");
            close(&mut server).await.expect("closed");
            assert_eq!(read(&mut client).await.expect("read"), b"back");
            assert_eq!(read(&mut client).await.expect("a clean end"), b"");
            assert!(write(&mut server, b"late").await.is_err());
        });
    }

    #[test]
    fn much_goes_through_little_buffers_and_an_idle_end_owns_none() {
        let lab = Lab::new();
        lab.sign("fs", "fs.lab", 2999);
        run(async || {
            let mut server = lab.server(ClientAuth::None);
            let (mut client, server) = met(&lab.client(None), &mut server, Duration::ZERO).await;
            let mut server: Box<dyn Transport> = Box::new(server);
            let data: Vec<u8> = (0..3_000_000u32).map(|n| (n % 251) as u8).collect();
            let send = async {
                write(&mut client, &data).await.expect("written");
                let idle = poll_fn(|cx| Poll::Ready(client.poll_read(cx, &mut [0; 8]))).await;
                assert!(idle.is_pending() && client.inbox.buf.is_empty());
            };
            let receive = async {
                let (mut got, mut buf) = (Vec::new(), [0; 5000]);
                while got.len() < data.len() {
                    let n = poll_fn(|cx| server.poll_read(cx, &mut buf)).await.expect("read");
                    got.extend_from_slice(&buf[..n]);
                }
                assert!(got == data);
            };
            join(send, receive).await;
        });
    }

    #[test]
    fn a_truncated_stream_is_an_error() {
        let lab = Lab::new();
        lab.sign("fs", "fs.lab", 2999);
        run(async || {
            let mut server = lab.server(ClientAuth::None);
            let (mut client, mut server) = met(&lab.client(None), &mut server, Duration::ZERO).await;
            write(&mut server, b"part").await.expect("written");
            drop(server);
            assert_eq!(read(&mut client).await.expect("read"), b"part");
            let e = read(&mut client).await.expect_err("cut");
            assert_eq!(e.kind(), io::ErrorKind::UnexpectedEof);
            assert!(e.to_string().contains("close_notify"), "{e}");
        });
    }

    #[test]
    fn a_client_without_certificate_is_anonymous_or_refused() {
        let lab = Lab::new();
        lab.sign("fs", "fs.lab", 2999);
        run(async || {
            let client = lab.client(None);
            let (_, server) = met(&client, &mut lab.server(ClientAuth::Optional), Duration::ZERO).await;
            assert_eq!(server.peer().proof, Proof::None);
            let (client, server) = meet(&client, &mut lab.server(ClientAuth::Required), Duration::ZERO).await;
            assert!(text(server).contains("shows no certificate"));
            let e = text(read(&mut client.expect("not judged yet")).await);
            assert!(e.contains("wants a certificate of ours"), "{e}");
        });
    }

    #[test]
    fn expired_certificate_is_refused() {
        let lab = Lab::new();
        lab.sign("fs", "fs.lab", 2999);
        lab.sign("old", "glenda.lab", 2020);
        run(async || {
            let (client, server) =
                meet(&lab.client(Some("old")), &mut lab.server(ClientAuth::Optional), Duration::ZERO).await;
            let e = text(server);
            assert!(e.contains("has expired") && e.contains("days ago"), "{e}");
            let e = text(read(&mut client.expect("not judged yet")).await);
            assert!(e.contains("refuses our certificate: it has expired"), "{e}");

            let pin = lab.sign("fs", "fs.lab", 2020);
            let e = text(ServerTls::new(lab.files(), ClientAuth::None, Duration::ZERO, Real.wall()));
            assert!(e.contains("expired") && e.contains("renew"), "{e}");
            for trust in [Trust::Ca(lab.path("ca")), Trust::Pin(pin)] {
                let client = ClientTls::new(&trust, None).expect("good");
                let (client, _) = meet(&client, &mut lab.server(ClientAuth::None), Duration::ZERO).await;
                let e = text(client);
                assert!(e.contains("has expired"), "{e}");
            }
        });
    }

    #[test]
    fn a_server_must_be_the_one_that_was_meant() {
        let (lab, other) = (Lab::new(), Lab::new());
        let pin = lab.sign("fs", "elsewhere.lab", 2999);
        run(async || {
            let mut server = lab.server(ClientAuth::None);
            let try_with = async |trust, server: &mut ServerTls| {
                meet(&ClientTls::new(&trust, None).expect("good"), server, Duration::ZERO).await.0
            };
            let e = text(try_with(Trust::Ca(other.path("ca")), &mut server).await);
            assert!(e.contains("none of our authorities"), "{e}");
            let e = text(try_with(Trust::Ca(lab.path("ca")), &mut server).await);
            assert!(e.contains("fs.lab") && e.contains("elsewhere.lab"), "{e}");
            let e = text(try_with(Trust::Pin([0; 32]), &mut server).await);
            assert!(e.contains("pinned"), "{e}");
            assert_eq!(
                try_with(Trust::Pin(pin), &mut server).await.expect("the pinned one").peer().proof,
                named("elsewhere.lab", pin)
            );
        });
    }

    #[test]
    fn a_handshake_ends_at_its_deadline_or_with_a_stranger() {
        let lab = Lab::new();
        lab.sign("fs", "fs.lab", 2999);
        run(async || {
            let mut server = lab.server(ClientAuth::None);
            let (mut near, far) = pair();
            let e = server.accept(far, Duration::ZERO, Duration::ZERO, ready(())).await.expect_err("silent");
            assert_eq!(e.kind(), io::ErrorKind::TimedOut);
            assert_eq!(read(&mut near).await.expect("closed"), b"");

            let (mut near, far) = pair();
            write(&mut near, b"\x13\0\0\0\x64\xff\xff\0\x20\0\0\x06\x009P2000").await.expect("written");
            let e = server.accept(far, Duration::ZERO, Duration::ZERO, pending()).await;
            assert!(text(e).contains("does not speak TLS"));

            let (near, far) = pair();
            drop(near);
            let e = server.accept(far, Duration::ZERO, Duration::ZERO, pending()).await.expect_err("gone");
            assert_eq!(e.kind(), io::ErrorKind::UnexpectedEof);
        });
    }

    #[test]
    fn rotated_certificate_is_used_without_dropping_sessions() {
        let lab = Lab::new();
        let before = lab.sign("fs", "fs.lab", 2999);
        run(async || {
            let mut server = lab.server(ClientAuth::None);
            let client = lab.client(None);
            let (mut old, mut far) = met(&client, &mut server, Duration::ZERO).await;

            let after = lab.sign("fs", "fs.lab", 2998);
            let (soon, _far) = met(&client, &mut server, Duration::from_millis(999)).await;
            assert_eq!(soon.peer().proof, named("fs.lab", before), "files are looked at once a second");
            let (new, _far) = met(&client, &mut server, Duration::from_secs(1)).await;
            assert_eq!(new.peer().proof, named("fs.lab", after));

            write(&mut old, b"still here").await.expect("written");
            assert_eq!(read(&mut far).await.expect("read"), b"still here");
        });
    }

    #[test]
    fn a_wall_clock_that_steps_changes_nothing_for_those_who_are_in() {
        let lab = Lab::new();
        lab.sign("fs", "fs.lab", 2999);
        run(async || {
            let (mut server, client) = (lab.server(ClientAuth::None), lab.client(None));
            let (mut old, mut far) = met(&client, &mut server, Duration::ZERO).await;
            // A thousand years on, then back before the certificate was made: timers know neither.
            lab.sign("fs", "fs.lab", 2998);
            server.config(Duration::from_secs(1), Duration::from_secs(60_000_000_000));
            assert!(server.trouble().is_some_and(|trouble| trouble.contains("expired")));
            lab.sign("fs", "fs.lab", 2997);
            server.config(Duration::from_secs(2), Duration::ZERO);
            assert_eq!(server.trouble(), None);
            write(&mut old, b"still here").await.expect("written");
            assert_eq!(read(&mut far).await.expect("read"), b"still here");
        });
    }

    #[test]
    fn a_bad_new_certificate_leaves_the_old_one_in_use() {
        let lab = Lab::new();
        let good = lab.sign("fs", "fs.lab", 2999);
        run(async || {
            let (mut server, client) = (lab.server(ClientAuth::None), lab.client(None));
            let mut second = 0;
            let mut serves = async |expected, trouble: Option<&str>| {
                second += 1;
                let (tls, _far) = met(&client, &mut server, Duration::from_secs(second)).await;
                assert_eq!(tls.peer().proof, named("fs.lab", expected));
                let found = server.trouble().unwrap_or_default();
                assert!(
                    found.contains(trouble.unwrap_or_default()) && found.is_empty() == trouble.is_none(),
                    "{found}"
                );
            };
            lab.sign("fs", "fs.lab", 2020);
            serves(good, Some("expired")).await;
            std::fs::write(lab.path("fs"), "half a cert").expect("written");
            serves(good, Some("no certificate")).await;
            let key = std::fs::read(lab.path("fs.key")).expect("read");
            let better = lab.sign("fs", "fs.lab", 2997);
            let better_key = std::fs::read(lab.path("fs.key")).expect("read");
            std::fs::write(lab.path("fs.key"), key).expect("written");
            serves(good, Some("keys")).await;
            std::fs::remove_file(lab.path("fs.key")).expect("removed");
            serves(good, Some("fs.key")).await;
            std::fs::write(lab.path("fs.key"), better_key).expect("written");
            serves(better, None).await;
        });
    }
}
