//! Name spaces of a partition, over hosts of their own.

use std::rc::Rc;

use nine_guest::{Errno, How, OpenFlags, Options, Process, Qid, Shared, Space};
use nine_proto::mode;

use crate::host::{Channel, Host, MILD, Node};

/// Hosts that run, each with its client.
#[derive(Default)]
pub struct Hosts(Vec<std::thread::JoinHandle<Host>>);

impl Hosts {
    /// The client of one more, with these files: a directory ends with a slash and comes before what is in it.
    pub fn add(&mut self, files: &[(&'static str, &str)]) -> Shared<Process> {
        let channel = Channel::new(64, 16);
        let (passed, life) = channel.pass();
        let mut host = channel.host(MILD, life);
        host.files.0.truncate(1);
        for &(path, text) in files {
            let (dir, name) =
                path.trim_end_matches('/').rsplit_once('/').unwrap_or(("", path.trim_end_matches('/')));
            let parent = host.files.0.iter().position(|node| node.name == dir).unwrap_or(0);
            let mode = if path.ends_with('/') { mode::S_IFDIR | 0o755 } else { mode::S_IFREG | 0o644 };
            host.files.0.push(Node { parent, name, mode, bytes: text.into(), special: 0 });
        }
        self.0.push(std::thread::spawn(move || {
            host.serve();
            host
        }));
        Rc::new(Process::new(passed).unwrap().client_with(Options::default()).unwrap().into())
    }

    /// What each of them has, when its client has gone.
    pub fn end(self) -> Vec<Host> {
        self.0.into_iter().map(|host| host.join().unwrap()).collect()
    }
}

fn text(space: &Space<Process>, path: &str) -> Result<String, Errno> {
    space.read(path, 1000).map(|bytes| String::from_utf8(bytes).unwrap()).map_err(|error| error.errno)
}

fn names(space: &Space<Process>, path: &str) -> Vec<String> {
    space.read_dir(path).unwrap().into_iter().map(|entry| entry.name).collect()
}

const ONE: &[(&str, &str)] = &[("sub/", ""), ("sub/leaf", "one's leaf"), ("data", "one's data")];
const OTHER: &[(&str, &str)] = &[("data", "other's data"), ("more/", ""), ("more/deep", "other's deep")];

#[test]
fn several_hosts_are_one_tree() {
    let mut hosts = Hosts::default();
    let (one, other) = (hosts.add(ONE), hosts.add(OTHER));
    let mut space = Space::new();
    assert_eq!(text(&space, "/data"), Err(Errno::ENOENT));
    space.mount(&one, "", "/", How::Replace).unwrap();
    space.mount(&other, "", "/sub", How::Replace).unwrap();
    for (path, is) in [
        ("/data", Ok("one's data")),
        ("data", Ok("one's data")),
        ("/sub/data", Ok("other's data")),
        ("/sub/more/../data", Ok("other's data")),
        ("/nothing/../sub/./more//deep", Ok("other's deep")),
        ("/../../data", Ok("one's data")),
        ("/sub/leaf", Err(Errno::ENOENT)),
        ("/sub/../leaf", Err(Errno::ENOENT)),
    ] {
        assert_eq!(text(&space, path).as_deref(), is.as_ref().map(|text| *text), "{path}");
    }
    assert_eq!(names(&space, "/sub"), ["data", "more"]);
    space.write("/sub/more/new", b"made").unwrap();
    assert_eq!(space.stat("/sub/more/new").unwrap().size, 4);
    space.remove("/sub/more/deep").unwrap();
    assert_eq!(space.remove("/sub").unwrap_err().errno, Errno::EBUSY);
    let missing = space.open("/sub/leaf", OpenFlags::READ).map(drop).unwrap_err();
    assert_eq!(missing.ename(), "/sub/leaf: No such file or directory");
    space.unmount("/sub").unwrap();
    assert_eq!(space.unmount("/sub").unwrap_err().errno, Errno::EINVAL);
    assert_eq!(text(&space, "/sub/leaf").unwrap(), "one's leaf");
    drop((space, one, other));
    let hosts = hosts.end();
    assert!(hosts[1].files.0.iter().any(|node| node.name == "new" && node.bytes == b"made"));
}

#[test]
fn of_a_union_the_first_member_that_has_the_name_has_the_file() {
    let mut hosts = Hosts::default();
    let (one, other) = (hosts.add(ONE), hosts.add(OTHER));
    let mut space = Space::new();
    space.mount(&one, "", "/", How::Replace).unwrap();
    space.mount(&other, "", "/", How::After).unwrap();
    assert_eq!(text(&space, "/data").unwrap(), "one's data");
    assert_eq!(text(&space, "/more/deep").unwrap(), "other's deep");
    // Who has the first name has the rest of the path, too.
    assert_eq!(text(&space, "/sub/deep"), Err(Errno::ENOENT));
    assert_eq!(names(&space, "/"), ["sub", "data", "more"]);
    space.write("/new", b"in the first one").unwrap();
    space.mount(&other, "", "/n", How::Replace).unwrap();
    assert_eq!(text(&space, "/n/new"), Err(Errno::ENOENT));
    space.mount(&other, "", "/", How::Before).unwrap();
    assert_eq!(text(&space, "/data").unwrap(), "other's data");
    assert_eq!(text(&space, "/new").unwrap(), "in the first one");
    // A mount point is told where it lies, known to a host or not.
    let entries = space.read_dir("/").unwrap();
    let told = entries.iter().find(|entry| entry.name == "n").unwrap();
    assert_eq!(told.qid.ty, Qid::DIR);
    // With what is there already: what is below the mount point is a member.
    space.bind("/n/more", "/sub", How::Before).unwrap();
    assert_eq!(names(&space, "/sub"), ["deep", "leaf"]);
    let full = (0..20).find_map(|_| space.mount(&other, "", "/", How::After).err());
    assert_eq!(full.unwrap().errno, Errno::ENOSPC);
    drop((space, one, other));
    hosts.end();
}

#[test]
fn what_is_bound_is_seen_by_every_way_and_goes_round_no_further_than_the_path() {
    let mut hosts = Hosts::default();
    let (one, other) = (hosts.add(ONE), hosts.add(OTHER));
    let mut space = Space::new();
    space.mount(&one, "", "/", How::Replace).unwrap();
    space.bind("/", "/sub", How::Replace).unwrap();
    assert_eq!(text(&space, "/sub/sub/sub/data").unwrap(), "one's data");
    space.mount(&other, "", "/sub/x", How::Replace).unwrap();
    // The same place, by another way.
    assert_eq!(text(&space, "/x/data").unwrap(), "other's data");
    assert_eq!(text(&space, "/sub/sub/x/data").unwrap(), "other's data");
    assert_eq!(space.bind("/nothing", "/y", How::Replace).unwrap_err().errno, Errno::ENOENT);
    let full = (0..300).find_map(|n| space.bind("/x", &format!("/at/{n}"), How::Replace).err());
    assert_eq!(full.unwrap().errno, Errno::ENOSPC);
    drop((space, one, other));
    hosts.end();
}
