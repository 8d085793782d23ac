//! A file server that records the use of nodes, and asserts that no node is used after its clunk. It answers at once or
//! later, and a test can make it fail or hold requests back.

use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::task::{Poll, Waker};
use std::time::Duration;

use nine_io::Payload;
use nine_io::server::{Answer, FileServer, Fill, Later, Node, Reply, Req, ReqId, Request};
use nine_net::Env;
use nine_proto::{Attr, Errno, GetMask, Op, OpenFlags, Qid, Result, Walked, mode};
use nine_sim::{Rng, World};

/// A recording file server with one directory. Files are created by [`Book::put`] and by creates.
pub struct Book(Mutex<State>);

struct State {
    files: BTreeMap<String, Content>,
    nodes: BTreeMap<u64, Used>,
    next: u64,
    plan: Plan,
    queue: VecDeque<Job>,
    waker: Option<Waker>,
    /// Bytes of unanswered reads and writes, now and at most.
    under_way: usize,
    most: usize,
    /// Bytes read.
    moved: u64,
    /// Nodes dropped without a clunk.
    dropped: usize,
    me: Weak<Book>,
}

type Content = Arc<Mutex<Vec<u8>>>;

/// An unanswered request.
enum Job {
    Req(Later),
    Fill(Fill),
}

/// How the server treats reads and writes.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// They are answered after a random time of at most this.
    pub late: Option<Duration>,
    /// They are answered when this is unset, or when they are cancelled.
    pub stuck: bool,
    /// Cancels are ignored.
    pub deaf: bool,
    /// Maximum number of bytes per request; 0: no limit.
    pub short: usize,
    /// Reads from this offset on fail.
    pub bad_from: Option<u64>,
    /// Maximum length of a file in bytes.
    pub room: Option<u64>,
    /// Writes are discarded, and there is always room.
    pub void: bool,
    /// Files are append-only.
    pub appends: bool,
}

#[derive(Default)]
struct Used {
    name: Option<String>,
    /// Number of unanswered reads and writes.
    uses: usize,
}

struct Fid {
    id: u64,
    content: Option<Content>,
    book: Weak<Book>,
}

impl Drop for Fid {
    fn drop(&mut self) {
        let Some(book) = self.book.upgrade() else { return };
        let mut state = book.state();
        if let Some(used) = state.nodes.remove(&self.id) {
            assert!(used.uses == 0 || std::thread::panicking());
            state.dropped += 1;
        }
    }
}

impl Book {
    /// Creates a server in this world.
    pub fn new(world: &World) -> Arc<Self> {
        let state = State {
            files: BTreeMap::new(),
            nodes: BTreeMap::new(),
            next: 1,
            plan: Plan::default(),
            queue: VecDeque::new(),
            waker: None,
            under_way: 0,
            most: 0,
            moved: 0,
            dropped: 0,
            me: Weak::new(),
        };
        let book = Arc::new(Self(Mutex::new(state)));
        book.state().me = Arc::downgrade(&book);
        let (weak, env, mut rng) = (Arc::downgrade(&book), world.env(), world.rng());
        world.env().spawn(Box::pin(async move {
            while let Some((job, delay)) = next(&weak, &mut rng).await {
                env.sleep_until(env.now() + delay).await;
                let Some(book) = weak.upgrade() else { return };
                match job {
                    Job::Req(later) => book.answer(later),
                    Job::Fill(fill) => book.take(fill),
                }
            }
        }));
        book.put("spare", b"");
        book
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    pub fn put(&self, name: &str, bytes: &[u8]) {
        self.state().files.insert(name.into(), Arc::new(Mutex::new(bytes.to_vec())));
    }

    /// Returns the content of a file.
    pub fn get(&self, name: &str) -> Vec<u8> {
        self.state().files[name].lock().unwrap().clone()
    }

    pub fn has(&self, name: &str) -> bool {
        self.state().files.contains_key(name)
    }

    /// Changes the content of a file, which clients may have open.
    pub fn change(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let content = self.state().files[name].clone();
        change(&mut content.lock().unwrap());
    }

    /// Sets the plan from now on.
    pub fn plan(&self, plan: Plan) {
        let waker = {
            let mut state = self.state();
            state.plan = plan;
            state.waker.take()
        };
        waker.into_iter().for_each(Waker::wake);
    }

    /// Returns the maximum of requested bytes at once since the last call.
    pub fn most(&self) -> usize {
        let mut state = self.state();
        let most = state.most;
        state.most = state.under_way;
        most
    }

    /// Returns the number of unanswered reads and writes.
    pub fn under_way(&self) -> usize {
        self.state().queue.len()
    }

    /// Returns the number of bytes read, of all files.
    pub fn moved(&self) -> u64 {
        self.state().moved
    }

    /// Asserts that nothing is in flight, and that every node is clunked except for `replaced` ones.
    pub fn assert_clean(&self, replaced: usize) {
        let state = self.state();
        assert_eq!(state.dropped, replaced);
        let left: Vec<_> = state.nodes.iter().map(|(id, used)| (id, &used.name, used.uses)).collect();
        assert!(left.is_empty() && state.queue.is_empty(), "left are {left:?}, {}", state.queue.len());
    }

    fn node(state: &mut State, name: Option<&str>) -> Node {
        let id = state.next;
        state.next += 1;
        let content = name.map(|name| state.files[name].clone());
        state.nodes.insert(id, Used { name: name.map(str::to_owned), ..Used::default() });
        Arc::new(Fid { id, content, book: state.me.clone() })
    }

    fn qid(state: &State, name: Option<&str>) -> Qid {
        let Some(name) = name else { return Qid { ty: Qid::DIR, vers: 0, path: 0 } };
        let path = 1 + state.files.keys().position(|other| other == name).unwrap_or(1 << 20) as u64;
        Qid { ty: if state.plan.appends { Qid::APPEND } else { 0 }, vers: 0, path }
    }

    fn run(&self, req: &Request) -> Result<Reply> {
        let mut state = self.state();
        let state = &mut *state;
        match req.op() {
            Op::Attach { .. } => {
                return Ok(Reply::Attach { qid: Self::qid(state, None), node: Self::node(state, None) });
            }
            Op::Auth { .. } => {
                let qid = Qid { ty: Qid::AUTH, vers: 0, path: 1 << 40 };
                return Ok(Reply::Auth { qid, node: Self::node(state, None) });
            }
            _ => {}
        }
        let fid = req.node::<Fid>()?;
        let name = state.nodes.get(&fid.id).expect("no request comes after the clunk").name.clone();
        let name = name.as_deref();
        let replaced = |state: &mut State| drop(state.nodes.remove(&fid.id));
        Ok(match req.op() {
            Op::Walk { names } => {
                let mut qids = Walked::new();
                let mut to = name.map(str::to_owned);
                for next in names.iter() {
                    let next = std::str::from_utf8(next).map_err(|_| Errno::ENOENT)?;
                    if !state.files.contains_key(next) || to.is_some() {
                        return match qids.is_empty() {
                            true => Err(Errno::ENOENT.into()),
                            false => Ok(Reply::Walk { qids, node: None }),
                        };
                    }
                    qids.push(Self::qid(state, Some(next)));
                    to = Some(next.to_owned());
                }
                Reply::Walk { qids, node: Some(Self::node(state, to.as_deref())) }
            }
            Op::Open { flags } => {
                if flags.has(OpenFlags::TRUNC)
                    && let Some(content) = &fid.content
                {
                    content.lock().unwrap().clear();
                }
                if name == Some("forbidden") {
                    return Err(Errno::EACCES.into());
                }
                let (qid, node) = (Self::qid(state, name), Self::node(state, name));
                replaced(state);
                Reply::Open { qid, iounit: 0, node }
            }
            Op::Create { name: new, .. } => {
                let new = std::str::from_utf8(new).map_err(|_| Errno::EINVAL)?;
                if state.files.contains_key(new) || name.is_some() {
                    return Err(Errno::EEXIST.into());
                }
                state.files.insert(new.into(), Content::default());
                let (qid, node) = (Self::qid(state, Some(new)), Self::node(state, Some(new)));
                replaced(state);
                Reply::Open { qid, iounit: 0, node }
            }
            Op::Getattr { .. } => {
                let size = fid.content.as_ref().map_or(0, |content| content.lock().unwrap().len()) as u64;
                let mode = if name.is_some() { mode::S_IFREG | 0o644 } else { mode::S_IFDIR | 0o755 };
                let qid = Self::qid(state, name);
                Reply::Attr(Box::new(Attr { valid: GetMask::BASIC, qid, size, mode, ..Attr::default() }))
            }
            Op::XattrWalk { .. } => Reply::Xattr { size: 0, node: Self::node(state, None) },
            Op::XattrCreate { .. } => {
                let node = Self::node(state, None);
                replaced(state);
                Reply::Moved(node)
            }
            Op::Fsync { .. } | Op::Setattr { .. } => Reply::Done,
            op @ (Op::Clunk | Op::Remove) => {
                let used = state.nodes.remove(&fid.id).expect("looked at just now");
                assert!(used.uses == 0, "{:?} is clunked while {} use it", name, used.uses);
                if matches!(op, Op::Remove)
                    && let Some(name) = name
                {
                    state.files.remove(name);
                }
                Reply::Done
            }
            _ => return Err(Errno::EOPNOTSUPP.into()),
        })
    }

    /// Executes a read or write.
    fn move_bytes(&self, req: &Request) -> Result<Reply> {
        let plan = self.state().plan.clone();
        let fid = req.node::<Fid>()?;
        let content = fid.content.as_ref().ok_or(Errno::EBADF)?;
        let mut content = content.lock().unwrap();
        let most = if plan.short == 0 { usize::MAX } else { plan.short };
        match req.op() {
            Op::Read { offset, count } => {
                if plan.bad_from.is_some_and(|bad| offset >= bad) {
                    return Err(Errno::EIO.into());
                }
                let end = content.len().min(plan.bad_from.map_or(usize::MAX, |bad| bad as usize));
                let from = usize::try_from(offset).unwrap_or(usize::MAX).min(end);
                let to = from.saturating_add(most.min(count as usize)).min(end);
                self.state().moved += (to - from) as u64;
                Ok(Reply::Read(Payload::from(content[from..to].to_vec())))
            }
            Op::Write { offset, data } => {
                let at = if plan.appends { content.len() as u64 } else { offset };
                let n = store(&mut content, &plan, at, &data[..data.len().min(most)])?;
                Ok(Reply::Wrote(n as u32))
            }
            _ => unreachable!("only reads and writes come here"),
        }
    }

    fn begin(&self, node: &Fid, size: usize) {
        let mut state = self.state();
        let used = state.nodes.get_mut(&node.id).expect("no read or write begins after the clunk");
        used.uses += 1;
        state.under_way += size;
        state.most = state.most.max(state.under_way);
    }

    fn end(&self, node: &Fid, size: usize) {
        let mut state = self.state();
        let used = state.nodes.get_mut(&node.id).expect("no read or write ends after the clunk");
        used.uses -= 1;
        state.under_way -= size;
    }

    fn answer(&self, later: Later) {
        let result = self.move_bytes(&later);
        self.end(&later.node::<Fid>().expect("one of ours"), size(&later));
        later.respond(result);
    }

    /// Takes the contents of a pipe, as a disk does, until an error or a limit.
    fn take(&self, fill: Fill) {
        let plan = self.state().plan.clone();
        let node = fill.node.clone().downcast::<Fid>().expect("one of ours");
        let mut bytes = vec![0; fill.len];
        let (mut come, mut stored, mut result) = (0, 0, Ok(()));
        while come < fill.len {
            come += rustix::io::read(fill.pipe(), &mut bytes[come..]).expect("so many are in the pipe");
        }
        if let Some(content) = &node.content {
            let mut content = content.lock().unwrap();
            while stored < come && result.is_ok() {
                let at = fill.offset + stored as u64;
                result = store(&mut content, &plan, at, &bytes[stored..]).map(|n| stored += n);
            }
        }
        self.end(&node, fill.len);
        fill.done(stored, result);
    }

    fn push(&self, job: Job) {
        let mut state = self.state();
        state.queue.push_back(job);
        let waker = state.waker.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }
}

/// Returns a request to answer, and the delay.
async fn next(book: &Weak<Book>, rng: &mut Rng) -> Option<(Job, Duration)> {
    poll_fn(|cx| {
        let Some(book) = book.upgrade() else { return Poll::Ready(None) };
        let mut state = book.state();
        state.waker = Some(cx.waker().clone());
        if state.queue.is_empty() || state.plan.stuck {
            return Poll::Pending;
        }
        let at = rng.below(state.queue.len());
        let most = state.plan.late.unwrap_or_default().as_micros() as usize;
        let job = state.queue.remove(at).expect("one of them");
        Poll::Ready(Some((job, Duration::from_micros(rng.below(most + 1) as u64))))
    })
    .await
}

/// Writes bytes into a file, up to its maximum length.
fn store(content: &mut Vec<u8>, plan: &Plan, at: u64, data: &[u8]) -> Result<usize> {
    if plan.void {
        return Ok(data.len());
    }
    let room = plan.room.unwrap_or(1 << 30).saturating_sub(at);
    let n = data.len().min(usize::try_from(room).unwrap_or(usize::MAX));
    if n == 0 && !data.is_empty() {
        return Err(Errno::ENOSPC.into());
    }
    let (from, to) = (at as usize, at as usize + n);
    if content.len() < to {
        content.resize(to, 0);
    }
    content[from..to].copy_from_slice(&data[..n]);
    Ok(n)
}

fn size(req: &Request) -> usize {
    match req.op() {
        Op::Read { count, .. } => count as usize,
        Op::Write { data, .. } => data.len(),
        _ => 0,
    }
}

impl FileServer for Book {
    fn serve(&self, req: Req) -> Answer {
        if !matches!(req.op(), Op::Read { .. } | Op::Write { .. }) {
            let result = self.run(&req);
            return req.now(result);
        }
        let node = req.node::<Fid>().expect("one of ours");
        self.begin(&node, size(&req));
        let plan = self.state().plan.clone();
        if plan.late.is_none() && !plan.stuck {
            let result = self.move_bytes(&req);
            self.end(&node, size(&req));
            return req.now(result);
        }
        let (answer, later) = req.later();
        self.push(Job::Req(later));
        answer
    }

    fn can_fill(&self, node: &Node) -> bool {
        let plan = self.state().plan.clone();
        node.is::<Fid>() && plan.short == 0 && !plan.appends
    }

    fn fill(&self, fill: Fill) {
        let node = fill.node.clone().downcast::<Fid>().expect("one of ours");
        self.begin(&node, fill.len);
        let plan = self.state().plan.clone();
        match plan.late.is_none() && !plan.stuck {
            true => self.take(fill),
            false => self.push(Job::Fill(fill)),
        }
    }

    fn cancel(&self, id: ReqId, _: Option<&Node>) {
        let mut state = self.state();
        if state.plan.deaf {
            return;
        }
        let is = |job: &Job| matches!(job, Job::Req(later) if later.id() == id);
        let Some(at) = state.queue.iter().position(is) else { return };
        let Some(Job::Req(later)) = state.queue.remove(at) else { return };
        drop(state);
        self.end(&later.node::<Fid>().expect("one of ours"), size(&later));
        later.respond(Err(Errno::EINTR.into()));
    }
}
