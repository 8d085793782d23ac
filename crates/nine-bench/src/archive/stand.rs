//! The server and its storage: an archive on two files, or the disk server on a directory of the same file system.

use std::cell::{Cell, Ref, RefCell};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use nine_proto::OpenFlags;
use rustix::fs::{Advice, fadvise, syncfs};

use super::serve::{ArchiveShape, DEVICES, OPENED, STORE, console};
use crate::scratch::ScratchDir;
use crate::server::MeasuredServer;

pub(super) struct ArchiveTestbed {
    /// `None` during a restart.
    server: RefCell<Option<MeasuredServer>>,
    /// Set for an archive.
    shape: Cell<Option<ArchiveShape>>,
    dir: ScratchDir,
    run: ScratchDir,
}

impl ArchiveTestbed {
    /// Creates an archive.
    pub fn archive(shape: ArchiveShape) -> io::Result<Self> {
        Self::new(Some(shape))
    }

    /// Starts the disk server with an empty directory.
    pub fn disk() -> io::Result<Self> {
        Self::new(None)
    }

    /// Creates an archive with its worm in the object store of this name.
    pub fn on_store(shape: ArchiveShape, name: &str) -> io::Result<Self> {
        let dir = ScratchDir::new()?;
        std::fs::write(dir.path().join(STORE), name)?;
        Self::within(Some(shape), dir)
    }

    fn new(shape: Option<ArchiveShape>) -> io::Result<Self> {
        Self::within(shape, ScratchDir::new()?)
    }

    fn within(shape: Option<ArchiveShape>, dir: ScratchDir) -> io::Result<Self> {
        let run = ScratchDir::for_sockets()?;
        let stand = Self { server: RefCell::new(None), shape: Cell::new(shape), dir, run };
        stand.start()?;
        Ok(stand)
    }

    fn start(&self) -> io::Result<()> {
        let server = match self.shape.get() {
            None => MeasuredServer::ours(self.dir(), self.run.path())?,
            Some(shape) => {
                let socket = self.socket();
                // Remove the sockets of a killed server.
                for old in [socket.clone(), console(&socket)] {
                    std::fs::remove_file(old).or_else(gone)?;
                }
                MeasuredServer::role("archive", &[self.dir().as_os_str(), OsStr::new(&shape.word())], socket)?
            }
        };
        *self.server.borrow_mut() = Some(server);
        Ok(())
    }

    /// Returns the directory of the storage.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    fn socket(&self) -> PathBuf {
        self.run.path().join("archive")
    }

    pub fn server(&self) -> Ref<'_, MeasuredServer> {
        Ref::map(self.server.borrow(), |server| server.as_ref().expect("it runs"))
    }

    /// Makes all written data durable.
    pub fn sync(&self) -> io::Result<()> {
        if self.shape.get().is_some() {
            let (_client, root) = self.server().client()?;
            return Ok(root.fsync(false)?);
        }
        Ok(syncfs(File::open(self.dir())?)?)
    }

    /// Removes a file from all memory: the server's and the page cache.
    pub fn cool(&self, name: &str) -> io::Result<()> {
        self.sync()?;
        if self.shape.get().is_none() {
            return forget(&self.dir().join(name));
        }
        *self.server.borrow_mut() = None;
        self.forget_pages()?;
        self.start()
    }

    /// Removes an archive's devices from the page cache. The archive continues with its own memory.
    pub fn forget_pages(&self) -> io::Result<()> {
        DEVICES.iter().try_for_each(|device| forget(&self.dir().join(device)))
    }

    /// Sets the shape of an archive for its next start. Devices, block size and order stay as they were created.
    pub fn reshape(&self, shape: ArchiveShape) {
        self.shape.set(Some(shape));
    }

    /// Kills an archive and starts it again. Returns the time to open it, milliseconds.
    pub fn crash(&self) -> io::Result<f64> {
        *self.server.borrow_mut() = None;
        self.start()?;
        let text = std::fs::read_to_string(self.dir().join(OPENED))?;
        text.parse().map_err(io::Error::other)
    }

    /// Sends a command to an archive's console, and waits until it is done.
    pub fn tell(&self, words: &str) -> io::Result<()> {
        self.teller(words)?()
    }

    /// Like [`ArchiveTestbed::tell`], as a function for any thread.
    pub fn teller(&self, words: &str) -> io::Result<impl FnOnce() -> io::Result<()> + Send + use<>> {
        let (client, root) = self.server().client_at(&console(&self.socket()))?;
        let (ctl, line) = (root.open("ctl", OpenFlags::WRITE)?, format!("{words}\n"));
        Ok(move || {
            let _client = client;
            Ok(ctl.write_all_at(0, line.as_bytes())?)
        })
    }

    /// Reads a file of an archive's console.
    pub fn ask(&self, file: &str) -> io::Result<String> {
        self.asker(file)?()
    }

    /// Like [`ArchiveTestbed::ask`], as a function for any thread.
    pub fn asker(&self, file: &str) -> io::Result<impl Fn() -> io::Result<String> + Send + use<>> {
        let (client, root) = self.server().client_at(&console(&self.socket()))?;
        let name = file.to_owned();
        Ok(move || {
            let _client = &client;
            let file = root.open(&name, OpenFlags::READ)?;
            let mut text = Vec::new();
            loop {
                let more = file.read(text.len() as u64, 1 << 16)?;
                if more.is_empty() {
                    return String::from_utf8(text).map_err(io::Error::other);
                }
                text.extend_from_slice(&more);
            }
        })
    }
}

/// Drops a file's pages from the page cache.
pub(super) fn forget(path: &Path) -> io::Result<()> {
    let file = File::options().read(true).write(true).open(path)?;
    // Only clean pages are dropped.
    file.sync_data()?;
    Ok(fadvise(&file, 0, None, Advice::DontNeed)?)
}

fn gone(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}
