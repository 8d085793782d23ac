//! Synthetic trees: files that are not stored but made, by closures, when somebody opens them.
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
//! - What a reader sees is made at the open and stays as it is until the clunk; lengths are 0, as of pipes.
//! - A write is a message: whole lines, the last one with or without its end. Its [`Ask`] is answered now or later.
//! - Files that answer for themselves (data that waits, conversations) open a [`Handle`], at once or later
//!   ([`Opening`]); the open may make the fid another file's.
//! - What blocks, or makes something when it is opened or read, is marked ([`File::event`]): programs that walk a whole
//!   tree leave it alone.
//! - A directory's entries may come and go ([`Dir::live`]); an open directory shows those of its open. Where there are
//!   many, they have numbers and are made as they are read ([`Dir::numbered`]).
//! - Below a directory another file server may answer ([`Beyond`]).
//! - The tree's owner has the permissions of a file's first digit, everybody else those of the last.
//!
//! Always holds: a file's qid follows from its path alone, so it is the same after a restart; of a million files two
//! share one with a chance of 1 in 280. Its upper 16 bits are zero: a mux keeps such qids as they are. A request that
//! is flushed while it waits is answered at once.

mod ask;
mod beyond;
mod serve;

use std::sync::Arc;
use std::time::Duration;

use nine_proto::{OpenFlags, Result};

use crate::direct::Direct;
use crate::server::{Reply, ReqId, Request, Who};

use ask::Asks;
pub use ask::{Ask, Opening};
pub use beyond::Beyond;
use beyond::Crossing;

/// A synthetic tree: the file server.
pub struct Tree {
    root: Arc<Dir>,
    /// Of all its files.
    time: nine_proto::Time,
    ids: (u32, u32),
    told: Told,
    /// What it is called where texts for its control files are told of.
    audited: Option<&'static str>,
    asks: Arc<Asks>,
    crossing: Arc<Crossing>,
}

type Told = Box<dyn Fn(&mut Who, &[u8]) + Send + Sync>;
type Live = Box<dyn Fn(&Visitor) -> Vec<(String, Node)> + Send + Sync>;
type Found = Box<dyn Fn(&str, &Visitor) -> Option<Node> + Send + Sync>;
type Numbered = Box<dyn Fn(u64, usize, &Visitor) -> Vec<(u64, Node)> + Send + Sync>;
type Text = Box<dyn Fn(&Visitor) -> Vec<u8> + Send + Sync>;
type OnWrite = Arc<dyn Fn(Ask) + Send + Sync>;
type OnOpen = Box<dyn Fn(Opening) + Send + Sync>;
type Size = Box<dyn Fn() -> u64 + Send + Sync>;
type OnCancel = Box<dyn Fn(ReqId) -> bool + Send + Sync>;

/// Who has attached to the tree, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Visitor {
    /// As the door let it in.
    pub who: Arc<Who>,
    /// It has the owner's permissions.
    pub owner: bool,
}

impl Tree {
    /// A tree whose files are as old as this time since 1970, and belong to the user that runs this process.
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

    /// Who is the owner, by who attaches and the aname that is asked for; if nobody says: [`Who::owner`].
    pub fn owned_by(mut self, owns: impl Fn(&Who, &[u8]) -> bool + Send + Sync + 'static) -> Self {
        self.set_told(move |who, aname| who.owner = owns(who, aname));
        self
    }

    /// Each text that is written to one of its control files (whose names end with `ctl`) is told of when it is
    /// answered ([`audit`](crate::audit)), as of a server of this name.
    pub fn audited(self, name: &'static str) -> Self {
        Self { audited: Some(name), ..self }
    }

    /// What the aname tells of who attaches, beside what the connection knows.
    pub fn set_told(&mut self, told: impl Fn(&mut Who, &[u8]) + Send + Sync + 'static) {
        self.told = Box::new(told);
    }
}

/// A directory.
pub struct Dir {
    mode: u32,
    fixed: Vec<(Box<str>, Node)>,
    live: Option<Live>,
    found: Option<Found>,
    numbered: Option<Numbered>,
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
    size: Option<Size>,
    opens: Opens,
}

/// What an open brings.
enum Opens {
    Text(Text, Option<OnWrite>),
    Handle(OnOpen, OnCancel),
}

/// An open file that answers for itself; dropped after its clunk. What it does not know is refused.
pub trait Handle: Send + Sync + 'static {
    /// Bytes from `ask.offset`, at most `ask.count`.
    fn read(&self, ask: Ask) {
        ask.fail(nine_proto::Errno::EBADF.into());
    }

    /// `ask.data` has been written at `ask.offset`.
    fn write(&self, ask: Ask) {
        ask.fail(nine_proto::Errno::EBADF.into());
    }

    /// The answer to a read or a write that needs nobody to be asked, and nothing of what is written: of it
    /// ([`Request::placed`]) only the length is known.
    fn now(&self, request: &Request) -> Option<Result<Reply>> {
        let _ = request;
        None
    }

    /// Whether [`Handle::now`] answers every write.
    fn is_sink(&self) -> bool {
        false
    }

    /// What has been written shall be where it lasts: answered by [`Ask::synced`]. Messages last as long as they do.
    fn sync(&self, ask: Ask) {
        ask.synced(Ok(()));
    }

    /// The [`Ask`] of this name is not wanted any more. Whoever has it and says true answers it, with what has become
    /// of it or EINTR; else that is done here.
    fn cancel(&self, id: ReqId) -> bool {
        let _ = id;
        false
    }

    /// The same for a client in this process, that calls it; opened with these flags.
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
    /// An empty one, of mode 0555.
    pub fn new() -> Self {
        Self { mode: 0o555, fixed: Vec::new(), live: None, found: None, numbered: None }
    }

    /// With this file in it.
    pub fn file(self, name: &str, file: File) -> Self {
        self.with(name, file.into())
    }

    /// With this directory in it.
    pub fn dir(self, name: &str, dir: Dir) -> Self {
        self.with(name, dir.into())
    }

    /// With this entry.
    pub fn with(mut self, name: &str, node: Node) -> Self {
        self.fixed.push((name.into(), node));
        self
    }

    /// With entries that come and go: asked for at each open and each walk. Names as in any directory: one that is
    /// not legal is not seen.
    pub fn live(mut self, live: impl Fn(&Visitor) -> Vec<(String, Node)> + Send + Sync + 'static) -> Self {
        self.live = Some(Box::new(live));
        self
    }

    /// With many entries that come and go and are called by numbers: from this number on, in their order, at most so
    /// many. They are asked for when the directory is read, so many as fit; how one is found [`Dir::found`] says. A
    /// number is not used again.
    pub fn numbered(
        mut self,
        list: impl Fn(u64, usize, &Visitor) -> Vec<(u64, Node)> + Send + Sync + 'static,
    ) -> Self {
        self.numbered = Some(Box::new(list));
        self
    }

    /// How one of the entries that come and go is found, where to list them all for each walk would take long.
    pub fn found(mut self, found: impl Fn(&str, &Visitor) -> Option<Node> + Send + Sync + 'static) -> Self {
        self.found = Some(Box::new(found));
        self
    }

    /// With these permissions.
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
    /// A file that shows this text, made at each open. Mode 0444.
    pub fn text(text: impl Fn(&Visitor) -> String + Send + Sync + 'static) -> Self {
        let text = Box::new(move |visitor: &_| text(visitor).into_bytes());
        Self { mode: 0o444, event: false, consuming: false, size: None, opens: Opens::Text(text, None) }
    }

    /// A file whose open makes something that answers for itself. Mode 0666.
    pub fn opened(
        open: impl Fn(&Arc<Visitor>, OpenFlags) -> Result<Box<dyn Handle>> + Send + Sync + 'static,
    ) -> Self {
        let answer = move |opening: Opening| match open(&opening.visitor, opening.flags) {
            // Nobody can have flushed it: it is being served.
            Ok(handle) => drop(opening.opened(handle.into())),
            Err(error) => opening.fail(error),
        };
        Self::opened_later(answer, |_| false)
    }

    /// A file whose open is answered now or later. Mode 0666. Of an open that is flushed `cancel` is told the name:
    /// whoever has it and says true answers it; else that is done here.
    pub fn opened_later(
        open: impl Fn(Opening) + Send + Sync + 'static,
        cancel: impl Fn(ReqId) -> bool + Send + Sync + 'static,
    ) -> Self {
        let opens = Opens::Handle(Box::new(open), Box::new(cancel));
        Self { mode: 0o666, event: false, consuming: false, size: None, opens }
    }

    /// Marked: to open or to read it makes something, takes something away, or waits for ever.
    pub fn event(self) -> Self {
        Self { event: true, ..self }
    }

    /// Marked as an event, and refused (EACCES) to clients that may change nothing: to open or to read it creates
    /// something or takes something away. Needs a tree that knows them ([`Tree::set_told`]) where a mux is in between.
    pub fn consuming(self) -> Self {
        Self { event: true, consuming: true, ..self }
    }

    /// It has so many bytes; others say 0, as those in /proc do.
    pub fn sized(self, size: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        Self { size: Some(Box::new(size)), ..self }
    }

    /// Of a text file: what a write does; its owner may write from now on.
    pub fn on_write(mut self, write: impl Fn(Ask) + Send + Sync + 'static) -> Self {
        if let Opens::Text(_, on_write) = &mut self.opens {
            *on_write = Some(Arc::new(write));
            self.mode |= 0o200;
        }
        self
    }

    /// With these permissions.
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
