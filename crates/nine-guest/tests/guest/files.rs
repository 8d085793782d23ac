//! Every call, in every dialect, with hosts of all tempers.

use nine_guest::{Client, Dialect, Errno, OpenFlags, Options, Process, Qid, Wait};

use crate::host::{MILD, Temper, some, started};

fn options(dialect: Dialect) -> Options {
    Options { dialect, ..Options::default() }
}

/// A client of a host of this temper with a root; what it did is what a host by hand has seen.
fn with(
    lines: u32,
    pages: u32,
    temper: Temper,
    options: Options,
    f: impl FnOnce(&mut Client<Process>, &nine_guest::File),
) -> crate::host::Host {
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

fn every_call(client: &mut Client<Process>, root: &nine_guest::File) {
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
    // What is dropped is clunked with the next walk.
    drop(client.walk(root, "sub/leaf").unwrap());
    let dropped = client.walk(root, "sub/leaf").unwrap();
    client.clunk(dropped).unwrap();
    drop(client.buffer(65_536).unwrap_err());
    drop(buffer);
    drop(client.buffer(65_536).unwrap());
}
