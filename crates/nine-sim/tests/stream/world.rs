//! A server with streams, a client far away, and data connections that do what a test says.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::time::Duration;

use nine_io::client::{Client, Dial, Dialing, File, Options};
use nine_io::server::{Core, FileServer, Gate, Service, Streams};
use nine_net::{Env, Transport};
use nine_proto::{Dialect, NOUID};
use nine_sim::{End, Links, Shape, SimEnv, World};

/// What becomes of data connections.
#[derive(Clone)]
pub enum Fate {
    /// They are like this.
    Come(Shape),
    /// Nobody answers.
    Refused,
    /// Nobody answers, which is noticed after a second.
    Silent,
}

/// See the module. Clones are the same.
#[derive(Clone)]
pub struct Site {
    pub env: SimEnv,
    pub service: Service,
    pub ways: Arc<Ways>,
}

/// What leads to a site: it dials data connections from any thread.
pub struct Ways {
    links: Links,
    door: Arc<Door>,
    pub fate: Mutex<Fate>,
    /// What servers have offered, in order.
    pub offers: Mutex<Vec<String>>,
}

/// Where connections come in.
#[derive(Default)]
struct Door(Mutex<(VecDeque<Come>, Option<Waker>)>);

enum Come {
    Connection(End),
    /// A second has begun, for whoever dials.
    Second(Arc<Mutex<(bool, Option<Waker>)>>),
}

impl Door {
    fn give(&self, come: Come) {
        let mut state = self.0.lock().unwrap();
        state.0.push_back(come);
        state.1.take().into_iter().for_each(Waker::wake);
    }
}

impl Site {
    pub fn new(world: &World, server: Arc<dyn FileServer>) -> Self {
        let env = world.env();
        let service = Service::new(server, Gate::default(), Core::default())
            .with_streams(Streams::new("tcp!*!564", env.clock()));
        let ways = Arc::new(Ways {
            links: Links::new(world),
            door: Arc::default(),
            fate: Mutex::new(Fate::Come(Shape::default())),
            offers: Mutex::default(),
        });
        let site = Self { env: env.clone(), service, ways };
        let (door, service) = (site.ways.door.clone(), site.service.clone());
        env.clone().spawn(Box::pin(async move {
            loop {
                let come = poll_fn(|cx| {
                    let mut state = door.0.lock().unwrap();
                    state.1 = Some(cx.waker().clone());
                    state.0.pop_front().map_or(Poll::Pending, Poll::Ready)
                });
                let (service, inner) = (service.clone(), env.clone());
                match come.await {
                    Come::Connection(end) => env.spawn(Box::pin(async move {
                        service.welcome(inner, Box::new(end)).await;
                    })),
                    Come::Second(told) => env.spawn(Box::pin(async move {
                        inner.sleep_until(inner.now() + Duration::from_secs(1)).await;
                        let mut told = told.lock().unwrap();
                        told.0 = true;
                        told.1.take().into_iter().for_each(Waker::wake);
                    })),
                }
            }
        }));
        site
    }

    pub fn fate(&self, fate: Fate) {
        *self.ways.fate.lock().unwrap() = fate;
    }

    pub fn offers(&self) -> Vec<String> {
        self.ways.offers.lock().unwrap().clone()
    }

    pub fn options(&self) -> Options {
        let options =
            Options { dialects: vec![Dialect::L], clock: Some(self.env.clock()), ..Options::default() };
        options.with_streams(self.ways.clone())
    }

    /// A client at the root.
    pub async fn client(&self, shape: Shape, options: Options) -> (Client, File) {
        let (client, driver) =
            Client::connect(self.ways.connect(shape), options).await.expect("the server answers");
        self.env.spawn(Box::pin(async { drop(driver.await) }));
        let root = client.attach("u", NOUID, "").await.expect("the server lets in");
        (client, root)
    }
}

impl Ways {
    /// A new connection to the door.
    pub fn connect(&self, shape: Shape) -> End {
        let (near, far) = self.links.link(shape);
        self.door.give(Come::Connection(far));
        near
    }
}

impl Dial for Ways {
    fn dial(&self, _: &str, addr: &str) -> Dialing {
        self.offers.lock().unwrap().push(addr.to_owned());
        let fate = self.fate.lock().unwrap().clone();
        match fate {
            Fate::Come(shape) => {
                let near = self.connect(shape);
                Box::pin(async { Ok(Box::new(near) as Box<dyn Transport>) })
            }
            Fate::Refused => Box::pin(async { Err(io::ErrorKind::ConnectionRefused.into()) }),
            Fate::Silent => {
                let told = Arc::new(Mutex::new((false, None)));
                self.door.give(Come::Second(told.clone()));
                Box::pin(poll_fn(move |cx| {
                    let mut told = told.lock().unwrap();
                    told.1 = Some(cx.waker().clone());
                    if told.0 { Poll::Ready(Err(io::ErrorKind::TimedOut.into())) } else { Poll::Pending }
                }))
            }
        }
    }
}

/// Bytes that show where they are of.
pub fn pattern(len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| (i ^ (i >> 8) ^ (i >> 16) ^ (i >> 24)) as u8).collect()
}

/// A link to the other side of the world.
pub fn far(ms: u64) -> Shape {
    Shape { delay: Duration::from_millis(ms / 2), window: 4 << 20, ..Shape::default() }
}
