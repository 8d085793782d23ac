//! A name space of several trees, each a host by hand with a channel of its own.

use std::cell::RefCell;
use std::fmt::Debug;
use std::rc::Rc;
use std::time::Duration;

use nine_guest::How::{After, Before, Replace};
use nine_guest::{Errno, OpenFlags, Options, Process, Qid, Result, Shared, Space};
use nine_proto::msg::Tmsg;

use crate::host::{Channel, MILD, Thread, several};

/// A space, its trees, in whose `data` their name stands, and their hosts.
struct World {
    space: Space<Process>,
    trees: Vec<Shared<Process>>,
    hosts: Vec<Thread>,
}

impl World {
    /// The first one is mounted at `/`.
    fn new(names: &[&'static str]) -> Self {
        let (clients, hosts) = several(names, |name, files| {
            files.put("data", name.as_bytes());
            if name == "c" {
                files.put("only", b"of c alone");
            }
        });
        let trees: Vec<_> = clients.into_iter().map(|client| Rc::new(RefCell::new(client))).collect();
        let mut space = Space::new();
        space.mount(&trees[0], "", "/", Replace).unwrap();
        Self { space, trees, hosts }
    }

    #[track_caller]
    fn text(&self, path: &str) -> String {
        String::from_utf8(self.space.read(path, 1000).unwrap()).unwrap()
    }

    #[track_caller]
    fn names(&self, path: &str) -> Vec<String> {
        self.space.read_dir(path).unwrap().into_iter().map(|entry| entry.name).collect()
    }

    /// The files of each tree, after all has gone.
    fn end(self) -> Vec<crate::host::Files> {
        drop((self.space, self.trees));
        self.hosts.into_iter().map(|host| host.join().files).collect()
    }
}

#[track_caller]
fn refused(done: Result<impl Debug>, errno: Errno) {
    let error = done.unwrap_err();
    assert_eq!(error.errno, errno, "{error}");
}

fn failed<T>(done: Result<T>) -> Result<()> {
    done.map(drop)
}

#[test]
fn what_is_mounted_below_a_mount_goes_with_what_it_is_mounted_on() {
    let mut world = World::new(&["a", "b", "c"]);
    let [_, b, c] = &world.trees[..] else { unreachable!() };
    world.space.mount(b, "", "/sub", Replace).unwrap();
    // There is no such directory, and need not be.
    world.space.mount(c, "", "/sub/deep", Replace).unwrap();
    assert_eq!((&*world.text("/data"), &*world.text("sub/data")), ("a", "b"));
    assert_eq!((&*world.text("/sub/deep/data"), &*world.text("/sub/deep/only")), ("c", "of c alone"));
    for path in ["/../data", "/sub/../data", "/sub/deep/../../data", "//./sub/none/../../data"] {
        assert_eq!(world.text(path), "a", "{path}");
    }
    let error = world.space.stat("/sub/leaf").unwrap_err();
    assert_eq!(error.ename(), "/sub/leaf: No such file or directory");
    assert_eq!(world.names("/").iter().filter(|name| *name == "sub").count(), 1);
    let entries = world.space.read_dir("/sub").unwrap();
    assert!(entries.iter().any(|entry| entry.name == "deep" && entry.qid.ty == Qid::DIR));
    refused(world.space.unmount("/data"), Errno::EINVAL);
    world.space.unmount("/sub").unwrap();
    refused(world.space.stat("/sub/deep"), Errno::ENOENT);
    refused(world.space.unmount("/sub"), Errno::EINVAL);
    assert_eq!(world.space.stat("/sub/leaf").unwrap().mode & 0o777, 0o600);
    world.end();
}

#[test]
fn of_a_union_the_first_member_wins_and_takes_what_is_made() {
    let mut world = World::new(&["a", "b", "c"]);
    let [_, b, c] = &world.trees[..] else { unreachable!() };
    world.space.mount(b, "", "/", Before).unwrap();
    world.space.mount(c, "", "/", After).unwrap();
    assert_eq!((&*world.text("data"), &*world.text("only")), ("b", "of c alone"));
    let names = world.names("/");
    let once = |name: &str| names.iter().filter(|other| *other == name).count() == 1;
    assert!(["sub", "data", "null", "only"].into_iter().all(once), "{names:?}");
    assert_eq!(world.space.stat("sub/leaf").unwrap().size, 0);
    refused(world.space.stat("none"), Errno::ENOENT);
    world.space.write("new", b"made").unwrap();
    world.space.write("data", b"anew").unwrap();
    assert_eq!((&*world.text("new"), &*world.text("data")), ("made", "anew"));
    // Where no member has anything, too, it is seen, and told.
    world.space.mount(c, "", "/more", Replace).unwrap();
    assert!(world.text("/more/data") == "c" && world.names("/").contains(&"more".into()));
    // What is below is a member, if it is not replaced.
    world.space.bind("/more", "/sub", Before).unwrap();
    assert!(world.text("/sub/data") == "c" && world.names("/sub").contains(&"leaf".into()));
    world.space.remove("only").unwrap();
    refused(world.space.stat("only"), Errno::ENOENT);
    let b = world.trees[1].clone();
    world.space.mount(&b, "", "/", Replace).unwrap();
    assert!(world.text("new") == "made" && !world.names("/").contains(&"only".into()));
    drop(b);
    let [a, b, c] = &world.end()[..] else { unreachable!() };
    assert!(a.bytes("data") == b"a" && b.bytes("data") == b"anew" && c.bytes("data") == b"c");
    assert!(b.bytes("new") == b"made" && [a, c].iter().all(|files| files.0.iter().all(|n| n.name != "new")));
}

#[test]
fn what_is_bound_is_seen_at_both_places_and_written_there() {
    let mut world = World::new(&["a", "b"]);
    let b = world.trees[1].clone();
    world.space.bind("/sub", "/here", Replace).unwrap();
    world.space.bind("/data", "/here/leaf", Replace).unwrap();
    // A mount point is a place, by whatever way one comes there.
    assert_eq!((&*world.text("/here/leaf"), &*world.text("/sub/leaf")), ("a", "a"));
    world.space.write("/sub/leaf", b"longer than before").unwrap();
    assert_eq!(world.text("/data"), "longer than before");
    let again = world.space.create("/sub/leaf", OpenFlags::WRITE | OpenFlags::EXCL, 0o644);
    refused(failed(again), Errno::EEXIST);
    refused(world.space.bind("/none", "/x", Replace), Errno::ENOENT);
    refused(failed(world.space.create("/", OpenFlags::WRITE, 0o644)), Errno::EEXIST);
    // Of a union all members are.
    world.space.mount(&b, "", "/both", Replace).unwrap();
    world.space.bind("/sub", "/both", After).unwrap();
    world.space.bind("/both", "/again", Replace).unwrap();
    assert_eq!((&*world.text("/again/data"), &*world.text("/again/leaf")), ("b", "longer than before"));
    drop(b);
    let files = world.end();
    assert!(files[0].bytes("data") == b"longer than before" && files[0].bytes("leaf").is_empty());
}

#[test]
fn no_bind_makes_a_walk_that_does_not_end() {
    let mut world = World::new(&["a"]);
    for (new, old, how) in [("/", "/sub", Replace), ("/sub", "/sub", After), ("/sub", "/", Before)] {
        world.space.bind(new, old, how).unwrap();
    }
    assert_eq!(world.text(&("/sub".repeat(500) + "/data")), "a");
    assert_eq!(world.names(&"/sub".repeat(500)), world.names("/"));
    world.end();
}

#[test]
fn a_mount_point_is_not_removed_and_what_is_beside_it_is() {
    let mut world = World::new(&["a", "b"]);
    let b = world.trees[1].clone();
    world.space.mount(&b, "", "/sub", Replace).unwrap();
    refused(world.space.remove("/sub"), Errno::EBUSY);
    refused(world.space.remove("/"), Errno::EBUSY);
    refused(world.space.remove("/denied"), Errno::EACCES);
    world.space.remove("/sub/data").unwrap();
    assert_eq!(world.text("/data"), "a");
    world.space.unmount("/sub").unwrap();
    world.space.remove("/sub/leaf").unwrap();
    refused(world.space.remove("/sub/leaf"), Errno::ENOENT);
    drop(b);
    world.end();
}

#[test]
fn there_are_sixteen_members_and_256_mount_points() {
    let mut world = World::new(&["a"]);
    for _ in 1..16 {
        world.space.bind("/data", "/file", After).unwrap();
    }
    // `/file` of the tree is a member.
    refused(world.space.bind("/data", "/file", Before), Errno::ENOSPC);
    world.space.bind("/file", "/whole", Replace).unwrap();
    refused(world.space.bind("/file", "/other", After), Errno::ENOSPC);
    world.space.bind("/data", "/file", Replace).unwrap();
    for n in 3..256 {
        world.space.bind("/data", &format!("/{n}"), Replace).unwrap();
    }
    refused(world.space.bind("/data", "/more", Replace), Errno::ENOSPC);
    world.space.unmount("/7").unwrap();
    world.space.bind("/data", "/more", Replace).unwrap();
    assert_eq!(world.text("/more"), "a");
    world.end();
}

#[test]
fn what_is_below_goes_with_the_last_place_where_its_tree_is_seen() {
    let mut world = World::new(&["a", "b", "c"]);
    let (b, c) = (world.trees[1].clone(), world.trees[2].clone());
    for _ in 0..300 {
        world.space.mount(&b, "", "/sub", Replace).unwrap();
        world.space.mount(&c, "", "/sub/deep", Replace).unwrap();
        world.space.bind("/sub", "/sub/self", Replace).unwrap();
        world.space.bind("/sub", "/sub/again", Replace).unwrap();
        world.space.bind("/sub/sub", "/other", Replace).unwrap();
        world.space.unmount("/sub").unwrap();
        // Through there nobody comes to what was below, but the tree is seen.
        assert!(world.names("/other").contains(&"leaf".into()));
        world.space.bind("/data", "/other", Replace).unwrap();
    }
    drop((b, c));
    world.end();
}

#[test]
fn a_member_that_is_not_there_hides_no_other_one() {
    let mut world = World::new(&["a", "b"]);
    let b = world.trees[1].clone();
    // In `a` there is no such directory.
    world.space.mount(&b, "", "/none", After).unwrap();
    assert!(world.names("/none").contains(&"data".into()));
    assert_eq!(world.text("/none/data"), "b");
    let error = world.space.read_dir("/nowhere").unwrap_err();
    assert!(error.errno == Errno::ENOENT && error.to_string().starts_with("/nowhere: "), "{error}");
    assert_eq!(world.space.read("data", 1).unwrap(), b"a");
    refused(world.space.read("data", 0), Errno::EFBIG);
    refused(world.space.mount(&b, "nowhere", "/x", Replace), Errno::EACCES);
    drop(b);
    world.end();
}

#[test]
fn where_nothing_is_mounted_there_is_nothing() {
    let World { mut space, trees, hosts } = World::new(&["a"]);
    space.unmount("/").unwrap();
    refused(space.read_dir("/"), Errno::ENOENT);
    refused(space.stat("data"), Errno::ENOENT);
    space.mount(&trees[0], "", "/x/y", Before).unwrap();
    assert_eq!(space.read("/x/y/data", 10).unwrap(), b"a");
    assert_eq!(space.read_dir("/x").unwrap().len(), 1);
    World { space, trees, hosts }.end();
}

#[test]
fn one_has_patience_for_a_place_and_not_for_others() {
    let channel = Channel::new(64, 4);
    let (passed, life) = channel.pass();
    let mut host = channel.host(MILD, life);
    host.holds = Box::new(|asked| matches!(asked, Tmsg::Read { .. }));
    let host = std::thread::spawn(move || host.serve());
    let slow = Process::new(passed).unwrap().client_with(Options::default()).unwrap();
    let mut world = World::new(&["a"]);
    world.space.mount(&Rc::new(RefCell::new(slow)), "", "/slow", Replace).unwrap();
    world.space.set_patience("/slow", Some(Duration::from_millis(1))).unwrap();
    refused(world.space.read("/slow/data", 10), Errno::ETIMEDOUT);
    assert_eq!(world.text("/data"), "a");
    world.end();
    host.join().unwrap();
}
