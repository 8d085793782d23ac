//! The identifiers of 9P (tags, fids, qids) and their reserved values.

use core::fmt;

/// Identifies one outstanding request of a session. The client chooses it (intro(5)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tag(pub u16);

/// Identifies a file in a session. The client chooses it (intro(5)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fid(pub u32);

/// The tag of Tversion, reserved for it (version(5)).
pub const NOTAG: Tag = Tag(0xffff);
/// "No fid": the afid of an attach without authentication.
pub const NOFID: Fid = Fid(0xffff_ffff);
/// "No numeric user": `n_uname` if the user's name counts.
pub const NOUID: u32 = 0xffff_ffff;
/// "No numeric group": the server takes the group of the directory.
pub const NOGID: u32 = 0xffff_ffff;

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == NOTAG { f.write_str("notag") } else { self.0.fmt(f) }
    }
}

impl fmt::Display for Fid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == NOFID { f.write_str("nofid") } else { self.0.fmt(f) }
    }
}

/// The server's unique identification of a file: two files are the same if and only if their qid paths are equal
/// (intro(5)). On the wire: `type[1] vers[4] path[8]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Qid {
    /// The kind of file: the top byte of its mode (`QTDIR`...).
    pub ty: u8,
    /// Changes whenever the file changes. 0 if the server does not count changes.
    pub vers: u32,
    /// Unique among all files of the server, including removed ones.
    pub path: u64,
}

impl Qid {
    /// Size on the wire, bytes.
    pub const SIZE: usize = 13;
    /// A directory.
    pub const DIR: u8 = 0x80;
    /// Append-only: writes go to the end of the file, whatever their offset.
    pub const APPEND: u8 = 0x40;
    /// Exclusive use: one open at a time.
    pub const EXCL: u8 = 0x20;
    /// The authentication file of Tauth.
    pub const AUTH: u8 = 0x08;
    /// Temporary: not included in backups.
    pub const TMP: u8 = 0x04;
    /// The bits that a client may ask for when it creates or changes a file: [`APPEND`](Self::APPEND),
    /// [`EXCL`](Self::EXCL), [`TMP`](Self::TMP).
    pub const SPECIAL: u8 = Self::APPEND | Self::EXCL | Self::TMP;
    /// Marks the files of synthetic trees that are not content. To open or read such a file may create something,
    /// consume something, or block for ever. Both bits also have their usual meaning. No stored file has both.
    pub const EVENT: u8 = Self::EXCL | Self::TMP;
    /// A symbolic link (.u, .L).
    pub const SYMLINK: u8 = 0x02;
    /// A plain file.
    pub const FILE: u8 = 0;

    /// Whether the file is a directory.
    pub fn is_dir(&self) -> bool {
        self.ty & Self::DIR != 0
    }

    /// Whether programs must open the file only by name ([`Qid::EVENT`]), not when they walk a whole tree.
    pub fn is_event(&self) -> bool {
        !self.is_dir() && self.ty & Self::EVENT == Self::EVENT
    }

    /// Whether the file is a symbolic link.
    pub fn is_symlink(&self) -> bool {
        self.ty & Self::SYMLINK != 0
    }
}

impl fmt::Display for Qid {
    /// Formats the qid as Plan 9 does: `(path vers type)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({:x} {} ", self.path, self.vers)?;
        if self.ty == 0 {
            return f.write_str("-)");
        }
        for (bit, c) in [
            (Self::DIR, 'd'),
            (Self::APPEND, 'a'),
            (Self::EXCL, 'l'),
            (0x10, 'm'),
            (Self::AUTH, 'A'),
            (Self::TMP, 't'),
            (Self::SYMLINK, 's'),
            (0x01, 'k'),
        ] {
            if self.ty & bit != 0 {
                write!(f, "{c}")?;
            }
        }
        f.write_str(")")
    }
}
