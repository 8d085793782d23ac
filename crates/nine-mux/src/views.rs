//! The views of a name space: the paths at which a walk in it reaches the files of upstreams.
//!
//! In: a [`NamespaceSnapshot`]. Out: its [`DirView`]s. A file may be in several views, because of binds, or in none, if
//! another file is mounted over it.

use nine_io::changes::{Change, Path, below, join};

use crate::space::{NamespaceSnapshot, TreeId, TreePath};

/// Maximum number of views of one name space. Changes in further ones are not reported.
const VIEWS_MAX: usize = 4096;
/// Maximum number of mount points on a path. A path has more if a bind leads into itself.
const DEPTH_MAX: usize = 16;

/// A directory of an upstream, and the path at which its files are visible, except those that are mounted over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DirView {
    pub(crate) place: TreePath,
    pub(crate) at: Path,
    /// Paths of the tree that are hidden in this view.
    hidden: Vec<Path>,
}

/// The views of a name space.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SpaceViews {
    pub(crate) all: Vec<DirView>,
    /// Paths below which views were omitted.
    pub(crate) cut: Vec<Path>,
}

impl SpaceViews {
    pub(crate) fn of(space: &NamespaceSnapshot) -> Self {
        let mut views = Self::default();
        let shown = |place: &TreePath| match space.head(place) {
            Some(head) => head.members.iter().map(|member| member.to.clone()).collect(),
            None => vec![place.clone()],
        };
        let root: Path = b"/"[..].into();
        let mut next: Vec<_> =
            shown(space.root()).into_iter().map(|place| (place, root.clone(), 0)).collect();
        while let Some((place, at, depth)) = next.pop() {
            if depth > DEPTH_MAX || views.all.len() >= VIEWS_MAX {
                views.cut.push(at);
                continue;
            }
            let below_it = || {
                space.heads_in(place.tree).filter(|head| head.from.is_within(&place) && head.from != place)
            };
            let mut hidden = Vec::new();
            for head in below_it() {
                let is_nearest = |other: &TreePath| !head.from.is_within(other) || head.from == *other;
                if !below_it().all(|other| is_nearest(&other.from)) {
                    continue;
                }
                let from = path(&head.from);
                let rest = below(&from, &path(&place)).expect("it is below");
                for member in &head.members {
                    next.push((member.to.clone(), join(&at, rest), depth + 1));
                }
                hidden.push(from);
            }
            views.all.push(DirView { place, at, hidden });
        }
        views
            .all
            .sort_by(|a, b| (&a.at, a.place.tree, &a.place.path).cmp(&(&b.at, b.place.tree, &b.place.path)));
        views
    }

    /// Iterates over the views of (a part of) this tree.
    pub(crate) fn of_tree(&self, tree: TreeId) -> impl Iterator<Item = &DirView> {
        self.all.iter().filter(move |view| view.place.tree == tree)
    }

    /// Translates a change of a tree to changes of the name space.
    pub(crate) fn told(&self, tree: TreeId, change: &Change) -> Vec<Change> {
        self.of_tree(tree).filter_map(|view| view.told(change)).collect()
    }

    /// Returns the paths at which `old` shows other files.
    pub(crate) fn changed(&self, old: &Self) -> Vec<Path> {
        let other = |of: &Self, not: &Self| {
            let news = of.all.iter().filter(|view| !not.all.contains(view)).map(|view| view.at.clone());
            news.collect::<Vec<_>>()
        };
        let mut all = [other(self, old), other(old, self)].concat();
        all.sort_unstable();
        all.dedup();
        all
    }
}

impl DirView {
    fn told(&self, change: &Change) -> Option<Change> {
        let base = path(&self.place);
        let seen = change.seen_from(&base)?;
        seen.map(|rest| {
            let whole = join(&base, rest);
            let is_hidden = self.hidden.iter().any(|hidden| below(&whole, hidden).is_some());
            (!is_hidden).then(|| join(&self.at, rest))
        })
    }
}

/// Returns the path of a place in its tree.
pub(crate) fn path(place: &TreePath) -> Path {
    [b"/", &*place.path].concat().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::space::Flags;

    fn place(tree: u32, path: &str) -> TreePath {
        TreePath { tree: TreeId(tree), path: path.as_bytes().into() }
    }

    fn at(text: &str) -> Path {
        text.as_bytes().into()
    }

    fn paths(views: &SpaceViews, tree: u32, of: &str) -> Vec<String> {
        let told = views.told(TreeId(tree), &Change::Write(at(of)));
        let text = |change: Change| match change {
            Change::Write(path) => String::from_utf8(path.into()).unwrap(),
            change => panic!("{change:?}"),
        };
        told.into_iter().map(text).collect()
    }

    #[test]
    fn a_file_is_seen_by_all_paths_that_lead_to_it() {
        let mut space = NamespaceSnapshot::new(place(0, ""));
        let mut mount =
            |to: TreePath, from: TreePath, flags| space.mount(vec![to], "", from, "", flags).unwrap();
        mount(place(1, ""), place(0, "n/a"), Flags::REPLACE);
        mount(place(1, "x"), place(0, "bound"), Flags::REPLACE);
        mount(place(2, ""), place(1, "x/over"), Flags::REPLACE);
        mount(place(2, ""), place(0, "u"), Flags::BEFORE);
        let views = SpaceViews::of(&space);
        assert_eq!(paths(&views, 1, "/f"), ["/n/a/f"]);
        assert_eq!(paths(&views, 1, "/x/f"), ["/bound/f", "/n/a/x/f"]);
        assert_eq!(paths(&views, 2, "/f"), ["/bound/over/f", "/n/a/x/over/f", "/u/f"]);
        assert_eq!(paths(&views, 0, "/u/g"), ["/u/g"]);
        // A file below a mount point is not visible.
        assert_eq!(paths(&views, 1, "/x/over/f"), Vec::<String>::new());
        assert_eq!(paths(&views, 0, "/n/a/f"), Vec::<String>::new());
        assert_eq!(paths(&views, 0, "/n/b"), ["/n/b"]);
        let gone = Change::Remove(at("/x"));
        let told = [Change::Remove(at("/bound")), Change::Remove(at("/n/a/x"))];
        assert_eq!(views.told(TreeId(1), &gone), told);
        let moved = Change::Move(at("/y"), at("/x/over/y"));
        assert_eq!(views.told(TreeId(1), &moved), [Change::Remove(at("/n/a/y"))]);
    }

    #[test]
    fn what_leads_round_ends_and_what_changes_is_found() {
        let mut space = NamespaceSnapshot::new(place(0, ""));
        let before = SpaceViews::of(&space);
        space.mount(vec![place(0, "")], "", place(0, "a"), "", Flags::REPLACE).unwrap();
        let views = SpaceViews::of(&space);
        assert_eq!(views.all.len(), DEPTH_MAX + 1);
        assert_eq!(views.cut, [at(&"/a".repeat(DEPTH_MAX + 1))]);
        assert!(views.changed(&before).contains(&at("/a")));
        assert!(views.changed(&views.clone()).is_empty());
    }
}
