//! Settings from files, the environment and the command line; each source overrides the ones before.
//!
//! In: `/etc/ninefold.toml`, then `~/.config/ninefold/config.toml` (or the one file of `--config`), and the options
//! that clap parsed. Out: one [`Remote`] or [`Serving`] with the value of the strongest source for each key.
//!
//! Always holds: one struct defines both the command-line options and the keys of the file, so both have the same
//! names. An unknown key is an error that names its line. A token is never read from or written to a configuration
//! file.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, Result, anyhow};
use clap::builder::BoolishValueParser;
use clap::{Args, ValueEnum};
use nine_io::near;
use nine_net::shm::Waits;
use nine_net::{Target, is_socket};
use nine_proto::Dialect;
use nine_servers::As;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::serve::{Console, Listen, Web};

/// Options of every verb.
#[derive(Clone, Debug, Default, Args)]
pub struct General {
    /// Read this configuration file instead of the usual ones
    #[arg(long, hide_short_help = true, global = true, value_name = "FILE",
        env = "NINEFOLD_CONFIG", help_heading = GENERAL)]
    pub config: Option<PathBuf>,
    /// Level of the log on the standard error [default: info for serve, else warn]
    #[arg(long, hide_short_help = true, global = true, value_name = "LEVEL",
        env = "NINEFOLD_LOG", help_heading = GENERAL)]
    pub log: Option<Level>,
    /// Format of the log [default: text]
    #[arg(long, hide_short_help = true, global = true, value_name = "FORMAT",
        env = "NINEFOLD_LOG_FORMAT", help_heading = GENERAL)]
    pub log_format: Option<LogFormat>,
}

/// How a client reaches servers and identifies itself.
#[derive(Clone, Debug, Default, Args, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
#[command(next_help_heading = "Connection")]
pub struct Remote {
    /// The default server
    #[arg(long, value_name = "ADDR", env = "NINEFOLD_SERVER")]
    pub server: Option<Server>,
    /// User on the server: a name or a number [default: the current user]
    #[arg(long, hide_short_help = true, value_name = "NAME", env = "NINEFOLD_USER")]
    pub user: Option<String>,
    /// Tree of the server to attach to
    #[arg(long, hide_short_help = true, value_name = "NAME", env = "NINEFOLD_ANAME")]
    pub aname: Option<String>,
    /// 9P dialect to propose
    #[arg(long, hide_short_help = true, env = "NINEFOLD_DIALECT")]
    pub dialect: Option<DialectChoice>,
    /// Maximum message size to propose, bytes
    #[arg(long, hide_short_help = true, value_name = "SIZE", env = "NINEFOLD_MSIZE", value_parser = msize)]
    pub msize: Option<u32>,
    /// Maximum wait for a connection, seconds
    #[arg(long, hide_short_help = true, value_name = "SECONDS",
        env = "NINEFOLD_TIMEOUT", value_parser = clap::value_parser!(u32).range(1..))]
    pub timeout: Option<u32>,
    /// Maximum wait for the answer of a silent server, seconds [default: unlimited, with a message]
    #[arg(long, hide_short_help = true, value_name = "SECONDS",
        env = "NINEFOLD_PATIENCE", value_parser = clap::value_parser!(u32).range(1..))]
    pub patience: Option<u32>,
    /// Module to push on the connection before any request: zstd, tls, `throttle 10M`; may be repeated
    #[arg(long, hide_short_help = true, value_name = "MODULE", env = "NINEFOLD_PUSH", value_delimiter = ',')]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub push: Vec<String>,
    /// How channels (shm!) wait for their servers [default: adaptive]
    #[arg(long, hide_short_help = true, value_name = "HOW", env = "NINEFOLD_WAITS")]
    pub waits: Option<WaitsChoice>,
    /// Certificates of the authorities for servers, PEM
    #[arg(long, hide_short_help = true, value_name = "FILE", env = "NINEFOLD_CA", conflicts_with = "pin")]
    pub ca: Option<PathBuf>,
    /// SHA-256 of the server's certificate, in hex
    #[arg(long, hide_short_help = true, value_name = "FINGERPRINT", env = "NINEFOLD_PIN")]
    pub pin: Option<Pin>,
    /// Certificate of this client, PEM
    #[arg(long, hide_short_help = true, value_name = "FILE", env = "NINEFOLD_CERT", requires = "key")]
    pub cert: Option<PathBuf>,
    /// Key of that certificate, PEM
    #[arg(long, hide_short_help = true, value_name = "FILE", env = "NINEFOLD_KEY", requires = "cert")]
    pub key: Option<PathBuf>,
    /// File with the token
    #[arg(
        long,
        hide_short_help = true,
        value_name = "FILE",
        env = "NINEFOLD_TOKEN_FILE",
        conflicts_with = "token"
    )]
    pub token_file: Option<PathBuf>,
    /// The token that the server printed at its start
    #[arg(long, value_name = "HEX", env = "NINEFOLD_TOKEN", hide_env_values = true)]
    #[serde(skip)]
    pub token: Option<String>,
}

/// Options of `serve`.
#[derive(Clone, Debug, Default, Args, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Serving {
    /// Address to listen on, or `HOST:PORT` for tcp!HOST!PORT; may be repeated. `-insecure` after the address, in the
    /// same argument, authorizes every client that reaches it; after shm!, `-poll`, `-interrupt` or `-adaptive` selects
    /// how channels wait [default: a unix socket of this user, and tcp!127.0.0.1!5640]
    #[arg(
        long,
        value_name = "ADDR",
        env = "NINEFOLD_LISTEN",
        value_delimiter = ',',
        allow_hyphen_values = true
    )]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub listen: Vec<Listen>,
    /// Serve web browsers, read-only; after the address, in the same argument, `-insecure` authorizes clients from
    /// other machines, `-srpt SECONDS` sends the shortest answers first, `-host NAME` is a host name of this server
    /// [default: http!127.0.0.1!8080; none with --listen]
    #[arg(
        long,
        value_name = "ADDR",
        env = "NINEFOLD_HTTP",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "http!127.0.0.1!8080",
        value_delimiter = ','
    )]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub http: Vec<Web>,
    /// Offer a console of the archives on an Ethernet (CEC); in the same argument `-password FILE`, not readable by
    /// others, and optionally `-shelf N` and `-name NAME`: 'cec!eth0 -password /etc/ninefold.cec'
    #[arg(long, value_name = "ADDR", env = "NINEFOLD_CEC", value_delimiter = ',')]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cec: Vec<Console>,
    /// Log each answer to a browser to this file, one per line (`-`: the standard error); SIGHUP reopens it
    #[arg(long, value_name = "FILE", env = "NINEFOLD_ACCESS_LOG")]
    pub access_log: Option<PathBuf>,
    /// Same as `-insecure` after every --listen
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL",
        env = "NINEFOLD_INSECURE", value_parser = BoolishValueParser::new())]
    pub insecure: Option<bool>,
    /// Files that other users of this machine can read over loopback without the token. The server's user and root read
    /// everything [default: public]
    #[arg(long, value_name = "WHAT", env = "NINEFOLD_LOCAL_USERS")]
    pub local_users: Option<LocalReaders>,
    /// Refuse all changes
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL",
        env = "NINEFOLD_READ_ONLY", value_parser = BoolishValueParser::new())]
    pub read_only: Option<bool>,
    /// Serve requests with the rights of the server's user or, if root serves, with those of each client's user
    #[arg(long = "as", value_name = "WHO", env = "NINEFOLD_AS")]
    #[serde(rename = "as")]
    pub identity: Option<Identity>,
    /// Limit clients of `-insecure` addresses. `root`: with --as client, a client that claims to be root is nobody, and
    /// none creates devices or set-id files. `no`: no such limits [default: root]
    #[arg(long, value_name = "WHOM", env = "NINEFOLD_SQUASH")]
    pub squash: Option<SquashChoice>,
    /// Let clients open devices and pipes of this machine
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL",
        env = "NINEFOLD_DEVICES", value_parser = BoolishValueParser::new())]
    pub devices: Option<bool>,
    /// Certificate of tls! listeners, PEM; reloaded when it changes
    #[arg(long, value_name = "FILE", env = "NINEFOLD_SERVE_CERT", requires = "key")]
    pub cert: Option<PathBuf>,
    /// Key of that certificate, PEM
    #[arg(long, value_name = "FILE", env = "NINEFOLD_SERVE_KEY", requires = "cert")]
    pub key: Option<PathBuf>,
    /// Certificates of the authorities for clients, PEM
    #[arg(long, value_name = "FILE", env = "NINEFOLD_CLIENT_CA", requires = "cert")]
    pub client_ca: Option<PathBuf>,
    /// Certificate revocation lists of these authorities (CRL), PEM; reloaded when the file changes
    #[arg(long, value_name = "FILE", env = "NINEFOLD_CRL", requires = "client_ca")]
    pub crl: Option<PathBuf>,
    /// File with rules about which client may attach to which tree, one per line (docs/keys.md); reloaded when it
    /// changes. A client without a matching rule is refused
    #[arg(id = "exports-file", long = "exports", value_name = "FILE", env = "NINEFOLD_EXPORTS")]
    pub exports: Option<PathBuf>,
    /// Audit log: a line of JSON for each attach, mount and control command is appended to this file, which others
    /// cannot read; SIGHUP reopens it
    #[arg(long, value_name = "FILE", env = "NINEFOLD_AUDIT")]
    pub audit: Option<PathBuf>,
    /// In a name space file, treat a server that does not answer as an error, at the start and on a reload; otherwise
    /// its lines wait for it
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL",
        env = "NINEFOLD_STRICT", value_parser = BoolishValueParser::new())]
    pub strict: Option<bool>,
    /// Keep the token in this file across restarts; created if it does not exist
    #[arg(long, value_name = "FILE", env = "NINEFOLD_SERVE_TOKEN_FILE", conflicts_with = "no_token")]
    pub token_file: Option<PathBuf>,
    /// Use no token: a client without another proof can only read, over loopback
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL",
        env = "NINEFOLD_NO_TOKEN", value_parser = BoolishValueParser::new())]
    pub no_token: Option<bool>,
    /// Maximum message size to agree to, bytes
    #[arg(long, value_name = "SIZE", env = "NINEFOLD_SERVE_MSIZE", value_parser = msize)]
    pub msize: Option<u32>,
    /// Maximum number of clients; more are refused
    #[arg(long, value_name = "N", env = "NINEFOLD_MAX_CLIENTS", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_clients: Option<u32>,
    /// Maximum number of fids of a client
    #[arg(long, value_name = "N", env = "NINEFOLD_MAX_FIDS", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_fids: Option<u32>,
    /// Permissions of unix sockets, octal; access for others than the owner is useful only with --as client [default:
    /// 600]
    #[arg(long, value_name = "MODE", env = "NINEFOLD_SOCKET_MODE")]
    pub socket_mode: Option<SocketMode>,
    /// Number of processors to use [default: 1 if there are fewer than four, else all]
    #[arg(long, value_name = "N", env = "NINEFOLD_CORES", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub cores: Option<u32>,
}

impl Serving {
    /// Returns whether browsers are served. If the user names listen addresses, this needs an `--http` option, too.
    pub fn serves_browsers(&self) -> bool {
        !self.http.is_empty() || self.listen.is_empty()
    }
}

/// Files that other users can read over loopback; others are all but the server's user and root.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LocalReaders {
    /// Files that their modes let everybody read, from the served root on
    #[default]
    Public,
    /// No files
    None,
    /// All files, whatever their modes
    All,
}

/// Limits on clients that prove nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SquashChoice {
    /// No client is root with --as client, or creates devices or set-id files
    #[default]
    Root,
    /// No limits
    No,
}

/// The permissions of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SocketMode(pub u32);

impl FromStr for SocketMode {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match u32::from_str_radix(text, 8) {
            Ok(mode) if mode <= 0o777 => Ok(Self(mode)),
            _ => Err("permissions are an octal number up to 777, like 666"),
        }
    }
}

/// The tables of a configuration file.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Config {
    pub log: Option<Level>,
    pub log_format: Option<LogFormat>,
    pub client: Remote,
    pub serve: Serving,
}

impl Config {
    /// Reads the configuration files.
    pub fn load(general: &General) -> Result<Config> {
        let mut config = Config::default();
        for path in files(general) {
            if general.config.is_some() || path.exists() {
                config = config.under(Config::read(&path)?)?;
            }
        }
        Ok(config)
    }

    /// Reads one file. The error names the line that is wrong.
    pub fn read(path: &Path) -> Result<Config> {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let config = Config::parse(&text).map_err(|error| anyhow!("{}{}", error, meant(error.message())));
        config.with_context(|| path.display().to_string())
    }

    fn parse(text: &str) -> Result<Config, toml::de::Error> {
        toml::from_str(text)
    }

    /// Merges two configurations; the values of `over` win.
    fn under(self, over: Config) -> Result<Config> {
        Ok(Config {
            log: over.log.or(self.log),
            log_format: over.log_format.or(self.log_format),
            client: layer(&self.client, &over.client)?,
            serve: layer(&self.serve, &over.serve)?,
        })
    }

    /// Returns the client's settings, overridden by those from the environment and the command line.
    pub fn remote(&self, over: &Remote) -> Result<Remote> {
        let mut remote = layer(&self.client, over)?;
        // `ca` and `pin` exclude each other: the one from the stronger source wins.
        if over.ca.is_some() {
            remote.pin = None;
        } else if over.pin.is_some() {
            remote.ca = None;
        }
        remote.token = over.token.clone();
        Ok(remote)
    }

    /// Returns the client's settings from files and environment, for a server that is a client of other servers.
    pub fn remote_of_server(&self) -> Result<Remote> {
        #[derive(clap::Parser)]
        struct Environment {
            #[command(flatten)]
            remote: Remote,
        }
        let environment = <Environment as clap::Parser>::try_parse_from(["environment"])?;
        self.remote(&environment.remote)
    }

    /// Returns the server's settings, overridden by those from the environment and the command line.
    pub fn serving(&self, over: &Serving) -> Result<Serving> {
        layer(&self.serve, over)
    }
}

/// Suggests the name that was meant, for an error like "unknown field `lisen`, expected one of `listen`, `http`".
fn meant(message: &str) -> String {
    let mut words = message.split('`').skip(1).step_by(2);
    let wrong = words.next().filter(|_| message.starts_with("unknown "));
    wrong.map(|wrong| near::hint(wrong, words)).unwrap_or_default().trim_start_matches("; ").into()
}

/// Lists the configuration files, weakest first.
pub fn files(general: &General) -> Vec<PathBuf> {
    if let Some(path) = &general.config {
        return vec![path.clone()];
    }
    let ours = home().map(|dir| dir.join("ninefold/config.toml"));
    [Some(PathBuf::from("/etc/ninefold.toml")), ours].into_iter().flatten().collect()
}

/// Returns the user's configuration directory.
pub fn home() -> Option<PathBuf> {
    let home = std::env::var_os("XDG_CONFIG_HOME").filter(|dir| !dir.is_empty()).map(PathBuf::from);
    home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".config")))
}

/// Returns `under`, overridden by every key that `over` has.
fn layer<T: Serialize + DeserializeOwned>(under: &T, over: &T) -> Result<T> {
    let mut table = toml::Table::try_from(under)?;
    table.extend(toml::Table::try_from(over)?);
    Ok(table.try_into()?)
}

fn msize(text: &str) -> Result<u32, String> {
    match nine_text::parse_size(text).map_err(|error| error.to_string())? {
        size @ 512..=0x10_0000 => Ok(size as u32),
        _ => Err("a message has 512 bytes to 1M".into()),
    }
}

const GENERAL: &str = "General";

/// Lowest level of logged events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

/// Format of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    Text,
    Json,
}

/// How an end of a channel of shared memory waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WaitsChoice {
    /// Never sleep: for a processor of its own
    Poll,
    /// Sleep at once
    Interrupt,
    /// Poll for about as long as a wake-up takes, then sleep
    Adaptive,
}

impl Remote {
    /// Makes all file names absolute, so that they are valid in any current directory.
    pub fn absolute(&mut self) -> std::io::Result<()> {
        let files = [&mut self.ca, &mut self.cert, &mut self.key, &mut self.token_file];
        for file in files.into_iter().flatten() {
            *file = std::path::absolute(&*file)?;
        }
        Ok(())
    }

    /// Selects a dialect that carries error texts, unless the user chose a dialect. For requests to control files.
    pub fn with_error_texts(mut self) -> Self {
        self.dialect = self.dialect.or(Some(DialectChoice::Texts));
        self
    }

    /// Returns how the ends of channels wait.
    pub fn waits(&self) -> Waits {
        match self.waits {
            Some(WaitsChoice::Poll) => Waits::Poll,
            Some(WaitsChoice::Interrupt) => Waits::Interrupt,
            Some(WaitsChoice::Adaptive) => Waits::Adaptive,
            None => Waits::default(),
        }
    }
}

/// Dialect that a client proposes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub enum DialectChoice {
    /// The best one that the server supports
    #[value(name = "auto")]
    #[serde(rename = "auto")]
    Auto,
    /// 9P2000.L
    #[value(name = "L", alias = "9P2000.L")]
    L,
    /// 9P2000.u
    #[value(name = "u", alias = "9P2000.u")]
    #[serde(rename = "u")]
    U,
    /// 9P2000
    #[value(name = "9P2000")]
    #[serde(rename = "9P2000")]
    P2000,
    /// 9P2000.L with streams
    #[value(name = "L.s", alias = "9P2000.L.s")]
    #[serde(rename = "L.s")]
    Ls,
    /// 9P2000.u with streams
    #[value(name = "u.s", alias = "9P2000.u.s")]
    #[serde(rename = "u.s")]
    Us,
    /// 9P2000 with streams
    #[value(name = "9P2000.s")]
    #[serde(rename = "9P2000.s")]
    P2000s,
    /// A dialect whose errors are texts, if the server has one; 9P2000.L has only numbers
    #[value(skip)]
    #[serde(skip)]
    Texts,
}

impl DialectChoice {
    /// Returns the dialects to try. `None` stands for the default list, with streams if the server has them.
    pub fn list(choice: Option<Self>) -> Option<Vec<Dialect>> {
        match choice? {
            Self::Auto => None,
            Self::L => Some(vec![Dialect::L]),
            Self::U => Some(vec![Dialect::U]),
            Self::P2000 => Some(vec![Dialect::P2000]),
            Self::Ls => Some(vec![Dialect::LS]),
            Self::Us => Some(vec![Dialect::US]),
            Self::P2000s => Some(vec![Dialect::P2000S]),
            Self::Texts => Some(vec![Dialect::U, Dialect::P2000, Dialect::L]),
        }
    }
}

/// How an end of a channel waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Waiting {
    /// Never sleep: for a processor of its own
    Poll,
    /// Sleep at once
    Interrupt,
    /// Poll for about as long as a wake-up takes, then sleep
    Adaptive,
}

impl From<Waiting> for Waits {
    fn from(waiting: Waiting) -> Waits {
        match waiting {
            Waiting::Poll => Waits::Poll,
            Waiting::Interrupt => Waits::Interrupt,
            Waiting::Adaptive => Waits::Adaptive,
        }
    }
}

/// The user whose rights requests have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Identity {
    Server,
    Client,
}

impl From<Identity> for As {
    fn from(identity: Identity) -> As {
        match identity {
            Identity::Server => As::Server,
            Identity::Client => As::Client,
        }
    }
}

/// An address, perhaps with a token and a base directory for paths. Stored as it was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Server(String);

impl Server {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Server {
    type Err = nine_net::DialError;

    fn from_str(text: &str) -> Result<Server, Self::Err> {
        Target::parse(text, is_socket).map(|_| Server(text.into()))
    }
}

/// A SHA-256 in hex.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Pin(String, [u8; 32]);

impl Pin {
    pub fn bytes(&self) -> [u8; 32] {
        self.1
    }
}

impl FromStr for Pin {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Pin, Self::Err> {
        let bytes = nine_net::fingerprint(text);
        bytes.map(|bytes| Pin(text.into(), bytes)).ok_or("a SHA-256 has 64 hexadecimal digits")
    }
}

macro_rules! by_string {
    ($($ty:ty, $err:ty, |$value:ident| $text:expr;)*) => {
        $(impl TryFrom<String> for $ty {
            type Error = $err;
            fn try_from(text: String) -> Result<Self, $err> {
                text.parse()
            }
        }

        impl From<$ty> for String {
            fn from($value: $ty) -> String {
                $text
            }
        })*
    };
}
pub(crate) use by_string;

by_string! {
    Server, nine_net::DialError, |server| server.0;
    Pin, &'static str, |pin| pin.0;
    SocketMode, &'static str, |mode| format!("{:o}", mode.0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stronger_place_wins_key_by_key() {
        let etc = Config::parse("log = 'info'\n[client]\nmsize = 8192\nuser = 'glenda'\n").unwrap();
        let home = Config::parse("[client]\nmsize = 65536\n[serve]\nread-only = true\n").unwrap();
        let config = etc.under(home).unwrap();
        let flags = Remote { user: Some("rob".into()), token: Some("t".into()), ..Remote::default() };
        let remote = config.remote(&flags).unwrap();
        assert_eq!((remote.msize, remote.user.as_deref()), (Some(65536), Some("rob")));
        assert_eq!(remote.token.as_deref(), Some("t"));
        assert_eq!(config.log, Some(Level::Info));
        let flags = Serving { read_only: Some(false), ..Serving::default() };
        assert_eq!(config.serving(&flags).unwrap().read_only, Some(false));
        assert_eq!(config.serving(&Serving::default()).unwrap().read_only, Some(true));
    }

    #[test]
    fn a_wrong_key_or_value_is_an_error_with_its_line() {
        for (text, line, what) in [
            ("\n[serve]\nlissten = []\n", "line 3", "lissten"),
            ("[client]\nserver = 'nonsense'\n", "line 2", "nonsense"),
            ("[client]\n\npin = 'ab'\n", "line 3", "64 hexadecimal"),
            ("[client]\ntoken = 'secret'\n", "line 2", "token"),
            ("[serve]\nlisten = ['tcp!*!x']\n", "line 2", "`x`"),
            ("log = 'loud'\n", "line 1", "loud"),
        ] {
            let error = Config::parse(text).unwrap_err().to_string();
            assert!(error.contains(line) && error.contains(what), "{text}: {error}");
        }
    }

    #[test]
    fn what_is_shown_can_be_read_again() {
        let text = "[serve]\nlisten = ['tcp!*!564 -insecure', 'unix!/tmp/x']\nas = 'client'\n[client]\ndialect = 'L'\n";
        let shown = toml::to_string(&Config::parse(text).unwrap()).unwrap();
        assert_eq!(toml::to_string(&Config::parse(&shown).unwrap()).unwrap(), shown);
        assert!(shown.contains("tcp!*!564 -insecure"), "{shown}");
    }
}
