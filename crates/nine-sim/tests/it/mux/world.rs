//! A mux with its backbone, servers behind links, and its clients.

use std::future::ready;
use std::io;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use nine_io::changes::Tap;
use nine_io::client::{Client, File, Options};
use nine_io::server::{Answer, Core, FileServer, Gate, Node, Req, ReqId, Request, Service};
use nine_mux::{As, Boxed, Dial, Local, Mux, Owner, Server, Space, Spawn};
use nine_net::{Env, Transport};
use nine_proto::{Dialect, Errno, NOUID, Numeric, OpenFlags};
use nine_servers::Ram;
use nine_sim::{Links, Shape, SimEnv, World};

use crate::common::Raw;

#[derive(Clone)]
pub struct Muxed {
    pub env: SimEnv,
    pub core: Core,
    pub mux: Mux,
    pub space: Space,
    pub links: Arc<Links>,
    inside: Arc<Inside>,
}

/// A mux as a server of itself or of a mounted mux. It is dropped with the last [`Muxed`]; otherwise it would keep
/// itself alive.
struct Inside(Arc<Itself>);

struct Itself(Mutex<Option<Mux>>);

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.0.lock().unwrap().take();
    }
}

impl FileServer for Itself {
    fn serve(&self, req: Req) -> Answer {
        match self.0.lock().unwrap().clone() {
            Some(mux) => mux.serve(req),
            None => req.now(Err(Errno::EIO.into())),
        }
    }

    fn changes(&self, walk: &Request) -> Option<nine_proto::Result<Tap>> {
        self.0.lock().unwrap().clone()?.changes(walk)
    }

    fn cancel(&self, id: ReqId, node: Option<&Node>) {
        if let Some(mux) = self.0.lock().unwrap().clone() {
            mux.cancel(id, node);
        }
    }
}

/// A server behind a new link for each dial.
pub struct Far {
    pub service: Service,
    pub links: Arc<Links>,
    pub shape: Shape,
}

impl Dial for Far {
    fn dial(&self, spawn: &dyn Spawn) -> Boxed<io::Result<Box<dyn Transport>>> {
        let (near, far) = self.links.link(self.shape.clone());
        spawn.spawn(Box::pin(self.service.connect(Box::new(far))));
        Box::pin(ready(Ok(Box::new(near) as Box<dyn Transport>)))
    }
}

/// The identity that the servers assign to us.
pub fn owner() -> As {
    As::User { name: "".into(), uid: None }
}

impl Muxed {
    pub fn new(world: &World) -> Self {
        let core = Core::default();
        let backbone = Local::server("ram:", Arc::new(Ram::new(16 << 20)), core.clone());
        let mux = Mux::new(backbone, Arc::new(Numeric));
        world.env().spawn(Box::pin(mux.run(world.env(), &[])));
        let space = mux.space(nine_mux::MAIN, Owner::default());
        let inside = Arc::new(Inside(Arc::new(Itself(Mutex::new(Some(mux.clone()))))));
        Self { env: world.env(), core, mux, space, links: Arc::new(Links::new(world)), inside }
    }

    /// Returns a mountable file server of another machine.
    pub fn far(&self, name: &str, server: Arc<dyn FileServer>, shape: Shape) -> Server {
        self.far_service(name, Service::new(server, Gate::default(), Core::default()), shape)
    }

    pub fn far_service(&self, name: &str, service: Service, shape: Shape) -> Server {
        let dial = Arc::new(Far { service, links: self.links.clone(), shape });
        let options = Options { msize: 64 * 1024, ..Options::default() };
        Server { options, ..Server::new(name, dial) }
    }

    /// Returns a server that mounts this mux, also on itself.
    pub fn as_server(&self, name: &str) -> Server {
        self.far(name, self.inside.0.clone(), Shape::default())
    }

    /// Returns a client of the mux, at its root.
    pub async fn client(&self, dialect: Dialect) -> (Client, File) {
        let service = Service::new(Arc::new(self.mux.clone()), Gate::default(), self.core.clone());
        let (near, far) = self.links.link(Shape::default());
        self.env.spawn(Box::pin(service.connect(Box::new(far))));
        let options = Options { dialects: vec![dialect], msize: 32 * 1024, ..Options::default() };
        let (client, driver) = Client::connect(near, options).await.expect("the mux answers");
        self.env.spawn(Box::pin(async { drop(driver.await) }));
        let root = client.attach("u", NOUID, "").await.expect("the mux lets in");
        (client, root)
    }

    /// Runs work for at most this time. After that it is dropped.
    pub async fn soon<T>(&self, time: Duration, work: impl Future<Output = T>) -> Option<T> {
        let mut timer = self.env.sleep_until(self.env.now() + time);
        let mut work = std::pin::pin!(work);
        std::future::poll_fn(|cx| match work.as_mut().poll(cx) {
            Poll::Ready(value) => Poll::Ready(Some(value)),
            Poll::Pending => timer.as_mut().poll(cx).map(|()| None),
        })
        .await
    }

    /// Waits until no upstream has a request in flight.
    pub async fn all_settled(&self) {
        loop {
            let status = self.mux.status();
            let connections = status.upstreams.iter().flat_map(|upstream| &upstream.connections);
            if status.jobs_now == 0 && connections.map(|connection| connection.calls).sum::<usize>() == 0 {
                return;
            }
            self.env.sleep_until(self.env.now() + Duration::from_millis(10)).await;
        }
    }

    /// Removes every mount, including hidden ones.
    pub async fn clear(&self) {
        loop {
            let mounts = self.mux.status().mounts;
            if mounts.is_empty() {
                return;
            }
            let mut any = false;
            for mount in &mounts {
                any |= self.space.unmount(None, &mount.old).await.is_ok();
            }
            assert!(any, "these cannot be unmounted: {mounts:?}");
        }
    }

    /// Returns a client that sends single messages, with the root as fid 1.
    pub async fn raw(&self) -> Raw {
        let service = Service::new(Arc::new(self.mux.clone()), Gate::default(), self.core.clone());
        let (near, far) = self.links.link(Shape::default());
        self.env.spawn(Box::pin(service.connect(Box::new(far))));
        let mut raw = Raw::on(near);
        raw.hello(64 * 1024).await;
        raw
    }

    /// Waits until a client has no request in flight.
    pub async fn quiet(&self, client: &Client) {
        while client.under_way().0 > 0 {
            self.env.sleep_until(self.env.now() + Duration::from_millis(10)).await;
        }
    }
}

/// Runs work, which must take at most this time.
pub async fn within<T>(env: &SimEnv, time: Duration, work: impl Future<Output = T>) -> T {
    let begun = env.now();
    let value = work.await;
    assert!(env.now() - begun <= time, "it took {:?}", env.now() - begun);
    value
}

/// Returns a RAM server with these files and contents. A name that ends in '/' is a directory.
pub async fn ram(files: &[(&str, &str)]) -> Arc<Ram> {
    let ram = Arc::new(Ram::new(16 << 20));
    fill(&(ram.clone() as Arc<dyn FileServer>), files).await;
    ram
}

/// Creates files in a server.
pub async fn fill(server: &Arc<dyn FileServer>, files: &[(&str, &str)]) {
    let service = Service::new(server.clone(), Gate::default(), Core::default());
    let peer = || nine_net::Peer {
        addr: "test".into(),
        proof: nine_net::Proof::Unix { uid: nine_net::own_ids().0, gid: 0 },
    };
    let (near, far) = nine_net::pipe(peer(), peer());
    let mut connection = Box::pin(service.connect(Box::new(far)));
    let work = async {
        let (client, driver) = Client::connect(near, Options::default()).await.unwrap();
        let mut driver = Box::pin(driver);
        let put = async {
            let root = client.attach("", NOUID, "").await.unwrap();
            for (path, content) in files {
                put(&root, path, content).await;
            }
        };
        let mut put = Box::pin(put);
        std::future::poll_fn(|cx| {
            let _ = driver.as_mut().poll(cx);
            put.as_mut().poll(cx)
        })
        .await;
    };
    let mut work = Box::pin(work);
    std::future::poll_fn(|cx| {
        let _ = connection.as_mut().poll(cx);
        work.as_mut().poll(cx)
    })
    .await;
}

/// Creates a file, and the directories that lead to it.
pub async fn put(root: &File, path: &str, content: &str) {
    let mut dir = root.walk("").await.unwrap();
    let mut names: Vec<&str> = path.split('/').collect();
    let last = names.pop().expect("a path has a name");
    for name in names {
        let _ = dir.mkdir(name, 0o755, nine_proto::NOGID).await;
        dir = dir.walk(name).await.unwrap();
    }
    if !last.is_empty() {
        let file = dir.open_or_create(last, OpenFlags::RDWR, 0o644).await.unwrap();
        file.write_all_at(0, content.as_bytes()).await.unwrap();
    }
}

pub async fn cat(root: &File, path: &str) -> Result<String, String> {
    let file = root.open(path, OpenFlags::READ).await.map_err(|error| error.to_string())?;
    let mut text = vec![0; 64 * 1024];
    let n = file.read_at(0, &mut text).await.map_err(|error| error.to_string())?;
    Ok(String::from_utf8_lossy(&text[..n]).into())
}

pub async fn ls(root: &File, path: &str) -> Result<Vec<String>, String> {
    let dir = root.walk(path).await.map_err(|error| error.to_string())?;
    let mut entries = dir.read_dir().await.map_err(|error| error.to_string())?;
    let mut names = Vec::new();
    while let Some(entry) = entries.next().await {
        names.push(String::from_utf8_lossy(&entry.map_err(|error| error.to_string())?.name).into());
    }
    Ok(names)
}
