//! Dependent requests that are sent together without waiting for replies, and the ways in which they can fail.

use super::*;

const FLIGHT: [Dialect; 3] = [Dialect::P2000S, Dialect::US, Dialect::LS];

impl World {
    fn waits(&mut self, tag: u16, message: Tmsg<'_>) {
        let step = self.send(Tag(tag), message);
        assert!(matches!(step, Step::Waits), "does not wait; sent: {}", self.sent());
    }

    /// Returns the next ready request, which must have this tag.
    fn ready(&mut self, tag: u16) -> Request<&'static str, Vec<u8>> {
        let request = self.session.next_ready().expect("a request is ready");
        assert_eq!(request.id().tag, Tag(tag));
        request
    }

    fn none_ready(&mut self) {
        assert!(self.session.next_ready().is_none());
    }

    /// Sends attach 1, walk to 2, and open, read and clunk of 2 with tags 1 to 5. The file server has the attach.
    fn flight(dialect: Dialect) -> (Self, CallId) {
        let mut world = Self::new(dialect);
        let attach = world.serve(1, attach(1));
        world.waits(2, walk(1, 2, &[b"f"]));
        let open = open(&world, 2);
        world.waits(3, open);
        world.waits(4, read(2, 0, 10));
        world.waits(5, clunk(2));
        world.none_ready();
        (world, attach)
    }

    fn lookup(&mut self, tag: u16) {
        let id = self.ready(tag).id();
        self.answer(id, Ok(walked(&[FILE], Some("f"))));
    }
}

fn attach(fid: u32) -> Tmsg<'static> {
    Tmsg::Attach { fid: Fid(fid), afid: NOFID, uname: b"u", aname: b"", n_uname: OnlyIds(NOUID_TEST) }
}

fn open(world: &World, fid: u32) -> Tmsg<'static> {
    match world.dialect.is_l() {
        true => Tmsg::Lopen { fid: Fid(fid), flags: 2 },
        false => Tmsg::Open { fid: Fid(fid), mode: 2 },
    }
}

fn rename(from: u32, to: u32) -> Tmsg<'static> {
    let (olddirfid, newdirfid) = (Fid(from), Fid(to));
    Tmsg::Renameat { olddirfid, oldname: b"a", newdirfid, newname: b"b" }
}

fn attached() -> Result<Reply<&'static str, Vec<u8>>> {
    Ok(Reply::Attach { qid: ROOT, node: "root" })
}

fn opened() -> Result<Reply<&'static str, Vec<u8>>> {
    Ok(Reply::Open { qid: FILE, iounit: 0, node: "f open" })
}

/// Returns the tags of all replies, and the tags of the errors among them.
fn tags(sent: &str) -> (Vec<u16>, Vec<u16>) {
    let tag = |line: &str| line.split(' ').nth(2).unwrap().parse().unwrap();
    (sent.lines().map(tag).collect(), sent.lines().filter(|line| line.contains("error")).map(tag).collect())
}

#[test]
fn a_whole_conversation_travels_in_one_flight() {
    for dialect in FLIGHT {
        let (mut world, attach) = World::flight(dialect);
        assert_eq!(world.session.outstanding(), 5);
        world.answer(attach, attached());
        world.lookup(2);
        let opening = world.ready(3).id();
        world.none_ready();
        world.answer(opening, opened());
        let reading = world.ready(4);
        assert_eq!(reading.fid(), Some(&"f open"));
        // As usual, the clunk waits for the read.
        world.none_ready();
        world.answer(reading.id(), Ok(Reply::Read(vec![7; 3])));
        let clunking = world.ready(5);
        assert_eq!(clunking.fid(), Some(&"f open"));
        world.answer(clunking.id(), Ok(Reply::Done));
        assert_eq!(tags(&world.sent()), (vec![1, 2, 3, 4, 5], vec![]));
        assert_eq!((world.session.outstanding(), world.session.deferred_bytes()), (0, 0));
    }
}

#[test]
fn what_follows_a_failed_attach_or_walk_has_no_fid() {
    for dialect in FLIGHT {
        let (mut world, attach) = World::flight(dialect);
        world.answer(attach, Err(Errno::EACCES.into()));
        world.none_ready();
        assert_eq!(tags(&world.sent()), (vec![1, 2, 3, 4, 5], vec![1, 2, 3, 4, 5]));
        assert_eq!((world.session.outstanding(), world.session.deferred_bytes()), (0, 0));
    }
    for failure in [Ok(walked(&[ROOT], None)), Ok(walked(&[], None)), Err(Errno::EACCES.into())] {
        let mut world = World::attached(Dialect::P2000S);
        let walking = world.serve(2, walk(1, 2, &[b"d", b"f"]));
        world.waits(3, Tmsg::Open { fid: Fid(2), mode: 0 });
        world.waits(4, read(2, 0, 10));
        world.waits(5, clunk(2));
        world.answer(walking, failure);
        world.none_ready();
        let sent = world.sent();
        assert_eq!(sent.matches("unknown fid").count(), 3, "{sent}");
        assert_eq!(tags(&sent).0, [2, 3, 4, 5]);
        assert_eq!(world.session.fid_count(), 1);
    }
}

#[test]
fn after_a_failed_open_a_read_has_no_open_file_and_the_clunk_is_served() {
    let (mut world, attach) = World::flight(Dialect::US);
    world.answer(attach, attached());
    world.lookup(2);
    world.sent();
    let opening = world.ready(3).id();
    world.answer(opening, Err(Errno::EACCES.into()));
    let sent = world.sent();
    assert_eq!(tags(&sent).0, [3, 4]);
    assert!(sent.contains("not open for reading"), "{sent}");
    let clunking = world.ready(5);
    assert_eq!(clunking.fid(), Some(&"f"));
}

#[test]
fn a_fid_that_a_walk_makes_can_be_walked_from_at_once() {
    let mut world = World::attached(Dialect::LS);
    let first = world.serve(1, walk(1, 2, &[b"d"]));
    world.waits(2, walk(2, 3, &[]));
    world.waits(3, walk(3, 4, &[b"f"]));
    world.answer(first, Ok(walked(&[ROOT], Some("d"))));
    let clone = world.ready(2);
    assert_eq!(clone.fid(), Some(&"d"));
    world.none_ready();
    world.answer(clone.id(), Ok(walked(&[], Some("d too"))));
    assert_eq!(world.ready(3).fid(), Some(&"d too"));
}

#[test]
fn a_file_is_made_written_looked_at_and_closed_in_one_flight() {
    let mut world = World::attached(Dialect::LS);
    let cloning = world.serve(1, walk(1, 2, &[]));
    let flags = 1;
    world.waits(2, Tmsg::Lcreate { fid: Fid(2), name: b"new", flags, mode: 0o644, gid: 0 });
    world.waits(3, Tmsg::Write { fid: Fid(2), offset: 0, data: msg::Data::Bytes(b"data") });
    // This asks for the attributes of the new file, not of the directory that the fid still refers to.
    world.waits(4, Tmsg::Getattr { fid: Fid(2), mask: 0x7ff });
    world.waits(5, clunk(2));
    world.answer(cloning, Ok(walked(&[], Some("dir"))));
    let creating = world.ready(2);
    assert_eq!(creating.fid(), Some(&"dir"));
    world.none_ready();
    world.answer(creating.id(), opened());
    let (writing, looking) = (world.ready(3), world.ready(4));
    assert_eq!((writing.fid(), looking.fid()), (Some(&"f open"), Some(&"f open")));
    world.none_ready();
    world.answer(looking.id(), Ok(Reply::Attr(Box::default())));
    world.none_ready();
    world.answer(writing.id(), Ok(Reply::Wrote(4)));
    world.ready(5);
}

#[test]
fn a_stream_is_asked_for_and_closed_in_the_flight_that_opens_its_file() {
    let mut world = World::attached(Dialect::LS);
    let walking = world.serve(1, walk(1, 2, &[b"f"]));
    world.waits(2, Tmsg::Lopen { fid: Fid(2), flags: 0 });
    world.waits(3, stream(2, 1));
    world.waits(4, sclose(2));
    world.answer(walking, Ok(walked(&[FILE], Some("f"))));
    let opening = world.ready(2).id();
    world.answer(opening, opened());
    assert!(matches!(world.ready(3).op(), Op::Stream { read: true, .. }));
    assert!(matches!(world.ready(4).op(), Op::Sclose { .. }));
}

#[test]
fn an_attach_waits_for_its_afid_and_a_link_for_its_file() {
    let mut world = World::new(Dialect::US);
    let auth = Tmsg::Auth { afid: Fid(9), uname: b"u", aname: b"", n_uname: OnlyIds(0) };
    let auth = world.serve(1, auth);
    world.waits(2, Tmsg::Attach { fid: Fid(1), afid: Fid(9), uname: b"u", aname: b"", n_uname: OnlyIds(0) });
    world.answer(auth, Ok(Reply::Auth { qid: Qid { ty: Qid::AUTH, ..FILE }, node: "auth" }));
    let attach = world.ready(2);
    assert_eq!(attach.fid2(), Some(&"auth"));
    world.answer(attach.id(), attached());
    let walking = world.serve(1, walk(1, 2, &[b"f"]));
    let (perm, extension) = (crate::stat::mode::DMLINK, msg::OnlyUStr(b"2"));
    world.waits(2, Tmsg::Create { fid: Fid(1), name: b"n", perm, mode: 0, extension });
    world.answer(walking, Ok(walked(&[FILE], Some("f"))));
    assert_eq!(world.ready(2).fid2(), Some(&"f"));
}

#[test]
fn a_walk_onto_itself_and_what_follows_keep_their_order() {
    let mut world = World::opened(Dialect::LS);
    let reading = world.serve(1, read(2, 0, 10));
    world.waits(2, walk(2, 2, &[]));
    world.waits(3, Tmsg::Getattr { fid: Fid(2), mask: 0 });
    world.waits(4, walk(2, 2, &[]));
    world.waits(5, Tmsg::Statfs { fid: Fid(2) });
    world.answer(reading, Ok(Reply::Read(vec![])));
    let first = world.ready(2).id();
    world.none_ready();
    world.answer(first, Ok(walked(&[], Some("once"))));
    let looking = world.ready(3);
    assert_eq!(looking.fid(), Some(&"once"));
    world.none_ready();
    world.answer(looking.id(), Err(Errno::EIO.into()));
    let second = world.ready(4).id();
    world.answer(second, Ok(walked(&[], Some("twice"))));
    assert_eq!(world.ready(5).fid(), Some(&"twice"));
}

#[test]
fn a_second_open_waits_for_the_first_and_a_clunk_has_its_own_way() {
    let mut world = World::attached(Dialect::P2000S);
    let first = world.serve(1, Tmsg::Open { fid: Fid(1), mode: 0 });
    world.waits(2, Tmsg::Open { fid: Fid(1), mode: 0 });
    world.waits(3, clunk(1));
    world.answer(first, Err(Errno::EACCES.into()));
    let second = world.ready(2).id();
    world.answer(second, Ok(Reply::Open { qid: ROOT, iounit: 0, node: "dir" }));
    assert_eq!(world.ready(3).fid(), Some(&"dir"));
    // Without a request between them, the fid is going at once.
    let mut world = World::attached(Dialect::P2000S);
    world.serve(1, Tmsg::Open { fid: Fid(1), mode: 0 });
    world.waits(2, clunk(1));
    assert!(world.refused(3, read(1, 0, 1)).contains("unknown fid"));
}

#[test]
fn two_fids_that_cross_wait_for_each_other_without_a_ring() {
    for order in [[0, 1], [1, 0]] {
        let mut world = World::attached(Dialect::LS);
        let walks = [world.serve(1, walk(1, 2, &[b"a"])), world.serve(2, walk(1, 3, &[b"b"]))];
        world.waits(3, rename(2, 3));
        world.waits(4, rename(3, 2));
        world.waits(5, rename(2, 2));
        world.waits(6, clunk(3));
        world.answer(walks[order[0]], Ok(walked(&[ROOT], Some("one"))));
        world.none_ready();
        world.answer(walks[order[1]], Ok(walked(&[ROOT], Some("other"))));
        let renames = [world.ready(3), world.ready(4), world.ready(5)];
        world.none_ready();
        for request in renames {
            world.answer(request.id(), Ok(Reply::Done));
        }
        world.ready(6);
    }
}

#[test]
fn one_fid_that_fails_lets_the_requests_on_the_other_go() {
    let mut world = World::attached(Dialect::LS);
    let [a, b] = [world.serve(1, walk(1, 2, &[b"a"])), world.serve(2, walk(1, 3, &[b"b"]))];
    world.waits(3, rename(2, 3));
    world.waits(4, Tmsg::Statfs { fid: Fid(3) });
    world.answer(b, Ok(walked(&[ROOT], Some("b"))));
    // It came after the rename, so it waits, too.
    world.none_ready();
    world.sent();
    world.answer(a, Err(Errno::EIO.into()));
    assert_eq!(tags(&world.sent()), (vec![1, 3], vec![1, 3]));
    assert_eq!(world.ready(4).fid(), Some(&"b"));
}

#[test]
fn a_newfid_goes_to_the_request_that_came_first() {
    let mut world = World::attached(Dialect::P2000S);
    let attach = world.serve(1, attach(5));
    world.waits(2, walk(5, 2, &[]));
    world.waits(3, walk(1, 2, &[]));
    world.answer(attach, Ok(Reply::Attach { qid: ROOT, node: "other root" }));
    assert_eq!(world.ready(2).fid(), Some(&"other root"));
    world.none_ready();
    let sent = world.sent();
    assert!(sent.contains("Rerror tag 3 ename 'fid in use'"), "{sent}");
    // A coming fid is in use as usual unless a deferred request creates it.
    assert!(world.refused(4, walk(1, 2, &[])).contains("fid in use"));
}

#[test]
fn a_fid_that_is_going_is_not_waited_for() {
    let mut world = World::opened(Dialect::P2000S);
    let reading = world.serve(1, read(2, 0, 10));
    world.waits(2, clunk(2));
    assert!(world.refused(3, read(2, 0, 10)).contains("unknown fid"));
    assert!(world.refused(3, walk(1, 2, &[])).contains("fid in use"));
    world.answer(reading, Ok(Reply::Read(vec![])));
    world.ready(2);
}

#[test]
fn without_streaming_nothing_is_deferred() {
    for dialect in [Dialect::P2000, Dialect::U, Dialect::L] {
        let mut world = World::attached(dialect);
        world.serve(1, walk(1, 2, &[b"f"]));
        let open = open(&world, 2);
        world.refused(2, open);
        world.refused(2, walk(2, 3, &[]));
        world.refused(2, clunk(2));
        assert_eq!((world.session.outstanding(), world.session.deferred_bytes()), (1, 0));
    }
}

#[test]
fn a_flush_takes_one_out_of_the_flight_and_is_answered_at_once() {
    let (mut world, attach) = World::flight(Dialect::LS);
    let bytes = world.session.deferred_bytes();
    assert_eq!(world.refused(9, flush(3)), "Rflush tag 9\n");
    assert_eq!(world.session.deferred_bytes(), bytes - (7 + 4 + 4));
    assert_eq!(world.session.outstanding(), 4);
    world.answer(attach, attached());
    world.lookup(2);
    world.sent();
    // The open was not executed.
    assert!(world.refused(9, read(2, 0, 1)).contains("ecode 9"));
    let clunking = world.ready(5);
    assert!(matches!(clunking.op(), Op::Clunk));
    assert_eq!((world.session.outstanding(), world.session.deferred_bytes()), (1, 0));
}

#[test]
fn a_flush_of_what_is_in_the_way_lets_the_others_go() {
    let mut world = World::opened(Dialect::LS);
    let reading = world.serve(1, read(2, 0, 10));
    world.waits(2, walk(2, 2, &[]));
    world.waits(3, Tmsg::Statfs { fid: Fid(2) });
    world.waits(4, Tmsg::Lopen { fid: Fid(2), flags: 0 });
    assert_eq!(world.refused(5, flush(2)), "Rflush tag 5\nRlerror tag 4 ecode 16\n");
    world.ready(3);
    world.none_ready();
    // The same for a request that is itself deferred.
    world.waits(6, walk(2, 2, &[]));
    let coming = world.serve(7, walk(1, 3, &[]));
    world.waits(8, rename(3, 2));
    world.waits(9, clunk(3));
    assert_eq!(world.refused(10, flush(8)), "Rflush tag 10\n");
    world.none_ready();
    world.answer(coming, Ok(walked(&[], Some("root too"))));
    world.ready(9);
    world.answer(reading, Ok(Reply::Read(vec![])));
    world.none_ready();
}

#[test]
fn a_flushed_open_that_fails_is_silent_and_those_behind_it_are_not() {
    let (mut world, attach) = World::flight(Dialect::P2000S);
    world.answer(attach, attached());
    world.lookup(2);
    world.sent();
    let opening = world.ready(3).id();
    assert!(matches!(world.send(Tag(9), flush(3)), Step::Cancel(id) if id == opening));
    world.answer(opening, Err(Errno::EINTR.into()));
    assert_eq!(world.sent(), "Rflush tag 9\nRerror tag 4 ename 'fid is not open for reading' errno 0\n");
    world.ready(5);
}

#[test]
fn a_new_session_drops_the_flight() {
    let (mut world, attaching) = World::flight(Dialect::LS);
    let version = Tmsg::Version { msize: 8192, version: b"9P2000.L.s" };
    assert!(matches!(world.send(NOTAG, version), Step::Reset(clunks) if clunks.is_empty()));
    assert_eq!((world.session.outstanding(), world.session.deferred_bytes()), (0, 0));
    assert_eq!(world.session.served().count(), 0);
    world.sent();
    assert_eq!(world.answer(attaching, attached()), Some("root"));
    world.none_ready();
    assert_eq!(world.sent(), "");
    // The same fid and tag numbers are free again.
    world.serve(2, attach(2));
    world.waits(3, clunk(2));
}

#[test]
fn the_end_drops_the_flight() {
    let (mut world, attach) = World::flight(Dialect::LS);
    assert!(world.session.close().is_empty());
    assert_eq!((world.session.outstanding(), world.session.deferred_bytes()), (0, 0));
    assert_eq!(world.answer(attach, attached()), Some("root"));
    world.none_ready();
}

#[test]
fn a_deferred_request_holds_its_tag_and_its_frame_and_is_not_served() {
    let (mut world, attach) = World::flight(Dialect::P2000S);
    assert!(world.refused(4, read(1, 0, 1)).contains("duplicate tag"));
    assert!(world.refused(4, flush(99)).contains("duplicate tag"));
    let served: Vec<_> = world.session.served().collect();
    assert_eq!(served, [attach]);
    let bytes: usize = (2..=5).map(|tag| world.session.parked_frame(Tag(tag)).unwrap().len()).sum();
    assert_eq!(world.session.deferred_bytes(), bytes);
    assert!(world.session.parked_frame(Tag(1)).is_none());
}

#[test]
fn a_message_of_another_dialect_is_refused_before_it_waits() {
    let mut world = World::new(Dialect::LS);
    world.serve(1, attach(1));
    assert!(world.refused(2, Tmsg::Stat { fid: Fid(1) }).contains("ecode 95"));
}

#[test]
fn a_thousand_requests_behind_one_open_begin_in_their_order() {
    let mut world = World::attached(Dialect::LS);
    let walking = world.serve(5000, walk(1, 2, &[b"f"]));
    world.waits(5001, Tmsg::Lopen { fid: Fid(2), flags: 0 });
    for tag in 0..1024 {
        world.waits(tag, read(2, tag.into(), 1));
    }
    world.answer(walking, Ok(walked(&[FILE], Some("f"))));
    let opening = world.ready(5001).id();
    world.none_ready();
    world.answer(opening, opened());
    for tag in 0..1024 {
        world.ready(tag);
    }
    world.none_ready();
    assert_eq!((world.session.outstanding(), world.session.deferred_bytes()), (1024, 0));
}

#[test]
fn a_thousand_walks_each_from_the_one_before_end_with_the_first() {
    let mut world = World::new(Dialect::P2000S);
    let attach = world.serve(5000, attach(0));
    for tag in 0..1024 {
        world.waits(tag, walk(tag.into(), u32::from(tag) + 1, &[]));
    }
    world.answer(attach, Err(Errno::EACCES.into()));
    world.none_ready();
    let (all, errors) = tags(&world.sent());
    assert_eq!(all, [&[5000][..], &(0..1024).collect::<Vec<_>>()].concat());
    assert_eq!(errors, all);
    assert_eq!((world.session.outstanding(), world.session.fid_count()), (0, 0));
}
