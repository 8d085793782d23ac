//! Who serves, and on what: an archive on two files, or the disk server on a directory of the same file system.

use std::cell::{Cell, Ref, RefCell};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use nine_proto::OpenFlags;
use rustix::fs::{Advice, fadvise, syncfs};

use super::serve::{DEVICES, OPENED, STORE, Shape, console};
use crate::scratch::Scratch;
use crate::server::Server;

pub(super) struct Stand {
    /// None while it is started anew.
    server: RefCell<Option<Server>>,
    /// Of an archive.
    shape: Cell<Option<Shape>>,
    dir: Scratch,
    run: Scratch,
}

impl Stand {
    /// A new archive.
    pub fn archive(shape: Shape) -> io::Result<Self> {
        Self::new(Some(shape))
    }

    /// The disk server, with an empty directory.
    pub fn disk() -> io::Result<Self> {
        Self::new(None)
    }

    /// A new archive whose worm lies in the object store of this name.
    pub fn on_store(shape: Shape, name: &str) -> io::Result<Self> {
        let dir = Scratch::new()?;
        std::fs::write(dir.path().join(STORE), name)?;
        Self::within(Some(shape), dir)
    }

    fn new(shape: Option<Shape>) -> io::Result<Self> {
        Self::within(shape, Scratch::new()?)
    }

    fn within(shape: Option<Shape>, dir: Scratch) -> io::Result<Self> {
        let run = Scratch::for_sockets()?;
        let stand = Self { server: RefCell::new(None), shape: Cell::new(shape), dir, run };
        stand.start()?;
        Ok(stand)
    }

    fn start(&self) -> io::Result<()> {
        let server = match self.shape.get() {
            None => Server::ours(self.dir(), self.run.path())?,
            Some(shape) => {
                let socket = self.socket();
                // Of who was killed.
                for old in [socket.clone(), console(&socket)] {
                    std::fs::remove_file(old).or_else(gone)?;
                }
                Server::role("archive", &[self.dir().as_os_str(), OsStr::new(&shape.word())], socket)?
            }
        };
        *self.server.borrow_mut() = Some(server);
        Ok(())
    }

    /// What lies on the file system.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    fn socket(&self) -> PathBuf {
        self.run.path().join("archive")
    }

    pub fn server(&self) -> Ref<'_, Server> {
        Ref::map(self.server.borrow(), |server| server.as_ref().expect("it runs"))
    }

    /// Everything that was written is on the disk.
    pub fn sync(&self) -> io::Result<()> {
        if self.shape.get().is_some() {
            let (_client, root) = self.server().client()?;
            return Ok(root.fsync(false)?);
        }
        Ok(syncfs(File::open(self.dir())?)?)
    }

    /// Nothing of this file is in memory any more, neither here nor in the page cache.
    pub fn cool(&self, name: &str) -> io::Result<()> {
        self.sync()?;
        if self.shape.get().is_none() {
            return forget(&self.dir().join(name));
        }
        *self.server.borrow_mut() = None;
        self.forget_pages()?;
        self.start()
    }

    /// Nothing of an archive's devices is in the page cache; it goes on, with what it has in its own memory.
    pub fn forget_pages(&self) -> io::Result<()> {
        DEVICES.iter().try_for_each(|device| forget(&self.dir().join(device)))
    }

    /// An archive that has another shape when it is started the next time; its devices, its blocks and its order stay
    /// as they were made.
    pub fn reshape(&self, shape: Shape) {
        self.shape.set(Some(shape));
    }

    /// An archive ends without having been told, and is started again. Milliseconds that it takes to open.
    pub fn crash(&self) -> io::Result<f64> {
        *self.server.borrow_mut() = None;
        self.start()?;
        let text = std::fs::read_to_string(self.dir().join(OPENED))?;
        text.parse().map_err(io::Error::other)
    }

    /// Tells an archive's console something; returns when that is done.
    pub fn tell(&self, words: &str) -> io::Result<()> {
        self.teller(words)?()
    }

    /// The same, for any thread.
    pub fn teller(&self, words: &str) -> io::Result<impl FnOnce() -> io::Result<()> + Send + use<>> {
        let (client, root) = self.server().client_at(&console(&self.socket()))?;
        let (ctl, line) = (root.open("ctl", OpenFlags::WRITE)?, format!("{words}\n"));
        Ok(move || {
            let _client = client;
            Ok(ctl.write_all_at(0, line.as_bytes())?)
        })
    }

    /// What a file of an archive's console says.
    pub fn ask(&self, file: &str) -> io::Result<String> {
        self.asker(file)?()
    }

    /// The same, whenever it is asked, from any thread.
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

/// Drops a file's pages.
pub(super) fn forget(path: &Path) -> io::Result<()> {
    let file = File::options().read(true).write(true).open(path)?;
    // Only those that are on the disk go.
    file.sync_data()?;
    Ok(fadvise(&file, 0, None, Advice::DontNeed)?)
}

fn gone(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}
