//! The devices of archives.

use std::fs;

use crate::fs::site::Site;

/// Creates a sparse file of `size` MiB.
fn disk(site: &Site, name: &str, size: u64) {
    fs::File::create(site.path(name)).unwrap().set_len(size << 20).unwrap();
}

#[test]
fn nothing_is_lost_that_was_not_to_be() {
    let site = Site::new();
    fs::write(site.path("junk"), vec![7; 64 << 20]).unwrap();
    let said = site.fails("fs ream ./junk");
    assert!(said.contains("something is on it, and would be lost; --force"), "{said}");
    assert!(fs::read(site.path("junk")).unwrap().iter().all(|byte| *byte == 7));
    site.ok("fs ream ./junk --force --name once");
    let said = site.fails("fs ream ./junk");
    assert!(said.contains("the archive `once` is there, made 20"), "{said}");
    site.ok("fs ream ./junk --force --block 8K");
    for (line, said) in [
        ("fs ream ./new --size 2M", "too few for an archive"),
        ("fs ream ./new --size 100M --name a/b", "`a/b`: a name is that of a directory"),
        ("fs ream ./new --size 100M --block 5K", "8K, 16K, 32K or 64K"),
        ("fs ream cw\"a\"w\"b\"", "No such file"),
        ("fs ream cram1000000ram1000000", "no archive is made there"),
        ("fs check ./junk2", "there is no archive in ./junk2; `ninefold fs ream` makes one"),
    ] {
        let is = site.fails(line);
        assert!(is.contains(said), "{line}: {is}");
    }
    assert!(!site.path("new").exists() && !site.path("new.new").exists());
}

#[test]
fn two_files_a_mirror_before_a_fake_worm_and_parts_of_a_disk() {
    let mut site = Site::new();
    for (name, size) in [("c", 60), ("w", 200), ("m1", 60), ("m2", 60), ("f", 200), ("p", 300), ("a", 100)] {
        disk(&site, name, size);
    }
    let exprs =
        ["c w\"c\" w\"w\"", "c {w\"m1\"w\"m2\"} f w\"f\"", "c p(w\"p\")0.25 p(w\"p\")25.75", "c n w\"a\""];
    for expr in exprs {
        let said = site.ok_words(&["fs", "ream", expr, "--no-fastworm"]);
        assert!(said.contains("mount fsctl: /fs"), "{said}");
        let said = site.fails_words(&["fs", "ream", expr]);
        assert!(said.contains("the archive `main` is there"), "{said}");
        let mut server = site.serve(&format!("fs:{expr}"));
        server.fed(&["write", "--create", "/archive/x"], expr.as_bytes());
        let name = server.ok(["fs", "dump", "--wait"]);
        server.ok(["rm", "/archive/x"]);
        assert_eq!(server.ok(["cat", &format!("/dump/{}/x", name.trim_end())]), expr);
        assert_eq!(server.stop().0, Some(0), "{}", server.log());
        site.dir = crate::fs::site::taken(&mut server);
        let said = site.ok_words(&["fs", "check", expr, "--dumps"]);
        assert!(said.ends_with(" is whole\n"), "{said}");
    }
    // The same file twice is an error.
    let said = site.fails_words(&["fs", "ream", "c w\"c\" w\"c\"", "--force"]);
    assert!(said.contains("another program has it"), "{said}");
}

#[test]
fn a_disk_without_a_cache_grows_is_followed_and_is_no_worm() {
    let mut site = Site::new();
    disk(&site, "a", 60);
    disk(&site, "f", 60);
    let said = site.fails_words(&["fs", "ream", "c n f w\"f\""]);
    assert!(said.contains("`c CACHE WORM`"), "{said}");
    let expr = "c n w\"a\"";
    let said = site.ok_words(&["fs", "ream", expr]);
    assert!(said.contains("no cache"), "{said}");
    let mut server = site.serve(&format!("fs:{expr}"));
    server.fed(&["write", "--create", "/archive/note"], b"one");
    let first = server.ok(["fs", "dump", "--wait"]);
    server.fed(&["write", "/archive/note"], b"two");
    server.ok(["fs", "sync"]);
    let status = server.ok(["fs", "status"]);
    assert!(status.contains("cache none, ") && status.contains(" of 60.0 MiB in use ("), "{status}");
    let file = fs::File::options().write(true).open(server.dir.path().join("a")).unwrap();
    file.set_len(100 << 20).unwrap();
    server.ok(["fs", "grow"]);
    let status = server.ok(["fs", "status"]);
    assert!(status.contains(" of 100.0 MiB in use ("), "{status}");
    server.signal(rustix::process::Signal::KILL);
    server.child.wait().unwrap();
    site.dir = crate::fs::site::taken(&mut server);
    let said = site.ok_words(&["fs", "check", expr, "--dumps"]);
    assert!(said.ends_with(" is whole\n"), "{said}");
    let said = site.fails_words(&["fs", "recover", expr]);
    assert!(said.contains("no cache that could be lost") && said.contains("--force"), "{said}");
    let said = site.fails_words(&["fs", "check", "c w\"f\" w\"a\""]);
    assert!(said.contains("no cache device"), "{said}");
    let said = site.fails_words(&["fs", "copyworm", "w\"a\"", "w\"f\""]);
    assert!(said.contains("the whole device"), "{said}");
    let mut server = site.serve("fs:follow w\"a\"");
    assert_eq!(server.ok(["cat", &format!("/dump/{}/note", first.trim_end())]), "one");
    assert_eq!(server.stop().0, Some(0), "{}", server.log());
    site.dir = crate::fs::site::taken(&mut server);
    let server = site.serve(&format!("fs:{expr}"));
    assert_eq!(server.ok(["cat", "/archive/note"]), "two");
}

#[test]
fn a_rotten_block_is_found() {
    let mut site = Site::new();
    disk(&site, "c", 60);
    disk(&site, "w", 200);
    let expr = "c w\"c\" w\"w\"";
    site.ok_words(&["fs", "ream", expr]);
    let mut server = site.serve(&format!("fs:{expr}"));
    server.fed(&["write", "--create", "/archive/x"], &[5; 100_000]);
    server.ok(["fs", "dump", "--wait"]);
    assert_eq!(server.stop().0, Some(0));
    site.dir = crate::fs::site::taken(&mut server);
    let mut bytes = fs::read(site.path("w")).unwrap();
    let at = bytes.windows(1000).position(|some| some == [5; 1000]).expect("it is on the worm");
    bytes[at + 500] = 6;
    fs::write(site.path("w"), bytes).unwrap();
    let output = site.command(&["fs", "check", expr, "--dumps"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.code() == Some(1) && said.contains("/x: block 0 of inode "), "{said}");
    assert!(said.contains("is lost: ") && said.contains(" faults\n"), "{said}");
    // The fault is reported, and no file is truncated for it.
    let output = site.command(&["fs", "check", expr, "--repair", "--blocks"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.code() == Some(1) && said.starts_with("0 mended\n"), "{said}");
    // A check writes nothing, even where it has the right.
    let before = fs::read(site.path("c")).unwrap();
    let output = site.command(&["fs", "check", expr, "--repair", "--dry-run"]).output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    site.ok_words(&["fs", "check", expr]);
    site.ok_words(&["fs", "check", expr, "--quick"]);
    assert!(fs::read(site.path("c")).unwrap() == before);
}
