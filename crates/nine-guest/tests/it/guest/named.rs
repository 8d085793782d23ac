//! Several channels in one memory: a guest finds its channel by name.

use std::os::unix::net::UnixListener;
use std::process::{Command, Output};

use nine_guest::{Errno, OpenFlags, Options, Process};
use nine_ring::linux::{self, Bell, Passed};
use nine_ring::{End, Kind, Layout};

use crate::guest::host::{MILD, TestChannel, some};
use crate::guest::programs::{PLAIN, SANITIZED, compiled};

/// Returns memory with three channels, and the hosts of two; the second one, `files`, is not opened yet.
fn three() -> (TestChannel, [End; 2]) {
    let layouts = [("net", 128, 3), ("files", 64, 4), ("console", 64, 0)]
        .map(|(name, lines, pages)| Layout::new(Kind::GuestAsks, lines, pages, name));
    let (memory, file) = linux::create(layouts.iter().map(|layout| layout.size).sum()).unwrap();
    let [net, files, console] = layouts;
    let part = |at, layout: Layout| memory.part(at, layout.size).unwrap();
    let others = [End::open(part(0, net), net), End::open(part(net.size + files.size, console), console)];
    let memory = part(net.size, files);
    (TestChannel { memory, file, layout: files, bells: [Bell::new().unwrap(), Bell::new().unwrap()] }, others)
}

#[test]
fn a_guest_finds_its_channel_by_its_name() {
    let (channel, _others) = three();
    let (passed, life) = channel.pass();
    let (again, _life) = channel.pass();
    let mut host = channel.host(MILD, life);
    let bytes = some(5000);
    host.files.0[2].bytes = bytes.clone();
    let host = std::thread::spawn(move || host.serve());
    let mut client = Process::new(passed).unwrap().client_named("files", Options::default()).unwrap();
    let root = client.attach("glenda", "").unwrap();
    let file = client.open(&root, "data", OpenFlags::READ).unwrap();
    let mut into = vec![0; 9000];
    assert_eq!(client.read(&file, 0, &mut into).unwrap(), 5000);
    assert!(into[..5000] == bytes);
    let error = Process::new(again).unwrap().client_named("disk", Options::default()).err().unwrap();
    assert_eq!(error.errno, Errno::ENOENT, "{error}");
    drop(client);
    host.join().unwrap();
}

/// Returns the output of the C program with such a host.
fn asks(flags: &[&str], program: &str, name: &str, bytes: &[u8]) -> Output {
    let program = compiled("tests/named.c", flags, program);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let bytes = bytes.to_vec();
    let host = std::thread::spawn(move || {
        let (socket, _) = listener.accept().unwrap();
        let (channel, _others) = three();
        let mut host = channel.host(MILD, socket.into());
        host.files.0[2].bytes = bytes;
        let [ring, wait] = [&channel.bells[0], &channel.bells[1]];
        Passed::send(&channel.file, wait, ring, &host.life).unwrap();
        host.serve();
    });
    // Far longer than it takes, unless it sleeps through its answer.
    let output = Command::new("timeout").arg("300").arg(program).arg(&path).args([name, "data"]).output();
    host.join().unwrap();
    output.unwrap()
}

#[test]
fn so_does_a_program_in_c() {
    let bytes = some(5000);
    for (flags, program) in [(PLAIN, "named"), (SANITIZED, "named-sanitized")] {
        let said = asks(flags, program, "files", &bytes);
        assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
        assert!(said.stdout == bytes);
        let said = asks(flags, program, "disk", &bytes);
        let error = String::from_utf8_lossy(&said.stderr);
        assert!(!said.status.success() && error.contains("has this name"), "{error}");
    }
}
