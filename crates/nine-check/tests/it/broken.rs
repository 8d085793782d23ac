//! A server broken deliberately, in one way after the other, and in all at once. Each way fails the case about it,
//! and no other.
//!
//! The server is one of ours and correct. Between it and the suite is a chain of intermediaries. Each receives the
//! messages of both sides, and modifies those that its way is about.

use std::collections::HashMap;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io::IoSlice;
use std::task::Poll;

use nine_net::{Env, Transport};
use nine_proto::frame::{self, Split};
use nine_proto::msg::{Names, OnlyU, Rmsg, Tmsg};
use nine_proto::{Dialect, Fid, OpenFlags, SetMask, Stat, Tag, Time};
use nine_servers::Ram;
use nine_sim::{End, link};

use crate::common::{ALL, Run, in_world, options, service, shape};

/// A way to be broken: its name, the intermediary, and the cases that fail.
type ServerFault = (&'static str, fn() -> Box<dyn FrameIntermediary>, &'static [&'static str]);

const SERVER_FAULTS: &[ServerFault] = &[
    (
        "a partial walk makes the fid",
        || Box::<PartialWalkCreates>::default(),
        &["* walk/partial_makes_no_fid"],
    ),
    (
        "a newfid in use is taken over",
        || Box::<NewfidTakenOver>::default(),
        &["* walk/a_newfid_in_use_is_refused"],
    ),
    (
        "Rflush overtakes the answer",
        || Box::<FlushOvertakes>::default(),
        &["* flush/an_answered_write_is_written"],
    ),
    (
        "a remove that fails leaves the fid",
        || Box::<RemoveKeepsFid>::default(),
        &["* remove/clunks_on_failure"],
    ),
    ("reads are rounded up", || Box::new(ReadRoundedUp), &["* io/never_more_than_asked"]),
    (
        "a change of mode moves the time",
        || Box::new(ModeTouchesTime),
        &["stat wstat/dont_touch_is_not_touched", "L setattr/mode"],
    ),
    (
        "a directory is read on from where it was, whatever the offset",
        || Box::<DirOffsetIgnored>::default(),
        &["stat dir/another_offset_is_refused", "L readdir/it_resumes_at_any_cookie"],
    ),
    (
        "a second Tversion changes nothing",
        || Box::<VersionIgnored>::default(),
        &["* version/again_clunks_all_fids"],
    ),
    (
        "ORCLOSE is ignored by Topen",
        || Box::new(OrcloseIgnored),
        &["stat clunk/removes_what_was_opened_to_be_removed"],
    ),
    (
        "OTRUNC is ignored",
        || Box::new(TruncIgnored),
        &["* open/truncates", "L getattr/truncation_moves_the_time_of_an_empty_file"],
    ),
    ("msize is no limit of Rread", || Box::<MsizeExceeded>::default(), &["* msize/no_rread_is_longer"]),
    (
        "an unknown version is an error",
        || Box::new(UnknownVersionError),
        &["* version/unknown_is_not_an_error"],
    ),
    ("Tunlinkat clunks", || Box::<UnlinkatClunks>::default(), &["L names/unlinkat_clunks_no_fid"]),
    ("a Twstat is done by halves", || Box::new(WstatHalved), &["stat wstat/all_or_nothing"]),
    ("a tag comes back as another", || Box::new(TagChanged), &["* tags/any_tag_is_echoed"]),
    (
        "a half written attribute is kept in silence",
        || Box::<PartialXattrHidden>::default(),
        &["L xattr/what_is_not_whole_is_not_stored"],
    ),
];

#[test]
fn each_way_to_be_broken_fails_its_case_and_no_other() {
    for way in SERVER_FAULTS {
        let run = broken(&[*way]);
        let mut expected = expected(&[*way], &run);
        let mut failed = run.failed();
        failed.sort();
        expected.sort();
        assert_eq!(failed, expected, "{}:\n{}", way.0, run.told());
    }
}

#[test]
fn all_ways_at_once_fail_all_their_cases_and_no_other() {
    let run = broken(SERVER_FAULTS);
    let (mut failed, mut expected) = (run.failed(), expected(SERVER_FAULTS, &run));
    failed.sort();
    expected.sort();
    assert_eq!(failed, expected, "{}", run.told());
    assert!(expected.len() > 30, "each in two or three dialects");
}

/// Returns `DIALECT CASE` of the cases that must fail.
fn expected(ways: &[ServerFault], run: &Run) -> Vec<String> {
    assert!(run.summary.is_ok(), "{:?}", run.summary);
    let mut all = Vec::new();
    for case in ways.iter().flat_map(|way| way.2) {
        let (which, name) = case.split_once(' ').expect("dialects and a case");
        let has = |d: &&Dialect| match which {
            "stat" => !d.is_l(),
            "L" => d.is_l(),
            _ => true,
        };
        all.extend(ALL.iter().filter(has).map(|dialect| format!("{} {name}", dialect.name())));
    }
    all
}

/// Runs the suite over a server that is broken in these ways.
fn broken(ways: &[ServerFault]) -> Run {
    let service = service(Ram::new(64 << 20));
    let ways = ways.to_vec();
    in_world(7, options(), move |world, client| {
        let (server, theirs) = link(world, shape());
        let row = ways.iter().enumerate().map(|(n, way)| (way.1(), IntermediaryOutput::new(n as u16)));
        world.env().spawn(Box::pin(stand_between(row.collect(), client, server)));
        world.env().spawn(Box::pin(service.connect(Box::new(theirs))));
    })
}

/// One intermediary.
trait FrameIntermediary {
    /// Handles a request of the client.
    fn ask(&mut self, frame: Vec<u8>, way: &mut IntermediaryOutput) {
        way.server.push(frame);
    }

    /// Handles an answer of the server to the client (see [`IntermediaryOutput::own`] for others).
    fn answer(&mut self, frame: Vec<u8>, way: &mut IntermediaryOutput) {
        way.client.push(frame);
    }

    /// Handles the server's answer to the intermediary's own request.
    fn own(&mut self, frame: Vec<u8>, way: &mut IntermediaryOutput) {
        let _ = (frame, way);
    }
}

/// The output of one intermediary, and its knowledge of the session.
struct IntermediaryOutput {
    client: Vec<Vec<u8>>,
    server: Vec<Vec<u8>>,
    dialect: Dialect,
    /// The tag of its own requests; the suite never uses it.
    tag: Tag,
}

impl IntermediaryOutput {
    fn new(n: u16) -> Self {
        Self { client: Vec::new(), server: Vec::new(), dialect: Dialect::P2000, tag: Tag(0xff80 + n) }
    }

    /// Sends a request of its own to the server.
    fn own(&mut self, message: &Tmsg<'_>) {
        let frame = self.encoded(self.tag, message);
        self.server.push(frame);
    }

    fn encoded(&self, tag: Tag, message: &Tmsg<'_>) -> Vec<u8> {
        let mut frame = Vec::new();
        message.encode(tag, self.dialect, &mut frame);
        frame
    }

    fn answer(&self, tag: Tag, message: &Rmsg<'_>) -> Vec<u8> {
        let mut frame = Vec::new();
        message.encode(tag, self.dialect, &mut frame);
        frame
    }
}

/// The intermediaries, from the client to the server.
type IntermediaryChain = Vec<(Box<dyn FrameIntermediary>, IntermediaryOutput)>;

/// Passes frames both ways until one side ends.
async fn stand_between(mut row: IntermediaryChain, mut client: End, mut server: End) {
    let (mut from_client, mut from_server) = (Vec::new(), Vec::new());
    let mut piece = vec![0; 1 << 16];
    loop {
        let (asks, n) = poll_fn(|cx| {
            for (asks, end) in [(true, &mut client), (false, &mut server)] {
                if let Poll::Ready(n) = end.poll_read(cx, &mut piece) {
                    return Poll::Ready((asks, n.unwrap_or(0)));
                }
            }
            Poll::Pending
        })
        .await;
        if n == 0 {
            return;
        }
        let come = if asks { &mut from_client } else { &mut from_server };
        come.extend_from_slice(&piece[..n]);
        let mut out = (Vec::new(), Vec::new());
        while let Some(frame) = whole(come) {
            let at = if asks { 0 } else { row.len() };
            pass(&mut row, at, asks, frame, &mut out);
        }
        if asks && is_hopeless(come) {
            // It announces an impossible size and is never complete. The server must judge it.
            out.0.push(std::mem::take(come));
        }
        if !push(&mut server, out.0).await || !push(&mut client, out.1).await {
            return;
        }
    }
}

/// Passes one frame along the chain from an index. `out` collects frames for the server and for the client.
fn pass(
    row: &mut IntermediaryChain,
    at: usize,
    asks: bool,
    frame: Vec<u8>,
    out: &mut (Vec<Vec<u8>>, Vec<Vec<u8>>),
) {
    let place = if asks { Some(at) } else { at.checked_sub(1) };
    let Some((at, (middle, ends))) = place.and_then(|at| Some((at, row.get_mut(at)?))) else {
        return if asks { out.0.push(frame) } else { out.1.push(frame) };
    };
    match asks {
        // A frame that does not decode is for the server to judge.
        true if Tmsg::decode(&frame, ends.dialect).is_err() => ends.server.push(frame),
        true => middle.ask(frame, ends),
        false if frame::tag_of(&frame) == ends.tag => middle.own(frame, ends),
        false => {
            if let Ok((_, Rmsg::Version { version, .. })) = Rmsg::decode(&frame, Dialect::P2000)
                && let Some(dialect) = Dialect::parse(version)
            {
                ends.dialect = dialect;
            }
            middle.answer(frame, ends);
        }
    }
    let (onward, back) = (std::mem::take(&mut ends.server), std::mem::take(&mut ends.client));
    for frame in onward {
        pass(row, at + 1, true, frame, out);
    }
    for frame in back {
        pass(row, at, false, frame, out);
    }
}

fn whole(come: &mut Vec<u8>) -> Option<Vec<u8>> {
    let Ok(Split::Whole(n)) = frame::split(come, frame::MSIZE_MAX) else { return None };
    let rest = come.split_off(n);
    Some(std::mem::replace(come, rest))
}

fn is_hopeless(come: &[u8]) -> bool {
    frame::split(come, frame::MSIZE_MAX).is_err()
}

async fn push(end: &mut End, frames: Vec<Vec<u8>>) -> bool {
    for frame in frames {
        let mut bytes = &frame[..];
        while !bytes.is_empty() {
            match poll_fn(|cx| end.poll_write(cx, &[IoSlice::new(bytes)])).await {
                Ok(n) => bytes = &bytes[n..],
                Err(_) => return false,
            }
        }
    }
    true
}

fn asked(frame: &[u8], dialect: Dialect) -> (Tag, Tmsg<'_>) {
    Tmsg::decode(frame, dialect).expect("checked when it came")
}

fn answered(frame: &[u8], dialect: Dialect) -> (Tag, Rmsg<'_>) {
    Rmsg::decode(frame, dialect).expect("the server sends what is 9P")
}

fn is_error(message: &Rmsg<'_>) -> bool {
    matches!(message, Rmsg::Error { .. } | Rmsg::Lerror { .. })
}

#[derive(Default)]
struct PartialWalkCreates {
    walks: HashMap<Tag, (Fid, Fid, Vec<Vec<u8>>)>,
    held: VecDeque<Vec<u8>>,
}

impl FrameIntermediary for PartialWalkCreates {
    fn ask(&mut self, frame: Vec<u8>, way: &mut IntermediaryOutput) {
        if let (tag, Tmsg::Walk { fid, newfid, names }) = asked(&frame, way.dialect) {
            self.walks.insert(tag, (fid, newfid, names.iter().map(<[u8]>::to_vec).collect()));
        }
        way.server.push(frame);
    }

    fn answer(&mut self, frame: Vec<u8>, way: &mut IntermediaryOutput) {
        if let (tag, Rmsg::Walk { qids }) = answered(&frame, way.dialect)
            && let Some((fid, newfid, names)) = self.walks.get(&tag)
            && qids.len() < names.len()
            && fid != newfid
        {
            let names: Vec<&[u8]> = names[..qids.len()].iter().map(Vec::as_slice).collect();
            way.own(&Tmsg::Walk { fid: *fid, newfid: *newfid, names: Names::Slice(&names) });
            return self.held.push_back(frame);
        }
        way.client.push(frame);
    }

    fn own(&mut self, _: Vec<u8>, way: &mut IntermediaryOutput) {
        way.client.extend(self.held.pop_front());
    }
}

#[derive(Default)]
struct NewfidTakenOver {
    fids: Vec<Fid>,
}

impl FrameIntermediary for NewfidTakenOver {
    fn ask(&mut self, frame: Vec<u8>, way: &mut IntermediaryOutput) {
        if let (_, Tmsg::Walk { fid, newfid, names }) = asked(&frame, way.dialect)
            && fid != newfid
            && names.is_empty()
        {
            if self.fids.contains(&newfid) {
                way.own(&Tmsg::Clunk { fid: newfid });
            }
            self.fids.push(newfid);
        }
        way.server.push(frame);
    }
}

#[derive(Default)]
struct FlushOvertakes {
    writes: Vec<Tag>,
    answered: Vec<Tag>,
}

impl FrameIntermediary for FlushOvertakes {
    fn ask(&mut self, frame: Vec<u8>, way: &mut IntermediaryOutput) {
        match asked(&frame, way.dialect) {
            (tag, Tmsg::Write { .. }) => self.writes.push(tag),
            (tag, Tmsg::Flush { oldtag }) if self.writes.contains(&oldtag) => {
                self.answered.push(tag);
                let rflush = way.answer(tag, &Rmsg::Flush {});
                way.client.push(rflush);
            }
            _ => {}
        }
        way.server.push(frame);
    }

    fn answer(&mut self, frame: Vec<u8>, way: &mut IntermediaryOutput) {
        let tag = frame::tag_of(&frame);
        self.writes.retain(|write| *write != tag);
        match self.answered.iter().position(|flush| *flush == tag) {
            Some(at) => drop(self.answered.remove(at)),
            None => way.client.push(frame),
        }
    }
}

/// Keeps a second fid of a file to be removed.
#[derive(Default)]
struct RemoveKeepsFid {
    removes: HashMap<Tag, Fid>,
    held: Option<Vec<u8>>,
}

const SPARE: Fid = Fid(0xeeee_0000);

impl FrameIntermediary for RemoveKeepsFid {
    fn ask(&mut self, frame: Vec<u8>, way: &mut IntermediaryOutput) {
        if let (tag, Tmsg::Remove { fid }) = asked(&frame, way.dialect) {
            way.own(&Tmsg::Clunk { fid: SPARE });
            way.own(&Tmsg::Walk { fid, newfid: SPARE, names: Names::Slice(&[]) });
            self.removes.insert(tag, fid);
        }
        way.server.push(frame);
    }

    fn answer(&mut self, frame: Vec<u8>, way: &mut IntermediaryOutput) {
        let (tag, message) = answered(&frame, way.dialect);
        match self.removes.remove(&tag) {
            Some(newfid) if is_error(&message) => {
                way.own(&Tmsg::Walk { fid: SPARE, newfid, names: Names::Slice(&[]) });
                self.held = Some(frame);
            }
            _ => way.client.push(frame),
        }
    }

    fn own(&mut self, _: Vec<u8>, way: &mut IntermediaryOutput) {
        way.client.extend(self.held.take());
    }
}

struct ReadRoundedUp;

impl FrameIntermediary for ReadRoundedUp {
    fn ask(&mut self, frame: Vec<u8>, way: &mut IntermediaryOutput) {
        let frame = match asked(&frame, way.dialect) {
            (tag, Tmsg::Read { fid, offset, count: 1..16 }) => {
                way.encoded(tag, &Tmsg::Read { fid, offset, count: 16 })
            }
            _ => frame,
        };
        way.server.push(frame);
    }
}

struct ModeTouchesTime;

impl FrameIntermediary for ModeTouchesTime {
    fn ask(&mut self, frame: Vec<u8>, way: &mut IntermediaryOutput) {
        let frame = match asked(&frame, way.dialect) {
            (tag, Tmsg::Wstat { fid, stat }) if stat.mode != u32::MAX && stat.mtime == u32::MAX => {
                way.encoded(tag, &Tmsg::Wstat { fid, stat: Stat { mtime: 1, ..stat } })
            }
            (tag, Tmsg::Setattr { fid, valid: SetMask::MODE, mode, uid, gid, size, atime, .. }) => {
                let valid = SetMask::MODE | SetMask::MTIME | SetMask::MTIME_SET;
                let mtime = Time { sec: 1, nsec: 0 };
                way.encoded(tag, &Tmsg::Setattr { fid, valid, mode, uid, gid, size, atime, mtime })
            }
            _ => frame,
        };
        way.server.push(frame);
    }
}

#[derive(Default)]
struct DirOffsetIgnored {
    reads: HashMap<Tag, (Fid, u64)>,
    /// The end of the last read of each fid.
    ends: HashMap<Fid, u64>,
    dirs: Vec<Fid>,
}

impl FrameIntermediary for DirOffsetIgnored {
    fn ask(&mut self, frame: Vec<u8>, way: &mut IntermediaryOutput) {
        let (tag, message) = asked(&frame, way.dialect);
        let end = |fid: &Fid| self.ends.get(fid).copied();
        let message = match message {
            Tmsg::Read { fid, offset, count } if offset != 0 && self.dirs.contains(&fid) => {
                Tmsg::Read { fid, offset: end(&fid).unwrap_or(offset), count }
            }
            Tmsg::Readdir { fid, offset, count } if offset != 0 => {
                Tmsg::Readdir { fid, offset: end(&fid).unwrap_or(offset), count }
            }
            other => other,
        };
        match message {
            Tmsg::Read { fid, offset, .. } | Tmsg::Readdir { fid, offset, .. } => {
                self.reads.insert(tag, (fid, offset));
            }
            Tmsg::Open { fid, .. } => drop(self.reads.insert(tag, (fid, 0))),
            Tmsg::Clunk { fid } => {
                self.dirs.retain(|dir| *dir != fid);
                self.ends.remove(&fid);
            }
            _ => {}
        }
        let frame = way.encoded(tag, &message);
        way.server.push(frame);
    }

    fn answer(&mut self, frame: Vec<u8>, way: &mut IntermediaryOutput) {
        let (tag, message) = answered(&frame, way.dialect);
        if let Some((fid, offset)) = self.reads.remove(&tag) {
            match message {
                Rmsg::Open { qid, .. } if qid.is_dir() => self.dirs.push(fid),
                Rmsg::Read { data } if !data.bytes().is_empty() => {
                    self.ends.insert(fid, offset + data.bytes().len() as u64);
                }
                Rmsg::Readdir { data } => {
                    let last = nine_proto::Entries::new(data.bytes(), way.dialect).last();
                    if let Some(Ok((entry, _))) = last {
                        self.ends.insert(fid, entry.cookie);
                    }
                }
                _ => {}
            }
        }
        way.client.push(frame);
    }
}

#[derive(Default)]
struct VersionIgnored {
    agreed: Option<Vec<u8>>,
    answer: Vec<u8>,
    opened: bool,
    outstanding: usize,
    held: bool,
}

impl FrameIntermediary for VersionIgnored {
    fn ask(&mut self, frame: Vec<u8>, way: &mut IntermediaryOutput) {
        match asked(&frame, way.dialect).1 {
            Tmsg::Version { .. } if self.agreed.as_ref() == Some(&frame) && !self.opened => {
                match self.outstanding {
                    0 => way.client.push(self.answer.clone()),
                    _ => self.held = true,
                }
                return;
            }
            Tmsg::Version { .. } => {
                self.agreed = Some(frame.clone());
                self.outstanding = 0;
            }
            Tmsg::Create { .. } | Tmsg::Lcreate { .. } => self.opened = true,
            _ => {}
        }
        self.outstanding += 1;
        way.server.push(frame);
    }

    fn answer(&mut self, frame: Vec<u8>, way: &mut IntermediaryOutput) {
        if frame::type_of(&frame) == 101 {
            self.answer.clone_from(&frame);
        }
        way.client.push(frame);
        self.outstanding = self.outstanding.saturating_sub(1);
        if self.outstanding == 0 && std::mem::take(&mut self.held) {
            way.client.push(self.answer.clone());
        }
    }
}

struct OrcloseIgnored;

impl FrameIntermediary for OrcloseIgnored {
    fn ask(&mut self, frame: Vec<u8>, way: &mut IntermediaryOutput) {
        let frame = match asked(&frame, way.dialect) {
            (tag, Tmsg::Open { fid, mode }) => way.encoded(tag, &Tmsg::Open { fid, mode: mode & !0x40 }),
            _ => frame,
        };
        way.server.push(frame);
    }
}

struct TruncIgnored;

impl FrameIntermediary for TruncIgnored {
    fn ask(&mut self, frame: Vec<u8>, way: &mut IntermediaryOutput) {
        let frame = match asked(&frame, way.dialect) {
            // For a directory it must stay an error.
            (tag, Tmsg::Open { fid, mode }) if mode & 3 != 0 => {
                way.encoded(tag, &Tmsg::Open { fid, mode: mode & !0x10 })
            }
            (tag, Tmsg::Lopen { fid, flags }) => {
                way.encoded(tag, &Tmsg::Lopen { fid, flags: flags & !OpenFlags::TRUNC.0 })
            }
            _ => frame,
        };
        way.server.push(frame);
    }
}

/// Announces a larger msize to the server than the client's.
#[derive(Default)]
struct MsizeExceeded {
    msize: u32,
}

impl FrameIntermediary for MsizeExceeded {
    fn ask(&mut self, frame: Vec<u8>, way: &mut IntermediaryOutput) {
        let small = self.msize == LEAST;
        let most = LEAST - frame::IOHDRSZ;
        let frame = match asked(&frame, way.dialect) {
            (tag, Tmsg::Version { msize, version }) => {
                self.msize = msize;
                let msize = if msize == LEAST { 8 * LEAST } else { msize };
                way.encoded(tag, &Tmsg::Version { msize, version })
            }
            (tag, Tmsg::Read { fid, offset, count }) if small && count != 5 * LEAST - 480 => {
                way.encoded(tag, &Tmsg::Read { fid, offset, count: count.min(most) })
            }
            (tag, Tmsg::Readdir { fid, offset, count }) if small => {
                way.encoded(tag, &Tmsg::Readdir { fid, offset, count: count.min(most) })
            }
            _ => frame,
        };
        way.server.push(frame);
    }

    fn answer(&mut self, frame: Vec<u8>, way: &mut IntermediaryOutput) {
        let frame = match Rmsg::decode(&frame, way.dialect) {
            Ok((tag, Rmsg::Version { msize, version })) => {
                way.answer(tag, &Rmsg::Version { msize: msize.min(self.msize), version })
            }
            _ => frame,
        };
        way.client.push(frame);
    }
}

const LEAST: u32 = 4096;

struct UnknownVersionError;

impl FrameIntermediary for UnknownVersionError {
    fn answer(&mut self, frame: Vec<u8>, way: &mut IntermediaryOutput) {
        let frame = match Rmsg::decode(&frame, way.dialect) {
            Ok((tag, Rmsg::Version { version: b"unknown", .. })) => {
                way.answer(tag, &Rmsg::Error { ename: b"what?", errno: OnlyU(22) })
            }
            _ => frame,
        };
        way.client.push(frame);
    }
}

#[derive(Default)]
struct UnlinkatClunks {
    walks: HashMap<Vec<u8>, Fid>,
    unlinks: HashMap<Tag, Fid>,
}

impl FrameIntermediary for UnlinkatClunks {
    fn ask(&mut self, frame: Vec<u8>, way: &mut IntermediaryOutput) {
        match asked(&frame, way.dialect) {
            (_, Tmsg::Walk { newfid, names, .. }) if names.len() == 1 => {
                self.walks.insert(names.iter().collect::<Vec<_>>().concat(), newfid);
            }
            (tag, Tmsg::Unlinkat { name, .. }) => {
                if let Some(fid) = self.walks.get(name) {
                    self.unlinks.insert(tag, *fid);
                }
            }
            _ => {}
        }
        way.server.push(frame);
    }

    fn answer(&mut self, frame: Vec<u8>, way: &mut IntermediaryOutput) {
        if let (tag, Rmsg::Unlinkat {}) = answered(&frame, way.dialect)
            && let Some(fid) = self.unlinks.remove(&tag)
        {
            way.own(&Tmsg::Clunk { fid });
        }
        way.client.push(frame);
    }
}

struct WstatHalved;

impl FrameIntermediary for WstatHalved {
    fn ask(&mut self, frame: Vec<u8>, way: &mut IntermediaryOutput) {
        if let (_, Tmsg::Wstat { fid, stat }) = asked(&frame, way.dialect)
            && !stat.name.is_empty()
            && stat.mode != u32::MAX
        {
            way.own(&Tmsg::Wstat { fid, stat: Stat { name: b"", ..stat } });
        }
        way.server.push(frame);
    }
}

struct TagChanged;

impl FrameIntermediary for TagChanged {
    fn answer(&mut self, mut frame: Vec<u8>, way: &mut IntermediaryOutput) {
        if frame::tag_of(&frame) == Tag(0x7fff) {
            frame[5..7].copy_from_slice(&0x7ffe_u16.to_le_bytes());
        }
        way.client.push(frame);
    }
}

#[derive(Default)]
struct PartialXattrHidden {
    clunks: Vec<Tag>,
}

impl FrameIntermediary for PartialXattrHidden {
    fn ask(&mut self, frame: Vec<u8>, way: &mut IntermediaryOutput) {
        if let (tag, Tmsg::Clunk { .. }) = asked(&frame, way.dialect) {
            self.clunks.push(tag);
        }
        way.server.push(frame);
    }

    fn answer(&mut self, frame: Vec<u8>, way: &mut IntermediaryOutput) {
        let frame = match Rmsg::decode(&frame, way.dialect) {
            Ok((tag, Rmsg::Lerror { ecode: 22 })) if self.clunks.contains(&tag) => {
                way.answer(tag, &Rmsg::Clunk {})
            }
            _ => frame,
        };
        way.client.push(frame);
    }
}
