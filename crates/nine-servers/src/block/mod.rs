//! Disks as files, so that they can be used over any file protocol.
//!
//! ```text
//! NAME/data     the bytes of the disk
//! NAME/ctl      read: description and status; written by the owner: a control message of the device, or `look`
//! NAME/...      further read-only texts of this kind of disk
//! ```
//! In: [`Device`]s with their names. Out: a tree.
//!
//! Always holds: a read or write need not be aligned to sectors. For an unaligned write the sectors are read first,
//! and other writes of this tree to the disk wait meanwhile. The number of queued writes is bounded by the clients'
//! limits of outstanding requests.

mod data;
mod flush;
mod host;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nine_block::{Device, Io, Op, SECTOR};
use nine_io::server::{Answer, FileServer, Node, Req, ReqId, Who};
use nine_io::synth::{Ask, Dir, File, Tree};
use nine_proto::{Errno, Error, Result};

use data::{DiskData, OpenDiskFile};

pub use host::HostDisk;

/// An additional text file of a disk: its name, and the function that generates its text.
pub type More = (String, Box<dyn Fn() -> String + Send + Sync>);

/// A tree of disks. Clones share it.
#[derive(Clone)]
pub struct Blocks {
    tree: Arc<Tree>,
    disks: DiskList,
}

type DiskList = Arc<Mutex<Vec<(String, nine_io::synth::Node)>>>;

impl Blocks {
    /// Returns an empty tree. `wall`, time since 1970, is the time of its files.
    pub fn new(wall: Duration) -> Self {
        let disks = DiskList::default();
        let live = disks.clone();
        let list = move |_: &_| live.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Self { tree: Arc::new(Tree::new(Dir::new().live(list), wall).audited("block")), disks }
    }

    /// Sets a function that updates the client's identity from the aname, as for [`Tree::set_told`]. It decides
    /// whether the client is the owner. Only the owner may read and write disks.
    ///
    /// # Panics
    /// If the tree has been cloned already.
    pub fn told_by(mut self, told: impl Fn(&mut Who, &[u8]) + Send + Sync + 'static) -> Self {
        Arc::get_mut(&mut self.tree).expect("nobody has it yet").set_told(told);
        self
    }

    /// Adds a disk. It replaces a disk of the same name. A name with a '/' cannot be reached.
    pub fn add(&self, name: &str, device: Arc<dyn Device>, more: Vec<More>) {
        let data = Arc::new(DiskData::new(device.clone()));
        let (size, shape) = (device.clone(), device.shape());
        let opened = move |_: &_, flags: nine_proto::OpenFlags| {
            if flags.writes() && data.is_read_only() {
                return Err(Errno::EROFS.into());
            }
            Ok(Box::new(OpenDiskFile { data: data.clone(), flags }) as Box<dyn nine_io::synth::Handle>)
        };
        let file = File::opened(opened).sized(move || size.shape().sectors * SECTOR);
        let (told, asked) = (device.clone(), device);
        let ctl = File::text(move |_| told.status()).on_write(move |ask| control(&asked, ask)).mode(0o644);
        let mut dir =
            Dir::new().file("data", file.mode(if shape.read_only { 0o400 } else { 0o600 })).file("ctl", ctl);
        for (name, text) in more {
            dir = dir.file(&name, File::text(move |_| text()));
        }
        let mut disks = self.disks.lock().unwrap_or_else(PoisonError::into_inner);
        disks.retain(|(other, _)| other != name);
        disks.push((name.into(), dir.into()));
    }

    /// Removes a disk. Fids that have it open stay valid.
    pub fn remove(&self, name: &str) {
        self.disks.lock().unwrap_or_else(PoisonError::into_inner).retain(|(other, _)| other != name);
    }
}

/// Runs the lines of a control message, up to the first error.
fn control(device: &Arc<dyn Device>, ask: Ask) {
    let said = |lines: Vec<&str>| -> Result<bool> {
        for line in &lines {
            let words: Vec<&str> = line.split_whitespace().collect();
            if words != ["look"] {
                device.control(&words).map_err(|error| refused(&error))?;
            }
        }
        Ok(lines.iter().any(|line| line.trim() == "look"))
    };
    match ask.lines().and_then(said) {
        Ok(true) => device.submit(Io::other(Op::Look, 0, 0, move |looked| {
            ask.done(looked.map(drop).map_err(|error| refused(&error)));
        })),
        other => ask.done(other.map(drop)),
    }
}

/// Converts a device error to a 9P error.
fn refused(error: &nine_block::Error) -> Error {
    use nine_block::Kind;
    let errno = match error.kind {
        Kind::Failed | Kind::Poisoned => Errno::EIO,
        Kind::Full => Errno::ENOSPC,
        Kind::Down => Errno::ETIMEDOUT,
        Kind::Busy => Errno::EAGAIN,
        Kind::Reserved => Errno::EBUSY,
        Kind::Range => Errno::ENXIO,
        Kind::ReadOnly => Errno::EROFS,
        Kind::Unwritten => Errno::ENODATA,
        Kind::Unsupported => Errno::EOPNOTSUPP,
    };
    Error::new(errno, error.text.to_string())
}

impl FileServer for Blocks {
    fn serve(&self, req: Req) -> Answer {
        self.tree.serve(req)
    }

    fn cancel(&self, id: ReqId, node: Option<&Node>) {
        self.tree.cancel(id, node);
    }
}
