//! A mux on two real cores, each with a client and an upstream connection. A read or a write must need nothing from the
//! other core, and no lock that requests of the other core take.
//!
//! One core stands still while the other works, so work handed over to it would never be done.
#![cfg(debug_assertions)]

use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::{Either, select};
use nine_io::client::{Client, File, Options};
use nine_io::server::{Core, Gate, Seat, Service};
use nine_mux::{As, Flags, Local, MAIN, Mux, Owner, Server};
use nine_net::lock::seen;
use nine_net::{Env, Peer, Proof, pipe, rt};
use nine_proto::{NOUID, Numeric, OpenFlags};
use nine_servers::Ram;

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Number of reads of each size while the other core stands still; as many writes.
const ROUNDS: usize = 500;
/// A small size, and one that needs a separate buffer.
const SIZES: [usize; 2] = [4 << 10, 200 << 10];
/// Maximum number of locks per request, in total: the client, both connections of the mux, the server, the pipes.
const EACH: usize = 48;
/// Timeout for actions that take milliseconds.
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn a_client_and_a_lane_of_one_core_need_no_other_and_share_no_lock() {
    let seat = Arc::<Seat>::default();
    let ended = Mutex::new(None);
    rt::run(2, async |core: rt::Core, env: rt::Real| match core.index {
        0 => {
            *ended.lock().unwrap() = Some(both(env, seat.clone()).await);
            seat.close();
        }
        _ => seat.serve(env).await,
    })
    .unwrap();
    let taken: [Vec<usize>; 2] = ended.lock().unwrap().take().unwrap();
    let [first, second] = taken.map(|taken| {
        let requests = 2 * ROUNDS * SIZES.len();
        let each = taken.len().div_ceil(requests);
        let mut places = HashMap::<usize, usize>::new();
        taken.into_iter().for_each(|place| *places.entry(place).or_default() += 1);
        // An address may be reused by the other core for a lock that existed only during one request.
        let places: HashSet<usize> =
            places.into_iter().filter(|(_, times)| *times >= ROUNDS).map(|(place, _)| place).collect();
        println!("{each} locks a request at most, of client, mux and server; {} that stay", places.len());
        assert!(!places.is_empty(), "they are written down");
        assert!(each <= EACH, "{each} locks a request");
        places
    });
    let shared = first.intersection(&second).count();
    assert_eq!(shared, 0, "locks that both cores take");
}

/// Returns the locks that each core takes while the other stands still.
async fn both(env: rt::Real, seat: Arc<Seat>) -> [Vec<usize>; 2] {
    let here = |task: Task| env.spawn(task);
    let there = |task: Task| seat.spawn(task);
    let core = Core::default();
    let mux = Mux::new(Local::scratch("ram:", Arc::new(Ram::new(1 << 20)), core.clone()), Arc::new(Numeric));
    env.spawn(Box::pin(mux.run(env, std::slice::from_ref(&seat))));
    let space = mux.space(MAIN, Owner::default());
    for name in ["a", "b"] {
        let server = Local::server(name, Arc::new(Ram::new(1 << 20)), Core::default());
        let owner = As::User { name: "".into(), uid: None };
        let old = format!("/{name}");
        space.mount(Server { lanes: 2, ..server }, "", &owner, &old, Flags::REPLACE).await.unwrap();
    }
    let service =
        |seat| Service { seat, ..Service::new(Arc::new(mux.clone()), Gate::default(), core.clone()) };
    let first = open(&here, service(0), "a").await;
    let second = open(&there, service(1), "b").await;

    // The other core stands still until this one has finished.
    let (go_on, gate) = channel::<()>();
    let (stands, is_still) = channel();
    seat.spawn(Box::pin(async move {
        stands.send(()).unwrap();
        let _ = gate.recv_timeout(2 * PATIENCE);
    }));
    is_still.recv_timeout(PATIENCE).expect("the other core takes tasks");
    let late = env.sleep_until(env.now() + PATIENCE);
    let first = match select(pin!(first.work()), late).await {
        Either::Left((taken, _)) => taken,
        Either::Right(_) => panic!("a request of core 0 waits for core 1"),
    };
    drop(go_on);

    // And vice versa.
    let (tell, told) = channel();
    seat.spawn(Box::pin(async move { tell.send(second.work().await).unwrap() }));
    let second = told.recv_timeout(PATIENCE).expect("a request of core 1 waits for core 0");
    [first, second]
}

/// Returns a client of the mux, on the core where its tasks are spawned, and a file that it has created.
async fn open(spawn: &dyn Fn(Task), service: Service, dir: &str) -> Open {
    let peer = || Peer { addr: "test".into(), proof: Proof::Unix { uid: nine_net::own_ids().0, gid: 0 } };
    let (near, far) = pipe(peer(), peer());
    spawn(Box::pin(service.connect(Box::new(far))));
    let greeted = Client::connect(near, Options::default());
    let (client, driver) = greeted.await.unwrap();
    spawn(Box::pin(async { drop(driver.await) }));
    let root = client.attach("", NOUID, "").await.unwrap();
    let file = root.walk(dir).await.unwrap().open_or_create("f", OpenFlags::RDWR, 0o644).await.unwrap();
    Open(file)
}

struct Open(File);

impl Open {
    /// Returns the locks that this thread takes during the work.
    async fn work(self) -> Vec<usize> {
        // Do one-time work first: allocate buffers, and give the file its length.
        self.round().await;
        seen::begin();
        for _ in 0..ROUNDS {
            self.round().await;
        }
        seen::end()
    }

    async fn round(&self) {
        for size in SIZES {
            let data = vec![7; size];
            assert_eq!(self.0.write(0, &data).await.unwrap() as usize, size);
            assert_eq!(*self.0.read(0, size as u32).await.unwrap(), *data);
        }
    }
}
