//! A lost cache, and dumps that another server reads from the worm.

use std::fs;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::fs::site::{self, Site};

/// Creates a sparse file of `size` MiB.
fn disk(site: &Site, name: &str, size: u64) {
    fs::File::create(site.path(name)).unwrap().set_len(size << 20).unwrap();
}

#[test]
fn a_lost_cache_is_made_anew_from_a_dump() {
    let mut site = Site::new();
    [("c", 60), ("w", 200)].iter().for_each(|(name, size)| disk(&site, name, *size));
    let expr = "c w\"c\" w\"w\"";
    site.ok_words(&["fs", "ream", expr]);
    let said = site.fails_words(&["fs", "recover", expr, "--force"]);
    assert!(said.contains("it has no dump"), "{said}");
    let mut server = site.serve(&format!("fs:{expr}"));
    let mut dumps = Vec::new();
    for word in ["one", "two"] {
        server.fed(&["write", "--create", "/archive/note"], word.as_bytes());
        dumps.push(server.ok(["fs", "dump", "--wait"]).trim_end().to_owned());
    }
    server.fed(&["write", "/archive/note"], b"three");
    server.ok(["fs", "sync"]);
    server.signal(Signal::KILL);
    server.child.wait().unwrap();
    site.dir = site::taken(&mut server);

    // The cache is intact, so recover refuses without --force.
    let said = site.fails_words(&["fs", "recover", expr]);
    assert!(said.contains("its cache is whole") && said.contains("--force"), "{said}");
    fs::remove_file(site.path("c")).unwrap();
    disk(&site, "c", 80);
    let said = site.fails_words(&["fs", "check", expr]);
    assert!(said.contains("cache device's header"), "{said}");
    let output = site.command(&["fs", "recover", expr]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.starts_with(&format!("it goes on from dump {}, of 20", dumps[1])), "{said}");
    assert!(said.ends_with("; 2 dumps are there\n"), "{said}");
    let said = site.ok_words(&["fs", "check", expr, "--dumps"]);
    assert!(said.ends_with(" is whole\n"), "{said}");
    let said = site.ok_words(&["fs", "recover", expr, "--force", "--dump", &dumps[0]]);
    assert!(said.contains(&dumps[0]), "{said}");
    let said = site.fails_words(&["fs", "recover", expr, "--force", "--dump", "2001/0101"]);
    assert!(said.contains("it has no such dump"), "{said}");
    let server = site.serve(&format!("fs:{expr}"));
    assert_eq!(server.ok(["cat", "/archive/note", &format!("/dump/{}/note", dumps[1])]), "onetwo");
}

#[test]
fn a_dump_that_cannot_be_read_hides_no_other() {
    let mut site = Site::new();
    [("c", 60), ("w", 200)].iter().for_each(|(name, size)| disk(&site, name, *size));
    let expr = "c w\"c\" w\"w\"";
    site.ok_words(&["fs", "ream", expr]);
    let mut server = site.serve(&format!("fs:{expr},schedule=off"));
    let mut dumps = Vec::new();
    for word in ["one", "two"] {
        server.fed(&["write", "--create", &format!("/archive/{word}-alone")], word.as_bytes());
        dumps.push(server.ok(["fs", "dump", "--wait"]).trim_end().to_owned());
        server.ok(["rm", &format!("/archive/{word}-alone")]);
    }
    assert_eq!(server.stop().0, Some(0));
    site.dir = site::taken(&mut server);
    // Damage the node with the root of the first dump.
    let mut bytes = fs::read(site.path("w")).unwrap();
    let name = b"one-alone";
    let at = (0..8 << 20).find(|at| bytes[*at..].starts_with(name)).unwrap();
    bytes[at] ^= 1;
    fs::write(site.path("w"), bytes).unwrap();
    let server = site.serve(&format!("fs:{expr},schedule=off"));
    let (year, _) = dumps[0].split_once('/').unwrap();
    let names: Vec<&str> = dumps.iter().map(|dump| dump.split_once('/').unwrap().1).collect();
    let listed = server.ok(["ls", &format!("/dump/{year}")]);
    assert_eq!(listed.lines().collect::<Vec<_>>(), names);
    // An unreadable file is not reported as absent.
    let output = server.run(["fs", "history", "/archive/two-alone"]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        said.contains(&format!("\n{}", dumps[1])) && said.trim_end().ends_with("Input/output error"),
        "{said}"
    );
    assert_eq!(output.status.code(), Some(1));
    for verb in ["restore", "diff"] {
        let said = server.fails(["fs", verb, &dumps[0], "/archive/two-alone"]);
        assert!(said.contains("Input/output error"), "{said}");
    }
}

#[test]
fn another_server_reads_the_dumps_as_they_come() {
    let mut site = Site::new();
    site.ok("fs ream ./disk --size 200M");
    let main = site.serve("fs:./disk");
    main.fed(&["write", "--create", "/archive/note"], b"one\n");
    let first = main.ok(["fs", "dump", "--wait"]);
    let worm = format!("fs:follow {}", main.dir.path().join("disk").display());
    let other = Site::new().serve(&worm);
    assert_eq!(other.ok(["cat", "/archive/note", &format!("/dump/{}/note", first.trim_end())]), "one\none\n");
    main.fed(&["write", "/archive/note"], b"two\n");
    let second = main.ok(["fs", "dump", "--wait"]);
    let begun = Instant::now();
    while !other.ok(["fs", "dumps"]).contains(second.trim_end()) {
        assert!(begun.elapsed() < Duration::from_secs(60), "{}", other.ok(["fs", "status"]));
    }
    assert_eq!(other.ok(["cat", "/archive/note"]), "two\n");
    assert_eq!(other.ok(["fs", "dumps"]), main.ok(["fs", "dumps"]));
    let said = other.fails(["fs", "dump"]);
    assert!(said.contains("follows"), "{said}");
    let said = other.fails(["rm", "/archive/note"]);
    assert!(said.contains("Read-only file system"), "{said}");
    other.ok(["fs", "ctl", "verify", first.trim_end()]);
    let said = Site::new().fails("fs ream follow./x");
    assert!(said.contains("follow"), "{said}");
}

#[test]
fn a_worm_grows_while_it_is_served() {
    let mut site = Site::new();
    site.ok("fs ream ./disk --size 64M");
    let mut server = site.serve("fs:./disk");
    assert!(server.ok(["fs", "grow"]).starts_with("it is as large as it was: "));
    let said = server.fails(["fs", "grow", "w\"x\""]);
    assert!(said.contains("a file grows by itself"), "{said}");
    let disk = server.dir.path().join("disk");
    fs::File::options().write(true).open(&disk).unwrap().set_len(200 << 20).unwrap();
    let said = server.ok(["fs", "grow"]);
    assert!(said.contains(" (136.00 MiB) more: the worm has "), "{said}");
    // More than fitted before.
    let big = server.dir.path().join("big");
    fs::write(&big, (0..100_u32 << 18).flat_map(u32::to_le_bytes).collect::<Vec<u8>>()).unwrap();
    server.ok(["put", "-q", "big", "/archive/big"]);
    let name = server.ok(["fs", "dump", "--wait"]);
    server.signal(Signal::KILL);
    server.child.wait().unwrap();
    site.dir = site::taken(&mut server);
    let said = site.ok("fs check ./disk --dumps");
    assert!(said.ends_with(" is whole\n"), "{said}");
    let server = site.serve("fs:./disk");
    let back = server.dir.path().join("back").display().to_string();
    server.ok(["get", "-q", &format!("/dump/{}/big", name.trim_end()), &back]);
    assert!(fs::read(back).unwrap() == fs::read(server.dir.path().join("big")).unwrap());
}

#[test]
fn a_device_is_put_behind_a_worm_and_stays_there() {
    let mut site = Site::new();
    [("c", 60), ("w", 40), ("more", 80), ("junk", 80)]
        .iter()
        .for_each(|(name, size)| disk(&site, name, *size));
    fs::write(site.path("junk"), vec![7; 1 << 20]).unwrap();
    site.ok_words(&["fs", "ream", "c w\"c\" w\"w\""]);
    let mut server = site.serve("fs:c w\"c\" w\"w\"");
    let at = |name: &str| format!("w\"{}\"", server.dir.path().join(name).display());
    let said = server.fails(["fs", "grow", &at("junk")]);
    assert!(said.contains("something is on it"), "{said}");
    let said = server.fails(["fs", "grow", &at("w")]);
    assert!(said.contains("another program has"), "{said}");
    let said = server.ok(["fs", "grow", &at("more")]);
    let word = said.lines().last().unwrap().trim().to_owned();
    assert!(word.starts_with("(w\"") && word.ends_with("more\")"), "{said}");
    server.fed(&["write", "--create", "/archive/note"], b"one");
    server.ok(["fs", "dump", "--wait"]);
    assert_eq!(server.stop().0, Some(0));
    let dir = server.dir.path().display().to_string();
    site.dir = site::taken(&mut server);
    let said = site.ok_words(&["fs", "check", &format!("c w\"{dir}/c\" {word}"), "--dumps"]);
    assert!(said.ends_with(" is whole\n"), "{said}");
}

#[test]
fn a_worm_moves_to_a_larger_disk_while_it_is_served() {
    let mut site = Site::new();
    [("c", 60), ("w", 60), ("large", 200), ("junk", 80)]
        .iter()
        .for_each(|(name, size)| disk(&site, name, *size));
    fs::write(site.path("junk"), vec![7; 1 << 20]).unwrap();
    site.ok_words(&["fs", "ream", "c w\"c\" w\"w\""]);
    let mut server = site.serve("fs:c w\"c\" w\"w\"");
    server.fed(&["write", "--create", "/archive/note"], b"one");
    server.ok(["fs", "dump", "--wait"]);
    let copied = server.ok(["fs", "copyworm", "-q", "w\"w\"", "w\"large\""]);
    assert!(copied.starts_with("1 dumps copied, of "), "{copied}");
    let said = server.fails(["fs", "copyworm", "w\"w\"", "w\"junk\""]);
    assert!(said.contains("something is on it"), "{said}");
    server.fed(&["write", "/archive/note"], b"two");
    let name = server.ok(["fs", "dump", "--wait"]);
    assert_eq!(server.stop().0, Some(0));
    site.dir = site::taken(&mut server);
    let copied = site.ok("fs copyworm -q w\"w\" w\"large\"");
    assert!(copied.starts_with("1 dumps copied, of ") && copied.ends_with("; 2 are there\n"), "{copied}");
    let expr = "c w\"c\" w\"large\"";
    let said = site.ok_words(&["fs", "check", expr, "--dumps"]);
    assert!(said.ends_with(" is whole\n"), "{said}");
    let server = site.serve(&format!("fs:{expr}"));
    assert_eq!(server.ok(["cat", &format!("/dump/{}/note", name.trim_end())]), "two");
}
