//! Every call, in every dialect, with hosts of all behaviours.

use nine_guest::{Client, Dialect, Errno, File, OpenFlags, Options, Process, Qid, Wait};

use crate::guest::host::{HostBehaviour, MILD, some, started};

fn options(dialect: Dialect) -> Options {
    Options { dialect, ..Options::default() }
}

/// Runs `f` with a client and the root of a host with these properties. Returns the host after it.
fn with(
    lines: u32,
    pages: u32,
    temper: HostBehaviour,
    options: Options,
    f: impl FnOnce(&mut Client<Process>, &File),
) -> crate::guest::host::TestHost {
    let (mut client, host) = started(lines, pages, temper, options);
    let root = client.attach("glenda", "").unwrap();
    f(&mut client, &root);
    client.clunk(root).unwrap();
    drop(client);
    host.join()
}

#[test]
fn every_call_in_every_dialect() {
    for dialect in [Dialect::L, Dialect::U, Dialect::P2000] {
        for wait in [Wait::Poll, Wait::Interrupt, Wait::Adaptive] {
            let host = with(64, 16, MILD, Options { wait, ..options(dialect) }, |client, root| {
                assert_eq!(client.spoken(), (dialect, 1 << 20));
                every_call(client, root);
            });
            assert!(host.session.fids.is_empty(), "{:?}", host.session.fids);
        }
    }
}

fn every_call(client: &mut Client<Process>, root: &File) {
    let (dialect, _) = client.spoken();
    let mut file = client.create(root, "sub/new", OpenFlags::RDWR, 0o640).unwrap();
    assert_eq!(client.write(&file, 0, b"hello, host").unwrap(), 11);
    assert_eq!(client.write(&file, 5, b"").unwrap(), 0);
    let mut text = [0; 20];
    assert_eq!(client.read(&file, 7, &mut text).unwrap(), 4);
    assert_eq!(&text[..4], b"host");
    let known = client.stat(&file).unwrap();
    assert_eq!((known.size, known.mode, known.mtime.sec), (11, 0o100640, 7));
    assert_eq!(known.name.is_empty(), dialect.is_l());
    client.fsync(&file).unwrap();

    let big = some(100_000);
    assert_eq!(client.write(&file, 3, &big).unwrap(), big.len());
    let mut again = vec![0; big.len() + 10];
    assert_eq!(client.read(&file, 3, &mut again).unwrap(), big.len());
    assert!(again[..big.len()] == big);
    client.clunk(file).unwrap();

    // Without a copy.
    file = client.open(root, "data", OpenFlags::RDWR).unwrap();
    let mut buffer = client.buffer(20_000).unwrap();
    buffer.write(0, &big[..20_000]);
    assert_eq!(client.write_from(&file, 0, &buffer, ..).unwrap(), 20_000);
    assert_eq!(client.write_from(&file, 20_000, &buffer, 1000..=1999).unwrap(), 1000);
    assert_eq!(client.read_into(&file, 19_990, &mut buffer, 5..100).unwrap(), 95);
    let mut part = [0; 100];
    buffer.read(0, &mut part);
    assert!(part[..5] == big[..5] && part[5..15] == big[19_990..20_000] && part[15..] == big[1000..1085]);
    assert_eq!(buffer.address(1, 1).addr().get(), buffer.address(0, 20_000).addr().get() + 1);
    client.clunk(file).unwrap();

    let mut names = Vec::new();
    let dir = client.open(root, "", OpenFlags::READ).unwrap();
    assert_eq!(dir.qid().ty, Qid::DIR);
    client
        .read_dir(&dir, |entry| {
            names.push((entry.name.to_vec(), entry.ty));
            true
        })
        .unwrap();
    assert_eq!(
        names.iter().map(|(name, _)| &name[..]).collect::<Vec<_>>(),
        [&b"sub"[..], b"data", b"null", b"event", b"denied"]
    );
    assert_eq!((names[0].1, names[1].1), (4, 8));
    let mut seen = 0;
    client
        .read_dir(&dir, |_| {
            seen += 1;
            seen < 2
        })
        .unwrap();
    assert_eq!(seen, 2);
    client.clunk(dir).unwrap();

    let new = client.walk(root, "sub/../sub/./new").unwrap();
    client.remove(new).unwrap();
    for (path, errno) in [("sub/new", Errno::ENOENT), ("nothing", Errno::ENOENT), ("denied", Errno::EACCES)] {
        assert_eq!(client.open(root, path, OpenFlags::READ).unwrap_err().errno, errno, "{path}");
    }
    assert_eq!(client.create(root, "sub/..", OpenFlags::RDWR, 0).unwrap_err().errno, Errno::EINVAL);
    let denied = client.walk(root, "denied").unwrap();
    let error = client.remove(denied).unwrap_err();
    assert_eq!((error.errno, error.ename()), (Errno::EACCES, "Permission denied"));
    assert_eq!(client.attach("glenda", "nowhere").unwrap_err().errno, Errno::EACCES);
    // A dropped file is clunked with the next walk.
    drop(client.walk(root, "sub/leaf").unwrap());
    let dropped = client.walk(root, "sub/leaf").unwrap();
    client.clunk(dropped).unwrap();
    drop(client.buffer(65_536).unwrap_err());
    drop(buffer);
    drop(client.buffer(65_536).unwrap());
}

/// Writes and reads back large data, in every way.
fn to_and_fro(client: &mut Client<Process>, root: &File, len: usize) {
    let file = client.create(root, "sub/new", OpenFlags::RDWR, 0o600).unwrap();
    let bytes = some(len);
    let mut again = vec![0; len + 1];
    assert_eq!(client.write(&file, 11, &bytes).unwrap(), len);
    assert_eq!(client.read(&file, 11, &mut again).unwrap(), len);
    assert!(again[..len] == bytes);
    let mut buffer = client.buffer(4096).unwrap();
    buffer.write(7, &bytes[..4000]);
    assert_eq!(client.write_from(&file, 0, &buffer, 7..4007).unwrap(), 4000);
    assert_eq!(client.read_into(&file, 1, &mut buffer, ..3999).unwrap(), 3999);
    let mut part = vec![0; 3999];
    buffer.read(0, &mut part);
    assert!(part == bytes[1..4000]);
    client.clunk(file).unwrap();
}

#[test]
fn bytes_come_and_go_whole_with_hosts_of_all_tempers() {
    let cut = |cut| HostBehaviour { cut, ..MILD };
    let tempers = [
        MILD,
        HostBehaviour { inline: true, ..MILD },
        cut(1),
        HostBehaviour { inline: true, ..cut(29) },
        HostBehaviour { batch: 7, ..MILD },
        HostBehaviour { batch: 32, inline: true, ..MILD },
        HostBehaviour { msize: 4096, batch: 3, ..MILD },
        HostBehaviour { msize: 512, ..MILD },
        HostBehaviour { iounit: 10_000, batch: 5, ..MILD },
        HostBehaviour { poll: true, msize: 65_536, ..MILD },
    ];
    for temper in tempers {
        for (lines, pages) in [(64, 1), (64, 3), (256, 1024)] {
            with(lines, pages, temper, options(Dialect::L), |client, root| to_and_fro(client, root, 700_001));
        }
    }
}

#[test]
fn a_channel_without_an_arena_carries_everything_in_the_ring() {
    for temper in [MILD, HostBehaviour { msize: 4096, ..MILD }] {
        let host = with(64, 0, temper, options(Dialect::U), |client, root| {
            let file = client.open(root, "data", OpenFlags::RDWR).unwrap();
            let bytes = some(100_000);
            assert_eq!(client.write(&file, 0, &bytes).unwrap(), 100_000);
            let mut again = vec![0; 100_000];
            assert_eq!(client.read(&file, 0, &mut again).unwrap(), 100_000);
            assert!(again == bytes);
            assert_eq!(client.buffer(1).unwrap_err().errno, Errno::ENOBUFS);
        });
        assert_eq!(host.session.placed, 0);
    }
}

#[test]
fn what_comes_short_is_asked_for_again_in_a_plain_file_and_told_elsewhere() {
    for batch in [1, 32] {
        let temper = HostBehaviour { most: 5000, msize: 8192, batch, ..MILD };
        with(64, 64, temper, options(Dialect::L), |client, root| {
            to_and_fro(client, root, 123_456);
        });
        with(64, 64, HostBehaviour { most: 3000, ..temper }, options(Dialect::L), |client, root| {
            let event = client.open(root, "event", OpenFlags::RDWR).unwrap();
            let bytes = some(20_000);
            assert_eq!(client.write(&event, 0, &bytes).unwrap(), 3000);
            let mut again = vec![0; 20_000];
            assert_eq!(client.read(&event, 0, &mut again).unwrap(), 3000);
            assert!(again[..3000] == bytes[..3000]);
            // Not even of a plain file, if each write appends to it.
            let file = client.open(root, "data", OpenFlags::WRITE | OpenFlags::APPEND).unwrap();
            assert_eq!(client.write(&file, 0, &bytes).unwrap(), 3000);
        });
    }
}

#[test]
fn an_error_amid_a_transfer_is_told_after_what_went_well() {
    for batch in [1, 32] {
        let temper = HostBehaviour { msize: 32 << 10, batch, ..MILD };
        let host = with(64, 256, temper, options(Dialect::L), |client, root| {
            let full = client.create(root, "full", OpenFlags::WRITE, 0o600).unwrap();
            let bytes = some(600_000);
            let done = client.write(&full, 0, &bytes).unwrap();
            assert!((250_000..=300_000).contains(&done), "{done}");
            let error = client.write(&full, done as u64, &bytes[done..]).unwrap_err();
            assert_eq!((error.errno, error.ename()), (Errno::ENOSPC, "No space left on device"));
            assert_eq!(client.is_alive(), Ok(()));
            let known = client.stat(&full).unwrap();
            assert_eq!(known.size as usize, done);
        });
        assert!(host.session.placed > 10, "{}", host.session.placed);
    }
}

#[test]
fn a_full_arena_leaves_the_ring() {
    let host = with(64, 8, MILD, options(Dialect::L), |client, root| {
        let mut all: Vec<_> = (0..8).map(|_| client.buffer(1).unwrap()).collect();
        assert_eq!(client.buffer(1).unwrap_err().errno, Errno::ENOBUFS);
        let file = client.open(root, "data", OpenFlags::RDWR).unwrap();
        let bytes = some(500_000);
        let mut again = vec![0; 500_000];
        assert_eq!(client.write(&file, 0, &bytes).unwrap(), 500_000);
        assert_eq!(client.read(&file, 0, &mut again).unwrap(), 500_000);
        assert!(again == bytes);
        client.clunk(file).unwrap();
        // Buffers dropped in another thread make room.
        std::thread::spawn(move || all.truncate(6)).join().unwrap();
        to_and_fro(client, root, 50_000);
    });
    assert!(host.session.placed > 2);
}

#[test]
fn fids_that_are_dropped_are_used_again() {
    let host = with(64, 1, MILD, options(Dialect::P2000), |client, root| {
        for _ in 0..5 {
            let mut files = Vec::new();
            let error = loop {
                match client.walk(root, "sub") {
                    Ok(file) => files.push(file),
                    Err(error) => break error,
                }
            };
            assert_eq!((files.len(), error.errno), (4095, Errno::EMFILE));
        }
        // The host refuses the name, not the fid.
        assert_eq!(client.walk(root, "sub/nothing").unwrap_err().errno, Errno::ENOENT);
        let deep = "sub/../".repeat(40) + "data";
        let file = client.walk(root, &deep).unwrap();
        client.remove(file).unwrap();
        assert_eq!(client.walk(root, deep + "/more").unwrap_err().errno, Errno::ENOENT);
        assert_eq!(client.walk(root, "x".repeat(70_000)).unwrap_err().errno, Errno::ENAMETOOLONG);
    });
    assert!(host.session.fids.is_empty());
}

#[test]
fn a_host_may_speak_plain_9p2000_and_nothing_older() {
    let plain = HostBehaviour { dialects: &[Dialect::P2000], ..MILD };
    with(64, 16, plain, options(Dialect::L), |client, root| {
        assert_eq!(client.spoken().0, Dialect::P2000);
        every_call(client, root);
    });
    let none = HostBehaviour { dialects: &[], ..MILD };
    let channel = crate::guest::host::TestChannel::new(64, 1);
    let (passed, life) = channel.pass();
    let mut host = channel.host(none, life);
    let thread = std::thread::spawn(move || host.serve());
    let error = Process::new(passed).unwrap().client().map(|_| ()).unwrap_err();
    assert_eq!((error.errno, error.ename()), (Errno::EPROTO, "the host speaks no 9P2000.L"));
    thread.join().unwrap();
}

#[test]
fn what_is_there_is_opened_whether_or_not_the_host_would_make_it_anew() {
    for dialect in [Dialect::L, Dialect::U, Dialect::P2000] {
        let (mut client, host) = started(64, 4, MILD, options(dialect));
        let root = client.attach("glenda", "").unwrap();
        for (path, text) in [("data", b"first"), ("data", b"again"), ("late", b"after")] {
            if path == "late" {
                client.create(&root, path, OpenFlags::WRITE, 0o600).unwrap();
            }
            let file = client.create(&root, path, OpenFlags::RDWR | OpenFlags::TRUNC, 0o600).unwrap();
            assert_eq!(client.write(&file, 0, text).unwrap(), text.len());
            assert_eq!(client.stat(&file).unwrap().size, text.len() as u64, "{dialect:?}");
        }
        if !dialect.is_l() {
            let again = client.create(&root, "data", OpenFlags::WRITE | OpenFlags::EXCL, 0o600);
            assert_eq!(again.unwrap_err().errno, Errno::EEXIST);
        }
        drop((client, root));
        host.join();
    }
}

#[test]
fn an_empty_write_reaches_the_host_and_an_empty_read_too() {
    with(64, 1, MILD, options(Dialect::L), |client, root| {
        let file = client.open(root, "null", OpenFlags::RDWR).unwrap();
        let mut buffer = client.buffer(0).unwrap();
        for _ in 0..100 {
            assert_eq!(client.write(&file, 0, b"").unwrap(), 0);
            assert_eq!(client.read(&file, 0, &mut []).unwrap(), 0);
            assert_eq!(client.write_from(&file, 0, &buffer, ..).unwrap(), 0);
            assert_eq!(client.read_into(&file, 0, &mut buffer, ..).unwrap(), 0);
        }
        let gone = client.walk(root, "null").unwrap();
        client.clunk(gone).unwrap();
        // A file that was never opened: an empty request returns the host's error.
        client.write(&file, 0, b"x").unwrap();
    });
}

#[test]
fn a_directory_of_many_names_is_told_once_each() {
    // With 7 pages lent, the directory is read through one page.
    for (dialect, lent) in [(Dialect::L, 0), (Dialect::L, 7), (Dialect::P2000, 0), (Dialect::U, 7)] {
        with(64, 8, MILD, options(dialect), |client, root| {
            let buffers: Vec<_> = (0..lent).map(|_| client.buffer(1).unwrap()).collect();
            let all: Vec<_> = (0..1500).map(|n| format!("file-{n:04}-{}", "x".repeat(n % 50))).collect();
            for name in &all {
                let file = client.create(root, format!("sub/{name}"), OpenFlags::WRITE, 0o600).unwrap();
                client.clunk(file).unwrap();
            }
            let dir = client.open(root, "sub", OpenFlags::READ).unwrap();
            let mut names = Vec::new();
            let each = |entry: &nine_guest::Dirent<'_>| {
                names.push(String::from_utf8(entry.name.to_vec()).unwrap());
                true
            };
            client.read_dir(&dir, each).unwrap();
            assert_eq!(names[0], "leaf");
            assert!(names[1..] == all);
            client.clunk(dir).unwrap();
            drop(buffers);
        });
    }
}
