//! An archive with its worm in an object store: created, served, dumped, killed and checked by the real command, while
//! the store throttles, loses answers and truncates them.
#![cfg(feature = "s3")]

use std::fs;

use nine_sim::s3::{Fate, Server};
use rustix::process::Signal;

use crate::common;
use crate::fs::site::{self, Site};

/// Creates a cache of 60 MiB and a key. Returns the expression of an archive.
fn place(site: &Site, store: &Server, words: &str) -> String {
    fs::File::create(site.path("c")).unwrap().set_len(60 << 20).unwrap();
    fs::create_dir_all(site.path(".aws")).unwrap();
    let key = "[default]\naws_access_key_id = glenda\naws_secret_access_key = gnot\n";
    fs::write(site.path(".aws/credentials"), key).unwrap();
    format!("c w\"c\" s3\"attic/a?endpoint=http://127.0.0.1:{}{words}\"", store.port)
}

/// Stores files of different sizes.
fn tree(server: &common::Server) {
    let tree = server.dir.path().join("tree");
    fs::create_dir(&tree).unwrap();
    for n in 0..40_usize {
        fs::write(tree.join(n.to_string()), vec![n as u8; n * n * 600]).unwrap();
    }
    server.ok(["put", "-q", "-r", "tree", "/archive/tree"]);
}

#[test]
fn an_archive_lives_in_a_store() {
    let (mut site, store) = (Site::new(), Server::start());
    let expr = place(&site, &store, "&size=2G");
    // Tools that show folders may create such objects in a bucket.
    ["a/", "a/data/", "a/claim/"].iter().for_each(|folder| store.put(folder));
    let said = site.ok_words(&["fs", "ream", &expr, "--no-fastworm"]);
    assert!(said.contains("worm   4194304 sectors"), "{said}");
    let said = site.fails_words(&["fs", "ream", &expr]);
    assert!(said.contains("the archive `main` is there"), "{said}");
    let said = site.fails_words(&["fs", "ream", &expr, "--force"]);
    assert!(said.contains("no other archive is made"), "{said}");

    let mut server = site.serve(&format!("fs:{expr}"));
    tree(&server);
    let name = server.ok(["fs", "dump", "--wait"]);
    let name = name.trim_end();
    server.ok(["rm", "-r", "/archive/tree"]);
    server.signal(Signal::KILL);
    server.child.wait().unwrap();
    site.dir = site::taken(&mut server);

    let before = store.names();
    let said = site.ok_words(&["fs", "check", &expr, "--dumps"]);
    assert!(said.ends_with("it is whole\n"), "{said}");
    assert_eq!(store.names(), before, "who only looks changes nothing");
    let mut server = site.serve(&format!("fs:{expr}"));
    let back = server.dir.path().join("back").display().to_string();
    server.ok(["get", "-q", "-r", &format!("/dump/{name}/tree"), &back]);
    common::assert_same(&server.dir.path().join("tree"), &server.dir.path().join("back"));
    server.fed(&["write", "--create", "/archive/note"], b"two\n");
    server.ok(["fs", "dump", "--wait"]);
    assert_eq!(server.stop().0, Some(0), "{}", server.log());
    site.dir = site::taken(&mut server);

    let (_, word) = expr.split_once("s3").unwrap();
    // Another machine reads the dumps, and changes nothing.
    let before = store.names();
    let mut server = site.serve(&format!("fs:follow s3{word}"));
    assert_eq!(server.ok(["ls", &format!("/dump/{name}/tree")]).lines().count(), 40);
    assert_eq!(server.stop().0, Some(0), "{}", server.log());
    site.dir = site::taken(&mut server);
    assert_eq!(store.names(), before);
    let said = site.ok_words(&["block", "status", &format!("ro s3{word}")]);
    assert!(said.contains("ros3\"attic/a\" 4194304 sectors, read only"), "{said}");
    // The newest objects are removed.
    store.remove(store.names().iter().rfind(|name| name.starts_with("a/data/")).unwrap());
    store.remove(store.names().iter().rfind(|name| name.starts_with("a/data/")).unwrap());
    let said = site.fails_words(&["fs", "check", &expr]);
    assert!(said.contains("w lacks the newest dump that the cache knows"), "{said}");
}

#[test]
fn a_store_that_fails_now_and_then_loses_nothing() {
    let (mut site, store) = (Site::new(), Server::start());
    let expr = place(&site, &store, "");
    let mut requests = 0_u32;
    store.decided_by(move |_, _| {
        requests = requests.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        match requests >> 28 {
            0 => Fate::Busy,
            1 => Fate::Broken,
            2 => Fate::Unheard,
            3 => Fate::Short,
            _ => Fate::Good,
        }
    });
    site.ok_words(&["fs", "ream", &expr, "--no-fastworm"]);
    let mut server = site.serve(&format!("fs:{expr}"));
    tree(&server);
    let name = server.ok(["fs", "dump", "--wait"]);
    let back = server.dir.path().join("back").display().to_string();
    server.ok(["get", "-q", "-r", &format!("/dump/{}/tree", name.trim_end()), &back]);
    common::assert_same(&server.dir.path().join("tree"), &server.dir.path().join("back"));
    assert_eq!(server.stop().0, Some(0), "{}", server.log());
    site.dir = site::taken(&mut server);
    store.heal();
    let said = site.ok_words(&["fs", "check", &expr, "--dumps"]);
    assert!(said.ends_with("it is whole\n"), "{said}");
    assert!(store.requests() > 50);
}

#[test]
fn what_is_wrong_is_said_with_what_to_do() {
    let (site, store) = (Site::new(), Server::start());
    let expr = place(&site, &store, "&patience=1");
    let ream = |expr: &str| site.fails_words(&["fs", "ream", expr]);
    store.decided_by(|_, _| Fate::Denied);
    let said = ream(&expr);
    assert!(said.contains("AccessDenied") && said.contains("s3:PutObject"), "{said}");
    store.decided_by(|_, _| Fate::Busy);
    let said = ream(&expr);
    assert!(said.contains("SlowDown: by a test (asked ") && said.contains("s3\"attic/a\""), "{said}");
    store.heal();
    // A key in a file is used alone, without the session token in the environment, which belongs to another key.
    let (_, word) = expr.split_once("s3").unwrap();
    let word = word.replace("&patience=1", "&profile=default");
    let mut keyed = site.command(&["block", "status", &format!("ro s3{word}")]);
    keyed.envs([("AWS_ACCESS_KEY_ID", "other"), ("AWS_SECRET_ACCESS_KEY", "x"), ("AWS_SESSION_TOKEN", "t")]);
    assert!(keyed.output().unwrap().status.success());
    let signed = store.head("authorization").unwrap();
    assert!(signed.contains("Credential=glenda/") && !signed.contains("token"), "{signed}");
    assert_eq!(store.head("x-amz-security-token"), None);
    for (from, to, wanted) in [
        ("attic", "cellar", "there is no such bucket"),
        ("http://127.0.0.1", "http://192.0.2.1", "without TLS"),
        ("patience=1", "patience=x", "1 to 3600 seconds"),
        ("patience=1", "colour=red", "these are: endpoint=URL"),
        ("patience=1", "profile=nobody", "no profile `nobody`"),
    ] {
        let said = ream(&expr.replace(from, to));
        assert!(said.contains(wanted), "{to}: {said}");
    }
    assert_eq!(store.names(), Vec::<String>::new());
    let said = ream("c w\"c\" s31");
    assert!(said.contains("the name of a bucket is expected"), "{said}");
}

/// Two machines share only a store: it holds the worm, and the compare-and-swap object by which they agree on the
/// writer.
#[test]
fn two_machines_agree_in_the_store_which_of_them_writes() {
    let (site, store) = (Site::new(), Server::start());
    for name in ["c", "c2"] {
        fs::File::create(site.path(name)).unwrap().set_len(60 << 20).unwrap();
    }
    let of = |prefix: &str| format!("s3\"attic/{prefix}?endpoint=http://127.0.0.1:{}&unsigned\"", store.port);
    let expr = |cache: &str| format!("c w\"{}\" {}", site.path(cache).display(), of("a"));
    site.ok_words(&["fs", "ream", &expr("c"), "--no-fastworm"]);
    let arbiter = of("turns");
    let said = site.fails_words(&["fs", "arbiter", &arbiter]);
    assert!(said.contains("s3\"attic/turns?") && said.contains("it is no arbiter"), "{said}");
    let said = site.ok_words(&["fs", "arbiter", &arbiter, "mars", "venus", "--period", "3"]);
    assert!(said.contains("machine=venus"), "{said}");
    let machine = |name: &str, cache: &str, words: &str| {
        let what = format!("fs:{},arbiter={arbiter},machine={name},schedule=off{words}", expr(cache));
        let dir = tempfile::tempdir().unwrap();
        let socket = format!("unix!{}", dir.path().join("s").display());
        common::Server::in_dir(dir, &["serve", &what, "--listen", &socket, "--listen", "tcp!127.0.0.1!0"])
    };
    let mut mars = machine("mars", "c", "");
    mars.fed(&["write", "--create", "/archive/old"], b"old\n");
    let dump = mars.ok(["fs", "dump", "--wait"]);
    let venus = machine("venus", "c2", ",begin=standby");
    assert_eq!(venus.ok(["cat", &format!("/dump/{}/old", dump.trim_end())]), "old\n");
    let said = venus.fails(["fs", "takeover"]);
    assert!(said.contains("mars is the main one (epoch "), "{said}");
    mars.signal(Signal::KILL);
    mars.child.wait().unwrap();
    let said = venus.ok(["fs", "takeover"]);
    assert!(said.contains(&format!("from dump {} of ", dump.trim_end())), "{said}");
    venus.fed(&["write", "--create", "/archive/new"], b"new\n");
    venus.ok(["fs", "dump", "--wait"]);
    let mars = machine("mars", "c", "");
    let said = mars.ok(["fs", "status"]);
    assert!(said.contains("machine mars, standby: it follows: venus is the main one"), "{said}");
    assert_eq!(mars.ok(["cat", "/archive/old", "/archive/new"]), "old\nnew\n");
    let said = site.ok_words(&["fs", "arbiter", &arbiter]);
    assert!(said.contains("venus: the main one, "), "{said}");
    let names = store.names();
    let has = |name: &str| names.iter().any(|there| there == name);
    assert!(has("turns/lease") && has("a/claim/00000002") && !has("turns/store"), "{names:?}");
}
