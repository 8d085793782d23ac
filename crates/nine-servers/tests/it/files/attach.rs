//! A full listener: connections that have not attached make room, and attached clients leave room for others.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use nine_io::client::{Client, File, Options};
use nine_io::server::{Anonymous, Core, Door, Entrance, Gate, Service, listen};
use nine_net::rt::Real;
use nine_net::{Addr, Env, Socket, Transport};
use nine_proto::{Errno, NOUID};
use nine_servers::Ram;

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// Serves a tree at a port of the loopback, with room for this many clients. Returns the address.
fn serve(env: Real, clients: usize) -> Addr {
    let listener = Entrance::bind(&"tcp!127.0.0.1!0".parse().unwrap(), &env).unwrap();
    let addr = listener.addr().clone();
    let gate = Gate { anonymous: Anonymous::ReadOnly, token: Some(TOKEN.into()), ..Gate::default() };
    let service = Service::new(Arc::new(Ram::new(1 << 20)), gate, Core::default());
    let door = Door { listener, tls: None, clients };
    env.spawn(Box::pin(async move { drop(listen(env, door, service, &[]).await) }));
    addr
}

async fn dial(addr: &Addr) -> Socket {
    Socket::connect(addr, Duration::from_secs(10)).await.unwrap()
}

async fn attach(env: Real, addr: &Addr) -> nine_io::client::Result<File> {
    attach_with(env, addr, Options::default()).await
}

async fn attach_with(env: Real, addr: &Addr, options: Options) -> nine_io::client::Result<File> {
    let (client, driver) = Client::connect(dial(addr).await, options).await?;
    env.spawn(Box::pin(async move { drop(driver.await) }));
    client.attach("", NOUID, "").await
}

#[test]
fn connections_that_never_attach_lock_nobody_out() {
    nine_net::rt::block_on(async |env| {
        let addr = serve(env, 8);
        let mut silent = Vec::new();
        for _ in 0..7 {
            silent.push(dial(&addr).await);
        }
        let mut attached = Vec::new();
        for n in 0..5 {
            attached.push(attach(env, &addr).await.unwrap());
            // The oldest connection has made room.
            let end = poll_fn(|cx| silent[n].poll_read(cx, &mut [0; 8])).await;
            assert!(matches!(end, Ok(0) | Err(_)), "{end:?}");
            for other in &mut silent[n + 1..] {
                let read = poll_fn(|cx| Poll::Ready(other.poll_read(cx, &mut [0; 8]))).await;
                assert!(read.is_pending(), "{read:?}");
            }
        }
        // More than half of the eight places are this user's. The holder of the token is somebody else, and its
        // attach takes the places of silent connections, too.
        let refused = attach(env, &addr).await.expect_err("its share is taken");
        assert_eq!(refused.errno(), Errno::EAGAIN, "{refused}");
        for _ in 0..2 {
            let options = Options { token: Some(TOKEN.into()), ..Options::default() };
            attached.push(attach_with(env, &addr, options).await.expect("the owner finds a place"));
        }
        attach(env, &addr).await.expect_err("all seven places have attached clients");
        for root in &attached {
            root.walk("").await.unwrap();
        }
        // Its places are free again when clients leave.
        attached.drain(..3);
        while attach(env, &addr).await.is_err() {
            env.sleep_until(env.now() + Duration::from_millis(1)).await;
        }
    })
    .unwrap();
}
