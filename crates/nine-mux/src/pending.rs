//! Statements that wait: mounts and binds that failed because a server on their paths did not answer.
//!
//! In: such statements, in their order, and the binds in effect. Out: whether another statement must wait behind them.
//!
//! Always holds: of two statements of a name space whose paths meet, the earlier one is executed first.

use std::collections::BTreeSet;

use crate::script::{Mount, Statement};
use crate::space::names_of;
use crate::upstream::Server;

/// A mount or bind that waits.
pub(crate) struct PendingStatement {
    pub(crate) space: Box<str>,
    pub(crate) statement: Statement,
    /// The statement without secrets.
    pub(crate) shown: Statement,
    /// The server of a mount, and its displayed word, if it exists already: a tree in memory keeps its content.
    pub(crate) named: Option<(Server, String)>,
    pub(crate) why: String,
}

/// A path as its names.
type PathNames = Vec<Vec<u8>>;

/// The paths of a name space that lead to the same files.
#[derive(Default)]
pub(crate) struct PathAliases {
    /// Pairs of paths: of a bind, or of two mounts of one tree.
    pairs: Vec<(PathNames, PathNames)>,
    /// Servers and anames with the first path on which they are mounted.
    mounts: Vec<(Box<str>, String, PathNames)>,
}

impl PathAliases {
    /// Adds a statement. `server` is the name of a mounted server.
    pub(crate) fn add(&mut self, statement: &Statement, server: Option<&str>) {
        match (statement, server) {
            (Statement::Bind { new, old, .. }, _) => self.pairs.push((names(new), names(old))),
            (Statement::Mount(mount), Some(server)) => {
                let is = |(of, aname, _): &&(Box<str>, String, _)| **of == *server && *aname == mount.aname;
                match self.mounts.iter().find(is) {
                    Some((_, _, first)) => self.pairs.push((first.clone(), names(&mount.old))),
                    None => self.mounts.push((server.into(), mount.aname.clone(), names(&mount.old))),
                }
            }
            _ => {}
        }
    }

    /// Returns the paths that lead to the same file as this one. `None` if there are too many.
    fn same(&self, path: &str) -> Option<BTreeSet<PathNames>> {
        let mut all = BTreeSet::from([names(path)]);
        let mut fresh: Vec<PathNames> = all.iter().cloned().collect();
        while let Some(path) = fresh.pop() {
            for (new, old) in &self.pairs {
                for (from, to) in [(new, old), (old, new)] {
                    let Some(rest) = path.strip_prefix(&from[..]) else { continue };
                    let other = [&to[..], rest].concat();
                    if all.insert(other.clone()) {
                        fresh.push(other);
                    }
                }
            }
            if all.len() > PATHS_MAX {
                return None;
            }
        }
        Some(all)
    }

    /// Whether a statement must not be executed before an earlier one: one of them changes to what the other's paths
    /// lead.
    pub(crate) fn depends(&self, later: &Statement, earlier: &Statement) -> bool {
        let of = |statement: &Statement| {
            let (old, new) = match statement {
                Statement::Mount(mount) => (&mount.old, None),
                Statement::Bind { new, old, .. } => (old, Some(new)),
                _ => return None,
            };
            let old = self.same(old)?;
            let all = match new {
                Some(new) => self.same(new)?.union(&old).cloned().collect(),
                None => old.clone(),
            };
            Some((old, all))
        };
        let (Some(later), Some(earlier)) = (of(later), of(earlier)) else { return true };
        let covers = |old: &BTreeSet<PathNames>, all: &BTreeSet<PathNames>| {
            old.iter().any(|old| all.iter().any(|path| path.starts_with(old)))
        };
        covers(&earlier.0, &later.1) || covers(&later.0, &earlier.1)
    }
}

/// Returns the names of a path. ".." leads back, as in walks.
fn names(path: &str) -> PathNames {
    let mut names = Vec::new();
    for name in names_of(path) {
        match name {
            b".." => drop(names.pop()),
            name => names.push(name.to_vec()),
        }
    }
    names
}

/// Removes pending statements: the last one with these words, or all for `old`. Returns whether there were any.
pub(crate) fn forget(pending: &mut Vec<PendingStatement>, space: &str, new: Option<&str>, old: &str) -> bool {
    let is = |line: &PendingStatement| {
        let (of, at) = match &line.statement {
            Statement::Mount(mount) => ([&mount.server, &mount.word], &mount.old),
            Statement::Bind { new, old, .. } => ([new, new], old),
            _ => return false,
        };
        let is_named = new.is_none_or(|new| of.iter().any(|of| **of == *new));
        *line.space == *space && names_of(at) == names_of(old) && is_named
    };
    let before = pending.len();
    match new {
        None => pending.retain(|line| !is(line)),
        Some(_) => drop(pending.iter().rposition(is).map(|at| pending.remove(at))),
    }
    pending.len() < before
}

/// Returns the statement that undoes this one.
pub(crate) fn undo(statement: &Statement) -> Option<Statement> {
    let (new, old) = match statement {
        Statement::Mount(Mount { word, old, .. }) => (word, old),
        Statement::Bind { new, old, .. } => (new, old),
        _ => return None,
    };
    Some(Statement::Unmount { new: Some(new.clone()), old: old.clone() })
}

/// Maximum number of equal paths that are compared. If there are more, statements count as dependent.
const PATHS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::script::{self, Alone};

    fn statement(line: &str) -> Statement {
        let script = script::parse("line", line, &mut Alone);
        assert!(script.wrong.is_empty(), "{line}");
        script.lines[0].statement.clone()
    }

    #[test]
    fn statements_depend_if_one_changes_where_the_other_leads() {
        for (earlier, later, depends) in [
            ("bind /s/bin /bin", "bind -a /good/bin /bin", true),
            ("bind /s/bin /bin", "mount ram: /bin/x", true),
            ("bind /s/bin /bin", "bind /bin/x /y", true),
            ("bind /s/bin /bin", "mount ram: /", true),
            ("bind /s/bin /bin", "mount ram: /s", true),
            ("bind /s/bin /bin", "bind /good /s/bin", true),
            ("bind /s/bin /bin", "bind /s/lib /lib", false),
            ("bind /s/bin /bin", "bind /good/bin /bins", false),
            ("bind /s/bin /bin", "mount ram: /b", false),
            ("bind /s/../t/bin /bin", "mount ram: /t", true),
            ("mount ram: /n/s/x", "mount ram: /n/s/y", false),
            ("mount ram: /n/s/x", "bind /n/s/x/. /y", true),
        ] {
            let is = PathAliases::default().depends(&statement(later), &statement(earlier));
            assert_eq!(is, depends, "{earlier}; {later}");
        }
    }

    #[test]
    fn a_path_through_a_bind_meets_the_bound_one() {
        let mut aliases = PathAliases::default();
        aliases.add(&statement("bind /a /b"), None);
        aliases.add(&statement("bind /b/c /d"), None);
        let depends = |aliases: &PathAliases, later: &str| {
            aliases.depends(&statement(later), &statement("bind /s/x /a/c/p"))
        };
        for (later, is) in [("bind /b/c/p /z", true), ("bind /d/p /z", true), ("bind /d/q /z", false)] {
            assert_eq!(depends(&aliases, later), is, "{later}");
        }
        // One tree that is mounted twice.
        for line in ["mount disk:x /a/c", "mount disk:x /again"] {
            aliases.add(&statement(line), Some("disk:x"));
        }
        assert!(depends(&aliases, "bind /again/p /z"));
        // A bind of a directory below itself has paths without end.
        aliases.add(&statement("bind /e /e/f"), None);
        assert!(aliases.depends(&statement("bind /e/g /z"), &statement("bind /h /i")));
    }
}
