//! Networks of messages.

use super::*;

#[test]
fn il_carries_messages_in_order_and_says_who_does_not_answer() {
    world(async |world| {
        for dialect in ALL {
            let net = client::Net::new(world.root_in(dialect).await);
            let served = net.announce("il!127.0.0.1!0").await.unwrap();
            let at = served.local().await.unwrap();
            let here = net.dial(&format!("il!{at}")).await.unwrap();
            let there = served.listen().await.unwrap().accept().await.unwrap();
            assert_eq!(here.remote().await.unwrap(), at);
            assert!(shown(&here.dir, "status").await.contains("\nil "), "its module has a line");
            for n in 0..300_u32 {
                here.data.write(0, &n.to_le_bytes()).await.unwrap();
                if n % 3 == 0 {
                    there.data.write(0, &n.to_le_bytes()).await.unwrap();
                }
            }
            for n in 0..300_u32 {
                assert_eq!(
                    there.data.read(0, 100).await.unwrap(),
                    &n.to_le_bytes()[..],
                    "a read is a message"
                );
                if n % 3 == 0 {
                    assert_eq!(here.data.read(0, 2).await.unwrap(), &n.to_le_bytes()[..2]);
                    assert_eq!(here.data.read(0, 9).await.unwrap(), &n.to_le_bytes()[2..], "what was left");
                }
            }
            assert!(here.data.write(0, &[0; 100_000]).await.is_err(), "more than a message");
            here.data.write(0, b"the last").await.unwrap();
            drop(here);
            assert_eq!(there.data.read(0, 100).await.unwrap(), "the last");
            assert_eq!(there.data.read(0, 100).await.unwrap(), "", "the end");
        }
    });
}

#[test]
fn udp_carries_datagrams_by_calls_and_with_headers() {
    world(async |world| {
        let root = world.root_in(Dialect::U).await;
        let net = client::Net::new(world.root().await);
        let served = net.announce("udp!127.0.0.1!0").await.unwrap();
        let at = served.local().await.unwrap();
        let (one, two) =
            (net.dial(&format!("udp!{at}")).await.unwrap(), net.dial(&format!("udp!{at}")).await.unwrap());
        one.data.write(0, b"from one").await.unwrap();
        let first = served.listen().await.unwrap().accept().await.unwrap();
        two.data.write(0, b"from two, and more").await.unwrap();
        let second = served.listen().await.unwrap().accept().await.unwrap();
        assert_eq!(first.data.read(0, 100).await.unwrap(), "from one");
        assert_eq!(second.data.read(0, 8).await.unwrap(), "from two");
        two.data.write(0, b"again").await.unwrap();
        assert_eq!(second.data.read(0, 100).await.unwrap(), "again", "the rest of a datagram has gone");
        first.data.write(0, b"answer").await.unwrap();
        assert_eq!(one.data.read(0, 100).await.unwrap(), "answer");

        let (ctl, dir) = made(&root, "udp").await;
        assert!(say(&ctl, "headers").await.is_err(), "not announced");
        say(&ctl, "announce 127.0.0.1!0").await.unwrap();
        let at = shown(&dir, "local").await;
        // An open waiting for a call fails.
        let mut listen = pin!(dir.open("listen", RDWR));
        let mut status = String::new();
        while !status.contains(" listen 1 ") {
            let mut shown = pin!(shown(&dir, "status"));
            status = poll_fn(|cx| {
                assert!(listen.as_mut().poll(cx).is_pending());
                shown.as_mut().poll(cx)
            })
            .await;
        }
        say(&ctl, "headers").await.unwrap();
        let error = listen.await.map(drop).unwrap_err();
        assert!(error.to_string().contains("not announced"), "{error}");
        let data = dir.open("data", RDWR).await.unwrap();
        let caller = net.dial(&format!("udp!{}", at.trim_end())).await.unwrap();
        caller.data.write(0, b"hello").await.unwrap();
        let came = data.read(0, 1000).await.unwrap();
        assert_eq!(came.len(), 52 + 5);
        assert_eq!(&came[52..], b"hello");
        let port = u16::from_be_bytes([came[48], came[49]]);
        // All of 127/8 is local; the header need not name the address at which the datagram arrived.
        assert!(caller.local().await.unwrap().ends_with(&format!("!{port}")));
        let mut back = came[..52].to_vec();
        back.extend(b"hello yourself");
        data.write(0, &back).await.unwrap();
        assert_eq!(caller.data.read(0, 100).await.unwrap(), "hello yourself");
    });
}

#[test]
fn what_carries_messages_is_not_popped() {
    world(async |world| {
        let net = client::Net::new(world.root_in(Dialect::U).await);
        for network in ["il", "udp"] {
            let served = net.announce(&format!("{network}!127.0.0.1!0")).await.unwrap();
            let here = net.dial(&format!("{network}!{}", served.local().await.unwrap())).await.unwrap();
            for words in ["pop", "push zstd", "push\tzstd", " pop"] {
                let error = say(&here.ctl, words).await.unwrap_err();
                assert_eq!(error.errno(), Errno::EOPNOTSUPP, "{words}: {error}");
            }
            here.data.write(0, b"whole").await.unwrap();
            let there = served.listen().await.unwrap().accept().await.unwrap();
            assert_eq!(there.data.read(0, 100).await.unwrap(), "whole");
        }
    });
}

#[test]
fn with_headers_a_datagram_goes_to_who_has_sent_one_and_where_one_may_call() {
    let listen = |at: &str| std::net::UdpSocket::bind(at).unwrap();
    let (known, stranger, other) = (listen("127.0.0.1:0"), listen("127.0.0.1:0"), listen("127.0.0.2:0"));
    let policy = "allow announce udp!127.0.0.1!*\nallow dial udp!127.0.0.2!*";
    limited(10, policy.parse().unwrap(), async |world| {
        let root = world.root_in(Dialect::U).await;
        let (ctl, dir) = made(&root, "udp").await;
        say(&ctl, "announce 127.0.0.1!0").await.unwrap();
        let at: SocketAddr = shown(&dir, "local").await.trim_end().replace('!', ":").parse().unwrap();
        say(&ctl, "headers").await.unwrap();
        let data = dir.open("data", RDWR).await.unwrap();
        let to = |socket: &std::net::UdpSocket| {
            let SocketAddr::V4(at) = socket.local_addr().unwrap() else { panic!("it is IPv4") };
            let mut datagram = vec![0; 52];
            datagram[..16].copy_from_slice(&at.ip().to_ipv6_mapped().octets());
            datagram[48..50].copy_from_slice(&at.port().to_be_bytes());
            datagram.extend(b"hello");
            datagram
        };
        known.send_to(b"first", at).unwrap();
        assert_eq!(&data.read(0, 1000).await.unwrap()[52..], b"first");
        assert_eq!(errno(data.write(0, &to(&stranger)).await), Errno::EACCES);
        assert_eq!(errno(data.write(0, b"no headers").await), Errno::EINVAL);
        // An unspecified address is refused, though the kernel would send to the loopback.
        for ip in [std::net::Ipv4Addr::UNSPECIFIED.to_ipv6_mapped(), std::net::Ipv6Addr::UNSPECIFIED] {
            let mut nowhere = to(&known);
            nowhere[..16].copy_from_slice(&ip.octets());
            assert_eq!(errno(data.write(0, &nowhere).await), Errno::EINVAL);
        }
        for socket in [&known, &other] {
            data.write(0, &to(socket)).await.unwrap();
            let mut buf = [0; 100];
            let n = socket.recv(&mut buf).unwrap();
            assert_eq!(&buf[..n], b"hello");
        }
    });
}
