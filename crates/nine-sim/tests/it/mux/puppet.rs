//! A server with scripted answers: they are correct unless the test decides otherwise for a message.
//!
//! It records the same state as a correct server: the fids of the mux, and the requests that it must flush.

use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use nine_mux::{Boxed, Dial, Server, Spawn};
use nine_net::{Env, Transport};
use nine_proto::frame::{self, MSIZE_MAX, Split};
use nine_proto::msg::{Data, Qids, Rmsg, Tmsg};
use nine_proto::{Attr, Dialect, Fid, GetMask, Qid, Tag};
use nine_sim::{End, Links, Shape, SimEnv};

use crate::mux::world::Muxed;

/// A scripted server. Clones share it.
#[derive(Clone)]
pub struct Puppet(Arc<Inner>);

struct Inner {
    links: Arc<Links>,
    shape: Shape,
    books: Mutex<Books>,
}

/// Its recorded state, and its next actions.
pub struct Books {
    hook: Hook,
    /// Of the latest connection.
    pub fids: BTreeMap<u32, Qid>,
    /// Requests that are held back.
    pub held: Vec<Ask>,
    /// Every message, printed.
    pub log: Vec<String>,
    pub dials: usize,
    pub msize: u32,
    out: VecDeque<u8>,
    hang_up: bool,
    waker: Option<Waker>,
}

type Hook = Box<dyn FnMut(&Tmsg<'_>, Tag) -> Act + Send>;

/// The action for a message.
pub enum Act {
    /// Sends the correct answer.
    Honest,
    /// Sends no answer.
    Silent,
    /// Sends no answer until [`Puppet::answer`].
    Hold,
    /// For a Tflush: answers the request that is held back, and then the flush.
    Late,
    /// Sends these bytes.
    Say(Vec<u8>),
    /// Sends the correct answer, and then these bytes.
    Also(Vec<u8>),
    /// Sends these bytes, and then closes the connection.
    LastWords(Vec<u8>),
}

/// A request.
pub struct Ask {
    pub tag: Tag,
    frame: Vec<u8>,
}

impl Puppet {
    /// Creates a server that asks `hook` for the action of each message.
    pub fn new(m: &Muxed, hook: impl FnMut(&Tmsg<'_>, Tag) -> Act + Send + 'static) -> Self {
        let books = Books {
            hook: Box::new(hook),
            fids: BTreeMap::new(),
            held: Vec::new(),
            log: Vec::new(),
            dials: 0,
            msize: 64 * 1024,
            out: VecDeque::new(),
            hang_up: false,
            waker: None,
        };
        let shape = Shape::default();
        Self(Arc::new(Inner { links: m.links.clone(), shape, books: Mutex::new(books) }))
    }

    /// Returns a mountable server.
    pub fn server(&self, m: &Muxed, name: &str) -> Server {
        Server { dial: Arc::new(self.clone()), ..m.as_server(name) }
    }

    pub fn books(&self) -> MutexGuard<'_, Books> {
        self.0.books.lock().expect("no panic while it is held")
    }

    /// Sets the hook from now on.
    pub fn does(&self, hook: impl FnMut(&Tmsg<'_>, Tag) -> Act + Send + 'static) {
        self.books().hook = Box::new(hook);
    }

    /// Answers, correctly, the requests that are held back.
    pub fn answer(&self) {
        let mut books = self.books();
        books.answer();
        books.wake();
    }

    pub fn say(&self, bytes: &[u8]) {
        let mut books = self.books();
        books.out.extend(bytes);
        books.wake();
    }

    pub fn hang_up(&self) {
        let mut books = self.books();
        books.hang_up = true;
        books.wake();
    }

    /// Returns the number of messages of this kind so far.
    pub fn count(&self, label: &str) -> usize {
        let is = |line: &&String| line.split(' ').next() == Some(label);
        self.books().log.iter().filter(is).count()
    }

    /// Waits until the condition holds.
    pub async fn until(&self, env: &SimEnv, is: impl Fn(&Books) -> bool) {
        let end = env.now() + Duration::from_secs(600);
        while !is(&self.books()) {
            assert!(env.now() < end, "it does not become so; seen were {:#?}", self.books().log);
            env.sleep_until(env.now() + Duration::from_millis(1)).await;
        }
    }
}

impl Dial for Puppet {
    fn dial(&self, spawn: &dyn Spawn) -> Boxed<io::Result<Box<dyn Transport>>> {
        let (near, mut far) = self.0.links.link(self.0.shape.clone());
        {
            let mut books = self.books();
            books.dials += 1;
            books.fids.clear();
            books.held.clear();
            books.out.clear();
            books.hang_up = false;
        }
        let (puppet, mut came) = (self.clone(), Vec::new());
        spawn.spawn(Box::pin(poll_fn(move |cx| puppet.poll(cx, &mut far, &mut came))));
        Box::pin(std::future::ready(Ok(Box::new(near) as Box<dyn Transport>)))
    }
}

impl Puppet {
    /// Runs until either side hangs up.
    fn poll(&self, cx: &mut Context<'_>, end: &mut End, came: &mut Vec<u8>) -> Poll<()> {
        let mut buf = vec![0; 64 * 1024];
        loop {
            if self.books().write(cx, end).is_ready() {
                return Poll::Ready(());
            }
            match end.poll_read(cx, &mut buf) {
                Poll::Ready(Ok(n)) if n > 0 => came.extend_from_slice(&buf[..n]),
                Poll::Ready(_) => {
                    self.books().fids.clear();
                    return Poll::Ready(());
                }
                Poll::Pending => return Poll::Pending,
            }
            while let Split::Whole(n) = frame::split(came, MSIZE_MAX).expect("the mux sends what is 9P") {
                let frame: Vec<u8> = came.drain(..n).collect();
                self.books().receive(frame);
            }
        }
    }
}

impl Books {
    fn wake(&mut self) {
        self.waker.take().into_iter().for_each(Waker::wake);
    }

    fn answer(&mut self) {
        for Ask { tag, frame } in std::mem::take(&mut self.held) {
            let message = Tmsg::decode(&frame, Dialect::L).expect("it was decoded before").1;
            self.honest(&message, tag);
        }
    }

    /// Sends pending bytes. `Ready`: the connection has ended.
    fn write(&mut self, cx: &mut Context<'_>, end: &mut End) -> Poll<()> {
        self.waker = Some(cx.waker().clone());
        while !self.out.is_empty() {
            match end.poll_write(cx, &[IoSlice::new(self.out.make_contiguous())]) {
                Poll::Ready(Ok(n)) => drop(self.out.drain(..n)),
                Poll::Ready(Err(_)) => return Poll::Ready(()),
                Poll::Pending => return Poll::Pending,
            }
        }
        if self.hang_up {
            return end.poll_close(cx).map(|_| ());
        }
        Poll::Pending
    }

    fn receive(&mut self, frame: Vec<u8>) {
        let (tag, message) = Tmsg::decode(&frame, Dialect::L).expect("the mux sends what is 9P");
        self.log.push(message.with_tag(tag).to_string());
        match (self.hook)(&message, tag) {
            Act::Honest => self.honest(&message, tag),
            Act::Silent => {}
            Act::Hold => self.held.push(Ask { tag, frame }),
            Act::Late => {
                self.answer();
                self.honest(&message, tag);
            }
            Act::Say(bytes) => self.out.extend(bytes),
            Act::Also(bytes) => {
                self.honest(&message, tag);
                self.out.extend(bytes);
            }
            Act::LastWords(bytes) => {
                self.out.extend(bytes);
                self.hang_up = true;
            }
        }
    }

    fn honest(&mut self, message: &Tmsg<'_>, tag: Tag) {
        let answer = match *message {
            Tmsg::Version { msize, .. } => {
                self.msize = self.msize.min(msize);
                Rmsg::Version { msize: self.msize, version: b"9P2000.L" }
            }
            Tmsg::Attach { fid, .. } => {
                self.fids.insert(fid.0, ROOT);
                Rmsg::Attach { qid: ROOT }
            }
            Tmsg::Flush { oldtag } => {
                self.held.retain(|ask| ask.tag != oldtag);
                Rmsg::Flush {}
            }
            Tmsg::Walk { fid, newfid, names } => return self.walk(fid, newfid, names.iter().collect(), tag),
            Tmsg::Lopen { fid, .. } => Rmsg::Lopen { qid: self.qid(fid), iounit: 0 },
            Tmsg::Lcreate { fid, name, .. } => {
                self.fids.insert(fid.0, qid(name));
                Rmsg::Lcreate { qid: qid(name), iounit: 0 }
            }
            Tmsg::Mkdir { name, .. } => Rmsg::Mkdir { qid: qid(name) },
            Tmsg::Getattr { fid, .. } => {
                let attr = Attr { valid: GetMask::BASIC, qid: self.qid(fid), nlink: 1, ..Attr::default() };
                Rmsg::Getattr { attr }
            }
            Tmsg::Read { offset, count, .. } => {
                let text = if offset == 0 { TEXT } else { b"" };
                Rmsg::Read { data: Data::Bytes(&text[..text.len().min(count as usize)]) }
            }
            Tmsg::Write { ref data, .. } => {
                let Data::Bytes(bytes) = data else { unreachable!("decoded data is there") };
                Rmsg::Write { count: bytes.len() as u32 }
            }
            Tmsg::Readdir { offset, .. } => {
                let data = if offset == 0 { entries(&[b"f1", b"f2"]) } else { Vec::new() };
                self.out.extend(reply(tag, &Rmsg::Readdir { data: Data::Bytes(&data) }));
                return;
            }
            Tmsg::Clunk { fid } => {
                assert!(self.fids.remove(&fid.0).is_some(), "fid {fid} was never made: {:#?}", self.log);
                Rmsg::Clunk {}
            }
            Tmsg::Remove { fid } => {
                self.fids.remove(&fid.0);
                Rmsg::Remove {}
            }
            _ => Rmsg::Lerror { ecode: 95 },
        };
        self.out.extend(reply(tag, &answer));
    }

    fn walk(&mut self, fid: Fid, newfid: Fid, names: Vec<&[u8]>, tag: Tag) {
        assert!(self.fids.contains_key(&fid.0), "fid {fid} was never made: {:#?}", self.log);
        assert!(
            newfid == fid || !self.fids.contains_key(&newfid.0),
            "fid {newfid} is in use: {:#?}",
            self.log
        );
        let there = |name: &&&[u8]| !name.starts_with(b"#") && !name.starts_with(b"none");
        let qids: Vec<Qid> = names.iter().take_while(there).map(|name| qid(name)).collect();
        if qids.is_empty() && !names.is_empty() {
            return self.out.extend(reply(tag, &Rmsg::Lerror { ecode: 2 }));
        }
        if qids.len() == names.len() {
            let made = qids.last().copied().unwrap_or(self.qid(fid));
            self.fids.insert(newfid.0, made);
        }
        self.out.extend(reply(tag, &Rmsg::Walk { qids: Qids::Slice(&qids) }));
    }

    fn qid(&self, fid: Fid) -> Qid {
        *self.fids.get(&fid.0).unwrap_or_else(|| panic!("fid {fid} was never made: {:#?}", self.log))
    }
}

/// Encodes an answer.
pub fn reply(tag: Tag, message: &Rmsg<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    message.encode(tag, Dialect::L, &mut bytes);
    bytes
}

/// Returns directory data of .L.
pub fn entries(names: &[&[u8]]) -> Vec<u8> {
    names.iter().enumerate().flat_map(|(i, name)| entry(name, i as u64 + 1)).collect()
}

pub fn entry(name: &[u8], cookie: u64) -> Vec<u8> {
    let Qid { ty, vers, path } = qid(name);
    let mut bytes = vec![ty];
    bytes.extend(vers.to_le_bytes());
    bytes.extend(path.to_le_bytes());
    bytes.extend(cookie.to_le_bytes());
    bytes.push(if ty == Qid::DIR { 4 } else { 8 });
    bytes.extend((name.len() as u16).to_le_bytes());
    bytes.extend(name);
    bytes
}

/// Names that begin with 'd', and "..", are directories. "q7" has 7 as the upper 16 bits of its path.
pub fn qid(name: &[u8]) -> Qid {
    if let Some(upper) =
        name.strip_prefix(b"q").and_then(|n| std::str::from_utf8(n).ok()?.parse::<u16>().ok())
    {
        return Qid { ty: 0, vers: 0, path: u64::from(upper) << 48 | 5 };
    }
    let ty = if name.starts_with(b"d") || name == b".." { Qid::DIR } else { 0 };
    let path =
        name.iter().fold(7, |path: u64, &b| path.wrapping_mul(131).wrapping_add(b.into()) & 0xffff_ffff);
    Qid { ty, vers: 0, path }
}

/// The first bytes of every file.
pub const TEXT: &[u8] = b"hello";
const ROOT: Qid = Qid { ty: Qid::DIR, vers: 0, path: 1 };
