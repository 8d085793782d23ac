//! Archives: how words describe them, how they are created and opened, and the running archives of this process.
//!
//! In: the words after `fs:`, and those of the verb `fs`. Out: [`Spec`]s; archives of nine-fs.

mod grow;
mod make;
pub mod memory;
mod open;
pub mod places;
mod running;
mod standby;

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context as _, Result};
use nine_block::{Arg, Tree, What};

use crate::disks::{self, CACHED};

pub use make::{Making, ream};
pub use open::{Opened, copy_worm, look, open, over, recover, repair, work};
pub use running::Archives;
#[cfg(feature = "s3")]
pub use standby::SILENCE;
pub use standby::{arbiter, by_turn};

/// Default schedule of dumps.
const SCHEDULE: &str = "05:00";
/// Default schedule of scrubs. In an object store, where reads cost money, the default is never.
const SCRUB: &str = "every 30d";

/// An archive: its location and its options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    pub place: Place,
    pub options: Options,
}

/// The location of an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// The default file, which is created if it does not exist.
    Own,
    /// A file that holds both devices.
    File(PathBuf),
    /// Both devices, as an expression.
    Devices(String),
    /// The worm of another server, to read its dumps: a path or an expression.
    Follow(String),
}

/// Options after the location, as `,WORD=VALUE`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    pub zone: Option<String>,
    pub schedule: Option<String>,
    pub scrub: Option<String>,
    pub memory: Option<u64>,
    /// Interfaces to its disks on an Ethernet.
    pub over: Vec<String>,
    /// Start mirrors although a missing member may be newer.
    pub anyway: bool,
    /// The disk on which machines agree on the primary, and this machine's name there.
    pub arbiter: Option<String>,
    pub machine: Option<String>,
    /// All machines share one cache device; else each machine has its own.
    pub shared: bool,
    /// Start as a standby.
    pub standby: bool,
    /// Limit of silence of a disk on an Ethernet; `None` for the default. No word sets it.
    pub patience: Option<Duration>,
}

impl Options {
    const KEYS: [&str; 10] =
        ["zone", "schedule", "scrub", "memory", "over", "mirrors", "arbiter", "machine", "cache", "begin"];

    pub fn memory(&self) -> u64 {
        self.memory.unwrap_or_else(memory::share)
    }

    pub fn schedule(&self) -> &str {
        self.schedule.as_deref().unwrap_or(SCHEDULE)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        if value.is_empty() {
            return Err(format!("`{key}=` without a value"));
        }
        match key {
            "zone" => self.zone = Some(value.into()),
            "schedule" => self.schedule = Some(value.into()),
            "scrub" => self.scrub = Some(value.into()),
            "memory" => self.memory = Some(nine_text::parse_size(value).map_err(|error| error.to_string())?),
            "arbiter" => {
                disks::parse(value).map_err(|wrong| format!("the arbiter: {wrong}"))?;
                self.arbiter = Some(value.into());
            }
            "machine" => self.machine = Some(value.into()),
            "cache" if value == "shared" => self.shared = true,
            "cache" => return Err("`cache=shared`: all machines have this cache; else leave it out".into()),
            "begin" if value == "standby" => self.standby = true,
            "begin" => {
                return Err("`begin=standby`: another machine is the main one; else leave it out".into());
            }
            "mirrors" if value == "anyway" => self.anyway = true,
            "mirrors" => {
                return Err(
                    "`mirrors=anyway` starts them without members that are missing; else leave it out".into(),
                );
            }
            _ => self.over = value.split(',').map(String::from).collect(),
        }
        Ok(())
    }
}

impl Spec {
    /// Returns the schedule of scrubs.
    pub fn scrub(&self) -> &str {
        let in_store =
            matches!(&self.place, Place::Devices(text) | Place::Follow(text) if text.contains("s3\""));
        self.options.scrub.as_deref().unwrap_or(if in_store { "off" } else { SCRUB })
    }
}

impl Place {
    /// Returns whether all its paths are absolute.
    pub fn is_absolute(&self) -> bool {
        let mut all = true;
        // The function changes no path; it only looks at them.
        let _ = self.map(|path| {
            all &= path.is_absolute();
            Ok(path.into())
        });
        all
    }

    /// Returns whether there is a separate cache device for new data.
    pub fn has_cache(&self) -> bool {
        let Self::Devices(text) = self else { return true };
        !matches!(disks::parse(text), Ok(Tree { what: What::Of("c", of), .. }) if disks::is_none(&of[0]))
    }

    /// Makes relative paths relative to `dir`.
    pub fn within(&self, dir: &Path) -> Result<Self> {
        self.map(|path| Ok(std::path::absolute(dir.join(path))?))
    }

    /// Returns the path of the default file.
    pub fn own() -> Result<PathBuf> {
        let named = |name| std::env::var_os(name).filter(|dir| !dir.is_empty()).map(PathBuf::from);
        let state = named("XDG_STATE_HOME").or_else(|| {
            if rustix::process::geteuid().is_root() {
                return Some("/var/lib".into());
            }
            Some(named("HOME")?.join(".local/state"))
        });
        Ok(state.context("neither $XDG_STATE_HOME nor $HOME says where")?.join("ninefold/archive"))
    }

    /// Returns the worm from which others can read its dumps, as a follower names it.
    pub fn worm(&self) -> Result<String> {
        Ok(match self {
            Self::Own => utf8(Self::own()?)?,
            Self::File(path) => utf8(path.clone())?,
            Self::Follow(worm) => worm.clone(),
            Self::Devices(text) => match disks::parse(text)?.what {
                What::Of("c", of) => of[1].to_string(),
                _ => anyhow::bail!("`{text}`: {CACHED}"),
            },
        })
    }

    fn map(&self, mut to: impl FnMut(&Path) -> Result<PathBuf>) -> Result<Self> {
        Ok(match self {
            Self::Own => Self::Own,
            Self::File(path) => Self::File(to(path)?),
            Self::Devices(text) => Self::Devices(map_text(text, &mut to)?),
            Self::Follow(path) if is_path(path) => Self::Follow(utf8(to(Path::new(path))?)?),
            Self::Follow(text) => Self::Follow(map_text(text, &mut to)?),
        })
    }
}

fn is_path(word: &str) -> bool {
    word.starts_with(['/', '.'])
}

/// Returns whether a word has only characters that a plain path may have, so that it may be a relative path.
fn is_plain(word: &str) -> bool {
    word.chars().all(|c| c.is_alphanumeric() || "._-+@%~:=/".contains(c))
}

/// Strips the prefix of a server word: `fs:/srv/a` names the same archive as `/srv/a`.
fn without_kind(word: &str) -> &str {
    word.strip_prefix("fs:").unwrap_or(word)
}

fn utf8(path: PathBuf) -> Result<String> {
    path.into_os_string().into_string().ok().context("a path in an expression is UTF-8")
}

fn map_text(text: &str, to: &mut impl FnMut(&Path) -> Result<PathBuf>) -> Result<String> {
    let mut tree = disks::parse(text)?;
    map(&mut tree, to)?;
    Ok(tree.to_string())
}

/// Replaces the paths in an expression.
fn map(tree: &mut Tree, to: &mut impl FnMut(&Path) -> Result<PathBuf>) -> Result<()> {
    match &mut tree.what {
        What::Leaf(letter, Arg::Text(name)) if letter == "w" => {
            *name = utf8(to(Path::new(&*name))?)?;
            Ok(())
        }
        What::Leaf(..) => Ok(()),
        What::Of(_, of) => of.iter_mut().try_for_each(|tree| map(tree, to)),
        What::Part(of, ..) | What::Named(of, _) | What::Buffer(_, of) => map(of, to),
    }
}

impl FromStr for Place {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let word = without_kind(word);
        if word.is_empty() {
            return Ok(Self::Own);
        }
        if is_path(word) {
            return Ok(Self::File(word.into()));
        }
        if let Some(worm) = word.strip_prefix("follow ") {
            let worm = worm.trim();
            return match is_path(worm) {
                true => Ok(Self::Follow(worm.into())),
                false => disks::parse(worm)
                    .map(|_| Self::Follow(worm.into()))
                    .map_err(|wrong| format!("the worm: {wrong}")),
            };
        }
        match disks::parse(word) {
            Ok(Tree { what: What::Of("c", _), .. }) => Ok(Self::Devices(word.into())),
            // `t/b` may also name a device of kind `t`. But an archive is never a single device, so it is a path.
            Ok(_) if is_plain(word) && word.contains('/') => Ok(Self::File(word.into())),
            Err(_) if is_plain(word) => Ok(Self::File(word.into())),
            Ok(_) => Err(format!("`{word}`: {CACHED}")),
            Err(wrong) => Err(format!("{CACHED}: {wrong}")),
        }
    }
}

impl FromStr for Spec {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let word = without_kind(word);
        let begins = |at: usize| {
            let rest = word[at..].strip_prefix(',').or_else(|| (at == 0).then_some(word))?;
            let key = Options::KEYS.into_iter().find(|key| rest.starts_with(&format!("{key}=")))?;
            Some((at, word.len() - rest.len() + key.len() + 1, key))
        };
        let places = std::iter::once(0).chain(word.match_indices(',').map(|(at, _)| at));
        let mut found: Vec<(usize, usize, &str)> = places.filter_map(begins).collect();
        found.dedup();
        let end = found.first().map_or(word.len(), |(at, ..)| *at);
        let mut options = Options::default();
        for (i, (_, value, key)) in found.iter().enumerate() {
            let end = found.get(i + 1).map_or(word.len(), |(at, ..)| *at);
            options.set(key, &word[*value..end])?;
        }
        Ok(Self { place: word[..end].parse()?, options })
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Own => Ok(()),
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Devices(text) => f.write_str(text),
            Self::Follow(worm) => write!(f, "follow {worm}"),
        }
    }
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Options {
            zone, schedule, scrub, memory, over, anyway, arbiter, machine, shared, standby, ..
        } = &self.options;
        write!(f, "{}", self.place)?;
        let mut comma = if self.place == Place::Own { "" } else { "," };
        let mut word = |key: &str, value: Option<String>| {
            let Some(value) = value else { return Ok(()) };
            write!(f, "{comma}{key}={value}")?;
            comma = ",";
            Ok(())
        };
        word("zone", zone.clone())?;
        word("schedule", schedule.clone())?;
        word("scrub", scrub.clone())?;
        word("memory", memory.map(|bytes| bytes.to_string()))?;
        word("arbiter", arbiter.clone())?;
        word("machine", machine.clone())?;
        word("cache", shared.then(|| "shared".into()))?;
        word("begin", standby.then(|| "standby".into()))?;
        word("mirrors", anyway.then(|| "anyway".into()))?;
        word("over", (!over.is_empty()).then(|| over.join(",")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_has_a_place_and_options() {
        let spec = |word: &str| word.parse::<Spec>();
        for word in [
            "",
            "/srv/archive",
            "./a,b",
            "c w\"/a\" w\"/b\"",
            "zone=UTC",
            "/srv/a,zone=Europe/Berlin,schedule=05:00,17:30,memory=1073741824",
            "/srv/a,scrub=every 7d",
            "c w\"/a\" {e1.0e1.1},over=eth0,eth1",
            "follow /srv/archive",
            "follow {e1.0e1.1},over=eth0",
            "c w\"/a\" {e1.0e1.1},mirrors=anyway,over=eth0",
            "c e1.0 e1.1,arbiter=e2.0,machine=mars,cache=shared,begin=standby,over=eth0,eth1",
        ] {
            assert_eq!(spec(word).unwrap().to_string(), word);
            assert_eq!(spec(&spec(word).unwrap().to_string()), spec(word));
        }
        for (word, same) in [("fs:/a", "/a"), ("fs:/a,zone=UTC", "/a,zone=UTC"), ("fs:", "")] {
            assert_eq!(spec(word), spec(same), "{word}");
        }
        for word in ["srv/a", "t/b", "attic", "old-2026.fs"] {
            assert_eq!(spec(word).unwrap().place, Place::File(word.into()));
        }
        let of = spec("/a,schedule=every 2h,memory=1G").unwrap();
        assert_eq!((of.options.schedule(), of.options.memory()), ("every 2h", 1 << 30));
        assert_eq!(spec("/a").unwrap().options.schedule(), "05:00");
        let store = "c w\"/a\" s3\"attic/main\"";
        for (word, scrub) in [("/a", "every 30d"), ("/a,scrub=off", "off"), (store, "off")] {
            assert_eq!(spec(word).unwrap().scrub(), scrub, "{word}");
        }
        for (word, said) in [
            ("w\"/a\"", "c CACHE WORM"),
            ("w1", "c CACHE WORM"),
            ("c w1", "begins with `/`"),
            ("/a,memory=x", "invalid size `x`"),
            ("/a,zone=", "without a value"),
            ("/a,mirrors=careful", "mirrors=anyway"),
            ("/a,arbiter=(w,machine=x", "the arbiter: "),
            ("/a,cache=mine", "cache=shared"),
        ] {
            let error = spec(word).unwrap_err();
            assert!(error.contains(said), "{word}: {error}");
        }
    }

    #[test]
    fn paths_are_below_the_file_they_stand_in() {
        let place =
            |word: &str| word.parse::<Place>().unwrap().within(Path::new("/srv")).unwrap().to_string();
        assert_eq!(place("./a"), "/srv/a");
        assert_eq!(place("c w\"a\" {w\"b\" e1.0}"), "cw\"/srv/a\"{w\"/srv/b\"e1.0}");
        assert!("c w\"/a\" w\"/b\"".parse::<Place>().unwrap().is_absolute());
        assert_eq!(place("follow ./a"), "follow /srv/a");
        assert_eq!(place("follow w\"a\""), "follow w\"/srv/a\"");
        assert!(!"c w\"/a\" w\"b\"".parse::<Place>().unwrap().is_absolute());
    }
}
