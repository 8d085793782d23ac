//! Disks over kernel Ethernets: two network name spaces joined by cables, a target in one and the command in the other.

mod lists;
mod moves;
pub mod site;
mod turns;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};
use site::*;

use crate::common::{ended_within, ninefold};

#[test]
fn a_disk_is_found_written_and_read_in_jumbo_and_standard_frames() {
    for (mtu, sectors) in [(9000, 17), (1500, 2)] {
        let Some(site) = Site::new(&[mtu]) else { return };
        let disk = disk(&site, 32 * MB as u64);
        let mut target = site.target("1.0 disk v0 --string lab");
        assert!(target.said.contains("65536 sectors") && target.said.contains(&format!("mtu {mtu}")));
        let found = site.says("aoe discover");
        assert!(
            found.starts_with("1.0 ") && found.contains(&format!(" {sectors} sectors  lab\n")),
            "{found}"
        );
        let json = site.says("aoe discover v0 --prefix la --json");
        assert!(json.contains("\"address\":\"1.0\"") && json.contains("\"config\":\"lab\""), "{json}");
        assert_eq!(site.says("aoe discover v0 --string la") + &site.says("aoe discover v0 --prefix ab"), "");
        assert!(site.says("aoe discover v0 --string lab").starts_with("1.0 "));
        let said = site.says("aoe identify 1.0 v0");
        assert!(said.contains("65536 sectors") && said.contains("makes durable"), "{said}");

        let data = bytes(20 * MB + 1001);
        fs::write(site.path("in"), &data).unwrap();
        site.fed("aoe write 1.0 v0 --offset 1M", &site.path("in"));
        assert!(fs::read(&disk).unwrap()[MB..][..data.len()] == data);
        assert!(site.ok(&format!("aoe read 1.0 v0 --offset 1M --length {}", data.len())) == data);
        assert!(site.ok("aoe read 1.0 v0 --offset 1048777 --length 10001") == data[201..][..10001]);
        assert!(site.ok("aoe read 1.0 v0") == fs::read(&disk).unwrap());
        site.ok("aoe flush 1.0 v0");
        let said = site.says("aoe stat 1.0 v0");
        assert!(said.contains("config    lab\n") && said.contains("reserved  by nobody\n"), "{said}");

        // The file has grown: a client that asks sees that, and so does the target after a SIGHUP.
        fs::File::options().write(true).open(&disk).unwrap().set_len(40 * MB as u64).unwrap();
        assert!(site.says("aoe identify 1.0 v0").contains("81920 sectors"));
        target.signal(Signal::HUP);
        target.logs("81920 sectors");
        target.stops();
    }
}

#[test]
fn of_two_cables_one_is_cut_and_mended_under_way() {
    const ALL: usize = 48 * MB;
    let Some(site) = Site::new(&[9000, 1500]) else { return };
    let disk = disk(&site, ALL as u64);
    let mut target = site.target("1.0 disk v0 v1");
    let data = bytes(ALL);
    let toggle = |n: usize| {
        let to = if n.is_multiple_of(2) { "down" } else { "up" };
        site.here.ip(&format!("link set v{} {to}", n / 2 % 2)).unwrap();
    };
    let mut write = site.command("aoe write 1.0 v0 v1").stdin(Stdio::piped()).spawn().unwrap();
    let mut input = write.stdin.take().unwrap();
    for (n, part) in data.chunks(ALL / 8).enumerate() {
        input.write_all(part).unwrap();
        toggle(n);
    }
    drop(input);
    assert!(write.wait().unwrap().success());
    assert!(fs::read(&disk).unwrap() == data);

    let mut read = site.command("aoe read 1.0 v0 v1").stdout(Stdio::piped()).spawn().unwrap();
    let mut output = read.stdout.take().unwrap();
    for (n, part) in data.chunks(ALL / 8).enumerate() {
        let mut is = vec![0; part.len()];
        output.read_exact(&mut is).unwrap();
        assert!(is == part);
        toggle(n);
    }
    assert!(read.wait().unwrap().success());
    // The cable may also fail at the other end.
    site.there.ip("link set v0 down").unwrap();
    assert!(site.ok("aoe read 1.0 v0 v1") == data);
    // A target without an interface ends.
    for n in 0..2 {
        site.there.ip(&format!("link del v{n}")).unwrap();
    }
    let ended = ended_within(&mut target.child, LIMIT).expect("it ends");
    assert_eq!(ended.code(), Some(1));
    target.logs("no interface is left");
}

#[test]
fn a_target_keeps_to_its_mask_and_its_word() {
    let Some(site) = Site::new(&[1500]) else { return };
    let path = disk(&site, MB as u64);
    let target = site.target("1.0 disk v0 --read-only --serial s1");
    assert!(site.says("aoe identify 1.0 v0").contains("serial    s1\n"));
    let mut write = site.command("aoe write 1.0 v0");
    assert_eq!(write.stdin(fs::File::open(&path).unwrap()).output().unwrap().status.code(), Some(1));
    assert!(target.said.contains("read only"));
    target.stops();

    let target = site.target("1.0 disk v0 --mask 020000000001");
    assert_eq!(site.says("aoe discover v0"), "");
    target.stops();

    // A device of two parts; the second belongs to another target and vanishes with it.
    let below = site.target("1.1 ram2048 v0");
    fs::write(site.path("in"), bytes(2 * MB)).unwrap();
    site.ok("aoe identify 1.1 v0");
    below.stops();
    let target = site.target("1.2 (w\"disk\"ram2048) v0 --buffers 4");
    site.fed("aoe write 1.2 v0", &site.path("in"));
    assert!(site.ok("aoe read 1.2 v0") == bytes(2 * MB));
    assert!(fs::read(&path).unwrap() == bytes(2 * MB)[..MB]);
    target.stops();
}

#[test]
fn what_cannot_be_says_what_to_do() {
    let Some(site) = Site::new(&[1500]) else { return };
    let path = disk(&site, MB as u64);
    let said = site.fails("aoe identify 1.0 nope");
    assert!(said.contains("ether nope: no interface has this name; there are: lo, v0"), "{said}");
    let said = site.fails("aoe identify 1.0 lo");
    assert!(said.contains("no Ethernet"), "{said}");
    let said = site.fails("aoe identify 7.0 v0 --patience 1");
    assert!(said.contains("e7.0: the target does not answer"), "{said}");
    assert!(said.contains("ninefold aoe discover v0"), "{said}");
    let said = site.fails("aoe target 1.0 q5 v0");
    assert!(said.contains("no device `q` is known here; these are: e, n, ram, s3, w"), "{said}");
    let mut bare = Command::new("setpriv");
    let ninefold = ninefold(site.home.path());
    bare.args(["--bounding-set=-all", "--inh-caps=-all"])
        .arg(ninefold.get_program())
        .args(["aoe", "discover"]);
    let said = site.here.within(&bare).output().unwrap();
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.contains("needs CAP_NET_RAW (root, or setcap cap_net_raw+ep)"), "{said}");

    let target = site.target("1.0 disk v0");
    let said = site.fails("aoe read 1.0 v0 --offset 2M");
    assert!(said.contains("it has 1048576 bytes"), "{said}");
    fs::write(site.path("in"), bytes(MB + 1)).unwrap();
    let mut write = site.command("aoe write 1.0 v0");
    let output = write.stdin(fs::File::open(site.path("in")).unwrap()).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("the disk ends at byte 1048576"));
    assert!(fs::read(&path).unwrap().len() == MB);
    target.stops();
}

/// Includes threads that were started while disks were opened.
#[test]
fn no_thread_of_a_target_has_rights() {
    let Some(site) = Site::new(&[1500]) else { return };
    for name in ["a", "b"] {
        fs::File::create(site.path(name)).unwrap().set_len(MB as u64).unwrap();
    }
    fs::write(site.path("in"), bytes(MB / 4)).unwrap();
    site.ok("block make {w\"a\"w\"b\"}");
    let target = site.target("1.0 {w\"a\"w\"b\"} v0");
    site.fed("aoe write 1.0 v0", &site.path("in"));
    let threads: Vec<_> = fs::read_dir(format!("/proc/{}/task", target.child.id())).unwrap().collect();
    assert!(threads.len() > 1, "its disks have threads");
    for thread in threads {
        let status = fs::read_to_string(thread.unwrap().path().join("status")).unwrap();
        for line in ["CapEff:\t0000000000000000", "CapPrm:\t0000000000000000", "NoNewPrivs:\t1"] {
            assert!(status.contains(line), "{status}");
        }
    }
    target.stops();
}

#[test]
fn disks_are_files_of_a_name_space() {
    let Some(site) = Site::new(&[9000]) else { return };
    let path = disk(&site, 4 * MB as u64);
    let data = bytes(4 * MB);
    fs::write(&path, &data).unwrap();
    let target = site.target("1.0 disk v0 --string lab");
    fs::write(site.path("x.ns"), "mount aoe:v0,patience=2 /dev/aoe\n").unwrap();
    let socket = format!("unix!{}", site.path("s").display());
    let mut serve = site.command(&format!("serve x.ns --listen {socket}"));
    let mut serve = serve.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut said = String::new();
    let mut stdout = BufReader::new(serve.stdout.take().unwrap());
    let mut serve = Ends(serve);
    while !said.ends_with("ready\n") {
        assert!(stdout.read_line(&mut said).unwrap() > 0, "{said}");
    }
    let begun = Instant::now();
    let is_there = |name: &str| site.says(&format!("ls --server {socket} :/dev/aoe")).contains(name);
    while !is_there("1.0\n") {
        assert!(begun.elapsed() < LIMIT, "it is not found");
    }
    let cat = |name: &str| site.ok(&format!("cat --server {socket} :/dev/aoe/1.0/{name}"));
    assert!(cat("data") == data);
    assert_eq!(cat("config"), b"lab\n");
    assert!(String::from_utf8(cat("ident")).unwrap().contains("sectors 8192\n"));
    assert!(String::from_utf8(cat("ctl")).unwrap().contains("8192 sectors"));
    let stat = String::from_utf8(cat("stat")).unwrap();
    assert!(stat.starts_with("state up\nsent ") && stat.lines().all(|line| line.contains(' ')), "{stat}");
    fs::write(site.path("in"), "fish\n").unwrap();
    let mut write = site.command(&format!("write --dialect u --server {socket} :/dev/aoe/1.0/ctl"));
    let said = write.stdin(fs::File::open(site.path("in")).unwrap()).output().unwrap();
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.contains("e1.0: no `fish`; it knows: look"), "{said}");
    // The interface is removed and created again; the disk returns with it.
    site.here.ip("link del v0").unwrap();
    site.cable(0, 9000).unwrap();
    drop(target);
    let target = site.target("1.0 disk v0 --string again");
    let begun = Instant::now();
    let read = |name: &str| site.run(&format!("cat --server {socket} :/dev/aoe/1.0/{name}")).stdout;
    // Reads in between fail.
    while read("data") != data || read("config") != b"again\n" {
        assert!(begun.elapsed() < LIMIT, "it is not found again");
    }
    kill_process(Pid::from_child(&serve.0), Signal::TERM).unwrap();
    assert!(serve.0.wait().unwrap().success());
    target.stops();
}
