//! A name space of several trees, each of a host written by hand with a channel of its own.

use std::cell::RefCell;
use std::fmt::Debug;
use std::rc::Rc;
use std::thread::JoinHandle;
use std::time::Duration;

use nine_guest::How::{After, Before, Replace};
use nine_guest::{Errno, OpenFlags, Options, Process, Qid, Result, Shared, Space};
use nine_proto::msg::Tmsg;

use crate::guest::host::{FlushReply, HostThread, HostTreeFile, MILD, TestChannel, kept_name, several};

/// A space, its trees, and their hosts. The file `data` of each tree contains its name.
struct SpaceFixture {
    space: Space<Process>,
    trees: Vec<Shared<Process>>,
    hosts: Vec<HostThread>,
}

impl SpaceFixture {
    /// Mounts the first tree at `/`.
    fn new(names: &[&'static str]) -> Self {
        let (clients, hosts) = several(names, |name, files| {
            files.put("data", name.as_bytes());
            if name == "c" {
                files.put("only", b"of c alone");
                files.put_broken();
            }
            if name == "endless" {
                files.put_endless();
            }
            if name == "wordy" {
                let long = kept_name("x".repeat(10_000));
                for _ in 0..450 {
                    let mode = files.0[2].mode;
                    files.0.push(HostTreeFile { parent: 1, name: long, mode, bytes: Vec::new(), special: 0 });
                }
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

    /// Returns the files of each tree, after all clients have gone.
    fn end(self) -> Vec<crate::guest::host::HostFiles> {
        drop((self.space, self.trees));
        self.hosts.into_iter().map(|host| host.join().files).collect()
    }
}

/// Returns a tree of a host that holds these requests back, and replies to their flushes like this.
fn held(holds: fn(&Tmsg<'_>) -> bool, flushed: FlushReply) -> (Shared<Process>, JoinHandle<()>) {
    let channel = TestChannel::new(64, 4);
    let (passed, life) = channel.pass();
    let mut host = channel.host(MILD, life);
    (host.holds, host.flushed) = (Box::new(holds), flushed);
    let host = std::thread::spawn(move || host.serve());
    let client = Process::new(passed).unwrap().client_with(Options::default()).unwrap();
    (Rc::new(RefCell::new(client)), host)
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
    let mut world = SpaceFixture::new(&["a", "b", "c"]);
    let [_, b, c] = &world.trees[..] else { unreachable!() };
    world.space.mount(b, "", "/sub", Replace).unwrap();
    // There is no such directory, and there need not be one.
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
    let mut world = SpaceFixture::new(&["a", "b", "c"]);
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
    // A mount point that no member has is visible and listed too.
    world.space.mount(c, "", "/more", Replace).unwrap();
    assert!(world.text("/more/data") == "c" && world.names("/").contains(&"more".into()));
    // The directory below is a member, unless it is replaced.
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
    let mut world = SpaceFixture::new(&["a", "b"]);
    let b = world.trees[1].clone();
    world.space.bind("/sub", "/here", Replace).unwrap();
    world.space.bind("/data", "/here/leaf", Replace).unwrap();
    // A mount point is a place, on any path that leads to it.
    assert_eq!((&*world.text("/here/leaf"), &*world.text("/sub/leaf")), ("a", "a"));
    world.space.write("/sub/leaf", b"longer than before").unwrap();
    assert_eq!(world.text("/data"), "longer than before");
    let again = world.space.create("/sub/leaf", OpenFlags::WRITE | OpenFlags::EXCL, 0o644);
    refused(failed(again), Errno::EEXIST);
    refused(world.space.bind("/none", "/x", Replace), Errno::ENOENT);
    refused(failed(world.space.create("/", OpenFlags::WRITE, 0o644)), Errno::EEXIST);
    // All members of a union are bound.
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
    let mut world = SpaceFixture::new(&["a"]);
    for (new, old, how) in [("/", "/sub", Replace), ("/sub", "/sub", After), ("/sub", "/", Before)] {
        world.space.bind(new, old, how).unwrap();
    }
    assert_eq!(world.text(&("/sub".repeat(500) + "/data")), "a");
    assert_eq!(world.names(&"/sub".repeat(500)), world.names("/"));
    world.end();
}

#[test]
fn a_mount_point_is_not_removed_and_what_is_beside_it_is() {
    let mut world = SpaceFixture::new(&["a", "b"]);
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
    let mut world = SpaceFixture::new(&["a"]);
    for _ in 1..16 {
        world.space.bind("/", "/sub", After).unwrap();
    }
    // The tree's own `/sub` is a member.
    refused(world.space.bind("/", "/sub", Before), Errno::ENOSPC);
    world.space.bind("/sub", "/whole", Replace).unwrap();
    world.space.bind("/sub", "/other", After).unwrap();
    refused(world.space.bind("/sub", "/whole/sub", After), Errno::ENOSPC);
    world.space.bind("/", "/sub", Replace).unwrap();
    world.space.unmount("/other").unwrap();
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
    let mut world = SpaceFixture::new(&["a", "b", "c"]);
    let (b, c) = (world.trees[1].clone(), world.trees[2].clone());
    for _ in 0..300 {
        world.space.mount(&b, "", "/sub", Replace).unwrap();
        world.space.mount(&c, "", "/sub/deep", Replace).unwrap();
        world.space.bind("/sub", "/sub/self", Replace).unwrap();
        world.space.bind("/sub", "/sub/again", Replace).unwrap();
        world.space.bind("/sub/sub", "/other", Replace).unwrap();
        world.space.unmount("/sub").unwrap();
        // The files below are not visible there any more, but the tree is.
        assert!(world.names("/other").contains(&"leaf".into()));
        world.space.bind("/data", "/other", Replace).unwrap();
    }
    drop((b, c));
    world.end();
}

#[test]
fn a_member_that_is_not_there_hides_no_other_one() {
    let mut world = SpaceFixture::new(&["a", "b"]);
    let b = world.trees[1].clone();
    // `a` has no such directory.
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
fn a_list_of_names_is_whole_or_an_error() {
    let mut world = SpaceFixture::new(&["a", "c"]);
    let c = world.trees[1].clone();
    world.space.mount(&c, "", "/c", Replace).unwrap();
    refused(world.space.read_dir("/c/broken"), Errno::EIO);
    refused(world.space.read_dir("/denied"), Errno::EACCES);
    // A mount in it does not make it readable.
    world.space.bind("/sub", "/c/broken/more", Replace).unwrap();
    refused(world.space.read_dir("/c/broken"), Errno::EIO);
    // A member that cannot be listed does not hide the others.
    world.space.bind("/c/broken", "/sub", Before).unwrap();
    assert_eq!(world.names("/sub"), ["more", "leaf"]);
    world.space.bind("/c/broken", "/twice", Replace).unwrap();
    world.space.bind("/c/broken", "/twice", After).unwrap();
    refused(world.space.read_dir("/twice"), Errno::EIO);
    drop(c);
    world.end();
}

#[test]
fn a_directory_that_never_ends_ends_its_channel() {
    let world = SpaceFixture::new(&["endless"]);
    refused(world.space.read_dir("/endless"), Errno::EPROTO);
    refused(world.space.read_dir("/"), Errno::EPROTO);
    world.end();
}

#[test]
fn a_union_with_a_host_that_has_gone_is_not_told() {
    let (silent, host) = held(|asked| matches!(asked, Tmsg::Readdir { .. }), FlushReply::Nothing);
    let mut world = SpaceFixture::new(&["a"]);
    world.space.mount(&silent, "", "/silent", Replace).unwrap();
    world.space.bind("/silent", "/sub", After).unwrap();
    // The host answers the walks of bind, without a timeout.
    world.space.set_patience("/silent", Some(Duration::from_millis(1))).unwrap();
    refused(world.space.read_dir("/sub"), Errno::ETIMEDOUT);
    drop(silent);
    world.end();
    host.join().unwrap();
}

#[test]
fn names_and_bytes_have_a_limit() {
    let world = SpaceFixture::new(&["wordy"]);
    refused(world.space.read_dir("/sub"), Errno::E2BIG);
    refused(world.space.read("/data", 4), Errno::EFBIG);
    assert_eq!(world.space.read("/data", usize::MAX).unwrap(), b"wordy");
    world.end();
}

#[test]
fn of_a_union_what_is_not_there_is_no_member() {
    let mut world = SpaceFixture::new(&["a", "b"]);
    let b = world.trees[1].clone();
    for (at, how) in [("/none", After), ("/nor", Before)] {
        world.space.mount(&b, "", at, how).unwrap();
        assert!(world.space.stat(at).unwrap().qid.is_dir());
        assert!(world.space.open(at, OpenFlags::READ).is_ok());
        world.space.write(&format!("{at}/new"), at.as_bytes()).unwrap();
        assert_eq!(world.text(&format!("{at}/new")), at);
    }
    drop(b);
    world.end();
}

#[test]
fn what_a_later_member_has_is_written_there() {
    let mut world = SpaceFixture::new(&["a", "b", "c"]);
    let [_, b, c] = &world.trees[..] else { unreachable!() };
    world.space.mount(c, "", "/", After).unwrap();
    world.space.write("only", b"anew").unwrap();
    world.space.create("only", OpenFlags::WRITE, 0o644).unwrap().write_all(0, b"A").unwrap();
    assert_eq!(world.text("only"), "Anew");
    refused(failed(world.space.create("only", OpenFlags::WRITE | OpenFlags::EXCL, 0o644)), Errno::EEXIST);
    // A mount on a later member's file counts too.
    world.space.mount(b, "", "/more", Replace).unwrap();
    world.space.bind("/more/data", "/broken/told", Replace).unwrap();
    world.space.write("/broken/told", b"to b").unwrap();
    let [a, b, c] = &world.end()[..] else { unreachable!() };
    assert!(c.bytes("only") == b"Anew" && a.0.iter().all(|node| node.name != "only"));
    assert!(b.bytes("data") == b"to b" && c.bytes("told").is_empty());
}

#[test]
fn a_union_is_of_directories() {
    let mut world = SpaceFixture::new(&["a", "b"]);
    let b = world.trees[1].clone();
    for how in [Before, After] {
        refused(world.space.bind("/data", "/sub", how), Errno::EINVAL);
        refused(world.space.bind("/data", "/none", how), Errno::EINVAL);
        refused(world.space.bind("/sub", "/data", how), Errno::EINVAL);
        refused(world.space.mount(&b, "", "/sub/leaf", how), Errno::EINVAL);
    }
    // If nothing else is there, the mounted file decides.
    world.space.bind("/data", "/none", Replace).unwrap();
    refused(world.space.bind("/sub", "/none", After), Errno::EINVAL);
    world.space.bind("/sub", "/none", Replace).unwrap();
    world.space.mount(&b, "", "/none", After).unwrap();
    assert!(world.names("/none").contains(&"leaf".into()) && world.text("/none/data") == "b");
    drop(b);
    world.end();
}

#[test]
fn a_list_of_names_says_what_is_mounted_there() {
    let mut world = SpaceFixture::new(&["a", "b"]);
    let b = world.trees[1].clone();
    world.space.mount(&b, "", "/data", Replace).unwrap();
    world.space.bind("/sub/leaf", "/file", Replace).unwrap();
    world.space.mount(&b, "", "/sub", Before).unwrap();
    for entry in world.space.read_dir("/").unwrap() {
        assert_eq!(entry.qid, world.space.stat(&entry.name).unwrap().qid, "{}", entry.name);
    }
    // In a union the first member with the name counts, also for a mount point.
    world.space.bind("/sub", "/both", Replace).unwrap();
    world.space.bind("/denied", "/both/event", Replace).unwrap();
    for entry in world.space.read_dir("/both").unwrap() {
        let stat = world.space.stat(&format!("/both/{}", entry.name)).unwrap();
        assert_eq!(entry.qid, stat.qid, "{}", entry.name);
    }
    drop(b);
    world.end();
}

#[test]
fn where_nothing_is_mounted_there_is_nothing() {
    let SpaceFixture { mut space, trees, hosts } = SpaceFixture::new(&["a"]);
    space.unmount("/").unwrap();
    refused(space.read_dir("/"), Errno::ENOENT);
    refused(space.stat("data"), Errno::ENOENT);
    space.mount(&trees[0], "", "/x/y", Before).unwrap();
    assert_eq!(space.read("/x/y/data", 10).unwrap(), b"a");
    assert_eq!(space.read_dir("/x").unwrap().len(), 1);
    SpaceFixture { space, trees, hosts }.end();
}

#[test]
fn one_has_patience_for_a_place_and_not_for_others() {
    let (slow, host) = held(|asked| matches!(asked, Tmsg::Read { .. }), FlushReply::Rflush);
    let mut world = SpaceFixture::new(&["a"]);
    world.space.mount(&slow, "", "/slow", Replace).unwrap();
    drop(slow);
    world.space.set_patience("/slow", Some(Duration::from_millis(1))).unwrap();
    refused(world.space.read("/slow/data", 10), Errno::ETIMEDOUT);
    assert_eq!(world.text("/data"), "a");
    world.end();
    host.join().unwrap();
}
