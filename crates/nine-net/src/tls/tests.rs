//! TLS between two ends in one process, with an authority of its own.

use super::*;
use crate::Env;
use crate::rt::{Real, block_on};
use crate::socket::Socket;
use crate::transport::testing::{close, join, read, write};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer,
    ExtendedKeyUsagePurpose, IsCa, KeyIdMethod, KeyPair, RevokedCertParams, date_time_ymd,
};
use std::future::{pending, ready};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

/// An authority, and a directory for the files that it signs.
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

    /// Signs a certificate for `name` that is valid until `year`, and writes it and its key.
    fn sign(&self, file: &str, name: &str, year: i32) -> [u8; 32] {
        self.sign_with(file, name, |params| params.not_after = date_time_ymd(year, 1, 1))
    }

    /// The same with other parameters.
    fn sign_with(&self, file: &str, name: &str, change: impl Fn(&mut CertificateParams)) -> [u8; 32] {
        let mut params = CertificateParams::new([name.to_owned()]).expect("a name");
        change(&mut params);
        let key = KeyPair::generate().expect("a key");
        let made = params.signed_by(&key, &self.authority).expect("signed");
        std::fs::write(self.path(file), made.pem()).expect("written");
        secret(&self.path(&format!("{file}.key")), key.serialize_pem().as_bytes());
        cert::fingerprint(made.der())
    }

    /// Writes a revocation list with these serial numbers.
    fn revoke(&self, serials: &[u8]) {
        let revoked = |&serial: &u8| RevokedCertParams {
            serial_number: vec![serial].into(),
            revocation_time: date_time_ymd(2020, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let params = CertificateRevocationListParams {
            this_update: date_time_ymd(2020, 1, 1),
            // The age of a list does not matter.
            next_update: date_time_ymd(2020, 1, 2),
            crl_number: vec![1].into(),
            issuing_distribution_point: None,
            revoked_certs: serials.iter().map(revoked).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let list = params.signed_by(&self.authority).expect("signed");
        std::fs::write(self.path("crl"), list.pem().expect("PEM")).expect("written");
    }

    fn files(&self) -> TlsFiles {
        TlsFiles {
            cert: self.path("fs"),
            key: self.path("fs.key"),
            client_ca: Some(self.path("ca")),
            crl: None,
        }
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

/// Performs a handshake between a client and a server. The client dials `fs.lab`.
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
        // Pushes another module on top of it, and pops it.
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

/// Writes a key with the mode of a key file.
fn secret(path: &std::path::Path, text: &[u8]) {
    std::fs::write(path, text).expect("written");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(path, mode).expect("set");
}

#[test]
fn authorities_lists_and_keys_that_others_can_change_are_refused() {
    let set_mode = |path: &std::path::Path, mode| {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
        std::fs::set_permissions(path, mode).expect("set");
    };
    let lab = Lab::new();
    lab.sign("fs", "fs.lab", 4000);
    lab.revoke(&[]);
    let files = || TlsFiles { crl: Some(lab.path("crl")), ..lab.files() };
    let new = || ServerTls::new(files(), ClientAuth::Optional, Duration::ZERO, Real.wall());
    assert!(new().is_ok());
    for name in ["ca", "crl"] {
        set_mode(&lab.path(name), 0o666);
        let e = text(new());
        assert!(e.contains(&format!("/{name}: others can change who may do what")), "{e}");
        set_mode(&lab.path(name), 0o644);
    }
    set_mode(lab.dir.path(), 0o777);
    let e = text(new());
    assert!(e.contains("/fs.key: others can replace this file in its directory"), "{e}");
    // The files of a client's trust are not checked: they concern its user alone.
    lab.client(None);
    set_mode(lab.dir.path(), 0o700);
    // If a file in use gets such a mode, the old version stays in effect.
    let mut server = new().expect("good");
    set_mode(&lab.path("ca"), 0o666);
    std::fs::write(lab.path("ca"), lab.authority.pem() + "\n").expect("written");
    let version = server.look(Duration::from_secs(1), Real.wall());
    assert!(version == 1 && server.trouble().is_some_and(|why| why.contains("/ca: others can change")));
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
fn a_certificate_that_is_revoked_is_refused_from_then_on_and_judged_again() {
    let lab = Lab::new();
    lab.sign("fs", "fs.lab", 2999);
    for (file, serial) in [("glenda", 1), ("rob", 2)] {
        lab.sign_with(file, file, |params| params.serial_number = Some(vec![serial].into()));
    }
    lab.revoke(&[]);
    let files = TlsFiles { crl: Some(lab.path("crl")), ..lab.files() };
    let wall = Real.wall();
    let mut server = ServerTls::new(files, ClientAuth::Optional, Duration::ZERO, wall).expect("good");
    run(async || {
        let glenda = lab.client(Some("glenda"));
        let (_near, far) = met(&glenda, &mut server, Duration::ZERO).await;
        let shown = far.certificates();
        assert_eq!(server.judge().judge(&shown, wall), Ok(()));
        let before = server.look(Duration::ZERO, wall);
        lab.revoke(&[1]);
        assert!(server.look(Duration::from_secs(1), wall) > before);
        assert_eq!(server.judge().judge(&shown, wall), Err("was revoked".into()));
        let (near, far) = meet(&glenda, &mut server, Duration::from_secs(1)).await;
        assert!(text(far).ends_with("shows a certificate that was revoked"));
        let e = text(read(&mut near.expect("not judged yet")).await);
        assert!(e.ends_with("refuses our certificate: it was revoked"), "{e}");
        met(&lab.client(Some("rob")), &mut server, Duration::from_secs(1)).await;
        // A connection that lasts longer than its certificate.
        let later = Duration::from_secs(70_000_000_000);
        let (_near, far) = met(&lab.client(Some("rob")), &mut server, Duration::ZERO).await;
        let e = server.judge().judge(&far.certificates(), later);
        assert!(e.expect_err("expired").starts_with("has expired"));
        // An invalid list changes nothing.
        std::fs::write(lab.path("crl"), "nothing").expect("written");
        server.look(Duration::from_secs(2), wall);
        assert!(server.trouble().is_some_and(|e| e.contains("crl: no list of revoked certificates")));
        assert_eq!(server.judge().judge(&shown, wall), Err("was revoked".into()));
    });
    let other = Lab::new();
    other.revoke(&[]);
    let files = |crl| TlsFiles { crl: Some(crl), ..lab.files() };
    let new = |crl| ServerTls::new(files(crl), ClientAuth::Optional, Duration::ZERO, wall);
    // The other authority has the same name but another key: it would lock out all clients.
    let e = text(new(other.path("crl")));
    assert!(e.contains("crl: a list in it is not signed by the authority of its name in"), "{e}");
    lab.revoke(&[]);
    let mut server = new(lab.path("crl")).expect("good");
    let read = |path| std::fs::read_to_string(path).expect("read");
    let (ours, theirs) = (read(lab.path("crl")), read(other.path("crl")));
    std::fs::write(lab.path("crl"), theirs.clone()).expect("written");
    assert_eq!(server.look(Duration::from_secs(1), wall), 1);
    assert!(server.trouble().is_some_and(|e| e.contains("crl: a list in it is not signed")));
    // With both authorities each has a list, but it is undefined which of them is used.
    std::fs::write(lab.path("crl"), ours + &theirs).expect("written");
    std::fs::write(lab.path("ca"), read(lab.path("ca")) + &read(other.path("ca"))).expect("written");
    let e = text(new(lab.path("crl")));
    assert!(e.contains("ca: two authorities in it have one name and different keys"), "{e}");
    assert_eq!(server.look(Duration::from_secs(2), wall), 1);
    assert!(server.trouble().is_some_and(|e| e.contains("ca: two authorities in it have one name")));
    ServerTls::new(lab.files(), ClientAuth::Optional, Duration::ZERO, wall).expect("good without lists");
    let e = text(new(lab.path("none")));
    assert!(e.contains("none: No such file"), "{e}");
}

#[test]
fn a_list_is_of_an_authority_that_counts() {
    let (lab, mut params) = (Lab::new(), CertificateParams::default());
    lab.sign("fs", "fs.lab", 2999);
    lab.revoke(&[]);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(rcgen::DnType::CommonName, "another");
    let another = CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key"));
    std::fs::write(lab.path("ca"), another.expect("an authority").pem()).expect("written");
    let files = TlsFiles { crl: Some(lab.path("crl")), ..lab.files() };
    let e = text(ServerTls::new(files, ClientAuth::Optional, Duration::ZERO, Real.wall()));
    assert!(e.contains("crl: a list in it is of none of the authorities in"), "{e}");
}

#[test]
fn a_certificate_of_tomorrow_or_for_the_other_end_is_refused_in_words() {
    let lab = Lab::new();
    lab.sign("fs", "fs.lab", 2999);
    lab.sign_with("early", "glenda", |params| params.not_before = date_time_ymd(2998, 1, 1));
    let for_servers = |params: &mut CertificateParams| {
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    };
    lab.sign_with("server", "glenda", for_servers);
    run(async || {
        for (file, far_says, near_says) in [
            ("early", "shows a certificate that is good only in", "or is not good yet by the clock there"),
            ("server", "shows a certificate that is not for this end", "it is not one for clients"),
        ] {
            let mut server = lab.server(ClientAuth::Optional);
            let (near, far) = meet(&lab.client(Some(file)), &mut server, Duration::ZERO).await;
            let e = text(far);
            assert!(e.contains(far_says), "{e}");
            let e = text(read(&mut near.expect("not judged yet")).await);
            assert!(e.contains(near_says), "{e}");
        }
        lab.sign_with("fs", "fs.lab", |params| params.not_before = date_time_ymd(2998, 1, 1));
        let (near, _) = meet(&lab.client(None), &mut lab.server(ClientAuth::None), Duration::ZERO).await;
        let e = text(near);
        assert!(
            e.contains("shows a certificate that is good only in") && e.contains("is a clock wrong?"),
            "{e}"
        );
    });
}

#[test]
fn a_key_is_its_certificates_and_nobody_else_can_read_it() {
    use std::os::unix::fs::PermissionsExt;
    let lab = Lab::new();
    lab.sign("fs", "fs.lab", 2999);
    lab.sign("glenda", "glenda", 2999);
    let new = |key: &str| {
        let files = TlsFiles { key: lab.path(key), ..lab.files() };
        text(ServerTls::new(files, ClientAuth::None, Duration::ZERO, Real.wall()))
    };
    let ours = |cert: &str, key: &str| {
        let (cert, key) = (lab.path(cert), lab.path(key));
        text(ClientTls::new(&Trust::Ca(lab.path("ca")), Some((&cert, &key))))
    };
    for e in [new("glenda.key"), ours("fs", "glenda.key")] {
        assert!(e.contains("glenda.key: this key is not that of the certificate in"), "{e}");
    }
    for (text, said) in [
        ("hello", "no private key in PEM"),
        (
            "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n",
            "is encrypted",
        ),
    ] {
        secret(&lab.path("bad.key"), text.as_bytes());
        for e in [new("bad.key"), ours("fs", "bad.key")] {
            assert!(e.contains("bad.key: ") && e.contains(said), "{e}");
        }
    }
    let mode = |mode| {
        let permissions = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(lab.path("fs.key"), permissions).expect("set");
    };
    for open in [0o644, 0o604, 0o620, 0o602] {
        mode(open);
        for e in [new("fs.key"), ours("fs", "fs.key")] {
            assert!(e.contains("others can read or change this key; try: chmod 600"), "{open:o}: {e}");
        }
    }
    mode(0o400);
    ClientTls::new(&Trust::Ca(lab.path("ca")), Some((&lab.path("fs"), &lab.path("fs.key")))).expect("good");
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
        // A thousand years ahead, then back before the certificate was created: timers use neither.
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
        secret(&lab.path("fs.key"), &key);
        serves(good, Some("not that of the certificate")).await;
        std::fs::remove_file(lab.path("fs.key")).expect("removed");
        serves(good, Some("fs.key")).await;
        secret(&lab.path("fs.key"), &better_key);
        serves(better, None).await;
    });
}
