//! Shared-memory channels as files (`docs/shm.md`).
//!
//! In: requests, and the service for guests that are clients. Out: answers; sockets from which guests get their
//! memory; connections to guests that are servers, for mounts, and their names in `/srv`; and a [`Driver`], on whose
//! core all of that runs.
//!
//! ```text
//! clone        opening it creates a channel; the open file is then N/ctl
//! N/ctl        reads as the number N; accepts control messages
//! N/data       the guest's bytes, of a channel of bytes
//! N/status     its configuration and state
//! ```
//!
//! Always holds: the thread that removes a request from a queue, under the channel's lock, answers it while nothing
//! is locked. A guest's memory was never another guest's. A channel with all files closed and its guest gone leaves
//! nothing behind.
//!
//! Lock order: a channel, then the table or the posts; never two channels.

mod chan;
mod end;
mod host;

use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::task::{Poll, Waker};
use std::time::Duration;

use nine_io::server::{Answer, FileServer, Node, Req, ReqId, Service, Who};
use nine_io::synth::{self, Ask, Dir, File, Opening, Tree};
use nine_net::lock::{Mutex, lock};
use nine_net::shm::Kind;
use nine_net::{Env, Transport};
use nine_proto::{Errno, Error, Result};

use crate::srv::{Posted, Posts};
use chan::{ChannelCtlFile, ChannelDataFile, ShmChannel};

/// The maximum number of channels. A further one is refused with ENFILE.
pub const CHANNELS_MAX: usize = 256;
/// The total memory of all announced channels in bytes. Beyond it, an announcement fails with ENOMEM.
pub const MEMORY_MAX: usize = 1 << 30;
/// The prefix of a channel's name where it distinguishes guests from other servers, as in a post.
pub const GUEST: &str = "/shm/";
/// The maximum length of a control message in bytes. A longer one is refused with EINVAL.
const TEXT_MAX: usize = 1024;

/// The file server of channels.
///
/// Concurrency: any number of requests at a time. A waiting request delays no other.
pub struct Channels {
    tree: Tree,
    shared: Arc<ShmShared>,
}

/// State shared by all channels of a server.
struct ShmShared {
    /// Returns the service for guests that are clients, if there is one.
    serves: Box<ServiceSource>,
    /// The server of posts, for `post`.
    posts: Arc<Posts>,
    table: Mutex<ChannelTable>,
    queue: Mutex<AnnounceQueue>,
}

type ServiceSource = dyn Fn() -> Option<Service> + Send + Sync;

#[derive(Default)]
struct ChannelTable {
    /// The number of the next channel.
    next: u64,
    /// Bytes reserved for guests.
    memory: usize,
    chans: BTreeMap<u64, (Weak<ShmChannel>, synth::Node)>,
    names: BTreeMap<Box<str>, Weak<ShmChannel>>,
}

/// Channels to be announced, each at most once.
#[derive(Default)]
struct AnnounceQueue {
    due: VecDeque<PendingAnnounce>,
    driver: Option<Waker>,
    ended: bool,
}

struct PendingAnnounce {
    chan: Arc<ShmChannel>,
    at: PathBuf,
    ask: Ask,
}

impl Channels {
    /// Creates an empty server. `wall`, time since 1970, is the time of its files. A guest that is a client gets the
    /// service that `serves` returns when it joins. Guests that are servers are posted in `posts`. Without its driver
    /// nothing is announced.
    pub fn new(
        wall: Duration,
        posts: Arc<Posts>,
        serves: impl Fn() -> Option<Service> + Send + Sync + 'static,
    ) -> (Self, Driver) {
        let (table, queue) = (Mutex::default(), Mutex::default());
        let shared = Arc::new(ShmShared { serves: Box::new(serves), posts, table, queue });
        let (clones, lists, finds) = (shared.clone(), shared.clone(), shared.clone());
        let clone = File::opened_later(move |opening| clones.clone_chan(opening), |_| false);
        let root = Dir::new()
            .file("clone", clone.mode(0o600).consuming())
            .numbered(move |from, most, _| {
                let table = lock(&lists.table);
                let all = table.chans.range(from..).take(most);
                all.map(|(number, (_, dir))| (*number, dir.clone())).collect()
            })
            .found(move |name, _| {
                let number = name.parse().ok().filter(|number: &u64| number.to_string() == name)?;
                Some(lock(&finds.table).chans.get(&number)?.1.clone())
            });
        let driver = Driver(shared.clone());
        (Self { tree: Tree::new(root, wall).audited("shm"), shared }, driver)
    }

    /// Sets a function that updates the client's identity from the aname, as for [`Tree::set_told`].
    pub fn told_by(mut self, told: impl Fn(&mut Who, &[u8]) + Send + Sync + 'static) -> Self {
        self.tree.set_told(told);
        self
    }

    /// Takes the connection to the guest of a `kind server` channel, for one client. An error of kind `NotConnected`
    /// if no guest has joined, or another client has it.
    pub fn dial(&self, name: &str) -> io::Result<Box<dyn Transport>> {
        self.shared.take(name, Kind::HostAsks).map_err(|why| io::Error::new(io::ErrorKind::NotConnected, why))
    }

    /// Returns the number of channels.
    pub fn count(&self) -> usize {
        lock(&self.shared.table).chans.len()
    }
}

impl Drop for Channels {
    fn drop(&mut self) {
        let mut queue = lock(&self.shared.queue);
        queue.ended = true;
        let (due, driver) = (std::mem::take(&mut queue.due), queue.driver.take());
        drop(queue);
        drop(due);
        driver.into_iter().for_each(Waker::wake);
    }
}

impl FileServer for Channels {
    fn serve(&self, req: Req) -> Answer {
        self.tree.serve(req)
    }

    fn cancel(&self, id: ReqId, node: Option<&Node>) {
        self.tree.cancel(id, node);
    }
}

/// Announces channels and serves their guests, on the core where it runs. It ends with the server; connected guests
/// stay.
#[must_use]
pub struct Driver(Arc<ShmShared>);

impl Driver {
    /// Runs until the server is dropped.
    pub async fn run(self, env: impl Env + Clone) {
        let next = || {
            poll_fn(|cx| {
                let mut queue = lock(&self.0.queue);
                match queue.due.pop_front() {
                    Some(announce) => Poll::Ready(Some(announce)),
                    None if queue.ended => Poll::Ready(None),
                    None => {
                        queue.driver = Some(cx.waker().clone());
                        Poll::Pending
                    }
                }
            })
        };
        while let Some(PendingAnnounce { chan, at, ask }) = next().await {
            env.spawn(Box::pin(host::announce(env.clone(), chan, at, ask)));
        }
    }
}

impl ShmShared {
    fn clone_chan(self: &Arc<Self>, opening: Opening) {
        if !opening.flags.writes() {
            return opening.fail(Error::new(Errno::EACCES, "clone is opened for reading and writing"));
        }
        let mut table = lock(&self.table);
        if table.chans.len() >= CHANNELS_MAX {
            drop(table);
            let text = format!("there are {CHANNELS_MAX} channels, and no more may be");
            return opening.fail(Error::new(Errno::ENFILE, text));
        }
        let number = table.next;
        table.next += 1;
        let chan = ShmChannel::new(self, number);
        table.chans.insert(number, (Arc::downgrade(&chan), directory(&chan).into()));
        drop(table);
        // The open cannot have been flushed: it is being served now.
        let _ = opening.becomes(&[&number.to_string(), "ctl"], Arc::new(ChannelCtlFile::new(chan)));
    }

    /// Removes a dropped channel from the tables, and releases its memory.
    fn forget(&self, number: u64, name: &str, memory: usize) {
        let mut table = lock(&self.table);
        table.memory -= memory;
        let is_ours = table.names.get(name).is_some_and(|chan| chan.strong_count() == 0);
        let gone = (is_ours.then(|| table.names.remove(name)), table.chans.remove(&number));
        drop(table);
        drop(gone);
    }

    /// Gives a channel this name in place of its former one.
    fn name(&self, chan: &Arc<ShmChannel>, before: &str, name: &str) -> Result<()> {
        let mut table = lock(&self.table);
        match table.names.get(name) {
            Some(other) if other.as_ptr() == Arc::as_ptr(chan) => {}
            Some(other) if other.strong_count() > 0 => {
                return Err(Error::new(Errno::EEXIST, format!("another channel is called {name}")));
            }
            _ => {
                table.names.remove(before);
                table.names.insert(name.into(), Arc::downgrade(chan));
            }
        }
        Ok(())
    }

    /// Reserves memory for guests; ENOMEM beyond the limit.
    fn reserve(&self, bytes: usize) -> Result<()> {
        let mut table = lock(&self.table);
        if table.memory + bytes > MEMORY_MAX {
            let text = format!(
                "channels have {} of {} MiB: let one go, or make this one smaller (size PAGES)",
                table.memory >> 20,
                MEMORY_MAX >> 20
            );
            return Err(Error::new(Errno::ENOMEM, text));
        }
        table.memory += bytes;
        Ok(())
    }

    fn give_back(&self, bytes: usize) {
        lock(&self.table).memory -= bytes;
    }

    fn announce(&self, announce: PendingAnnounce) {
        let mut queue = lock(&self.queue);
        if queue.ended {
            drop(queue);
            return announce.ask.fail(Errno::EIO.into());
        }
        queue.due.push_back(announce);
        let driver = queue.driver.take();
        drop(queue);
        driver.into_iter().for_each(Waker::wake);
    }

    /// Posts the channel of this name.
    fn post(&self, post: &str, name: &str) -> Result<Posted> {
        self.posts.post(post, &format!("{GUEST}{name}")).map_err(|error| match error.errno {
            Errno::EEXIST => Error::new(Errno::EEXIST, format!("something is posted as {post} already")),
            _ => error,
        })
    }

    /// Returns the name of the channel posted under this name. The error is the reason why there is none.
    fn posted(&self, post: &str) -> std::result::Result<String, String> {
        let text = self.posts.get(post).ok_or_else(|| format!("nothing is posted as {post}"))?;
        let name = text.strip_prefix(GUEST);
        name.map(Into::into).ok_or_else(|| format!("what is posted as {post} is no channel of this server"))
    }

    /// Takes the connection to the guest of the channel of this name. The error is the reason why there is none.
    fn take(&self, name: &str, kind: Kind) -> std::result::Result<Box<dyn Transport>, String> {
        let chan = lock(&self.table).names.get(name).and_then(Weak::upgrade);
        chan.ok_or_else(|| format!("no channel is called {name}"))?.take(kind)
    }
}

/// Returns the files of a channel. They hold no reference to it.
fn directory(chan: &Arc<ShmChannel>) -> Dir {
    let [ctl, data, status] = [(); 3].map(|()| Arc::downgrade(chan));
    let opened = |chan: &Weak<ShmChannel>| {
        let chan = chan.upgrade().ok_or(Errno::ENOENT)?;
        chan.open().map(|()| chan)
    };
    let ctl = File::opened(move |_, _| Ok(Box::new(ChannelCtlFile::new(opened(&ctl)?))));
    let data = File::opened(move |_, _| Ok(Box::new(ChannelDataFile::new(opened(&data)?))));
    let status = File::text(move |_| status.upgrade().map(|chan| chan.status()).unwrap_or_default());
    let (ctl, data) = (ctl.mode(0o600).consuming(), data.mode(0o600).consuming());
    Dir::new().file("ctl", ctl).file("data", data).file("status", status)
}
