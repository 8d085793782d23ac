//! The disks that a target, or an archive, is made of.
//!
//! In: a path or an expression. Out: files and sockets that are open, and then, when the program has given up its
//! rights, one device of them, or two; what tells it from any other; files that have another one in their place by now.
//!
//! Always holds: until the device is made nothing is read, and no thread is started.

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

/// Opened, and not asked for anything yet.
pub struct Parts {
    word: String,
    /// It is no expression but the path of a file.
    path: Option<PathBuf>,
    tree: Tree,
    table: Table,
    given: Given,
    how: Open,
    start: Start,
    events: Events,
    ends: Ends,
}

/// How files are opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Open {
    /// To be written: nobody else has them.
    Write,
    /// To be read, as all others who have them do.
    Read,
    /// To be read, while another may write them.
    Watch,
    /// To be written, as others do.
    Share,
}

/// One device of them.
pub struct Whole {
    pub device: Arc<dyn Device>,
    /// What was written to it is there when this program has ended.
    pub stays: bool,
    pub files: Files,
    /// What tells it from any other, in 20 characters.
    pub serial: String,
    /// Of what its mirrors and buffers do beside operations.
    pub ends: Ends,
}

/// The two devices of an archive.
pub struct Both {
    pub cache: Arc<dyn Device>,
    pub worm: Arc<dyn Device>,
    /// The file that both are parts of, if they are.
    pub whole: Option<(PathBuf, Arc<dyn Device>)>,
    pub events: Events,
    /// Of what its mirrors and buffers do beside operations.
    pub ends: Ends,
}

/// What mirrors and buffers do beside operations, and how it is ended.
#[derive(Clone, Default)]
pub struct Ends {
    tasks: Arc<Mutex<Vec<AbortHandle>>>,
    mirrors: OpenMirrors,
}

impl Ends {
    fn add(&self, one: AbortHandle) {
        lock(&self.tasks).push(one);
    }

    /// From now on nothing is done that nobody has asked for.
    pub fn end(&self) {
        self.mirrors.abort();
        lock(&self.tasks).drain(..).for_each(|one| one.abort());
    }

    /// The same, in good order and after the last write: mirrors have nothing to make equal at the next start. A device
    /// that does not answer is not waited for longer than [`CLOSE_TIMEOUT`].
    pub async fn close(&self, env: &rt::Real) {
        if within(env, CLOSE_TIMEOUT, self.mirrors.close()).await.is_none() {
            tracing::warn!("a mirror does not answer: the next start makes its members equal");
        }
        self.end();
    }
}

/// What happens to mirrors goes to the log, and to that of the archive that is made of them.
#[derive(Clone, Default)]
pub struct Events(Arc<Mutex<Option<Log>>>);

impl Events {
    /// They go there from now on.
    pub fn to(&self, log: Log) {
        *lock(&self.0) = Some(log);
    }

    fn tell(&self, event: &nine_block::Event, time: i64) {
        match event.what {
            Happening::Back | Happening::Returning | Happening::Copied | Happening::Compared(0) => {
                tracing::info!("{event}");
            }
            // A line of its own for the log, which leaves out some where there are many of one: this one never.
            Happening::Aside(_) => tracing::warn!("{event}"),
            _ => tracing::warn!("{event}"),
        }
        if let Some(log) = &*lock(&self.0) {
            log.push(time, event);
        }
    }
}

/// Those that are open.
#[derive(Clone, Default)]
pub struct Files(Arc<Mutex<Vec<Weak<File>>>>);

/// A file, or a block device, that is a part of it.
pub struct File {
    path: PathBuf,
    moving: Moving,
    is: Mutex<Is>,
    moves: AtomicBool,
}

/// Which file it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Is {
    File { dev: u64, ino: u64 },
    Device(u64),
}

/// What was opened, for the letters of a table.
#[derive(Clone, Default)]
struct Given {
    files: Files,
    /// Files that nobody has taken yet, by their paths; one that was not there is opened when it is asked for again.
    waiting: Shared<PathBuf, Vec<Opened<File>>>,
    /// Those of an archive, and files of which several parts are taken: each is opened once, however often it is asked
    /// for.
    shared: Shared<PathBuf, Opened<File>>,
    /// Disks, by their places: each is one, however often it is asked for.
    disks: Shared<Vec<u64>, Opened<Disk>>,
    /// Without which nothing is written on any of them.
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
            // What another has is not missing: he writes to it.
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
            // A member that was missing may have been put in its place since.
            if file.is_err() {
                *file = self.files.open(path, how);
            }
            return file.clone();
        }
        let waiting = lock(&self.waiting).get_mut(path).and_then(Vec::pop);
        waiting.unwrap_or_else(|| self.files.open(path, how))
    }

    /// What mirrors write by themselves asks for the right, too.
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

/// A disk on these Ethernets, what happens to which is logged.
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
    /// The file of this path, or those of an expression.
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
                    // Taken from the end.
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

    /// What its mirrors may start with; else no member that is missing may be newer.
    pub fn starting(self, start: Start) -> Self {
        Self { start, ..self }
    }

    /// Nothing is written on them without this right.
    pub fn by(self, right: Option<&Arc<Right>>) -> Self {
        if let Some(right) = right {
            self.given.right.get_or_init(|| right.clone());
        }
        self
    }

    /// Whether a part of it has to be made before it can be opened.
    pub fn has_made(&self) -> bool {
        has_made(&self.tree)
    }

    /// Nothing is on them.
    ///
    /// # Errors
    /// The first on which something is.
    pub async fn are_blank(&self) -> Result<()> {
        self.are_blank_of(&self.tree).await
    }

    /// The same of those of a part of the expression.
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

    /// Makes one device of them; of the set of this name, if it is new.
    pub async fn build(self, env: rt::Real, make: Option<[u8; 16]>) -> Result<Whole> {
        let device = if let Some(path) = &self.path {
            self.given.file(path, Open::Write)? as Arc<dyn Device>
        } else {
            self.device(&self.word, env, make, false).await.with_context(|| wrong(&self.word))?
        };
        let mut text = self.identity(&self.tree).await;
        if self.has_ram() {
            // Another disk each time.
            let mut chance = [0; 16];
            env.entropy(&mut chance);
            text += &format!("{chance:?}");
        }
        let digits = digest(&SHA256, text.as_bytes());
        let serial = digits.as_ref()[..10].iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Whole { device, stays: !is_lost(&self.tree), files: self.given.files, serial, ends: self.ends })
    }

    /// Makes both devices of `c CACHE WORM`, or of `c n DISK`. What `make` is given for: mirrors and fake worms that
    /// are not there are made, of sets of these names, on disks that begin with zeros; with `force` on all.
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

    /// The device of a part of the expression, at work.
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
            // Of what is only looked at nothing is noted either.
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
                // It has been ended, or has nothing more to do.
                let _ = driver.await;
            }));
        }
        Ok(built.device)
    }

    /// Whether something that is written to it may be gone with this program, though it was flushed.
    pub fn has_ram(&self) -> bool {
        leaves(&self.tree).iter().any(|(letter, _)| *letter == "ram")
    }

    /// What it is, however its files are called.
    async fn identity(&self, tree: &Tree) -> String {
        match &tree.what {
            What::Leaf(..) => self.identity_of_leaf(tree),
            // Members come and go.
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

    /// The name of a mirror's set, from the first label that can be read (docs/block.md).
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

/// Whether a part of it has to be made before it can be opened, and is kept by writing to it.
pub fn has_made(tree: &Tree) -> bool {
    match &tree.what {
        What::Of("{" | "f", _) => true,
        What::Of(_, of) => of.iter().any(has_made),
        What::Part(of, ..) | What::Named(of, _) | What::Buffer(_, of) => has_made(of),
        What::Leaf(..) => false,
    }
}

/// Whether it is no device at all.
pub fn is_none(tree: &Tree) -> bool {
    tree.what == What::Leaf("n".into(), Arg::None)
}

/// Whether it takes each sector once.
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

/// The one with its first sector.
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

/// Files that are opened once: those of which only parts are taken, and, of an archive, those that stand there once.
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

/// Understands an expression, and opens nothing.
pub fn parse(text: &str) -> std::result::Result<Tree, Wrong> {
    Given::default().table(Open::Read).parse(text)
}

/// For people.
pub fn size(sectors: u64) -> String {
    format!("{sectors} sectors ({})", indicatif::HumanBytes(sectors * SECTOR))
}

/// Whether something that was written to it may be gone with this program.
fn is_lost(tree: &Tree) -> bool {
    match &tree.what {
        What::Leaf(name, _) => name == "ram",
        What::Buffer(..) => true,
        What::Of(_, of) => of.iter().any(is_lost),
        What::Part(of, ..) | What::Named(of, _) => is_lost(of),
    }
}

/// Its letters, in their order.
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

    /// What stays the same when machine and program have started anew, as far as anybody knows.
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
                // That of a partition is in that of the disk.
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

    /// It has not got yet all that its predecessor has.
    pub fn moves(&self) -> bool {
        self.moves.load(Ordering::Relaxed)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether another file has its path by now.
    pub fn is_another(&self) -> bool {
        match Is::of(&self.path) {
            Ok(is) => is != *lock(&self.is),
            Err(error) => {
                tracing::error!("{}: {error}; what is open is served on", self.path.display());
                false
            }
        }
    }

    /// Moves to the file that has its path now. Whether it has.
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
        // What the program may still open: its capabilities are gone.
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

/// Whether nothing is on it.
pub async fn is_blank(device: &dyn Device) -> Result<bool> {
    match device.read(0, BLANK.min(device.shape().sectors)).await {
        Ok(begin) => Ok(begin.iter().all(|byte| *byte == 0)),
        Err(error) if error.kind == Kind::Unwritten => Ok(true),
        Err(error) => Err(error.into()),
    }
}

/// Pauses, and says how far it is.
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

/// What an archive is made of.
pub const CACHED: &str = "an archive is the path of a file, which begins with `/` or `./`, or `c CACHE WORM`, or \
                          `c n DISK` without a cache";
/// Sectors of a block, for partitions and joins.
const BLOCK: u32 = 16;
/// Sectors among which the labels of a mirror are.
const LABELS: u64 = 9;
/// Sectors that are zeros on a disk with nothing on it: tables and file systems begin there.
const BLANK: u64 = 128;
/// The longest wait for mirrors to be closed.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);
/// Between two pieces that a file which moves copies.
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
