//! Finds archives and their dumps in a name space.
//!
//! In: the lines that would create the name space again (`/mux/mounts`), and a path. Out: the content of that path: a
//! part of an archive, of its dumps, or of another mux (which must be asked for more). Nothing is opened or asked here.
//!
//! Always holds: the longest mounted or bound path that contains the given path decides; of several on one path, the
//! last.

use nine_mux::script::{self, Alone, Line, Statement};

use super::Spec;
use crate::serve::Kind;

/// A path as a list of names.
pub type Names = Vec<Vec<u8>>;

/// The content of a path, with the names that follow below the mount point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lies {
    /// The live tree of the archive with this word.
    Archive(String, Names),
    /// The dumps of the archive with this word.
    Dumps(String, Names),
    /// The consoles of this mux's archives.
    Consoles(Names),
    /// Another server, mounted on this path.
    Far(Names),
    /// Anything else.
    Other,
}

/// The mount points of a name space, in the order of their lines.
#[derive(Default)]
pub struct Places(Vec<(Names, Lies)>);

/// The live tree of an archive in a name space, and the archive's dumps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    pub archive: Names,
    /// The part of the archive that is mounted: names from its root.
    pub below: Names,
    pub dumps: Names,
}

impl Places {
    /// Parses the lines into one set of places for each name space, the main one first.
    pub fn all(mounts: &str) -> Vec<Self> {
        let mut spaces: Vec<(std::sync::Arc<str>, Self)> = Vec::new();
        for Line { space, statement, .. } in script::parse("", mounts, &mut Alone).lines {
            let at = spaces.iter().position(|(name, _)| *name == space).unwrap_or_else(|| {
                spaces.push((space, Self::default()));
                spaces.len() - 1
            });
            spaces[at].1.add(&statement);
        }
        spaces.into_iter().map(|(_, places)| places).collect()
    }

    fn add(&mut self, statement: &Statement) {
        let (at, what) = match statement {
            Statement::Mount(mount) => {
                let at = names(mount.old.as_bytes());
                let aname = names(mount.aname.as_bytes());
                let tree = aname.first().map(Vec::as_slice);
                let rest = aname.get(1..).unwrap_or_default().to_vec();
                let what = match (mount.server.parse(), tree) {
                    (Ok(Kind::Fs(spec)), Some(b"dump")) => Lies::Dumps(word(&spec), rest),
                    (Ok(Kind::Fs(spec)), _) => Lies::Archive(word(&spec), rest),
                    (Ok(Kind::FsCtl), _) => Lies::Consoles(aname),
                    (Ok(Kind::Remote(_) | Kind::Posted(_)), _) if aname.is_empty() => Lies::Far(at.clone()),
                    _ => Lies::Other,
                };
                (at, what)
            }
            Statement::Bind { new, old, .. } => (names(old.as_bytes()), self.at(&names(new.as_bytes()))),
            _ => return,
        };
        self.0.push((at, what));
    }

    /// Returns the content of a path.
    pub fn at(&self, path: &[Vec<u8>]) -> Lies {
        let over = self.0.iter().filter(|(at, _)| path.starts_with(at)).max_by_key(|(at, _)| at.len());
        let Some((at, what)) = over else { return Lies::Other };
        let below = |names: &Names| [&names[..], &path[at.len()..]].concat();
        match what {
            Lies::Archive(word, names) => Lies::Archive(word.clone(), below(names)),
            Lies::Dumps(word, names) => Lies::Dumps(word.clone(), below(names)),
            Lies::Consoles(names) => Lies::Consoles(below(names)),
            other => other.clone(),
        }
    }

    /// Returns the path of all dumps of the archive with this word.
    pub fn dumps(&self, word: &str) -> Option<&Names> {
        self.find(|lies| matches!(lies, Lies::Dumps(of, rest) if of == word && rest.is_empty()))
    }

    /// Returns the path of the archive's live tree, and the part of the tree that is there; preferably the whole tree.
    pub fn archive(&self, word: &str) -> Option<(&Names, &Names)> {
        let here = self.0.iter().filter_map(|(at, lies)| match lies {
            Lies::Archive(of, below) if of == word && self.at(at) == *lies => Some((at, below)),
            _ => None,
        });
        here.min_by_key(|(_, below)| below.len())
    }

    /// Returns the path of the consoles.
    pub fn consoles(&self) -> Option<&Names> {
        self.find(|lies| matches!(lies, Lies::Consoles(rest) if rest.is_empty()))
    }

    /// Returns all live trees for which the dumps are mounted, too.
    pub fn pairs(&self) -> Vec<Pair> {
        let pair = |(at, lies): &(Names, Lies)| match lies {
            Lies::Archive(word, below) if self.at(at) == *lies => {
                let dumps = self.dumps(word)?.clone();
                Some(Pair { archive: at.clone(), below: below.clone(), dumps })
            }
            _ => None,
        };
        self.0.iter().filter_map(pair).collect()
    }

    /// Finds a path with this content that no other mount hides.
    fn find(&self, is: impl Fn(&Lies) -> bool) -> Option<&Names> {
        let found = self.0.iter().find(|(at, lies)| is(lies) && self.at(at) == *lies);
        found.map(|(at, _)| at)
    }
}

/// Returns the archive's word without its options.
pub fn word(spec: &Spec) -> String {
    format!("fs:{}", spec.place)
}

/// Splits a path into names; `..` removes the last one.
pub fn names(path: &[u8]) -> Names {
    let mut names = Names::new();
    for name in path.split(|byte| *byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." => drop(names.pop()),
            name => names.push(name.to_vec()),
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINES: &str = "\
mount disk:/srv /
mount 'fs:/a,schedule=off' /archive
mount fs:/a /dump dump
mount fs:/a /y dump/2026
mount fs:/b /b main/home
mount fsctl: /fs
mount tcp!h!5 /n/h
mount ram: /archive/tmp
bind /archive/home /home
bind /dump /home/old
mount disk:/x /hidden/by
mount fs:/b /hidden/by/nobody dump
not a line
space guests glenda
mount fs:/c /archive
";

    fn at(places: &Places, path: &str) -> Lies {
        places.at(&names(path.as_bytes()))
    }

    #[test]
    fn the_longest_mount_point_says_what_lies_at_a_path() {
        let all = Places::all(LINES);
        assert_eq!(all.len(), 2);
        let of = |path: &str| at(&all[0], path);
        let (a, b) = (|| "fs:/a".to_string(), || "fs:/b".to_string());
        for (path, lies) in [
            ("/archive", Lies::Archive(a(), names(b""))),
            ("/archive/x/y", Lies::Archive(a(), names(b"x/y"))),
            ("/archives", Lies::Other),
            ("/archive/tmp/x", Lies::Other),
            ("/home/x", Lies::Archive(a(), names(b"home/x"))),
            ("/home/old/2026/1121", Lies::Dumps(a(), names(b"2026/1121"))),
            ("/y/1121", Lies::Dumps(a(), names(b"2026/1121"))),
            ("/b/x", Lies::Archive(b(), names(b"home/x"))),
            ("/n/h/archive/x", Lies::Far(names(b"n/h"))),
            ("/fs/main", Lies::Consoles(names(b"main"))),
            ("/", Lies::Other),
        ] {
            assert_eq!(of(path), lies, "{path}");
        }
        assert_eq!(at(&all[1], "/archive/x"), Lies::Archive("fs:/c".into(), names(b"x")));
        assert_eq!(all[0].dumps("fs:/a"), Some(&names(b"dump")));
        assert_eq!(all[0].dumps("fs:/b"), Some(&names(b"hidden/by/nobody")));
        assert_eq!(all[0].dumps("fs:/c"), None);
        assert_eq!(all[0].archive("fs:/a"), Some((&names(b"archive"), &names(b""))));
        assert_eq!(all[0].archive("fs:/b"), Some((&names(b"b"), &names(b"home"))));
        assert_eq!(all[0].consoles(), Some(&names(b"fs")));
        let pairs: Vec<_> = all[0].pairs().iter().map(|pair| pair.archive.join(&b'/')).collect();
        assert_eq!(pairs, [&b"archive"[..], b"b", b"home"]);
        assert!(all[1].pairs().is_empty());
    }

    #[test]
    fn what_is_mounted_over_it_hides_it() {
        let places = Places::all("mount fs:/a /a\nmount fs:/a /d dump\nmount ram: /d\nmount fs:/a /e dump\n")
            .remove(0);
        assert_eq!(places.dumps("fs:/a"), Some(&names(b"e")));
        assert!(Places::all("nonsense\n\nmount\n").is_empty());
    }
}
