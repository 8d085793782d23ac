//! The changes that a request makes, for servers that make all of their changes themselves.

use nine_proto::{Op, OpenFlags, RenameMode};

use super::line::{Change, Path};

/// The paths of the files that a request names. `None`: no path that a reader could see.
pub trait Places {
    /// The file of its fid.
    fn own(&self) -> Option<Path>;
    /// A name in the directory of its fid.
    fn within(&self, name: &[u8]) -> Option<Path>;
    /// A name in the same directory as the file of its fid.
    fn beside(&self, name: &[u8]) -> Option<Path>;
    /// A name in the directory of its second fid.
    fn other(&self, name: &[u8]) -> Option<Path>;
}

/// Returns the changes that the request makes if it succeeds, in order. A create that may open an existing file counts
/// as creating one.
pub fn of(op: &Op<'_>, places: &impl Places) -> Vec<Change> {
    if let Op::RenameAt { old, new, how: RenameMode::Exchange } = op {
        // No sequence of moves expresses an exchange. Both names lead to other files afterwards.
        let (Some(old), Some(new)) = (places.within(old), places.other(new)) else { return Vec::new() };
        let again = |path: Path| [Change::Remove(path.clone()), Change::Create(path)];
        return [again(old), again(new)].into_iter().flatten().collect();
    }
    let moved = |old: Option<Path>, new: Option<Path>| match (old, new) {
        (Some(old), Some(new)) if old != new => Some(Change::Move(old, new)),
        _ => None,
    };
    let changes = match op {
        Op::Create { name, .. } | Op::Make { name, .. } => [places.within(name).map(Change::Create), None],
        Op::Open { flags } if flags.has(OpenFlags::TRUNC) => [places.own().map(Change::Write), None],
        Op::Write { data, .. } if !data.is_empty() => [places.own().map(Change::Write), None],
        Op::Setattr { set } => {
            let kind = if set.size.is_some() { Change::Write } else { Change::Attr };
            let renamed = set.name.and_then(|name| moved(places.own(), places.beside(name)));
            [places.own().map(kind), renamed]
        }
        Op::Rename { name } => [moved(places.own(), places.other(name)), None],
        Op::RenameAt { old, new, .. } => [moved(places.within(old), places.other(new)), None],
        Op::Unlink { name, .. } => [places.within(name).map(Change::Remove), None],
        Op::Remove => [places.own().map(Change::Remove), None],
        _ => [None, None],
    };
    changes.into_iter().flatten().collect()
}
