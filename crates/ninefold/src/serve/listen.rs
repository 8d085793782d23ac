//! The listeners for 9P clients, and the proof that each requires. Closed by default.
//!
//! | address | a client without a token or certificate |
//! |---|---|
//! | unix socket | is identified by the kernel; the socket's mode allows only its owner to connect |
//! | loopback | reads: the server's own user and root everything, others as `--local-users` allows ([`local`]); with |
//! | | the token a client may do everything. With `--client-ca`, tls on loopback is as tls elsewhere |
//! | tls | is refused; a token is accepted, and a client certificate if there is a `--client-ca` |
//! | any other | there is no such listener without `-insecure`, which trusts every client |

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv6Addr, ToSocketAddrs};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result, bail};
use nine_io::server::{Anonymous, Door, Entrance, Gate, Tls};
use nine_net::modules::{self, TlsServer, is_alone};
use nine_net::shm::Waits;
use nine_net::{Addr, ClientAuth, DEEPEST, Env, Inherited, Listener, Pushed, ServerTls, TlsFiles, rt};
use serde::{Deserialize, Serialize};

use super::local;
use super::token;
use super::web::Web;
use crate::config::{Identity, Serving, SquashChoice, by_string};
use crate::fail;

/// Default limit of clients.
pub const CLIENTS: u32 = 10_000;
/// Default port on loopback.
const PORT: u16 = 5640;

/// An address to listen on, as the user writes it, with its options.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Listen {
    pub addr: Addr,
    /// Option `-insecure`.
    pub insecure: bool,
    /// Option `-streams PORT`: the port for data connections. `None`: the address itself.
    pub streams: Option<u16>,
    /// Option `-push MODULE ARGUMENTS`: modules on our end of every connection, from its start.
    pub push: Vec<String>,
    /// Option `-poll`, `-interrupt` or `-adaptive`: how channels wait for their guests.
    pub waits: Option<Waits>,
}

impl Listen {
    /// Creates it without options.
    pub fn at(addr: Addr) -> Self {
        Self { addr, insecure: false, streams: None, push: Vec::new(), waits: None }
    }

    /// Sets how channels wait. Fails if the address is not of a channel.
    pub fn waiting(self, waits: Option<Waits>) -> Result<Self, String> {
        match (waits, &self.addr) {
            (Some(waits), addr) if !matches!(addr, Addr::Shm { .. }) => {
                Err(format!("{addr} -{}: channels of shared memory alone wait so, shm!/PATH", waits.name()))
            }
            _ => Ok(Self { waits, ..self }),
        }
    }

    /// Adds a module. Fails if listeners cannot have it.
    pub fn with_module(&mut self, module: &str) -> Result<(), String> {
        if !is_alone(module) {
            return Err(format!(
                "`{module}`: a listener begins with modules that change nothing for clients: throttle, fault, trace; \
                 others are pushed by whoever connects"
            ));
        }
        let known = modules::modules().with("trace", modules::Trace(modules::TraceLog::default()));
        known.open(module).map_err(|fault| fault.to_string())?;
        if self.push.len() == DEEPEST {
            return Err(format!("at most {DEEPEST} modules"));
        }
        self.push.push(module.to_owned());
        Ok(())
    }
}

/// An open listener, and the facts that the banner shows.
pub struct Open {
    pub door: Door,
    pub gate: Gate,
    /// Whether client certificates are accepted.
    pub certificates: bool,
    /// The address that clients dial for streams, if streams are available.
    pub streams: Option<String>,
    /// The listener for data connections, if it is a separate one.
    pub data: Option<Door>,
    /// Modules at the start of every connection.
    pub begins: Arc<[String]>,
}

/// Adds the sockets that a service manager has opened for us. If a configured line names the address of a socket, the
/// line applies. Else the socket's `FileDescriptorName=` selects the protocol: `tls`, `shm`, `http` or `https`; all
/// others speak 9P.
pub fn inherit(serving: &mut Serving) -> Result<()> {
    for Inherited { name, addr } in nine_net::inherited()? {
        let place = match &addr {
            Addr::Tcp { host, port } => Some((host.clone(), *port)),
            _ => None,
        };
        let addr = match (&*name, addr) {
            ("http" | "https", Addr::Tcp { host, port }) => {
                let web: Web = format!("{name}!{host}!{port}").parse().map_err(anyhow::Error::msg)?;
                if serving.http.iter().all(|other| other.place() != web.place()) {
                    serving.http.push(web);
                }
                continue;
            }
            ("tls", Addr::Tcp { host, port }) => Addr::Tls { host, port },
            ("shm", Addr::Unix { path }) => Addr::Shm { path },
            (_, addr) => addr,
        };
        if let Addr::Unix { path } | Addr::Shm { path } = &addr {
            let mode = path.metadata().with_context(|| path.display().to_string())?.mode();
            if mode & 0o002 != 0 && serving.identity != Some(Identity::Client) {
                bail!(
                    "{}: its SocketMode= lets everybody in, and all would have this user's rights: 0660 lets a group \
                     in; or say --as client",
                    path.display()
                );
            }
        }
        let is_it = |other: &Listen| match (&other.addr, &place) {
            (Addr::Tcp { host, port } | Addr::Tls { host, port }, Some(place)) => is_at(host, *port, place),
            (Addr::Unix { path: of } | Addr::Shm { path: of }, _) => {
                matches!(&addr, Addr::Unix { path } | Addr::Shm { path } if path == of)
            }
            (other, _) => *other == addr,
        };
        let is_web = |web: &Web| {
            let (host, port) = web.place();
            place.as_ref().is_some_and(|place| is_at(&host, port, place))
        };
        if !serving.listen.iter().any(is_it) && !serving.http.iter().any(is_web) {
            serving.listen.push(Listen::at(addr));
        }
    }
    Ok(())
}

/// Returns whether a host, given by name or address, and a port are those of a socket.
fn is_at(host: &str, port: u16, place: &(String, u16)) -> bool {
    let at = |ip: IpAddr| ip.to_string() == place.0;
    let named = || (host, port).to_socket_addrs().is_ok_and(|mut all| all.any(|addr| at(addr.ip())));
    port == place.1 && (host == place.0 || host.parse::<IpAddr>().is_err() && named())
}

/// Opens all listeners, or none. With `with_socket`, also the owner's socket, unless another server has it.
pub fn open(env: &rt::Real, serving: &Serving, with_socket: bool) -> Result<Vec<Open>> {
    let mut token = None;
    if !serving.listen.is_empty() {
        let open = serving.listen.iter().map(|listen| open_one(env, serving, listen, &mut token));
        let mut open = open.collect::<Result<Vec<_>>>()?;
        let own = if with_socket { default_socket().ok() } else { None };
        let own = own.map(|path| Listen::at(Addr::Unix { path }));
        if let Some(own) = own.filter(|own| serving.listen.iter().all(|listen| listen.addr != own.addr)) {
            match make_socket_dir().and_then(|()| open_one(env, serving, &own, &mut token)) {
                Ok(socket) => open.push(socket),
                Err(error) => fail::note(format_args!("{}: not there for this server: {error}", own.addr)),
            }
        }
        return Ok(open);
    }
    make_socket_dir()?;
    let unix = Listen::at(Addr::Unix { path: default_socket()? });
    let tcp = Listen::at(Addr::Tcp { host: "127.0.0.1".into(), port: PORT });
    let mut open = vec![open_one(env, serving, &unix, &mut token)?];
    match open_one(env, serving, &tcp, &mut token) {
        Ok(tcp) => open.push(tcp),
        Err(e) if e.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::AddrInUse) => {
            fail::note(format_args!(
                "{}: another program listens there; the unix socket serves alone",
                tcp.addr
            ));
        }
        Err(e) => return Err(e),
    }
    Ok(open)
}

fn open_one(
    env: &rt::Real,
    serving: &Serving,
    listen: &Listen,
    token: &mut Option<Arc<str>>,
) -> Result<Open> {
    let listener = match Entrance::bind(&listen.addr, env) {
        Err(e) if e.kind() == io::ErrorKind::AddrInUse && serving.listen.is_empty() => {
            return Err(anyhow::Error::new(e).context(
                "another server is there already (`ninefold ls` shows its files); --listen ADDR serves elsewhere",
            ));
        }
        bound => bound?.waiting(listen.waits.unwrap_or_default()),
    };
    if let (Addr::Unix { path } | Addr::Shm { path }, Some(mode)) = (&listen.addr, serving.socket_mode) {
        if mode.0 & 0o066 != 0 && serving.identity != Some(Identity::Client) {
            bail!(
                "--socket-mode {:o} lets others in, and all would have this user's rights: say --as client",
                mode.0
            );
        }
        let permissions = std::fs::Permissions::from_mode(mode.0);
        std::fs::set_permissions(path, permissions).with_context(|| path.display().to_string())?;
    }
    let insecure = listen.insecure || serving.insecure.unwrap_or(false);
    let is_local = listener.local_only();
    let tls = tls(env, serving, &listen.addr)?;
    let certificates = tls.is_some() && serving.client_ca.is_some();
    let anonymous = match &listen.addr {
        Addr::Unix { .. } | Addr::Shm { .. } => Anonymous::Refused,
        _ if insecure => Anonymous::Trusted,
        _ if is_local && !certificates => local::anonymous(serving),
        Addr::Tls { .. } => Anonymous::Refused,
        _ => bail!(
            "{0}: anyone who reaches this address could read and change all files, and nothing is encrypted. Listen \
             on tls! with --cert and --key; `ninefold keys init && ninefold keys server NAME` creates both. To \
             accept the risk: --listen '{0} -insecure'",
            listen.addr
        ),
    };
    let wants_token =
        !matches!(listen.addr, Addr::Unix { .. } | Addr::Shm { .. }) && anonymous != Anonymous::Trusted;
    if wants_token && token.is_none() && !serving.no_token.unwrap_or(false) {
        *token = Some(match &serving.token_file {
            Some(path) => token::kept(env, path)?,
            None => token::fresh(env),
        });
    }
    let token = token.clone().filter(|_| wants_token);
    if anonymous == Anonymous::Refused && !is_local && tls.is_some() && !certificates && token.is_none() {
        bail!("{}: nobody could come in: give --client-ca, or let there be a token", listener.addr());
    }
    if anonymous == Anonymous::Trusted {
        tracing::warn!(addr = %listener.addr(), "INSECURE: whoever reaches this address can do everything");
    }
    let read_only = serving.read_only.unwrap_or(false);
    let clients = serving.max_clients.unwrap_or(CLIENTS) as usize;
    // If certificates are accepted, a local process is not identified by the kernel.
    let owner_reads = is_local && !certificates;
    let plain_files = serving.squash.unwrap_or_default() == SquashChoice::Root;
    let squash_root = plain_files && serving.identity == Some(Identity::Client);
    let gate = Gate { anonymous, owner_reads, squash_root, plain_files, token, read_only, policy: None };
    // Data connections would bypass the modules at the start of connections.
    let (streams, data) = match &*listen.push {
        [] => data(listener.addr(), listen.streams)?,
        _ => (None, None),
    };
    let data = data.map(|listener| Door { listener: Entrance::Sockets(listener), tls: tls.clone(), clients });
    let begins = listen.push.clone().into();
    Ok(Open { door: Door { listener, tls, clients }, gate, certificates, streams, data, begins })
}

/// Returns the address that clients dial for streams, and its listener if it is a separate one.
fn data(addr: &Addr, port: Option<u16>) -> Result<(Option<String>, Option<Listener>)> {
    let own = match addr {
        Addr::Tcp { port, .. } | Addr::Tls { port, .. } => *port,
        _ if port.is_some() => bail!("{addr}: -streams is for tcp! and tls! alone"),
        _ => return Ok((None, None)),
    };
    let other = port.map(|port| {
        let mut there = addr.clone();
        if let Addr::Tcp { port: p, .. } | Addr::Tls { port: p, .. } = &mut there {
            *p = port;
        }
        Listener::bind(&there)
    });
    let other = other.transpose()?;
    let port = match other.as_ref().map(Listener::addr) {
        Some(Addr::Tcp { port, .. } | Addr::Tls { port, .. }) => *port,
        _ => own,
    };
    Ok((Some(format!("tcp!*!{port}")), other))
}

fn tls(env: &rt::Real, serving: &Serving, addr: &Addr) -> Result<Option<Tls>> {
    let Addr::Tls { .. } = addr else { return Ok(None) };
    match certificate(env, serving)? {
        Some(tls) => Ok(Some(Arc::new(Mutex::new(tls)))),
        None => bail!(
            "{addr}: a tls! listener needs --cert and --key; `ninefold keys init && ninefold keys server NAME` \
             creates both"
        ),
    }
}

/// Returns the modules that clients may push: `tls` only with a certificate. `trace` is separate for each connection.
pub fn pushed(env: &rt::Real, serving: &Serving) -> Result<Pushed> {
    let (modules, clock) = (modules::modules(), env.clock());
    let tls = certificate(env, serving)?;
    let tls = tls.map(|tls| TlsServer { tls: Arc::new(Mutex::new(tls)), clock: clock.clone() });
    let modules = match tls {
        Some(tls) => modules.with("tls", tls),
        None => modules,
    };
    Ok(Pushed { modules, clock })
}

/// Loads the TLS settings from the files as they are now. Returns `None` if no files are configured.
pub fn certificate(env: &rt::Real, serving: &Serving) -> Result<Option<ServerTls>> {
    if serving.crl.is_some() && serving.client_ca.is_none() {
        bail!("--crl: a list of revoked certificates is of an authority; --client-ca FILE names it");
    }
    let (Some(cert), Some(key)) = (serving.cert.clone(), serving.key.clone()) else { return Ok(None) };
    let auth = match (&serving.client_ca, serving.no_token) {
        (None, _) => ClientAuth::None,
        (Some(_), Some(true)) => ClientAuth::Required,
        (Some(_), _) => ClientAuth::Optional,
    };
    let files = TlsFiles { cert, key, client_ca: serving.client_ca.clone(), crl: serving.crl.clone() };
    Ok(Some(ServerTls::new(files, auth, env.now(), env.wall())?))
}

/// Returns the default socket, where clients look for a server.
pub fn default_socket() -> Result<PathBuf> {
    let uid = rustix::process::geteuid();
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    // In a root shell the variable may still name another user's directory; that is no place for root's socket.
    let ours = |dir: &PathBuf| !uid.is_root() || dir.metadata().is_ok_and(|meta| meta.uid() == uid.as_raw());
    if let Some(dir) = runtime.filter(|dir| !dir.as_os_str().is_empty()).filter(ours) {
        return Ok(dir.join("ninefold.sock"));
    }
    if uid.is_root() {
        return Ok("/run/ninefold.sock".into());
    }
    let dir = own_dir();
    match dir.symlink_metadata() {
        Ok(meta) if !meta.is_dir() || meta.uid() != uid.as_raw() || meta.mode() & 0o077 != 0 => {
            bail!("{}: not a directory of ours alone; set XDG_RUNTIME_DIR", dir.display())
        }
        _ => Ok(dir.join("ninefold.sock")),
    }
}

/// Returns the directory for the socket on hosts without a runtime directory.
fn own_dir() -> PathBuf {
    format!("/tmp/ninefold-{}", rustix::process::geteuid().as_raw()).into()
}

fn make_socket_dir() -> Result<()> {
    let path = default_socket()?;
    match path.parent() {
        Some(dir) if dir == own_dir() && !dir.exists() => {
            std::fs::DirBuilder::new().mode(0o700).create(dir).with_context(|| dir.display().to_string())
        }
        _ => Ok(()),
    }
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Listen, String> {
        const FORM: &str = "write one address, and perhaps -insecure, -streams PORT or -push MODULE after it; \
                            after shm!, -poll, -interrupt or -adaptive";
        let (mut addr, mut insecure, mut streams, mut push) = (None, false, None, Vec::new());
        let mut waits = None;
        let mut words = text.split_whitespace().peekable();
        while let Some(word) = words.next() {
            match word {
                "-insecure" => insecure = true,
                "-poll" | "-interrupt" | "-adaptive" if waits.is_none() => waits = Waits::of(&word[1..]),
                "-streams" => {
                    let port = words.next().ok_or(FORM)?;
                    streams = Some(port.parse().map_err(|_| format!("-streams {port}: not a port"))?);
                }
                "-push" => {
                    // The arguments of the module follow.
                    let mut module = words.next().ok_or(FORM)?.to_owned();
                    while let Some(word) = words.next_if(|word| !word.starts_with('-')) {
                        module = module + " " + word;
                    }
                    push.push(module);
                }
                _ if addr.is_none() => {
                    addr = Some(match host_and_port(word) {
                        Some(addr) => addr,
                        None => word.parse().map_err(|e: nine_net::DialError| e.to_string())?,
                    });
                }
                _ => return Err(FORM.into()),
            }
        }
        let mut listen = Listen { insecure, streams, ..Listen::at(addr.ok_or(FORM)?).waiting(waits)? };
        push.iter().try_for_each(|module| listen.with_module(module))?;
        if listen.streams.is_some() && !push.is_empty() {
            return Err("-streams and -push: data connections would go past what is pushed".into());
        }
        Ok(listen)
    }
}

/// Parses `HOST:PORT`, which is as `tcp!HOST!PORT`.
fn host_and_port(word: &str) -> Option<Addr> {
    let (host, port) = word.rsplit_once(':')?;
    let is_number = port.parse::<u16>().is_ok();
    let host = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(host) => host.parse::<Ipv6Addr>().is_ok().then_some(host),
        None => (!host.contains(['!', ':', '/']) && !matches!(host, "unix" | "shm")).then_some(host),
    };
    format!("tcp!{}!{port}", host.filter(|_| is_number)?).parse().ok()
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.addr, if self.insecure { " -insecure" } else { "" })?;
        self.waits.map_or(Ok(()), |waits| write!(f, " -{}", waits.name()))?;
        self.streams.map_or(Ok(()), |port| write!(f, " -streams {port}"))?;
        self.push.iter().try_for_each(|module| write!(f, " -push {module}"))
    }
}

by_string! {
    Listen, String, |listen| listen.to_string();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn insecure_is_said_on_the_line() {
        let parse = |text: &str| text.parse::<Listen>().map(|l| l.to_string());
        assert_eq!(parse("tcp!*!564 -insecure"), Ok("tcp!*!564 -insecure".into()));
        assert_eq!(parse("-insecure tcp!*!564"), Ok("tcp!*!564 -insecure".into()));
        for (text, addr) in [
            ("9p://h:1", "tcp!h!1"),
            ("127.0.0.1:5640", "tcp!127.0.0.1!5640"),
            ("[::1]:5640 -insecure", "tcp!::1!5640 -insecure"),
            ("*:5640", "tcp!*!5640"),
            ("localhost:5640", "tcp!localhost!5640"),
            ("unix:5640", "unix!5640"),
        ] {
            assert_eq!(parse(text), Ok(addr.into()), "{text}");
        }
        for text in ["h:x", "::1:5640", ":5640", "[h]:5640", "h:65536"] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert!(parse("tcp!*!1 tcp!*!2").is_err() && parse("-insecure").is_err());
        assert_eq!(parse("tcp!*!564 -streams 5641"), Ok("tcp!*!564 -streams 5641".into()));
        assert!(parse("tcp!*!564 -streams x").is_err() && parse("tcp!*!564 -streams").is_err());
    }

    #[test]
    fn how_a_channel_waits_is_said_on_the_line() {
        let parse = |text: &str| text.parse::<Listen>().map(|l| l.to_string());
        for way in ["poll", "interrupt", "adaptive"] {
            let line = format!("shm!/run/x -{way}");
            assert_eq!(parse(&line), Ok(line));
        }
        assert_eq!(parse("shm!/run/x"), Ok("shm!/run/x".into()));
        assert!(parse("tcp!h!1 -poll").unwrap_err().contains("shm!/PATH"));
        assert!(parse("shm!/run/x -poll -interrupt").unwrap_err().contains("write one address"));
    }

    #[test]
    fn modules_of_a_listener_are_those_that_one_end_has_alone() {
        let parse = |text: &str| text.parse::<Listen>().map(|l| l.to_string());
        let all = "tcp!h!1 -insecure -push throttle 10M -push trace";
        assert_eq!(parse(all), Ok(all.into()));
        for (text, said) in [
            ("tcp!h!1 -push", "write one address"),
            ("tcp!h!1 -push zstd", "pushed by whoever connects"),
            ("tcp!h!1 -push throttle", "invalid size"),
            ("tcp!h!1 -push trace 3", "no arguments"),
            ("tcp!h!1 -streams 5 -push trace", "would go past"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}
