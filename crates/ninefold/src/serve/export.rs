//! The operand of `serve`: `disk:/path` (or just a path), `ram:`, `ram:SIZE`, `fs:ARCHIVE` or a name space file. Also
//! the file servers for the first three.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, OnceLock};

use anyhow::{Context, Result};
use nine_io::server::FileServer;
use nine_servers::{Disk, DiskOptions, Ram};

use crate::archive::{Spec, memory};
use crate::config::Serving;
use crate::operand::AddrShape;

/// Default size of `ram:` in bytes: half of the memory that this program may use, at most 1 GiB.
pub fn default_ram_size() -> u64 {
    static SIZE: OnceLock<u64> = OnceLock::new();
    *SIZE.get_or_init(|| (memory::available() / 2).min(RAM_MAX))
}

/// Upper limit of the default size of `ram:`, bytes.
const RAM_MAX: u64 = 1 << 30;

/// The tree to serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Export {
    /// A directory of this machine.
    Disk(PathBuf),
    /// A tree in memory, limited to this many bytes.
    Ram(u64),
    /// An archive, its dumps and its console.
    Archive(Spec),
    /// The tree that a name space file describes.
    Space(PathBuf),
}

impl Export {
    /// Returns the default: the current directory.
    pub fn here() -> Result<Export> {
        Ok(Export::Disk(std::env::current_dir().context("the current directory")?))
    }
}

/// Creates the file server of a directory.
pub fn disk(path: &Path, serving: &Serving) -> Result<Arc<dyn FileServer>> {
    let whole = path.canonicalize().context(path.display().to_string())?;
    Ok(Arc::new(Disk::open(&whole, disk_options(serving)).context(path.display().to_string())?))
}

/// Creates a tree in memory.
pub fn ram(limit: u64) -> Arc<dyn FileServer> {
    Arc::new(Ram::new(limit))
}

/// Returns the options for serving directories.
pub fn disk_options(serving: &Serving) -> DiskOptions {
    DiskOptions {
        read_only: serving.read_only.unwrap_or(false),
        identity: serving.identity.map(Into::into).unwrap_or_default(),
        devices: serving.devices.unwrap_or(false),
        ..DiskOptions::default()
    }
}

impl fmt::Display for Export {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Export::Disk(path) => {
                write!(f, "disk:{}", path.canonicalize().as_ref().unwrap_or(path).display())
            }
            Export::Ram(limit) => write!(f, "ram:{limit}"),
            Export::Archive(spec) => write!(f, "fs:{spec}"),
            Export::Space(path) => write!(f, "{}", path.display()),
        }
    }
}

impl FromStr for Export {
    type Err = String;

    fn from_str(word: &str) -> Result<Export, String> {
        if let Some(why) = not_a_server(word) {
            return Err(why);
        }
        match word.split_once(':') {
            Some(("disk", "")) => Err("write disk:/PATH".into()),
            Some(("disk", path)) => Ok(Export::Disk(path.into())),
            Some(("ram", "")) => Ok(Export::Ram(default_ram_size())),
            Some(("ram", size)) => ram_size(size).map(Export::Ram),
            Some(("fs", archive)) => archive.parse().map(Export::Archive),
            Some((kind, _)) if !kind.is_empty() && !kind.contains(['/', '.']) => Err(format!(
                "`{kind}:` is no server; write disk:/PATH, ram:, ram:SIZE or fs:ARCHIVE (a path may begin with ./)"
            )),
            _ if word.is_empty() => Err("write a path, disk:/PATH, ram:, ram:SIZE or fs:ARCHIVE".into()),
            _ if word.ends_with(".ns") || Path::new(word).is_file() => Ok(Export::Space(word.into())),
            _ => Ok(Export::Disk(word.into())),
        }
    }
}

/// Explains a word that was meant as an address, unless there is a file of this name.
fn not_a_server(word: &str) -> Option<String> {
    let plain = word.replacen("://", ":", 1);
    let AddrShape { net, host, port, .. } = AddrShape::of(plain.trim_end_matches('/'))?;
    if Path::new(word).exists() {
        return None;
    }
    let http = net.filter(|net| *net == "https").unwrap_or("http");
    let tcp = net.filter(|net| *net == "tls").unwrap_or("tcp");
    Some(format!(
        "an address is no server; after --http it needs a `=`: --http='{http}!{host}!{port}'; for 9P write --listen \
         '{tcp}!{host}!{port}'"
    ))
}

/// Parses the size of `ram:SIZE`.
pub fn ram_size(text: &str) -> Result<u64, String> {
    nine_text::parse_size(text).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_one_word() {
        for (word, export) in [
            ("/srv", Export::Disk("/srv".into())),
            ("disk:/srv", Export::Disk("/srv".into())),
            ("./a:b", Export::Disk("./a:b".into())),
            ("src", Export::Disk("src".into())),
            ("ram:", Export::Ram(default_ram_size())),
            ("ram:64M", Export::Ram(64 << 20)),
            ("ram:64m", Export::Ram(64 << 20)),
            ("ram:2T", Export::Ram(2 << 40)),
            ("home.ns", Export::Space("home.ns".into())),
            ("Cargo.toml", Export::Space("Cargo.toml".into())),
            ("disk:x.ns", Export::Disk("x.ns".into())),
        ] {
            assert_eq!(word.parse(), Ok(export), "{word}");
        }
        for (word, http) in [
            ("127.0.0.1:8080", "--http='http!127.0.0.1!8080'"),
            ("http!127.0.0.1!8080", "--http='http!127.0.0.1!8080'"),
            ("http://localhost:8080/", "--http='http!localhost!8080'"),
            ("https!*!443", "--http='https!*!443'"),
        ] {
            let why = word.parse::<Export>().unwrap_err();
            assert!(why.contains(http) && why.contains("needs a `=`"), "{word}: {why}");
        }
        for word in ["", "disk:", "ram:x", "ram:99999999999G", "net:"] {
            assert!(word.parse::<Export>().is_err(), "{word}");
        }
    }
}
