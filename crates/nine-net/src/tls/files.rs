//! Loads our identity and trust from PEM files: certificates, keys and authorities, as rustls configurations.
//!
//! In: paths. Out: [`ServerTls`], which reloads its files when they change, and [`ClientTls`].
//!
//! Always holds: ring is the only cryptography. Nothing turns verification off. Sessions are never resumed, so that an
//! expired or distrusted certificate ends with its last connection. The system's authorities are not used: clients of a
//! file server know its authority, or its certificate.

use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::OFlags;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, ServerConfig,
    SignatureScheme,
};

use super::cert;
use crate::end::tried;
use crate::rights::open_rights;

/// The files of a server, in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate, followed by its intermediates.
    pub cert: PathBuf,
    /// The certificate's key.
    pub key: PathBuf,
    /// The authorities of accepted client certificates.
    pub client_ca: Option<PathBuf>,
    /// Their revocation lists. If given, each authority that has signed a client's certificate must have a list here.
    /// The age of a list does not matter.
    pub crl: Option<PathBuf>,
}

/// Whether clients present certificates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientAuth {
    /// They are not asked for one.
    None,
    /// Optional; a presented one must be valid.
    Optional,
    /// Required.
    Required,
}

/// How a client verifies its server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trust {
    /// The certificate must be signed by an authority in this PEM file, and valid for the dialled name.
    Ca(PathBuf),
    /// The certificate must have this SHA-256 (see [`fingerprint`]) and not be expired. Its name does not matter.
    Pin([u8; 32]),
}

/// Parses a SHA-256 in hex, with or without colons, as `openssl x509 -fingerprint -sha256` prints it.
pub fn fingerprint(text: &str) -> Option<[u8; 32]> {
    let digits: Option<Vec<u8>> =
        text.chars().filter(|&c| c != ':').map(|c| c.to_digit(16).map(|d| d as u8)).collect();
    let bytes: Vec<u8> = digits?.chunks(2).map(|pair| pair.iter().fold(0, |byte, d| byte << 4 | d)).collect();
    // 63 digits would give 32 bytes as well.
    bytes.try_into().ok().filter(|_| text.chars().filter(|&c| c != ':').count() == 64)
}

/// The server's configuration, reloaded when the files change. One per listener and core.
#[derive(Debug)]
pub struct ServerTls {
    files: TlsFiles,
    auth: ClientAuth,
    made: LoadedTls,
    /// How often the files were loaded.
    version: u64,
    stamps: [CertFileStamp; 4],
    checked: Duration,
    trouble: Option<String>,
}

/// The result of loading the files.
#[derive(Clone, Debug)]
struct LoadedTls {
    config: Arc<ServerConfig>,
    /// Verifies client certificates, if they are requested.
    judge: Option<Arc<dyn ClientCertVerifier>>,
}

impl ServerTls {
    /// Loads the files. `now` is the monotonic time, `wall` the time since 1970. An expired certificate is an error.
    pub fn new(files: TlsFiles, auth: ClientAuth, now: Duration, wall: Duration) -> io::Result<ServerTls> {
        let stamps = stamps(&files);
        let made = LoadedTls::of(&files, auth, wall)?;
        Ok(ServerTls { files, auth, made, version: 1, stamps, checked: now, trouble: None })
    }

    /// Why the present files are not in use, if so.
    pub fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    /// The configuration for the next connection.
    pub(crate) fn config(&mut self, now: Duration, wall: Duration) -> Arc<ServerConfig> {
        self.look(now, wall);
        self.made.config.clone()
    }

    /// Checks the files, at most once a second, and loads changed ones. If they are invalid, the old configuration
    /// stays in use and a warning is logged, once per change. Returns a number that grows with each reload.
    pub fn look(&mut self, now: Duration, wall: Duration) -> u64 {
        if now.saturating_sub(self.checked) >= CHECK_EVERY {
            self.checked = now;
            let stamps = stamps(&self.files);
            if stamps != self.stamps {
                self.stamps = stamps;
                self.reread(wall);
            }
        }
        self.version
    }

    /// A verifier for client certificates, by the files in use.
    pub fn judge(&self) -> ClientJudge {
        ClientJudge(self.made.judge.clone())
    }

    fn reread(&mut self, wall: Duration) {
        match LoadedTls::of(&self.files, self.auth, wall) {
            Ok(made) => {
                let lists = if self.files.crl.is_some() { ", and what is revoked now," } else { "" };
                tracing::info!(
                    "{}: the certificate as it is now{lists} is in use",
                    self.files.cert.display()
                );
                self.made = made;
                self.version += 1;
                self.trouble = None;
            }
            Err(e) => {
                tracing::warn!("the certificate stays in use as it was: {e}");
                self.trouble = Some(e.to_string());
            }
        }
    }
}

/// Verifies client certificates, if they are requested, by a fixed version of the files. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ClientJudge(Option<Arc<dyn ClientCertVerifier>>);

impl ClientJudge {
    /// Verifies the certificates that a client has presented, its own first. The error is the fault, as a phrase after
    /// "a certificate that".
    pub fn judge(&self, shown: &[&[u8]], wall: Duration) -> Result<(), String> {
        let (Some(judge), [own, others @ ..]) = (&self.0, shown) else { return Ok(()) };
        let der = |bytes: &&[u8]| CertificateDer::from(bytes.to_vec());
        let others: Vec<_> = others.iter().map(der).collect();
        let now = UnixTime::since_unix_epoch(wall);
        match judge.verify_client_cert(&der(own), &others, now) {
            Ok(_) => Ok(()),
            Err(Error::InvalidCertificate(fault)) => {
                Err(said(&fault).unwrap_or_else(|| format!("is not good: {fault:?}")))
            }
            Err(error) => Err(format!("cannot be judged: {error}")),
        }
    }
}

/// The client's configuration. Cheap to clone. It does not reload files: create a new one for that.
#[derive(Clone, Debug)]
pub struct ClientTls {
    pub(crate) config: Arc<ClientConfig>,
}

impl ClientTls {
    /// Loads the files. `identity` is our own certificate and its key, for servers that request one.
    pub fn new(trust: &Trust, identity: Option<(&Path, &Path)>) -> io::Result<ClientTls> {
        let provider = Arc::new(ring::default_provider());
        let verifier: Arc<dyn ServerCertVerifier> = match trust {
            Trust::Ca(path) => {
                let roots = Arc::new(authorities(path)?);
                WebPkiServerVerifier::builder_with_provider(roots, provider.clone())
                    .build()
                    .map_err(|e| tried(path.display(), io::Error::other(e)))?
            }
            Trust::Pin(fingerprint) => {
                Arc::new(PinnedVerifier { fingerprint: *fingerprint, provider: provider.clone() })
            }
        };
        // This fails only without cipher suites, and ring has suites for both versions.
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        // The verifier above is at least as strict as rustls's own. Only the name of this method says `dangerous`.
        let builder =
            builder.map_err(io::Error::other)?.dangerous().with_custom_certificate_verifier(verifier);
        let mut config = match identity {
            None => builder.with_no_client_auth(),
            Some((cert, key)) => {
                let own = builder.with_client_auth_cert(certificates(cert)?, private_key(key)?);
                own.map_err(|e| not_a_pair(cert, key, e))?
            }
        };
        config.resumption = Resumption::disabled();
        Ok(ClientTls { config: Arc::new(config) })
    }
}

impl LoadedTls {
    fn of(files: &TlsFiles, auth: ClientAuth, wall: Duration) -> io::Result<LoadedTls> {
        let certs = certificates(&files.cert)?;
        // `certificates` returns at least one.
        if let Some((from, until)) = cert::times(&certs[0]) {
            if until < wall {
                let ago = days(wall - until);
                return Err(invalid(&files.cert, &format!("the certificate expired {ago} ago; renew it")));
            }
            if wall < from {
                // The clock may be set only later.
                let (at, left) = (files.cert.display(), days(from - wall));
                tracing::warn!(
                    "{at}: the certificate is good only in {left}; is the clock of this machine right?"
                );
            }
        }
        let key = private_key(&files.key)?;
        read_rights(&files.key)?;
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone());
        let builder = builder.with_safe_default_protocol_versions().map_err(io::Error::other)?;
        let judge = match (auth, &files.client_ca) {
            (ClientAuth::None, _) => None,
            (_, None) => {
                return Err(invalid(&files.cert, "client certificates need a file of their authorities"));
            }
            (_, Some(ca)) => Some(judge(ca, files.crl.as_deref(), auth, provider)?),
        };
        let builder = match &judge {
            None => builder.with_no_client_auth(),
            Some(judge) => builder.with_client_cert_verifier(judge.clone()),
        };
        let config = builder.with_single_cert(certs, key);
        let mut config = config.map_err(|e| not_a_pair(&files.cert, &files.key, e))?;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(LoadedTls { config: Arc::new(config), judge })
    }
}

/// Creates a verifier for client certificates from files of authorities and revocation lists.
fn judge(
    ca: &Path,
    crl: Option<&Path>,
    auth: ClientAuth,
    provider: Arc<CryptoProvider>,
) -> io::Result<Arc<dyn ClientCertVerifier>> {
    // A user who can change these files can authenticate as any client.
    let authorities = certificates_in(ca, &read_rights(ca)?)?;
    let roots = Arc::new(roots(ca, authorities.clone())?);
    let mut judge = WebPkiClientVerifier::builder_with_provider(roots, provider.clone());
    if let Some(crl) = crl {
        let lists = revocations_in(crl, &read_rights(crl)?)?;
        let is_known = |list: &CertificateRevocationListDer<'_>| {
            let issuer = cert::list_issuer(list);
            issuer.is_some() && authorities.iter().any(|authority| cert::subject(authority) == issuer)
        };
        if !lists.iter().all(is_known) {
            let why = format!("a list in it is of none of the authorities in {}", ca.display());
            return Err(invalid(crl, &why));
        }
        // Of several lists or authorities with one name rustls uses the first. It would refuse all clients of the
        // others.
        let has_signed = |list: &CertificateRevocationListDer<'_>| {
            let issuer = cert::list_issuer(list);
            let mut of_name = authorities.iter().filter(|authority| cert::subject(authority) == issuer);
            of_name.any(|authority| is_signed(list, authority, &provider))
        };
        if !lists.iter().all(has_signed) {
            let ca = ca.display();
            let why =
                format!("a list in it is not signed by the authority of its name in {ca}, but by another");
            return Err(invalid(crl, &why));
        }
        let rivals = |(n, one): (usize, &CertificateDer<'_>)| {
            let (name, key) = (cert::subject(one), cert::public_key(one));
            let is_rival = |other| cert::subject(other) == name && cert::public_key(other) != key;
            authorities[..n].iter().any(|other| is_rival(other))
        };
        if authorities.iter().enumerate().any(rivals) {
            let why = "two authorities in it have one name and different keys, and their lists of revoked \
                       certificates cannot be told apart; make one with another name";
            return Err(invalid(ca, why));
        }
        judge = judge.with_crls(lists).only_check_end_entity_revocation();
    }
    if auth != ClientAuth::Required {
        judge = judge.allow_unauthenticated();
    }
    let at = crl.unwrap_or(ca);
    judge.build().map_err(|e| tried(at.display(), io::Error::other(e)))
}

/// Reads a file that only root and this user can change or replace.
fn read_rights(path: &Path) -> io::Result<Vec<u8>> {
    let refused = |why| io::Error::new(io::ErrorKind::PermissionDenied, format!("{}: {why}", path.display()));
    let mut all = Vec::new();
    open_rights(path).map_err(refused)?.read_to_end(&mut all).map_err(|e| tried(path.display(), e))?;
    Ok(all)
}

/// Whether this authority's key has signed the list.
fn is_signed(list: &[u8], authority: &[u8], provider: &CryptoProvider) -> bool {
    let (Some(list), Some((kind, key))) = (cert::signed(list), cert::public_key(authority)) else {
        return false;
    };
    let mut algorithms = provider.signature_verification_algorithms.all.iter();
    algorithms.any(|algorithm| {
        *algorithm.public_key_alg_id() == *kind
            && *algorithm.signature_alg_id() == *list.algorithm
            && algorithm.verify_signature(key, list.message, list.signature).is_ok()
    })
}

/// The fault of a certificate, as a phrase after "a certificate that".
pub(super) fn said(fault: &CertificateError) -> Option<String> {
    Some(match fault {
        CertificateError::Expired => "has expired".into(),
        CertificateError::ExpiredContext { time, not_after } => {
            let ago = Duration::from_secs(time.as_secs().saturating_sub(not_after.as_secs()));
            format!("has expired {} ago", days(ago))
        }
        CertificateError::NotValidYet => "is not good yet; is a clock wrong?".into(),
        CertificateError::NotValidYetContext { time, not_before } => {
            let left = Duration::from_secs(not_before.as_secs().saturating_sub(time.as_secs()));
            format!("is good only in {}; is a clock wrong?", days(left))
        }
        // `BadSignature`: an authority of the same name as ours, but with another key.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "none of our authorities has signed".into()
        }
        CertificateError::Revoked => "was revoked".into(),
        CertificateError::UnknownRevocationStatus => {
            "is of an authority whose list of revoked certificates we do not have".into()
        }
        CertificateError::NotValidForNameContext { expected, presented } => {
            // `DnsName("fs.lab")`
            let bare = |name: &String| name.split('"').nth(1).unwrap_or(name).to_owned();
            let presented: Vec<_> = presented.iter().map(bare).collect();
            let is_for = if presented.is_empty() { "no name".into() } else { presented.join(", ") };
            format!("is for {is_for}, not for {}", expected.to_str())
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "is not for this end: a server's is none for a client, nor a client's for a server".into()
        }
        CertificateError::BadEncoding => "cannot be read".into(),
        _ => return None,
    })
}

/// A time for people, rounded down.
fn days(time: Duration) -> String {
    match (time.as_secs() / 86_400, time.as_secs() / 3600, time.as_secs() / 60) {
        (0, 0, 0) => format!("{} s", time.as_secs()),
        (0, 0, minutes) => format!("{minutes} min"),
        (0, hours, _) => format!("{hours} h"),
        (days, ..) => format!("{days} days"),
    }
}

fn not_a_pair(cert: &Path, key: &Path, e: Error) -> io::Error {
    match e {
        Error::InconsistentKeys(_) => {
            invalid(key, &format!("this key is not that of the certificate in {}", cert.display()))
        }
        e => tried(cert.display(), io::Error::other(e)),
    }
}

/// Reads a regular file and its metadata. Never waits for the writer of a pipe.
fn read(path: &Path) -> io::Result<(Vec<u8>, Metadata)> {
    let tried = |e| tried(path.display(), e);
    let flags = OFlags::NONBLOCK.bits() as i32;
    let mut file = File::options().read(true).custom_flags(flags).open(path).map_err(tried)?;
    let meta = file.metadata().map_err(tried)?;
    if !meta.is_file() {
        return Err(invalid(path, "a regular file is due"));
    }
    let mut all = Vec::new();
    file.read_to_end(&mut all).map_err(tried)?;
    Ok((all, meta))
}

/// Reads at least one certificate.
pub(super) fn certificates(path: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    certificates_in(path, &read(path)?.0)
}

fn certificates_in(path: &Path, all: &[u8]) -> io::Result<Vec<CertificateDer<'static>>> {
    match CertificateDer::pem_slice_iter(all).collect::<Result<Vec<_>, _>>() {
        Ok(certs) if !certs.is_empty() => Ok(certs),
        Ok(_) => Err(invalid(path, "no certificate in PEM is in this file")),
        Err(e) => Err(invalid(path, &e.to_string())),
    }
}

/// Reads at least one revocation list.
pub(super) fn revocations(path: &Path) -> io::Result<Vec<CertificateRevocationListDer<'static>>> {
    revocations_in(path, &read(path)?.0)
}

fn revocations_in(path: &Path, all: &[u8]) -> io::Result<Vec<CertificateRevocationListDer<'static>>> {
    match CertificateRevocationListDer::pem_slice_iter(all).collect::<Result<Vec<_>, _>>() {
        Ok(lists) if !lists.is_empty() => Ok(lists),
        Ok(_) => Err(invalid(path, "no list of revoked certificates (X509 CRL) in PEM is in this file")),
        Err(e) => Err(invalid(path, &e.to_string())),
    }
}

/// Reads a key that no other user can read. A group may read a key of root, as distributions set it up.
fn private_key(path: &Path) -> io::Result<PrivateKeyDer<'static>> {
    let (all, meta) = read(path)?;
    let allowed = if meta.uid() == 0 { 0o740 } else { 0o700 };
    if meta.mode() & 0o777 & !allowed != 0 {
        let why = format!("others can read or change this key; try: chmod 600 {}", path.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, format!("{}: {why}", path.display())));
    }
    PrivateKeyDer::from_pem_slice(&all).map_err(|e| {
        if all.windows(LOCKED.len()).any(|part| part == LOCKED) {
            return invalid(path, "this key is encrypted; a program that starts by itself needs it plain");
        }
        invalid(path, &format!("no private key in PEM: {e}"))
    })
}

fn authorities(path: &Path) -> io::Result<RootCertStore> {
    roots(path, certificates(path)?)
}

fn roots(path: &Path, authorities: Vec<CertificateDer<'static>>) -> io::Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for cert in authorities {
        roots.add(cert).map_err(|e| invalid(path, &e.to_string()))?;
    }
    Ok(roots)
}

pub(super) fn invalid(path: &Path, why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{}: {why}", path.display()))
}

/// The state of a file when it was read: mtime in seconds and nanoseconds, size, inode. `None`: it does not exist.
type CertFileStamp = Option<(i64, i64, u64, u64)>;

fn stamps(files: &TlsFiles) -> [CertFileStamp; 4] {
    [Some(&files.cert), Some(&files.key), files.client_ca.as_ref(), files.crl.as_ref()].map(|path| {
        let m = path?.metadata().ok()?;
        Some((m.mtime(), m.mtime_nsec(), m.size(), m.ino()))
    })
}

/// Accepts the one certificate with this fingerprint.
#[derive(Debug)]
struct PinnedVerifier {
    fingerprint: [u8; 32],
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for PinnedVerifier {
    fn verify_server_cert(
        &self,
        cert: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if cert::fingerprint(cert) != self.fingerprint {
            return Err(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure));
        }
        match cert::times(cert).map(|(_, until)| until) {
            Some(end) if now.as_secs() <= end.as_secs() => Ok(ServerCertVerified::assertion()),
            Some(end) => {
                let not_after = UnixTime::since_unix_epoch(end);
                Err(Error::InvalidCertificate(CertificateError::ExpiredContext { time: now, not_after }))
            }
            None => Err(Error::InvalidCertificate(CertificateError::BadEncoding)),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// A PEM key that is encrypted contains this.
const LOCKED: &[u8] = b"ENCRYPTED";

/// The interval between checks for changed files.
const CHECK_EVERY: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprints_are_read_as_openssl_prints_them() {
        let colons = ["AB"; 32].join(":");
        assert_eq!(fingerprint(&colons), Some([0xab; 32]));
        assert_eq!(fingerprint(&"ab".repeat(32)), Some([0xab; 32]));
        assert_eq!(fingerprint(&"a".repeat(63)), None);
        assert_eq!(fingerprint(&"g".repeat(64)), None);
    }

    #[test]
    fn errors_name_the_file() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("ca.pem");
        let error = || ClientTls::new(&Trust::Ca(path.clone()), None).expect_err("not good").to_string();
        assert!(error().contains("ca.pem: No such file"), "{}", error());
        std::fs::write(&path, "hello").expect("written");
        assert!(error().contains("ca.pem: no certificate"), "{}", error());
        std::fs::remove_file(&path).expect("removed");
        // The pipe has no writer.
        let (at, mode) = (rustix::fs::CWD, rustix::fs::Mode::from(0o600));
        rustix::fs::mknodat(at, &path, rustix::fs::FileType::Fifo, mode, 0).expect("made");
        assert!(error().contains("ca.pem: a regular file is due"), "{}", error());
        let error = private_key(&path).expect_err("no key").to_string();
        assert!(error.contains("ca.pem: a regular file is due"), "{error}");
    }
}
