//! The stat record of 9P2000 and .u (stat(5)), and its conversion to and from [`Attr`].
//!
//! `size[2] type[2] dev[4] qid[13] mode[4] atime[4] mtime[4] length[8] name[s] uid[s] gid[s] muid[s]`, and in .u
//! `extension[s] n_uid[4] n_gid[4] n_muid[4]`. `size` counts the bytes after it.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use core::fmt;

use crate::attr::{Attr, GetMask, Names, Texts, Time};
use crate::dialect::Dialect;
use crate::ids::{NOUID, Qid};
use crate::wire::{Reader, Str, WireError, Writer, show};

/// Mode bits: Linux `st_mode` types, and the DM bits of 9P.
#[allow(missing_docs, reason = "the names of stat(2) and of stat(5)")]
pub mod mode {
    pub const S_IFMT: u32 = 0o170000;
    pub const S_IFSOCK: u32 = 0o140000;
    pub const S_IFLNK: u32 = 0o120000;
    pub const S_IFREG: u32 = 0o100000;
    pub const S_IFBLK: u32 = 0o060000;
    pub const S_IFDIR: u32 = 0o040000;
    pub const S_IFCHR: u32 = 0o020000;
    pub const S_IFIFO: u32 = 0o010000;
    pub const S_ISUID: u32 = 0o4000;
    pub const S_ISGID: u32 = 0o2000;
    pub const S_ISVTX: u32 = 0o1000;

    pub const DMDIR: u32 = 0x8000_0000;
    pub const DMAPPEND: u32 = 0x4000_0000;
    pub const DMEXCL: u32 = 0x2000_0000;
    pub const DMAUTH: u32 = 0x0800_0000;
    pub const DMTMP: u32 = 0x0400_0000;
    pub const DMSYMLINK: u32 = 0x0200_0000;
    pub const DMLINK: u32 = 0x0100_0000;
    pub const DMDEVICE: u32 = 0x0080_0000;
    pub const DMNAMEDPIPE: u32 = 0x0020_0000;
    pub const DMSOCKET: u32 = 0x0010_0000;
    pub const DMSETUID: u32 = 0x0008_0000;
    pub const DMSETGID: u32 = 0x0004_0000;
    pub const DMSETVTX: u32 = 0x0001_0000;

    /// Converts a Linux mode to a DM mode. `u` adds the bits that only .u has. The file type bits come from the qid.
    pub fn to_dm(st_mode: u32, qid_ty: u8, u: bool) -> u32 {
        let mut dm = st_mode & 0o777 | (u32::from(qid_ty) & 0xfc) << 24;
        if u {
            dm |= match st_mode & S_IFMT {
                S_IFLNK => DMSYMLINK,
                S_IFBLK | S_IFCHR => DMDEVICE,
                S_IFIFO => DMNAMEDPIPE,
                S_IFSOCK => DMSOCKET,
                _ => 0,
            };
            for (st, bit) in [(S_ISUID, DMSETUID), (S_ISGID, DMSETGID), (S_ISVTX, DMSETVTX)] {
                if st_mode & st != 0 {
                    dm |= bit;
                }
            }
        }
        dm
    }

    /// Converts a DM mode to a Linux mode. Devices yield `S_IFCHR`; only the `extension` shows an `S_IFBLK`.
    pub fn from_dm(dm: u32) -> u32 {
        let ty = match dm {
            dm if dm & DMDIR != 0 => S_IFDIR,
            dm if dm & DMSYMLINK != 0 => S_IFLNK,
            dm if dm & DMDEVICE != 0 => S_IFCHR,
            dm if dm & DMNAMEDPIPE != 0 => S_IFIFO,
            dm if dm & DMSOCKET != 0 => S_IFSOCK,
            _ => S_IFREG,
        };
        ty | permissions(dm)
    }

    /// Returns the permission bits of a DM mode, including the set-id and sticky bits of .u.
    pub fn permissions(dm: u32) -> u32 {
        let mut st = dm & 0o777;
        for (bit, value) in [(DMSETUID, S_ISUID), (DMSETGID, S_ISGID), (DMSETVTX, S_ISVTX)] {
            if dm & bit != 0 {
                st |= value;
            }
        }
        st
    }
}

/// A stat record. In a Twstat, a field of all ones or an empty string means "don't touch".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat<'a> {
    /// For the kernel's use.
    pub ty: u16,
    /// For the kernel's use.
    pub dev: u32,
    /// The file's qid.
    pub qid: Qid,
    /// DM bits and permissions.
    pub mode: u32,
    /// Access time, seconds since 1970.
    pub atime: u32,
    /// Modification time, seconds since 1970.
    pub mtime: u32,
    /// Length in bytes, 0 for directories.
    pub length: u64,
    /// Last element of the file's path, `/` for the root.
    pub name: Str<'a>,
    /// Owner.
    pub uid: Str<'a>,
    /// Group.
    pub gid: Str<'a>,
    /// The user that modified the file last.
    pub muid: Str<'a>,
    /// The fields of .u. Other dialects do not send them.
    pub ids: StatIds<'a>,
}

/// The fields that .u appends to a stat record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatIds<'a> {
    /// Target of a symlink, or a device as `b maj min` or `c maj min`.
    pub extension: Str<'a>,
    /// Number of the owner.
    pub uid: u32,
    /// Number of the group.
    pub gid: u32,
    /// Number of the last modifier.
    pub muid: u32,
}

impl StatIds<'_> {
    /// The values for a 9P2000 record, which lacks these fields.
    pub const UNSET: Self = Self { extension: b"", uid: NOUID, gid: NOUID, muid: NOUID };
}

impl Stat<'_> {
    /// A Twstat that changes nothing. Set the fields that are to change.
    pub const DONT_TOUCH: Self = Self {
        ty: u16::MAX,
        dev: u32::MAX,
        qid: Qid { ty: u8::MAX, vers: u32::MAX, path: u64::MAX },
        mode: u32::MAX,
        atime: u32::MAX,
        mtime: u32::MAX,
        length: u64::MAX,
        name: b"",
        uid: b"",
        gid: b"",
        muid: b"",
        ids: StatIds::UNSET,
    };
}

impl<'a> Stat<'a> {
    /// Decodes one record, including its `size[2]`.
    pub fn decode(r: &mut Reader<'a>) -> Result<Self, WireError> {
        let size = r.u16()?;
        let mut r = Reader::new(r.take(size.into())?, 0, r.dialect);
        let stat = Self::decode_body(&mut r).map_err(|_| WireError::Stat)?;
        r.end().map_err(|_| WireError::Stat)?;
        Ok(stat)
    }

    fn decode_body(r: &mut Reader<'a>) -> Result<Self, WireError> {
        Ok(Self {
            ty: r.u16()?,
            dev: r.u32()?,
            qid: r.qid()?,
            mode: r.u32()?,
            atime: r.u32()?,
            mtime: r.u32()?,
            length: r.u64()?,
            name: r.str()?,
            uid: r.str()?,
            gid: r.str()?,
            muid: r.str()?,
            ids: if r.dialect.is_u() {
                StatIds { extension: r.str()?, uid: r.u32()?, gid: r.u32()?, muid: r.u32()? }
            } else {
                StatIds::UNSET
            },
        })
    }

    /// Encodes the record, including its `size[2]`.
    pub fn encode(&self, mut w: Writer<'_>) {
        w.u16(0);
        w.u16(self.ty);
        w.u32(self.dev);
        w.qid(self.qid);
        w.u32(self.mode);
        w.u32(self.atime);
        w.u32(self.mtime);
        w.u64(self.length);
        for s in [self.name, self.uid, self.gid, self.muid] {
            w.str(s);
        }
        if w.dialect.is_u() {
            w.str(self.ids.extension);
            w.u32(self.ids.uid);
            w.u32(self.ids.gid);
            w.u32(self.ids.muid);
        }
        w.finish_record();
    }

    /// Converts the record to an [`Attr`]. In 9P2000, `names` converts owner and group to numbers if they are known.
    /// The result also holds the texts.
    pub fn to_attr(&self, dialect: Dialect, names: &dyn Names) -> Attr {
        let mut mode = mode::from_dm(self.mode);
        let mut rdev = 0;
        if dialect.is_u() && self.mode & mode::DMDEVICE != 0 {
            let (block, number) = parse_device(self.ids.extension).unwrap_or_default();
            if block {
                mode = mode & !mode::S_IFMT | mode::S_IFBLK;
            }
            rdev = number;
        }
        let (uid, gid) = if dialect.is_u() {
            (self.ids.uid, self.ids.gid)
        } else {
            (names.uid(self.uid).unwrap_or(NOUID), names.gid(self.gid).unwrap_or(NOUID))
        };
        let time = |sec: u32| Time { sec: sec.into(), nsec: 0 };
        // Fields that the record lacks, and owners without a number.
        let mut unknown = GetMask::NLINK | GetMask::CTIME | GetMask::BLOCKS;
        for (number, bit) in [(uid, GetMask::UID), (gid, GetMask::GID)] {
            if number == NOUID {
                unknown |= bit;
            }
        }
        Attr {
            valid: GetMask(GetMask::BASIC.0 & !unknown.0 | GetMask::TEXTS.0),
            qid: self.qid,
            mode,
            uid,
            gid,
            nlink: 1,
            rdev,
            size: self.length,
            blksize: 0,
            blocks: self.length.div_ceil(512),
            atime: time(self.atime),
            mtime: time(self.mtime),
            ctime: time(self.mtime),
            texts: Some(Box::new(Texts {
                name: self.name.into(),
                target: if self.mode & mode::DMSYMLINK != 0 {
                    self.ids.extension.into()
                } else {
                    Box::default()
                },
                owners: Some([self.uid.into(), self.gid.into(), self.muid.into()]),
            })),
            ..Attr::default()
        }
    }
}

impl Attr {
    /// Encodes this file's stat record. `name` is its name; `self.texts`, if present (requested with
    /// [`GetMask::TEXTS`]), supplies the symlink target and the owners' names.
    pub fn encode_stat(&self, name: Str<'_>, names: &dyn Names, w: Writer<'_>) {
        let u = w.dialect.is_u();
        let texts = self.texts.as_deref();
        let own: [String; 2];
        let [uid, gid, muid]: [Str<'_>; 3] = match texts.and_then(|t| t.owners.as_ref()) {
            Some([uid, gid, muid]) => [uid, gid, muid],
            None => {
                own = [names.user(self.uid), names.group(self.gid)];
                [own[0].as_bytes(), own[1].as_bytes(), own[0].as_bytes()]
            }
        };
        let device;
        let extension: Str<'_> = match self.mode & mode::S_IFMT {
            mode::S_IFLNK => texts.map_or(b"", |t| &t.target),
            ty @ (mode::S_IFBLK | mode::S_IFCHR) => {
                let (major, minor) = device_numbers(self.rdev);
                device = format!("{} {major} {minor}", if ty == mode::S_IFBLK { 'b' } else { 'c' });
                device.as_bytes()
            }
            _ => b"",
        };
        let is_dir = self.qid.is_dir();
        Stat {
            ty: 0,
            dev: 0,
            qid: self.qid,
            mode: mode::to_dm(self.mode, self.qid.ty, u),
            atime: seconds(self.atime),
            mtime: seconds(self.mtime),
            length: if is_dir { 0 } else { self.size },
            name: clip(name),
            uid: clip(uid),
            gid: clip(gid),
            muid: clip(muid),
            ids: StatIds { extension: clip(extension), uid: self.uid, gid: self.gid, muid: NOUID },
        }
        .encode(w);
    }
}

/// Shortens a string to 8192 bytes: a record must stay below 64 KiB.
fn clip(s: Str<'_>) -> Str<'_> {
    &s[..s.len().min(8192)]
}

/// Converts to the 32-bit seconds of 9P2000, clamped to their range. The result is never the "don't touch" value.
fn seconds(time: Time) -> u32 {
    time.sec.clamp(0, i64::from(u32::MAX - 1)) as u32
}

/// Splits a Linux device number into `(major, minor)`.
pub(crate) fn device_numbers(rdev: u64) -> (u32, u32) {
    let major = (rdev >> 8 & 0xfff) | (rdev >> 32 & 0xffff_f000);
    let minor = (rdev & 0xff) | (rdev >> 12 & 0xffff_ff00);
    (major as u32, minor as u32)
}

/// Returns the Linux device number of `(major, minor)`.
pub(crate) fn device_number(major: u32, minor: u32) -> u64 {
    let (major, minor) = (u64::from(major), u64::from(minor));
    (minor & 0xff) | (major & 0xfff) << 8 | (minor & 0xffff_ff00) << 12 | (major & 0xffff_f000) << 32
}

/// Parses a .u extension: whether it is a block device, and the device number.
pub(crate) fn parse_device(extension: Str<'_>) -> Option<(bool, u64)> {
    let text = core::str::from_utf8(extension).ok()?;
    let mut words = text.split_ascii_whitespace();
    let block = match words.next()? {
        "b" => true,
        "c" => false,
        _ => return None,
    };
    let number = device_number(words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    words.next().is_none().then_some((block, number))
}

impl fmt::Display for Stat<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "'{}' '{}' '{}' '{}' q {} m {:#o} at {} mt {} l {} t {} d {}",
            show(self.name),
            show(self.uid),
            show(self.gid),
            show(self.muid),
            self.qid,
            self.mode,
            self.atime,
            self.mtime,
            self.length,
            self.ty,
            self.dev
        )?;
        if self.ids != StatIds::UNSET {
            let ids = &self.ids;
            write!(
                f,
                " ext '{}' n_uid {} n_gid {} n_muid {}",
                show(ids.extension),
                ids.uid,
                ids.gid,
                ids.muid
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attr::Numeric;
    use alloc::vec::Vec;

    fn file() -> Attr {
        Attr {
            qid: Qid { ty: 0, vers: 1, path: 7 },
            mode: mode::S_IFREG | 0o644,
            uid: 1000,
            gid: 100,
            size: 12,
            mtime: Time { sec: 99, nsec: 5 },
            ..Attr::default()
        }
    }

    #[test]
    fn a_record_comes_back_as_it_was() {
        for dialect in [Dialect::P2000, Dialect::U] {
            let mut buf = Vec::new();
            file().encode_stat(b"passwd", &Numeric, Writer::record(&mut buf, dialect));
            let stat = Stat::decode(&mut Reader::new(&buf, 0, dialect)).unwrap();
            assert_eq!((stat.name, stat.uid, stat.length), (&b"passwd"[..], &b"1000"[..], 12));
            let attr = stat.to_attr(dialect, &Numeric);
            assert_eq!(
                (attr.mode, attr.uid, attr.gid, attr.mtime.sec),
                (mode::S_IFREG | 0o644, 1000, 100, 99)
            );
        }
    }

    #[test]
    fn a_record_with_bytes_too_many_or_too_few_is_refused() {
        let mut buf = Vec::new();
        file().encode_stat(b"x", &Numeric, Writer::record(&mut buf, Dialect::P2000));
        let mut longer = buf.clone();
        longer.push(0);
        longer[0] += 1;
        assert_eq!(Stat::decode(&mut Reader::new(&longer, 0, Dialect::P2000)), Err(WireError::Stat));
        buf.pop();
        buf[0] -= 1;
        assert_eq!(Stat::decode(&mut Reader::new(&buf, 0, Dialect::P2000)), Err(WireError::Stat));
    }

    #[test]
    fn device_numbers_split_as_linux_splits_them() {
        for (major, minor) in [(8, 1), (259, 70_000), (0xabcde, 0xfffff)] {
            assert_eq!(device_numbers(device_number(major, minor)), (major, minor));
        }
        assert_eq!(parse_device(b"b 8 1"), Some((true, device_number(8, 1))));
        assert_eq!(parse_device(b"b 8"), None);
        assert_eq!(parse_device(b"b 8 1 9"), None);
    }

    #[test]
    fn a_time_before_1970_is_zero_and_never_dont_touch() {
        assert_eq!(seconds(Time { sec: -5, nsec: 0 }), 0);
        assert_eq!(seconds(Time { sec: i64::MAX, nsec: 0 }), u32::MAX - 1);
    }
}
