//! Fairness, in simulated time: the latency of clients while another one misbehaves.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use nine_io::client::{Client, File, Options};
use nine_io::server::{Anonymous, Core, Gate, Service};
use nine_mux::{Flags, Server};
use nine_net::{Env, Proof};
use nine_proto::msg::Tmsg;
use nine_proto::session::server::Limits;
use nine_proto::{Dialect, Errno, NOUID, OpenFlags};
use nine_sim::{Rng, Shape, World};

use crate::common::Zeros;
use crate::mux::puppet::{Act, Puppet};
use crate::mux::world::{Muxed, cat, owner, ram};

/// Returns the 99th percentile.
fn p99(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() * 99 / 100]
}

/// One of ten servers does not answer, and fifty requests of each client wait for it. Twenty clients work with the
/// others.
#[test]
fn a_stalled_server_among_ten_slows_nobody_else() {
    let waits = |stalls: bool| {
        let world = World::new(1);
        let m = Muxed::new(&world);
        let mut rng = world.rng();
        world.run(async move {
            let puppet = Puppet::new(&m, |_, _| Act::Honest);
            m.space.mount(puppet.server(&m, "stalled"), "", &owner(), "/n/0", Flags::REPLACE).await.unwrap();
            for i in 1..10 {
                let server = m.far(&format!("s{i}"), ram(&[("f", "text")]).await, Shape::default());
                m.space.mount(server, "", &owner(), &format!("/n/{i}"), Flags::REPLACE).await.unwrap();
            }
            puppet.does(|message, _| if let Tmsg::Read { .. } = message { Act::Silent } else { Act::Honest });
            let clients = (0..20).map(|_| client_beside(&m, stalls, rng.fork()));
            p99(join_all(clients).await.concat())
        })
    };
    let (alone, beside) = (waits(false), waits(true));
    assert!(beside <= 2 * alone, "{alone:?} without, {beside:?} with");
}

async fn client_beside(m: &Muxed, stalls: bool, mut rng: Rng) -> Vec<Duration> {
    let (_client, root) = m.client(Dialect::L).await;
    if stalls {
        let stuck = root.open("n/0/f", OpenFlags::READ).await.unwrap();
        m.env.spawn(Box::pin(async move {
            join_all((0..50).map(|_| stuck.read(0, 8192))).await;
        }));
    }
    let mut times = Vec::new();
    for _ in 0..30 {
        let path = format!("n/{}/f", 1 + rng.below(9));
        let begun = m.env.now();
        assert_eq!(cat(&root, &path).await, Ok("text".into()));
        times.push(m.env.now() - begun);
    }
    times
}

/// Returns a client whose link has room for all requests that it wants in flight.
async fn greedy(m: &Muxed) -> (Client, File) {
    let service = Service::new(Arc::new(m.mux.clone()), Gate::default(), m.core.clone());
    let (near, far) = m.links.link(Shape { window: 4 << 20, ..Shape::default() });
    m.env.spawn(Box::pin(service.connect(Box::new(far))));
    let (client, driver) =
        Client::connect(near, Options { msize: 32 * 1024, ..Options::default() }).await.unwrap();
    m.env.spawn(Box::pin(async { drop(driver.await) }));
    let root = client.attach("greedy", NOUID, "").await.unwrap();
    (client, root)
}

/// One client reads as much as it can from a server that a hundred clients use. The link has room for 64 KiB, and the
/// budget fits it.
#[test]
fn a_greedy_client_among_a_hundred_does_not_double_the_waits_of_the_others() {
    let waits = |is_greedy: bool| {
        let world = World::new(2);
        let m = Muxed::new(&world);
        let mut rng = world.rng();
        world.run(async move {
            let service = Service::new(Arc::new(Zeros::default()), Gate::default(), Core::default());
            let shape = Shape { window: 64 * 1024, piece: 32 * 1024, ..Shape::default() };
            let mut server = Server { local: true, ..m.far_service("zeros", service, shape) };
            // Four times the link's window. The requests that one client has in flight are ahead of the next client's
            // at the server, too. With the default of 32 MiB, others would wait for 80 ms on this link.
            server.options.budget = 512 * 1024;
            m.space.mount(server, "", &owner(), "/z", Flags::REPLACE).await.unwrap();
            let taken = Rc::new(RefCell::new(0));
            if is_greedy {
                let (mux, taken) = (m.clone(), taken.clone());
                m.env.spawn(Box::pin(async move {
                    let (_client, root) = greedy(&mux).await;
                    let file = root.open("z/zero", OpenFlags::READ).await.unwrap();
                    let reader = async || loop {
                        file.read(0, 32 * 1024).await.unwrap();
                        *taken.borrow_mut() += 1;
                    };
                    join_all((0..1000).map(|_| reader())).await;
                }));
                m.env.sleep_until(m.env.now() + Duration::from_millis(500)).await;
            }
            let others = (0..99).map(|_| modest(&m, rng.fork()));
            let waited = p99(join_all(others).await.concat());
            let taken = *taken.borrow();
            (waited, taken)
        })
    };
    let ((alone, _), (beside, taken)) = (waits(false), waits(true));

    assert!(taken > 1000, "the greedy one got only {taken} reads");
    assert!(beside <= 2 * alone, "{alone:?} without, {beside:?} with");
}

async fn modest(m: &Muxed, mut rng: Rng) -> Vec<Duration> {
    let (_client, root) = m.client(Dialect::L).await;
    let file = root.open("z/zero", OpenFlags::READ).await.unwrap();
    let mut times = Vec::new();
    for _ in 0..20 {
        m.env.sleep_until(m.env.now() + Duration::from_micros(rng.below(40_000) as u64)).await;
        let begun = m.env.now();
        assert_eq!(file.read(0, 4096).await.unwrap().len(), 4096);
        times.push(m.env.now() - begun);
    }
    times
}

/// Returns the mux's root for a client without authentication.
async fn guest(m: &Muxed) -> (Client, File) {
    let gate = Gate { anonymous: Anonymous::Trusted, ..Gate::default() };
    let service = Service::new(Arc::new(m.mux.clone()), gate, m.core.clone());
    let (near, far) = m.links.link(Shape { proof: Proof::None, ..Shape::default() });
    m.env.spawn(Box::pin(service.connect(Box::new(far))));
    let (client, driver) = Client::connect(near, Options::default()).await.unwrap();
    m.env.spawn(Box::pin(async { drop(driver.await) }));
    let root = client.attach("guest", NOUID, "").await.unwrap();
    (client, root)
}

/// Walks until a walk is refused. Returns the files and the error.
async fn walk_all(root: &File, path: &str) -> (Vec<File>, Errno) {
    let mut all = Vec::new();
    loop {
        match root.walk(path).await {
            Ok(file) => all.push(file),
            Err(error) => return (all, error.errno()),
        }
    }
}

#[test]
fn fids_of_a_server_are_shared_by_the_clients_of_a_mux() {
    let world = World::new(3);
    let m = Muxed::new(&world);
    world.run(async move {
        let server = m.far("s", ram(&[("d/f", "text")]).await, Shape::default());
        let server = Server { fids: 64, ..server };
        m.space.mount(server, "", &owner(), "/s", Flags::REPLACE).await.unwrap();
        let (_one, root) = guest(&m).await;
        let (_two, again) = guest(&m).await;
        let dir = root.walk("s/d").await.unwrap();
        // Three eighths of them, for any way of walking and any number of connections.
        let (one, refused) = walk_all(&dir, "f").await;
        assert_eq!((one.len(), refused), (23, Errno::ENFILE));
        let (two, refused) = walk_all(&again, "s/d/f").await;
        assert_eq!((two.len(), refused), (0, Errno::ENFILE));
        let (_client, owner) = m.client(Dialect::L).await;
        assert_eq!(cat(&owner, "s/d/f").await, Ok("text".into()));
        drop(one);
        // After its clunks.
        dir.walk("").await.unwrap();
        assert_eq!(cat(&again, "s/d/f").await, Ok("text".into()));
    });
}

#[test]
fn a_server_without_fids_left_is_no_missing_file() {
    let world = World::new(4);
    let m = Muxed::new(&world);
    world.run(async move {
        let mut service = Service::new(ram(&[("d/f", "text")]).await, Gate::default(), Core::default());
        service.limits = Limits { fids: 8, ..service.limits };
        m.space
            .mount(m.far_service("s", service, Shape::default()), "", &owner(), "/s", Flags::REPLACE)
            .await
            .unwrap();
        let (_client, root) = m.client(Dialect::L).await;
        let (all, refused) = walk_all(&root, "s/d/f").await;
        assert_eq!(refused, Errno::ENFILE);
        assert!(all.len() > 3, "only {}", all.len());
    });
}
