//! Who we are and whom we trust: certificates, keys and authorities in PEM files, made into what rustls
//! wants.
//!
//! In: paths. Out: [`ServerTls`], which follows its files as they are renewed, and [`ClientTls`].
//!
//! Always holds: ring is the only cryptography; nothing turns verification off; sessions are never resumed,
//! so that a certificate that has expired or lost its authority ends with its last connection. The system's
//! authorities are not consulted: a file server's clients know their own, or the very certificate.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, ServerConfig,
    SignatureScheme,
};

use super::cert;
use crate::end::tried;

/// The files of a server, in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// Its certificate and the intermediate ones after it.
    pub cert: PathBuf,
    /// The certificate's key.
    pub key: PathBuf,
    /// The authorities whose client certificates are good.
    pub client_ca: Option<PathBuf>,
}

/// Whether clients show certificates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientAuth {
    /// They are not asked.
    None,
    /// They may; one that is shown must be good.
    Optional,
    /// They must.
    Required,
}

/// How a client knows its server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trust {
    /// Its certificate is signed by one of the authorities in this PEM file and bears the name that was
    /// dialled.
    Ca(PathBuf),
    /// Its certificate has this SHA-256 (see [`fingerprint`]) and has not expired; its name does not matter.
    Pin([u8; 32]),
}

/// Reads a SHA-256 in hex, with or without colons, as `openssl x509 -fingerprint -sha256` prints it.
pub fn fingerprint(text: &str) -> Option<[u8; 32]> {
    let digits: Option<Vec<u8>> =
        text.chars().filter(|&c| c != ':').map(|c| c.to_digit(16).map(|d| d as u8)).collect();
    let bytes: Vec<u8> = digits?.chunks(2).map(|pair| pair.iter().fold(0, |byte, d| byte << 4 | d)).collect();
    // 63 digits make 32 bytes as well.
    bytes.try_into().ok().filter(|_| text.chars().filter(|&c| c != ':').count() == 64)
}

/// The server's side: its configuration, read again when the files change. One per listener and core.
#[derive(Debug)]
pub struct ServerTls {
    files: TlsFiles,
    auth: ClientAuth,
    config: Arc<ServerConfig>,
    stamps: [Stamp; 3],
    checked: Duration,
    trouble: Option<String>,
}

impl ServerTls {
    /// Reads the files. `now` is the monotonic time, `wall` the time since 1970. An expired certificate is an
    /// error.
    pub fn new(files: TlsFiles, auth: ClientAuth, now: Duration, wall: Duration) -> io::Result<ServerTls> {
        let stamps = stamps(&files);
        let config = server_config(&files, auth, wall)?;
        Ok(ServerTls { files, auth, config, stamps, checked: now, trouble: None })
    }

    /// Why the files as they are now are not in use, if they are not.
    pub fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    /// The configuration for the next connection. Looks at the files at most once a second; if they have
    /// changed but are not good, the old configuration stays and that is logged, once per change.
    pub(crate) fn config(&mut self, now: Duration, wall: Duration) -> Arc<ServerConfig> {
        if now.saturating_sub(self.checked) >= CHECK_EVERY {
            self.checked = now;
            let stamps = stamps(&self.files);
            if stamps != self.stamps {
                self.stamps = stamps;
                self.reread(wall);
            }
        }
        self.config.clone()
    }

    fn reread(&mut self, wall: Duration) {
        match server_config(&self.files, self.auth, wall) {
            Ok(config) => {
                tracing::info!("{}: the new certificate is in use", self.files.cert.display());
                self.config = config;
                self.trouble = None;
            }
            Err(e) => {
                tracing::warn!("the old certificate stays in use: {e}");
                self.trouble = Some(e.to_string());
            }
        }
    }
}

/// The client's side. Cheap to clone; make a new one for a dial that shall see renewed files.
#[derive(Clone, Debug)]
pub struct ClientTls {
    pub(crate) config: Arc<ClientConfig>,
}

impl ClientTls {
    /// Reads the files. `identity` is our own certificate and its key, for servers that ask.
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
                Arc::new(Pinned { fingerprint: *fingerprint, provider: provider.clone() })
            }
        };
        // ring has suites for both versions, which is all that can be refused here.
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        // The verifier above is as strict as rustls's own or stricter: `dangerous` names the door, not the
        // guest.
        let builder =
            builder.map_err(io::Error::other)?.dangerous().with_custom_certificate_verifier(verifier);
        let mut config = match identity {
            None => builder.with_no_client_auth(),
            Some((cert, key)) => builder
                .with_client_auth_cert(certificates(cert)?, private_key(key)?)
                .map_err(|e| tried(cert.display(), io::Error::other(e)))?,
        };
        config.resumption = Resumption::disabled();
        Ok(ClientTls { config: Arc::new(config) })
    }
}

fn server_config(files: &TlsFiles, auth: ClientAuth, wall: Duration) -> io::Result<Arc<ServerConfig>> {
    let certs = certificates(&files.cert)?;
    // `certificates` returns at least one.
    if let Some(end) = cert::not_after(&certs[0]).filter(|end| *end < wall) {
        let days = (wall - end).as_secs() / 86_400;
        return Err(invalid(&files.cert, &format!("the certificate expired {days} days ago; renew it")));
    }
    let key = private_key(&files.key)?;
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions();
    let builder = builder.map_err(io::Error::other)?;
    let builder = match (auth, &files.client_ca) {
        (ClientAuth::None, _) => builder.with_no_client_auth(),
        (_, None) => {
            return Err(invalid(&files.cert, "client certificates need a file of their authorities"));
        }
        (_, Some(ca)) => {
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(authorities(ca)?), provider);
            let verifier = match auth {
                ClientAuth::Required => verifier,
                _ => verifier.allow_unauthenticated(),
            };
            let verifier = verifier.build().map_err(|e| tried(ca.display(), io::Error::other(e)))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut config =
        builder.with_single_cert(certs, key).map_err(|e| tried(files.cert.display(), io::Error::other(e)))?;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

/// At least one certificate.
fn certificates(path: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let all = std::fs::read(path).map_err(|e| tried(path.display(), e))?;
    match CertificateDer::pem_slice_iter(&all).collect::<Result<Vec<_>, _>>() {
        Ok(certs) if !certs.is_empty() => Ok(certs),
        Ok(_) => Err(invalid(path, "no certificate in PEM is in this file")),
        Err(e) => Err(invalid(path, &e.to_string())),
    }
}

fn private_key(path: &Path) -> io::Result<PrivateKeyDer<'static>> {
    let all = std::fs::read(path).map_err(|e| tried(path.display(), e))?;
    PrivateKeyDer::from_pem_slice(&all).map_err(|e| invalid(path, &format!("no private key in PEM: {e}")))
}

fn authorities(path: &Path) -> io::Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for cert in certificates(path)? {
        roots.add(cert).map_err(|e| invalid(path, &e.to_string()))?;
    }
    Ok(roots)
}

fn invalid(path: &Path, why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{}: {why}", path.display()))
}

/// What a file was when we read it: time of change in seconds and nanoseconds, size, inode. None: not there.
type Stamp = Option<(i64, i64, u64, u64)>;

fn stamps(files: &TlsFiles) -> [Stamp; 3] {
    [Some(&files.cert), Some(&files.key), files.client_ca.as_ref()].map(|path| {
        let m = path?.metadata().ok()?;
        Some((m.mtime(), m.mtime_nsec(), m.size(), m.ino()))
    })
}

/// Takes the one certificate that has the fingerprint.
#[derive(Debug)]
struct Pinned {
    fingerprint: [u8; 32],
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Pinned {
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
        match cert::not_after(cert) {
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

/// How often a server looks whether its files have changed.
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
    }
}
