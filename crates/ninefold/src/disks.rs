//! The disks of an AoE target or an archive.
//!
//! In: a path or a device expression. Out: first open files and sockets; then, after the program has dropped its
//! privileges, one device (or two, for an archive). Also a serial that identifies the device, and the files replaced by
//! another file at their path.
//!
//! Always holds: before the device is built nothing is read and no thread is started.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use futures_util::future::{AbortHandle, abortable};
use nine_aoe::driver::Disk;
use nine_block::{
    Arg, Device, Error, Guard, Happening, How, Io, Kind, Moving, OpenMirrors, Pause, Rest, Right, SECTOR,
    SectorOwner, Shape, Start, Table, Tree, What, Wrong,
};
use nine_fs::Log;
use nine_net::{Env, rt};
use nine_servers::HostDisk;
use ring::digest::{SHA256, digest};

use crate::blocks::{Over, time_of};
use crate::dial::within;
use crate::serve::aoe::tell;
use crate::stores;

/// Disks that are open, but were not read yet.
pub struct Parts {
    word: String,
    /// Set if the operand is the path of a file, not an expression.
    path: Option<PathBuf>,
    tree: Tree,
    table: Table,
    given: Given,
    how: Open,
    start: Start,
    events: Events,
    ends: Ends,
}

/// Modes of opening files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Open {
    /// For writing; no other program has them open.
    Write,
    /// For reading; other readers may have them open.
    Read,
    /// For reading, while another program may write.
    Watch,
    /// For writing, together with other writers.
    Share,
}

/// One device that is built from all parts.
pub struct Whole {
    pub device: Arc<dyn Device>,
    /// Whether written data survives the end of this program.
    pub stays: bool,
    pub files: Files,
    /// Identifies the device: 20 characters.
    pub serial: String,
    /// Background tasks of its mirrors and buffers.
    pub ends: Ends,
}

/// The two devices of an archive.
pub struct Both {
    pub cache: Arc<dyn Device>,
    pub worm: Arc<dyn Device>,
    /// The file that holds both, if it is one file.
    pub whole: Option<(PathBuf, Arc<dyn Device>)>,
    pub events: Events,
    /// Background tasks of its mirrors and buffers.
    pub ends: Ends,
}

/// Background tasks of mirrors and buffers, and how to stop them.
#[derive(Clone, Default)]
pub struct Ends {
    tasks: Arc<Mutex<Vec<AbortHandle>>>,
    mirrors: OpenMirrors,
}

impl Ends {
    fn add(&self, one: AbortHandle) {
        lock(&self.tasks).push(one);
    }

    /// Aborts all background tasks at once.
    pub fn end(&self) {
        self.mirrors.abort();
        lock(&self.tasks).drain(..).for_each(|one| one.abort());
    }

    /// Closes mirrors after the last write, so that they need no resync at the next start; then aborts all tasks. Waits
    /// at most [`CLOSE_TIMEOUT`] for a device that does not answer.
    pub async fn close(&self, env: &rt::Real) {
        if within(env, CLOSE_TIMEOUT, self.mirrors.close()).await.is_none() {
            tracing::warn!("a mirror does not answer: the next start makes its members equal");
        }
        self.end();
    }
}

/// The sink of mirror events: the program's log, and the log of the archive built on the mirrors.
#[derive(Clone, Default)]
pub struct Events(Arc<Mutex<Option<Log>>>);

impl Events {
    /// Sends all later events to this log, too.
    pub fn to(&self, log: Log) {
        *lock(&self.0) = Some(log);
    }

    fn tell(&self, event: &nine_block::Event, time: i64) {
        match event.what {
            Happening::Back | Happening::Returning | Happening::Copied | Happening::Compared(0) => {
                tracing::info!("{event}");
            }
            // This event has its own call site, so the rate limit of others never suppresses it.
            Happening::Aside(_) => tracing::warn!("{event}"),
            _ => tracing::warn!("{event}"),
        }
        if let Some(log) = &*lock(&self.0) {
            log.push(time, event);
        }
    }
}

/// The open files.
#[derive(Clone, Default)]
pub struct Files(Arc<Mutex<Vec<Weak<File>>>>);

/// A file or block device that is part of a device.
pub struct File {
    path: PathBuf,
    moving: Moving,
    is: Mutex<Is>,
    moves: AtomicBool,
}

/// The identity of an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Is {
    File { dev: u64, ino: u64 },
    Device(u64),
}

/// Opened disks, handed out to the letters of a device expression.
#[derive(Clone, Default)]
struct Given {
    files: Files,
    /// Opened files that no leaf has taken yet, by path. A file that was missing is opened again when a leaf asks for
    /// it.
    waiting: Shared<PathBuf, Vec<Opened<File>>>,
    /// Files that are opened once and shared by all leaves that name them: all files of an archive, and files of which
    /// only parts are used.
    shared: Shared<PathBuf, Opened<File>>,
    /// Disks by address; each is opened once and shared.
    disks: Shared<Vec<u64>, Opened<Disk>>,
    /// The lease without which nothing may be written.
    right: Arc<OnceLock<Arc<Right>>>,
}

type Opened<D> = nine_block::Result<Arc<D>>;
type Shared<K, V> = Arc<Mutex<HashMap<K, V>>>;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Files {
    pub fn all(&self) -> Vec<Arc<File>> {
        lock(&self.0).iter().filter_map(Weak::upgrade).collect()
    }

    fn open(&self, path: &Path, how: Open) -> Opened<File> {
        let file = File::open(path, how).map_err(|error| match error.kind() {
            // A file in use by another program is not missing: that program writes to it.
            io::ErrorKind::ResourceBusy => Error::new(Kind::Reserved, error),
            _ => Error::new(Kind::Failed, error),
        })?;
        let file = Arc::new(file);
        let mut all = lock(&self.0);
        all.retain(|file| file.strong_count() > 0);
        all.push(Arc::downgrade(&file));
        Ok(file)
    }
}

impl Given {
    fn file(&self, path: &Path, how: Open) -> Opened<File> {
        if let Some(file) = lock(&self.shared).get_mut(path) {
            // A missing mirror member may have returned since.
            if file.is_err() {
                *file = self.files.open(path, how);
            }
            return file.clone();
        }
        let waiting = lock(&self.waiting).get_mut(path).and_then(Vec::pop);
        waiting.unwrap_or_else(|| self.files.open(path, how))
    }

    /// Wraps a device so that also the writes of mirrors' background tasks check the lease.
    fn guarded(&self, device: Arc<dyn Device>) -> Arc<dyn Device> {
        match self.right.get() {
            Some(right) => Arc::new(Guard::below(device, right.clone())),
            None => device,
        }
    }

    fn table(&self, how: Open) -> Table {
        let mut table = Table::default();
        let given = self.clone();
        table.letter("w", move |arg| {
            let file = match arg {
                Arg::Text(path) => given.file(Path::new(path), how),
                _ => Err(Error::new(Kind::Unsupported, "the path of a file is expected: w\"/srv/disk\"")),
            };
            let device = file.map(|file| given.guarded(file));
            Box::pin(async move { device })
        });
        let given = self.clone();
        table.letter("e", move |arg| {
            let of = if let Arg::Numbers(of) = arg { lock(&given.disks).get(of).cloned() } else { None };
            let device = of.unwrap_or_else(no_place).map(|disk| given.guarded(disk));
            Box::pin(async move {
                let device = device?;
                device.look().await?;
                Ok(device)
            })
        });
        stores::know(&mut table, how);
        table
    }
}

fn no_place<T>() -> nine_block::Result<T> {
    Err(Error::new(Kind::Unsupported, "the place of a disk on the Ethernet is expected: e1.0"))
}

/// Opens a disk on these Ethernets; its events are logged.
fn disk(of: &[u64], over: &Over) -> Opened<Disk> {
    let address = match of {
        [shelf, slot] => format!("{shelf}.{slot}").parse().ok(),
        _ => None,
    };
    let Some(address) = address else { return no_place() };
    let disk = over.disk(address).map_err(|error| Error::new(Kind::Failed, format!("{error:#}")))?;
    let disk = Arc::new(disk);
    over.env.spawn(Box::pin(tell(disk.clone(), over.interfaces.clone())));
    Ok(disk)
}

impl Parts {
    /// Opens the file with this path, or all files and disks of an expression.
    pub fn open(word: &OsStr, how: Open, over: &Over) -> Result<Self> {
        let path = Path::new(word);
        let is_path = path.exists() || word.as_bytes().starts_with(b"/") || word.as_bytes().starts_with(b".");
        let given = Given::default();
        let table = given.table(how);
        if is_path {
            lock(&given.waiting).insert(path.into(), vec![Ok(given.files.open(path, how)?)]);
            let word = word.to_string_lossy().into_owned();
            let tree = Tree { at: 0, what: What::Leaf("w".into(), Arg::Text(word.clone())) };
            return Ok(Self {
                word,
                path: Some(path.into()),
                tree,
                table,
                given,
                how,
                start: Start::Careful,
                events: Events::default(),
                ends: Ends::default(),
            });
        }
        let word = word.to_str().context("a device expression is UTF-8")?.to_owned();
        let tree = table.parse(&word).with_context(|| wrong(&word))?;
        for path in shared(&tree) {
            let open = || given.files.open(path, how);
            lock(&given.shared).entry(path.into()).or_insert_with(open);
        }
        for (letter, arg) in leaves(&tree) {
            match (letter, arg) {
                ("w", Arg::Text(name)) => {
                    let path = Path::new(name);
                    if lock(&given.shared).contains_key(path) {
                        continue;
                    }
                    let file = given.files.open(path, how);
                    // `pop` takes from the end, so insert at the front.
                    lock(&given.waiting).entry(path.into()).or_default().insert(0, file);
                }
                ("e", Arg::Numbers(of)) => {
                    lock(&given.disks).entry(of.clone()).or_insert_with(|| disk(of, over));
                }
                _ => {}
            }
        }
        let (start, events) = (Start::Careful, Events::default());
        Ok(Self { word, path: None, tree, table, given, how, start, events, ends: Ends::default() })
    }

    /// Sets how mirrors may start. The default refuses to start if a missing member may be newer.
    pub fn starting(self, start: Start) -> Self {
        Self { start, ..self }
    }

    /// Makes all writes depend on this lease, if one is given.
    pub fn by(self, right: Option<&Arc<Right>>) -> Self {
        if let Some(right) = right {
            self.given.right.get_or_init(|| right.clone());
        }
        self
    }

    /// Returns whether a part (a mirror or fake worm) must be created before it can be opened.
    pub fn has_made(&self) -> bool {
        has_made(&self.tree)
    }

    /// Checks that all files and disks are blank.
    ///
    /// # Errors
    /// The first file or disk that is not blank.
    pub async fn are_blank(&self) -> Result<()> {
        self.are_blank_of(&self.tree).await
    }

    /// Checks the files and disks of a part of the expression.
    async fn are_blank_of(&self, tree: &Tree) -> Result<()> {
        let mut all: Vec<Arc<dyn Device>> = Vec::new();
        for_each_leaf(tree, &mut |leaf| {
            all.extend(self.file_of(leaf).map(|file| file as Arc<dyn Device>));
            all.extend(self.disk_of(leaf).map(|disk| disk as Arc<dyn Device>));
        });
        for device in all {
            device.look().await?;
            ensure!(
                is_blank(&*device).await?,
                "{}: something is on it, and would be lost; --force",
                device.name()
            );
        }
        Ok(())
    }

    /// Builds one device. With `make`, creates its mirror or fake worm as a new set with this name.
    pub async fn build(self, env: rt::Real, make: Option<[u8; 16]>) -> Result<Whole> {
        let device = if let Some(path) = &self.path {
            self.given.file(path, Open::Write)? as Arc<dyn Device>
        } else {
            self.device(&self.word, env, make, false).await.with_context(|| wrong(&self.word))?
        };
        let mut text = self.identity(&self.tree).await;
        if self.has_ram() {
            // A device with a part in memory is a new disk each time.
            let mut chance = [0; 16];
            env.entropy(&mut chance);
            text += &format!("{chance:?}");
        }
        let digits = digest(&SHA256, text.as_bytes());
        let serial = digits.as_ref()[..10].iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Whole { device, stays: !is_lost(&self.tree), files: self.given.files, serial, ends: self.ends })
    }

    /// Builds both devices of `c CACHE WORM` or `c n DISK`. With `make`, missing mirrors and fake worms are created as
    /// sets with these names, if their disks are blank or `force` is set.
    pub async fn build_both(self, env: rt::Real, make: Option<[[u8; 16]; 2]>, force: bool) -> Result<Both> {
        let What::Of("c", of) = &self.tree.what else { bail!("{}: {CACHED}", self.word) };
        let taken =
            |file: &Opened<File>| file.as_ref().err().filter(|error| error.kind == Kind::Reserved).cloned();
        if let Some(error) = lock(&self.given.shared).values().find_map(taken) {
            return Err(error.into());
        }
        if is_none(&of[0]) && is_once(&of[1]) {
            bail!("{}: what is written once has a cache before it: `c CACHE WORM`", of[1]);
        }
        let of = [("the cache", &of[0]), ("the worm", &of[1])];
        let mut both = Vec::new();
        for (i, (what, tree)) in of.into_iter().enumerate() {
            let text = tree.to_string();
            let mut device = self.device(&text, env, None, true).await;
            if device.is_err()
                && let Some(sets) = make
                && has_made(tree)
                && (force || self.are_blank_of(tree).await.is_ok())
            {
                device = self.device(&text, env, Some(sets[i]), true).await;
            }
            both.push(device.context(what)?);
        }
        let [cache, worm] = <[_; 2]>::try_from(both).ok().expect("there are two");
        Ok(Both { cache, worm, whole: None, events: self.events, ends: self.ends })
    }

    /// Builds the device of a part of the expression and starts its background tasks.
    async fn device(
        &self,
        text: &str,
        env: rt::Real,
        make: Option<[u8; 16]>,
        owned: bool,
    ) -> std::result::Result<Arc<dyn Device>, Wrong> {
        let events = self.events.clone();
        let how = How {
            block: BLOCK,
            start: self.start,
            // A device that is opened only for reading must not be marked either.
            watch: self.how == Open::Watch || self.how == Open::Read && self.has_made(),
            make,
            told: Arc::new(move |event| events.tell(event, env.wall().as_secs() as i64)),
            rest: Arc::new(move |pause| env.sleep_until(env.now() + time_of(pause))),
            owned,
            mirrors: self.ends.mirrors.clone(),
        };
        let built = self.table.build(text, &how).await?;
        for driver in built.drivers {
            let (driver, ends) = abortable(driver);
            self.ends.add(ends);
            env.spawn(Box::pin(async move {
                // The task was aborted, or has nothing more to do.
                let _ = driver.await;
            }));
        }
        Ok(built.device)
    }

    /// Returns whether data may be lost with this program even after a flush.
    pub fn has_ram(&self) -> bool {
        leaves(&self.tree).iter().any(|(letter, _)| *letter == "ram")
    }

    /// Returns the identity of a part, independent of the names of its files.
    async fn identity(&self, tree: &Tree) -> String {
        match &tree.what {
            What::Leaf(..) => self.identity_of_leaf(tree),
            // Members change, so a mirror is identified by its set.
            What::Of("{", members) => match self.set(members).await {
                Some(set) => format!("mirror {set:?}"),
                None => self.identities("{", members).await,
            },
            What::Of(name, of) => self.identities(name, of).await,
            What::Buffer(_, of) => Box::pin(self.identity(of)).await,
            What::Part(of, base, size) => format!("p({}){base}.{size}", Box::pin(self.identity(of)).await),
            What::Named(of, name) => format!("p({})\"{name}\"", Box::pin(self.identity(of)).await),
        }
    }

    async fn identities(&self, name: &str, of: &[Tree]) -> String {
        let mut text = name.to_owned();
        for tree in of {
            text = text + "(" + &Box::pin(self.identity(tree)).await + ")";
        }
        text
    }

    fn identity_of_leaf(&self, tree: &Tree) -> String {
        match (self.file_of(tree), self.disk_of(tree).and_then(|disk| disk.identify())) {
            (Some(file), _) => lock(&file.is).identity(&file.path),
            (_, Some(identify)) => format!("e {} {}", identify.model, identify.serial),
            _ => tree.to_string(),
        }
    }

    fn file_of(&self, leaf: &Tree) -> Option<Arc<File>> {
        let path = match &leaf.what {
            What::Leaf(letter, Arg::Text(name)) if letter == "w" => Path::new(name),
            _ => return None,
        };
        let path = self.path.as_deref().unwrap_or(path);
        self.given.files.all().into_iter().find(|file| file.path == path)
    }

    fn disk_of(&self, leaf: &Tree) -> Option<Arc<Disk>> {
        match &leaf.what {
            What::Leaf(letter, Arg::Numbers(of)) if letter == "e" => {
                lock(&self.given.disks).get(of).and_then(|disk| disk.clone().ok())
            }
            _ => None,
        }
    }

    /// Reads the name of a mirror's set from the first readable label (docs/block.md).
    async fn set(&self, members: &[Tree]) -> Option<Vec<u8>> {
        for member in members {
            let Some(leaf) = first_leaf(member) else { continue };
            let file = self.file_of(leaf).map(|file| file as Arc<dyn Device>);
            let device = file.or_else(|| Some(self.disk_of(leaf)? as Arc<dyn Device>));
            let Some(device) = device else { continue };
            let Ok(labels) = device.read(0, LABELS).await else { continue };
            let label = labels.chunks(SECTOR as usize).find(|label| label.starts_with(b"9mirror"));
            if let Some(label) = label {
                return Some(label[8..24].to_vec());
            }
        }
        None
    }
}

/// Returns whether a part must be created before it can be opened and writes its own state to its disks.
pub fn has_made(tree: &Tree) -> bool {
    match &tree.what {
        What::Of("{" | "f", _) => true,
        What::Of(_, of) => of.iter().any(has_made),
        What::Part(of, ..) | What::Named(of, _) | What::Buffer(_, of) => has_made(of),
        What::Leaf(..) => false,
    }
}

/// Returns whether the expression is `n`, no device.
pub fn is_none(tree: &Tree) -> bool {
    tree.what == What::Leaf("n".into(), Arg::None)
}

/// Returns whether each sector can be written only once.
fn is_once(tree: &Tree) -> bool {
    match &tree.what {
        What::Of("f", _) => true,
        What::Of(_, of) => of.iter().any(is_once),
        What::Part(of, ..) | What::Named(of, _) | What::Buffer(_, of) => is_once(of),
        What::Leaf(letter, _) => letter == "s3",
    }
}

fn for_each_leaf(tree: &Tree, does: &mut impl FnMut(&Tree)) {
    match &tree.what {
        What::Leaf(..) => does(tree),
        What::Of(_, of) => of.iter().for_each(|tree| for_each_leaf(tree, does)),
        What::Part(of, ..) | What::Named(of, _) | What::Buffer(_, of) => for_each_leaf(of, does),
    }
}

/// Returns the leaf that holds the first sector.
fn first_leaf(tree: &Tree) -> Option<&Tree> {
    match &tree.what {
        What::Leaf(..) => Some(tree),
        What::Of("(" | "[" | "ro" | "bare", of) => first_leaf(of.first()?),
        What::Buffer(_, of) => first_leaf(of),
        _ => None,
    }
}

fn wrong(word: &str) -> String {
    format!("there is no file {word}, and as a device expression it is wrong")
}

/// Returns the files to open once: those of which only parts are used and, for an archive, those that occur once.
fn shared(tree: &Tree) -> Vec<&Path> {
    fn find<'a>(tree: &'a Tree, is_part: bool, found: &mut Vec<(&'a Path, bool)>) {
        match &tree.what {
            What::Leaf(letter, Arg::Text(name)) if letter == "w" => found.push((Path::new(name), is_part)),
            What::Leaf(..) => {}
            What::Of(_, of) => of.iter().for_each(|tree| find(tree, false, found)),
            What::Part(of, ..) | What::Named(of, _) => find(of, true, found),
            What::Buffer(_, of) => find(of, false, found),
        }
    }
    let mut found = Vec::new();
    find(tree, false, &mut found);
    let is_archive = matches!(tree.what, What::Of("c", _));
    let is_shared = |path: &Path| {
        let mut same = found.iter().filter(|(other, _)| *other == path);
        if same.clone().count() == 1 { is_archive } else { same.all(|(_, is_part)| *is_part) }
    };
    found.iter().map(|(path, _)| *path).filter(|path| is_shared(path)).collect()
}

/// Parses an expression without opening anything.
pub fn parse(text: &str) -> std::result::Result<Tree, Wrong> {
    Given::default().table(Open::Read).parse(text)
}

/// Formats a number of sectors for people.
pub fn size(sectors: u64) -> String {
    format!("{sectors} sectors ({})", indicatif::HumanBytes(sectors * SECTOR))
}

/// Returns whether written data may be lost with this program.
fn is_lost(tree: &Tree) -> bool {
    match &tree.what {
        What::Leaf(name, _) => name == "ram",
        What::Buffer(..) => true,
        What::Of(_, of) => of.iter().any(is_lost),
        What::Part(of, ..) | What::Named(of, _) => is_lost(of),
    }
}

/// Returns the leaves, in order.
fn leaves(tree: &Tree) -> Vec<(&str, &Arg)> {
    match &tree.what {
        What::Leaf(name, arg) => vec![(name, arg)],
        What::Of(_, of) => of.iter().flat_map(leaves).collect(),
        What::Part(of, ..) | What::Named(of, _) | What::Buffer(_, of) => leaves(of),
    }
}

impl Is {
    fn of(path: &Path) -> io::Result<Self> {
        let meta = fs::metadata(path)?;
        Ok(if meta.file_type().is_block_device() {
            Self::Device(meta.rdev())
        } else {
            Self::File { dev: meta.dev(), ino: meta.ino() }
        })
    }

    /// Returns an identity that, as far as possible, survives restarts of the machine and the program.
    fn identity(self, path: &Path) -> String {
        let said = |file: &str| fs::read_to_string(file).ok().map(|text| text.trim().to_owned());
        let said = |file: &str| said(file).filter(|text| !text.is_empty());
        let host = || rustix::system::uname().nodename().to_string_lossy().into_owned();
        let machine = said("/etc/machine-id").unwrap_or_else(host);
        match self {
            Self::File { dev, ino } => {
                let system = rustix::fs::statvfs(path).map(|system| system.f_fsid);
                let system = system.ok().filter(|id| *id != 0).unwrap_or(dev);
                format!("{machine} file {system} {ino}")
            }
            Self::Device(number) => {
                let number = format!("{}:{}", rustix::fs::major(number), rustix::fs::minor(number));
                let dir = format!("/sys/dev/block/{number}");
                let part = said(&format!("{dir}/partition"));
                // A partition's directory is inside the one of its disk.
                let disk = if part.is_some() { format!("{dir}/..") } else { dir };
                let names = ["dm/uuid", "wwid", "device/wwid", "serial", "device/serial"];
                let name = names.iter().find_map(|name| said(&format!("{disk}/{name}")));
                let backing = said(&format!("{disk}/loop/backing_file"));
                let name = name.unwrap_or_else(|| format!("{machine} {}", backing.unwrap_or(number)));
                format!("device {name} {}", part.unwrap_or_default())
            }
        }
    }
}

impl File {
    fn open(path: &Path, how: Open) -> io::Result<Self> {
        let disk = match how {
            Open::Watch => HostDisk::watch(path)?,
            Open::Share => HostDisk::share(path)?,
            how => HostDisk::open(path, how == Open::Read)?,
        };
        let (is, moves) = (Mutex::new(Is::of(path)?), AtomicBool::new(false));
        Ok(Self { path: path.into(), moving: Moving::new(Arc::new(disk)), is, moves })
    }

    /// Returns whether data is still being copied from the previous file.
    pub fn moves(&self) -> bool {
        self.moves.load(Ordering::Relaxed)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns whether the path now names another file.
    pub fn is_another(&self) -> bool {
        match Is::of(&self.path) {
            Ok(is) => is != *lock(&self.is),
            Err(error) => {
                tracing::error!("{}: {error}; what is open is served on", self.path.display());
                false
            }
        }
    }

    /// Moves to the file that the path names now. Returns whether it did.
    pub async fn follow(&self, env: rt::Real) -> bool {
        if self.moves.swap(true, Ordering::Relaxed) {
            return false;
        }
        let moved = self.move_over(env).await;
        self.moves.store(false, Ordering::Relaxed);
        if let Err(error) = &moved {
            let path = self.path.display();
            tracing::error!("{path}: {error:#}; the file that was there before is served on");
        }
        moved.is_ok()
    }

    async fn move_over(&self, env: rt::Real) -> Result<()> {
        ensure!(!self.moving.shape().read_only, "it is only read: start the target again");
        // This opens the path without capabilities: the program has dropped them.
        let new = HostDisk::open(&self.path, false)
            .context("it cannot be opened, by this user and without capabilities")?;
        let (is, new) = (Is::of(&self.path)?, Arc::new(new) as Arc<dyn Device>);
        let begin = new.read(0, BLANK.min(new.shape().sectors)).await?;
        let text =
            "it is not empty: all of it would be written over, so it has to begin with 64 KiB of zeros";
        ensure!(begin.iter().all(|byte| *byte == 0), text);
        let (name, whole) = (self.moving.name(), self.moving.shape().sectors);
        tracing::info!("{name}: copies {} to the file that is there now", size(whole));
        self.moving.move_to(new, progress(env, name, whole)).await.map(drop)?;
        *lock(&self.is) = is;
        Ok(())
    }
}

impl Device for File {
    fn shape(&self) -> Shape {
        self.moving.shape()
    }

    fn unbacked(&self) -> u64 {
        self.moving.unbacked()
    }

    fn submit(&self, io: Io) {
        self.moving.submit(io);
    }

    fn name(&self) -> String {
        self.moving.name()
    }

    fn status(&self) -> String {
        self.moving.status()
    }

    fn owned_by(&self, owner: Arc<dyn SectorOwner>) {
        self.moving.owned_by(owner);
    }

    fn trouble(&self) -> Vec<String> {
        self.moving.trouble()
    }

    fn control(&self, words: &[&str]) -> nine_block::Result<()> {
        self.moving.control(words)
    }
}

/// Returns whether the device is blank.
pub async fn is_blank(device: &dyn Device) -> Result<bool> {
    match device.read(0, BLANK.min(device.shape().sectors)).await {
        Ok(begin) => Ok(begin.iter().all(|byte| *byte == 0)),
        Err(error) if error.kind == Kind::Unwritten => Ok(true),
        Err(error) => Err(error.into()),
    }
}

/// Returns a function that pauses between two pieces and logs the progress in tenths.
fn progress(env: rt::Real, name: String, whole: u64) -> Rest {
    let moved = AtomicU64::new(0);
    Arc::new(move |pause| {
        let Pause::Moved(count) = pause else { return env.sleep_until(env.now() + BETWEEN) };
        let before = moved.fetch_add(count, Ordering::Relaxed);
        let tenths = |sectors: u64| sectors.saturating_mul(10) / whole.max(1);
        if tenths(before + count) > tenths(before) {
            tracing::info!("{name}: {} of {}", size(before + count), size(whole));
        }
        env.sleep_until(env.now() + BETWEEN)
    })
}

/// Error text: the forms of an archive's devices.
pub const CACHED: &str = "an archive is the path of a file, which begins with `/` or `./`, or `c CACHE WORM`, or \
                          `c n DISK` without a cache";
/// Sectors in a block, for partitions and joins.
const BLOCK: u32 = 16;
/// Number of sectors at the start that hold a mirror's labels.
const LABELS: u64 = 9;
/// Number of sectors that are zero on a blank disk: partition tables and file systems begin there.
const BLANK: u64 = 128;
/// Longest wait for mirrors to close.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause between two pieces while a file's data is copied to its successor.
const BETWEEN: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_was_missing_is_opened_once_when_it_has_come() {
        let dir = tempfile::tempdir().unwrap();
        let (path, given) = (dir.path().join("disk"), Given::default());
        lock(&given.shared).insert(path.clone(), given.files.open(&path, Open::Write));
        assert!(given.file(&path, Open::Write).is_err());
        fs::write(&path, [0; 1024]).unwrap();
        let first = given.file(&path, Open::Write).unwrap();
        let second = given.file(&path, Open::Write).unwrap();
        assert!(Arc::ptr_eq(&first, &second), "its lock is ours already");
    }

    #[test]
    fn a_disk_that_another_has_is_reserved_and_one_that_is_not_there_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        fs::write(&path, [0; 512]).unwrap();
        let files = Files::default();
        let kind = || files.open(&path, Open::Write).err().map(|error| error.kind);
        let first = HostDisk::open(&path, false).unwrap();
        assert_eq!(kind(), Some(Kind::Reserved));
        drop(first);
        assert_eq!(kind(), None);
        fs::remove_file(&path).unwrap();
        assert_eq!(kind(), Some(Kind::Failed));
    }

    #[test]
    fn what_is_in_memory_alone_may_be_lost() {
        for (text, lost) in [("{w1w2}", false), ("{w1p(ram9)0.50}", true), ("(w1 buffer 1M w2)", true)] {
            assert_eq!(is_lost(&Table::default().parse(text).unwrap()), lost, "{text}");
        }
    }
}
