//! Open files that are called without the session: clients must not see a difference.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Context;

use nine_io::server::{Answer, Core, FileServer, Gate, Later, Node, Reply, Req, ReqId, Service};
use nine_io::{Called, Direct, Payload};
use nine_proto::msg::{Data, Names, Tmsg};
use nine_proto::{Dialect, Errno, Error, Fid, NOTAG, Op, OpenFlags, Qid, Result, Tag, Walked};
use nine_sim::{Rng, Shape, World, seeds};

use crate::common::Raw;

const ROOT: Qid = Qid { ty: Qid::DIR, vers: 0, path: 1 };
const FILE: Qid = Qid { ty: 0, vers: 0, path: 2 };
/// Maximum length of the file. Writes are truncated there.
const END: usize = 10_000;

/// A directory and a file that may support direct calls.
struct Files {
    content: Mutex<Vec<u8>>,
    can_be_called: bool,
    calls: AtomicU64,
    /// Requests for which [`nine_io::server::Request::was_called`] is true.
    left: AtomicU64,
    /// Reads at [`STUCK`], which wait for cancellation.
    stuck: Mutex<Vec<(ReqId, Later)>>,
}

/// A read at this offset is not answered.
const STUCK: u64 = 1 << 50;

/// Whether a call declines, so that the request is served as a message.
fn is_left(offset: u64) -> bool {
    offset % 5 == 3 || offset == STUCK
}

impl Files {
    fn new(can_be_called: bool) -> Arc<Self> {
        let content = Mutex::new((0..END).map(|n| n as u8).collect());
        Arc::new(Self {
            content,
            can_be_called,
            calls: AtomicU64::new(0),
            left: AtomicU64::new(0),
            stuck: Mutex::new(Vec::new()),
        })
    }

    fn read(&self, offset: u64, count: u32) -> Result<Payload> {
        if offset % 5 == 4 {
            return Err(Error::new(Errno::EIO, "a bad place"));
        }
        let content = self.content.lock().unwrap();
        let at = offset.min(END as u64) as usize;
        Ok(Payload::from(content[at..END.min(at + count as usize)].to_vec()))
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<usize> {
        if offset % 5 == 4 {
            return Err(Error::new(Errno::ENOSPC, "a full place"));
        }
        let at = offset.min(END as u64) as usize;
        let n = data.len().min(END - at);
        self.content.lock().unwrap()[at..at + n].copy_from_slice(&data[..n]);
        Ok(n)
    }
}

struct Opened(Arc<Files>);

impl Direct for Opened {
    fn read(&self, cx: Option<&mut Context<'_>>, offset: u64, count: u32) -> Called<Payload> {
        assert!(cx.is_none(), "nobody would be woken");
        match is_left(offset) {
            true => Called::Message,
            false => {
                self.0.calls.fetch_add(1, Ordering::Relaxed);
                Called::Done(self.0.read(offset, count))
            }
        }
    }

    fn write_now(&self, offset: u64, data: &Payload) -> Called<usize> {
        match is_left(offset) {
            true => Called::Waits,
            false => {
                self.0.calls.fetch_add(1, Ordering::Relaxed);
                Called::Done(self.0.write(offset, &data.read(data.len()).unwrap()))
            }
        }
    }
}

struct Server(Arc<Files>);

impl FileServer for Server {
    fn serve(&self, req: Req) -> Answer {
        let qid = req.node::<Qid>().ok().map(|node| *node);
        if req.was_called() {
            self.0.left.fetch_add(1, Ordering::Relaxed);
        }
        let reply = match req.op() {
            Op::Attach { .. } => Ok(Reply::Attach { qid: ROOT, node: Arc::new(ROOT) }),
            Op::Walk { names } => {
                let qid = if names.is_empty() { qid.unwrap() } else { FILE };
                let mut qids = Walked::new();
                names.iter().for_each(|_| qids.push(FILE));
                Ok(Reply::Walk { qids, node: Some(Arc::new(qid)) })
            }
            Op::Open { .. } => Ok(Reply::Open { qid: qid.unwrap(), iounit: 0, node: Arc::new(qid.unwrap()) }),
            Op::Read { offset: STUCK, .. } => {
                let id = req.id();
                let (answer, later) = req.later();
                self.0.stuck.lock().unwrap().push((id, later));
                return answer;
            }
            Op::Read { offset, .. } => self.0.read(offset, req.count()).map(Reply::Read),
            Op::Write { offset, data } => self.0.write(offset, data).map(|n| Reply::Wrote(n as u32)),
            Op::Clunk => Ok(Reply::Done),
            _ => Err(Errno::EOPNOTSUPP.into()),
        };
        req.now(reply)
    }

    fn cancel(&self, id: ReqId, _: Option<&Node>) {
        let mut stuck = self.0.stuck.lock().unwrap();
        if let Some(at) = stuck.iter().position(|(other, _)| *other == id) {
            stuck.remove(at).1.respond(Err(Errno::EINTR.into()));
        }
    }

    fn direct(&self, _: &Node, _: OpenFlags) -> Option<Arc<dyn Direct>> {
        self.0.can_be_called.then(|| Arc::new(Opened(self.0.clone())) as Arc<dyn Direct>)
    }
}

/// Creates fids of the file: open for both, for reading, for writing, and not open; and an open and an unopened fid of
/// the directory.
async fn fids(raw: &mut Raw) {
    for (fid, names, flags) in [
        (2, &[&b"f"[..]][..], Some(2)),
        (3, &[b"f"], Some(0)),
        (4, &[b"f"], Some(1)),
        (5, &[b"f"], None),
        (6, &[], Some(0)),
    ] {
        let walk = Tmsg::Walk { fid: Fid(1), newfid: Fid(fid), names: Names::Slice(names) };
        assert!(raw.call(1, walk).await.starts_with("Rwalk"));
        if let Some(flags) = flags {
            raw.call(1, Tmsg::Lopen { fid: Fid(fid), flags }).await;
        }
    }
}

/// Returns the replies to some thousand messages, and the file's contents.
fn transcript(seed: u64, read_only: bool, can_be_called: bool) -> (Vec<String>, Vec<u8>, u64, u64) {
    let world = World::new(seed);
    let files = Files::new(can_be_called);
    let gate = Gate { read_only, ..Gate::default() };
    let service = Service::new(Arc::new(Server(files.clone())), gate, Core::default());
    let mut raw = Raw::dial(&world, &service, Shape::default());
    let mut rng = Rng::new(seed);
    let lines = world.run(async move {
        raw.hello(8192).await;
        fids(&mut raw).await;
        let mut lines = Vec::new();
        for _ in 0..3000 {
            // Usually one at a time; sometimes several in flight.
            let many = [1, 1, 1, 3][rng.below(4)];
            for n in 0..many {
                let fid = Fid(2 + rng.below(6) as u32);
                let far = [END as u64 - 4, END as u64, 1 << 40, i64::MAX as u64 - 5, u64::MAX - 3, u64::MAX];
                let offset = match rng.below(4) {
                    0 => far[rng.below(far.len())],
                    _ => rng.below(END) as u64,
                };
                let tag = if rng.below(50) == 0 { NOTAG.0 } else { n };
                let bytes = vec![rng.below(256) as u8; [0, 1, 100, 3000, 8169][rng.below(5)]];
                let counts = [0, 1, 100, 3000, 8168, 8169, u32::MAX];
                let message = match rng.below(2) {
                    0 => Tmsg::Read { fid, offset, count: counts[rng.below(counts.len())] },
                    _ => Tmsg::Write { fid, offset, data: Data::Bytes(&bytes) },
                };
                raw.send(tag, message).await.unwrap();
            }
            for _ in 0..many {
                let bytes = raw.receive().await.unwrap();
                lines.push(format!("{bytes:?}"));
            }
        }
        lines
    });
    let content = files.content.lock().unwrap().clone();
    (lines, content, files.calls.load(Ordering::Relaxed), files.left.load(Ordering::Relaxed))
}

#[test]
fn a_called_file_answers_every_message_as_one_that_is_not() {
    for seed in seeds(10) {
        for read_only in [false, true] {
            let (called, content, calls, left) = transcript(seed, read_only, true);
            let (asked, same, none, nothing) = transcript(seed, read_only, false);
            for (n, (one, other)) in called.iter().zip(&asked).enumerate() {
                let head = |line: &String| line[..line.len().min(200)].to_string();
                assert!(one == other, "seed {seed}, message {n}: {} and not {}", head(one), head(other));
            }
            assert!(called.len() == asked.len() && content == same, "seed {seed}");
            assert!(calls > 100 && left > 10, "seed {seed}: {calls} calls, {left} left to messages");
            assert_eq!((none, nothing), (0, 0));
        }
    }
}

/// Returns the replies to a client with an unanswered read in flight. It also sends writes with a wrong length.
fn beside_others(can_be_called: bool, count: u32) -> Vec<String> {
    let world = World::new(0);
    let service = Service::new(Arc::new(Server(Files::new(can_be_called))), Gate::default(), Core::default());
    let mut raw = Raw::dial(&world, &service, Shape::default());
    world.run(async move {
        raw.hello(8192).await;
        fids(&mut raw).await;
        let read = |offset| Tmsg::Read { fid: Fid(2), offset, count: 10 };
        let mut lines = Vec::new();
        raw.send(9, read(STUCK)).await.unwrap();
        // A tag in use. A fid that serves other reads until a clunk waits for it.
        for (tag, message) in [(9, read(0)), (10, read(0))] {
            lines.push(raw.call(tag, message).await);
        }
        raw.send(11, Tmsg::Clunk { fid: Fid(2) }).await.unwrap();
        raw.send(12, read(0)).await.unwrap();
        raw.send(13, Tmsg::Flush { oldtag: Tag(9) }).await.unwrap();
        raw.send(14, Tmsg::Clunk { fid: Fid(3) }).await.unwrap();
        for _ in 0..4 {
            lines.push(raw.reply().await);
        }
        let mut bytes = Vec::new();
        let write = Tmsg::Write { fid: Fid(4), offset: 0, data: Data::Bytes(b"data") };
        write.encode(Tag(15), Dialect::L, &mut bytes);
        bytes[19..23].copy_from_slice(&count.to_le_bytes());
        raw.send_bytes(&bytes).await.unwrap();
        lines.push(raw.reply().await);
        lines
    })
}

#[test]
fn a_called_file_knows_what_is_under_way_and_what_is_no_message() {
    for count in [0, 3, 4, 5, u32::MAX] {
        let called = beside_others(true, count);
        assert_eq!(called, beside_others(false, count));
        assert!(called[0].ends_with("ecode 22") && called[1].starts_with("Rread"), "{called:?}");
        assert_eq!(called[6].starts_with("Rwrite"), count == 4, "{called:?}");
    }
}
