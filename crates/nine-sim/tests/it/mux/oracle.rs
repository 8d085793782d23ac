//! Clients that work in a changing name space, checked by the oracle in [`model`](crate::mux::model).
//!
//! A world runs in rounds. In a round several operations run at once: at most one changes a tree, at most one changes
//! the name space (then the change of the tree is a write, which creates and removes no names), and the others only
//! look. The results must be explained by some order of the changes. Each change gives the result and the state of the
//! oracle. Each look walks in one of the states on the way, and reads in the same or a later one. A cancelled change
//! has happened or not. If several states explain all results, the next round continues from each of them.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use nine_io::client::{Client, Error};
use nine_io::server::{Core, Gate, Service};
use nine_mux::Flags;
use nine_net::Env;
use nine_proto::{Dialect, Errno, NOGID, NOUID, OpenFlags, RenameMode};
use nine_servers::Ram;
use nine_sim::{Rng, Shape, SimEnv, World, seeds};

use crate::mux::model::{Id, Model, Op, Saw};
use crate::mux::world::{Muxed, fill, owner};

const ROUNDS: usize = 30;
const CLIENTS: usize = 3;
const NAMES: [&str; 5] = ["ram:", "one", "two", "three", "four"];
const DIALECTS: [&[Dialect]; 3] =
    [&[Dialect::L, Dialect::U, Dialect::P2000], &[Dialect::U, Dialect::P2000], &[Dialect::P2000]];

#[test]
fn whatever_is_mounted_and_done_at_once_is_as_the_oracle_says() {
    let mut seen = Seen::default();
    for seed in seeds(40) {
        let (one, failure) = world(seed, false);
        if let Some(failure) = failure {
            panic!("NINE_SEED={seed}: {failure}");
        }
        seen.add(&one);
    }
    // A world in which everything fails proves little.
    assert!(seen.failed < 2 * seen.done, "{seen:?}");
}

/// The oracle searches unions in the wrong order: it must soon contradict the mux.
#[test]
fn an_oracle_with_a_wrong_order_of_unions_is_contradicted() {
    let found = (0..20).find(|&seed| world(seed, true).1.is_some());
    assert!(found.is_some(), "twenty worlds showed no difference");
}

#[derive(Debug, Default)]
struct Seen {
    done: usize,
    failed: usize,
}

impl Seen {
    fn add(&mut self, other: &Self) {
        self.done += other.done;
        self.failed += other.failed;
    }
}

/// An operation of a round and its result; `None` if it was cancelled.
struct Deed {
    op: Op,
    saw: Option<Saw>,
}

/// Runs the world of this seed. Returns the contradiction, if there is one.
fn world(seed: u64, wrong: bool) -> (Seen, Option<String>) {
    let world = World::new(seed);
    let mut rng = world.rng();
    let m = Muxed::new(&world);
    let mut model = Model::new(&NAMES[..4 + rng.below(2)]);
    model.backwards = wrong;
    let services: Vec<Service> = (1..model.roots.len())
        .map(|_| {
            let mut service = Service::new(Arc::new(Ram::new(16 << 20)), Gate::default(), Core::default());
            service.dialects = DIALECTS[rng.below(3)];
            service
        })
        .collect();
    let far = services.clone();
    let result = world.run(async move {
        for (i, service) in far.iter().enumerate() {
            let files = plant(&mut model, i as Id + 1, &mut rng);
            let files: Vec<_> = files.iter().map(|(path, text)| (&**path, &**text)).collect();
            fill(&service.server, &files).await;
        }
        let mut run = Run { m, far, rng, beliefs: vec![model], seen: Seen::default() };
        let failure = run.rounds().await;
        if failure.is_none() {
            run.leave().await;
        }
        (run.seen, failure)
    });
    if result.1.is_none() {
        world.settle();
        for service in &services {
            assert_eq!((service.core.connected(), service.core.borrowed()), (0, 0), "NINE_SEED={seed}");
        }
        assert_eq!(world.tasks(), 3, "NINE_SEED={seed}: the mux, and the backbone's two ends");
    }
    result
}

/// Creates a random tree, in the model and as a list of files.
fn plant(model: &mut Model, root: Id, rng: &mut Rng) -> Vec<(String, String)> {
    let mut files = Vec::new();
    let mut dirs = vec![(root, String::new())];
    let mut taken = BTreeSet::new();
    for _ in 0..4 + rng.below(8) {
        let (dir, path) = dirs[rng.below(dirs.len())].clone();
        let is_dir = rng.one_in(2);
        let name = if is_dir { dir_name(rng) } else { file_name(rng) };
        if path.len() > 4 || !taken.insert((dir, name.clone())) {
            continue;
        }
        let path = format!("{path}{name}");
        if is_dir {
            let made = model.plant(dir, &name, None);
            dirs.push((made, format!("{path}/")));
            files.push((format!("{path}/"), String::new()));
        } else {
            let text = format!("{root}:{:06}", files.len());
            model.plant(dir, &name, Some(text.as_bytes()));
            files.push((path, text));
        }
    }
    files
}

/// One name in eight is a file's.
fn dir_name(rng: &mut Rng) -> String {
    ["a", "b", "c", "d", "a", "b", "c", "f"][rng.below(8)].into()
}

fn file_name(rng: &mut Rng) -> String {
    ["f", "g", "h", "f", "g", "h", "f", "a"][rng.below(8)].into()
}

/// Mount points are named without "..".
fn without_dots(path: String) -> String {
    if path.contains("..") { "m".into() } else { path }
}

struct Run {
    m: Muxed,
    far: Vec<Service>,
    rng: Rng,
    beliefs: Vec<Model>,
    seen: Seen,
}

impl Run {
    async fn rounds(&mut self) -> Option<String> {
        let mut clients = Vec::new();
        for _ in 0..CLIENTS {
            let dialect = [Dialect::L, Dialect::U, Dialect::P2000][self.rng.below(3)];
            clients.push(self.m.client(dialect).await.0);
        }
        for round in 0..ROUNDS {
            let deeds = self.round(&clients).await;
            for saw in deeds.iter().filter_map(|deed| deed.saw.as_ref()) {
                match saw {
                    Saw::Failed(_) => self.seen.failed += 1,
                    _ => self.seen.done += 1,
                }
            }
            let mut after: Vec<Model> = Vec::new();
            for belief in &self.beliefs {
                for state in explain(belief, &deeds) {
                    if !after.contains(&state) {
                        after.push(state);
                    }
                }
            }
            if after.is_empty() {
                return Some(self.contradiction(round, &deeds));
            }
            self.beliefs = after;
        }
        None
    }

    fn contradiction(&self, round: usize, deeds: &[Deed]) -> String {
        let mut text = format!("in round {round}, with {} states possible before:", self.beliefs.len());
        for Deed { op, saw } in deeds {
            let expected = self.beliefs[0].apply(op).0;
            text += &format!("\n  {op:?}\n    gave {saw:?}\n    alone it would be {expected:?}");
        }
        text + &self.beliefs[0].to_string()
    }

    /// Runs several operations at once. Returns their results when all are done.
    async fn round(&mut self, clients: &[Client]) -> Vec<Deed> {
        let mut deeds = Vec::new();
        let space_op = self.rng.one_in(2).then(|| self.space_op());
        let env = self.m.env.clone();
        let mut work: Vec<Pin<Box<dyn Future<Output = Option<Saw>>>>> = Vec::new();
        let mut writes = self.rng.one_in(2);
        for _ in 0..1 + self.rng.below(4) {
            let op = match std::mem::take(&mut writes) {
                true => self.tree_op(space_op.is_some()),
                false => self.look(),
            };
            let client = clients[self.rng.below(clients.len())].clone();
            let patience = self.rng.one_in(5).then(|| Duration::from_micros(self.rng.below(30_000) as u64));
            work.push(Box::pin(patiently(env.clone(), patience, client, op.clone())));
            deeds.push(Deed { op, saw: None });
        }
        if let Some(op) = space_op {
            let (m, far, doing) = (self.m.clone(), self.far.clone(), op.clone());
            work.push(Box::pin(async move { Some(change(&m, &far, doing).await) }));
            deeds.push(Deed { op, saw: None });
        }
        let saw = futures_util::future::join_all(work).await;
        deeds.iter_mut().zip(saw).for_each(|(deed, saw)| deed.saw = saw);
        for client in clients {
            self.m.quiet(client).await;
        }
        deeds
    }

    fn look(&mut self) -> Op {
        match self.rng.below(3) {
            0 => Op::List(self.path(None)),
            _ => Op::Read(self.path(Some(false))),
        }
    }

    fn tree_op(&mut self, only_write: bool) -> Op {
        let kind = if only_write { 0 } else { self.rng.below(10) };
        match kind {
            0 | 1 => Op::Write(self.path(Some(false)), self.rng.bits().to_le_bytes()),
            2 | 3 => Op::Create(self.path(Some(true)), file_name(&mut self.rng)),
            4 => Op::Mkdir(self.path(Some(true)), dir_name(&mut self.rng)),
            5 | 6 => Op::Remove(self.path(None)),
            _ => {
                let dir = self.path(Some(true));
                let names = self.beliefs[0].seen(&dir);
                if names.is_empty() {
                    return Op::Mkdir(dir, dir_name(&mut self.rng));
                }
                let old = names[self.rng.below(names.len())].0.clone();
                let to = if self.rng.one_in(2) { dir.clone() } else { self.path(Some(true)) };
                let taken = self.beliefs[0].seen(&to);
                let new = match self.rng.one_in(2) && !taken.is_empty() {
                    true => taken[self.rng.below(taken.len())].0.clone(),
                    false => format!("n{}", self.rng.below(5)),
                };
                let how = match self.rng.below(4) {
                    0 => RenameMode::NoReplace,
                    1 => RenameMode::Exchange,
                    _ => RenameMode::Replace,
                };
                Op::Rename([dir, old], [to, new], how)
            }
        }
    }

    fn space_op(&mut self) -> Op {
        let flags = [Flags::REPLACE, Flags::BEFORE, Flags::AFTER][self.rng.below(3)];
        let flags = if self.rng.one_in(3) { flags.with_create() } else { flags };
        match self.rng.below(7) {
            0..=2 => Op::Mount(1 + self.rng.below(self.far.len()), self.mount_point(), flags),
            3 | 4 => Op::Bind(self.path(Some(true)), self.mount_point(), flags),
            5 => {
                let old = self.path(Some(false));
                Op::Bind(self.path(Some(false)), without_dots(old), Flags::REPLACE)
            }
            _ => {
                let new = self.rng.one_in(2).then(|| match self.rng.one_in(2) {
                    true => NAMES[1 + self.rng.below(self.far.len())].into(),
                    false => self.path(None),
                });
                Op::Unmount(new, self.mount_point())
            }
        }
    }

    fn mount_point(&mut self) -> String {
        let path = match self.rng.below(4) {
            0 => ["", "m", "a/new/one", "m/b"][self.rng.below(4)].into(),
            _ => self.path(Some(true)),
        };
        without_dots(path)
    }

    /// Returns a path that exists in most cases: visible names, sometimes ".." or a random one.
    fn path(&mut self, want_dir: Option<bool>) -> String {
        let mut path = String::new();
        loop {
            let all = self.beliefs[0].seen(&path);
            let ends = path.split('/').count() > 4 || self.rng.one_in(3);
            let fits = |(_, is_dir): &&(String, bool)| !ends || want_dir.is_none_or(|want| *is_dir == want);
            let names: Vec<_> = all.iter().filter(fits).collect();
            let name = match self.rng.below(25) {
                0 => "..".into(),
                1 => file_name(&mut self.rng),
                2 => dir_name(&mut self.rng),
                _ if names.is_empty() => return path,
                _ => names[self.rng.below(names.len())].0.clone(),
            };
            path = format!("{path}/{name}");
            if ends {
                return path;
            }
        }
    }

    /// All clients disconnect, and nothing may be left.
    async fn leave(&mut self) {
        self.m.all_settled().await;
        let status = self.m.mux.status();
        assert_eq!(status.jobs_now, 0);
        for upstream in &status.upstreams {
            for connection in &upstream.connections {
                assert_eq!(
                    (connection.calls, connection.orphans, connection.fids),
                    (0, 0, 1),
                    "{upstream:?}"
                );
            }
        }
        self.m.clear().await;
    }
}

/// Returns the states that explain the results.
fn explain(belief: &Model, deeds: &[Deed]) -> Vec<Model> {
    let changes: Vec<&Deed> =
        deeds.iter().filter(|deed| deed.op.changes_space() || deed.op.changes_tree()).collect();
    let looks: Vec<&Deed> =
        deeds.iter().filter(|deed| !deed.op.changes_space() && !deed.op.changes_tree()).collect();
    let mut ends = Vec::new();
    let mut orders = vec![changes.clone()];
    if changes.len() == 2 {
        orders.push(vec![changes[1], changes[0]]);
    }
    for order in orders {
        // Each sequence of states, with all intermediate ones.
        let mut ways = vec![vec![belief.clone()]];
        for deed in order {
            let mut longer = Vec::new();
            for way in ways {
                let before = way.last().expect("it has a beginning");
                let (saw, states) = before.apply(&deed.op);
                match &deed.saw {
                    Some(Saw::Failed(errno)) if before.may_refuse(&deed.op, *errno) => longer.push(way),
                    Some(seen) if alike(seen, &saw) => longer.push([way, states].concat()),
                    Some(_) => {}
                    None => {
                        longer.push([way.clone(), states].concat());
                        longer.push(way);
                    }
                }
            }
            ways = longer;
        }
        for way in ways {
            let explains = |deed: &&Deed| match &deed.saw {
                Some(seen) => (0..way.len()).any(|walked| {
                    way[walked..].iter().any(|later| {
                        let saw = way[walked].look(&deed.op, later);
                        // A client that attached before a change and walks ".." after it reaches the file mounted now.
                        let back = way[walked].look_back(&deed.op, later);
                        [Some(saw), back]
                            .into_iter()
                            .flatten()
                            .any(|saw| alike(seen, &saw.unwrap_or_else(Saw::Failed)))
                    })
                }),
                None => true,
            };
            if looks.iter().all(explains) {
                ends.extend(way.last().cloned());
            }
        }
    }
    ends
}

/// A walk through a file may fail with either of two errors, depending on how far it came.
fn alike(seen: &Saw, expected: &Saw) -> bool {
    let class = |errno: Errno| if errno == Errno::ENOTDIR { Errno::ENOENT } else { errno };
    match (seen, expected) {
        (Saw::Failed(a), Saw::Failed(b)) => class(*a) == class(*b),
        _ => seen == expected,
    }
}

/// Runs an operation. Cancels it after the timeout.
async fn patiently(env: SimEnv, patience: Option<Duration>, client: Client, op: Op) -> Option<Saw> {
    let mut timer = patience.map(|patience| env.sleep_until(env.now() + patience));
    let mut work = pin!(perform(&client, &op));
    poll_fn(|cx| match (work.as_mut().poll(cx), &mut timer) {
        (Poll::Ready(Ok(saw)), _) => Poll::Ready(Some(saw)),
        (Poll::Ready(Err(error)), _) => Poll::Ready(Some(Saw::Failed(errno(&error)))),
        (Poll::Pending, Some(timer)) => timer.as_mut().poll(cx).map(|()| None),
        (Poll::Pending, None) => Poll::Pending,
    })
    .await
}

/// 9P2000 has only texts. These are the mux's own.
fn errno(error: &Error) -> Errno {
    let text = error.to_string();
    match text {
        _ if text.contains("mount point") => Errno::EBUSY,
        _ if text.contains("forbids creation") => Errno::EPERM,
        // The client's error for the EEXIST of a Twstat.
        _ if error.errno() == Errno::EOPNOTSUPP => Errno::EEXIST,
        _ => error.errno(),
    }
}

async fn perform(client: &Client, op: &Op) -> Result<Saw, Error> {
    let root = client.attach("u", NOUID, "").await?;
    Ok(match op {
        Op::Read(path) => {
            let file = root.walk(path).await?;
            if file.qid().is_dir() {
                return Ok(Saw::Failed(Errno::EISDIR));
            }
            let file = file.open_here(OpenFlags::READ).await?;
            Saw::Bytes(file.read(0, 100).await?.to_vec())
        }
        Op::List(path) => {
            let dir = root.walk(path).await?;
            if !dir.qid().is_dir() {
                return Ok(Saw::Failed(Errno::ENOTDIR));
            }
            let mut entries = dir.read_dir().await?;
            let mut names = Vec::new();
            while let Some(entry) = entries.next().await {
                let entry = entry?;
                names.push((String::from_utf8_lossy(&entry.name).into(), entry.is_dir()));
            }
            names.sort();
            Saw::Names(names)
        }
        Op::Write(path, bytes) => {
            let file = root.walk(path).await?;
            if file.qid().is_dir() {
                return Ok(Saw::Failed(Errno::EISDIR));
            }
            file.open_here(OpenFlags::WRITE).await?.write(0, bytes).await?;
            Saw::Done
        }
        Op::Create(dir, name) => {
            let dir = root.walk(dir).await?;
            dir.create(name, OpenFlags::RDWR | OpenFlags::EXCL, 0o644, NOGID).await?;
            Saw::Done
        }
        Op::Mkdir(dir, name) => {
            root.walk(dir).await?.mkdir(name, 0o755, NOGID).await?;
            Saw::Done
        }
        Op::Remove(path) => {
            root.walk(path).await?.remove().await?;
            Saw::Done
        }
        Op::Rename([dir, old], [to, new], how) => {
            let (dir, to) = (root.walk(dir).await?, root.walk(to).await?);
            dir.rename_with(old, &to, new, *how).await?;
            Saw::Done
        }
        Op::Mount(..) | Op::Bind(..) | Op::Unmount(..) => unreachable!("that is not for clients"),
    })
}

/// Changes the name space.
async fn change(m: &Muxed, far: &[Service], op: Op) -> Saw {
    let done = match op {
        Op::Mount(server, old, flags) => {
            let shape = Shape {
                delay: Duration::from_micros(200 * server as u64),
                piece: 50 * server,
                ..Shape::default()
            };
            let server = m.far_service(NAMES[server], far[server - 1].clone(), shape);
            m.space.mount(server, "", &owner(), &old, flags).await.map(drop)
        }
        Op::Bind(new, old, flags) => m.space.bind(&new, &old, flags).await.map(drop),
        Op::Unmount(new, old) => m.space.unmount(new.as_deref(), &old).await,
        _ => unreachable!("that is for clients"),
    };
    match done {
        Ok(()) => Saw::Done,
        Err(error) => Saw::Failed(error.errno()),
    }
}
