//! A world driven by hand: two ends of a pipe in memory, an executor that polls only woken tasks, and a server whose
//! answers the test controls.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use nine_io::client::{Client, File, Options};
use nine_net::{Peer, Proof, Transport};
use nine_proto::frame::{Split, split};
use nine_proto::msg::{Data, OnlyU, Qids, Rmsg, Tmsg};
use nine_proto::{Dialect, Fid, NOTAG, NOUID, Qid, Tag};

/// Bytes that a pipe holds before its writer must wait.
const PIPE: usize = 256 * 1024;

#[derive(Default)]
struct Pipe {
    bytes: VecDeque<u8>,
    closed: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
    writes: usize,
}

/// One end of a pipe.
pub struct End {
    incoming: Arc<Mutex<Pipe>>,
    outgoing: Arc<Mutex<Pipe>>,
    peer: Peer,
}

pub fn pair() -> (End, End) {
    let [a, b] = [(); 2].map(|()| Arc::new(Mutex::new(Pipe::default())));
    let peer = Peer { addr: "tcp!fs.lab!564".into(), proof: Proof::None };
    let one = End { incoming: a.clone(), outgoing: b.clone(), peer: peer.clone() };
    (one, End { incoming: b, outgoing: a, peer })
}

impl Transport for End {
    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        assert!(!buf.is_empty(), "a read has room");
        let mut pipe = self.incoming.lock().unwrap();
        if pipe.bytes.is_empty() {
            if pipe.closed {
                return Poll::Ready(Ok(0));
            }
            pipe.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let n = buf.len().min(pipe.bytes.len());
        for (to, from) in buf.iter_mut().zip(pipe.bytes.drain(..n)) {
            *to = from;
        }
        pipe.writer.take().into_iter().for_each(Waker::wake);
        Poll::Ready(Ok(n))
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let mut pipe = self.outgoing.lock().unwrap();
        if pipe.closed {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let room = PIPE - pipe.bytes.len();
        if room == 0 {
            pipe.writer = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let before = pipe.bytes.len();
        for buf in bufs {
            let left = PIPE - pipe.bytes.len();
            pipe.bytes.extend(&buf[..buf.len().min(left)]);
        }
        pipe.writes += 1;
        pipe.reader.take().into_iter().for_each(Waker::wake);
        Poll::Ready(Ok(pipe.bytes.len() - before))
    }

    fn poll_close(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        close(&self.outgoing);
        Poll::Ready(Ok(()))
    }

    fn peer(&self) -> &Peer {
        &self.peer
    }
}

impl Drop for End {
    fn drop(&mut self) {
        close(&self.outgoing);
        close(&self.incoming);
    }
}

fn close(pipe: &Mutex<Pipe>) {
    let mut pipe = pipe.lock().unwrap();
    pipe.closed = true;
    pipe.reader.take().into_iter().for_each(Waker::wake);
}

/// An executor that polls woken tasks, in order, until none is woken.
#[derive(Default)]
pub struct Exec {
    tasks: Vec<Option<Task>>,
}

type Task = (Pin<Box<dyn Future<Output = ()>>>, Arc<Flag>);

struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// A task and its result.
pub struct Join<T> {
    result: Rc<RefCell<Option<T>>>,
    task: usize,
}

impl<T> Join<T> {
    #[track_caller]
    pub fn take(&self) -> T {
        self.result.borrow_mut().take().expect("the task has ended")
    }

    pub fn is_done(&self) -> bool {
        self.result.borrow().is_some()
    }
}

impl Exec {
    pub fn spawn<T: 'static>(&mut self, future: impl Future<Output = T> + 'static) -> Join<T> {
        let result = Rc::new(RefCell::new(None));
        let to = result.clone();
        let task = Box::pin(async move {
            let value = future.await;
            *to.borrow_mut() = Some(value);
        });
        self.tasks.push(Some((task, Arc::new(Flag(AtomicBool::new(true))))));
        Join { result, task: self.tasks.len() - 1 }
    }

    /// Drops the task's future.
    pub fn cancel<T>(&mut self, join: &Join<T>) {
        self.tasks[join.task] = None;
    }

    /// Polls one task if it was woken.
    pub fn poll<T>(&mut self, join: &Join<T>) {
        self.poll_at(join.task);
    }

    pub fn run(&mut self) {
        while (0..self.tasks.len()).fold(false, |any, i| self.poll_at(i) | any) {}
    }

    fn poll_at(&mut self, i: usize) -> bool {
        let Some((task, flag)) = &mut self.tasks[i] else { return false };
        if !flag.0.swap(false, Ordering::SeqCst) {
            return false;
        }
        let waker = flag.clone().into();
        if task.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
            self.tasks[i] = None;
        }
        true
    }
}

/// The server's end, and its table of fids.
pub struct Server {
    pub end: Option<End>,
    pub dialect: Dialect,
    buf: Vec<u8>,
    /// Its fids, by its own bookkeeping; it panics if a client breaks the rules.
    pub fids: HashMap<Fid, Qid>,
}

/// A received T-message.
pub struct Got(pub Tag, pub Vec<u8>, Dialect);

impl Got {
    pub fn message(&self) -> Tmsg<'_> {
        Tmsg::decode(&self.1, self.2).unwrap().1
    }
}

impl Server {
    pub fn new(end: End, dialect: Dialect) -> Self {
        Self { end: Some(end), dialect, buf: Vec::new(), fids: HashMap::new() }
    }

    /// Whether the client has closed its side.
    pub fn is_closed(&self) -> bool {
        self.end.as_ref().is_none_or(|end| end.incoming.lock().unwrap().closed)
    }

    /// Returns all whole messages received.
    pub fn got(&mut self) -> Vec<Got> {
        let end = self.end.as_mut().expect("not cut");
        let mut chunk = [0; 65536];
        while let Poll::Ready(Ok(n)) = end.poll_read(&mut Context::from_waker(Waker::noop()), &mut chunk) {
            if n == 0 {
                break;
            }
            self.buf.extend_from_slice(&chunk[..n]);
        }
        let mut got = Vec::new();
        while let Ok(Split::Whole(n)) = split(&self.buf, u32::MAX) {
            let frame: Vec<u8> = self.buf.drain(..n).collect();
            got.push(Got(nine_proto::frame::tag_of(&frame), frame, self.dialect));
        }
        got
    }

    /// Returns the only message received.
    #[track_caller]
    pub fn one(&mut self) -> Got {
        let mut got = self.got();
        let labels: Vec<_> = got.iter().map(|g| g.message().label()).collect();
        assert_eq!(got.len(), 1, "{labels:?}");
        got.remove(0)
    }

    pub fn reply(&mut self, tag: Tag, reply: Rmsg<'_>) {
        let mut frame = Vec::new();
        reply.encode(tag, self.dialect, &mut frame);
        self.send(&frame);
    }

    pub fn send(&mut self, bytes: &[u8]) {
        let end = self.end.as_mut().expect("not cut");
        // Only the client must respect the pipe's limit; the server may always write.
        let mut pipe = end.outgoing.lock().unwrap();
        pipe.bytes.extend(bytes);
        pipe.reader.take().into_iter().for_each(Waker::wake);
    }

    pub fn error(&mut self, tag: Tag, errno: u32, text: &str) {
        if self.dialect.is_l() {
            self.reply(tag, Rmsg::Lerror { ecode: errno });
        } else {
            self.reply(tag, Rmsg::Error { ename: text.as_bytes(), errno: OnlyU(errno) });
        }
    }

    /// Answers like a small file system: every name exists, names that start with `d` are directories.
    pub fn answer(&mut self, got: &Got) {
        let qid = |ty, path| Qid { ty, vers: 0, path };
        match got.message() {
            Tmsg::Attach { fid, .. } => {
                self.make(fid, qid(Qid::DIR, 0));
                self.reply(got.0, Rmsg::Attach { qid: qid(Qid::DIR, 0) });
            }
            Tmsg::Walk { fid, newfid, names } => {
                let mut at = *self.fids.get(&fid).expect("a walk begins at a fid that is there");
                let mut qids = Vec::new();
                for name in names.iter() {
                    let ty = if name.first() == Some(&b'd') { Qid::DIR } else { 0 };
                    at = qid(ty, at.path + 1);
                    qids.push(at);
                }
                if newfid == fid {
                    self.fids.insert(fid, at);
                } else {
                    self.make(newfid, at);
                }
                self.reply(got.0, Rmsg::Walk { qids: Qids::Slice(&qids) });
            }
            Tmsg::Lopen { fid, .. } => self.reply(got.0, Rmsg::Lopen { qid: self.fids[&fid], iounit: 0 }),
            Tmsg::Open { fid, .. } => self.reply(got.0, Rmsg::Open { qid: self.fids[&fid], iounit: 0 }),
            Tmsg::Clunk { fid } => {
                self.fids.remove(&fid).expect("a clunk names a fid that is there");
                self.reply(got.0, Rmsg::Clunk {});
            }
            Tmsg::Remove { fid } => {
                self.fids.remove(&fid).expect("a remove names a fid that is there");
                self.reply(got.0, Rmsg::Remove {});
            }
            Tmsg::Getattr { fid, .. } => {
                let attr = nine_proto::Attr { qid: self.fids[&fid], ..Default::default() };
                self.reply(got.0, Rmsg::Getattr { attr });
            }
            Tmsg::Write { data, .. } => self.reply(got.0, Rmsg::Write { count: data.bytes().len() as u32 }),
            Tmsg::Flush { .. } => self.reply(got.0, Rmsg::Flush {}),
            other => panic!("nobody said what to answer to {}", other.label()),
        }
    }

    fn make(&mut self, fid: Fid, qid: Qid) {
        assert!(self.fids.insert(fid, qid).is_none(), "fid {fid} is in use");
    }

    pub fn cut(&mut self) {
        self.end = None;
    }
}

/// An executor, a server, and a client that has agreed on a version and attached.
pub struct World {
    pub exec: Exec,
    pub server: Server,
    pub client: Client,
    pub root: Rc<File>,
    pub driver: Join<io::Result<()>>,
}

pub fn world(dialect: Dialect) -> World {
    world_with(dialect, 65536, Options::default())
}

pub fn world_with(dialect: Dialect, msize: u32, options: Options) -> World {
    let (ours, theirs) = pair();
    let mut exec = Exec::default();
    let mut server = Server::new(theirs, dialect);
    let connecting = exec.spawn(Client::connect(ours, Options { dialects: vec![dialect], ..options }));
    exec.run();
    assert_eq!(server.one().0, NOTAG);
    server.reply(NOTAG, Rmsg::Version { msize, version: dialect.name().as_bytes() });
    exec.run();
    let (client, driver) = connecting.take().unwrap();
    let driver = exec.spawn(driver);
    let attaching = {
        let client = client.clone();
        exec.spawn(async move { client.attach("glenda", NOUID, "").await })
    };
    exec.run();
    let attach = server.one();
    server.answer(&attach);
    exec.run();
    World { exec, server, client, root: Rc::new(attaching.take().unwrap()), driver }
}

impl World {
    /// Starts an operation with the root, and runs until it waits for the server.
    pub fn start<T: 'static, F: Future<Output = T> + 'static>(
        &mut self,
        f: impl FnOnce(Rc<File>) -> F,
    ) -> Join<T> {
        let join = self.exec.spawn(f(self.root.clone()));
        self.exec.run();
        join
    }

    /// Lets the server answer until there are no more requests. `f` answers and returns true, or leaves the answer to
    /// [`Server::answer`]. Returns the number of round trips.
    pub fn serve(&mut self, mut f: impl FnMut(&mut Server, &Got) -> bool) -> usize {
        let mut waits = 0;
        loop {
            self.exec.run();
            let got = self.server.got();
            if got.is_empty() {
                return waits;
            }
            waits += 1;
            for got in got {
                if !f(&mut self.server, &got) {
                    self.server.answer(&got);
                }
            }
        }
    }

    /// A file called "file", open for reading and writing.
    pub fn file(&mut self) -> Rc<File> {
        let join = self.start(|root| async move { root.open("file", nine_proto::OpenFlags::RDWR).await });
        self.serve(|_, _| false);
        Rc::new(join.take().unwrap())
    }

    /// The number of the client's vectored writes.
    pub fn writes(&self) -> usize {
        self.server.end.as_ref().unwrap().incoming.lock().unwrap().writes
    }
}

/// Answers a Tread from `content`.
pub fn read_of(server: &mut Server, tag: Tag, content: &[u8], offset: u64, count: u32) {
    let from = content.len().min(offset as usize);
    let to = content.len().min(from + count as usize);
    server.reply(tag, Rmsg::Read { data: Data::Bytes(&content[from..to]) });
}
