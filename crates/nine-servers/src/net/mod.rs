//! The network as files: `/net` of Plan 9 (ip(3), ndb(8)), on the sockets of this machine (`docs/net.md`).
//!
//! In: requests, the networks to serve, a policy. Out: answers, at once or when a socket is ready; and a [`Driver`].
//!
//! ```text
//! tcp/clone        opening it creates a conversation; the open file is then its ctl
//! tcp/stats        the number of conversations
//! tcp/N/ctl        reads as the number N; accepts connect, announce, hangup, push, pop ...
//! tcp/N/data       its bytes or messages
//! tcp/N/err        the error that ended it
//! tcp/N/listen     opening it waits for a call; the open file is then the ctl of the call
//! tcp/N/local      ADDRESS!PORT of this end
//! tcp/N/remote     ADDRESS!PORT of the other end
//! tcp/N/status     Closed, Established ..., waiting requests, modules
//! udp, il, unix    the same
//! cs, dns          write a query, read its answers
//! ```
//! A conversation belongs to the user that opened it, on any connection of that user, and to the owner of the server.
//! It lives as long as one of its ctl, data and err is open. Numbers are not reused, so no client can open another
//! conversation by an old number.

mod aside;
mod carrier;
mod conv;
mod datagrams;
mod driver;
mod policy;
mod query;
mod share;
mod stack;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use nine_io::Direct;
use nine_io::server::{Answer, FileServer, Node, Req, ReqId, Who};
use nine_io::synth::{self, Dir, File, Opening, Tree, Visitor};
use nine_net::Clock;
use nine_net::lock::{Mutex, lock};
use nine_proto::{Errno, Error, OpenFlags, Result};
use nine_stream::{Limit, Modules};

use aside::aside;
use conv::{ConversationCtlFile, NetConversation, OpenDataFile};
use driver::WokenJobQueue;
use policy::WatchedNetPolicy;
use query::{LookupFn, NameQuery};
use share::{FairShares, ShareRefusal, ShareUser, UserShare};

pub use datagrams::Datagrams;
pub use driver::Driver;
pub use policy::{Policy, Want};
pub use stack::{Announced, Asks, Call, End, Later, Messages, Network, Place, Setting, Tcp, Unix, Wire};

/// The maximum length of a control message or of a query to cs or dns, in bytes.
const TEXT_MAX: usize = 1024;
/// The limits of a network server.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Conversations of each network at a time. One user may have half of them.
    pub conversations: usize,
    /// Bytes of one queue of the stream that is created with a conversation's first module; the stream may hold eight
    /// times that.
    pub queue: usize,
    /// Bytes that the modules of all conversations and their streams may hold. One user may have half of them. Beyond
    /// that a push fails with ENOMEM.
    pub modules: usize,
}

impl From<usize> for Limits {
    /// These many conversations, with default values for the rest.
    fn from(conversations: usize) -> Self {
        Self { conversations, queue: Limit::CONVERSATION.bytes, modules: 256 << 20 }
    }
}

/// Returns the descriptors that conversations of all networks may use, one for each: three quarters of this process'
/// present limit. One user may have two thirds of them. The rest is for the front ends, for files, and for closed
/// conversations that still send.
fn descriptors() -> Arc<FairShares> {
    let most = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let most = most.and_then(|most| usize::try_from(most).ok()).unwrap_or(usize::MAX / 2);
    FairShares::of(most / 4 * 3, most / 2)
}

/// Returns the error for a user that gets no descriptor for a conversation.
fn no_descriptor(lack: &ShareRefusal) -> Error {
    let text = match lack {
        ShareRefusal::Mine(had) => {
            format!(
                "you have {had} conversations, half of the files that this server may open: no more may be"
            )
        }
        ShareRefusal::All => {
            "there are conversations for all the files that this server may open for them".into()
        }
    };
    Error::new(Errno::EMFILE, text)
}

/// Closed conversations that may still send written data; one user may have half. Further ones are cut off.
const LINGERING_MAX: usize = 1000;

/// The file server of networks.
///
/// Concurrency: requests of one conversation are serialized, those of different conversations are not.
pub struct Net {
    tree: Tree,
    shared: Arc<NetShared>,
}

/// State shared by the conversations of all networks.
struct NetShared {
    limits: Limits,
    policy: WatchedNetPolicy,
    /// Modules that may be pushed.
    pushable: Modules,
    clock: Arc<dyn Clock>,
    queue: Arc<WokenJobQueue>,
    /// Bytes that modules may hold.
    modules: Arc<FairShares>,
    lingers: Arc<FairShares>,
    descriptors: Arc<FairShares>,
    /// Closed conversations that are not over yet, by their addresses.
    lingering: Mutex<HashMap<usize, (Arc<NetConversation>, UserShare)>>,
}

/// One network and its conversations.
struct NetProtocol {
    network: Arc<dyn Network>,
    shared: Arc<NetShared>,
    /// The maximum number of conversations.
    most: usize,
    shares: Arc<FairShares>,
    table: Mutex<NetConversationTable>,
}

#[derive(Default)]
struct NetConversationTable {
    /// The number of the next conversation.
    next: u64,
    convs: BTreeMap<u64, ConversationEntry>,
}

/// An open conversation.
struct ConversationEntry {
    dir: synth::Node,
    /// Its shares of its owner's limits.
    _room: ConversationShares,
}

/// The right to one conversation: in its network, and among all.
type ConversationShares = [UserShare; 2];

impl Net {
    /// Creates a server of these networks, each limited by `limits`. `pushable` are the modules that may be pushed.
    /// The driver must be spawned on the core where the sockets shall be; without it nothing is dialled.
    pub fn new(
        networks: Vec<Arc<dyn Network>>,
        policy: Policy,
        pushable: Modules,
        clock: Arc<dyn Clock>,
        limits: impl Into<Limits>,
    ) -> (Self, Driver) {
        let (tree, shared, driver) = networked(networks, policy, pushable, clock, limits.into());
        (Self { tree: tree.audited("net"), shared }, driver)
    }

    /// The same for a server used by this program itself. Its own actions are no events for an audit.
    pub fn unaudited(
        networks: Vec<Arc<dyn Network>>,
        policy: Policy,
        pushable: Modules,
        clock: Arc<dyn Clock>,
        limits: impl Into<Limits>,
    ) -> (Self, Driver) {
        let (tree, shared, driver) = networked(networks, policy, pushable, clock, limits.into());
        (Self { tree, shared }, driver)
    }

    /// Sets a function that updates the client's identity from the aname, as for [`Tree::set_told`]: whether the
    /// client is the owner, is authenticated, or is read-only.
    pub fn told_by(mut self, told: impl Fn(&mut Who, &[u8]) + Send + Sync + 'static) -> Self {
        self.tree.set_told(told);
        self
    }
}

/// Returns the tree of these networks, their shared state, and the driver.
fn networked(
    networks: Vec<Arc<dyn Network>>,
    policy: Policy,
    pushable: Modules,
    clock: Arc<dyn Clock>,
    limits: Limits,
) -> (Tree, Arc<NetShared>, Driver) {
    let most = limits.conversations;
    let queue = Arc::<WokenJobQueue>::default();
    let driver = Driver::new(&queue);
    let wall = clock.wall();
    let (modules, lingers) = (FairShares::new(limits.modules), FairShares::new(LINGERING_MAX));
    let descriptors = descriptors();
    let (policy, lingering) = (WatchedNetPolicy::new(policy), Mutex::default());
    let shared = Arc::new(NetShared {
        limits,
        policy,
        pushable,
        clock,
        queue,
        modules,
        lingers,
        descriptors,
        lingering,
    });
    let networks: Arc<[Arc<dyn Network>]> = networks.into();
    let asks = |finds: LookupFn| {
        let (shared, networks) = (shared.clone(), networks.clone());
        let open = move |opening: Opening| {
            if let Err(error) = shared.policy.known().check_user(&opening.visitor.who) {
                return opening.fail(error);
            }
            // The open cannot have been flushed: it is being served now.
            let query = NameQuery::new(&shared, &networks, &opening.visitor, finds);
            let _ = opening.opened(query);
        };
        File::opened_later(open, |_| false).consuming()
    };
    let root = Dir::new().file("cs", asks(query::cs)).file("dns", asks(query::dns));
    let root = networks.iter().fold(root, |root, network| {
        let (network, shared) = (network.clone(), shared.clone());
        let (name, shares, table) = (network.name(), FairShares::new(most), Mutex::default());
        root.dir(name, Arc::new(NetProtocol { network, shared, most, shares, table }).directory())
    });
    (Tree::new(root, wall), shared, driver)
}

impl Drop for Net {
    fn drop(&mut self) {
        self.shared.queue.end();
        let lingering = std::mem::take(&mut *lock(&self.shared.lingering));
        drop(lingering);
    }
}

impl FileServer for Net {
    fn serve(&self, req: Req) -> Answer {
        self.tree.serve(req)
    }

    fn cancel(&self, id: ReqId, node: Option<&Node>) {
        self.tree.cancel(id, node);
    }

    fn direct(&self, node: &Node, flags: OpenFlags) -> Option<Arc<dyn Direct>> {
        self.tree.direct(node, flags)
    }
}

impl NetShared {
    /// Returns the policy in its file's present version. The known version if no thread can check the file.
    async fn policy_now(self: &Arc<Self>) -> Arc<Policy> {
        if !self.policy.is_due(&*self.clock) {
            return self.policy.known();
        }
        let shared = self.clone();
        let policy = aside(move || Ok(shared.policy.now(&*shared.clock))).await;
        policy.unwrap_or_else(|_| self.policy.known())
    }

    /// Keeps a closed conversation until it is over. Returns false if there is no room.
    fn keep(&self, conv: &Arc<NetConversation>) -> bool {
        let Ok(share) = self.lingers.take(&conv.user, 1) else { return false };
        let mut lingering = lock(&self.lingering);
        if self.queue.is_over() {
            return false;
        }
        lingering.insert(Arc::as_ptr(conv).addr(), (conv.clone(), share));
        true
    }

    fn let_go(&self, conv: &NetConversation) {
        let gone = lock(&self.lingering).remove(&std::ptr::from_ref(conv).addr());
        drop(gone);
    }
}

impl NetProtocol {
    /// Takes the right to one more conversation of this user.
    fn room(&self, user: &ShareUser) -> Result<ConversationShares> {
        let all = self.shared.descriptors.take(user, 1).map_err(|lack| no_descriptor(&lack))?;
        let here = self.shares.take(user, 1).map_err(|lack| {
            let name = self.network.name();
            let text = match lack {
                ShareRefusal::Mine(had) => {
                    format!("you have {had} conversations of {name}, and no more may be")
                }
                ShareRefusal::All => {
                    format!("there are {} conversations of {name}, and no more may be", self.most)
                }
            };
            Error::new(Errno::ENFILE, text)
        })?;
        Ok([here, all])
    }

    /// Creates a conversation with an open ctl.
    fn made(
        self: &Arc<Self>,
        owner: Arc<Visitor>,
        room: ConversationShares,
        call: Option<Call>,
    ) -> Arc<NetConversation> {
        let mut table = lock(&self.table);
        let number = table.next;
        table.next += 1;
        let conv = NetConversation::new(self, number, owner, call);
        table.convs.insert(number, ConversationEntry { dir: conversation(&conv).into(), _room: room });
        conv
    }

    /// Removes a conversation that is no longer open.
    fn forget(&self, number: u64) {
        let gone = lock(&self.table).convs.remove(&number);
        drop(gone);
    }

    fn clone_conv(self: &Arc<Self>, opening: Opening) {
        let who = &opening.visitor.who;
        let room = match opening.flags.writes() {
            true => self.shared.policy.known().check_user(who).and_then(|()| self.room(&ShareUser::of(who))),
            false => Err(Error::new(Errno::EACCES, "clone is opened for reading and writing")),
        };
        let room = match room {
            Ok(room) => room,
            Err(error) => return opening.fail(error),
        };
        let conv = self.made(opening.visitor.clone(), room, None);
        let number = conv.number.to_string();
        // The open cannot have been flushed: it is being served now.
        let _ = opening.becomes(&[&number, "ctl"], Arc::new(ConversationCtlFile::first(conv)));
    }

    fn stats(&self) -> String {
        let table = lock(&self.table);
        format!("conversations {} of {}\nmade {}\n", table.convs.len(), self.most, table.next)
    }

    fn directory(self: Arc<Self>) -> Dir {
        let (clones, lists, finds, counts) = (self.clone(), self.clone(), self.clone(), self);
        Dir::new()
            .file(
                "clone",
                File::opened_later(move |opening| clones.clone_conv(opening), |_| false).consuming(),
            )
            .file("stats", File::text(move |_| counts.stats()))
            .numbered(move |from, most, _| {
                let table = lock(&lists.table);
                table
                    .convs
                    .range(from..)
                    .take(most)
                    .map(|(number, conv)| (*number, conv.dir.clone()))
                    .collect()
            })
            .found(move |name, _| {
                let number = name.parse().ok().filter(|number: &u64| number.to_string() == name)?;
                Some(lock(&finds.table).convs.get(&number)?.dir.clone())
            })
    }
}

/// Returns the files of a conversation. They hold no reference to it.
fn conversation(conv: &Arc<NetConversation>) -> Dir {
    let text = |says: fn(&NetConversation) -> String| {
        let conv = Arc::downgrade(conv);
        File::text(move |_| conv.upgrade().map(|conv| says(&conv)).unwrap_or_default())
    };
    let (ctl, data, error, listen) = (gate(conv), gate(conv), gate(conv), gate(conv));
    let stops = Arc::downgrade(conv);
    Dir::new()
        .file(
            "ctl",
            File::opened(move |visitor, _| Ok(Box::new(ConversationCtlFile::open(ctl(visitor)?)?)))
                .consuming(),
        )
        .file(
            "data",
            File::opened(move |visitor, _| Ok(Box::new(OpenDataFile::data(data(visitor)?)?))).consuming(),
        )
        .file(
            "err",
            File::opened(move |visitor, _| Ok(Box::new(OpenDataFile::error(error(visitor)?)?)))
                .mode(0o444)
                .consuming(),
        )
        .file(
            "listen",
            File::opened_later(
                move |opening| match listen(&opening.visitor) {
                    Ok(conv) => conv.listen(opening),
                    Err(error) => opening.fail(error),
                },
                move |id| stops.upgrade().is_some_and(|conv| conv.cancel_listen(id)),
            )
            .consuming(),
        )
        .file("local", text(NetConversation::local))
        .file("remote", text(NetConversation::remote))
        .file("status", text(NetConversation::status))
}

/// Returns a function that gives the conversation to clients that may open its files.
fn gate(
    conv: &Arc<NetConversation>,
) -> impl Fn(&Visitor) -> Result<Arc<NetConversation>> + Send + Sync + 'static {
    let conv = Arc::downgrade(conv);
    move |visitor| {
        let conv = conv.upgrade().ok_or(Errno::ENOENT)?;
        conv.may(visitor)?;
        Ok(conv)
    }
}
