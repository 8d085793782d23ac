//! Finds the history of a file: its archive, the archive's dumps, and the file's path in them.
//!
//! In: an operand: a path in an archive's live tree or in one of its dumps, existing or removed. Out: a [`Past`].
//!
//! The source is the muxes' own information. `/mux/mounts` of the server names the server mounted at the path. If that
//! is another server, the `mux/mounts` below its mount point says the rest. So no file of an archive is trusted.
//! Without `/mux`, names decide: `archive`, with `dump` and `fs` beside it.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::rc::Rc;

use anyhow::{Context as _, Result, anyhow, bail};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use nine_io::client::{Error, File};
use nine_net::Env;
use nine_proto::{Errno, GetMask};

use super::date::{Day, Dump, When};
use crate::archive::places::{Lies, Names, Places, names};
use crate::cli;
use crate::config::Remote;
use crate::dial::Sessions;
use crate::fail;
use crate::operand::Place;
use crate::verbs::{sorted, text};

/// Limit of nested muxes that are queried for one path.
const MUXES: usize = 8;

/// The history of a file.
pub struct Past {
    /// The root of the server's tree.
    pub root: Rc<File>,
    /// The operand.
    place: Place,
    /// The path of the archive's live tree, and the part of the tree that is mounted there. `None` if it is not
    /// mounted.
    archive: Option<(Names, Names)>,
    dumps_at: Names,
    /// Path of the file from the root of the archive.
    pub file: Names,
    /// In the order of creation; sorted by name if that is unknown.
    pub dumps: Vec<Dump>,
    zone: TimeZone,
    /// User names of the archive, by number.
    users: HashMap<u32, String>,
    now: Timestamp,
}

/// The information before anything of the archive was read.
struct Found {
    archive: Option<(Names, Names)>,
    dumps: Names,
    file: Names,
    consoles: Option<Names>,
    /// The archive's word, by which its console is found among others.
    word: Option<String>,
}

impl Past {
    /// Finds the history of an operand.
    pub async fn of(sessions: &Sessions, word: &OsStr, past: &cli::Past, remote: &Remote) -> Result<Self> {
        let place = Place::parse(word, remote)?;
        let root = sessions.root(&place).await?;
        let path = real(&root, &place).await?;
        let found = match &past.dump {
            None => find(&root, &path).await?,
            Some(dump) => told(&root, &place, &path, dump, past.archive.as_deref(), remote).await?,
        };
        let Some(found) = found else {
            bail!(
                "{place}: it is in no archive, as far as this server says; --dump PLACE says where the dumps are, \
                 --archive PLACE what they are of"
            );
        };
        let console = match &found.consoles {
            Some(at) => console(&root, at, found.word.as_deref()).await?,
            None => None,
        };
        let now = sessions.env().wall();
        let now = Timestamp::from_second(i64::try_from(now.as_secs())?)?;
        let (mut zone, mut users, mut dumps) = (None, HashMap::new(), Vec::new());
        if let Some(console) = &console {
            let status = text(console, "status").await?;
            zone = status.lines().find_map(|line| line.strip_prefix("zone ")).and_then(zone_of);
            users = text(console, "users").await.map(|text| users_of(&text)).unwrap_or_default();
            dumps = text(console, "dumps").await?.lines().filter_map(dump_of).collect();
        } else {
            let at = root.walk(found.dumps.join(&b'/')).await;
            let at = at.with_context(|| format!("{}: no dumps there", place.at(&found.dumps)))?;
            for year in sorted(&at, None).await? {
                let named = |name: &[u8]| std::str::from_utf8(name).unwrap_or_default().to_owned();
                let year = named(&year.name);
                if Day::parse(&format!("{year}/0101")).is_none() {
                    continue;
                }
                let names = sorted(&at.walk(&year).await?, None).await?;
                let day = |name: &[u8]| Day::parse(&format!("{year}/{}", named(name)));
                dumps.extend(
                    names.iter().filter_map(|entry| day(&entry.name)).map(|day| Dump { day, time: None }),
                );
            }
            dumps.sort_unstable();
        }
        let zone = zone.unwrap_or_else(|| TimeZone::try_system().unwrap_or(TimeZone::UTC));
        let Found { archive, dumps: dumps_at, file, .. } = found;
        Ok(Self { root, place, archive, dumps_at, file, dumps, zone, users, now })
    }

    /// Selects a dump by a date.
    pub fn dump(&self, words: &str) -> Result<Day> {
        let when = When::parse(words, self.now, &self.zone).map_err(|why| anyhow!(why))?;
        let found = when.of(&self.dumps).map_err(|why| anyhow!("{words}: {why}"))?;
        Ok(found.day)
    }

    /// Returns the file's place in a dump, whether it exists or not.
    pub fn in_dump(&self, day: Day) -> Place {
        self.place.at(&[&self.dumps_at[..], &names(day.to_string().as_bytes()), &self.file].concat())
    }

    /// Returns the live file's place, whether it exists or not.
    pub fn now(&self) -> Result<Place> {
        let (at, below) = self.archive.as_ref().context("the archive itself is mounted nowhere")?;
        let rest = self.file.strip_prefix(&below[..]);
        let rest = rest.with_context(|| format!("{} does not show this file", self.place.at(at)))?;
        Ok(self.place.at(&[at, rest].concat()))
    }

    /// Returns the operand, for messages.
    pub fn named(&self) -> &Place {
        &self.place
    }

    /// Returns the archive's name for a user.
    pub fn user(&self, uid: u32) -> String {
        self.users.get(&uid).cloned().unwrap_or_else(|| uid.to_string())
    }
}

/// Resolves all links and `..` on the way to a place, except a link at its end. Works for files that do not exist, too.
async fn real(root: &File, place: &Place) -> Result<Names> {
    let all = place.path.split(|byte| *byte == b'/').filter(|name| !matches!(*name, b"" | b"."));
    let all: Vec<&[u8]> = all.collect();
    let mut at = all.len();
    loop {
        let (there, rest) = all.split_at(at);
        match root.resolve(there.join(&b'/'), at < all.len()).await {
            Ok((_, mut real)) => {
                if rest.contains(&&b".."[..]) {
                    bail!("{place}: what is not there has no `..`");
                }
                real.extend(rest.iter().map(|name| name.to_vec()));
                return Ok(real);
            }
            Err(error) if at > 0 && is_absent(&error) => at -= 1,
            Err(error) => return Err(anyhow::Error::from(error).context(place.to_string())),
        }
    }
}

/// Returns whether the error means that the file does not exist. This includes a path through a file that is not a
/// directory, and a loop of links.
pub fn is_absent(error: &Error) -> bool {
    matches!(error.errno(), Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP)
}

/// Finds the archive through the muxes on the path.
async fn find(root: &File, path: &[Vec<u8>]) -> Result<Option<Found>> {
    let mut base = 0;
    for _ in 0..MUXES {
        let (before, rest) = path.split_at(base);
        let Some(mounts) = read(root, before, &[b"mux", b"mounts"]).await? else { break };
        let spaces = Places::all(&mounts);
        let Some((places, lies)) = spaces
            .iter()
            .map(|places| (places, places.at(rest)))
            .find(|(_, lies)| matches!(lies, Lies::Archive(..) | Lies::Dumps(..) | Lies::Far(_)))
        else {
            break;
        };
        let (word, file) = match lies {
            Lies::Archive(word, file) => (word, file),
            // The root of the dumps and a year are not files of the archive.
            Lies::Dumps(word, below) => match below.len() {
                2.. => (word, below[2..].to_vec()),
                _ => bail!("these are the dumps themselves: name a file of the archive, or of one of them"),
            },
            Lies::Far(at) if at.is_empty() => break,
            Lies::Far(at) => {
                base += at.len();
                continue;
            }
            _ => unreachable!("it is one of these"),
        };
        let whole = |names: &Names| [before, names].concat();
        let Some(dumps) = places.dumps(&word) else {
            bail!("its dumps are mounted nowhere: the name space needs a line `mount '{word}' /dump dump`");
        };
        let archive = places.archive(&word).map(|(at, below)| (whole(at), below.clone()));
        let (dumps, consoles) = (whole(dumps), places.consoles().map(whole));
        return Ok(Some(Found { archive, dumps, file, consoles, word: Some(word) }));
    }
    by_name(root, path).await
}

/// Finds an element `archive` of the path with `dump` beside it.
async fn by_name(root: &File, path: &[Vec<u8>]) -> Result<Option<Found>> {
    for (at, name) in path.iter().enumerate() {
        let beside = |name: &[u8]| [&path[..at], &[name.to_vec()]].concat();
        let file = match &**name {
            b"archive" => path[at + 1..].to_vec(),
            b"dump" if path.len() > at + 2 => path[at + 3..].to_vec(),
            _ => continue,
        };
        let (archive, dumps, consoles) = (beside(b"archive"), beside(b"dump"), beside(b"fs"));
        if is_dir(root, &dumps).await? && is_dir(root, &archive).await? {
            let archive = Some((archive, Names::new()));
            return Ok(Some(Found { archive, dumps, file, consoles: Some(consoles), word: None }));
        }
    }
    Ok(None)
}

/// Uses the paths from the command line.
async fn told(
    root: &File,
    place: &Place,
    path: &[Vec<u8>],
    dump: &OsStr,
    archive: Option<&OsStr>,
    remote: &Remote,
) -> Result<Option<Found>> {
    let at = async |word: &OsStr| {
        let other = Place::parse(word, remote)?;
        if !other.same_server(place) {
            bail!("{other}: it is of another server than {place}");
        }
        real(root, &other).await
    };
    let dumps = at(dump).await?;
    let archive = match archive {
        Some(word) => at(word).await?,
        None => {
            let above = dumps.split_last().map_or(&[][..], |(_, above)| above);
            [above, &[b"archive".to_vec()]].concat()
        }
    };
    let file = match (path.strip_prefix(&archive[..]), path.strip_prefix(&dumps[..])) {
        (_, Some([_, _, file @ ..])) => file.to_vec(),
        (Some(file), _) => file.to_vec(),
        _ => bail!("{place}: it is not below {}; --archive PLACE says what was dumped", place.at(&archive)),
    };
    Ok(Some(Found { archive: Some((archive, Names::new())), dumps, file, consoles: None, word: None }))
}

/// Finds the console of an archive. Returns `None` if there is none, or it is unclear which one it is.
async fn console(root: &File, at: &[Vec<u8>], word: Option<&str>) -> Result<Option<File>> {
    let Some(all) = there(root.walk(at.join(&b'/')).await)? else { return Ok(None) };
    let mut names = sorted(&all, None).await?;
    if let [only] = &names[..] {
        return Ok(there(all.walk(&only.name).await)?.filter(|dir| dir.qid().is_dir()));
    }
    let Some(word) = word else { return Ok(None) };
    for entry in names.drain(..) {
        let Some(dir) = there(all.walk(&entry.name).await)? else { continue };
        let words = text(&dir, "server").await.unwrap_or_default();
        if words.lines().any(|line| line == word) {
            return Ok(Some(dir));
        }
    }
    fail::note("nothing says which console is this archive's: the zone is that of this machine");
    Ok(None)
}

async fn read(root: &File, base: &[Vec<u8>], names: &[&[u8]]) -> Result<Option<String>> {
    let (last, dir) = names.split_last().expect("a file has a name");
    let dir: Names = base.iter().cloned().chain(dir.iter().map(|name| name.to_vec())).collect();
    let Some(dir) = there(root.walk(dir.join(&b'/')).await)? else { return Ok(None) };
    match text(&dir, &String::from_utf8_lossy(last)).await {
        Ok(text) => Ok(Some(text)),
        Err(error) => match error.downcast_ref::<Error>() {
            Some(inner) if is_absent(inner) => Ok(None),
            _ => Err(error),
        },
    }
}

async fn is_dir(root: &File, path: &[Vec<u8>]) -> Result<bool> {
    let found = there(root.walk_attr(path.join(&b'/'), GetMask::BASIC).await)?;
    Ok(found.is_some_and(|(file, _)| file.qid().is_dir()))
}

/// Turns an error that the file does not exist into `None`.
pub fn there<T>(result: Result<T, Error>) -> Result<Option<T>> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(error) if is_absent(&error) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Looks up the archive's time zone. `local` has a meaning only on the archive's own machine, which may be this one.
fn zone_of(name: &str) -> Option<TimeZone> {
    TimeZone::get(name.trim()).ok()
}

/// Parses a line of the `dumps` file.
fn dump_of(line: &str) -> Option<Dump> {
    let mut words = line.split(' ');
    let (day, time) = (Day::parse(words.next()?)?, words.next()?.parse().ok()?);
    Some(Dump { day, time: Some(time) })
}

/// Parses lines of users(6): `id:name:leader:members`.
fn users_of(text: &str) -> HashMap<u32, String> {
    let user = |line: &str| {
        let mut fields = line.split(':');
        let id = fields.next()?.parse::<i64>().ok()?;
        // The archive's file has -1 for adm; the number here is 2^32 - 2.
        Some(((if id == -1 { u32::MAX - 1 } else { u32::try_from(id).ok()? }), fields.next()?.to_owned()))
    };
    text.lines().filter_map(user).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_console_are_understood() {
        let day = |name| Day::parse(name).unwrap();
        assert_eq!(
            dump_of("2026/1121 1763690000 12"),
            Some(Dump { day: day("2026/1121"), time: Some(1_763_690_000) })
        );
        assert_eq!(dump_of("2026/11211 7 on its way").map(|dump| dump.day), Some(day("2026/11211")));
        for wrong in ["", "2026/1121", "2026/1121 x", "x 5 5"] {
            assert_eq!(dump_of(wrong), None, "{wrong}");
        }
        let users = users_of("-1:adm:adm:\n0:root::\n1000:glenda:glenda:\nx:y\n5\n");
        assert_eq!((users.len(), &*users[&1000], &*users[&(u32::MAX - 1)]), (3, "glenda", "adm"));
        assert!(zone_of("Europe/Berlin").is_some() && zone_of("local").is_none());
    }
}
