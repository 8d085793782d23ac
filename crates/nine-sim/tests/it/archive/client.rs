//! A client that works in its own directory, one operation at a time; and functions that read trees.
//!
//! In: random numbers. Out: requests, and their effects for the oracle. Data that it reads meanwhile is compared at
//! once.

use std::rc::Rc;
use std::time::Duration;

use nine_io::client::{Error, File};
use nine_net::Env;
use nine_proto::{Errno, GetMask, NOGID, OpenFlags, SetAttr, Time, TimeSet, mode};
use nine_sim::Rng;

use crate::archive::model::{Kind, Node, Tree, bytes};
use crate::archive::oracle::{DIRS, Oracle};

/// Names in a directory.
const NAMES: [&str; 9] =
    ["a", "b", "c", "d", "e", "f", "g", "a-name-that-is-somewhat-longer-than-others", "z"];
/// Directories within a client's directory.
const INNER: [&str; 4] = ["", "dir", "dir/deep", "other"];

/// A directory that exists from the start.
const ADM: &str = "adm";

/// Allowed failures of requests.
#[derive(Clone, Copy, Debug, Default)]
pub struct Allowed {
    /// There may be no space.
    pub full: bool,
    /// Devices may fail.
    pub failing: bool,
}

pub struct Worker {
    pub number: usize,
    pub root: File,
    pub oracle: Rc<Oracle>,
    pub rng: Rng,
    pub allowed: Allowed,
    /// Maximum length of a write in bytes.
    pub most: usize,
    pub held: Vec<(File, u64)>,
    /// How often there was no space.
    pub full: u64,
    pub failed: bool,
}

type Result<T> = std::result::Result<T, Error>;

impl Worker {
    fn path(&self, path: &str) -> String {
        format!("{}/{path}", DIRS[self.number])
    }

    async fn dir_of<'p>(&self, path: &'p str) -> Result<(File, &'p str)> {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        Ok((self.root.walk(self.path(dir)).await?, name))
    }

    fn noise(&mut self, most: usize) -> Vec<u8> {
        let len = 1 + self.rng.below(most);
        let mut bytes = Vec::with_capacity(len + 8);
        while bytes.len() < len {
            bytes.extend_from_slice(&self.rng.bits().to_le_bytes());
        }
        bytes.truncate(len);
        bytes
    }

    fn len(&mut self) -> usize {
        let most = [300, 3000, 20_000, self.most];
        most[self.rng.below(4)].min(self.most)
    }

    /// Returns a random existing path of a matching file.
    fn some(&mut self, tree: &Tree, is: impl Fn(&Node) -> bool) -> Option<String> {
        let all: Vec<_> = tree
            .names
            .keys()
            .filter(|path| !path.is_empty() && is(&tree.nodes[&tree.names[*path]]))
            .collect();
        (!all.is_empty()).then(|| all[self.rng.below(all.len())].clone())
    }

    /// Returns a path in an existing directory. The file may exist or not.
    fn any(&mut self, tree: &Tree) -> String {
        let dirs: Vec<_> =
            INNER.iter().filter(|dir| tree.get(dir).is_some_and(|node| node.kind == Kind::Dir)).collect();
        let (dir, name) = (dirs[self.rng.below(dirs.len())], NAMES[self.rng.below(NAMES.len())]);
        if dir.is_empty() { name.into() } else { format!("{dir}/{name}") }
    }

    /// Runs this many operations, with random pauses.
    pub async fn works(mut self, env: &impl Env, count: usize, pause: Duration) -> Self {
        let most = pause.as_micros() as usize;
        for _ in 0..count {
            let time = Duration::from_micros(self.rng.below(most + 1) as u64);
            if !time.is_zero() {
                env.sleep_until(env.now() + time).await;
            }
            match self.step().await {
                Ok(()) => {}
                Err(_) if self.allowed.failing => {
                    self.failed = true;
                    break;
                }
                Err(error) => panic!("client {}: {error}", self.number),
            }
        }
        self
    }

    /// Writes until there is no space. Returns whether that happened.
    pub async fn fills(&mut self, writes: usize) -> Result<bool> {
        let before = self.full;
        for _ in 0..writes {
            let tree = self.oracle.tree(self.number);
            match self.some(&tree, |node| node.kind == Kind::File && node.data.len() < 1 << 20) {
                Some(path) if self.rng.one_in(2) => self.writes(tree, &path).await?,
                _ if tree.get("").is_none() => self.step().await?,
                _ => self.creates(tree).await?,
            }
            if self.full > before {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Removes this many files, one after the other.
    pub async fn clears(&mut self, count: usize) -> Result<()> {
        self.held.clear();
        for _ in 0..count {
            let tree = self.oracle.tree(self.number);
            self.removes(tree).await?;
        }
        Ok(())
    }

    /// Runs an operation that changes the tree to this one.
    async fn changes<T>(
        &mut self,
        tree: Tree,
        what: String,
        op: impl AsyncFnOnce(&Self) -> Result<T>,
    ) -> Result<Option<T>> {
        self.oracle.begins(self.number, tree, what);
        match op(self).await {
            Ok(done) => {
                self.oracle.ends(self.number);
                Ok(Some(done))
            }
            Err(error) if self.allowed.full && error.errno() == Errno::ENOSPC => {
                self.oracle.refused(self.number);
                self.full += 1;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    async fn step(&mut self) -> Result<()> {
        let mut tree = self.oracle.tree(self.number);
        if tree.get("").is_none() {
            tree.make("", Node::new(Kind::Dir, 0o755, Vec::new()));
            let made = async |it: &Self| it.root.mkdir(DIRS[it.number], 0o755, NOGID).await;
            return self.changes(tree, "mkdir".into(), made).await.map(drop);
        }
        let file = |node: &Node| node.kind == Kind::File;
        match self.rng.below(32) {
            0..4 => self.creates(tree).await,
            4..12 => match self.some(&tree, file) {
                Some(path) => self.writes(tree, &path).await,
                None => self.creates(tree).await,
            },
            12..15 => match self.some(&tree, file) {
                Some(path) => self.resizes(tree, &path).await,
                None => self.creates(tree).await,
            },
            15..17 => self.renames(tree).await,
            17..20 => self.removes(tree).await,
            20 => match self.some(&tree, file) {
                Some(path) => self.links(tree, &path).await,
                None => Ok(()),
            },
            21 => {
                let path = self.any(&tree);
                if tree.get(&path).is_some() {
                    return Ok(());
                }
                // Some link targets are longer than an item of the tree.
                let most = if self.rng.below(4) == 0 { 2047 } else { 40 };
                let target = "x/".repeat(1 + self.rng.below(most));
                tree.make(&path, Node::new(Kind::Link, 0o777, target.clone().into()));
                let op = async |it: &Self| {
                    let (dir, name) = it.dir_of(&path).await?;
                    dir.symlink(name, &target, NOGID).await
                };
                self.changes(tree, format!("symlink {path}"), op).await.map(drop)
            }
            22 => {
                let path = INNER[1 + self.rng.below(3)];
                let above = path.rsplit_once('/').map_or("", |(above, _)| above);
                if tree.get(path).is_some() || tree.get(above).is_none_or(|node| node.kind != Kind::Dir) {
                    return Ok(());
                }
                tree.make(path, Node::new(Kind::Dir, 0o750, Vec::new()));
                let op = async |it: &Self| {
                    let (dir, name) = it.dir_of(path).await?;
                    dir.mkdir(name, 0o750, NOGID).await
                };
                self.changes(tree, format!("mkdir {path}"), op).await.map(drop)
            }
            23 | 24 => match self.some(&tree, |node| node.kind != Kind::Link) {
                Some(path) => self.sets_xattr(tree, &path).await,
                None => Ok(()),
            },
            25 => match self.some(&tree, |node| node.kind != Kind::Link) {
                Some(path) => self.sets(tree, &path).await,
                None => Ok(()),
            },
            26 | 27 => self.works_on_held(tree).await,
            28 => match self.some(&tree, file) {
                Some(path) => {
                    let open = self.root.open(self.path(&path), OpenFlags::RDWR).await?;
                    let begun = self.oracle.tick();
                    open.fsync(false).await?;
                    self.oracle.durable(begun);
                    Ok(())
                }
                None => Ok(()),
            },
            _ => match self.some(&tree, file) {
                Some(path) => {
                    let open = self.root.open(self.path(&path), OpenFlags::READ).await?;
                    let right = &tree.get(&path).expect("it was found").data;
                    let from = self.rng.below(right.len() + 1);
                    let count = self.rng.below(300_000);
                    let read = open.read(from as u64, count as u32).await?;
                    let right = &right[from..right.len().min(from + count)];
                    assert!(
                        read == right,
                        "client {}: {path} from {from}: {}",
                        self.number,
                        bytes(right, &read)
                    );
                    Ok(())
                }
                None => Ok(()),
            },
        }
    }

    async fn creates(&mut self, mut tree: Tree) -> Result<()> {
        let path = self.any(&tree);
        if tree.get(&path).is_some() {
            return Ok(());
        }
        let mode = if self.rng.one_in(2) { 0o644 } else { 0o600 };
        let id = tree.make(&path, Node::new(Kind::File, mode, Vec::new()));
        let op = async |it: &Self| {
            let (dir, name) = it.dir_of(&path).await?;
            dir.create(name, OpenFlags::RDWR | OpenFlags::EXCL, mode, NOGID).await
        };
        let made = self.changes(tree, format!("create {path}"), op).await?;
        let Some(open) = made else { return Ok(()) };
        let tree = self.oracle.tree(self.number);
        let most = self.len();
        self.writes_to(tree, &open, id, 0, most).await?;
        if self.held.len() < 4 && self.rng.one_in(3) {
            self.held.push((open, id));
        }
        Ok(())
    }

    async fn writes_to(
        &mut self,
        mut tree: Tree,
        open: &File,
        id: u64,
        at: usize,
        most: usize,
    ) -> Result<()> {
        let data = self.noise(most);
        tree.write(id, at, &data);
        let what = format!("write {id} {at}+{}", data.len());
        let wrote = self.changes(tree, what, async |_| open.write(at as u64, &data).await).await?;
        assert!(wrote.is_none_or(|wrote| wrote as usize == data.len()), "a write is done as a whole");
        Ok(())
    }

    async fn writes(&mut self, mut tree: Tree, path: &str) -> Result<()> {
        let (id, size) = (tree.names[path], tree.get(path).expect("it was found").data.len());
        let most = self.len();
        let append = self.rng.one_in(4);
        let open = OpenFlags::WRITE | if append { OpenFlags::APPEND } else { OpenFlags::READ };
        let open = self.root.open(self.path(path), open).await?;
        if !append {
            let at =
                if self.rng.one_in(6) { size + self.rng.below(50_000) } else { self.rng.below(size + 1) };
            return self.writes_to(tree, &open, id, at, most).await;
        }
        let data = self.noise(most);
        tree.write(id, size, &data);
        let what = format!("append {path} {size}+{}", data.len());
        self.changes(tree, what, async |_| open.write(0, &data).await).await.map(drop)
    }

    async fn resizes(&mut self, mut tree: Tree, path: &str) -> Result<()> {
        let (id, size) = (tree.names[path], tree.get(path).expect("it was found").data.len());
        let new = match self.rng.below(4) {
            0 => 0,
            1 => size + self.rng.below(100_000),
            _ => self.rng.below(size + 1),
        };
        let node = tree.node(id);
        Rc::make_mut(&mut node.data).resize(new, 0);
        node.mtime = None;
        let op = async |it: &Self| {
            let file = it.root.walk(it.path(path)).await?;
            file.setattr(&SetAttr { size: Some(new as u64), ..SetAttr::default() }).await
        };
        self.changes(tree, format!("resize {path} {size} to {new}"), op).await.map(drop)
    }

    async fn renames(&mut self, mut tree: Tree) -> Result<()> {
        let Some(from) = self.some(&tree, |_| true) else { return Ok(()) };
        let to = self.any(&tree);
        let kind = tree.get(&from).expect("it was found").kind;
        let fits = match tree.get(&to) {
            _ if to == from || to.starts_with(&format!("{from}/")) || from.starts_with(&format!("{to}/")) => {
                false
            }
            None => true,
            Some(node) => (node.kind == Kind::Dir) == (kind == Kind::Dir) && !tree.has_below(&to),
        };
        if !fits {
            return Ok(());
        }
        tree.rename(&from, &to);
        let op = async |it: &Self| {
            let (dir, name) = it.dir_of(&from).await?;
            let (into, new) = it.dir_of(&to).await?;
            dir.rename(name, &into, new).await
        };
        self.changes(tree, format!("rename {from} {to}"), op).await.map(drop)
    }

    async fn removes(&mut self, mut tree: Tree) -> Result<()> {
        let Some(path) = self.some(&tree, |_| true) else { return Ok(()) };
        let is_dir = tree.get(&path).expect("it was found").kind == Kind::Dir;
        if tree.has_below(&path) {
            return Ok(());
        }
        let id = tree.names[&path];
        if !is_dir && tree.nodes[&id].kind == Kind::File && self.held.len() < 4 && self.rng.one_in(3) {
            let open = self.root.open(self.path(&path), OpenFlags::RDWR).await?;
            self.held.push((open, id));
        }
        tree.unlink(&path);
        let op = async |it: &Self| {
            let (dir, name) = it.dir_of(&path).await?;
            dir.unlink(name, is_dir).await
        };
        self.changes(tree, format!("unlink {path}"), op).await.map(drop)
    }

    async fn links(&mut self, mut tree: Tree, path: &str) -> Result<()> {
        let to = self.any(&tree);
        if tree.get(&to).is_some() {
            return Ok(());
        }
        let id = tree.names[path];
        tree.link(&to, id);
        let op = async |it: &Self| {
            let (dir, name) = it.dir_of(&to).await?;
            let file = it.root.walk(it.path(path)).await?;
            dir.link(name, &file).await
        };
        self.changes(tree, format!("link {path} {to}"), op).await.map(drop)
    }

    async fn sets_xattr(&mut self, mut tree: Tree, path: &str) -> Result<()> {
        let name = ["user.a", "user.b", "user.long"][self.rng.below(3)];
        let most = [10, 900, 5000, 20_000][self.rng.below(4)];
        let value = Rc::new(self.noise(most));
        let id = tree.names[path];
        let old = match self.rng.one_in(3) {
            true => tree.node(id).xattrs.remove(name).map(|_| true),
            false => tree.node(id).xattrs.insert(name.into(), value.clone()).map(|_| false),
        };
        let op = async |it: &Self| {
            let file = it.root.walk(it.path(path)).await?;
            if old == Some(true) {
                file.remove_xattr(name).await
            } else {
                file.set_xattr(name, &value, 0).await
            }
        };
        if old.is_none() && !tree.node(id).xattrs.contains_key(name) {
            return Ok(());
        }
        self.changes(tree, format!("xattr {path} {name}"), op).await.map(drop)
    }

    async fn sets(&mut self, mut tree: Tree, path: &str) -> Result<()> {
        let id = tree.names[path];
        let (bits, sec) = (0o600 + self.rng.below(0o100) as u32, self.rng.below(1 << 40) as i64);
        let (mode, time) = (self.rng.one_in(2), self.rng.one_in(2));
        let node = tree.node(id);
        node.mode = if mode { bits } else { node.mode };
        node.mtime = if time && node.kind == Kind::File { Some(sec) } else { node.mtime };
        let op = async |it: &Self| {
            let file = it.root.walk(it.path(path)).await?;
            let mtime = time.then_some(TimeSet::To(Time { sec, nsec: 5 }));
            file.setattr(&SetAttr { mode: mode.then_some(bits), mtime, ..SetAttr::default() }).await
        };
        self.changes(tree, format!("setattr {path}"), op).await.map(drop)
    }

    async fn works_on_held(&mut self, tree: Tree) -> Result<()> {
        if self.held.is_empty() {
            return Ok(());
        }
        let which = self.rng.below(self.held.len());
        let (open, id) = self.held.swap_remove(which);
        let right = tree.nodes[&id].data.clone();
        match self.rng.below(4) {
            0 => open.close().await,
            1 => {
                let mut read = Vec::new();
                while read.len() < right.len() {
                    let piece = open.read(read.len() as u64, 100_000).await?;
                    assert!(!piece.is_empty(), "file {id} ends at {} of {}", read.len(), right.len());
                    read.extend_from_slice(&piece);
                }
                assert!(read == **right, "client {}: file {id}: {}", self.number, bytes(&right, &read));
                self.held.push((open, id));
                Ok(())
            }
            _ => {
                let (at, most) = (self.rng.below(right.len() + 1), self.len());
                self.writes_to(tree, &open, id, at, most).await?;
                self.held.push((open, id));
                Ok(())
            }
        }
    }
}

/// Reads everything below an unopened directory. If devices fail, unreadable files become holes.
pub async fn reads(root: &File, failing: bool) -> Result<Tree> {
    let mut tree = Tree::default();
    let mut todo = vec![String::new()];
    while let Some(at) = todo.pop() {
        match reads_dir(root, &at, failing, &mut tree, &mut todo).await {
            Ok(()) => {}
            Err(_) if failing => drop(tree.holes.insert(at)),
            Err(error) => return Err(error),
        }
    }
    Ok(tree)
}

async fn reads_dir(
    root: &File,
    at: &str,
    failing: bool,
    tree: &mut Tree,
    todo: &mut Vec<String>,
) -> Result<()> {
    let dir = root.walk(at).await?;
    let mut entries = dir.read_dir().await?;
    while let Some(entry) = entries.next().await {
        let name = String::from_utf8(entry?.name.into()).expect("names are text");
        let path = if at.is_empty() { name } else { format!("{at}/{name}") };
        if path == ADM {
            continue;
        }
        match reads_file(root, &path, tree).await {
            Ok(Kind::Dir) => todo.push(path),
            Ok(_) => {}
            Err(_) if failing => drop(tree.holes.insert(path)),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

async fn reads_file(root: &File, path: &str, tree: &mut Tree) -> Result<Kind> {
    let file = root.walk(path).await?;
    let attr = file.getattr(GetMask::ALL).await?;
    let id = attr.qid.path;
    if let Some(node) = tree.nodes.get(&id) {
        tree.names.insert(path.into(), id);
        return Ok(node.kind);
    }
    let (kind, data) = match attr.mode & mode::S_IFMT {
        mode::S_IFDIR => (Kind::Dir, Vec::new()),
        mode::S_IFLNK => (Kind::Link, file.readlink().await?.into()),
        _ => (Kind::File, content(&file, attr.size).await?),
    };
    let mut node = Node::new(kind, attr.mode & 0o7777, data);
    node.links = if kind == Kind::Dir { 0 } else { attr.nlink as u32 };
    node.mtime = (kind != Kind::Dir).then_some(attr.mtime.sec);
    if kind != Kind::Link {
        for name in file.xattrs().await? {
            let value = file.xattr(&name).await?;
            node.xattrs.insert(String::from_utf8(name).expect("names are text"), Rc::new(value));
        }
    }
    tree.names.insert(path.into(), id);
    tree.nodes.insert(id, Rc::new(node));
    Ok(kind)
}

async fn content(file: &File, size: u64) -> Result<Vec<u8>> {
    let mut data = Vec::with_capacity(size as usize);
    if size == 0 {
        return Ok(data);
    }
    let open = file.open("", OpenFlags::READ).await?;
    loop {
        let piece = open.read(data.len() as u64, 256 << 10).await?;
        if piece.is_empty() {
            return Ok(data);
        }
        data.extend_from_slice(&piece);
    }
}
