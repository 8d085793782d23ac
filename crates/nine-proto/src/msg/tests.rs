//! Round trips of every message, also cut short and too long; and the golden bytes with their printed form.

use super::*;
use crate::stat::StatIds;
use alloc::format;
use alloc::string::String;
use std::vec;

const QID: Qid = Qid { ty: 0x80, vers: 3, path: 0x0102 };
const FID: Fid = Fid(7);

fn all_t() -> Vec<Tmsg<'static>> {
    let names = Names::Slice(&[b"net", b"tcp"]);
    let time = Time { sec: 5, nsec: 6 };
    vec![
        Tmsg::Statfs { fid: FID },
        Tmsg::Lopen { fid: FID, flags: 2 },
        Tmsg::Lcreate { fid: FID, name: b"n", flags: 2, mode: 0o644, gid: 5 },
        Tmsg::Symlink { dfid: FID, name: b"n", target: b"../t", gid: 5 },
        Tmsg::Mknod { dfid: FID, name: b"n", mode: 0o20644, major: 1, minor: 3, gid: 5 },
        Tmsg::Rename { fid: FID, dfid: Fid(8), name: b"n" },
        Tmsg::Readlink { fid: FID },
        Tmsg::Getattr { fid: FID, mask: 0x7ff },
        Tmsg::Setattr {
            fid: FID,
            valid: SetMask::SIZE,
            mode: 1,
            uid: 2,
            gid: 3,
            size: 4,
            atime: time,
            mtime: time,
        },
        Tmsg::Xattrwalk { fid: FID, newfid: Fid(8), name: b"user.x" },
        Tmsg::Xattrcreate { fid: FID, name: b"user.x", size: 3, flags: 1 },
        Tmsg::Readdir { fid: FID, offset: 9, count: 4096 },
        Tmsg::Fsync { fid: FID, datasync: OptionalU32(1) },
        Tmsg::Lock { fid: FID, ty: 1, flags: 1, start: 0, length: 9, proc_id: 77, client_id: b"host" },
        Tmsg::Getlock { fid: FID, ty: 1, start: 0, length: 9, proc_id: 77, client_id: b"host" },
        Tmsg::Link { dfid: FID, fid: Fid(8), name: b"n" },
        Tmsg::Mkdir { dfid: FID, name: b"n", mode: 0o755, gid: 5 },
        Tmsg::Renameat { olddirfid: FID, oldname: b"o", newdirfid: Fid(8), newname: b"n" },
        Tmsg::Renameat2 { olddirfid: FID, oldname: b"o", newdirfid: Fid(8), newname: b"n", flags: 2 },
        Tmsg::Unlinkat { dirfid: FID, name: b"n", flags: 0x200 },
        Tmsg::Version { msize: 8192, version: b"9P2000" },
        Tmsg::Auth { afid: FID, uname: b"glenda", aname: b"", n_uname: OnlyIds(1000) },
        Tmsg::Attach {
            fid: FID,
            afid: Fid(u32::MAX),
            uname: b"glenda",
            aname: b"/x",
            n_uname: OnlyIds(1000),
        },
        Tmsg::Flush { oldtag: Tag(3) },
        Tmsg::Walk { fid: FID, newfid: Fid(9), names },
        Tmsg::Walk { fid: FID, newfid: Fid(9), names: Names::Slice(&[]) },
        Tmsg::Open { fid: FID, mode: 0x11 },
        Tmsg::Create { fid: FID, name: b"n", perm: 0o644, mode: 1, extension: OnlyUStr(b"b 1 2") },
        Tmsg::Read { fid: FID, offset: 1 << 40, count: 8192 },
        Tmsg::Write { fid: FID, offset: 4, data: Data::Bytes(b"hello") },
        Tmsg::Clunk { fid: FID },
        Tmsg::Remove { fid: FID },
        Tmsg::Stat { fid: FID },
        Tmsg::Wstat { fid: FID, stat: Stat { name: b"new", ..Stat::DONT_TOUCH } },
        Tmsg::Stream { fid: FID, isread: 1, offset: 0 },
        Tmsg::Sclose { fid: FID, count: u64::MAX },
    ]
}

fn all_r() -> Vec<Rmsg<'static>> {
    let stat = Stat { name: b"f", uid: b"u", gid: b"g", muid: b"m", ids: StatIds::UNSET, ..Stat::DONT_TOUCH };
    vec![
        Rmsg::Lerror { ecode: 2 },
        Rmsg::Statfs { statfs: Statfs { bsize: 4096, namelen: 255, ..Statfs::default() } },
        Rmsg::Lopen { qid: QID, iounit: 0 },
        Rmsg::Lcreate { qid: QID, iounit: 0 },
        Rmsg::Symlink { qid: QID },
        Rmsg::Mknod { qid: QID },
        Rmsg::Rename {},
        Rmsg::Readlink { target: b"../t" },
        Rmsg::Getattr { attr: Attr { qid: QID, mode: 0o40755, size: 9, ..Attr::default() } },
        Rmsg::Setattr {},
        Rmsg::Xattrwalk { size: 5 },
        Rmsg::Xattrcreate {},
        Rmsg::Readdir { data: Data::Bytes(b"entries") },
        Rmsg::Fsync {},
        Rmsg::Lock { status: 1 },
        Rmsg::Getlock { ty: 2, start: 0, length: 9, proc_id: 77, client_id: b"host" },
        Rmsg::Link {},
        Rmsg::Mkdir { qid: QID },
        Rmsg::Renameat {},
        Rmsg::Renameat2 {},
        Rmsg::Unlinkat {},
        Rmsg::Version { msize: 8192, version: b"unknown" },
        Rmsg::Auth { aqid: QID },
        Rmsg::Attach { qid: QID },
        Rmsg::Error { ename: b"file not found", errno: OnlyU(2) },
        Rmsg::Flush {},
        Rmsg::Walk { qids: Qids::Slice(&[QID, QID]) },
        Rmsg::Open { qid: QID, iounit: 8168 },
        Rmsg::Create { qid: QID, iounit: 8168 },
        Rmsg::Read { data: Data::Bytes(b"hello") },
        Rmsg::Write { count: 5 },
        Rmsg::Clunk {},
        Rmsg::Remove {},
        Rmsg::Stat { stat },
        Rmsg::Wstat {},
        Rmsg::Stream { data: Data::Bytes(b"tcp!*!564 00ff") },
        Rmsg::Sclose { count: 9, errno: 5, ename: b"Input/output error" },
    ]
}

/// Compares the printed and re-encoded messages. That compares exactly the fields that the dialect has.
fn there_and_back(dialect: Dialect) {
    let mut buf = Vec::new();
    for message in all_t() {
        buf.clear();
        message.encode(Tag(1), dialect, &mut buf);
        let (tag, decoded) = Tmsg::decode(&buf, dialect).unwrap();
        let mut again = Vec::new();
        decoded.encode(tag, dialect, &mut again);
        assert_eq!(buf, again, "{}", message.label());
    }
    for message in all_r() {
        buf.clear();
        message.encode(Tag(1), dialect, &mut buf);
        let (tag, decoded) = Rmsg::decode(&buf, dialect).unwrap();
        let mut again = Vec::new();
        decoded.encode(tag, dialect, &mut again);
        assert_eq!(buf, again, "{}", message.label());
    }
}

#[test]
fn every_message_comes_back_as_it_was_in_every_dialect() {
    [Dialect::P2000, Dialect::U, Dialect::L].into_iter().for_each(there_and_back);
}

#[test]
fn a_message_cut_anywhere_or_with_a_byte_too_many_is_refused() {
    for dialect in [Dialect::P2000, Dialect::U, Dialect::L] {
        for message in all_t() {
            let mut buf = Vec::new();
            message.encode(Tag(1), dialect, &mut buf);
            for end in HEADER..buf.len() {
                if matches!(message, Tmsg::Fsync { .. }) && end == buf.len() - 4 {
                    // Older clients omit the last field.
                    let without = Tmsg::Fsync { fid: FID, datasync: OptionalU32(0) };
                    assert_eq!(Tmsg::decode(&buf[..end], dialect).unwrap().1, without);
                    continue;
                }
                assert!(Tmsg::decode(&buf[..end], dialect).is_err(), "{} cut at {end}", message.label());
            }
            buf.push(0);
            assert!(Tmsg::decode(&buf, dialect).is_err(), "{} with a tail", message.label());
        }
    }
}

#[test]
fn names_behind_the_first_are_the_same_in_a_frame_and_in_a_slice() {
    let all: [&[u8]; 4] = [b"a", b"", b"long name", b".."];
    let bytes: Vec<u8> =
        all.iter().flat_map(|name| [&(name.len() as u16).to_le_bytes()[..], name].concat()).collect();
    let wire = Names::Wire { count: 4, bytes: &bytes };
    for n in 0..6 {
        let rest = wire.after(n);
        assert!(
            rest.iter().eq(all.iter().skip(n).copied()) && rest.len() == 4_usize.saturating_sub(n),
            "{n}"
        );
        assert_eq!(rest, Names::Slice(&all).after(n));
    }
}

#[test]
fn seventeen_names_are_refused() {
    let mut buf = Vec::new();
    let mut w = Writer::message(&mut buf, 110, Tag(1), Dialect::P2000);
    w.fid(FID);
    w.fid(FID);
    w.u16(17);
    for _ in 0..17 {
        w.str(b"x");
    }
    w.finish(0);
    assert_eq!(Tmsg::decode(&buf, Dialect::P2000), Err(WireError::Count(110)));
}

#[test]
fn the_illegal_errors_are_no_t_messages() {
    for ty in [6u8, 106, 101, 7, 0, 255] {
        let frame = [7, 0, 0, 0, ty, 1, 0];
        assert_eq!(Tmsg::decode(&frame, Dialect::L), Err(WireError::Type(ty)));
    }
}

/// `golden/messages.txt`: a line `dialect hex` and a line with the printed form, per message.
#[test]
fn golden_bytes_print_as_they_always_did() {
    let mut text = String::new();
    for dialect in [Dialect::P2000, Dialect::U, Dialect::L] {
        let mut line = |bytes: &[u8], shown: String| {
            text.push_str(&format!("{} ", dialect.name()));
            bytes.iter().for_each(|b| text.push_str(&format!("{b:02x}")));
            text.push_str(&format!("\n    {shown}\n"));
        };
        for message in all_t() {
            let mut buf = Vec::new();
            message.encode(Tag(1), dialect, &mut buf);
            line(&buf, format!("{}", Tmsg::decode(&buf, dialect).unwrap().1.with_tag(Tag(1))));
        }
        for message in all_r() {
            let mut buf = Vec::new();
            message.encode(Tag(1), dialect, &mut buf);
            line(&buf, format!("{}", Rmsg::decode(&buf, dialect).unwrap().1.with_tag(Tag(1))));
        }
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../golden/messages.txt");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(path, &text).unwrap();
    }
    let golden = std::fs::read_to_string(path).unwrap();
    for (ours, theirs) in text.lines().zip(golden.lines()) {
        assert_eq!(ours, theirs);
    }
    assert_eq!(text.len(), golden.len());
}
