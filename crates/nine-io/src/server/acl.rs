//! Access control lists of POSIX (acl(5)), as Linux stores them in two extended attributes.
//!
//! In: the value of an attribute, mode bits, a client's user and groups. Out: the list, the mode bits that follow from
//! it, and whether it grants an access. The rules are those of Linux' fs/posix_acl.c. A server that stores lists and
//! checks permissions itself uses these functions for both.
//!
//! Always holds: a list has the entries that acl(5) requires, in their order, and at most [`ENTRIES_MAX`] of them.

use nine_proto::{Errno, Result};

/// The attribute with the list that controls access to a file.
pub const ACCESS: &[u8] = b"system.posix_acl_access";
/// The attribute of a directory that new files in it inherit.
pub const DEFAULT: &[u8] = b"system.posix_acl_default";

/// Entries of a list: the kernel reads lists over FUSE into one page. A longer value is refused with E2BIG.
pub const ENTRIES_MAX: usize = (4096 - HEADER_LEN) / ENTRY_LEN;

/// The version word at the start of a value.
const VERSION: u32 = 2;
const HEADER_LEN: usize = 4;
const ENTRY_LEN: usize = 8;
/// The id in entries that name no user or group.
const NO_ID: u32 = u32::MAX;

/// One of the two lists of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AclKind {
    /// [`ACCESS`].
    Access,
    /// [`DEFAULT`].
    Default,
}

impl AclKind {
    /// The list in the attribute of this name; `None`: the name is another attribute's.
    pub fn of(name: &[u8]) -> Option<Self> {
        match name {
            ACCESS => Some(Self::Access),
            DEFAULT => Some(Self::Default),
            _ => None,
        }
    }

    /// The name of the attribute.
    pub fn name(self) -> &'static [u8] {
        match self {
            Self::Access => ACCESS,
            Self::Default => DEFAULT,
        }
    }
}

/// The kind of client that an entry applies to. Entries are sorted in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum AclTag {
    Owner = 0x01,
    User = 0x02,
    OwningGroup = 0x04,
    Group = 0x08,
    Mask = 0x10,
    Other = 0x20,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct AclEntry {
    tag: AclTag,
    /// Three bits, as in a mode.
    perm: u8,
    /// The user or group of [`AclTag::User`] and [`AclTag::Group`], else [`NO_ID`].
    id: u32,
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PosixAcl(Vec<AclEntry>);

/// The identity of a client, for an access check.
pub struct AclClient<F> {
    /// `None`: the client has no user id, and only the permissions of all others apply to it.
    pub uid: Option<u32>,
    /// Whether the client is a member of a group.
    pub is_member: F,
}

impl PosixAcl {
    /// Reads the value of an attribute. `None`: it has no entries, and so removes the list.
    ///
    /// # Errors
    /// EINVAL for a malformed value, EOPNOTSUPP for another version, E2BIG for more than [`ENTRIES_MAX`] entries.
    pub fn parse(value: &[u8]) -> Result<Option<Self>> {
        if value.is_empty() {
            return Ok(None);
        }
        let (version, rest) = value.split_first_chunk().ok_or(Errno::EINVAL)?;
        if u32::from_le_bytes(*version) != VERSION {
            return Err(Errno::EOPNOTSUPP.into());
        }
        let (entries, rest) = rest.as_chunks::<ENTRY_LEN>();
        if !rest.is_empty() {
            return Err(Errno::EINVAL.into());
        }
        if entries.len() > ENTRIES_MAX {
            return Err(Errno::E2BIG.into());
        }
        if entries.is_empty() {
            return Ok(None);
        }
        let acl = Self(entries.iter().map(AclEntry::parse).collect::<Option<_>>().ok_or(Errno::EINVAL)?);
        if acl.is_valid() { Ok(Some(acl)) } else { Err(Errno::EINVAL.into()) }
    }

    /// The value of the attribute.
    pub fn encode(&self) -> Vec<u8> {
        let mut value = VERSION.to_le_bytes().to_vec();
        for entry in &self.0 {
            value.extend_from_slice(&(entry.tag as u16).to_le_bytes());
            value.extend_from_slice(&u16::from(entry.perm).to_le_bytes());
            value.extend_from_slice(&entry.id.to_le_bytes());
        }
        value
    }

    /// Checks that the required entries occur once each and in order, and a mask if a user or a group is named.
    fn is_valid(&self) -> bool {
        let count = |tag| self.0.iter().filter(|entry| entry.tag == tag).count();
        let required = [AclTag::Owner, AclTag::OwningGroup, AclTag::Other];
        let is_sorted = self.0.is_sorted_by_key(|entry| entry.tag);
        let mask_min = usize::from(count(AclTag::User) + count(AclTag::Group) > 0);
        is_sorted
            && required.iter().all(|tag| count(*tag) == 1)
            && (mask_min..=1).contains(&count(AclTag::Mask))
    }

    /// Whether mode bits cannot express it. A list that they can express is not stored.
    pub fn is_extended(&self) -> bool {
        self.0.len() > 3
    }

    /// The nine permission bits that stat(2) shows: the group's are those of the mask, if there is one.
    pub fn mode_bits(&self) -> u32 {
        self.0.iter().fold(0, |bits, entry| match self.class(entry.tag) {
            Some(shift) => bits | u32::from(entry.perm) << shift,
            None => bits,
        })
    }

    /// Applies chmod(2): sets the permissions of the owner, of the mask (or of the owning group, if there is no mask)
    /// and of all others.
    pub fn set_mode(&mut self, mode: u32) {
        for i in 0..self.0.len() {
            if let Some(shift) = self.class(self.0[i].tag) {
                self.0[i].perm = (mode >> shift) as u8 & 7;
            }
        }
    }

    /// The access list and the mode of a new file in a directory with this default list. `mode` is the mode that the
    /// program asked for, without a umask. The new list need not be [extended](Self::is_extended).
    pub fn inherit(&self, mode: u32) -> (Self, u32) {
        let mut new = self.clone();
        for i in 0..new.0.len() {
            if let Some(shift) = new.class(new.0[i].tag) {
                new.0[i].perm &= (mode >> shift) as u8 & 7;
            }
        }
        let mode = mode & !0o777 | new.mode_bits();
        (new, mode)
    }

    /// The position of an entry's bits in a mode; `None`: a mode does not contain them.
    fn class(&self, tag: AclTag) -> Option<u32> {
        let has_mask = || self.0.iter().any(|entry| entry.tag == AclTag::Mask);
        match tag {
            AclTag::Owner => Some(6),
            AclTag::Mask => Some(3),
            AclTag::OwningGroup if !has_mask() => Some(3),
            AclTag::Other => Some(0),
            AclTag::OwningGroup | AclTag::User | AclTag::Group => None,
        }
    }

    /// Whether a client has all of the permissions `want` (4 read, 2 write, 1 execute) on a file of this owner and
    /// group: acl(5), "Access check algorithm". If no other entry applies, the client has the permissions `others`,
    /// which replace the entry for all others.
    pub fn allows(
        &self,
        (owner, group): (u32, u32),
        client: &AclClient<impl Fn(u32) -> bool>,
        others: u8,
        want: u8,
    ) -> bool {
        let mask = self.0.iter().find(|entry| entry.tag == AclTag::Mask).map_or(7, |entry| entry.perm);
        let mut in_group = false;
        for entry in &self.0 {
            let applies = match entry.tag {
                AclTag::Owner if client.uid == Some(owner) => return want & !entry.perm == 0,
                AclTag::User if client.uid == Some(entry.id) => return want & !(entry.perm & mask) == 0,
                AclTag::OwningGroup => client.uid.is_some() && (client.is_member)(group),
                AclTag::Group => client.uid.is_some() && (client.is_member)(entry.id),
                AclTag::Owner | AclTag::User | AclTag::Mask | AclTag::Other => false,
            };
            if applies && want & !(entry.perm & mask) == 0 {
                return true;
            }
            in_group |= applies;
        }
        !in_group && want & !others == 0
    }
}

impl AclEntry {
    fn parse(bytes: &[u8; ENTRY_LEN]) -> Option<Self> {
        let [t0, t1, p0, p1, id @ ..] = *bytes;
        let tag = match u16::from_le_bytes([t0, t1]) {
            0x01 => AclTag::Owner,
            0x02 => AclTag::User,
            0x04 => AclTag::OwningGroup,
            0x08 => AclTag::Group,
            0x10 => AclTag::Mask,
            0x20 => AclTag::Other,
            _ => return None,
        };
        let perm = u8::try_from(u16::from_le_bytes([p0, p1])).ok().filter(|perm| *perm <= 7)?;
        // Linux ignores the id where there is no name, and so does this code.
        let id = u32::from_le_bytes(id);
        match tag {
            AclTag::User | AclTag::Group => (id != NO_ID).then_some(Self { tag, perm, id }),
            _ => Some(Self { tag, perm, id: NO_ID }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A value from `tag perm id` triples.
    fn value(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let mut value = 2u32.to_le_bytes().to_vec();
        for (tag, perm, id) in entries {
            value.extend_from_slice(&tag.to_le_bytes());
            value.extend_from_slice(&perm.to_le_bytes());
            value.extend_from_slice(&id.to_le_bytes());
        }
        value
    }

    fn acl(entries: &[(u16, u16, u32)]) -> PosixAcl {
        PosixAcl::parse(&value(entries)).unwrap().unwrap()
    }

    const NONE: u32 = NO_ID;
    const MINIMAL: [(u16, u16, u32); 3] = [(1, 6, NONE), (4, 4, NONE), (0x20, 0, NONE)];
    /// user::rw- user:1000:rwx group::r-- group:50:r-x mask::rw- other::---
    const EXTENDED: [(u16, u16, u32); 6] =
        [(1, 6, NONE), (2, 7, 1000), (4, 4, NONE), (8, 5, 50), (0x10, 6, NONE), (0x20, 0, NONE)];

    #[test]
    fn a_value_is_read_and_written_byte_for_byte() {
        for entries in [&MINIMAL[..], &EXTENDED] {
            assert_eq!(acl(entries).encode(), value(entries));
        }
        assert_eq!(PosixAcl::parse(b""), Ok(None));
        assert_eq!(PosixAcl::parse(&value(&[])), Ok(None));
        // The value that `getfattr -e hex` shows after `setfacl -m u:1235:rw`.
        let linux =
            b"\x02\0\0\0\x01\0\x06\0\xff\xff\xff\xff\x02\0\x06\0\xd3\x04\0\0\x04\0\x04\0\xff\xff\xff\xff\
            \x10\0\x06\0\xff\xff\xff\xff\x20\0\x04\0\xff\xff\xff\xff";
        let read = PosixAcl::parse(linux).unwrap().unwrap();
        assert_eq!((read.encode().as_slice(), read.mode_bits()), (&linux[..], 0o664));
    }

    #[test]
    fn a_malformed_value_is_refused() {
        let without = |tag| EXTENDED.iter().copied().filter(|entry| entry.0 != tag).collect::<Vec<_>>();
        let mut swapped = EXTENDED;
        swapped.swap(1, 2);
        let bad: Vec<Vec<u8>> = vec![
            b"\x02".to_vec(),
            b"\x02\0\0".to_vec(),
            [&value(&MINIMAL)[..], b"\0"].concat(),
            value(&MINIMAL)[..27].to_vec(),
            value(&without(1)),
            value(&without(4)),
            value(&without(0x10)),
            value(&without(0x20)),
            value(&swapped),
            value(&[MINIMAL[0], MINIMAL[0], MINIMAL[1], MINIMAL[2]]),
            value(&[MINIMAL[0], MINIMAL[1], (0x10, 7, NONE), (0x10, 7, NONE), MINIMAL[2]]),
            value(&[(1, 8, NONE), MINIMAL[1], MINIMAL[2]]),
            value(&[(1, 0x106, NONE), MINIMAL[1], MINIMAL[2]]),
            value(&[(3, 6, NONE), MINIMAL[1], MINIMAL[2]]),
            value(&[MINIMAL[0], (2, 7, NONE), MINIMAL[1], (0x10, 7, NONE), MINIMAL[2]]),
        ];
        for value in bad {
            assert_eq!(PosixAcl::parse(&value).unwrap_err().errno, Errno::EINVAL, "{value:x?}");
        }
        let version = [&3u32.to_le_bytes()[..], &value(&MINIMAL)[4..]].concat();
        assert_eq!(PosixAcl::parse(&version).unwrap_err().errno, Errno::EOPNOTSUPP);
        let many = |named: usize| {
            let mut entries = vec![MINIMAL[0]];
            entries.extend((0..named as u32).map(|id| (2, 7, id)));
            entries.extend([MINIMAL[1], (0x10, 7, NONE), MINIMAL[2]]);
            PosixAcl::parse(&value(&entries))
        };
        assert!(many(ENTRIES_MAX - 4).is_ok());
        assert_eq!(many(ENTRIES_MAX - 3).unwrap_err().errno, Errno::E2BIG);
    }

    #[test]
    fn no_bytes_make_it_panic() {
        let whole = value(&EXTENDED);
        for len in 0..whole.len() {
            let _ = PosixAcl::parse(&whole[..len]);
            for byte in 0..=255 {
                let mut bytes = whole.clone();
                bytes[len] = byte;
                if let Ok(Some(acl)) = PosixAcl::parse(&bytes) {
                    assert!(acl.is_valid());
                }
            }
        }
    }

    #[test]
    fn the_mode_shows_the_mask_and_chmod_changes_it() {
        let (mut minimal, mut extended) = (acl(&MINIMAL), acl(&EXTENDED));
        assert!(!minimal.is_extended() && extended.is_extended());
        assert_eq!((minimal.mode_bits(), extended.mode_bits()), (0o640, 0o660));
        minimal.set_mode(0o100_751);
        extended.set_mode(0o100_751);
        assert_eq!((minimal.mode_bits(), extended.mode_bits()), (0o751, 0o751));
        assert_eq!(minimal, acl(&[(1, 7, NONE), (4, 5, NONE), (0x20, 1, NONE)]));
        let changed =
            [(1, 7, NONE), (2, 7, 1000), (4, 4, NONE), (8, 5, 50), (0x10, 5, NONE), (0x20, 1, NONE)];
        assert_eq!(extended, acl(&changed));
        // A mask may stand without names.
        let masked = acl(&[MINIMAL[0], MINIMAL[1], (0x10, 1, NONE), MINIMAL[2]]);
        assert!(masked.is_extended());
        assert_eq!(masked.mode_bits(), 0o610);
    }

    #[test]
    fn a_new_file_inherits_no_more_than_it_asks_for() {
        let (new, mode) = acl(&EXTENDED).inherit(0o100_644);
        assert_eq!(mode, 0o100_640);
        let inherited =
            [(1, 6, NONE), (2, 7, 1000), (4, 4, NONE), (8, 5, 50), (0x10, 4, NONE), (0x20, 0, NONE)];
        assert_eq!(new, acl(&inherited));
        let (new, mode) = acl(&MINIMAL).inherit(0o042_777);
        assert_eq!((new, mode), (acl(&MINIMAL), 0o042_640));
        let (_, mode) = acl(&EXTENDED).inherit(0o100_000);
        assert_eq!(mode, 0o100_000);
    }

    #[test]
    fn the_first_entry_that_applies_decides() {
        // Owner 1, group 5.
        let check = |acl: &PosixAcl, uid: Option<u32>, groups: &[u32], want| {
            acl.allows((1, 5), &AclClient { uid, is_member: |gid| groups.contains(&gid) }, 1, want)
        };
        let list = acl(&[
            (1, 6, NONE),
            (2, 0, 1001),
            (2, 7, 1000),
            (4, 4, NONE),
            (8, 2, 50),
            (8, 0, 51),
            (0x10, 6, NONE),
            (0x20, 1, NONE),
        ]);
        for (uid, groups, has) in [
            // The owner: neither the mask nor a group takes or adds permissions.
            (Some(1), &[5, 50][..], &[6][..]),
            // Named users, within the mask; one of them without any right, though a group has some.
            (Some(1000), &[], &[6]),
            (Some(1001), &[5, 50], &[]),
            // Groups: one of them must have all wanted permissions.
            (Some(2), &[5], &[4]),
            (Some(2), &[5, 50], &[4, 2]),
            // A member of a group without permissions does not count as one of all others.
            (Some(2), &[51], &[]),
            (Some(2), &[51, 50], &[2]),
            (Some(2), &[], &[1]),
            // Without a user id: all others.
            (None, &[5, 50, 51], &[1]),
        ] {
            for want in 0..8u8 {
                let expected = want == 0 || has.iter().any(|perm: &u8| want & !perm == 0);
                assert_eq!(check(&list, uid, groups, want), expected, "{uid:?} {groups:?} {want}");
            }
        }
    }
}
