//! Steps the server session by hand through the fid rules and flush orders of the manual.

use super::*;
use crate::attr::{Attr, Numeric};
use crate::dialect::Base;
use crate::dir::Dirent;
use crate::frame::IOHDRSZ;
use crate::msg::{self, Names as WalkNames, OnlyIds};
use crate::op::{Op, Walked};
use crate::stat::Stat;
use alloc::format;
use alloc::string::String;
use std::vec;

mod ordered;

type S = Session<&'static str, Vec<u8>>;

#[derive(Default)]
struct Wire(Vec<u8>);

impl Out<Vec<u8>> for Wire {
    fn bytes(&mut self) -> &mut Vec<u8> {
        &mut self.0
    }
    fn payload(&mut self, payload: Vec<u8>) {
        self.0.extend(payload);
    }
}

/// A session, its output, and a client that sends it messages.
struct World {
    session: S,
    wire: Wire,
    dialect: Dialect,
}

const ROOT: Qid = Qid { ty: Qid::DIR, vers: 0, path: 1 };
const FILE: Qid = Qid { ty: 0, vers: 0, path: 2 };

impl World {
    fn new(dialect: Dialect) -> Self {
        const OFFERED: &[Dialect] =
            &[Dialect::LS, Dialect::US, Dialect::P2000S, Dialect::L, Dialect::U, Dialect::P2000];
        let session = S::new(OFFERED, Limits { msize: 8192, fids: 8 }, Arc::new(Numeric));
        let mut world = Self { session, wire: Wire::default(), dialect };
        world.send(NOTAG, Tmsg::Version { msize: 8192, version: dialect.name().as_bytes() });
        assert!(world.sent().starts_with("Rversion"));
        world
    }

    /// Creates a session with fid 1 on a directory.
    fn attached(dialect: Dialect) -> Self {
        let mut world = Self::new(dialect);
        let attach =
            Tmsg::Attach { fid: Fid(1), afid: NOFID, uname: b"u", aname: b"", n_uname: OnlyIds(NOUID_TEST) };
        let id = world.serve(1, attach);
        world.answer(id, Ok(Reply::Attach { qid: ROOT, node: "root" }));
        assert_eq!(world.sent(), "Rattach tag 1 qid (1 0 d)\n");
        world
    }

    /// Creates a session with fid 2 on a file that is open for reading and writing.
    fn opened(dialect: Dialect) -> Self {
        let mut world = Self::attached(dialect);
        let id = world.serve(1, walk(1, 2, &[b"f"]));
        world.answer(id, Ok(walked(&[FILE], Some("f"))));
        let open = match dialect.base {
            Base::L => Tmsg::Lopen { fid: Fid(2), flags: 2 },
            _ => Tmsg::Open { fid: Fid(2), mode: 2 },
        };
        let id = world.serve(1, open);
        world.answer(id, Ok(Reply::Open { qid: FILE, iounit: 0, node: "f open" }));
        world.sent();
        world
    }

    fn send(&mut self, tag: Tag, message: Tmsg<'_>) -> Step<&'static str, Vec<u8>> {
        let mut frame = Vec::new();
        message.encode(tag, self.dialect, &mut frame);
        self.session.receive(frame, &mut self.wire).unwrap()
    }

    fn serve(&mut self, tag: u16, message: Tmsg<'_>) -> CallId {
        match self.send(Tag(tag), message) {
            Step::Serve(request) => request.id(),
            _ => panic!("not served; sent: {}", self.sent()),
        }
    }

    fn refused(&mut self, tag: u16, message: Tmsg<'_>) -> String {
        assert!(matches!(self.send(Tag(tag), message), Step::Answered));
        self.sent()
    }

    fn answer(&mut self, id: CallId, result: Result<Reply<&'static str, Vec<u8>>>) -> Option<&'static str> {
        self.session.respond(id, result, &mut self.wire)
    }

    /// Takes and formats the messages sent since the last call.
    fn sent(&mut self) -> String {
        let bytes = core::mem::take(&mut self.wire.0);
        let mut rest = &bytes[..];
        let mut text = String::new();
        while let Ok(frame::Split::Whole(n)) = frame::split(rest, MSIZE_MAX) {
            let (tag, message) = Rmsg::decode(&rest[..n], self.dialect).unwrap();
            text += &format!("{}\n", message.with_tag(tag));
            rest = &rest[n..];
        }
        assert!(rest.is_empty());
        text
    }
}

const NOUID_TEST: u32 = u32::MAX;

fn walk<'a>(fid: u32, newfid: u32, names: &'a [&'a [u8]]) -> Tmsg<'a> {
    Tmsg::Walk { fid: Fid(fid), newfid: Fid(newfid), names: WalkNames::Slice(names) }
}

fn walked(qids: &[Qid], node: Option<&'static str>) -> Reply<&'static str, Vec<u8>> {
    let mut all = Walked::new();
    qids.iter().for_each(|&qid| all.push(qid));
    Reply::Walk { qids: all, node }
}

fn read(fid: u32, offset: u64, count: u32) -> Tmsg<'static> {
    Tmsg::Read { fid: Fid(fid), offset, count }
}

fn flush(oldtag: u16) -> Tmsg<'static> {
    Tmsg::Flush { oldtag: Tag(oldtag) }
}

fn clunk(fid: u32) -> Tmsg<'static> {
    Tmsg::Clunk { fid: Fid(fid) }
}

#[test]
fn nothing_comes_before_version() {
    let mut session = S::new(&[Dialect::P2000], Limits::default(), Arc::new(Numeric));
    let mut wire = Wire::default();
    let mut frame = Vec::new();
    clunk(1).encode(Tag(1), Dialect::P2000, &mut frame);
    assert!(matches!(session.receive(frame, &mut wire), Ok(Step::Answered)));
    assert_eq!(wire.0[4], 107);
}

#[test]
fn an_unknown_version_is_answered_unknown() {
    let mut world = World::new(Dialect::P2000);
    world.send(NOTAG, Tmsg::Version { msize: 8192, version: b"8P2000" });
    assert_eq!(world.sent(), "Rversion tag notag msize 8192 version 'unknown'\n");
}

#[test]
fn msize_only_goes_down() {
    let mut world = World::new(Dialect::P2000);
    world.send(NOTAG, Tmsg::Version { msize: 1 << 30, version: b"9P2000" });
    assert_eq!(world.sent(), "Rversion tag notag msize 8192 version '9P2000'\n");
    world.send(NOTAG, Tmsg::Version { msize: 1000, version: b"9P2000" });
    assert_eq!(world.session.msize(), 1000);
    world.send(NOTAG, Tmsg::Version { msize: 16, version: b"9P2000" });
    assert!(world.sent().contains("Rerror"));
}

#[test]
fn version_clunks_every_fid_and_drops_every_request() {
    let mut world = World::opened(Dialect::P2000);
    let id = world.serve(5, walk(1, 3, &[b"f"]));
    let Step::Reset(clunks) = world.send(NOTAG, Tmsg::Version { msize: 8192, version: b"9P2000" }) else {
        panic!("a Tversion resets");
    };
    let mut nodes: Vec<_> = clunks.iter().map(|c| *c.fid().unwrap()).collect();
    nodes.sort_unstable();
    assert_eq!(nodes, ["f open", "root"]);
    assert_eq!(world.session.outstanding(), 0);
    world.sent();
    // `respond` returns the node of the late walk and sends nothing.
    assert_eq!(world.answer(id, Ok(walked(&[FILE], Some("late")))), Some("late"));
    assert_eq!(world.sent(), "");
}

#[test]
fn a_fid_whose_clunk_is_being_served_is_not_clunked_again() {
    let mut world = World::opened(Dialect::P2000);
    let reading = world.serve(1, read(2, 0, 10));
    world.send(Tag(2), clunk(2));
    world.serve(3, clunk(1));
    let nodes = |clunks: Vec<Request<&'static str, Vec<u8>>>| -> Vec<_> {
        clunks.iter().map(|c| *c.fid().unwrap()).collect()
    };
    // The file server has fid 1's clunk. Fid 2's clunk waits for the read and is dropped.
    assert_eq!(nodes(world.session.close()), ["f open"]);
    world.answer(reading, Ok(Reply::Read(vec![])));
    assert!(world.session.next_ready().is_none());
}

#[test]
fn a_clunk_that_waited_for_an_open_closes_what_was_opened() {
    let mut world = World::attached(Dialect::P2000);
    let id = world.serve(1, walk(1, 2, &[b"f"]));
    world.answer(id, Ok(walked(&[FILE], Some("f"))));
    let open = world.serve(1, Tmsg::Open { fid: Fid(2), mode: 0x40 });
    assert!(matches!(world.send(Tag(2), clunk(2)), Step::Waits));
    world.answer(open, Ok(Reply::Open { qid: FILE, iounit: 0, node: "f open" }));
    let request = world.session.next_ready().unwrap();
    assert_eq!(request.fid(), Some(&"f open"));
    assert!(matches!(request.op(), Op::Remove));
}

#[test]
fn a_walk_onto_itself_does_not_wait_for_an_open() {
    let mut world = World::attached(Dialect::P2000);
    world.serve(1, Tmsg::Open { fid: Fid(1), mode: 0 });
    assert!(world.refused(2, walk(1, 1, &[b"f"])).contains("being opened"));
}

#[test]
fn the_end_says_which_fids_are_still_in_use() {
    let mut world = World::opened(Dialect::P2000);
    world.serve(1, read(2, 0, 10));
    world.serve(2, read(2, 0, 10));
    let clunks = world.session.close();
    let mut users: Vec<_> = clunks.iter().map(|c| (*c.fid().unwrap(), c.users())).collect();
    users.sort_unstable();
    assert_eq!(users, [("f open", 2), ("root", 0)]);
    assert_ne!(clunks[0].id(), clunks[1].id());
}

#[test]
fn bits_of_ours_in_a_tlopen_mean_nothing() {
    let mut world = World::attached(Dialect::L);
    let id = world.serve(1, walk(1, 2, &[b"f"]));
    world.answer(id, Ok(walked(&[FILE], Some("f"))));
    let id = world.serve(1, Tmsg::Lopen { fid: Fid(2), flags: 3 << 30 });
    world.answer(id, Ok(Reply::Open { qid: FILE, iounit: 0, node: "f" }));
    let Step::Serve(request) = world.send(Tag(1), clunk(2)) else { panic!() };
    assert!(matches!(request.op(), Op::Clunk));
}

#[test]
fn a_stale_answer_never_meets_a_new_request_of_its_tag() {
    let mut world = World::opened(Dialect::P2000);
    let old = world.serve(5, read(2, 0, 10));
    world.send(NOTAG, Tmsg::Version { msize: 8192, version: b"9P2000" });
    let attach = Tmsg::Attach { fid: Fid(1), afid: NOFID, uname: b"u", aname: b"", n_uname: OnlyIds(0) };
    let new = world.serve(5, attach);
    world.sent();
    world.answer(old, Ok(Reply::Read(vec![1])));
    assert_eq!(world.sent(), "");
    world.answer(new, Ok(Reply::Attach { qid: ROOT, node: "root" }));
    assert_eq!(world.sent(), "Rattach tag 5 qid (1 0 d)\n");
}

#[test]
fn partial_walk_makes_no_fid() {
    let mut world = World::attached(Dialect::P2000);
    let id = world.serve(1, walk(1, 2, &[b"a", b"b"]));
    world.answer(id, Ok(walked(&[ROOT], None)));
    assert_eq!(world.sent(), "Rwalk tag 1 qids [(1 0 d)]\n");
    assert!(world.refused(1, clunk(2)).contains("unknown fid"));
}

#[test]
fn a_walk_that_fails_at_its_first_name_is_an_error() {
    let mut world = World::attached(Dialect::L);
    let id = world.serve(1, walk(1, 2, &[b"a", b"b"]));
    world.answer(id, Ok(walked(&[], None)));
    assert_eq!(world.sent(), "Rlerror tag 1 ecode 2\n");
    assert_eq!(world.session.fid_count(), 1);
}

#[test]
fn a_fid_that_is_coming_cannot_be_used_or_made_again() {
    let mut world = World::attached(Dialect::P2000);
    let id = world.serve(1, walk(1, 2, &[b"d"]));
    assert!(world.refused(2, read(2, 0, 1)).contains("unknown fid"));
    assert!(world.refused(2, walk(1, 2, &[])).contains("fid in use"));
    world.answer(id, Ok(walked(&[ROOT], Some("d"))));
    assert!(world.refused(2, walk(1, 2, &[])).contains("fid in use"));
}

#[test]
fn a_walk_onto_itself_moves_the_fid_only_when_whole() {
    let mut world = World::attached(Dialect::P2000);
    let id = world.serve(1, walk(1, 1, &[b"a", b"b"]));
    assert!(world.refused(2, walk(1, 2, &[])).contains("being walked"));
    world.answer(id, Ok(walked(&[ROOT], None)));
    let Step::Serve(request) = world.send(Tag(1), walk(1, 1, &[b"f"])) else { panic!() };
    assert_eq!(request.fid(), Some(&"root"));
    world.answer(request.id(), Ok(walked(&[FILE], Some("f"))));
    world.sent();
    // The fid is now a file.
    assert!(world.refused(1, walk(1, 1, &[b"x"])).contains("Not a directory"));
}

#[test]
fn a_walk_onto_itself_waits_until_it_has_the_fid_alone() {
    let mut world = World::attached(Dialect::P2000);
    let first = world.serve(1, walk(1, 2, &[]));
    assert!(matches!(world.send(Tag(2), walk(1, 1, &[b"f"])), Step::Waits));
    assert!(world.session.next_ready().is_none());
    world.answer(first, Ok(walked(&[], Some("root2"))));
    let request = world.session.next_ready().unwrap();
    assert_eq!(request.id().tag, Tag(2));
}

#[test]
fn a_clunk_waits_for_the_requests_before_it_and_refuses_those_after() {
    let mut world = World::opened(Dialect::P2000);
    let first = world.serve(1, read(2, 0, 10));
    assert!(matches!(world.send(Tag(2), clunk(2)), Step::Waits));
    assert!(world.refused(3, read(2, 0, 10)).contains("unknown fid"));
    world.answer(first, Ok(Reply::Read(vec![7; 3])));
    assert_eq!(world.sent(), "Rread tag 1 data 3 bytes\n");
    let request = world.session.next_ready().unwrap();
    assert!(matches!(request.op(), Op::Clunk));
    assert!(world.refused(3, walk(1, 2, &[])).contains("fid in use"));
    world.answer(request.id(), Ok(Reply::Done));
    assert_eq!(world.sent(), "Rclunk tag 2\n");
    world.serve(3, walk(1, 2, &[]));
}

#[test]
fn clunk_and_remove_free_the_fid_even_when_they_fail() {
    for message in [clunk(2), Tmsg::Remove { fid: Fid(2) }] {
        let mut world = World::opened(Dialect::P2000);
        let id = world.serve(1, message);
        world.answer(id, Err(Errno::EACCES.into()));
        assert!(world.sent().contains("Permission denied"));
        assert!(world.refused(1, clunk(2)).contains("unknown fid"));
    }
}

#[test]
fn rclose_turns_the_clunk_into_a_remove() {
    let mut world = World::attached(Dialect::P2000);
    let id = world.serve(1, walk(1, 2, &[b"f"]));
    world.answer(id, Ok(walked(&[FILE], Some("f"))));
    let id = world.serve(1, Tmsg::Open { fid: Fid(2), mode: 0x40 });
    world.answer(id, Ok(Reply::Open { qid: FILE, iounit: 0, node: "f" }));
    let Step::Serve(request) = world.send(Tag(1), clunk(2)) else { panic!() };
    assert!(matches!(request.op(), Op::Remove));
    world.sent();
    world.answer(request.id(), Ok(Reply::Done));
    assert_eq!(world.sent(), "Rclunk tag 1\n");
    // The end of the connection removes the file, too.
    let id = world.serve(1, walk(1, 2, &[b"f"]));
    world.answer(id, Ok(walked(&[FILE], Some("f"))));
    let id = world.serve(1, Tmsg::Open { fid: Fid(2), mode: 0x40 });
    world.answer(id, Ok(Reply::Open { qid: FILE, iounit: 0, node: "f" }));
    assert_eq!(world.session.close().iter().filter(|c| matches!(c.op(), Op::Remove)).count(), 1);
}

#[test]
fn flush_of_what_is_not_outstanding_is_answered_at_once() {
    let mut world = World::opened(Dialect::P2000);
    assert_eq!(world.refused(1, flush(77)), "Rflush tag 1\n");
    assert_eq!(world.refused(1, flush(1)), "Rflush tag 1\n");
}

#[test]
fn an_answer_before_its_rflush_is_honoured() {
    let mut world = World::opened(Dialect::P2000);
    let id = world.serve(1, walk(1, 3, &[b"f"]));
    assert!(matches!(world.send(Tag(2), flush(1)), Step::Cancel(c) if c == id));
    assert_eq!(world.sent(), "");
    world.answer(id, Ok(walked(&[FILE], Some("f"))));
    assert_eq!(world.sent(), "Rwalk tag 1 qids [(2 0 -)]\nRflush tag 2\n");
    world.serve(1, clunk(3));
}

#[test]
fn a_flushed_failure_never_happened() {
    let mut world = World::opened(Dialect::P2000);
    let id = world.serve(1, read(2, 0, 10));
    world.send(Tag(2), flush(1));
    world.answer(id, Err(Errno::EINTR.into()));
    assert_eq!(world.sent(), "Rflush tag 2\n");
}

#[test]
fn a_flushed_clunk_that_failed_still_says_so() {
    let mut world = World::opened(Dialect::P2000);
    let id = world.serve(1, clunk(2));
    world.send(Tag(2), flush(1));
    world.answer(id, Err(Errno::EIO.into()));
    assert_eq!(world.sent(), "Rerror tag 1 ename 'Input/output error' errno 0\nRflush tag 2\n");
}

#[test]
fn several_flushes_of_one_request_are_answered_in_order() {
    let mut world = World::opened(Dialect::P2000);
    let id = world.serve(1, read(2, 0, 10));
    assert!(matches!(world.send(Tag(2), flush(1)), Step::Cancel(_)));
    assert!(matches!(world.send(Tag(3), flush(1)), Step::Waits));
    // A flush of a flush waits for it.
    assert!(matches!(world.send(Tag(4), flush(2)), Step::Waits));
    world.answer(id, Ok(Reply::Read(vec![])));
    assert_eq!(world.sent(), "Rread tag 1 data 0 bytes\nRflush tag 2\nRflush tag 3\nRflush tag 4\n");
    assert_eq!(world.session.outstanding(), 0);
}

#[test]
fn a_flush_of_a_request_that_waits_for_its_fid_drops_it() {
    let mut world = World::opened(Dialect::P2000);
    let id = world.serve(1, read(2, 0, 10));
    assert!(matches!(world.send(Tag(2), clunk(2)), Step::Waits));
    assert_eq!(world.refused(3, flush(2)), "Rflush tag 3\n");
    world.answer(id, Ok(Reply::Read(vec![])));
    assert!(world.session.next_ready().is_none());
    world.sent();
    world.serve(2, read(2, 0, 10));
}

#[test]
fn a_tag_in_use_is_refused() {
    let mut world = World::opened(Dialect::P2000);
    world.serve(1, read(2, 0, 10));
    assert!(world.refused(1, read(2, 0, 10)).contains("duplicate tag"));
    assert!(world.refused(1, flush(9)).contains("duplicate tag"));
    assert!(world.refused(NOTAG.0, read(2, 0, 10)).contains("duplicate tag"));
}

#[test]
fn a_fid_is_opened_once_and_used_as_it_was_opened() {
    let mut world = World::opened(Dialect::P2000);
    assert!(world.refused(1, Tmsg::Open { fid: Fid(2), mode: 0 }).contains("already open"));
    assert!(world.refused(1, read(1, 0, 10)).contains("not open for reading"));
    let write = Tmsg::Write { fid: Fid(1), offset: 0, data: msg::Data::Bytes(b"x") };
    assert!(world.refused(1, write).contains("not open for writing"));
    for mode in [1, 2, 0x10, 0x40] {
        assert!(world.refused(1, Tmsg::Open { fid: Fid(1), mode }).contains("Is a directory"));
    }
}

#[test]
fn two_opens_of_one_fid_do_not_race() {
    let mut world = World::attached(Dialect::P2000);
    let id = world.serve(1, Tmsg::Open { fid: Fid(1), mode: 0 });
    assert!(world.refused(2, Tmsg::Open { fid: Fid(1), mode: 0 }).contains("being opened"));
    world.answer(id, Err(Errno::EACCES.into()));
    world.serve(2, Tmsg::Open { fid: Fid(1), mode: 0 });
}

#[test]
fn fids_are_limited() {
    let mut world = World::attached(Dialect::L);
    for fid in 2..=8 {
        let id = world.serve(1, walk(1, fid, &[]));
        world.answer(id, Ok(walked(&[], Some("root"))));
    }
    world.sent();
    assert_eq!(world.refused(1, walk(1, 9, &[])), "Rlerror tag 1 ecode 23\n");
}

#[test]
fn open_fids_are_limited_and_counted_down() {
    let mut world = World::opened(Dialect::L);
    assert_eq!(world.session.open_count(), 1);
    world.session.limit_opens(1);
    assert_eq!(world.refused(1, Tmsg::Lopen { fid: Fid(1), flags: 0 }), "Rlerror tag 1 ecode 23\n");
    let id = world.serve(1, clunk(2));
    world.answer(id, Ok(Reply::Done));
    world.sent();
    assert_eq!(world.session.open_count(), 0);
    let id = world.serve(1, Tmsg::Lopen { fid: Fid(1), flags: 0 });
    world.answer(id, Ok(Reply::Open { qid: ROOT, iounit: 0, node: "dir" }));
    assert_eq!(world.session.open_count(), 1);
    world.send(NOTAG, Tmsg::Version { msize: 8192, version: b"9P2000.L" });
    assert_eq!(world.session.open_count(), 0);
}

#[test]
fn before_version_only_a_small_message_is_taken() {
    let mut session = S::new(&[Dialect::P2000], Limits::default(), Arc::new(Numeric));
    assert_eq!(session.msize(), MSIZE_MIN);
    let mut wire = Wire::default();
    let mut frame = Vec::new();
    Tmsg::Version { msize: 8192, version: b"nonsense" }.encode(NOTAG, Dialect::P2000, &mut frame);
    assert!(session.receive(frame, &mut wire).is_ok());
    assert_eq!(session.msize(), MSIZE_MIN);
}

#[test]
fn directory_reads_continue_only_where_the_last_one_ended() {
    let mut world = World::attached(Dialect::P2000);
    let id = world.serve(1, Tmsg::Open { fid: Fid(1), mode: 0 });
    world.answer(id, Ok(Reply::Open { qid: ROOT, iounit: 0, node: "dir" }));
    let Step::Serve(request) = world.send(Tag(1), read(1, 0, 100)) else { panic!() };
    assert!(matches!(request.op(), Op::Readdir { cookie: 0 }));
    let mut dir = request.dir_buf(Arc::new(Numeric));
    assert!(dir.push(&Dirent { qid: FILE, cookie: 42, ty: 8, name: b"f" }, Some(&Attr::default())));
    let len = dir.bytes().len() as u64;
    world.answer(request.id(), Ok(Reply::Dir(dir)));
    world.sent();
    assert!(world.refused(1, read(1, 1, 100)).contains("bad offset"));
    let Step::Serve(request) = world.send(Tag(1), read(1, len, 100)) else { panic!() };
    assert!(matches!(request.op(), Op::Readdir { cookie: 42 }));
}

#[test]
fn no_room_for_an_entry_is_nothing_at_the_end_of_a_buffer_and_an_error_elsewhere() {
    let mut world = World::attached(Dialect::P2000);
    let id = world.serve(1, Tmsg::Open { fid: Fid(1), mode: 0 });
    world.answer(id, Ok(Reply::Open { qid: ROOT, iounit: 0, node: "dir" }));
    world.sent();
    let mut listed = |offset, count, name: &[u8]| {
        let Step::Serve(request) = world.send(Tag(1), read(1, offset, count)) else { panic!() };
        let mut dir = request.dir_buf(Arc::new(Numeric));
        dir.push(&Dirent { qid: FILE, cookie: 42, ty: 8, name }, Some(&Attr::default()));
        let len = dir.bytes().len();
        world.answer(request.id(), Ok(Reply::Dir(dir)));
        (len, world.sent())
    };
    assert!(listed(0, 20, b"f").1.starts_with("Rerror"));
    let len = listed(0, 100, b"f").0;
    assert_eq!(listed(len as u64, 20, b"f").1, "Rread tag 1 data 0 bytes\n");
    assert_eq!(listed(len as u64, 100, b"f").0, len);
    // If each read asks for so few bytes, an empty reply would look like the end of the directory.
    listed(0, len as u32, b"f");
    assert!(listed(len as u64, len as u32, b"longer").1.starts_with("Rerror"));
}

#[test]
fn messages_of_another_dialect_are_refused_not_fatal() {
    let mut world = World::attached(Dialect::L);
    assert_eq!(world.refused(1, Tmsg::Stat { fid: Fid(1) }), "Rlerror tag 1 ecode 95\n");
    let mut world = World::attached(Dialect::U);
    assert!(world.refused(1, Tmsg::Statfs { fid: Fid(1) }).contains("errno 95"));
    let mut frame = vec![7, 0, 0, 0, 200, 1, 0];
    assert!(matches!(world.session.receive(frame.clone(), &mut world.wire), Ok(Step::Answered)));
    frame[4] = 201;
    assert!(world.session.receive(frame, &mut world.wire).is_err());
}

fn stream(fid: u32, isread: u8) -> Tmsg<'static> {
    Tmsg::Stream { fid: Fid(fid), isread, offset: 7 }
}

fn sclose(fid: u32) -> Tmsg<'static> {
    Tmsg::Sclose { fid: Fid(fid), count: 9 }
}

#[test]
fn a_stream_is_offered_and_closed_in_every_streaming_dialect() {
    for dialect in [Dialect::P2000S, Dialect::US, Dialect::LS] {
        let mut world = World::opened(dialect);
        let Step::Serve(request) = world.send(Tag(1), stream(2, 1)) else { panic!() };
        assert!(matches!(request.op(), Op::Stream { read: true, offset: 7 }));
        assert_eq!(request.fid_number(), Some(Fid(2)));
        assert!(!request.changes());
        assert_eq!(world.session.cost(request.id()), Some(CALL_COST));
        world.answer(request.id(), Ok(Reply::Stream(b"tcp!*!564 00ff".into())));
        assert_eq!(world.sent(), "Rstream tag 1 data 14 bytes\n");
        let Step::Serve(request) = world.send(Tag(2), sclose(2)) else { panic!() };
        assert!(matches!(request.op(), Op::Sclose { count: 9 }));
        let ename = "Input/output error".into();
        world.answer(request.id(), Ok(Reply::Sclosed { count: 3, errno: 5, ename }));
        assert_eq!(world.sent(), "Rsclose tag 2 count 3 errno 5 ename 'Input/output error'\n");
    }
}

#[test]
fn streaming_messages_are_refused_in_the_other_dialects() {
    for dialect in [Dialect::P2000, Dialect::U, Dialect::L] {
        let mut world = World::opened(dialect);
        for message in [stream(2, 1), sclose(2)] {
            let refused = world.refused(1, message);
            assert!(refused.contains("is not a message of") || refused.contains("ecode 95"), "{refused}");
        }
    }
}

#[test]
fn a_stream_needs_a_file_that_is_open_in_its_direction() {
    let mut world = World::attached(Dialect::US);
    let id = world.serve(1, walk(1, 2, &[b"f"]));
    world.answer(id, Ok(walked(&[FILE], Some("f"))));
    world.sent();
    assert!(world.refused(1, stream(2, 1)).contains("not open for reading"));
    assert!(world.refused(1, stream(1, 1)).contains("Is a directory"));
    assert!(world.refused(1, stream(3, 1)).contains("unknown fid"));
    assert!(world.refused(1, sclose(3)).contains("unknown fid"));
    let id = world.serve(1, Tmsg::Open { fid: Fid(2), mode: 0 });
    world.answer(id, Ok(Reply::Open { qid: FILE, iounit: 0, node: "f open" }));
    world.sent();
    assert!(world.refused(1, stream(2, 0)).contains("not open for writing"));
    assert!(world.refused(1, stream(2, 2)).contains("isread is 0 or 1"));
    let auth = Tmsg::Auth { afid: Fid(4), uname: b"u", aname: b"", n_uname: OnlyIds(NOUID_TEST) };
    let id = world.serve(1, auth);
    world.answer(id, Ok(Reply::Auth { qid: FILE, node: "auth" }));
    world.sent();
    for message in [stream(4, 1), stream(4, 0), sclose(4)] {
        assert!(world.refused(1, message).contains("fid is not a file"));
    }
}

#[test]
fn a_stream_to_the_server_changes_its_file() {
    let mut world = World::opened(Dialect::LS);
    let Step::Serve(request) = world.send(Tag(1), stream(2, 0)) else { panic!() };
    assert!(matches!(request.op(), Op::Stream { read: false, offset: 7 }));
    assert!(request.changes());
}

#[test]
fn the_verdict_on_a_stream_is_cut_at_a_whole_character() {
    let mut world = World::opened(Dialect::P2000S);
    let id = world.serve(1, sclose(2));
    let ename = format!("{}é", "x".repeat(127)).into();
    world.answer(id, Ok(Reply::Sclosed { count: 0, errno: 5, ename }));
    assert!(world.sent().contains(&format!("ename '{}'", "x".repeat(127))));
}

#[test]
fn a_request_says_the_number_of_its_fid() {
    let mut world = World::opened(Dialect::L);
    let Step::Serve(walking) = world.send(Tag(1), walk(1, 3, &[])) else { panic!() };
    assert_eq!(walking.fid_number(), Some(Fid(1)));
    let Step::Serve(reading) = world.send(Tag(2), read(2, 0, 1)) else { panic!() };
    assert_eq!(reading.fid_number(), Some(Fid(2)));
    // A waiting clunk has its fid number, too. A silent clunk has none.
    assert!(matches!(world.send(Tag(3), clunk(2)), Step::Waits));
    world.answer(reading.id(), Ok(Reply::Read(vec![])));
    assert_eq!(world.session.next_ready().unwrap().fid_number(), Some(Fid(2)));
    let attach = Tmsg::Attach { fid: Fid(5), afid: NOFID, uname: b"u", aname: b"", n_uname: OnlyIds(0) };
    let Step::Serve(request) = world.send(Tag(6), attach) else { panic!() };
    assert_eq!(request.fid_number(), None);
    assert!(world.session.close().iter().all(|clunk| clunk.fid_number().is_none()));
}

#[test]
fn wstat_changes_what_it_may_and_touches_nothing_else() {
    let mut world = World::opened(Dialect::P2000);
    let wstat = |stat| Tmsg::Wstat { fid: Fid(2), stat };
    let untouched = Stat::DONT_TOUCH;
    let Step::Serve(request) = world.send(Tag(1), wstat(untouched)) else { panic!() };
    assert!(matches!(request.op(), Op::Fsync { datasync: false }));
    let Step::Serve(request) = world.send(Tag(2), wstat(Stat { length: 0, name: b"n", ..untouched })) else {
        panic!()
    };
    let Op::Setattr { set } = request.op() else { panic!() };
    assert_eq!((set.size, set.name, set.mode, set.mtime), (Some(0), Some(&b"n"[..]), None, None));
    let Step::Serve(request) = world.send(Tag(4), wstat(Stat { name: b"n", muid: b"me", ..untouched }))
    else {
        panic!()
    };
    let Op::Setattr { set } = request.op() else { panic!() };
    assert_eq!((set.name, set.uid), (Some(&b"n"[..]), None));
    for bad in [
        Stat { uid: b"me", ..untouched },
        Stat { muid: b"me", ..untouched },
        Stat { dev: 0, ..untouched },
        Stat { ty: 0, ..untouched },
        Stat { mode: crate::stat::mode::DMDIR | 0o755, ..untouched },
        Stat { name: b"a/b", ..untouched },
        Stat { gid: b"no such group", ..untouched },
    ] {
        assert!(world.refused(3, wstat(bad)).starts_with("Rerror"), "{bad}");
    }
}

#[test]
fn nofid_is_no_fid() {
    let mut world = World::attached(Dialect::L);
    let nofid = NOFID.0;
    assert!(world.refused(1, walk(1, nofid, &[])).contains("ecode 22"));
    assert!(world.refused(1, walk(nofid, 3, &[])).contains("ecode 9"));
    let xattr = Tmsg::Xattrwalk { fid: Fid(1), newfid: NOFID, name: b"" };
    assert!(world.refused(1, xattr).contains("ecode 22"));
    assert!(world.refused(1, clunk(nofid)).contains("ecode 9"));
}

#[test]
fn a_reply_beyond_msize_becomes_an_error() {
    let mut world = World::new(Dialect::L);
    world.send(NOTAG, Tmsg::Version { msize: 512, version: b"9P2000.L" });
    let attach = Tmsg::Attach { fid: Fid(1), afid: NOFID, uname: b"u", aname: b"", n_uname: OnlyIds(0) };
    let id = world.serve(1, attach);
    world.answer(id, Ok(Reply::Attach { qid: Qid { ty: Qid::SYMLINK, ..FILE }, node: "link" }));
    world.sent();
    let id = world.serve(1, Tmsg::Readlink { fid: Fid(1) });
    world.answer(id, Ok(Reply::Target(vec![b'x'; 600].into())));
    assert_eq!(world.sent(), "Rlerror tag 1 ecode 75\n");
}

#[test]
fn reads_are_cut_to_what_a_message_holds() {
    let mut world = World::opened(Dialect::L);
    let Step::Serve(request) = world.send(Tag(1), read(2, 0, u32::MAX)) else { panic!() };
    assert!(matches!(request.op(), Op::Read { count, .. } if count == 8192 - IOHDRSZ));
}

#[test]
fn what_a_fid_needs_beside_its_node_fits_into_fifty_bytes() {
    // A node of three words, one of which is never 0, like the node of the server framework.
    let node = size_of::<(Arc<()>, [usize; 2])>();
    assert!(size_of::<SessionFid<(Arc<()>, [usize; 2])>>() <= node + 48);
}

#[test]
fn a_malformed_message_is_an_error_of_that_request() {
    let mut world = World::opened(Dialect::L);
    let mut frames: Vec<(Vec<u8>, &str)> = Vec::new();
    for (cut, message) in [(1, read(2, 0, 10)), (4, read(2, 0, 10)), (3, Tmsg::Remove { fid: Fid(2) })] {
        let mut frame = Vec::new();
        message.encode(Tag(5), Dialect::L, &mut frame);
        frame.truncate(frame.len() - cut);
        frames.push((frame, "is cut short"));
    }
    let mut long = Vec::new();
    clunk(2).encode_before(1, Tag(5), Dialect::L, &mut long);
    long.push(0);
    frames.push((long, "has bytes after its end"));
    let mut walk_17 = Vec::new();
    walk(2, 3, &[&b"n"[..]; 16]).encode(Tag(5), Dialect::L, &mut walk_17);
    walk_17[15] = 17;
    walk_17.extend([1, 0, b'n']);
    frames.push((walk_17, "has a count beyond its limit"));
    for (mut frame, why) in frames {
        let size = (frame.len() as u32).to_le_bytes();
        frame[..4].copy_from_slice(&size);
        let step = world.session.receive(frame, &mut world.wire).unwrap();
        assert!(matches!(step, Step::Answered), "{why}");
        assert_eq!(world.sent(), "Rlerror tag 5 ecode 22\n", "{why}");
    }
    let id = world.serve(5, read(2, 0, 10));
    world.answer(id, Ok(Reply::Read(vec![1])));
    assert!(world.sent().starts_with("Rread tag 5"), "fid 2 is as it was");
}

#[test]
fn tfsync_may_leave_out_datasync() {
    let mut world = World::opened(Dialect::L);
    let frame = vec![11, 0, 0, 0, 50, 5, 0, 2, 0, 0, 0];
    let Step::Serve(request) = world.session.receive(frame, &mut world.wire).unwrap() else {
        panic!("not served: {}", world.sent())
    };
    assert!(matches!(request.op(), Op::Fsync { datasync: false }));
}

#[test]
fn a_wrong_answer_of_the_file_server_is_eio_of_that_request() {
    type Wrong = (fn() -> Tmsg<'static>, fn() -> Reply<&'static str, Vec<u8>>, Option<&'static str>);
    let cases: [Wrong; 9] = [
        (|| read(2, 0, 3), || Reply::Read(vec![0; 4]), None),
        (|| read(2, 0, 3), || Reply::Done, None),
        (|| read(2, 0, 3), || Reply::Open { qid: FILE, iounit: 0, node: "new" }, Some("new")),
        (|| Tmsg::Write { fid: Fid(2), offset: 0, data: msg::Data::Bytes(b"abc") }, || Reply::Wrote(4), None),
        (|| walk(1, 3, &[b"a", b"b"]), || walked(&[FILE; 3], Some("new")), Some("new")),
        (|| walk(1, 3, &[b"a", b"b"]), || walked(&[FILE; 20], Some("new")), Some("new")),
        (|| walk(1, 3, &[b"a", b"b"]), || walked(&[FILE; 1], Some("new")), Some("new")),
        (|| walk(1, 3, &[b"a", b"b"]), || walked(&[FILE; 2], None), None),
        (|| Tmsg::Clunk { fid: Fid(2) }, || Reply::Wrote(0), None),
    ];
    for (message, reply, unused) in cases {
        let mut world = World::opened(Dialect::L);
        let id = world.serve(5, message());
        assert_eq!(world.answer(id, Ok(reply())), unused);
        assert_eq!(world.sent(), "Rlerror tag 5 ecode 5\n");
        assert_eq!(world.session.fid_count(), if message().number() == CLUNK { 1 } else { 2 });
        let id = world.serve(5, walk(1, 3, &[]));
        world.answer(id, Ok(walked(&[], Some("again"))));
        assert_eq!(world.sent(), "Rwalk tag 5 qids []\n");
    }
}

#[test]
fn a_wstat_that_asks_for_stable_storage_changes_nothing() {
    for (mode, changes) in [(u32::MAX, false), (0o644, true)] {
        let mut world = World::opened(Dialect::P2000);
        let stat = Stat { mode, ..Stat::DONT_TOUCH };
        let mut frame = Vec::new();
        Tmsg::Wstat { fid: Fid(2), stat }.encode(Tag(5), Dialect::P2000, &mut frame);
        let Step::Serve(request) = world.session.receive(frame, &mut world.wire).unwrap() else {
            panic!("not served: {}", world.sent())
        };
        assert_eq!(request.changes(), changes);
    }
}
