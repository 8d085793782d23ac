//! The directory of a private certificate authority: its certificate and key, issued certificates, and revocations.
//!
//! ```text
//! authority.pem               its certificate: for every server and client
//! authority.key               its key, which stays here
//! revoked.pem                 its list of revoked certificates (CRL): for every server
//! servers/NAME/, clients/USER/  authority.pem, cert.pem, key.pem: what is copied to whom it is for
//! old/                        what was renewed or revoked
//! ```
//!
//! Always holds: keys have mode 0600 and directories 0700. Each visible step is one rename, so an interrupted command
//! leaves either the old state or the new one. Only one command works in the directory at a time. No file is
//! overwritten except `revoked.pem`; its new version has all entries of the old one.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use nine_net::{Certificate, Env, Revocations, rt};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType, ExtendedKeyUsagePurpose,
    IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams, SanType, date_time_ymd,
};
use rustix::fs::{CWD, FlockOperation, RenameFlags, flock, renameat_with};

use crate::serve::token;

/// An open authority.
pub struct Keys {
    dir: PathBuf,
    /// Lock on the directory, held until drop.
    _lock: File,
    /// The authority's own certificate.
    pub authority: Certificate,
}

/// The kind of holder of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Server,
    Client,
}

/// A server or client that has a certificate or had one.
pub struct Holder {
    pub kind: Kind,
    pub name: String,
    /// The directory with the certificate.
    pub dir: PathBuf,
    /// The certificate was renewed, or was revoked and archived.
    pub old: bool,
    /// The parsed certificate, or the reason why it cannot be read.
    pub says: Result<Certificate>,
}

impl Kind {
    /// Returns the directory of all holders of this kind.
    pub fn dir(self) -> &'static str {
        match self {
            Self::Server => "servers",
            Self::Client => "clients",
        }
    }

    /// Returns the word for one holder of this kind.
    pub fn word(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Client => "client",
        }
    }
}

impl Keys {
    /// Creates the authority and its directory, which must not exist.
    pub fn init(dir: &Path, name: &str, days: u32) -> Result<Self> {
        let shown = || dir.display().to_string();
        if name.is_empty() || name.len() > NAME_MAX || name.contains(char::is_control) {
            bail!("--name: an authority's name has 1 to {NAME_MAX} bytes, and no control characters");
        }
        if dir.symlink_metadata().is_ok() {
            bail!(
                "{}: it is there already, and nothing is changed; --dir DIR makes another authority",
                shown()
            );
        }
        let key = KeyPair::generate()?;
        let mut params = authority_params(name);
        last(&mut params, days, None);
        params.serial_number = Some(serial().into());
        let cert = params.self_signed(&key)?;
        let list = list(&Issuer::from_params(&params, &key), &[])?;
        let (Some(parent), Some(last)) = (dir.parent(), dir.file_name()) else {
            bail!("{}: a directory of a name of its own is due", shown())
        };
        let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        fs::create_dir_all(parent).with_context(|| parent.display().to_string())?;
        let made = parent.join(format!(".{}.new", last.to_string_lossy()));
        new_dir(&made)?;
        put(&made, KEY_OF_AUTHORITY, SECRET, &key.serialize_pem())?;
        put(&made, AUTHORITY, PUBLIC, &cert.pem())?;
        put(&made, REVOKED, PUBLIC, &list)?;
        for below in [Kind::Server.dir(), Kind::Client.dir(), OLD] {
            DirBuilder::new().mode(0o700).create(made.join(below)).with_context(shown)?;
        }
        come(&made, dir).with_context(shown)?;
        Self::open(dir)
    }

    /// Opens the authority in this directory. Blocks while another command works there.
    pub fn open(dir: &Path) -> Result<Self> {
        let shown = || dir.display().to_string();
        let lock = File::open(dir).map_err(|error| match error.kind() {
            ErrorKind::NotFound => {
                anyhow!("{}: no authority is here; `ninefold keys init` makes one", shown())
            }
            _ => anyhow!(error).context(shown()),
        })?;
        if lock.metadata().with_context(shown)?.mode() & 0o077 != 0 {
            bail!("{0}: others can look into this directory; try: chmod 700 {0}", shown());
        }
        flock(&lock, FlockOperation::LockExclusive).with_context(shown)?;
        let authority = one(&dir.join(AUTHORITY))?;
        let keys = Self { dir: dir.into(), _lock: lock, authority };
        keys.finish()?;
        Ok(keys)
    }

    /// Archives the results of an interrupted command. Its certificate may already be in use elsewhere, so it must be
    /// found when it is revoked. A directory without a complete certificate is removed.
    fn finish(&self) -> Result<()> {
        for entry in fs::read_dir(&self.dir)? {
            let entry = entry?;
            let name = entry.file_name().into_string().unwrap_or_default();
            let Some((kind, name)) = name.strip_prefix(NEW).and_then(|rest| rest.split_once('-')) else {
                continue;
            };
            let kind = [Kind::Server, Kind::Client].into_iter().find(|of| of.word() == kind);
            match kind.filter(|_| one(&entry.path().join(CERT)).is_ok()) {
                Some(kind) => self.put_away(kind, name, &entry.path())?,
                None => fs::remove_dir_all(entry.path())?,
            }
        }
        Ok(())
    }

    /// Returns the path of a file or directory in the authority's directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Creates a key and a certificate for a server with these names; the first is its main name.
    pub fn server(&self, names: &[String], days: u32) -> Result<Holder> {
        names.iter().try_for_each(|name| check_host(name))?;
        let name = names.first().context("a server has a name")?;
        self.add(Kind::Server, name, names, days)
    }

    /// Creates a key and a certificate for a client.
    pub fn client(&self, user: &str, days: u32) -> Result<Holder> {
        check_user(user)?;
        self.add(Kind::Client, user, &[], days)
    }

    fn add(&self, kind: Kind, name: &str, names: &[String], days: u32) -> Result<Holder> {
        let dir = self.dir.join(kind.dir()).join(name);
        if dir.symlink_metadata().is_ok() {
            bail!(
                "{name}: there is a {} of this name already; `ninefold keys renew {1}/{name}` makes a new key and \
                 certificate, `revoke` ends the old one",
                kind.word(),
                kind.dir()
            );
        }
        let made = self.sign(kind, name, names, days)?;
        come(&made, &dir).with_context(|| dir.display().to_string())?;
        Ok(holder(kind, name.into(), dir, false))
    }

    /// Creates a new key and certificate for the same names, and archives the old ones.
    pub fn renew(&self, name: &str, days: u32) -> Result<Holder> {
        let Holder { kind, name, dir, says, .. } = self.find(name)?;
        let says = says?;
        let made = self.sign(kind, &name, &says.names, days)?;
        // Exchange the directories, so that the name always exists; then archive the old one.
        renameat_with(CWD, &made, CWD, &dir, RenameFlags::EXCHANGE)
            .with_context(|| dir.display().to_string())?;
        self.put_away(kind, &name, &made)?;
        Ok(holder(kind, name, dir, false))
    }

    /// Adds a holder's certificates to the revocation list: all of them, or only the renewed ones. Returns those that
    /// were not on the list before.
    pub fn revoke(&self, name: &str, only_old: bool) -> Result<Vec<Certificate>> {
        let found = self.find(name);
        let (kind, name) = match &found {
            Ok(holder) => (holder.kind, holder.name.clone()),
            // There may be only archived certificates of this name.
            Err(_) => {
                let (kind, bare) = bare(name);
                let is_it = |holder: &&Holder| holder.name == bare && kind.is_none_or(|of| of == holder.kind);
                let left = self.holders()?;
                let Some(left) = left.iter().find(is_it) else {
                    return Err(found.err().expect("it is none"));
                };
                (left.kind, left.name.clone())
            }
        };
        let mut revoked = self.revoked()?.revoked;
        let now = rt::Real.wall();
        let mut come = Vec::new();
        let its = |holder: &Holder| holder.kind == kind && holder.name == name && (holder.old || !only_old);
        for holder in self.holders()?.into_iter().filter(its) {
            let says = holder.says?;
            if revoked.iter().all(|(serial, _)| *serial != says.serial) {
                revoked.push((says.serial.clone(), now));
                come.push(says);
            }
        }
        let issuer = self.issuer()?;
        put(&self.dir, REVOKED, PUBLIC, &list(&issuer, &revoked)?)?;
        if let Ok(holder) = found.as_ref()
            && !only_old
        {
            self.put_away(kind, &name, &holder.dir)?;
        }
        Ok(come)
    }

    /// Reads the revocation list.
    pub fn revoked(&self) -> Result<Revocations> {
        let mut all = Revocations::read(&self.dir.join(REVOKED))?;
        all.pop().context("a file of lists has one")
    }

    /// Returns all current holders, then all former ones, each sorted by name.
    pub fn holders(&self) -> Result<Vec<Holder>> {
        let mut all = Vec::new();
        for kind in [Kind::Server, Kind::Client] {
            for name in names(&self.dir.join(kind.dir()))? {
                let dir = self.dir.join(kind.dir()).join(&name);
                all.push(holder(kind, name, dir, false));
            }
        }
        for entry in names(&self.dir.join(OLD))? {
            let dir = self.dir.join(OLD).join(&entry);
            let words = entry.split_once('-').and_then(|(kind, rest)| Some((kind, rest.rsplit_once('-')?.0)));
            let Some((kind, name)) = words else { continue };
            let kind = [Kind::Server, Kind::Client].into_iter().find(|of| of.word() == kind);
            all.extend(kind.map(|kind| holder(kind, name.into(), dir, true)));
        }
        Ok(all)
    }

    /// Finds the current holder that a name stands for.
    fn find(&self, name: &str) -> Result<Holder> {
        let (kind, bare) = bare(name);
        let is_it =
            |holder: &Holder| !holder.old && holder.name == bare && kind.is_none_or(|k| k == holder.kind);
        let mut found = self.holders()?.into_iter().filter(is_it);
        match (found.next(), found.next()) {
            (Some(one), None) => Ok(one),
            (Some(_), Some(_)) => {
                bail!("{bare}: a server and a client are called so; write servers/{bare} or clients/{bare}")
            }
            (None, _) => bail!("{name}: nobody is called so; `ninefold keys list` shows who is there"),
        }
    }

    /// Creates a directory with a key and its certificate under a temporary name.
    fn sign(&self, kind: Kind, name: &str, names: &[String], days: u32) -> Result<PathBuf> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.subject_alt_names = match kind {
            Kind::Client if name.contains('@') => vec![SanType::Rfc822Name(name.try_into()?)],
            Kind::Client => Vec::new(),
            Kind::Server => names.iter().map(|name| host(name)).collect::<Result<_>>()?,
        };
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![match kind {
            Kind::Server => ExtendedKeyUsagePurpose::ServerAuth,
            Kind::Client => ExtendedKeyUsagePurpose::ClientAuth,
        }];
        params.use_authority_key_identifier_extension = true;
        params.serial_number = Some(serial().into());
        last(&mut params, days, Some(self.authority.until));
        let cert = params.signed_by(&key, &self.issuer()?)?;
        let made = self.dir.join(format!("{NEW}{}-{name}", kind.word()));
        new_dir(&made)?;
        put(&made, KEY, SECRET, &key.serialize_pem())?;
        let authority = self.dir.join(AUTHORITY);
        let text = fs::read_to_string(&authority).with_context(|| authority.display().to_string())?;
        put(&made, AUTHORITY, PUBLIC, &text)?;
        // The certificate is written last: with it the directory is complete.
        put(&made, CERT, PUBLIC, &cert.pem())?;
        Ok(made)
    }

    /// Archives a directory under its kind, name and serial number.
    fn put_away(&self, kind: Kind, name: &str, dir: &Path) -> Result<()> {
        let serial = one(&dir.join(CERT))?.serial;
        let to = self.dir.join(OLD).join(format!("{}-{name}-{serial}", kind.word()));
        come(dir, &to).with_context(|| to.display().to_string())
    }

    /// Loads the authority's key for signing.
    fn issuer(&self) -> Result<Issuer<'static, KeyPair>> {
        let path = self.dir.join(KEY_OF_AUTHORITY);
        let text = token::private(&path, "the authority's key")?;
        let key = KeyPair::from_pem(&text).with_context(|| format!("{}: no private key", path.display()))?;
        Ok(Issuer::new(authority_params(&self.authority.name), key))
    }
}

/// Returns the default directory, below the user's configuration.
pub fn default_dir() -> Result<PathBuf> {
    let home = crate::config::home().context("$HOME is not set; --dir DIR says where the authority is")?;
    Ok(home.join("ninefold/keys"))
}

fn holder(kind: Kind, name: String, dir: PathBuf, old: bool) -> Holder {
    let says = one(&dir.join(CERT));
    Holder { kind, name, dir, old, says }
}

/// Reads the first certificate of a file.
fn one(path: &Path) -> Result<Certificate> {
    Ok(Certificate::read(path)?.swap_remove(0))
}

fn bare(name: &str) -> (Option<Kind>, &str) {
    let of = |kind: Kind| Some((Some(kind), name.strip_prefix(kind.dir())?.strip_prefix('/')?));
    of(Kind::Server).or_else(|| of(Kind::Client)).unwrap_or((None, name.trim_end_matches('/')))
}

fn authority_params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

/// Signs the authority's revocation list and returns it as PEM.
fn list(issuer: &Issuer<'_, impl rcgen::SigningKey>, revoked: &[(String, Duration)]) -> Result<String> {
    let now = rt::Real.wall();
    let bytes = |serial: &str| -> Vec<u8> {
        let digits: Vec<u8> = serial.chars().filter_map(|c| c.to_digit(16)).map(|d| d as u8).collect();
        digits.chunks(2).map(|pair| pair.iter().fold(0, |byte, d| byte << 4 | d)).collect()
    };
    let one = |(serial, at): &(String, Duration)| RevokedCertParams {
        serial_number: bytes(serial).into(),
        revocation_time: date_time_ymd(1970, 1, 1) + *at,
        reason_code: None,
        invalidity_date: None,
    };
    let params = CertificateRevocationListParams {
        this_update: date_time_ymd(1970, 1, 1) + now,
        // The list is signed again only when a certificate is revoked, so it must not expire before.
        next_update: date_time_ymd(1970, 1, 1) + now + Duration::from_secs(36_500 * 86_400),
        crl_number: now.as_secs().to_be_bytes().to_vec().into(),
        issuing_distribution_point: None,
        revoked_certs: revoked.iter().map(one).collect(),
        key_identifier_method: KeyIdMethod::Sha256,
    };
    Ok(params.signed_by(issuer)?.pem()?)
}

/// Sets the validity: from one hour ago, because other clocks may be slow, for `days` from now but at most until `end`.
fn last(params: &mut CertificateParams, days: u32, end: Option<Duration>) {
    let now = rt::Real.wall();
    let until = now + Duration::from_secs(u64::from(days) * 86_400);
    let until = end.map_or(until, |end| until.min(end));
    params.not_before = date_time_ymd(1970, 1, 1) + (now - Duration::from_hours(1));
    params.not_after = date_time_ymd(1970, 1, 1) + until;
}

/// Generates a unique name for an authority. A server selects the revocation list of a certificate by this name alone.
pub fn own_name() -> String {
    let mut bits = [0; 4];
    rt::Real.entropy(&mut bits);
    format!("ninefold-{:08x}", u32::from_be_bytes(bits))
}

/// Generates a serial number from 126 random bits, so that no two certificates have the same.
fn serial() -> Vec<u8> {
    let mut bits = [0; 16];
    rt::Real.entropy(&mut bits);
    // Keep the number positive and of constant length.
    bits[0] = bits[0] & 0x3f | 0x40;
    bits.to_vec()
}

/// Parses a name or address at which a server is dialled.
fn host(name: &str) -> Result<SanType> {
    Ok(match name.parse::<IpAddr>() {
        Ok(ip) => SanType::IpAddress(ip),
        Err(_) => SanType::DnsName(name.try_into()?),
    })
}

fn check_host(name: &str) -> Result<()> {
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    if name.parse::<IpAddr>().is_ok() {
        return Ok(());
    }
    if name.len() > 253 || !name.split('.').all(is_label) {
        bail!(
            "`{}`: no name of a host and no address; write names as clients dial them: fs.lab, 192.0.2.7, ::1",
            nine_text::show_name(name.as_bytes())
        );
    }
    Ok(())
}

fn check_user(user: &str) -> Result<()> {
    let fits = |b: u8| b.is_ascii_alphanumeric() || b"._-+@".contains(&b);
    let begins = user.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric() || b == b'_');
    if !begins || user.len() > NAME_MAX || !user.bytes().all(fits) || user.matches('@').count() > 1 {
        bail!(
            "`{}`: no name of a user; it has 1 to {NAME_MAX} letters, digits and . _ - + @, and begins with a \
             letter, a digit or _: glenda, glenda@example.org",
            nine_text::show_name(user.as_bytes())
        );
    }
    Ok(())
}

/// Lists the names in a directory, sorted. Names that begin with a dot are temporary and left out.
fn names(dir: &Path) -> Result<Vec<String>> {
    let shown = || dir.display().to_string();
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).with_context(shown)? {
        names.extend(entry.with_context(shown)?.file_name().into_string().ok());
    }
    names.retain(|name| !name.starts_with('.'));
    names.sort_unstable();
    Ok(names)
}

/// Creates an empty directory; removes one that an interrupted command left.
fn new_dir(dir: &Path) -> Result<()> {
    let shown = || dir.display().to_string();
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error).with_context(shown),
        _ => {}
    }
    DirBuilder::new().mode(0o700).create(dir).with_context(shown)
}

/// Renames a file or directory to a name that must not exist yet.
fn come(from: &Path, to: &Path) -> Result<()> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        Err(rustix::io::Errno::EXIST) => bail!("it is there already, and nothing is changed"),
        done => done?,
    }
    let dir = to.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok(File::open(dir)?.sync_all()?)
}

/// Writes a file atomically.
fn put(dir: &Path, name: &str, mode: u32, text: &str) -> Result<()> {
    let (path, half) = (dir.join(name), dir.join(format!(".{name}.new")));
    let written = || -> Result<()> {
        match fs::remove_file(&half) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&half)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&half, &path)?;
        Ok(File::open(dir)?.sync_all()?)
    };
    written().with_context(|| path.display().to_string())
}

/// Longest name in bytes, the limit of X.509 for a common name.
const NAME_MAX: usize = 64;
const SECRET: u32 = 0o600;
const PUBLIC: u32 = 0o644;
pub const AUTHORITY: &str = "authority.pem";
const KEY_OF_AUTHORITY: &str = "authority.key";
pub const REVOKED: &str = "revoked.pem";
pub const CERT: &str = "cert.pem";
pub const KEY: &str = "key.pem";
const OLD: &str = "old";
/// Prefix of a directory that is not complete; the kind and name follow.
const NEW: &str = ".new-";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_that_can_be_dialled_and_users_those_that_are_no_paths() {
        for name in ["fs.lab", "localhost", "192.0.2.7", "::1", "a-b.c_d"] {
            check_host(name).unwrap();
        }
        for name in ["", "a b", "-a", "a..b", "*.lab", "a/b", "fs.lab.", "\u{e4}", "tcp!fs"] {
            assert!(check_host(name).is_err(), "{name}");
        }
        for user in ["glenda", "glenda@example.org", "r2-d2", "_x"] {
            check_user(user).unwrap();
        }
        for user in ["", ".", "..", "a/b", "a b", "-x", "@", "a@b@c", &"x".repeat(65)] {
            assert!(check_user(user).is_err(), "{user}");
        }
    }

    #[test]
    fn what_was_interrupted_is_put_away_or_removed_and_what_was_there_stays() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("keys");
        let keys = Keys::init(&dir, "lab", 10).unwrap();
        keys.client("glenda", 5).unwrap();
        // Interrupted before the new certificate was complete; and after the exchange, before the old one was archived.
        new_dir(&dir.join(".new-client-rob")).unwrap();
        put(&dir.join(".new-client-rob"), KEY, SECRET, "half").unwrap();
        let new = keys.sign(Kind::Client, "glenda", &[], 5).unwrap();
        let serial = one(&new.join(CERT)).unwrap().serial;
        drop(keys);
        let keys = Keys::open(&dir).unwrap();
        assert!(names(&dir).unwrap().iter().all(|name| !name.starts_with(NEW)));
        assert!(!dir.join(".new-client-rob").exists() && !new.exists());
        let old: Vec<_> = keys.holders().unwrap().into_iter().filter(|holder| holder.old).collect();
        assert_eq!(old.len(), 1);
        assert_eq!((&*old[0].name, old[0].says.as_ref().unwrap().serial.clone()), ("glenda", serial.clone()));
        let revoked = keys.revoke("glenda", true).unwrap();
        assert_eq!(revoked[0].serial, serial);
        assert!(keys.find("glenda").is_ok());
    }

    #[test]
    fn a_certificate_does_not_outlive_its_authority_and_a_list_keeps_all_that_was_on_it() {
        let dir = tempfile::tempdir().unwrap();
        let keys = Keys::init(&dir.path().join("keys"), "lab", 10).unwrap();
        let made = keys.server(&["fs.lab".into(), "::1".into()], 365).unwrap().says.unwrap();
        assert_eq!((made.until, &*made.issuer), (keys.authority.until, "lab"));
        assert_eq!(made.names, ["fs.lab", "::1"]);
        let renewed = keys.renew("fs.lab", 5).unwrap().says.unwrap();
        assert_eq!(renewed.names, made.names);
        assert!(renewed.serial != made.serial && renewed.until < made.until);
        keys.client("fs.lab", 5).unwrap();
        assert!(
            keys.renew("fs.lab", 5)
                .err()
                .unwrap()
                .to_string()
                .contains("write servers/fs.lab or clients/fs.lab")
        );
        let of_client = keys.revoke("clients/fs.lab", false).unwrap();
        assert_eq!(of_client.len(), 1);
        let of_server: Vec<_> =
            keys.revoke("fs.lab", false).unwrap().into_iter().map(|says| says.serial).collect();
        assert_eq!(of_server, [renewed.serial.clone(), made.serial.clone()]);
        assert_eq!(keys.revoke("fs.lab", false).unwrap(), []);
        let all: Vec<_> = keys.revoked().unwrap().revoked.into_iter().map(|(serial, _)| serial).collect();
        assert_eq!(all, [of_client[0].serial.clone(), renewed.serial, made.serial]);
        assert!(keys.revoke("nobody", false).is_err());
        keys.server(&["fs.lab".into()], 5).unwrap();
    }
}
