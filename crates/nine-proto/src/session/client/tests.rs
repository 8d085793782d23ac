//! Steps the client session by hand through the flush orders of flush(5), the negotiation of version(5) and hostile
//! replies.

use alloc::string::String;

use super::*;
use crate::ids::{NOFID, Qid};
use crate::msg::{Names, OnlyIds, OnlyU, Qids};

const QID: Qid = Qid { ty: 0, vers: 0, path: 1 };
const ALL: [Dialect; 3] = [Dialect::L, Dialect::U, Dialect::P2000];
const ROOT: Fid = Fid(0);

fn frame(reply: Rmsg<'_>, tag: Tag, dialect: Dialect) -> Vec<u8> {
    let mut buf = Vec::new();
    reply.encode(tag, dialect, &mut buf);
    buf
}

/// Creates a session that has agreed on .L and has fid 0.
fn session(limit: usize) -> ClientSession {
    let mut s = ClientSession::new(limit);
    s.version(8192, &[Dialect::L]);
    let rversion = frame(Rmsg::Version { msize: 8192, version: b"9P2000.L" }, NOTAG, Dialect::L);
    assert_eq!(s.receive(&rversion), Ok(Event::Agreed));
    assert_eq!(s.fid(), Some(ROOT));
    s
}

fn walk(s: &mut ClientSession, names: &[&[u8]]) -> (Tag, Fid) {
    let newfid = s.fid().unwrap();
    (s.call(&Tmsg::Walk { fid: ROOT, newfid, names: Names::Slice(names) }).unwrap(), newfid)
}

#[track_caller]
fn answered(s: &mut ClientSession, reply: Rmsg<'_>, tag: Tag) -> (Option<Fid>, bool) {
    match s.receive(&frame(reply, tag, Dialect::L)) {
        Ok(Event::Answer { tag: of, made, ended, .. }) if of == tag => (made, ended),
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn flushed(s: &mut ClientSession, flush: Tag) -> (Tag, bool, Option<Fid>) {
    match s.receive(&frame(Rmsg::Flush {}, flush, Dialect::L)) {
        Ok(Event::Flushed { tag, answered, clunk }) => (tag, answered, clunk),
        other => panic!("{other:?}"),
    }
}

fn refused(s: &mut ClientSession, reply: Rmsg<'_>, tag: Tag) -> WireError {
    s.receive(&frame(reply, tag, Dialect::L)).unwrap_err()
}

#[test]
fn rflush_without_an_answer_means_it_never_happened() {
    let mut s = session(4);
    let (tag, _) = walk(&mut s, &[b"a"]);
    let flush = s.cancel(tag).unwrap();
    assert_eq!((s.calls(), s.orphans(), s.fids()), (1, 1, 2));
    assert_eq!(flushed(&mut s, flush), (tag, false, None));
    assert_eq!((s.calls(), s.orphans(), s.fids()), (0, 0, 1));
}

#[test]
fn an_answer_before_rflush_is_honoured_and_what_it_made_is_named() {
    let mut s = session(4);
    let (tag, newfid) = walk(&mut s, &[b"a"]);
    let flush = s.cancel(tag).unwrap();
    assert_eq!(answered(&mut s, Rmsg::Walk { qids: Qids::Slice(&[QID]) }, tag), (Some(newfid), false));
    assert_eq!(flushed(&mut s, flush), (tag, true, None));
    assert_eq!(s.fids(), 2, "the fid is there until it is clunked");
}

#[test]
fn a_late_error_makes_nothing() {
    let mut s = session(4);
    let (tag, _) = walk(&mut s, &[b"a"]);
    let flush = s.cancel(tag).unwrap();
    assert_eq!(answered(&mut s, Rmsg::Lerror { ecode: 2 }, tag), (None, false));
    assert_eq!(flushed(&mut s, flush), (tag, true, None));
    assert_eq!(s.fids(), 1);
}

#[test]
fn a_late_partial_walk_makes_nothing() {
    let mut s = session(4);
    let (tag, _) = walk(&mut s, &[b"a", b"b"]);
    s.cancel(tag).unwrap();
    assert_eq!(answered(&mut s, Rmsg::Walk { qids: Qids::Slice(&[QID]) }, tag), (None, false));
    assert_eq!(s.fids(), 1);
}

#[test]
fn an_answer_after_rflush_is_a_violation() {
    let mut s = session(4);
    let (tag, _) = walk(&mut s, &[b"a"]);
    let flush = s.cancel(tag).unwrap();
    flushed(&mut s, flush);
    assert_eq!(refused(&mut s, Rmsg::Walk { qids: Qids::Slice(&[QID]) }, tag), WireError::Reply(111));
}

#[test]
fn a_second_answer_before_rflush_is_a_violation() {
    let mut s = session(4);
    let tag = s.call(&Tmsg::Statfs { fid: ROOT }).unwrap();
    s.cancel(tag).unwrap();
    answered(&mut s, Rmsg::Lerror { ecode: 5 }, tag);
    assert_eq!(refused(&mut s, Rmsg::Lerror { ecode: 5 }, tag), WireError::Reply(7));
}

#[test]
fn a_flushed_tag_is_not_used_again_before_rflush_even_if_it_was_answered() {
    let mut s = session(8);
    let (tag, _) = walk(&mut s, &[b"a"]);
    let flush = s.cancel(tag).unwrap();
    answered(&mut s, Rmsg::Lerror { ecode: 2 }, tag);
    for _ in 0..4 {
        let other = s.call(&Tmsg::Statfs { fid: ROOT }).unwrap();
        assert!(other != tag && other != flush);
    }
    flushed(&mut s, flush);
    let next = s.call(&Tmsg::Statfs { fid: ROOT }).unwrap();
    assert!(next == tag || next == flush);
}

#[test]
fn a_call_is_flushed_once() {
    let mut s = session(4);
    let (tag, _) = walk(&mut s, &[b"a"]);
    assert!(s.cancel(tag).is_some());
    assert_eq!(s.cancel(tag), None);
}

#[test]
fn a_clunk_is_never_taken_back() {
    let mut s = session(4);
    let tag = s.call(&Tmsg::Clunk { fid: ROOT }).unwrap();
    assert_eq!(s.cancel(tag), None);
    assert_eq!(answered(&mut s, Rmsg::Clunk {}, tag), (None, true));
    assert_eq!(s.fids(), 0);
}

#[test]
fn what_has_ended_cannot_be_cancelled() {
    let mut s = session(4);
    let (tag, _) = walk(&mut s, &[b"a"]);
    assert_eq!(answered(&mut s, Rmsg::Lerror { ecode: 2 }, tag), (None, true));
    assert_eq!(s.cancel(tag), None);
    assert_eq!(s.cancel(Tag(99)), None);
}

#[test]
fn a_server_that_refuses_to_flush_ends_the_call_by_answering() {
    let mut s = session(4);
    let (tag, newfid) = walk(&mut s, &[b"a"]);
    let flush = s.cancel(tag).unwrap();
    assert_eq!(s.receive(&frame(Rmsg::Lerror { ecode: 38 }, flush, Dialect::L)), Ok(Event::Nothing));
    assert_eq!(s.orphans(), 1);
    assert_eq!(answered(&mut s, Rmsg::Walk { qids: Qids::Slice(&[QID]) }, tag), (Some(newfid), true));
    assert_eq!((s.calls(), s.orphans()), (0, 0));
}

#[test]
fn a_remove_that_was_flushed_leaves_a_fid_to_clunk_and_an_answered_one_does_not() {
    let mut s = session(4);
    let (tag, fid) = walk(&mut s, &[]);
    assert_eq!(answered(&mut s, Rmsg::Walk { qids: Qids::Slice(&[]) }, tag), (Some(fid), true));
    let tag = s.call(&Tmsg::Remove { fid }).unwrap();
    let flush = s.cancel(tag).unwrap();
    assert_eq!(flushed(&mut s, flush), (tag, false, Some(fid)));

    let tag = s.call(&Tmsg::Remove { fid }).unwrap();
    let flush = s.cancel(tag).unwrap();
    answered(&mut s, Rmsg::Lerror { ecode: 13 }, tag);
    assert_eq!(flushed(&mut s, flush), (tag, true, None));
    assert_eq!(s.fids(), 1, "the fid is gone even on error");
}

#[test]
fn a_fid_is_haunted_until_the_call_given_up_on_it_has_ended() {
    let mut s = session(4);
    let tag = s.call(&Tmsg::Lopen { fid: ROOT, flags: 0 }).unwrap();
    assert!(!s.is_haunted(ROOT));
    let flush = s.cancel(tag).unwrap();
    assert!(s.is_haunted(ROOT) && !s.is_haunted(Fid(1)));
    flushed(&mut s, flush);
    assert!(!s.is_haunted(ROOT));
}

#[test]
fn attach_auth_and_xattrwalk_make_fids_too() {
    let mut s = session(8);
    let fid = s.fid().unwrap();
    let ids = OnlyIds(0);
    let attach = Tmsg::Attach { fid, afid: NOFID, uname: b"", aname: b"", n_uname: ids };
    let tag = s.call(&attach).unwrap();
    assert_eq!(answered(&mut s, Rmsg::Attach { qid: QID }, tag).0, Some(fid));
    let afid = s.fid().unwrap();
    let tag = s.call(&Tmsg::Auth { afid, uname: b"", aname: b"", n_uname: ids }).unwrap();
    assert_eq!(answered(&mut s, Rmsg::Lerror { ecode: 2 }, tag).0, None);
    let newfid = s.fid().unwrap();
    assert_eq!(newfid, afid, "a refused afid is free again");
    let tag = s.call(&Tmsg::Xattrwalk { fid, newfid, name: b"" }).unwrap();
    assert_eq!(answered(&mut s, Rmsg::Xattrwalk { size: 0 }, tag).0, Some(newfid));
}

#[test]
fn the_messages_of_a_stream_are_calls_on_their_fid() {
    let mut s = ClientSession::new(4);
    s.version(8192, &[Dialect::LS]);
    let rversion = frame(Rmsg::Version { msize: 8192, version: b"9P2000.L.s" }, NOTAG, Dialect::LS);
    assert_eq!(s.receive(&rversion), Ok(Event::Agreed));
    assert_eq!(s.fid(), Some(ROOT));
    let tag = s.call(&Tmsg::Stream { fid: ROOT, isread: 1, offset: 0 }).unwrap();
    let offer = Rmsg::Stream { data: crate::msg::Data::Bytes(b"tcp!*!564 00ff") };
    assert_eq!(answered(&mut s, offer, tag), (None, true));
    let tag = s.call(&Tmsg::Sclose { fid: ROOT, count: 1 }).unwrap();
    let flush = s.cancel(tag).unwrap();
    assert!(s.is_haunted(ROOT));
    assert_eq!(answered(&mut s, Rmsg::Sclose { count: 1, errno: 0, ename: b"" }, tag), (None, false));
    assert_eq!(flushed(&mut s, flush), (tag, true, None));
    assert_eq!((s.calls(), s.fids()), (0, 1));
}

#[test]
fn a_walk_in_place_makes_and_frees_nothing() {
    let mut s = session(4);
    let walk = Tmsg::Walk { fid: ROOT, newfid: ROOT, names: Names::Slice(&[b"a"]) };
    let tag = s.call(&walk).unwrap();
    assert_eq!(answered(&mut s, Rmsg::Lerror { ecode: 2 }, tag), (None, true));
    assert_eq!(s.fids(), 1);
}

#[test]
fn a_message_that_was_not_sent_gives_its_fid_back() {
    let mut s = session(4);
    let newfid = s.fid().unwrap();
    assert_eq!(s.unsent(&Tmsg::Walk { fid: ROOT, newfid, names: Names::Slice(&[]) }), None);
    assert_eq!(s.fids(), 1);
    assert_eq!(s.unsent(&Tmsg::Remove { fid: ROOT }), Some(ROOT));
}

#[test]
fn orphans_count_against_the_limit() {
    let mut s = session(2);
    let (one, _) = walk(&mut s, &[b"a"]);
    let (two, _) = walk(&mut s, &[b"a"]);
    assert_eq!(s.call(&Tmsg::Statfs { fid: ROOT }), None);
    let flush = s.cancel(one).unwrap();
    s.cancel(two).unwrap();
    assert_eq!(s.call(&Tmsg::Statfs { fid: ROOT }), None);
    flushed(&mut s, flush);
    assert!(s.call(&Tmsg::Statfs { fid: ROOT }).is_some());
}

#[test]
fn the_largest_session_never_uses_notag() {
    let mut s = session(usize::MAX);
    assert_eq!(s.limit(), CALLS_MAX);
    let tags: Vec<_> = (0..CALLS_MAX).map(|_| s.call(&Tmsg::Statfs { fid: ROOT }).unwrap()).collect();
    assert_eq!(s.call(&Tmsg::Statfs { fid: ROOT }), None);
    assert!(tags.into_iter().all(|tag| s.cancel(tag).unwrap() != NOTAG));
}

#[test]
fn answers_to_nothing_or_of_the_wrong_type_end_the_connection() {
    let mut s = session(4);
    assert_eq!(refused(&mut s, Rmsg::Clunk {}, Tag(0)), WireError::Reply(121));
    assert_eq!(refused(&mut s, Rmsg::Clunk {}, NOTAG), WireError::Reply(121));
    let tag = s.call(&Tmsg::Statfs { fid: ROOT }).unwrap();
    assert_eq!(refused(&mut s, Rmsg::Clunk {}, tag), WireError::Reply(121));
    assert_eq!(refused(&mut s, Rmsg::Flush {}, tag), WireError::Reply(109));
    let flush = s.cancel(tag).unwrap();
    assert_eq!(refused(&mut s, Rmsg::Clunk {}, flush), WireError::Reply(121));
}

#[test]
fn a_walk_past_its_names_and_a_cut_answer_end_the_connection() {
    let mut s = session(4);
    let (tag, _) = walk(&mut s, &[b"a"]);
    assert_eq!(refused(&mut s, Rmsg::Walk { qids: Qids::Slice(&[QID, QID]) }, tag), WireError::Count(111));
    let mut cut = frame(Rmsg::Walk { qids: Qids::Slice(&[QID]) }, tag, Dialect::L);
    cut.pop();
    assert_eq!(s.receive(&cut), Err(WireError::Short(111)));
}

/// Every dialect, best first, as a client with streams offers them.
const STREAMING: [Dialect; 6] =
    [Dialect::LS, Dialect::L, Dialect::US, Dialect::U, Dialect::P2000S, Dialect::P2000];

/// Connects to a server that answers a Tversion with `answers`. Returns the client's dialect and the proposals.
fn negotiate_as(
    offered: &[Dialect],
    before: Option<SpokenDialect>,
    mut answers: impl FnMut(&[u8]) -> Option<&'static [u8]>,
) -> (Option<SpokenDialect>, Vec<String>) {
    let mut s = ClientSession::new(1);
    let mut proposal = s.version_as_before(8192, offered, before);
    let mut asked = Vec::new();
    loop {
        let Tmsg::Version { version, .. } = proposal else { panic!("{proposal:?}") };
        asked.push(String::from_utf8_lossy(version).into_owned());
        let reply = match answers(version) {
            Some(version) => Rmsg::Version { msize: 4096, version },
            None => Rmsg::Error { ename: b"what?", errno: OnlyU(0) },
        };
        match s.receive(&frame(reply, NOTAG, Dialect::P2000)).unwrap() {
            Event::Agreed => return (s.spoken(), asked),
            Event::NoDialect => return (None, asked),
            Event::Ask(next) => proposal = next,
            other => panic!("{other:?}"),
        }
    }
}

/// Answers each Tversion of the client in turn. Returns the client's dialect and the number of answers it took.
fn negotiate(answers: &[Option<&'static [u8]>]) -> (Option<Dialect>, usize) {
    let mut answers = answers.iter();
    let (spoken, asked) = negotiate_as(&ALL, None, |_| *answers.next().expect("not agreed"));
    (spoken.map(|spoken| spoken.answered), asked.len())
}

/// A server with these dialects that follows version(5).
fn by_the_manual(has: &'static [Dialect]) -> impl FnMut(&[u8]) -> Option<&'static [u8]> {
    |version| Some(Dialect::negotiate(version, has).map_or(&b"unknown"[..], |d| d.name().as_bytes()))
}

/// A server that knows whole names only.
fn by_whole_names(has: &'static [Dialect]) -> impl FnMut(&[u8]) -> Option<&'static [u8]> {
    |version| {
        let found = Dialect::parse(version).filter(|dialect| has.contains(dialect));
        Some(found.map_or(&b"unknown"[..], |d| d.name().as_bytes()))
    }
}

#[test]
fn the_best_common_dialect_is_found() {
    assert_eq!(negotiate(&[Some(b"9P2000.L")]), (Some(Dialect::L), 1));
    assert_eq!(negotiate(&[Some(b"unknown"), Some(b"9P2000.u")]), (Some(Dialect::U), 2));
    assert_eq!(negotiate(&[None, None, Some(b"9P2000")]), (Some(Dialect::P2000), 3));
    assert_eq!(negotiate(&[None, None, None]), (None, 3));
    assert_eq!(negotiate(&[Some(b"9P2000.u")]), (Some(Dialect::U), 1));
}

#[test]
fn a_server_that_drops_the_suffix_is_asked_for_the_next_one_before_it_is_believed() {
    assert_eq!(negotiate(&[Some(b"9P2000"), Some(b"9P2000.u")]), (Some(Dialect::U), 2));
    assert_eq!(negotiate(&[Some(b"9P2000"), Some(b"9P2000")]), (Some(Dialect::P2000), 2));
    // It refuses the second proposal, and still has the dialect of its first answer.
    assert_eq!(negotiate(&[Some(b"9P2000"), None, Some(b"9P2000")]), (Some(Dialect::P2000), 3));
}

#[test]
fn a_server_that_keeps_to_the_manual_gets_two_proposals_at_most() {
    for (has, best, proposals) in [
        (&[Dialect::LS, Dialect::L, Dialect::U, Dialect::P2000][..], Dialect::LS, 1),
        (&[Dialect::L, Dialect::P2000], Dialect::L, 1),
        (&[Dialect::U, Dialect::P2000], Dialect::U, 2),
        (&[Dialect::US, Dialect::P2000], Dialect::US, 2),
        (&[Dialect::P2000], Dialect::P2000, 2),
    ] {
        let (spoken, asked) = negotiate_as(&STREAMING, None, by_the_manual(has));
        let spoken = spoken.unwrap();
        assert_eq!((spoken.answered, asked.len()), (best, proposals), "{has:?}: {asked:?}");
        // The next connection takes one.
        let again = negotiate_as(&STREAMING, Some(spoken), by_the_manual(has));
        assert_eq!((again.0, again.1.len()), (Some(spoken), 1), "{has:?}: {:?}", again.1);
    }
}

#[test]
fn a_server_that_knows_whole_names_only_is_asked_for_plain_ones() {
    for (has, best, proposals) in [
        (&[Dialect::L][..], Some(Dialect::L), 2),
        (&[Dialect::U], Some(Dialect::U), 3),
        (&[Dialect::P2000], Some(Dialect::P2000), 4),
        (&[], None, 4),
    ] {
        let (spoken, asked) = negotiate_as(&STREAMING, None, by_whole_names(has));
        assert_eq!((spoken.map(|d| d.answered), asked.len()), (best, proposals), "{has:?}: {asked:?}");
        let Some(spoken) = spoken else { continue };
        let again = negotiate_as(&STREAMING, Some(spoken), by_whole_names(has));
        assert_eq!((again.0, again.1.len()), (Some(spoken), 1), "{has:?}: {:?}", again.1);
    }
    assert_eq!(negotiate_as(&[Dialect::LS, Dialect::US], None, by_whole_names(&[Dialect::US])).1.len(), 2);
}

#[test]
fn a_server_that_answers_otherwise_than_before_is_asked_for_the_best_again() {
    let before = SpokenDialect { asked: Dialect::US, answered: Dialect::P2000 };
    let all = &[Dialect::LS, Dialect::US, Dialect::P2000S, Dialect::L, Dialect::U, Dialect::P2000];
    let (spoken, asked) = negotiate_as(&STREAMING, Some(before), by_the_manual(all));
    assert_eq!((spoken.unwrap().answered, asked.len()), (Dialect::LS, 2), "{asked:?}");
    let before = SpokenDialect { asked: Dialect::P2000, answered: Dialect::P2000 };
    let (spoken, asked) = negotiate_as(&STREAMING, Some(before), by_whole_names(&[Dialect::L]));
    assert_eq!((spoken.unwrap().answered, asked.len()), (Dialect::L, 3), "{asked:?}");
    // A proposal that this client does not offer is not repeated.
    let (spoken, _) = negotiate_as(&[Dialect::L], Some(before), by_the_manual(all));
    assert_eq!(spoken.unwrap().answered, Dialect::L);
}

#[test]
fn an_msize_above_what_was_offered_or_too_small_to_work_with_is_refused() {
    for (msize, error) in [(8193, true), (511, true), (0, true), (512, false), (8192, false)] {
        let mut s = ClientSession::new(1);
        s.version(8192, &[Dialect::P2000]);
        let event =
            s.receive(&frame(Rmsg::Version { msize, version: b"9P2000" }, NOTAG, Dialect::P2000)).is_err();
        assert_eq!(event, error, "{msize}");
    }
}

#[test]
fn an_upgrade_that_nobody_asked_for_and_a_version_with_a_tag_are_refused() {
    let mut s = ClientSession::new(1);
    s.version(8192, &[Dialect::L, Dialect::P2000]);
    let upgrade = frame(Rmsg::Version { msize: 8192, version: b"9P2000.L" }, NOTAG, Dialect::P2000);
    assert_eq!(s.receive(&frame(Rmsg::Lerror { ecode: 1 }, Tag(0), Dialect::L)), Err(WireError::Reply(7)));
    let unknown = frame(Rmsg::Version { msize: 8192, version: b"unknown" }, NOTAG, Dialect::P2000);
    assert!(matches!(s.receive(&unknown), Ok(Event::Ask(_))));
    assert_eq!(s.receive(&upgrade), Err(WireError::Reply(101)));
}

#[test]
fn a_new_version_forgets_tags_and_fids() {
    let mut s = session(4);
    let (tag, _) = walk(&mut s, &[b"a"]);
    s.version(8192, &[Dialect::P2000]);
    assert_eq!((s.calls(), s.fids()), (0, 0));
    assert_eq!(refused(&mut s, Rmsg::Lerror { ecode: 2 }, tag), WireError::Reply(7));
}
