//! Durability through a mux with `-r`: programs that save files carefully, and a server that crashes between their
//! steps.
//!
//! The server keeps each file and each directory twice: as clients see it, and as it is on stable storage. A Tfsync
//! stores this one file or directory. A crash loses a random part of all other changes.
//!
//! The oracle knows the acknowledged changes alone. A successful sync must find all of them on stable storage. A sync
//! that fails with EIO is allowed only after a crash; the oracle then takes what the server has.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use nine_io::client::{Error, File};
use nine_io::server::{Answer, FileServer, Reply, Req, Request};
use nine_mux::{Flags, Wait};
use nine_proto::{
    Attr, Dialect, Errno, GetMask, Make, NOGID, Op, OpenFlags, Qid, Result, SetAttr, Walked, mode,
};
use nine_sim::{Rng, Shape, World, seeds};

use crate::mux::reconnect::Place;
use crate::mux::world::{Muxed, owner};

/// One file or directory, by its number.
#[derive(Clone, Default, Debug, PartialEq, Eq)]
struct Content {
    data: Vec<u8>,
    names: BTreeMap<Vec<u8>, usize>,
    mode: u32,
}

#[derive(Default)]
struct Inode {
    is_dir: bool,
    live: Content,
    stable: Content,
}

/// The server. Inode 0 is the root.
struct CrashingServer(Mutex<Vec<Inode>>);

struct Node(usize);

impl CrashingServer {
    fn new() -> Self {
        let root = Inode { is_dir: true, ..Inode::default() };
        Self(Mutex::new(vec![root]))
    }

    /// Crashes: each unsynced change may be lost.
    fn crash(&self, rng: &mut Rng) {
        for inode in &mut *self.0.lock().unwrap() {
            let Content { data, names, mode } = &mut inode.stable;
            let live = &inode.live;
            let mut survives = || rng.below(4) == 0;
            if survives() {
                data.clone_from(&live.data);
            }
            if survives() {
                names.clone_from(&live.names);
            }
            if survives() {
                *mode = live.mode;
            }
            inode.live = inode.stable.clone();
        }
    }

    fn live(&self, number: usize) -> Content {
        self.0.lock().unwrap()[number].live.clone()
    }

    fn stable(&self, number: usize) -> Content {
        self.0.lock().unwrap()[number].stable.clone()
    }

    fn answer(&self, req: &Request) -> Result<Reply> {
        let inodes = &mut *self.0.lock().unwrap();
        let qid = |inodes: &[Inode], number: usize| {
            let ty = if inodes[number].is_dir { Qid::DIR } else { 0 };
            Qid { ty, vers: 0, path: number as u64 + 1 }
        };
        let op = req.op();
        if let Op::Attach { .. } = op {
            return Ok(Reply::Attach { qid: qid(inodes, 0), node: Arc::new(Node(0)) });
        }
        let at = req.node::<Node>()?.0;
        let child = |inodes: &[Inode], dir: usize, name: &[u8]| {
            inodes[dir].live.names.get(name).copied().ok_or(Errno::ENOENT)
        };
        Ok(match op {
            Op::Walk { names } => {
                let (mut at, mut qids) = (at, Walked::new());
                for name in names.iter() {
                    at = child(inodes, at, name)?;
                    qids.push(qid(inodes, at));
                }
                Reply::Walk { qids, node: Some(Arc::new(Node(at))) }
            }
            Op::Open { flags } => {
                if flags.has(OpenFlags::TRUNC) {
                    inodes[at].live.data.clear();
                }
                Reply::Open { qid: qid(inodes, at), iounit: 0, node: Arc::new(Node(at)) }
            }
            Op::Create { name, make, flags, .. } => {
                let number = match child(inodes, at, name) {
                    Ok(_) if flags.has(OpenFlags::EXCL) => return Err(Errno::EEXIST.into()),
                    Ok(number) => number,
                    Err(_) => {
                        inodes.push(Inode { is_dir: make == Make::Dir, ..Inode::default() });
                        let number = inodes.len() - 1;
                        inodes[at].live.names.insert(name.into(), number);
                        number
                    }
                };
                if flags.has(OpenFlags::TRUNC) {
                    inodes[number].live.data.clear();
                }
                Reply::Open { qid: qid(inodes, number), iounit: 0, node: Arc::new(Node(number)) }
            }
            Op::Make { name, make, .. } => {
                if child(inodes, at, name).is_ok() {
                    return Err(Errno::EEXIST.into());
                }
                let number = match make {
                    Make::Link => req.node2::<Node>()?.0,
                    make => {
                        inodes.push(Inode { is_dir: make == Make::Dir, ..Inode::default() });
                        inodes.len() - 1
                    }
                };
                inodes[at].live.names.insert(name.into(), number);
                Reply::Made(qid(inodes, number))
            }
            Op::Unlink { name, .. } => {
                child(inodes, at, name)?;
                inodes[at].live.names.remove(name);
                Reply::Done
            }
            Op::RenameAt { old, new, .. } => {
                let number = child(inodes, at, old)?;
                let into = req.node2::<Node>()?.0;
                inodes[at].live.names.remove(old);
                inodes[into].live.names.insert(new.into(), number);
                Reply::Done
            }
            Op::Write { offset, data } => {
                let (live, offset) = (&mut inodes[at].live.data, offset as usize);
                live.resize(live.len().max(offset + data.len()), 0);
                live[offset..offset + data.len()].copy_from_slice(data);
                Reply::Wrote(data.len() as u32)
            }
            Op::Setattr { set } => {
                let live = &mut inodes[at].live;
                live.mode = set.mode.unwrap_or(live.mode);
                set.size.iter().for_each(|&size| live.data.resize(size as usize, 0));
                Reply::Done
            }
            Op::Fsync { datasync } => {
                let inode = &mut inodes[at];
                let mode = if datasync { inode.stable.mode } else { inode.live.mode };
                inode.stable = Content { mode, ..inode.live.clone() };
                Reply::Done
            }
            Op::Getattr { .. } => {
                let ty = if inodes[at].is_dir { mode::S_IFDIR } else { mode::S_IFREG };
                Reply::Attr(Box::new(Attr {
                    valid: GetMask::BASIC,
                    qid: qid(inodes, at),
                    mode: ty | 0o777,
                    size: inodes[at].live.data.len() as u64,
                    ..Attr::default()
                }))
            }
            Op::Clunk => Reply::Done,
            _ => return Err(Errno::EOPNOTSUPP.into()),
        })
    }
}

impl FileServer for CrashingServer {
    fn serve(&self, req: Req) -> Answer {
        let answer = self.answer(&req);
        req.now(answer)
    }
}

/// A program's view of the mount, and the oracle.
struct Machine {
    server: Arc<CrashingServer>,
    place: Place,
    rng: Rng,
    root: File,
    /// Acknowledged changes.
    expected: BTreeMap<usize, Content>,
    /// Directories that stay open.
    held: Vec<(usize, File)>,
    crashes: usize,
    /// One in so many steps begins with a crash; 0: none.
    risk: usize,
    synced: usize,
    failed: usize,
}

impl Machine {
    /// The server may crash here, or the connection may end.
    async fn step(&mut self) {
        if self.risk != 0 && self.rng.below(self.risk) == 0 {
            self.crashes += 1;
            self.place.down();
            let is_crash = self.rng.below(4) > 0;
            if is_crash {
                self.server.crash(&mut self.rng);
            }
            self.place.up(&self.server);
        }
    }

    /// Returns the number of an existing file, read from the server directly.
    fn number(&self, dir: usize, name: &str) -> usize {
        self.server.live(dir).names[name.as_bytes()]
    }

    fn expected(&mut self, number: usize) -> &mut Content {
        self.expected.entry(number).or_default()
    }

    async fn create(&mut self, dir: &(usize, File), name: &str) -> std::result::Result<(usize, File), Error> {
        self.step().await;
        let flags = OpenFlags::RDWR | OpenFlags::TRUNC;
        let file = dir.1.create(name, flags, 0o644, NOGID).await?;
        let number = self.number(dir.0, name);
        self.expected(dir.0).names.insert(name.into(), number);
        self.expected(number).data.clear();
        Ok((number, file))
    }

    async fn open(&mut self, dir: &(usize, File), name: &str) -> std::result::Result<(usize, File), Error> {
        self.step().await;
        let file = dir.1.open(name, OpenFlags::RDWR).await?;
        Ok((self.number(dir.0, name), file))
    }

    async fn dir(&mut self, number: usize) -> std::result::Result<(usize, File), Error> {
        self.step().await;
        let path = if number == 0 { "far" } else { "far/sub" };
        Ok((number, self.root.walk(path).await?))
    }

    async fn write(&mut self, file: &(usize, File), offset: u64) -> std::result::Result<(), Error> {
        self.step().await;
        let data = vec![self.rng.below(256) as u8; 1 + self.rng.below(100)];
        file.1.write_all_at(offset, &data).await?;
        let (live, offset) = (&mut self.expected(file.0).data, offset as usize);
        live.resize(live.len().max(offset + data.len()), 0);
        live[offset..offset + data.len()].copy_from_slice(&data);
        Ok(())
    }

    async fn chmod(&mut self, file: &(usize, File)) -> std::result::Result<(), Error> {
        self.step().await;
        let mode = self.rng.below(0o777) as u32;
        file.1.setattr(&SetAttr { mode: Some(mode), ..SetAttr::default() }).await?;
        // `mode` has no file type, so take the server's value.
        self.expected(file.0).mode = self.server.live(file.0).mode;
        Ok(())
    }

    async fn rename(
        &mut self,
        from: &(usize, File),
        old: &str,
        to: &(usize, File),
        new: &str,
    ) -> std::result::Result<(), Error> {
        self.step().await;
        from.1.rename(old, &to.1, new).await?;
        let number = self.number(to.0, new);
        self.expected(from.0).names.remove(old.as_bytes());
        self.expected(to.0).names.insert(new.into(), number);
        Ok(())
    }

    async fn link(
        &mut self,
        dir: &(usize, File),
        name: &str,
        file: &(usize, File),
    ) -> std::result::Result<(), Error> {
        self.step().await;
        dir.1.link(name, &file.1).await?;
        self.expected(dir.0).names.insert(name.into(), file.0);
        Ok(())
    }

    async fn unlink(&mut self, dir: &(usize, File), name: &str) -> std::result::Result<(), Error> {
        self.step().await;
        dir.1.unlink(name, false).await?;
        self.expected(dir.0).names.remove(name.as_bytes());
        Ok(())
    }

    async fn sync(&mut self, file: &(usize, File), data_only: bool) -> std::result::Result<(), Error> {
        self.step().await;
        let number = file.0;
        let held = self.held.iter().find(|(of, _)| *of == number).filter(|_| self.rng.below(2) == 0);
        let synced = match held {
            Some((_, held)) => held.fsync(data_only).await,
            None if file.1.qid().is_dir() => file.1.open("", OpenFlags::READ).await?.fsync(data_only).await,
            None => file.1.fsync(data_only).await,
        };
        match synced {
            Ok(()) => {
                self.synced += 1;
                let (stable, expected) = (self.server.stable(number), self.expected(number));
                assert_eq!((&stable.data, &stable.names), (&expected.data, &expected.names), "of {number}");
                assert!(data_only || stable.mode == expected.mode, "the mode of {number}");
                Ok(())
            }
            Err(error) => {
                if error.errno() == Errno::EIO {
                    assert!(self.crashes > 0, "nothing was lost: {error}");
                    self.failed += 1;
                    let live = self.server.live(number);
                    self.expected.insert(number, live);
                }
                Err(error)
            }
        }
    }

    /// A rollback journal, as in SQLite.
    async fn sqlite(&mut self) -> std::result::Result<(), Error> {
        let dir = self.dir(0).await?;
        let db = match self.open(&dir, "db").await {
            Ok(db) => db,
            Err(_) => self.create(&dir, "db").await?,
        };
        let journal = self.create(&dir, "db-journal").await?;
        self.write(&journal, 0).await?;
        self.sync(&journal, false).await?;
        self.sync(&dir, true).await?;
        let offset = self.rng.below(100) as u64;
        self.write(&db, offset).await?;
        self.sync(&db, true).await?;
        self.unlink(&dir, "db-journal").await?;
        self.sync(&dir, false).await
    }

    /// A replaced file, as in dpkg; sometimes in another directory.
    async fn dpkg(&mut self, sub: usize) -> std::result::Result<(), Error> {
        let (dir, sub) = (self.dir(0).await?, self.dir(sub).await?);
        let name = ["conf", "lib"][self.rng.below(2)];
        let new = format!("{name}.dpkg-new");
        let file = self.create(&dir, &new).await?;
        self.write(&file, 0).await?;
        self.chmod(&file).await?;
        let data_only = self.rng.below(4) == 0;
        self.sync(&file, data_only).await?;
        let into = if self.rng.below(2) == 0 { &dir } else { &sub };
        self.rename(&dir, &new, into, name).await?;
        self.sync(&dir, false).await?;
        self.sync(into, false).await
    }

    /// An object that is written, closed, renamed, and synced by another descriptor, as in git.
    async fn git(&mut self, sub: usize, number: usize) -> std::result::Result<(), Error> {
        let (dir, sub) = (self.dir(0).await?, self.dir(sub).await?);
        let (tmp, name) = (format!("tmp_obj_{number}"), format!("object-{number}"));
        let file = self.create(&dir, &tmp).await?;
        self.write(&file, 0).await?;
        let is_link = self.rng.below(2) == 0;
        if is_link {
            self.link(&sub, &name, &file).await?;
        }
        drop(file);
        match is_link {
            true => self.unlink(&dir, &tmp).await?,
            false => self.rename(&dir, &tmp, &sub, &name).await?,
        }
        let again = self.open(&sub, &name).await?;
        self.sync(&again, false).await?;
        self.sync(&sub, false).await?;
        self.sync(&dir, false).await
    }
}

fn run(seed: u64, risk: usize) -> (usize, usize) {
    let world = World::new(seed);
    let m = Muxed::new(&world);
    let mut rng = world.rng();
    let counts = Arc::new(Mutex::new((0, 0)));
    let result = counts.clone();
    world.run(async move {
        let server = Arc::new(CrashingServer::new());
        let place = Place::new(&m, &server, Shape::default());
        let mount = place.server("far", Wait::Ever);
        m.space.mount(mount, "", &owner(), "/far", Flags::REPLACE).await.unwrap();
        let (client, root) = m.client(Dialect::L).await;
        let far = root.walk("far").await.unwrap();
        far.mkdir("sub", 0o755, NOGID).await.unwrap();
        far.open("", OpenFlags::READ).await.unwrap().fsync(false).await.unwrap();
        drop(far);
        let sub = 1;
        let held = vec![
            (0, root.open("far", OpenFlags::READ).await.unwrap()),
            (sub, root.open("far/sub", OpenFlags::READ).await.unwrap()),
        ];
        let mut machine = Machine {
            expected: [(0, server.live(0))].into(),
            server,
            place,
            rng: rng.fork(),
            root,
            held,
            crashes: 0,
            risk,
            synced: 0,
            failed: 0,
        };
        for round in 0..40 {
            let done = match rng.below(3) {
                0 => machine.sqlite().await,
                1 => machine.dpkg(sub).await,
                _ => machine.git(sub, round).await,
            };
            if let Err(error) = done {
                assert!(machine.crashes > 0, "nothing was lost: {error}");
            }
        }
        *counts.lock().unwrap() = (machine.synced, machine.failed);
        drop(machine);
        m.quiet(&client).await;
        m.clear().await;
    });
    world.settle();
    *result.lock().unwrap()
}

#[test]
fn every_sync_that_succeeds_has_kept_what_was_acknowledged_before() {
    let (mut synced, mut failed) = (0, 0);
    for seed in seeds(64) {
        let counts = run(seed, [8, 20, 60][seed as usize % 3]);
        (synced, failed) = (synced + counts.0, failed + counts.1);
    }
    assert!(synced > 100 && failed > 20, "{synced} syncs, {failed} of them failed");
}

#[test]
fn no_sync_fails_while_the_server_stays() {
    let (synced, failed) = run(0, 0);
    assert!(synced > 50 && failed == 0, "{synced} syncs, {failed} failed");
}
