//! The versions of a path in an archive, if the name space shows the archive's dumps too.
//!
//! In: [`Pair`]s: the paths of an archive and of its dumps. Out: for a path, its state in each dump. This module does
//! not know how an archive works: dumps are directories named by their days.
//!
//! Always holds: an answer reads at most [`LOOKED`] dumps, and reports the dump at which the next one continues.

use nine_io::client::{Error, File, Result};
use nine_proto::mode::{S_IFDIR, S_IFMT, S_IFREG};
use nine_proto::{Attr, Errno, GetMask, Time};

use super::calendar::{Dump, year_of};
use super::path::below;

/// Maximum number of dumps read for one answer.
const LOOKED: usize = 2000;

/// An archive, by paths without the first `/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The path of the archive.
    pub archive: Vec<u8>,
    /// The directory of the archive that is mounted there, from its root; empty: all.
    pub below: Vec<u8>,
    /// The root of its dumps: years, and the dumps in them.
    pub dumps: Vec<u8>,
}

/// A file of an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ArchivePath {
    /// Its present path, which may not exist.
    pub now: Option<Vec<u8>>,
    pub dumps: Vec<u8>,
    /// Its path from the root of the archive.
    pub file: Vec<u8>,
}

/// A directory of dumps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DumpDirectory {
    /// Directories of years.
    All,
    Year(u16),
}

/// Consecutive dumps with the same state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FileVersion {
    pub first: Option<Dump>,
    /// `None`: it is the present state.
    pub last: Option<Dump>,
    /// `None`: there was no file.
    pub is: Option<VersionState>,
}

/// The reported state of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct VersionState {
    pub mode: u32,
    pub owners: (u32, u32),
    pub size: u64,
    /// Since 1970.
    pub changed: Time,
    version: u32,
}

/// The versions found.
pub(super) struct FileVersions {
    pub all: Vec<FileVersion>,
    /// More versions may exist before this dump.
    pub before: Option<Dump>,
}

/// The part of a path below `top`. `None`: it is not below it.
fn rest<'p>(path: &'p [u8], top: &[u8]) -> Option<&'p [u8]> {
    if top.is_empty() {
        return Some(path);
    }
    match path.strip_prefix(top)? {
        [] => Some(b""),
        [b'/', rest @ ..] => Some(rest),
        _ => None,
    }
}

/// Finds the archive file of a path in the archive or in a dump.
pub(super) fn of(pairs: &[Pair], path: &[u8]) -> Option<ArchivePath> {
    // A mount below another one takes precedence.
    let deepest = |pair: &&Pair| pair.archive.len();
    let here = pairs.iter().filter(|pair| rest(path, &pair.archive).is_some()).max_by_key(deepest);
    let in_dump = pairs.iter().find_map(|pair| {
        let mut names = rest(path, &pair.dumps)?.splitn(3, |byte| *byte == b'/');
        Dump::parse(names.next()?, names.next()?)?;
        Some((pair, names.next().unwrap_or_default()))
    });
    if let Some((pair, file)) = in_dump {
        let now = rest(file, &pair.below).map(|file| joined(&pair.archive, file));
        return Some(ArchivePath { now, dumps: pair.dumps.clone(), file: file.to_vec() });
    }
    let pair = here.filter(|pair| rest(path, &pair.dumps).is_none())?;
    let file = joined(&pair.below, rest(path, &pair.archive)?);
    Some(ArchivePath { now: Some(path.to_vec()), dumps: pair.dumps.clone(), file })
}

/// The kind of dumps in a directory.
pub(super) fn days(pairs: &[Pair], path: &[u8]) -> Option<DumpDirectory> {
    pairs.iter().find_map(|pair| match rest(path, &pair.dumps)? {
        b"" => Some(DumpDirectory::All),
        year => year_of(year).map(DumpDirectory::Year),
    })
}

fn joined(dir: &[u8], file: &[u8]) -> Vec<u8> {
    if file.is_empty() { dir.to_vec() } else { below(dir, file) }
}

impl ArchivePath {
    /// The file's path in a dump.
    pub fn in_dump(&self, dump: &Dump) -> Vec<u8> {
        joined(&joined(&self.dumps, dump.to_string().as_bytes()), &self.file)
    }

    /// Returns its versions, newest first. With `before`, only those in earlier dumps.
    pub async fn versions(&self, root: &File, before: Option<Dump>) -> Result<FileVersions> {
        let mut runs = VersionRuns::default();
        if before.is_none()
            && let Some(now) = &self.now
        {
            let now = seen(root.walk_attr(now, GetMask::BASIC).await.map(|(_, attr)| attr))?;
            runs.add(None, now);
        }
        let top = root.walk(&self.dumps).await?;
        let mut years: Vec<u16> = names(&top).await?.iter().filter_map(|name| year_of(name)).collect();
        years.sort_unstable_by(|a, b| b.cmp(a));
        let (mut looked, mut oldest) = (0, before);
        for year in years.into_iter().filter(|year| before.is_none_or(|before| *year <= before.year)) {
            let year = format!("{year:04}");
            let dir = top.walk(&year).await?;
            let listed = names(&dir).await?;
            let mut dumps: Vec<Dump> =
                listed.iter().filter_map(|name| Dump::parse(year.as_bytes(), name)).collect();
            dumps.retain(|dump| before.is_none_or(|before| *dump < before));
            dumps.sort_unstable_by(|a, b| b.cmp(a));
            let is_cut = dumps.len() > LOOKED - looked;
            dumps.truncate(LOOKED - looked);
            looked += dumps.len();
            let paths = dumps.iter().map(|dump| joined(dump.name().as_bytes(), &self.file));
            let paths: Vec<Vec<u8>> = paths.collect();
            let mut all = dir.stat_all(paths, GetMask::BASIC);
            for dump in &dumps {
                let Some(attr) = all.next().await else { break };
                runs.add(Some(*dump), seen(attr)?);
            }
            oldest = dumps.last().copied().or(oldest);
            if is_cut {
                return Ok(FileVersions { all: runs.end(false), before: oldest });
            }
        }
        Ok(FileVersions { all: runs.end(true), before: None })
    }
}

/// `None`: the file does not exist or is not accessible.
fn seen(attr: Result<Attr>) -> Result<Option<VersionState>> {
    match attr {
        Ok(attr) => Ok(Some(VersionState {
            mode: attr.mode,
            owners: (attr.uid, attr.gid),
            size: attr.size,
            changed: attr.mtime,
            version: attr.qid.vers,
        })),
        Err(error) if is_absent(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

fn is_absent(error: &Error) -> bool {
    matches!(error.errno(), Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP | Errno::EACCES | Errno::EPERM)
}

impl VersionState {
    pub fn is_dir(&self) -> bool {
        self.mode & S_IFMT == S_IFDIR
    }

    /// Whether it can be downloaded.
    pub fn is_file(&self) -> bool {
        self.mode & S_IFMT == S_IFREG
    }
}

async fn names(dir: &File) -> Result<Vec<Box<[u8]>>> {
    let (mut reading, mut names) = (dir.read_dir().await?, Vec::new());
    while let Some(entry) = reading.next().await {
        names.push(entry?.name);
    }
    Ok(names)
}

/// Merges equal states, which arrive newest first.
#[derive(Default)]
struct VersionRuns(Vec<FileVersion>);

impl VersionRuns {
    fn add(&mut self, dump: Option<Dump>, is: Option<VersionState>) {
        match self.0.last_mut() {
            Some(run) if run.is == is => run.first = dump,
            _ => self.0.push(FileVersion { first: dump, last: dump, is }),
        }
    }

    /// Drops the absence before the first version.
    fn end(mut self, is_all: bool) -> Vec<FileVersion> {
        self.0.pop_if(|run| is_all && run.is.is_none());
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(archive: &str, below: &str, dumps: &str) -> Pair {
        let [archive, below, dumps] = [archive, below, dumps].map(|path| path.as_bytes().to_vec());
        Pair { archive, below, dumps }
    }

    #[test]
    fn a_path_is_a_file_of_an_archive_there_or_in_a_dump() {
        let pairs =
            [pair("archive", "", "dump"), pair("home", "home", "dump"), pair("archive/x", "", "old/x")];
        let of = |path: &str| {
            of(&pairs, path.as_bytes()).map(|past| {
                let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
                (past.now.map(text), text(past.dumps), text(past.file))
            })
        };
        let past = |now: Option<&str>, dumps: &str, file: &str| {
            Some((now.map(String::from), dumps.into(), file.into()))
        };
        assert_eq!(of("archive/a/b"), past(Some("archive/a/b"), "dump", "a/b"));
        assert_eq!(of("archive"), past(Some("archive"), "dump", ""));
        assert_eq!(of("home/glenda"), past(Some("home/glenda"), "dump", "home/glenda"));
        assert_eq!(of("archive/x/y"), past(Some("archive/x/y"), "old/x", "y"));
        assert_eq!(of("dump/2026/1121/a"), past(Some("archive/a"), "dump", "a"));
        assert_eq!(of("dump/2026/1121"), past(Some("archive"), "dump", ""));
        assert_eq!(
            (of("dump/2026"), of("dump"), of("archives"), of("dump/2026/x/a")),
            (None, None, None, None)
        );
        let all = [pair("", "", "dump")];
        assert_eq!(super::of(&all, b"dump/2026"), None);
        assert_eq!(
            super::of(&all, b"a").unwrap().in_dump(&Dump::named("2026/1121").unwrap()),
            b"dump/2026/1121/a"
        );
        let days = |path: &str| super::days(&pairs, path.as_bytes());
        assert_eq!(
            (days("dump"), days("old/x/2026")),
            (Some(DumpDirectory::All), Some(DumpDirectory::Year(2026)))
        );
        assert_eq!((days("dump/2026/1121"), days("archive"), days("dump/x")), (None, None, None));
    }

    #[test]
    fn what_is_the_same_is_one_version() {
        let is = |size| {
            Some(VersionState { mode: S_IFREG, owners: (0, 0), size, changed: Time::default(), version: 0 })
        };
        let dump = |day| Some(Dump { year: 2026, month: 11, day, number: 0 });
        let mut runs = VersionRuns::default();
        for (day, size) in [
            (None, is(2)),
            (dump(9), is(2)),
            (dump(8), None),
            (dump(7), is(1)),
            (dump(6), is(1)),
            (dump(5), None),
        ] {
            runs.add(day, size);
        }
        let ends: Vec<_> = runs.end(true).iter().map(|run| (run.first, run.last, run.is)).collect();
        assert_eq!(ends, [(dump(9), None, is(2)), (dump(8), dump(8), None), (dump(6), dump(7), is(1))]);
    }
}
