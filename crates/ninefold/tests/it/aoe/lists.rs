//! Settings stored by a target, read and changed by the command; and reports of events.

use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;

use super::site::*;

#[test]
fn config_mask_and_reservation_are_asked_and_changed() {
    let Some(site) = Site::new(&[1500]) else { return };
    disk(&site, MB as u64);
    let target = site.target("1.0 disk v0");
    assert_eq!(site.says("aoe config 1.0 v0"), "\n");
    assert_eq!(site.says("aoe config 1.0 v0 --set-if-empty lab"), "lab\n");
    let said = site.fails("aoe config 1.0 v0 --set-if-empty bench");
    assert!(said.contains("it has a config string already: lab"), "{said}");
    assert_eq!(site.says("aoe config 1.0 v0 --set bench"), "bench\n");
    assert_eq!(
        site.says("aoe config 1.0 v0 --is bench") + &site.says("aoe config 1.0 v0 --begins be"),
        "bench\nbench\n"
    );
    assert!(site.fails("aoe config 1.0 v0 --is lab").contains("its config string is another one"));

    let mine = site.mine();
    assert_eq!(site.says("aoe reserve 1.0 v0"), "");
    assert_eq!(site.says("aoe reserve 1.0 v0 --set"), format!("{mine}\n"));
    assert_eq!(site.says("aoe reserve 1.0 v0"), format!("{mine}\n"));
    assert!(site.says("aoe stat 1.0 v0").contains(&format!("reserved  by {mine}\n")));
    assert_eq!(
        site.says("aoe reserve 1.0 v0 --set 0a0000000001,0a0000000002"),
        "0a0000000001\n0a0000000002\n"
    );
    let said = site.fails("aoe reserve 1.0 v0 --set");
    assert!(said.contains("another has reserved it; --force takes it from him"), "{said}");
    assert!(site.fails("aoe reserve 1.0 v0 --release").contains("another has reserved it"));
    let said = site.fails("aoe read 1.0 v0");
    assert!(said.contains("reserved"), "{said}");
    assert_eq!(site.says("aoe reserve 1.0 v0 --force"), format!("{mine}\n"));
    assert_eq!(site.says("aoe reserve 1.0 v0 --release"), "");

    assert_eq!(site.says("aoe mask 1.0 v0"), "");
    let both = format!("aoe mask 1.0 v0 --add 0a0000000001,{mine}");
    assert_eq!(site.says(&both), format!("0a0000000001\n{mine}\n"));
    assert_eq!(site.says("aoe mask 1.0 v0 --delete 0a0000000001"), format!("{mine}\n"));
    site.ok("aoe read 1.0 v0");
    assert_eq!(site.says(&format!("aoe mask 1.0 v0 --delete {mine}")), "");
    target.stops();
}

#[test]
fn a_way_that_is_cut_is_said() {
    let Some(site) = Site::new(&[9000, 9000]) else { return };
    disk(&site, 4096 * MB as u64);
    let target = site.target("1.0 disk v0 v1");
    let mut read = site.command("aoe read 1.0 v0 v1");
    let mut read = Ends(read.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
    let mut output = read.0.stdout.take().unwrap();
    output.read_exact(&mut vec![0; MB]).unwrap();
    site.there.ip("link set v1 down").unwrap();
    let read_on = std::thread::spawn(move || std::io::copy(&mut output, &mut std::io::sink()));
    let log = BufReader::new(read.0.stderr.take().unwrap());
    let mut lines = log.lines().map(Result::unwrap);
    assert!(lines.any(|line| line.contains("e1.0: path v1 ") && line.contains(" down")));
    drop(read);
    read_on.join().unwrap().unwrap();
    target.stops();
}
