//! The conformance suite through a mux, with a client of each dialect over an upstream of each.
//!
//! Cases that do not pass are listed in [`CANNOT`], with the reason. Listed cases must not pass.

use std::collections::HashSet;
use std::rc::Rc;
use std::sync::Arc;

use nine_check::{Options, Outcome};
use nine_io::client;
use nine_io::server::{Core, FileServer};
use nine_mux::{Flags, Local, Mux, Owner, Server, Space};
use nine_net::{Env, Transport, rt};
use nine_proto::Base::{self, L, P2000, U};
use nine_proto::Dialect;
use nine_servers::{Disk, DiskOptions, Ram};
use nine_sim::{World, link};

use crate::dialects::check::{ALL, By, Run, not_covered, options, run, service, shape};
use crate::mux::world::owner;

/// Mounts the server at /s of a mux, which addresses it in this dialect.
async fn mounted(env: impl Env + Clone, server: Arc<dyn FileServer>, dialect: Dialect) -> (Mux, Space) {
    let core = Core::default();
    let backbone = Local::server("ram:", Arc::new(Ram::new(1 << 20)), core.clone());
    let mux = Mux::new(backbone, server.names());
    env.spawn(Box::pin(mux.run(env.clone(), &[])));
    let space = mux.space(nine_mux::MAIN, Owner::default());
    let options = client::Options { dialects: vec![dialect], ..client::Options::default() };
    let server = Server { options, local: false, ..Local::server("s", server, core) };
    space.mount(server, "", &owner(), "/s", Flags::REPLACE).await.expect("it is mounted");
    (mux, space)
}

fn through(client: Dialect) -> Options {
    Options { dialects: vec![client], path: vec![b"s".to_vec()], ..options() }
}

fn ram(client: Dialect, upstream: Dialect) -> Run {
    let world = Rc::new(World::new(1));
    let within = world.clone();
    world.run(async move {
        let server = Arc::new(Ram::new(64 << 20));
        let (mux, _space) = mounted(within.env(), server, upstream).await;
        let (service, env) = (service(mux), Rc::new(within.env()));
        let dial = By(move || {
            let (ours, theirs) = link(&within, shape());
            within.env().spawn(Box::pin(service.connect(Box::new(theirs))));
            Ok(Box::new(ours) as Box<dyn Transport>)
        });
        run(env, Rc::new(dial), through(client)).await
    })
}

fn disk(client: Dialect, upstream: Dialect) -> Run {
    let dir = tempfile::tempdir().unwrap();
    let disk = Disk::open(dir.path(), DiskOptions::default()).unwrap();
    let run = rt::block_on(async |env| {
        let (mux, _space) = mounted(env, Arc::new(disk), upstream).await;
        let service = service(mux);
        let dial = By(move || {
            let peer = || nine_net::Peer { addr: "pipe".into(), proof: nine_net::Proof::None };
            let (near, far) = nine_net::pipe(peer(), peer());
            env.spawn(Box::pin(service.connect(Box::new(far))));
            Ok(Box::new(near) as Box<dyn Transport>)
        });
        run(Rc::new(env), Rc::new(dial), through(client)).await
    });
    assert_eq!(dir.path().read_dir().unwrap().count(), 0, "something of the suite has stayed");
    run.expect("a runtime")
}

/// A client of `CLIENT` over an upstream of `UPSTREAM`: prefixes of the cases that do not pass, and the reason.
type Row = (Base, Base, &'static [&'static str], &'static str);

/// Cases that the weaker dialect cannot express.
const CANNOT: &[Row] = &[
    (
        U,
        P2000,
        &["unix/a_symlink", "unix/a_hard_link", "unix/a_pipe"],
        "9P2000 has files and directories only",
    ),
    (U, P2000, &["unix/set_id_bits"], "9P2000 has no such bits"),
    (
        L,
        P2000,
        &["names/symlink", "names/a_symlink", "names/a_link", "names/link_", "names/mknod"],
        "likewise",
    ),
    (L, P2000, &["names/unlinkat_of_a_link"], "likewise: there are no links"),
    (L, P2000, &["setattr/the_owner"], "stat(5): no way to change the owner"),
    (L, P2000, TWSTAT, "stat records have no such fields, a Twstat neither moves nor replaces"),
    (L, U, TWSTAT, "likewise"),
    (L, P2000, &["lock/", "xattr/"], "9P2000.L alone has locks and extended attributes"),
    (L, U, &["lock/", "xattr/"], "likewise"),
];

const TWSTAT: &[&str] = &[
    // The change of attributes, names and blocks are not reported.
    "getattr/the_basic_ones",
    "getattr/names_are_counted",
    "getattr/the_file_system",
    // Only whole seconds.
    "setattr/nanoseconds",
    // EXDEV.
    "names/rename_",
    "names/renameat_moves",
    // EOPNOTSUPP.
    "names/renameat_replaces",
    "names/renameat_onto",
    // EINVAL: a Twstat rename has no flags.
    "names/renameat2_replaces",
    "names/renameat2_exchanges",
];

/// Cases that do not pass without a mux either: our servers have no such files, and one dialect is checked at a time.
const NEVER: &[&str] = &["version/again_may_change_the_dialect"];
/// Cases that need files which a server in memory has and a disk has not.
const SPECIAL: &[&str] = &["open/exclusive_use", "open/append_only"];

/// Checks that no case fails, and that exactly the listed ones are skipped.
#[track_caller]
fn judge(client: Dialect, upstream: Dialect, run: &Run) {
    let which = format!("{} over {}", client.name(), upstream.name());
    assert!(run.failed().is_empty(), "{which}: {}", run.told());
    let summary = run.summary.as_ref().expect("it ran");
    assert!(summary.is_good() && summary.notes.is_empty(), "{which}: {summary:?}");
    let rows = CANNOT.iter().filter(|row| (row.0, row.1) == (client.base, upstream.base));
    let cannot: Vec<&str> = rows.flat_map(|row| row.2).chain(NEVER).copied().collect();
    let mut met: HashSet<&str> = HashSet::new();
    for report in &run.reports {
        let name = report.case.name;
        let known = cannot.iter().copied().find(|start| name.starts_with(start));
        met.extend(known);
        match &report.outcome {
            _ if SPECIAL.iter().any(|start| name.starts_with(start)) => {}
            Outcome::Skip(why) => assert!(known.is_some(), "{which}: {name} is skipped: {why}"),
            _ => assert!(known.is_none(), "{which}: {name} passes, but the table says that it cannot"),
        }
    }
    let all = |start: &&&str| nine_check::all().any(|c| c.name.starts_with(**start) && c.speaks.has(client));
    let missing: Vec<_> = cannot.iter().filter(all).filter(|start| !met.contains(*start)).collect();
    assert!(missing.is_empty(), "{which}: no case begins so: {missing:?}");
}

#[test]
fn ram_passes_in_every_pair_of_dialects() {
    for client in ALL {
        for upstream in ALL {
            judge(client, upstream, &ram(client, upstream));
        }
    }
}

#[test]
fn disk_passes_in_every_pair_of_dialects() {
    for client in ALL {
        for upstream in ALL {
            let mut run = disk(client, upstream);
            if client.is_l() && upstream.is_l() && run.skipped().iter().any(|name| name.contains(" xattr/")) {
                not_covered("extended attributes: the file system of the scratch directories has none");
                run.reports.retain(|report| !report.case.name.starts_with("xattr/"));
            }
            judge(client, upstream, &run);
        }
    }
}
