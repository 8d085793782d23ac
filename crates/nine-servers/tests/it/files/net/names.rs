//! Names of addresses.

use super::*;

#[test]
fn unix_sockets_are_called_by_their_paths() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let policy = format!("allow any unix!{}/*", dir.path().display()).parse().unwrap();
    limited(10, policy, async |world| {
        let root = world.root().await;
        let (served, serving) = made(&root, "unix").await;
        say(&served, &format!("announce {}", path.display())).await.unwrap();
        assert_eq!(shown(&serving, "local").await, format!("{}\n", path.display()));
        let call = called_by(&root, &serving, "unix", &format!("connect {}", path.display())).await;
        assert_eq!(shown(&call.dir, "remote").await, format!("{}\n", path.display()));
        let (a, b) = call.data().await;
        a.write(0, b"hi").await.unwrap();
        assert_eq!(b.read(0, 9).await.unwrap(), "hi");
        assert_eq!(errno(say(&call.ctl, "tos 3").await), Errno::EOPNOTSUPP);
        // A local address cannot be chosen on this network.
        let other = world.root_in(Dialect::U).await;
        let (ctl, _) = made(&other, "unix").await;
        let error = say(&ctl, &format!("connect {} 5000", path.display())).await.unwrap_err();
        assert!(error.to_string().contains("the local address cannot be chosen"), "{error}");
        drop((ctl, other));
        drop(served);
        until(|| !path.exists()).await;
    });
}

#[test]
fn cs_says_what_to_open_and_what_to_write_there() {
    world(async |world| {
        for dialect in ALL {
            let root = world.root_in(dialect).await;
            let cs = root.open("cs", RDWR).await.unwrap();
            for (question, answer) in [
                ("tcp!127.0.0.1!80", "/net/tcp/clone 127.0.0.1!80"),
                ("net!127.0.0.1!564\n", "/net/tcp/clone 127.0.0.1!564"),
                ("net!127.0.0.1!9fs", "/net/tcp/clone 127.0.0.1!564"),
                ("tcp!*!8080", "/net/tcp/clone *!8080"),
                ("127.0.0.1", "/net/tcp/clone 127.0.0.1"),
                ("tcp!::1!80", "/net/tcp/clone ::1!80"),
                ("unix!/run/x!y", "/net/unix/clone /run/x!y"),
            ] {
                cs.write(5, question.as_bytes()).await.unwrap();
                let first = cs.read(0, 200).await.unwrap();
                assert_eq!(first, answer, "{question}");
                assert_eq!(cs.read(first.len() as u64, 200).await.unwrap(), "", "no more");
                assert_eq!(cs.read(5, 3).await.unwrap(), &answer[5..8]);
            }
            for (question, says) in [
                ("snail!host!1", "unknown network snail: there are net, tcp, udp, il, unix"),
                ("!sys=helix ip", "no network database"),
                ("tcp!", "NETWORK!HOST!SERVICE"),
                ("tcp!127.0.0.1!nothing", "unknown service nothing"),
            ] {
                let error = cs.write(0, question.as_bytes()).await.unwrap_err();
                assert!(dialect.is_l() || error.to_string().contains(says), "{question}: {error}");
                assert_eq!(cs.read(0, 200).await.unwrap(), "", "the old answer has gone");
            }
            let dns = root.open("dns", RDWR).await.unwrap();
            dns.write(0, b"127.0.0.1 ip").await.unwrap();
            assert_eq!(dns.read(0, 200).await.unwrap(), "127.0.0.1 ip 127.0.0.1");
            assert!(dns.write(0, b"localhost mx").await.is_err());
        }
    });
}

#[test]
fn a_path_with_a_blank_in_it_is_quoted() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("it's a socket");
    let quoted = format!("'{}'", path.display().to_string().replace('\'', "''"));
    let policy = format!("allow any 'unix!{}/it''s *' # quoted, too", dir.path().display()).parse().unwrap();
    limited(10, policy, async |world| {
        let root = world.root_in(Dialect::U).await;
        let (served, serving) = made(&root, "unix").await;
        let error = say(&served, &format!("announce {}", path.display())).await.unwrap_err();
        assert!(error.to_string().contains("quote"), "{error}");
        say(&served, &format!("announce {quoted}")).await.unwrap();
        assert_eq!(shown(&serving, "local").await, format!("{}\n", path.display()));
        let call = called_by(&root, &serving, "unix", &format!("connect {quoted}")).await;
        let (a, b) = call.data().await;
        a.write(0, b"hi").await.unwrap();
        assert_eq!(b.read(0, 9).await.unwrap(), "hi");
        // An answer of cs can be written unchanged.
        let cs = root.open("cs", RDWR).await.unwrap();
        cs.write(0, format!("unix!{}", path.display()).as_bytes()).await.unwrap();
        assert_eq!(cs.read(0, 500).await.unwrap(), format!("/net/unix/clone {quoted}"));
        let net = client::Net::new(world.root().await);
        let here = net.dial(&format!("unix!{}", path.display())).await.unwrap();
        assert_eq!(here.remote().await.unwrap(), path.display().to_string());
    });
}
