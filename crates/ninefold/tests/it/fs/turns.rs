//! Two machines and one archive with failover.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::Signal;

use crate::common::{Server, ninefold, until};

/// Resources of both machines: disks, and the arbiter.
struct Shared {
    dir: tempfile::TempDir,
}

impl Shared {
    fn new(period: &str) -> Self {
        let it = Self { dir: tempfile::tempdir().unwrap() };
        for (name, mib) in [("c", 64_u64), ("c2", 64), ("w", 400), ("arbiter", 1)] {
            fs::File::create(it.dir.path().join(name)).unwrap().set_len(mib << 20).unwrap();
        }
        it.ok(&["fs", "ream", &format!("c {} {}", it.disk("c"), it.disk("w"))]);
        let said = it.ok(&["fs", "arbiter", &it.disk("arbiter"), "mars", "venus", "--period", period]);
        assert!(said.contains("machine=venus"), "{said}");
        it
    }

    fn disk(&self, name: &str) -> String {
        format!("w\"{}\"", self.dir.path().join(name).display())
    }

    fn ok(&self, words: &[&str]) -> String {
        let output = run(self.dir.path(), words);
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Starts a machine, with these words after the location of its archive.
    fn machine(&self, name: &str, cache: &str, words: &str) -> Server {
        let (c, w) = (self.disk(cache), self.disk("w"));
        let what =
            format!("fs:c {c} {w},arbiter={},machine={name},schedule=off{words}", self.disk("arbiter"));
        let dir = tempfile::tempdir().unwrap();
        let socket = format!("unix!{}", dir.path().join("s").display());
        Server::in_dir(dir, &["serve", &what, "--listen", &socket, "--listen", "tcp!127.0.0.1!0"])
    }
}

fn run(dir: &Path, words: &[&str]) -> std::process::Output {
    let mut command: Command = ninefold(dir);
    command.args(words).stdin(Stdio::null()).output().unwrap()
}

fn status(server: &Server) -> String {
    server.ok(["fs", "status"])
}

#[test]
fn with_a_shared_cache_what_was_synced_is_there_after_a_takeover() {
    let shared = Shared::new("1");
    let mars = shared.machine("mars", "c", ",cache=shared");
    assert!(status(&mars).contains("machine mars, the main one: "), "{}", status(&mars));
    mars.fed(&["write", "--create", "/archive/old"], b"old\n");
    let dump = mars.ok(["fs", "dump", "--wait"]);
    let venus = shared.machine("venus", "c", ",cache=shared,begin=standby");
    assert!(status(&venus).contains("machine venus, standby: "), "{}", status(&venus));
    // It serves the dumps on the worm read-only.
    assert_eq!(venus.ok(["cat", &format!("/dump/{}/old", dump.trim_end())]), "old\n");
    assert_eq!(venus.ok(["cat", "/archive/old"]), "old\n");
    let said = venus.fails(["write", "--create", "/archive/x"]);
    assert!(said.contains("Read-only") || said.contains("follows"), "{said}");
    let said = venus.fails(["fs", "takeover"]);
    assert!(said.contains("mars is the main one (epoch ") && said.contains("handover"), "{said}");
    let said = venus.fails(["fs", "handover"]);
    assert!(said.contains("not the main one"), "{said}");

    mars.fed(&["write", "--create", "/archive/new"], b"new\n");
    mars.ok(["fs", "sync"]);
    mars.signal(Signal::KILL);
    let said = venus.ok(["fs", "takeover"]);
    assert!(said.contains("machine venus, the main one: after mars, "), "{said}");
    assert_eq!(venus.ok(["cat", "/archive/old", "/archive/new"]), "old\nnew\n");
    venus.fed(&["write", "--create", "/archive/newer"], b"newer\n");
    venus.ok(["fs", "dump", "--wait"]);

    // The old primary comes back, and stands by until a handover.
    let mut mars = mars;
    mars.child.wait().unwrap();
    let mars = shared.machine("mars", "c", ",cache=shared");
    assert!(
        status(&mars).contains("machine mars, standby: it follows: venus is the main one"),
        "{}",
        status(&mars)
    );
    until("the follower sees the dump", || mars.ok(["ls", "/archive"]).contains("newer"));
    venus.fed(&["write", "--create", "/archive/last"], b"last\n");
    let said = venus.ok(["fs", "handover"]);
    assert!(said.contains("machine venus, standby: "), "{said}");
    assert!(mars.ok(["fs", "takeover"]).contains("the main one: after venus, "));
    assert_eq!(mars.ok(["cat", "/archive/newer", "/archive/last"]), "newer\nlast\n");
    let said = shared.ok(&["fs", "arbiter", &shared.disk("arbiter")]);
    assert!(
        said.contains("mars: the main one, ") && said.contains("venus: not the main one; it was, "),
        "{said}"
    );
}

#[test]
fn with_caches_of_their_own_what_no_dump_has_is_lost_and_named() {
    let shared = Shared::new("1");
    let mut mars = shared.machine("mars", "c", "");
    mars.fed(&["write", "--create", "/archive/old"], b"old\n");
    let dump = mars.ok(["fs", "dump", "--wait"]);
    let dump = dump.trim_end();
    mars.fed(&["write", "--create", "/archive/new"], b"new\n");
    mars.ok(["fs", "sync"]);
    let mut venus = shared.machine("venus", "c2", ",begin=standby");
    mars.signal(Signal::KILL);
    let said = venus.ok(["fs", "takeover"]);
    assert!(said.contains(&format!("from dump {dump} of ")) && said.contains("is not here"), "{said}");
    assert_eq!(venus.ok(["ls", "/archive"]), "adm\nold\n");
    venus.fed(&["write", "--create", "/archive/of-venus"], b"v\n");
    // The old primary does not become primary again by itself, although there is none.
    mars.child.wait().unwrap();
    assert_eq!(venus.stop().0, Some(0));
    let said = shared.ok(&["fs", "arbiter", &shared.disk("arbiter")]);
    assert!(said.contains("venus: not the main one; it was, "), "{said}");
    let mars = shared.machine("mars", "c", "");
    assert!(status(&mars).contains("standby: it follows: venus has been the main one"), "{}", status(&mars));
}

#[test]
fn who_hands_over_follows_first_and_a_worm_that_is_away_is_tried_again() {
    let shared = Shared::new("1");
    let (w, away) = (shared.dir.path().join("w"), shared.dir.path().join("away"));
    let mars = shared.machine("mars", "c", ",cache=shared");
    mars.fed(&["write", "--create", "/archive/old"], b"old\n");
    fs::rename(&w, &away).unwrap();
    let said = mars.fails(["fs", "handover"]);
    assert!(said.contains("it stays the main one"), "{said}");
    mars.fed(&["write", "--create", "/archive/new"], b"new\n");
    assert!(status(&mars).contains("machine mars, the main one: "), "{}", status(&mars));
    // There was no dump to follow, so it made one.
    fs::rename(&away, &w).unwrap();
    assert!(mars.ok(["fs", "handover"]).contains("machine mars, standby: it follows"));
    assert_eq!(mars.ok(["cat", "/archive/old"]), "old\n");

    // It becomes primary again and loses the lease. The worm is missing when it notices that.
    mars.ok(["fs", "takeover"]);
    fs::rename(&w, &away).unwrap();
    shared.ok(&["fs", "arbiter", &shared.disk("arbiter"), "--again"]);
    until("it finds that out", || status(&mars).contains("machine mars, standby: "));
    assert!(status(&mars).contains("the worm cannot be followed"), "{}", status(&mars));
    assert_eq!(mars.ok(["cat", "/archive/new"]), "new\n");
    fs::rename(&away, &w).unwrap();
    until("it follows", || status(&mars).contains("standby: it follows: "));
}

#[test]
fn who_finds_an_arbiter_made_anew_follows_and_takes_over_behind_what_the_worm_knows() {
    let shared = Shared::new("1");
    for name in ["a", "b"] {
        let mut mars = shared.machine("mars", "c", "");
        mars.fed(&["write", "--create", &format!("/archive/{name}")], b"text\n");
        mars.ok(["fs", "dump", "--wait"]);
        assert_eq!(mars.stop().0, Some(0));
    }
    shared.ok(&["fs", "arbiter", &shared.disk("arbiter"), "mars", "venus", "--period", "1", "--force"]);
    let mars = shared.machine("mars", "c", "");
    let said = status(&mars);
    assert!(
        said.contains("machine mars, standby: ") && said.contains("newest epoch on the worm 17\n"),
        "{said}"
    );
    let said = mars.ok(["fs", "takeover"]);
    assert!(said.contains("machine mars, the main one: ") && said.contains("epoch 33, "), "{said}");
}

#[test]
fn who_ends_while_it_takes_over_never_was_the_main_one() {
    let shared = Shared::new("5");
    let mut mars = shared.machine("mars", "c", ",cache=shared");
    mars.ok(["fs", "dump", "--wait"]);
    let mut venus = shared.machine("venus", "c", ",cache=shared,begin=standby");
    status(&venus);
    mars.signal(Signal::KILL);
    mars.child.wait().unwrap();
    let mut takes = venus.client().args(["fs", "takeover"]).stdin(Stdio::null()).spawn().unwrap();
    until("it takes over", || status(&venus).contains("machine venus, standby: it takes over"));
    assert_eq!(venus.stop().0, Some(0));
    assert!(!takes.wait().unwrap().success());
    let said = shared.ok(&["fs", "arbiter", &shared.disk("arbiter")]);
    assert!(said.contains("venus: never was the main one"), "{said}");
}

#[test]
fn a_takeover_that_fails_leaves_what_is_newest_where_it_was() {
    let shared = Shared::new("1");
    let mut mars = shared.machine("mars", "c", "");
    mars.fed(&["write", "--create", "/archive/old"], b"old\n");
    mars.ok(["fs", "dump", "--wait"]);
    mars.fed(&["write", "--create", "/archive/new"], b"new\n");
    mars.ok(["fs", "sync"]);
    mars.signal(Signal::KILL);
    mars.child.wait().unwrap();
    fs::File::create(shared.dir.path().join("small")).unwrap().set_len(1 << 20).unwrap();
    let mut venus = shared.machine("venus", "small", ",begin=standby");
    for _ in 0..2 {
        let said = venus.fails(["fs", "takeover"]);
        assert!(said.contains("too few for a cache"), "{said}");
    }
    assert_eq!(venus.stop().0, Some(0));
    let mars = shared.machine("mars", "c", "");
    assert!(status(&mars).contains("machine mars, the main one: after mars, "), "{}", status(&mars));
    assert_eq!(mars.ok(["cat", "/archive/old", "/archive/new"]), "old\nnew\n");
}

/// The state after a power cut between the lease and the cache. According to the arbiter mars was the last primary, but
/// its cache is from before venus was primary.
#[test]
fn a_cache_says_itself_how_new_it_is() {
    let shared = Shared::new("1");
    let (c, old) = (shared.dir.path().join("c"), shared.dir.path().join("old"));
    let mut mars = shared.machine("mars", "c", "");
    mars.fed(&["write", "--create", "/archive/old"], b"old\n");
    mars.ok(["fs", "dump", "--wait"]);
    assert_eq!(mars.stop().0, Some(0));
    fs::copy(&c, &old).unwrap();
    let venus = shared.machine("venus", "c2", ",begin=standby");
    venus.ok(["fs", "takeover"]);
    venus.fed(&["write", "--create", "/archive/of-venus"], b"v\n");
    venus.ok(["fs", "handover"]);
    let mut mars = shared.machine("mars", "c", ",begin=standby");
    assert!(mars.ok(["fs", "takeover"]).contains("the main one: after venus, "));
    mars.signal(Signal::KILL);
    mars.child.wait().unwrap();
    fs::copy(&old, &c).unwrap();
    let mars = shared.machine("mars", "c", "");
    assert!(status(&mars).contains("standby: it follows: venus has been the main one"), "{}", status(&mars));
    let said = mars.ok(["fs", "takeover"]);
    assert!(said.contains("after venus, ") && said.contains("from dump "), "{said}");
    assert_eq!(mars.ok(["cat", "/archive/old", "/archive/of-venus"]), "old\nv\n");
}

#[test]
fn who_mends_or_recovers_an_archive_takes_a_turn() {
    let shared = Shared::new("1");
    let (c, w) = (shared.disk("c"), shared.disk("w"));
    let plain = format!("c {c} {w}");
    let turn = format!("{plain},arbiter={},machine=mars", shared.disk("arbiter"));
    let fails = |words: &[&str]| {
        let output = run(shared.dir.path(), words);
        assert!(!output.status.success(), "{words:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let mut mars = shared.machine("mars", "c", "");
    mars.fed(&["write", "--create", "/archive/old"], b"old\n");
    mars.ok(["fs", "dump", "--wait"]);
    mars.fed(&["write", "--create", "/archive/new"], b"new\n");
    assert_eq!(mars.stop().0, Some(0));
    for words in [["fs", "recover", "--force"], ["fs", "check", "--repair"]] {
        let said = fails(&[&words[..], &[&plain]].concat());
        assert!(said.contains("machines take turns with it (epoch 1)"), "{said}");
    }
    let venus = shared.machine("venus", "c2", ",begin=standby");
    assert!(venus.ok(["fs", "takeover"]).contains("from dump "));
    for words in [["fs", "recover", "--force"], ["fs", "check", "--repair"]] {
        let said = fails(&[&words[..], &[&turn]].concat());
        assert!(said.contains("venus is the main one (epoch ") && said.contains("alive"), "{said}");
    }
    let mut venus = venus;
    assert_eq!(venus.stop().0, Some(0));
    // A repaired cache is not newer than before.
    assert!(shared.ok(&["fs", "check", "--repair", &turn]).ends_with(" is whole\n"));
    let mut mars = shared.machine("mars", "c", "");
    assert!(status(&mars).contains("standby: it follows: venus has been the main one"), "{}", status(&mars));
    assert_eq!(mars.stop().0, Some(0));
    // After a recovery under the lease, all machines continue from the recovered state.
    let said = fails(&["fs", "recover", &turn]);
    assert!(said.contains("its cache is whole") && said.contains("--force"), "{said}");
    assert!(shared.ok(&["fs", "recover", "--force", &turn]).contains("it goes on from dump "));
    let mars = shared.machine("mars", "c", "");
    assert!(status(&mars).contains("machine mars, the main one: after mars, "), "{}", status(&mars));
    assert_eq!(mars.ok(["ls", "/archive"]), "adm\nold\n");
    let venus = shared.machine("venus", "c2", "");
    assert!(status(&venus).contains("machine venus, standby: "), "{}", status(&venus));
}

#[test]
fn of_two_that_begin_together_one_is_the_main_one_and_the_other_follows() {
    let shared = Shared::new("1");
    let mut mars = shared.machine("mars", "c", ",cache=shared");
    mars.ok(["fs", "dump", "--wait"]);
    assert_eq!(mars.stop().0, Some(0));
    let begins = |name: &'static str| shared.machine(name, "c", ",cache=shared");
    let both = std::thread::scope(|scope| {
        let both = ["mars", "venus"].map(|name| scope.spawn(move || begins(name)));
        both.map(|one| one.join().unwrap())
    });
    let both = both.each_ref().map(status);
    assert_eq!(both.iter().filter(|said| said.contains(", the main one: ")).count(), 1, "{both:?}");
    assert_eq!(both.iter().filter(|said| said.contains(" is the main one\n")).count(), 1, "{both:?}");
}

#[test]
fn who_stands_by_takes_over_by_an_arbiter_that_was_made_anew() {
    let shared = Shared::new("1");
    let mut mars = shared.machine("mars", "c", ",cache=shared");
    mars.fed(&["write", "--create", "/archive/old"], b"old\n");
    mars.ok(["fs", "dump", "--wait"]);
    let venus = shared.machine("venus", "c", ",cache=shared,begin=standby");
    mars.signal(Signal::KILL);
    mars.child.wait().unwrap();
    shared.ok(&["fs", "arbiter", &shared.disk("arbiter"), "--again"]);
    // It may not have noticed yet.
    let takes = || venus.client().args(["fs", "takeover"]).stdin(Stdio::null()).output().unwrap();
    until("it takes over", || takes().status.success());
    assert!(status(&venus).contains("machine venus, the main one: "), "{}", status(&venus));
    assert_eq!(venus.ok(["cat", "/archive/old"]), "old\n");
}
