//! A target's file is replaced by a larger one while the disk is in use; and the identity of disks.

use std::fs::{self, File};
use std::future::poll_fn;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use nine_aoe::driver;
use nine_aoe::frame::{Address, ETHER_TYPE, Header};
use nine_block::Device;
use nine_net::ether::Ether;
use nine_net::nonet::Link;
use nine_net::{Env, rt};
use rustix::fs::FlockOperation;
use rustix::process::Signal;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::site::*;
use crate::common::Stop;

const SECTORS: u64 = 64 * MB as u64 / 512;
/// Parts of the disk, each with one user.
const USERS: u64 = 8;
/// Maximum sectors of a read or write.
const MOST: u64 = 64;

/// Programs that use a disk concurrently and check their data.
struct Users {
    stop: AtomicBool,
    done: AtomicU64,
}

impl Users {
    /// Waits until this many more operations are done.
    fn go_on(&self, count: u64) {
        let (begun, from) = (Instant::now(), self.done.load(Ordering::Relaxed));
        while self.done.load(Ordering::Relaxed) < from + count {
            assert!(begun.elapsed() < LIMIT, "nothing is done any more");
            std::thread::yield_now();
        }
    }

    /// Runs the users, each on a part of the disk. Returns the final content.
    fn run(&self, space: u32, interface: &str) -> Vec<Vec<u64>> {
        enter(space);
        rt::block_on(async |env| {
            let link = Ether::open(interface, ETHER_TYPE).unwrap().hearing_all();
            let patience = Duration::from_secs(5);
            let (disk, driving) = driver::disk(vec![link], "1.0".parse().unwrap(), patience, env.clock());
            env.spawn(Box::pin(async move { driving.await.unwrap() }));
            let disk: Arc<dyn Device> = Arc::new(disk);
            disk.look().await.unwrap();
            let parts = join_all((0..USERS).map(|user| self.one(&*disk, user))).await;
            disk.look().await.unwrap();
            assert_eq!(disk.shape().sectors, SECTORS + 5 * MB as u64 / 512);
            parts
        })
        .unwrap()
    }

    async fn one(&self, disk: &dyn Device, user: u64) -> Vec<u64> {
        let size = SECTORS / USERS;
        let (mut tags, mut chance) = (vec![0; size as usize], user + 1);
        let mut below = |n: u64| {
            chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (chance >> 33) % n
        };
        let mut tag = 0;
        while !self.stop.load(Ordering::Relaxed) {
            let count = 1 + below(MOST);
            let at = below(size - count + 1);
            let part = at as usize..(at + count) as usize;
            match below(10) {
                0 => drop(disk.flush().await.unwrap()),
                1..=5 => {
                    tag += 1;
                    tags[part.clone()].fill(tag << 8 | user);
                    let data = part.flat_map(|at| tags[at].to_ne_bytes().repeat(64)).collect::<Vec<_>>();
                    disk.write(user * size + at, data.into()).await.unwrap();
                }
                _ => {
                    let data = disk.read(user * size + at, count).await.unwrap();
                    for (sector, at) in data.as_chunks::<512>().0.iter().zip(part) {
                        assert_eq!(sector[..], tags[at].to_ne_bytes().repeat(64), "sector {at} of {user}");
                    }
                }
            }
            self.done.fetch_add(1, Ordering::Relaxed);
        }
        disk.flush().await.unwrap();
        tags
    }
}

/// Moves this thread to the network name space of a process.
fn enter(space: u32) {
    let space = File::open(format!("/proc/{space}/ns/net")).unwrap();
    move_into_link_name_space(space.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
}

/// Receives the frames of an interface up to a broadcast. Returns shelf and slot of each.
async fn hears(mut link: Ether) -> Vec<Address> {
    let (mut all, mut bytes) = (Vec::new(), vec![0; 1500]);
    loop {
        let (len, _) = poll_fn(|cx| link.poll_recv(cx, &mut bytes)).await.unwrap();
        let address = Header::parse(&bytes[..len]).unwrap().0.address;
        all.push(address);
        if address == Address::ALL {
            return all;
        }
    }
}

#[test]
fn a_socket_is_given_only_what_is_for_its_target() {
    let Some(site) = Site::new(&[1500]) else { return };
    let ready = Arc::new(Barrier::new(2));
    let (there, opened) = (site.there.0.id(), ready.clone());
    let hearing = std::thread::spawn(move || {
        enter(there);
        rt::block_on(async |_| {
            let open = || Ether::open("v0", ETHER_TYPE).unwrap().hearing_all();
            let mine: Address = "1.0".parse().unwrap();
            let (all, one) = (open(), open().only(&mine.bytes()).unwrap());
            opened.wait();
            (hears(all).await, hears(one).await)
        })
        .unwrap()
    });
    ready.wait();
    for other in ["1.1", "2.0", "258.0"] {
        site.fails(&format!("aoe identify {other} v0 --patience 1"));
    }
    site.fails("aoe identify 1.0 v0 --patience 1");
    site.ok("aoe discover v0");
    let (all, one) = hearing.join().unwrap();
    let count = |of: &[Address], text: &str| of.iter().filter(|address| address.to_string() == text).count();
    assert!(["1.1", "2.0", "258.0", "1.0"].iter().all(|other| count(&all, other) > 0), "{all:?}");
    assert!(count(&one, "1.0") > 0 && one.len() == count(&one, "1.0") + 1, "{one:?}");
}

/// Puts an empty file of this size in the place of the disk; the disk's file is renamed to `old`.
fn replace(site: &Site, size: u64) {
    let (disk, old, new) = (site.path("disk"), site.path("old"), site.path("new"));
    File::create(&new).unwrap().set_len(size).unwrap();
    if !old.exists() {
        fs::hard_link(&disk, &old).unwrap();
    }
    fs::rename(new, disk).unwrap();
}

fn is_in_use(path: &Path) -> bool {
    rustix::fs::flock(File::open(path).unwrap(), FlockOperation::NonBlockingLockShared).is_err()
}

#[test]
fn a_disk_in_use_moves_to_a_larger_file_and_its_users_do_not_notice() {
    let Some(site) = Site::new(&[9000]) else { return };
    disk(&site, SECTORS * 512);
    let mut target = site.target("1.0 disk v0 --string lab");
    let serial = |said: String| said.lines().find(|line| line.starts_with("serial")).unwrap().to_owned();
    let before = serial(site.says("aoe identify 1.0 v0"));
    let users = Users { stop: false.into(), done: 0.into() };
    let space = site.here.0.id();
    let parts = std::thread::scope(|scope| {
        let used = scope.spawn(|| users.run(space, "v0"));
        let stop = Stop(&users.stop);
        users.go_on(200);
        replace(&site, SECTORS * 512 + 5 * MB as u64);
        target.signal(Signal::HUP);
        target.logs("copies 131072 sectors");
        assert!(target.logs("is not used any more").contains(&before.replace("serial    ", "--serial ")));
        assert!(!is_in_use(&site.path("old")) && is_in_use(&site.path("disk")));
        let old = fs::read(site.path("old")).unwrap();
        users.go_on(200);
        assert!(fs::read(site.path("old")).unwrap() == old);
        drop(stop);
        used.join().unwrap()
    });
    assert_eq!(serial(site.says("aoe identify 1.0 v0")), before);
    assert!(site.says("aoe discover v0 --string lab").starts_with("1.0 "));
    let data = fs::read(site.path("disk")).unwrap();
    let all = parts.concat();
    for ((sector, tag), at) in data.chunks(512).zip(all).zip(0..) {
        assert!(sector == tag.to_ne_bytes().repeat(64), "sector {at}");
    }
    target.stops();
}

#[test]
fn a_file_that_it_cannot_be_is_left_alone() {
    let Some(site) = Site::new(&[1500]) else { return };
    let path = disk(&site, MB as u64);
    let data = bytes(MB);
    fs::write(&path, &data).unwrap();
    let mut target = site.target("1.0 disk v0");
    replace(&site, MB as u64 / 2);
    target.signal(Signal::HUP);
    let said = target.logs("is served on");
    assert!(said.contains("it has 1024 sectors, and 2048 are needed"), "{said}");
    fs::write(&path, bytes(2 * MB)).unwrap();
    target.signal(Signal::HUP);
    target.logs("it is not empty");
    assert!(fs::read(&path).unwrap() == bytes(2 * MB));
    fs::remove_file(&path).unwrap();
    target.signal(Signal::HUP);
    target.logs("what is open is served on");
    assert!(site.ok("aoe read 1.0 v0") == data && is_in_use(&site.path("old")));
    // A part of an expression moves, too.
    target.stops();
    fs::rename(site.path("old"), &path).unwrap();
    let mut target = site.target("1.0 (w\"disk\"ram16) v0");
    replace(&site, 3 * MB as u64);
    target.signal(Signal::HUP);
    target.logs("is not used any more");
    assert!(fs::read(&path).unwrap()[..MB] == data);
    target.stops();
}

/// A restarted target must find a disk that begins with zeros, not a partial copy.
#[test]
fn a_target_that_ends_before_it_has_moved_says_so() {
    let Some(site) = Site::new(&[1500]) else { return };
    let path = disk(&site, 64 * MB as u64);
    fs::write(&path, bytes(64 * MB)).unwrap();
    let mut target = site.target("1.0 disk v0");
    replace(&site, 64 * MB as u64);
    target.signal(Signal::HUP);
    target.logs("copies");
    target.signal(Signal::TERM);
    assert_eq!(crate::common::ended_within(&mut target.child, LIMIT).expect("it ends").code(), Some(1));
    target.logs("has not got all yet: put the file that was there before into its place again");
    assert!(fs::read(&path).unwrap()[..MB / 2].iter().all(|byte| *byte == 0));
    assert!(fs::read(site.path("old")).unwrap() == bytes(64 * MB));
}

#[test]
fn disks_are_told_apart_by_themselves_and_an_address_has_one() {
    let Some(site) = Site::new(&[1500, 1500]) else { return };
    let (a, b) = (site.path("a"), site.path("b"));
    for path in [&a, &b] {
        File::create(path).unwrap().set_len(MB as u64).unwrap();
    }
    assert_ne!(a.metadata().unwrap().ino(), b.metadata().unwrap().ino());
    let serial = |words: &str| {
        let said = site.says(words);
        said.lines().find_map(|line| line.strip_prefix("serial    ")).unwrap().to_owned()
    };
    let (one, other) = (site.target("1.0 a v0"), site.target("1.0 b v1"));
    let of_a = serial("aoe identify 1.0 v0");
    assert_eq!(of_a.len(), 20);
    assert_ne!(serial("aoe identify 1.0 v1"), of_a);
    // On one Ethernet only one of two targets with the same address may serve.
    fs::copy(&a, site.path("c")).unwrap();
    let taken = site.there_fails("aoe target 1.0 c v0");
    assert!(taken.contains("1.0 is taken: another target of this machine serves it on v0"), "{taken}");
    let taken = site.fails("aoe target 1.0 c v0");
    assert!(taken.contains("1.0 is taken: ") && taken.contains(" answers on v0"), "{taken}");
    one.stops();
    other.stops();
    // The same file is the same disk, whatever the options; another file is another disk.
    let again = site.target("1.0 w\"a\" v0 --string x --buffers 3");
    assert_eq!(serial("aoe identify 1.0 v0"), of_a);
    again.stops();
    let part = site.target("1.0 p(w\"a\")0.50 v0");
    assert_ne!(serial("aoe identify 1.0 v0"), of_a);
    part.stops();
    // A mirror has the same identity, whichever of its members are present.
    site.ok("block make {w\"a\"w\"b\"}");
    let mirror = site.target("1.0 {w\"a\"w\"b\"} v0 --ctl ctl");
    let of_mirror = serial("aoe identify 1.0 v0");
    site.there_ok("write --server unix!ctl :1.0/ctl", b"aside 1\n");
    mirror.stops();
    fs::rename(&b, site.path("gone")).unwrap();
    let mirror = site.target("1.0 {w\"a\"w\"b\"} v0");
    assert_eq!(serial("aoe identify 1.0 v0"), of_mirror);
    mirror.stops();
}

#[test]
fn a_mirror_is_made_and_kept_from_the_command() {
    let Some(site) = Site::new(&[9000]) else { return };
    for name in ["a", "b"] {
        File::create(site.path(name)).unwrap().set_len(4 * MB as u64).unwrap();
    }
    let made = site.says("block make {w\"a\"w\"b\"}");
    assert!(made.starts_with("{w\"a\"w\"b\"} 8064 sectors"), "{made}");
    let again = site.fails("block make {w\"a\"w\"b\"}");
    assert!(again.contains("w\"a\": something is on it, and would be lost; --force"), "{again}");
    let nothing = site.fails("block make (w\"a\"w\"b\")");
    assert!(nothing.contains("nothing has to be made"), "{nothing}");
    assert!(site.says("block status {w\"a\"w\"b\"}").starts_with(&made[..24]));
    let mut target = site.target("1.0 {w\"a\"w\"b\"} v0 --ctl ctl");
    let ctl = |words: &str| site.there_ok("write --server unix!ctl :1.0/ctl", words.as_bytes());
    let status = || site.there_ok("cat --server unix!ctl :1.0/ctl", b"");
    ctl("aside 1\n");
    target.logs("w\"b\" is set aside");
    fs::write(site.path("in"), bytes(MB)).unwrap();
    site.fed("aoe write 1.0 v0", &site.path("in"));
    assert!(status().contains("  1 out"), "{}", status());
    ctl("return 1\n");
    target.logs("w\"b\" is in");
    assert!(status().contains("  1 in"), "{}", status());
    assert!(site.there_ok("cat --server unix!ctl :1.0/stat", b"").starts_with("e1.0 "));
    target.stops();
    assert!(!site.path("ctl").exists());
    let (a, b) = (fs::read(site.path("a")).unwrap(), fs::read(site.path("b")).unwrap());
    assert!(a[128 * 512..] == b[128 * 512..] && a[128 * 512..][..MB] == bytes(MB));
}
