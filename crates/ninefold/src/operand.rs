//! Operands on the command line: a file of this machine, or a file of a server.
//!
//! In: the operand, bytes as the shell passed them. Out: an [`Operand`]. An address, alone or with a path, is remote.
//! `:/path` is a path at the default server. All else is local or, for verbs that take only remote files, a path at the
//! default server. A local name that looks like an address must be written as `./name`.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::net::IpAddr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use nine_net::{Addr, IL_PORT, PORT, TLS_PORT, Target, is_socket};
use nine_text::show_name;

use crate::config::Remote;
use crate::serve::{default_socket, has_host, url_host};

/// A file that an operand names.
#[derive(Clone, Debug)]
pub enum Operand {
    Local(PathBuf),
    Remote(Place),
}

/// A file of a server.
#[derive(Clone, Debug)]
pub struct Place {
    /// Its server.
    pub addr: ServerAddr,
    /// The token to present to the server, from the address.
    pub token: Option<String>,
    /// Path from the server's root. Bytes, because names need not be UTF-8.
    pub path: Vec<u8>,
    /// The operand as the user typed it.
    typed: OsString,
    /// The prefix that the default server adds to a path; `None` if the operand was an address.
    base: Option<Vec<u8>>,
}

/// The location of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerAddr {
    /// At an address.
    Dialed(Addr),
    /// The other end of the channel that this program was started with.
    Inherited,
}

impl ServerAddr {
    /// Returns whether only this machine can be at the other end.
    pub fn is_local(&self) -> bool {
        matches!(self, Self::Dialed(Addr::Unix { .. } | Addr::Shm { .. }) | Self::Inherited)
    }
}

impl fmt::Display for ServerAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dialed(addr) => addr.fmt(f),
            Self::Inherited => f.write_str("host:"),
        }
    }
}

impl Operand {
    /// Parses an operand that may be local or remote.
    pub fn parse(word: &OsStr, remote: &Remote) -> Result<Operand> {
        Ok(match address(word)? {
            Some(place) => Operand::Remote(place),
            None if is_default(word) => Operand::Remote(Place::at_default(word, remote)?),
            None => {
                refuse_shape(word)?;
                Operand::Local(word.into())
            }
        })
    }
}

impl Place {
    /// Parses an operand that must be remote.
    pub fn parse(word: &OsStr, remote: &Remote) -> Result<Place> {
        match address(word)? {
            Some(place) => Ok(place),
            None if word.is_empty() => bail!("an empty word names no file; the root is /"),
            None => {
                refuse_shape(word)?;
                Place::at_default(word, remote)
            }
        }
    }

    /// Parses all operands of a verb; without any, returns the root of the default server.
    pub fn all(words: &[OsString], remote: &Remote) -> Result<Vec<Place>> {
        if words.is_empty() {
            return Ok(vec![Place::parse(OsStr::new("/"), remote)?]);
        }
        words.iter().map(|word| Place::parse(word, remote)).collect()
    }

    /// Returns the place of `name` below this one, on the same server, with the text that a user would type for it.
    pub fn below(&self, name: &[u8]) -> Place {
        let join = |base: &[u8]| {
            let base = if base.ends_with(b"/") { &base[..base.len() - 1] } else { base };
            [base, b"/", name].concat()
        };
        let typed = OsString::from_vec(join(self.typed.as_bytes()));
        Place { path: join(&self.path), typed, ..self.clone() }
    }

    /// Returns the place with this path from the root of the same server, with the text that a user would type for it.
    pub fn at(&self, names: &[Vec<u8>]) -> Place {
        let path = [b"/", &names.join(&b'/')[..]].concat();
        let typed = match &self.base {
            None => [self.addr.to_string().as_bytes(), &path].concat(),
            Some(base) => match path.strip_prefix(&base[..]) {
                Some(rest) if rest.starts_with(b"/") => rest.to_vec(),
                _ => path.clone(),
            },
        };
        Place { path, typed: OsString::from_vec(typed), ..self.clone() }
    }

    /// Returns the normalized path: without empty names, `.` and `..`, and with a `/` before each name.
    pub fn names_path(&self) -> Vec<u8> {
        let mut names = Vec::new();
        for name in self.path.split(|&byte| byte == b'/') {
            match name {
                b"" | b"." => {}
                b".." => drop(names.pop()),
                name => names.push(name),
            }
        }
        [b"/", &names.join(&b'/')[..]].concat()
    }

    /// Returns the operand as typed, without the token.
    pub fn written(&self) -> Vec<u8> {
        hidden(self.typed.as_bytes())
    }

    /// Returns the parent directory, as the user would type it.
    pub fn written_dir(&self) -> Vec<u8> {
        let typed = self.written();
        let typed = typed.trim_suffix_slashes();
        match typed.iter().rposition(|&b| b == b'/') {
            Some(0) => b"/".to_vec(),
            Some(at) => typed[..at].to_vec(),
            None => Vec::new(),
        }
    }

    /// Splits the path into its directory and its last name. Returns `None` if there is no such name, as for the root.
    pub fn split(&self) -> Option<(&[u8], &[u8])> {
        let path = self.path.trim_suffix_slashes();
        let at = path.iter().rposition(|&b| b == b'/').map_or(0, |at| at + 1);
        let (dir, name) = path.split_at(at);
        (!matches!(name, b"" | b"." | b"..")).then_some((dir, name))
    }

    /// Returns whether both files are on one server and are reached in one session.
    pub fn same_server(&self, other: &Place) -> bool {
        self.addr == other.addr && self.token == other.token
    }

    fn at_default(word: &OsStr, remote: &Remote) -> Result<Place> {
        let (addr, base, token) = match &remote.server {
            Some(server) => {
                let Target { addr, path, token } = Target::parse(server.as_str(), is_socket)?;
                (ServerAddr::Dialed(addr), path, token)
            }
            None if has_host() => (ServerAddr::Inherited, String::new(), None),
            None => {
                let path = default_socket().context("there is no default server")?;
                (ServerAddr::Dialed(Addr::Unix { path }), String::new(), None)
            }
        };
        let bytes = word.as_bytes();
        let path = bytes.strip_prefix(b":").unwrap_or(bytes);
        let base = base.trim_end_matches('/').as_bytes();
        let path = [base, b"/", path].concat();
        let base = Some(base.to_vec());
        Ok(Place { addr, token, path, typed: word.into(), base })
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", show_name(hidden(self.typed.as_bytes()).as_ref()))
    }
}

impl fmt::Display for Operand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Operand::Local(path) => write!(f, "{}", show_name(path.as_os_str().as_bytes())),
            Operand::Remote(place) => place.fmt(f),
        }
    }
}

trait TrimSlashes {
    fn trim_suffix_slashes(&self) -> &[u8];
}

impl TrimSlashes for [u8] {
    fn trim_suffix_slashes(&self) -> &[u8] {
        let end = self.iter().rposition(|&b| b != b'/').map_or(0, |at| at + 1);
        &self[..end]
    }
}

fn is_default(word: &OsStr) -> bool {
    word == ":" || word.as_bytes().starts_with(b":/")
}

/// Parses a word that begins with an address. Returns `None` if it is not an address.
fn address(word: &OsStr) -> Result<Option<Place>> {
    let bytes = word.as_bytes();
    let is_url = bytes.starts_with(b"unix:") || bytes.starts_with(b"shm:") || scheme(bytes).is_some();
    let is_dial = [&b"tcp!"[..], b"tls!", b"il!", b"unix!", b"shm!", b"vsock!"]
        .iter()
        .any(|net| bytes.starts_with(net));
    if !is_url && !is_dial {
        return Ok(None);
    }
    // An address is UTF-8; the path after it need not be.
    let valid = std::str::from_utf8(bytes).map_or_else(|e| e.valid_up_to(), str::len);
    let cut = match bytes[..valid].iter().rposition(|&b| b == b'/') {
        Some(at) if valid < bytes.len() => at,
        _ => bytes.len(),
    };
    let text = std::str::from_utf8(&bytes[..cut]).context("an address is UTF-8")?;
    let Target { addr, path, token } = Target::parse(text, is_socket)?;
    let tail = &bytes[cut..];
    let tail = if scheme(bytes).is_some() { percent_decoded(tail) } else { tail.to_vec() };
    let path = [path.trim_end_matches('/').as_bytes(), &tail[..]].concat();
    let path = if path.is_empty() { b"/".to_vec() } else { path };
    Ok(Some(Place { addr: ServerAddr::Dialed(addr), token, path, typed: word.into(), base: None }))
}

/// A word that is no address of ours, but was meant as one: `192.0.2.1:5640`, `tcp:host:5640`, `net!host!5640`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddrShape<'w> {
    /// The network, if the word names one.
    pub net: Option<&'w str>,
    /// The host, without brackets.
    pub host: &'w str,
    pub port: &'w str,
    /// The path after it, with its slash.
    path: &'w str,
}

impl<'w> AddrShape<'w> {
    /// Returns the shape of a word. A name and a port alone could be a file's name as well, so the port must be one
    /// of 9P.
    pub fn of(word: &'w str) -> Option<Self> {
        let (place, path) = word.split_at(word.find('/').unwrap_or(word.len()));
        let (net, rest) = match place.split_once(['!', ':']) {
            Some((net, rest)) if NETS.contains(&net) && rest.contains(['!', ':']) => (Some(net), rest),
            _ => (None, place),
        };
        let (host, port) = rest.rsplit_once(if rest.contains('!') { '!' } else { ':' })?;
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let is_ip = host.parse::<IpAddr>().is_ok();
        let is_name = |name: &str| {
            let ok = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-');
            name == "*" || !name.is_empty() && name.bytes().all(ok)
        };
        let number = port.parse().unwrap_or(0);
        let is_ours = host == "localhost" || [PORT, TLS_PORT, IL_PORT].contains(&number);
        let is_meant = match net {
            Some(_) => is_name(port),
            None => number != 0 && (is_ip || is_ours),
        };
        (is_meant && (is_ip || is_name(host))).then_some(Self { net, host, port, path })
    }

    /// Returns the URL that was meant.
    fn url(&self) -> String {
        let scheme = if self.net == Some("tls") { "9p+tls" } else { "9p" };
        let path = if self.path.is_empty() { "/" } else { self.path };
        format!("{scheme}://{}:{}{path}", url_host(self.host), self.port)
    }
}

/// Words before a host and a port, as other programs write them.
const NETS: [&str; 6] = ["tcp", "tls", "net", "9p", "http", "https"];

/// Refuses a word that was meant as an address, unless there is a file of this name.
fn refuse_shape(word: &OsStr) -> Result<()> {
    let Some(shape) = word.to_str().and_then(AddrShape::of) else { return Ok(()) };
    if Path::new(word).symlink_metadata().is_ok() {
        return Ok(());
    }
    let word = word.display();
    bail!("{word}: looks like an address: write {} (a file of that name: ./{word})", shape.url())
}

/// Returns the part before `://`, if it can be a scheme.
fn scheme(bytes: &[u8]) -> Option<&[u8]> {
    let at = bytes.windows(3).position(|w| w == b"://")?;
    let ok = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.');
    (at > 0 && bytes[..at].iter().all(ok)).then_some(&bytes[..at])
}

/// Decodes percent escapes in the tail of a URL that is not UTF-8 and so was not decoded with the rest. A stray percent
/// sign stays.
fn percent_decoded(bytes: &[u8]) -> Vec<u8> {
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some((&first, tail)) = rest.split_first() {
        let hex = |at: usize| tail.get(at).and_then(|&b| (b as char).to_digit(16));
        match (first, hex(0), hex(1)) {
            (b'%', Some(high), Some(low)) => {
                decoded.push((high * 16 + low) as u8);
                rest = &tail[2..];
            }
            _ => {
                decoded.push(first);
                rest = tail;
            }
        }
    }
    decoded
}

/// Removes the token that a URL may carry.
fn hidden(typed: &[u8]) -> Vec<u8> {
    if let Some(scheme) = scheme(typed) {
        let rest = &typed[scheme.len() + 3..];
        let authority = rest.split(|&b| b == b'/').next().unwrap_or_default();
        if let Some(at) = authority.iter().rposition(|&b| b == b'@') {
            return [scheme, b"://", &rest[at + 1..]].concat();
        }
    }
    typed.to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remote() -> Remote {
        Remote { server: Some("tcp!h!1/sub".parse().unwrap()), ..Remote::default() }
    }

    fn parse(word: &[u8]) -> (String, Vec<u8>) {
        match Operand::parse(OsStr::from_bytes(word), &remote()).unwrap() {
            Operand::Local(path) => ("local".into(), path.into_os_string().into_vec()),
            Operand::Remote(place) => (place.addr.to_string(), place.path),
        }
    }

    #[test]
    fn words_are_local_unless_they_are_addresses() {
        for (word, addr, path) in [
            (&b"a/b"[..], "local", &b"a/b"[..]),
            (b"/a", "local", b"/a"),
            (b"./tcp!h!1", "local", b"./tcp!h!1"),
            (b"a:b", "local", b"a:b"),
            (b"tcp!h!5/x\xff", "tcp!h!5", b"/x\xff"),
            (b"tcp!h!5", "tcp!h!5", b"/"),
            (b"il!h!5/x", "il!h!5", b"/x"),
            (b"9p://h:5/a%20b", "tcp!h!5", b"/a b"),
            (b"9p://h:5/a%20b/%41\xff%zz", "tcp!h!5", b"/a b/A\xff%zz"),
            (b"9p+tls://h/x", "tls!h!5640", b"/x"),
            (b":/x/\xfe", "tcp!h!1", b"/sub//x/\xfe"),
            (b":", "tcp!h!1", b"/sub/"),
        ] {
            assert_eq!(parse(word), (addr.to_string(), path.to_vec()), "{}", word.escape_ascii());
        }
        assert!(Operand::parse(OsStr::new("http://h/"), &remote()).is_err());
        let place = Place::parse(OsStr::new("x"), &remote()).unwrap();
        assert_eq!(place.path, b"/sub/x");
    }

    #[test]
    fn a_word_with_the_shape_of_an_address_is_no_file() {
        for (word, url) in [
            ("127.0.0.1:18640", "9p://127.0.0.1:18640/"),
            ("127.0.0.1:18640/a/b", "9p://127.0.0.1:18640/a/b"),
            ("[::1]:5640", "9p://[::1]:5640/"),
            ("localhost:99", "9p://localhost:99/"),
            ("files.lab:5640/x", "9p://files.lab:5640/x"),
            ("tcp:h:p", "9p://h:p/"),
            ("tls:h:5640", "9p+tls://h:5640/"),
            ("net!h!5640", "9p://h:5640/"),
        ] {
            for error in [
                Place::parse(word.as_ref(), &remote()).unwrap_err(),
                Operand::parse(word.as_ref(), &remote()).unwrap_err(),
            ] {
                let due =
                    format!("{word}: looks like an address: write {url} (a file of that name: ./{word})");
                assert_eq!(error.to_string(), due);
            }
        }
        for word in
            ["a:b", "12:30", "notes.txt:12", "./127.0.0.1:1", "/127.0.0.1:1", "a!b!c", "net", "x:0", ""]
        {
            assert_eq!(AddrShape::of(word), None, "{word}");
        }
    }

    #[test]
    fn a_place_splits_into_directory_and_name() {
        let split = |word| {
            let place = Place::parse(OsStr::new(word), &remote()).unwrap();
            place.split().map(|(dir, name)| (dir.to_vec(), name.to_vec()))
        };
        assert_eq!(split("tcp!h!1/a/b/"), Some((b"/a/".to_vec(), b"b".to_vec())));
        assert_eq!(split("tcp!h!1/a"), Some((b"/".to_vec(), b"a".to_vec())));
        assert_eq!((split("tcp!h!1/"), split("tcp!h!1/a/..")), (None, None));
    }

    #[test]
    fn another_path_of_a_server_is_written_as_its_operands_are() {
        let at = |word, path: &[u8]| {
            let place = Place::parse(OsStr::new(word), &remote()).unwrap();
            let names: Vec<_> = path.split(|b| *b == b'/').map(<[u8]>::to_vec).collect();
            let at = place.at(&names);
            (at.to_string(), at.path)
        };
        assert_eq!(at("tcp!h!5/a", b"b/c"), ("tcp!h!5/b/c".into(), b"/b/c".to_vec()));
        assert_eq!(at("9p://secret@h:5/a%20b", b"b c"), ("tcp!h!5/b c".into(), b"/b c".to_vec()));
        assert_eq!(at("x", b"sub/y"), ("/y".into(), b"/sub/y".to_vec()));
        assert_eq!(at(":/x", b"subs"), ("/subs".into(), b"/subs".to_vec()));
    }

    #[test]
    fn a_token_is_never_shown() {
        let place = Place::parse(OsStr::new("9p://secret@h/x"), &remote()).unwrap();
        assert_eq!((place.to_string().as_str(), place.token.as_deref()), ("9p://h/x", Some("secret")));
        assert_eq!(place.below(b"y").to_string(), "9p://h/x/y");
    }
}
