//! Shared parts of the worlds: a client that sends single messages, and a server whose reads may never end.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::sync::{Arc, Mutex};

use nine_io::Payload;
use nine_io::server::{Answer, FileServer, Later, Node, Reply, Req, ReqId, Service};
use nine_net::{Env, Transport};
use nine_proto::frame::{self, Split};
use nine_proto::msg::{OnlyIds, Rmsg, Tmsg};
use nine_proto::{Attr, Dialect, Errno, Fid, GetMask, NOFID, NOTAG, NOUID, Op, Qid, Tag, Walked};
use nine_sim::{End, Shape, World, link};

/// A client that sends single messages and can misbehave.
pub struct Raw {
    end: End,
    dialect: Dialect,
    come: Vec<u8>,
}

impl Raw {
    /// Creates a link to a new connection of `service`.
    pub fn dial(world: &World, service: &Service, shape: Shape) -> Self {
        let (ours, theirs) = link(world, shape);
        world.env().spawn(Box::pin(service.connect(Box::new(theirs))));
        Self::on(ours)
    }

    /// Uses an existing link.
    pub fn on(end: End) -> Self {
        Self { end, dialect: Dialect::L, come: Vec::new() }
    }

    pub async fn send_bytes(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let n = poll_fn(|cx| self.end.poll_write(cx, &[IoSlice::new(bytes)])).await?;
            bytes = &bytes[n..];
        }
        Ok(())
    }

    pub async fn send(&mut self, tag: u16, message: Tmsg<'_>) -> io::Result<()> {
        let mut bytes = Vec::new();
        message.encode(Tag(tag), self.dialect, &mut bytes);
        self.send_bytes(&bytes).await
    }

    /// Returns the next reply as bytes.
    pub async fn receive(&mut self) -> io::Result<Vec<u8>> {
        loop {
            if let Split::Whole(n) = frame::split(&self.come, frame::MSIZE_MAX).map_err(io::Error::other)? {
                let rest = self.come.split_off(n);
                return Ok(std::mem::replace(&mut self.come, rest));
            }
            let mut buf = vec![0; 64 * 1024];
            let n = poll_fn(|cx| self.end.poll_read(cx, &mut buf)).await?;
            if n == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.come.extend_from_slice(&buf[..n]);
        }
    }

    /// Returns the next reply as text.
    pub async fn reply(&mut self) -> String {
        match self.receive().await {
            Ok(bytes) => {
                let (tag, message) = Rmsg::decode(&bytes, self.dialect).expect("the server sends what is 9P");
                message.with_tag(tag).to_string()
            }
            Err(error) => format!("{:?}", error.kind()),
        }
    }

    pub async fn call(&mut self, tag: u16, message: Tmsg<'_>) -> String {
        match self.send(tag, message).await {
            Ok(()) => self.reply().await,
            Err(error) => format!("{:?}", error.kind()),
        }
    }

    /// Sends version and attach. Fid 1 is the root.
    pub async fn hello(&mut self, msize: u32) {
        let version = self.call(NOTAG.0, Tmsg::Version { msize, version: b"9P2000.L" }).await;
        assert!(version.starts_with("Rversion"), "{version}");
        let attach =
            Tmsg::Attach { fid: Fid(1), afid: NOFID, uname: b"", aname: b"", n_uname: OnlyIds(NOUID) };
        let attached = self.call(1, attach).await;
        assert!(attached.starts_with("Rattach"), "{attached}");
    }

    /// Opens the file as fid 2 for reading and writing.
    pub async fn open(&mut self) {
        let walk =
            Tmsg::Walk { fid: Fid(1), newfid: Fid(2), names: nine_proto::msg::Names::Slice(&[b"zero"]) };
        let walked = self.call(1, walk).await;
        assert!(walked.starts_with("Rwalk"), "{walked}");
        let opened = self.call(1, Tmsg::Lopen { fid: Fid(2), flags: 2 }).await;
        assert!(opened.starts_with("Rlopen"), "{opened}");
    }

    /// Closes the connection.
    pub fn hang_up(self) {}
}

pub fn read(count: u32) -> Tmsg<'static> {
    Tmsg::Read { fid: Fid(2), offset: 0, count }
}

/// A root with one file of endless zeros. Writes are discarded. A read at offset [`STUCK`] is answered only after it is
/// cancelled.
#[derive(Default)]
pub struct Zeros {
    stuck: Mutex<Vec<(ReqId, Later)>>,
    pub clunks: Mutex<usize>,
}

pub const STUCK: u64 = u64::MAX;
/// Offset of a read that even a cancel does not end. Only [`Zeros::answer_all`] does.
pub const UNCANCELLED: u64 = u64::MAX - 1;
const ROOT: Qid = Qid { ty: Qid::DIR, vers: 0, path: 1 };
const FILE: Qid = Qid { ty: 0, vers: 0, path: 2 };

impl Zeros {
    pub fn stuck(&self) -> usize {
        self.stuck.lock().unwrap().len()
    }

    pub fn answer_all(&self) {
        for (_, later) in std::mem::take(&mut *self.stuck.lock().unwrap()) {
            later.respond(Ok(Reply::Read(Payload::EMPTY)));
        }
    }
}

impl FileServer for Zeros {
    fn has_descriptors(&self) -> bool {
        true
    }

    fn serve(&self, req: Req) -> Answer {
        let reply = match req.op() {
            Op::Auth { .. } => {
                let qid = Qid { ty: Qid::AUTH, vers: 0, path: 3 };
                Reply::Auth { qid, node: Arc::new(qid) }
            }
            Op::Attach { .. } => Reply::Attach { qid: ROOT, node: Arc::new(ROOT) },
            Op::Walk { names } => {
                let mut qids = Walked::new();
                if !names.is_empty() {
                    qids.push(FILE);
                }
                Reply::Walk { qids, node: Some(Arc::new(FILE)) }
            }
            Op::Open { .. } => Reply::Open { qid: FILE, iounit: 0, node: Arc::new(FILE) },
            Op::Read { offset: STUCK | UNCANCELLED, .. } => {
                let id = req.id();
                let (answer, later) = req.later();
                self.stuck.lock().unwrap().push((id, later));
                return answer;
            }
            Op::Read { count, .. } => Reply::Read(Payload::from(vec![0; count as usize])),
            Op::Write { data, .. } => Reply::Wrote(data.len() as u32),
            Op::Getattr { .. } => {
                Reply::Attr(Box::new(Attr { valid: GetMask::BASIC, qid: FILE, ..Attr::default() }))
            }
            Op::Clunk => {
                *self.clunks.lock().unwrap() += 1;
                Reply::Done
            }
            _ => return req.now(Err(Errno::EOPNOTSUPP.into())),
        };
        req.now(Ok(reply))
    }

    fn cancel(&self, id: ReqId, _: Option<&Node>) {
        let mut stuck = self.stuck.lock().unwrap();
        let cancels = |later: &Later| matches!(later.op(), Op::Read { offset: STUCK, .. });
        if let Some(i) = stuck.iter().position(|(other, later)| *other == id && cancels(later)) {
            stuck.swap_remove(i).1.respond(Err(Errno::EINTR.into()));
        }
    }
}
