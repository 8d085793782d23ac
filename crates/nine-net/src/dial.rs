//! Addresses to dial or to listen on: one type for Plan 9 dial strings and for URLs.
//!
//! In: `tcp!host!port[/path]`, `tls!host!port[/path]`, `il!host!port[/path]`, `vsock!cid!port[/path]`, `unix!/path`,
//! `shm!/path`, and `9p://[token@]host[:port][/path]`, `9p+tls://...`, `vsock://cid[:port][/path]`,
//! `unix:/path/to/socket/rest`, `shm:/path/to/socket/rest`. Out: an [`Addr`], the path beyond it on the server, and
//! the token if one was given.
//!
//! Always holds: an `Addr` displays as its canonical dial string, which parses to the same `Addr`. No name is resolved
//! here (each dial does that). An error explains the fault and gives the right form.

use std::fmt;
use std::io;
use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The port of `9fs`, used by `tcp!`, `9p://` and `vsock!` when none is given.
pub const PORT: u16 = 564;
/// The port used by `tls!` and `9p+tls://` when none is given.
pub const TLS_PORT: u16 = 5640;
/// The port used by `il!` when none is given.
pub const IL_PORT: u16 = 17008;
/// Longest path of a unix socket, in bytes (the kernel's `sun_path` less its terminating zero).
pub const UNIX_PATH_MAX: usize = 107;
/// The vsock context id for `*`.
pub const VSOCK_ANY: u32 = u32::MAX;

/// One address, to dial or to listen on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Addr {
    /// Plain TCP. The host is a name, an IPv4 or IPv6 address (no brackets), or `*` for every local address.
    Tcp {
        /// Not empty, without `!` and `/`.
        host: String,
        /// 0 asks for any free port when listening.
        port: u16,
    },
    /// TLS over TCP; the parts as for `Tcp`.
    Tls {
        /// Not empty, without `!` and `/`.
        host: String,
        /// 0 asks for any free port when listening.
        port: u16,
    },
    /// il over UDP; the parts as for `Tcp`.
    Il {
        /// Not empty, without `!` and `/`.
        host: String,
        /// 0 asks for any free port when listening.
        port: u16,
    },
    /// A unix socket.
    Unix {
        /// Not empty, at most [`UNIX_PATH_MAX`] bytes, without a zero byte.
        path: PathBuf,
    },
    /// Shared memory: a channel, which a client gets when it connects to a unix socket of this path (docs/channels.md).
    Shm {
        /// As for `Unix`.
        path: PathBuf,
    },
    /// A socket between a virtual machine and its host.
    Vsock {
        /// The machine: 1 this one, 2 the host, [`VSOCK_ANY`] all (only to listen).
        cid: u32,
        /// Its port.
        port: u32,
    },
}

/// A parsed address: where to dial, which file there, and which token to present.
#[derive(Clone, PartialEq, Eq)]
pub struct Target {
    /// Where to dial.
    pub addr: Addr,
    /// The path on the server; it begins with `/`.
    pub path: String,
    /// The token in front of the `@` of a URL. A secret: `Debug` does not show it.
    pub token: Option<String>,
}

/// The error for a text that is not an address. It gives the right form, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DialError(String);

impl Target {
    /// Parses a dial string or a URL. For `unix` and `shm` the address is the longest prefix of the path for which
    /// `is_socket` (see [`is_socket`]) returns `true`, or else the whole path.
    pub fn parse(text: &str, is_socket: impl Fn(&Path) -> bool) -> Result<Target, DialError> {
        let parsed = match text.split_once(':') {
            Some((scheme @ ("unix" | "shm"), rest)) => socket_url(scheme, rest, is_socket),
            Some((scheme, rest)) if !scheme.contains('!') && rest.starts_with("//") => {
                url(scheme, &rest[2..])
            }
            _ if text.contains('!') => dial_string(text, is_socket),
            _ => wrong(format!("not an address; write {EXAMPLES}")),
        };
        parsed.map_err(|DialError(why)| DialError(format!("{}: {why}", without_token(text))))
    }
}

/// Whether `path` is a socket on this host. Follows links.
pub fn is_socket(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    path.metadata().is_ok_and(|m| m.file_type().is_socket())
}

impl FromStr for Addr {
    type Err = DialError;

    /// Parses a bare address, as a listener needs it: any form of [`Target::parse`] without a path and a token.
    fn from_str(text: &str) -> Result<Addr, DialError> {
        let target = Target::parse(text, |_| false)?;
        if target.path != "/" || target.token.is_some() {
            return wrong(format!(
                "{}: only an address may stand here: {}",
                without_token(text),
                target.addr
            ));
        }
        Ok(target.addr)
    }
}

impl fmt::Display for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Addr::Tcp { host, port } => write!(f, "tcp!{host}!{port}"),
            Addr::Tls { host, port } => write!(f, "tls!{host}!{port}"),
            Addr::Il { host, port } => write!(f, "il!{host}!{port}"),
            Addr::Unix { path } => write!(f, "unix!{}", path.display()),
            Addr::Shm { path } => write!(f, "shm!{}", path.display()),
            Addr::Vsock { cid: VSOCK_ANY, port } => write!(f, "vsock!*!{port}"),
            Addr::Vsock { cid, port } => write!(f, "vsock!{cid}!{port}"),
        }
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let token = self.token.as_ref().map(|_| "(not shown)");
        f.debug_struct("Target")
            .field("addr", &self.addr)
            .field("path", &self.path)
            .field("token", &token)
            .finish()
    }
}

impl fmt::Display for DialError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for DialError {}

impl From<DialError> for io::Error {
    fn from(e: DialError) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidInput, e)
    }
}

/// Parses `net!host[!port][/path]`. For `unix!` and `shm!` the host is the path of a socket.
fn dial_string(text: &str, is_socket: impl Fn(&Path) -> bool) -> Result<Target, DialError> {
    if let Some((net @ ("unix" | "shm"), path)) = text.split_once('!') {
        return at_socket_and_below(net, path, is_socket);
    }
    let (addr, path) = cut_path(text);
    let mut parts = addr.split('!');
    let (net, host) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let port = parts.next();
    if let Some(more) = parts.next() {
        return wrong(format!("nothing may follow the port, but `!{more}` does; write {net}!HOST!PORT"));
    }
    let addr = match net {
        "tcp" => Addr::Tcp { host: host_name(host)?, port: port.map_or(Ok(PORT), ip_port)? },
        "tls" => Addr::Tls { host: host_name(host)?, port: port.map_or(Ok(TLS_PORT), ip_port)? },
        "il" => Addr::Il { host: host_name(host)?, port: port.map_or(Ok(IL_PORT), ip_port)? },
        "vsock" => vsock(host, port)?,
        _ => return wrong(format!("the network `{net}` is not known; write {EXAMPLES}")),
    };
    Ok(Target { addr, path: path.into(), token: None })
}

/// Parses `scheme://[token@]host[:port][/path]`; `rest` is the part after the slashes.
fn url(scheme: &str, rest: &str) -> Result<Target, DialError> {
    let (authority, path) = cut_path(rest);
    let (token, place) = match authority.rsplit_once('@') {
        Some((token, place)) => (Some(percent_decoded(token)?), place),
        None => (None, authority),
    };
    let (host, port) = host_and_port(scheme, place)?;
    let addr = match scheme {
        "9p" => Addr::Tcp { host: host_name(host)?, port: port.map_or(Ok(PORT), ip_port)? },
        "9p+tls" => Addr::Tls { host: host_name(host)?, port: port.map_or(Ok(TLS_PORT), ip_port)? },
        "vsock" => vsock(host, port)?,
        _ => return wrong(format!("the scheme `{scheme}` is not known; write {EXAMPLES}")),
    };
    Ok(Target { addr, path: percent_decoded(path)?, token })
}

/// Parses `unix:` or `shm:` and a path. The longest prefix that is a socket is the address.
fn socket_url(scheme: &str, rest: &str, is_socket: impl Fn(&Path) -> bool) -> Result<Target, DialError> {
    at_socket_and_below(scheme, rest.strip_prefix("//").unwrap_or(rest), is_socket)
}

/// Splits a path: the longest prefix that is a socket is the address, and the rest is a path on its server.
fn at_socket_and_below(
    net: &str,
    rest: &str,
    is_socket: impl Fn(&Path) -> bool,
) -> Result<Target, DialError> {
    let whole = rest.trim_end_matches('/').len();
    let ends = rest.match_indices('/').map(|(at, _)| at).filter(|&at| 0 < at && at < whole);
    let prefixes: Vec<usize> = ends.chain([whole]).collect();
    let found = prefixes.into_iter().rev().find(|&end| is_socket(Path::new(&rest[..end])));
    let (socket, path) = rest.split_at(found.unwrap_or(whole));
    let path = if path.is_empty() { "/" } else { path };
    Ok(Target { addr: at_socket(net, socket)?, path: path.into(), token: None })
}

fn at_socket(net: &str, path: &str) -> Result<Addr, DialError> {
    if path.is_empty() || path.contains('\0') {
        return wrong(format!("the path of the socket is missing; write {net}!/run/ninefold.sock"));
    }
    if path.len() > UNIX_PATH_MAX {
        let is = path.len();
        return wrong(format!(
            "a socket's path may have {UNIX_PATH_MAX} bytes, this has {is}; choose a shorter one"
        ));
    }
    let path = path.into();
    Ok(if net == "shm" { Addr::Shm { path } } else { Addr::Unix { path } })
}

fn vsock(cid: &str, port: Option<&str>) -> Result<Addr, DialError> {
    let cid = match cid {
        "*" => VSOCK_ANY,
        "local" => 1,
        "host" => 2,
        _ => match cid.parse() {
            Ok(cid) => cid,
            Err(_) => {
                return wrong(format!("`{cid}` is no machine; write its number, `host`, `local` or `*`"));
            }
        },
    };
    let port = match port {
        None | Some("9fs") => PORT.into(),
        Some(text) => match text.parse() {
            Ok(port) => port,
            Err(_) => {
                return wrong(format!("the port `{text}` is not a number from 0 to {} or `9fs`", u32::MAX));
            }
        },
    };
    Ok(Addr::Vsock { cid, port })
}

fn ip_port(text: &str) -> Result<u16, DialError> {
    if text == "9fs" {
        return Ok(PORT);
    }
    let number = text.parse().map_err(|_| ());
    number.or_else(|()| wrong(format!("the port `{text}` is not a number from 0 to {} or `9fs`", u16::MAX)))
}

fn host_name(host: &str) -> Result<String, DialError> {
    if host.is_empty() {
        return wrong(
            "the host is missing; write tcp!HOST!PORT or 9p://HOST:PORT (`*` listens on every address)",
        );
    }
    if host.contains(|c: char| c.is_whitespace() || c.is_control() || "[]@!/".contains(c)) {
        return wrong(format!(
            "`{host}` is not a host; write a name, 192.0.2.1, or 2001:db8::1 (a URL wants it in [])"
        ));
    }
    Ok(host.into())
}

/// Splits a URL's `host[:port]`. An IPv6 address must be in brackets.
fn host_and_port<'a>(scheme: &str, place: &'a str) -> Result<(&'a str, Option<&'a str>), DialError> {
    if let Some(rest) = place.strip_prefix('[') {
        return match rest.split_once(']') {
            Some((host, "")) => Ok((host, None)),
            Some((host, tail)) if tail.starts_with(':') => Ok((host, Some(&tail[1..]))),
            _ => wrong(format!(
                "after `[` an IPv6 address, `]` and perhaps a port is due; write {scheme}://[::1]:564"
            )),
        };
    }
    match place.split_once(':') {
        Some((_, port)) if port.contains(':') => {
            if place.parse::<Ipv6Addr>().is_ok() {
                return wrong(format!("an IPv6 address stands in brackets; write {scheme}://[{place}]"));
            }
            wrong(format!(
                "`{port}` is no port; write {scheme}://HOST:PORT/PATH, an IPv6 address in brackets"
            ))
        }
        Some((host, port)) => Ok((host, Some(port))),
        None => Ok((place, None)),
    }
}

/// Splits before the first slash. Without a slash the path is `/`.
fn cut_path(text: &str) -> (&str, &str) {
    match text.find('/') {
        Some(at) => text.split_at(at),
        None => (text, "/"),
    }
}

fn percent_decoded(text: &str) -> Result<String, DialError> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        rest = tail;
        if first != b'%' {
            bytes.push(first);
            continue;
        }
        let hex = |at: usize| tail.get(at).and_then(|&c| (c as char).to_digit(16));
        match (hex(0), hex(1)) {
            (Some(high), Some(low)) => bytes.push((high * 16 + low) as u8),
            _ => return wrong("after `%` two hexadecimal digits are due; a percent sign itself is %25"),
        }
        rest = &tail[2..];
    }
    match String::from_utf8(bytes) {
        Ok(text) if !text.contains('\0') => Ok(text),
        _ => wrong("the percent signs do not decode to UTF-8 text"),
    }
}

/// The text without its token, for errors.
fn without_token(text: &str) -> String {
    match text.split_once("://") {
        Some((scheme, rest)) if cut_path(rest).0.contains('@') => {
            // The authority has an `@`, so `rest` has one, and the last one of the authority ends the token.
            let (authority, path) = cut_path(rest);
            let place = authority.rsplit('@').next().unwrap_or_default();
            let path = if rest.len() == authority.len() { "" } else { path };
            format!("{scheme}://...@{place}{path}")
        }
        _ => text.into(),
    }
}

fn wrong<T>(why: impl Into<String>) -> Result<T, DialError> {
    Err(DialError(why.into()))
}

const EXAMPLES: &str = "tcp!HOST!564, tls!HOST!5640, il!HOST!17008, unix!/PATH, shm!/PATH, vsock!CID!564, \
     9p://HOST/PATH or unix:/PATH";

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> (String, String, Option<String>) {
        let t = Target::parse(text, |p| p == Path::new("/run/a.sock")).expect(text);
        (t.addr.to_string(), t.path, t.token)
    }

    fn error(text: &str) -> String {
        Target::parse(text, |_| false).expect_err(text).to_string()
    }

    #[test]
    fn every_form_has_one_canonical_dial_string() {
        for (text, addr, path) in [
            ("tcp!fs.lab!564", "tcp!fs.lab!564", "/"),
            ("tcp!fs.lab!9fs", "tcp!fs.lab!564", "/"),
            ("tcp!fs.lab", "tcp!fs.lab!564", "/"),
            ("tcp!fs.lab/main/x", "tcp!fs.lab!564", "/main/x"),
            ("tcp!::1!5640/a", "tcp!::1!5640", "/a"),
            ("tcp!*!0", "tcp!*!0", "/"),
            ("tls!h", "tls!h!5640", "/"),
            ("il!h", "il!h!17008", "/"),
            ("il!*!17008", "il!*!17008", "/"),
            ("il!::1!7/a", "il!::1!7", "/a"),
            ("vsock!3!99/a", "vsock!3!99", "/a"),
            ("vsock!*", "vsock!*!564", "/"),
            ("unix!/run/a.sock/b", "unix!/run/a.sock", "/b"),
            ("unix!/run/a.sock/", "unix!/run/a.sock", "/"),
            ("unix!/run/none/b", "unix!/run/none/b", "/"),
            ("unix:/run/a.sock/b/c", "unix!/run/a.sock", "/b/c"),
            ("unix:/run/a.sock", "unix!/run/a.sock", "/"),
            ("unix:///run/a.sock/", "unix!/run/a.sock", "/"),
            ("unix:/run/none/b", "unix!/run/none/b", "/"),
            ("shm!/run/a.sock/b", "shm!/run/a.sock", "/b"),
            ("shm:/run/a.sock/b/c", "shm!/run/a.sock", "/b/c"),
            ("9p://h", "tcp!h!564", "/"),
            ("9p://h:99/a%20b/%C3%A4", "tcp!h!99", "/a b/ä"),
            ("9p://[::1]:99/", "tcp!::1!99", "/"),
            ("9p://[::1]", "tcp!::1!564", "/"),
            ("9p+tls://h/x", "tls!h!5640", "/x"),
            ("vsock://2:7/x", "vsock!2!7", "/x"),
        ] {
            assert_eq!(parse(text), (addr.to_string(), path.to_string(), None), "{text}");
            assert_eq!(addr.parse::<Addr>().map(|a| a.to_string()), Ok(addr.to_string()));
        }
    }

    #[test]
    fn token_is_split_off_and_never_shown() {
        assert_eq!(parse("9p://s%40crt@h:1/x").2.as_deref(), Some("s@crt"));
        let target = Target::parse("9p://secret@h/x", |_| false).expect("valid");
        assert!(!format!("{target:?}").contains("secret"));
        assert!(!error("9p://secret@h:port/x").contains("secret"));
        assert!(!"9p://secret@h".parse::<Addr>().expect_err("token").to_string().contains("secret"));
    }

    #[test]
    fn longest_existing_socket_is_the_address() {
        let sockets = [Path::new("/a"), Path::new("/a/b")];
        let target = Target::parse("unix:/a/b/c", |p| sockets.contains(&p)).expect("valid");
        assert_eq!((target.addr.to_string().as_str(), target.path.as_str()), ("unix!/a/b", "/c"));
    }

    #[test]
    fn errors_say_what_is_wrong_and_what_is_right() {
        for (text, wrong, right) in [
            ("", "not an address", "tcp!HOST!564"),
            ("fs.lab", "fs.lab: not an address", "9p://HOST"),
            ("rudp!h!1", "`rudp` is not known", "tcp!HOST"),
            ("il!h!x", "`x` is not a number", "9fs"),
            ("http://h/", "`http` is not known", "9p://HOST"),
            ("tcp!!564", "host is missing", "tcp!HOST!PORT"),
            ("9p:///x", "host is missing", "9p://HOST"),
            ("tcp!h!x", "`x` is not a number", "9fs"),
            ("tcp!h!65536", "`65536`", "65535"),
            ("tcp!h!1!2", "`!2`", "tcp!HOST!PORT"),
            ("9p://::1/x", "brackets", "9p://[::1]"),
            ("9p://h:18640:/x", "`18640:` is no port", "9p://HOST:PORT/PATH"),
            ("9p://[::1", "after `[`", "[::1]:564"),
            ("9p://h/%zz", "hexadecimal", "%25"),
            ("unix!", "missing", "unix!/run"),
            ("shm:", "missing", "shm!/run"),
            ("vsock!x!1", "`x` is no machine", "`host`"),
        ] {
            let e = error(text);
            assert!(e.contains(wrong) && e.contains(right), "{text}: {e}");
        }
        assert!(error(&format!("unix!/{}", "x".repeat(107))).contains("108"));
        let e = "tcp!h!1/path".parse::<Addr>().expect_err("path").to_string();
        assert!(e.contains("tcp!h!1") && e.contains("only an address"), "{e}");
    }
}
