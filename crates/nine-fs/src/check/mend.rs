//! Repairs the findings of a check, as far as this loses no user's data.
//!
//! In: an archive that is not being served. Out: commits, and the findings that remain. Names are repaired before
//! counts, each after a new check, so that no repair depends on data that another repair has changed. A power cut in
//! between leaves the archive repaired, or as it was.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use nine_block::{Device, Error as Wrong, Kind, ReadOnly};

use super::{Checked, Depth};
use crate::archive::{Archive, Settings};
use crate::cw::{Cw, RowLocation, RowRepair};
use crate::jobs::Driver;

/// A repair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TreeRepair {
    /// The link count of an inode.
    Links(u64, u32),
    /// The number of entries of a directory.
    Entries(u64, u64),
    /// The last cookie of a directory.
    Cookies(u64, u64),
    /// The parent of a directory.
    Parent(u64, u64),
    /// The flags of an inode that say which access control lists it has.
    Acls(u64, u32),
    /// The number of blocks of an inode.
    Blocks(u64, u64),
    /// Whether an inode is recorded for removal.
    Noted(u64, bool),
    /// An invalid cell is removed, because another one has its data.
    Cell(Vec<u8>),
    /// A directory entry whose name and cookie disagree.
    Pair(u64, u64),
    /// A directory entry to be removed: directory, cookie.
    Name(u64, u64),
    /// Lost attributes of an inode.
    Attributes { ino: u64, kind: u8, size: u64, cookies: u64, parent: u64 },
    /// An inode without a name gets one.
    Found(u64),
    /// The bytes of a user.
    Usage(u32, u64),
    /// The number of blocks of all files.
    All(u64),
    /// The next inode number.
    Next(u64),
    /// A row, or a slot.
    Row(RowRepair),
}

impl TreeRepair {
    /// Returns whether it must precede repairs of counts.
    fn is_first(&self) -> bool {
        use TreeRepair::{Attributes, Cell, Found, Name, Next, Pair, Parent};
        matches!(self, Attributes { .. } | Cell(_) | Found(_) | Name(..) | Next(_) | Pair(..) | Parent(..))
    }

    fn inode(&self) -> Option<u64> {
        match *self {
            Self::Links(ino, _) | Self::Entries(ino, _) | Self::Cookies(ino, _) | Self::Parent(ino, _) => {
                Some(ino)
            }
            Self::Acls(ino, _) | Self::Blocks(ino, _) | Self::Noted(ino, _) | Self::Found(ino) => Some(ino),
            Self::Pair(dir, _) | Self::Name(dir, _) => Some(dir),
            Self::Attributes { ino, .. } => Some(ino),
            Self::Cell(_) | Self::Usage(..) | Self::All(_) | Self::Next(_) | Self::Row(_) => None,
        }
    }
}

impl fmt::Display for TreeRepair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Links(ino, links) => write!(f, "inode {ino} has {links} links"),
            Self::Entries(ino, entries) => write!(f, "inode {ino} has {entries} entries"),
            Self::Cookies(ino, last) => write!(f, "the last cookie of inode {ino} is {last}"),
            Self::Parent(ino, parent) => write!(f, "inode {ino} is in inode {parent}"),
            Self::Blocks(ino, blocks) => write!(f, "inode {ino} has {blocks} blocks"),
            Self::Acls(ino, 0) => write!(f, "inode {ino} has no access control lists"),
            Self::Acls(ino, flags) => write!(f, "inode {ino} has the access control lists of flags {flags}"),
            Self::Noted(ino, true) => {
                write!(f, "inode {ino}: what is behind its size goes at the next start")
            }
            Self::Noted(ino, false) => write!(f, "inode {ino} is not noted any more: nothing of it is to go"),
            Self::Cell(key) => write!(f, "what makes no sense goes: {:?}", crate::item::ItemKey::parse(key)),
            Self::Pair(dir, cookie) => {
                write!(f, "inode {dir}: its name with cookie {cookie}, by what is left of it")
            }
            Self::Name(dir, cookie) => write!(f, "inode {dir}: its name with cookie {cookie} goes"),
            Self::Attributes { ino, .. } => {
                write!(f, "inode {ino} gets attributes, as far as they are known")
            }
            Self::Found(ino) => write!(f, "inode {ino} is now /lost+found/{ino}"),
            Self::Usage(uid, bytes) => write!(f, "user {uid} has {bytes} bytes"),
            Self::All(blocks) => write!(f, "all files have {blocks} blocks"),
            Self::Next(ino) => write!(f, "the next inode is {ino}"),
            Self::Row(RowRepair { row: Some(row), to, .. }) => match to.place {
                RowLocation::Free => write!(f, "row {row} is free"),
                RowLocation::Here(slot) => write!(f, "row {row} is used, and slot {slot}"),
                RowLocation::OnWorm(at) => write!(f, "row {row} is on w at {at}"),
            },
            Self::Row(RowRepair { left, .. }) => write!(f, "slot {} is free", left.unwrap_or_default()),
        }
    }
}

/// The result of a repair.
#[derive(Clone, Debug)]
pub struct Repaired {
    /// The number of repairs made; in a dry run, of those possible.
    pub mended: usize,
    /// The remaining findings; in a dry run, all findings.
    pub left: Checked,
}

impl Archive {
    /// Opens the archive on these devices for inspection, without writing. Unfinished work stays unfinished. If a part
    /// cannot be read, [`check`](Self::check) reports it.
    ///
    /// # Errors
    /// A message for people: why the archive cannot be opened.
    pub async fn look(
        c: Arc<dyn Device>,
        w: Arc<dyn Device>,
        settings: &Settings,
    ) -> nine_block::Result<(Self, Driver)> {
        let why = Wrong::new(Kind::ReadOnly, "it is only looked at");
        let label = Cw::label(&*w).await?;
        let cw = Cw::look(Arc::new(ReadOnly::new(c)), Arc::new(ReadOnly::new(w))).await?;
        let (archive, driver) = Self::of(cw, label, settings, Some(why))?;
        // Makes clients count as inactive.
        archive.state().now = Duration::from_secs(1);
        if let Err(error) = archive.load().await {
            archive.warn(format_args!("not all of it can be read: {error}"));
        }
        Ok((archive, driver))
    }

    /// Repairs the findings of a check as far as possible. Reports each repair before it is made; in a `dry` run, only
    /// reports.
    ///
    /// # Errors
    /// Why the archive cannot be opened or changed.
    pub async fn repair(
        c: Arc<dyn Device>,
        w: Arc<dyn Device>,
        settings: &Settings,
        (wanted, dry): (Depth, bool),
        mut told: impl FnMut(&str),
    ) -> nine_block::Result<Repaired> {
        if Cw::label(&*w).await?.in_place.0 > 0 {
            let text = "without a cache device nothing is mended: `ninefold fs recover` makes its tables anew from the \
                        dumps";
            return Err(Wrong::new(Kind::Unsupported, text));
        }
        let (mut mended, mut before) = (0, Vec::new());
        loop {
            let depth = if dry { wanted.max(Depth::Names) } else { Depth::Names };
            let (left, texts) = looks(&c, &w, settings, depth).await?;
            let rows: Vec<RowRepair> = left
                .mends
                .iter()
                .filter_map(|mend| if let TreeRepair::Row(row) = mend { Some(*row) } else { None })
                .collect();
            let is_first = left.mends.iter().any(TreeRepair::is_first);
            let is_now = |mend: &TreeRepair| match mend {
                TreeRepair::Row(_) => true,
                // Repairs of the tree allocate slots, so the free slots must be right first.
                _ => rows.is_empty() && (!is_first || mend.is_first()),
            };
            let now = left.mends.iter().zip(&texts).filter(|(mend, _)| dry || is_now(mend));
            let now: Vec<(TreeRepair, String)> =
                now.map(|(mend, text)| (mend.clone(), text.clone())).collect();
            if now.is_empty() || now == before {
                // A finding that is still there after its repair cannot be repaired.
                let left = match wanted > depth {
                    true => looks(&c, &w, settings, wanted).await?.0,
                    false => left,
                };
                return Ok(Repaired { mended, left });
            }
            now.iter().for_each(|(_, text)| told(text));
            mended += now.len();
            if dry {
                return Ok(Repaired { mended, left });
            }
            if rows.is_empty() {
                mend_tree(&c, &w, settings, &now).await?;
            } else {
                Cw::open(c.clone(), w.clone()).await?.mend(&rows).await?;
            }
            before = now;
        }
    }
}

/// Checks the archive on the devices. Returns the findings, and descriptions of the possible repairs.
async fn looks(
    c: &Arc<dyn Device>,
    w: &Arc<dyn Device>,
    settings: &Settings,
    depth: Depth,
) -> nine_block::Result<(Checked, Vec<String>)> {
    let (archive, driver) = Archive::look(c.clone(), w.clone(), settings).await?;
    let done = driver.beside(async {
        let checked = archive.check(depth).await?;
        let mut texts = Vec::new();
        for mend in &checked.mends {
            texts.push(match mend.inode() {
                Some(ino) => format!("{}: {mend}", archive.path_of(None, ino).await),
                None => mend.to_string(),
            });
        }
        archive.close().await?;
        Ok((checked, texts))
    });
    done.await.map_err(|error: nine_proto::Error| Wrong::new(Kind::Failed, error))
}

async fn mend_tree(
    c: &Arc<dyn Device>,
    w: &Arc<dyn Device>,
    settings: &Settings,
    mends: &[(TreeRepair, String)],
) -> nine_block::Result<()> {
    let (archive, driver) = Archive::open_still(c.clone(), w.clone(), settings).await?;
    let now = archive.time();
    let done = driver.beside(async {
        for (mend, _) in mends {
            archive.attempt(|state| state.fs.mend(mend, now)).await?;
            archive.state().noted = true;
        }
        archive.close().await
    });
    done.await.map_err(|error: nine_proto::Error| Wrong::new(Kind::Failed, error))
}
