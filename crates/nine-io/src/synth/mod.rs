//! Synthetic trees: closures create the content of their files when a client opens them.
//!
//! ```
//! use nine_io::synth::{Dir, File, Node, Tree};
//! use std::time::Duration;
//!
//! let root = Dir::new()
//!     .file("uptime", File::text(|_| "42 days\n".into()))
//!     .file("ctl", File::text(|_| "write: reboot\n".into()).on_write(|ask| {
//!         let known = ask.lines().is_ok_and(|lines| lines == ["reboot"]);
//!         ask.done(if known { Ok(()) } else { Err(nine_proto::Errno::EINVAL.into()) });
//!     }))
//!     .dir("users", Dir::new().live(|_| vec![("glenda".into(), Node::from(Dir::new()))]));
//! let server: std::sync::Arc<dyn nine_io::server::FileServer> =
//!     std::sync::Arc::new(Tree::new(root, Duration::from_secs(1_800_000_000)));
//! ```
//!
//! In: a [`Dir`] of [`File`]s. Out: a [`FileServer`] for every dialect.
//!
//! - A reader sees the content as of its open until the clunk. Lengths are 0, as those of pipes.
//! - A write is a message: whole lines, of which the last one needs no newline. Its [`Ask`] is answered now or later.
//! - Files with a behaviour of their own (data that is waited for, conversations) open a [`Handle`], at once or later
//!   ([`Opening`]). The open may turn the fid into that of another file.
//! - Files that block, or that create something when opened or read, are marked ([`File::event`]), so that programs
//!   that walk a whole tree skip them.
//! - A directory's entries may come and go ([`Dir::live`]); an open directory shows those of its open. Large
//!   directories have numbered entries that are listed as they are read ([`Dir::numbered`]).
//! - Another file server may answer below a directory ([`Beyond`]).
//! - A tree may be hidden in the root of another file server, for its owner ([`HiddenTree`]).
//! - The tree's owner has the permissions of the first digit of a file's mode, all others those of the last.
//!
//! Always holds: a file's qid depends on its path alone, so it is the same after a restart. Among a million files two
//! share a qid with a probability of 1 in 280. The upper 16 bits of its path are zero, so a mux passes such qids on
//! unchanged. A request that is flushed while it waits is answered at once.

mod ask;
mod beyond;
mod hidden;
mod serve;

use std::sync::Arc;
use std::time::Duration;

use nine_proto::{OpenFlags, Result};

use crate::direct::Direct;
use crate::server::{Reply, ReqId, Request, Who};

use ask::PendingAsks;
pub use ask::{Ask, Opening};
pub use beyond::Beyond;
use beyond::ForeignWalks;
pub use hidden::HiddenTree;

/// A synthetic tree: the file server.
pub struct Tree {
    root: Arc<Dir>,
    /// The times of all its files.
    time: nine_proto::Time,
    ids: (u32, u32),
    told: AttachHook,
    /// The server's name in audit events of its control files, if there are any.
    audited: Option<&'static str>,
    asks: Arc<PendingAsks>,
    crossing: Arc<ForeignWalks>,
}

type AttachHook = Box<dyn Fn(&mut Who, &[u8]) + Send + Sync>;
type LiveLister = Box<dyn Fn(&Visitor) -> Vec<(String, Node)> + Send + Sync>;
type EntryFinder = Box<dyn Fn(&str, &Visitor) -> Option<Node> + Send + Sync>;
type NumberedLister = Box<dyn Fn(u64, usize, &Visitor) -> Vec<(u64, Node)> + Send + Sync>;
type TextSource = Box<dyn Fn(&Visitor) -> Vec<u8> + Send + Sync>;
type WriteHandler = Arc<dyn Fn(Ask) + Send + Sync>;
type OpenHandler = Box<dyn Fn(Opening) + Send + Sync>;
type SizeSource = Box<dyn Fn() -> u64 + Send + Sync>;
type CancelHandler = Box<dyn Fn(ReqId) -> bool + Send + Sync>;

/// A client that has attached to the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Visitor {
    /// The client as the gate admitted it, with the changes of [`Tree::set_told`].
    pub who: Arc<Who>,
    /// It has the owner's permissions.
    pub owner: bool,
}

impl Tree {
    /// A tree of files with this time since 1970 that belong to the user of this process.
    pub fn new(root: Dir, wall: Duration) -> Self {
        let time = nine_proto::Time { sec: wall.as_secs() as i64, nsec: wall.subsec_nanos() };
        Self {
            root: Arc::new(root),
            time,
            ids: nine_net::own_ids(),
            told: Box::new(|_, _| ()),
            audited: None,
            asks: Arc::default(),
            crossing: Arc::default(),
        }
    }

    /// Decides by client and aname which clients are the owner. The default is [`Who::owner`].
    pub fn owned_by(mut self, owns: impl Fn(&Who, &[u8]) -> bool + Send + Sync + 'static) -> Self {
        self.set_told(move |who, aname| who.owner = owns(who, aname));
        self
    }

    /// Writes an audit event ([`audit`](crate::audit)) when a text written to a control file (a name that ends in
    /// `ctl`) is answered. `name` is the server's name in these events.
    pub fn audited(self, name: &'static str) -> Self {
        Self { audited: Some(name), ..self }
    }

    /// Sets a function that adjusts the identity of an attaching client by the aname.
    pub fn set_told(&mut self, told: impl Fn(&mut Who, &[u8]) + Send + Sync + 'static) {
        self.told = Box::new(told);
    }
}

/// A directory.
pub struct Dir {
    mode: u32,
    fixed: Vec<(Box<str>, Node)>,
    live: Option<LiveLister>,
    found: Option<EntryFinder>,
    numbered: Option<NumberedLister>,
}

/// An entry of a directory.
#[derive(Clone)]
pub enum Node {
    /// A file.
    File(Arc<File>),
    /// A directory.
    Dir(Arc<Dir>),
    /// A directory of another server.
    Server(Arc<Beyond>),
}

/// A file.
pub struct File {
    mode: u32,
    event: bool,
    /// Refused to clients that may only read.
    consuming: bool,
    size: Option<SizeSource>,
    opens: FileBehavior,
}

/// The result of an open.
enum FileBehavior {
    Text(TextSource, Option<WriteHandler>),
    Handle(OpenHandler, CancelHandler),
}

/// An open file with a behaviour of its own; dropped after its clunk. Operations that it does not implement are
/// refused.
pub trait Handle: Send + Sync + 'static {
    /// Reads at most `ask.count` bytes from `ask.offset`.
    fn read(&self, ask: Ask) {
        ask.fail(nine_proto::Errno::EBADF.into());
    }

    /// Writes `ask.data` at `ask.offset`.
    fn write(&self, ask: Ask) {
        ask.fail(nine_proto::Errno::EBADF.into());
    }

    /// Answers a read or a write at once, if it need not wait and does not look at written data: of data that the
    /// client has placed ([`Request::placed`]) only the length is known.
    fn now(&self, request: &Request) -> Option<Result<Reply>> {
        let _ = request;
        None
    }

    /// Whether [`Handle::now`] answers every write.
    fn is_sink(&self) -> bool {
        false
    }

    /// Makes earlier writes durable, and answers with [`Ask::synced`]. The default suits messages, which are not
    /// stored.
    fn sync(&self, ask: Ask) {
        ask.synced(Ok(()));
    }

    /// Cancels the [`Ask`] with this id. Returns true if the handle has it and answers it, with its result or EINTR.
    /// Otherwise the tree answers.
    fn cancel(&self, id: ReqId) -> bool {
        let _ = id;
        false
    }

    /// Returns the file for calls without messages; it was opened with these flags.
    fn direct(self: Arc<Self>, flags: OpenFlags) -> Option<Arc<dyn Direct>> {
        let _ = flags;
        None
    }
}

impl Default for Dir {
    fn default() -> Self {
        Self::new()
    }
}

impl Dir {
    /// An empty directory of mode 0555.
    pub fn new() -> Self {
        Self { mode: 0o555, fixed: Vec::new(), live: None, found: None, numbered: None }
    }

    /// Adds a file.
    pub fn file(self, name: &str, file: File) -> Self {
        self.with(name, file.into())
    }

    /// Adds a directory.
    pub fn dir(self, name: &str, dir: Dir) -> Self {
        self.with(name, dir.into())
    }

    /// Adds an entry.
    pub fn with(mut self, name: &str, node: Node) -> Self {
        self.fixed.push((name.into(), node));
        self
    }

    /// Adds entries that come and go. `live` is called at each open and each walk. Entries with illegal names are left
    /// out.
    pub fn live(mut self, live: impl Fn(&Visitor) -> Vec<(String, Node)> + Send + Sync + 'static) -> Self {
        self.live = Some(Box::new(live));
        self
    }

    /// Adds many entries that come and go and have numbers as names. `list` returns entries from a number on, in order,
    /// at most as many as asked for. It is called while the directory is read. [`Dir::found`] must find each entry. A
    /// number is never used again.
    pub fn numbered(
        mut self,
        list: impl Fn(u64, usize, &Visitor) -> Vec<(u64, Node)> + Send + Sync + 'static,
    ) -> Self {
        self.numbered = Some(Box::new(list));
        self
    }

    /// Finds one of the entries that come and go, where listing all of them for each walk would take long.
    pub fn found(mut self, found: impl Fn(&str, &Visitor) -> Option<Node> + Send + Sync + 'static) -> Self {
        self.found = Some(Box::new(found));
        self
    }

    /// Sets the permissions.
    pub fn mode(self, mode: u32) -> Self {
        Self { mode: mode & 0o777, ..self }
    }

    fn entries(&self, visitor: &Visitor) -> Vec<(String, Node)> {
        let mut all: Vec<_> =
            self.fixed.iter().map(|(name, node)| (name.to_string(), node.clone())).collect();
        all.extend(self.live.iter().flat_map(|live| live(visitor)));
        all.retain(|(name, _)| nine_proto::check_name(name.as_bytes()).is_ok());
        all
    }

    fn entry(&self, name: &[u8], visitor: &Visitor) -> Option<Node> {
        let fixed = self.fixed.iter().find(|(of, _)| of.as_bytes() == name);
        if let Some((_, node)) = fixed {
            return Some(node.clone());
        }
        if let Some(found) = &self.found {
            return found(std::str::from_utf8(name).ok()?, visitor);
        }
        let live = self.live.as_ref()?(visitor);
        live.into_iter().find(|(of, _)| of.as_bytes() == name).map(|(_, node)| node)
    }
}

impl File {
    /// A file with this text, created at each open. Mode 0444.
    pub fn text(text: impl Fn(&Visitor) -> String + Send + Sync + 'static) -> Self {
        let text = Box::new(move |visitor: &_| text(visitor).into_bytes());
        Self {
            mode: 0o444,
            event: false,
            consuming: false,
            size: None,
            opens: FileBehavior::Text(text, None),
        }
    }

    /// A file that creates a handle with a behaviour of its own at each open. Mode 0666.
    pub fn opened(
        open: impl Fn(&Arc<Visitor>, OpenFlags) -> Result<Box<dyn Handle>> + Send + Sync + 'static,
    ) -> Self {
        let answer = move |opening: Opening| match open(&opening.visitor, opening.flags) {
            // A flush cannot have intervened: the open is being served.
            Ok(handle) => drop(opening.opened(handle.into())),
            Err(error) => opening.fail(error),
        };
        Self::opened_later(answer, |_| false)
    }

    /// A file whose open is answered now or later. Mode 0666. `cancel` gets the id of a flushed open. It returns true
    /// if it has that open and answers it; otherwise the tree answers.
    pub fn opened_later(
        open: impl Fn(Opening) + Send + Sync + 'static,
        cancel: impl Fn(ReqId) -> bool + Send + Sync + 'static,
    ) -> Self {
        let opens = FileBehavior::Handle(Box::new(open), Box::new(cancel));
        Self { mode: 0o666, event: false, consuming: false, size: None, opens }
    }

    /// Marks the file: opening or reading it creates something, takes something away, or may wait forever.
    pub fn event(self) -> Self {
        Self { event: true, ..self }
    }

    /// Marks the file as an event, and refuses it (EACCES) to read-only clients: opening or reading it creates
    /// something or takes something away. If a mux is in between, the tree must recognize such clients
    /// ([`Tree::set_told`]).
    pub fn consuming(self) -> Self {
        Self { event: true, consuming: true, ..self }
    }

    /// Sets the length in bytes. Without it, a file shows 0, like those in /proc.
    pub fn sized(self, size: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        Self { size: Some(Box::new(size)), ..self }
    }

    /// Sets the action of a write to a text file, and lets the owner write.
    pub fn on_write(mut self, write: impl Fn(Ask) + Send + Sync + 'static) -> Self {
        if let FileBehavior::Text(_, on_write) = &mut self.opens {
            *on_write = Some(Arc::new(write));
            self.mode |= 0o200;
        }
        self
    }

    /// Sets the permissions.
    pub fn mode(self, mode: u32) -> Self {
        Self { mode: mode & 0o777, ..self }
    }
}

impl From<File> for Node {
    fn from(file: File) -> Self {
        Self::File(Arc::new(file))
    }
}

impl From<Dir> for Node {
    fn from(dir: Dir) -> Self {
        Self::Dir(Arc::new(dir))
    }
}
