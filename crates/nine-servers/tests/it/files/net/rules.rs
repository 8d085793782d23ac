//! Permissions.

use nine_io::client::Options;
use nine_io::server::{Anonymous, Core, Gate, Service};

use super::*;

#[test]
fn what_the_policy_forbids_is_never_dialled() {
    world(async |world| {
        let root = world.root_in(Dialect::U).await;
        let (ctl, _) = made(&root, "held").await;
        let error = say(&ctl, "connect 10.0.0.1:1").await.unwrap_err();
        assert_eq!(error.errno(), Errno::EACCES);
        assert!(error.to_string().contains("does not allow to dial held!10.0.0.1!1"), "{error}");
        assert_eq!(errno(say(&ctl, "announce 10.0.0.1:1").await), Errno::EACCES);
        assert_eq!(world.held.dialled.load(Ordering::Relaxed), 0);
        let (ctl, _) = made(&root, "tcp").await;
        assert_eq!(errno(say(&ctl, "announce *!0").await), Errno::EACCES);
        assert_eq!(errno(say(&ctl, "announce 0").await), Errno::EACCES);
        let (ctl, _) = made(&root, "unix").await;
        assert_eq!(errno(say(&ctl, "connect /run/anything").await), Errno::EACCES);
        // The next address of a name is tried.
        let (ctl, dir) = made(&root, "held").await;
        say(&ctl, "connect many").await.unwrap();
        assert_eq!(world.held.dialled.load(Ordering::Relaxed), 2);
        assert_eq!(shown(&dir, "remote").await, "there!2\n");
        let error = say(&made(&root, "held").await.0, "connect nobody").await.unwrap_err();
        assert!(error.to_string().contains("can't translate address"), "{error}");
    });
}

#[test]
fn a_conversation_is_its_openers() {
    world(async |world| {
        let client = world.client(Dialect::L).await;
        let (mine, yours) =
            (client.attach("", 1000, "").await.unwrap(), client.attach("", 1001, "").await.unwrap());
        let (ctl, dir) = made(&mine, "tcp").await;
        let number = text(&ctl).await;
        for file in ["ctl", "data", "err", "listen"] {
            let path = format!("tcp/{number}/{file}");
            let how = if file == "err" { READ } else { RDWR };
            assert_eq!(errno(yours.open(path.as_str(), how).await), Errno::EACCES, "{file}");
        }
        assert!(shown(&yours, &format!("tcp/{number}/status")).await.starts_with("Closed "));
        dir.open("ctl", RDWR).await.unwrap();
        // On any connection and under any name of the same user, but not for another user with that name.
        let name = "somebody";
        let again = world.client(Dialect::L).await.attach(name, 1000, "").await.unwrap();
        drop(again.open(format!("tcp/{number}/data").as_str(), RDWR).await.unwrap());
        let other = world.client(Dialect::L).await.attach("1000", 1001, "").await.unwrap();
        assert_eq!(errno(other.open(format!("tcp/{number}/data").as_str(), RDWR).await), Errno::EACCES);
        // A client that is read-only on this front end cannot read data either.
        let (near, far) = two();
        let gate = Gate { anonymous: Anonymous::Trusted, read_only: true, ..Gate::default() };
        let server: Arc<dyn FileServer> = world.server.clone();
        world.env.spawn(Box::pin(Service::new(server, gate, Core::default()).connect(Box::new(far))));
        let (reader, driver) = Client::connect(near, Options::default()).await.unwrap();
        world.env.spawn(Box::pin(async { drop(driver.await) }));
        let reads = reader.attach("", 1000, "").await.unwrap();
        for file in ["data", "listen", "err"] {
            let path = format!("tcp/{number}/{file}");
            assert_eq!(errno(reads.open(path.as_str(), READ).await), Errno::EACCES, "{file}");
        }
        // A conversation that has ended is not found by any user.
        drop(ctl);
        until_gone(&mine, "tcp").await;
        assert_eq!(errno(mine.walk(format!("tcp/{number}").as_str()).await), Errno::ENOENT);
    });
}

#[test]
fn a_policy_is_asked_about_the_place_that_is_really_meant() {
    let dir = tempfile::tempdir().unwrap();
    let top = dir.path().canonicalize().unwrap();
    for name in ["app", "secret"] {
        std::fs::create_dir(top.join(name)).unwrap();
    }
    let _secret = std::os::unix::net::UnixListener::bind(top.join("secret/s")).unwrap();
    std::os::unix::fs::symlink("../secret/s", top.join("app/link")).unwrap();
    std::os::unix::fs::symlink("nothing", top.join("app/nowhere")).unwrap();
    let loopback = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = loopback.local_addr().unwrap().port();
    let at = top.display();
    // A link is refused by its written path, not by its target.
    let refused = |path: &str| format!("does not allow to dial unix!{at}/{path}");
    let paths = [
        ("secret/s", refused("secret/s")),
        ("secret//s", refused("secret/s")),
        ("./secret/s", refused("secret/s")),
        ("secret/nothing", refused("secret/nothing")),
        ("app/../secret/s", "no way up".into()),
        ("app/link", refused("app/link")),
        ("secret/s\0x", "no control characters".into()),
        ("app/link\0x", "no control characters".into()),
        ("app/\u{1b}", "no control characters".into()),
    ];
    for policy in [
        format!(
            "deny any unix!{at}/secret/*\nallow any unix!{at}/*\ndeny dial *!loopback!*\nallow dial tcp!*!*"
        ),
        format!("allow any unix!{at}/app/*\ndeny any *!127.0.0.0/8!*\ndeny any *!::1!*\nallow dial tcp!*!*"),
        format!(
            "deny any *!::ffff:127.0.0.0/104!*\ndeny any *!::1!*\nallow dial tcp!*!*\n\
             deny dial unix!{at}/secret/s\nallow any unix!{at}/app/*"
        ),
        "deny any *!*!*\nallow any unix!*\nallow any tcp!*!*".into(),
    ] {
        limited(100, policy.parse().unwrap(), async |world| {
            let root = world.root_in(Dialect::U).await;
            for (path, said) in &paths {
                let (ctl, _) = made(&root, "unix").await;
                let error = say(&ctl, &format!("connect '{at}/{path}'")).await.unwrap_err().to_string();
                assert!(error.contains(said), "{policy}: {path}: {error}");
            }
            for host in ["127.0.0.1", "0.0.0.0", "::", "::ffff:0.0.0.0", "::ffff:127.0.0.1"] {
                let (ctl, _) = made(&root, "tcp").await;
                let said = errno(say(&ctl, &format!("connect {host}!{port}")).await);
                assert_eq!(said, Errno::EACCES, "{policy}: {host}");
            }
        });
    }
    let policy = format!("allow any unix!{at}/app/*").parse().unwrap();
    limited(100, policy, async |world| {
        let root = world.root_in(Dialect::U).await;
        // An allowed path that does not exist gives ENOENT.
        for path in ["none", "nowhere"] {
            let (ctl, _) = made(&root, "unix").await;
            assert_eq!(errno(say(&ctl, &format!("connect {at}/app/{path}")).await), Errno::ENOENT);
        }
        // No client learns the target of a link.
        let cs = root.open("cs", RDWR).await.unwrap();
        cs.write(0, format!("unix!{at}/app/link").as_bytes()).await.unwrap();
        assert_eq!(cs.read(0, 500).await.unwrap(), format!("/net/unix/clone {at}/app/link"));
        assert_eq!(errno(cs.write(0, format!("unix!{at}/app/link\0x").as_bytes()).await), Errno::EINVAL);
    });
}

#[test]
fn where_no_more_than_the_loopback_may_be_called_no_name_goes_out() {
    let policies = [
        "allow any *!loopback!*",
        "allow any unix!*\nallow any *!loopback!*",
        "allow any *!loopback!*\nallow dial tcp!10.0.0.0/8!* 77",
    ];
    for policy in policies {
        limited(100, policy.parse().unwrap(), async |world| {
            let root = world.root().await;
            for words in
                ["connect secret.invalid!80", "connect 'secret.invalid!80' 0", "announce secret.invalid!80"]
            {
                let (ctl, _) = made(&root, "tcp").await;
                assert_eq!(errno(say(&ctl, words).await), Errno::EACCES, "{policy}: {words}");
            }
            for (file, question, said) in [
                ("cs", "tcp!secret.invalid!80", Errno::EACCES),
                ("cs", "secret.invalid", Errno::EACCES),
                ("dns", "secret.invalid ip", Errno::EACCES),
                ("dns", " secret.invalid ip", Errno::EACCES),
                ("dns", "\tsecret.invalid ip", Errno::EINVAL),
            ] {
                let file = root.open(file, RDWR).await.unwrap();
                assert_eq!(errno(file.write(0, question.as_bytes()).await), said, "{policy}: {question}");
            }
            // An invalid host name is not looked up, under any policy.
            for words in
                ["connect /secret.invalid!80", "connect ' secret.invalid!80'", "connect 'localhost .x!80'"]
            {
                let (ctl, _) = made(&root, "tcp").await;
                assert_eq!(errno(say(&ctl, words).await), Errno::EINVAL, "{policy}: {words}");
            }
            let cs = root.open("cs", RDWR).await.unwrap();
            for question in
                ["tcp! secret.invalid!80", "tcp!localhost .secret.invalid!80", "tcp!/secret.invalid!80"]
            {
                assert_eq!(
                    errno(cs.write(0, question.as_bytes()).await),
                    Errno::EINVAL,
                    "{policy}: {question}"
                );
            }
            cs.write(0, b"tcp!localhost!80").await.unwrap();
        });
    }
    limited(100, Policy::loopback(), async |world| {
        let root = world.root_in(Dialect::U).await;
        let error = say(&made(&root, "tcp").await.0, "connect secret.invalid!80").await.unwrap_err();
        let says = "lets you call nothing beyond the loopback by tcp: secret.invalid is not looked up";
        assert!(error.to_string().contains(says), "{error}");
    });
}

#[test]
fn an_announcement_on_every_address_is_one_on_each() {
    let policy = "deny announce tcp!127.0.0.9!1-65535\nallow announce *!*!*";
    limited(100, policy.parse().unwrap(), async |world| {
        let root = world.root().await;
        for words in
            ["announce *!0", "announce 0", "announce 0.0.0.0!0", "announce ::!0", "announce 127.0.0.9!0"]
        {
            assert_eq!(errno(say(&made(&root, "tcp").await.0, words).await), Errno::EACCES, "{words}");
        }
        say(&made(&root, "tcp").await.0, "announce 127.0.0.8!0").await.unwrap();
        say(&made(&root, "udp").await.0, "announce *!0").await.unwrap();
    });
}

#[test]
fn eight_ports_are_tried_of_those_that_the_kernel_chooses() {
    for (denied, local) in [("1001-1007", Some("127.0.0.1!1008\n")), ("1001-1008", None)] {
        let policy = format!("deny announce *!*!{denied}\nallow any *!loopback!*").parse().unwrap();
        limited(100, policy, async |world| {
            let root = world.root().await;
            let (ctl, dir) = made(&root, "held").await;
            let said = say(&ctl, "announce 127.0.0.1:0").await;
            assert_eq!(world.held.announced.load(Ordering::Relaxed), 8);
            match local {
                Some(local) => assert_eq!((said.is_ok(), &*shown(&dir, "local").await), (true, local)),
                None => assert_eq!(errno(said), Errno::EACCES),
            }
        });
    }
}

#[test]
fn a_port_that_the_kernel_chooses_is_judged_too_and_there_is_no_every_port() {
    let policy = "deny announce tcp!*!1-65535\nallow any *!loopback!*".parse().unwrap();
    limited(100, policy, async |world| {
        let root = world.root_in(Dialect::U).await;
        let (ctl, dir) = made(&root, "tcp").await;
        let error = say(&ctl, "announce 127.0.0.1!0").await.unwrap_err();
        assert!(error.to_string().contains("does not allow to announce tcp!127.0.0.1!"), "{error}");
        assert!(shown(&dir, "status").await.starts_with("Closed "));
        say(&made(&root, "udp").await.0, "announce 127.0.0.1!0").await.unwrap();
        for network in ["tcp", "udp", "il"] {
            for words in ["announce *", "announce *!*", "announce 127.0.0.1!*", "connect 127.0.0.1!*"] {
                let error = say(&made(&root, network).await.0, words).await.unwrap_err();
                assert!(error.to_string().contains("every port"), "{words}: {error}");
            }
        }
    });
}
