//! Directories: in every dialect, large, and from servers that lie.

use std::sync::Arc;

use nine_io::client::{Entry, File, Options};
use nine_proto::msg::{Data, Rmsg, Tmsg};
use nine_proto::{Attr, Dialect, DirBuf, Dirent, GetMask, Numeric, OpenFlags, Qid, mode};

use crate::client::world::{Got, Server, World, world, world_with};

const N: u64 = 40_000;

fn name(i: u64) -> String {
    match i {
        1 => ".".into(),
        2 => "..".into(),
        i => format!("f{i}"),
    }
}

/// Answers a read of a directory of `n` entries; in .L two of them are "." and "..".
fn lists(server: &mut Server, got: &Got, n: u64) -> bool {
    let dialect = server.dialect;
    let (from, count) = match got.message() {
        Tmsg::Readdir { offset, count, .. } => (offset, count),
        // Records of `entry` differ in size only by their names, so the test computes the position itself.
        Tmsg::Read { offset, count, .. } => (place(offset, n, dialect), count),
        _ => return false,
    };
    let mut dir = DirBuf::new(dialect, count as usize, Arc::new(Numeric));
    for i in from + 1..=n {
        let attr = Attr { mode: mode::S_IFREG | 0o644, size: i, ..Attr::default() };
        let qid = Qid { ty: 0, vers: 0, path: i };
        if !dir.push(&Dirent { qid, cookie: i, ty: 8, name: name(i).as_bytes() }, Some(&attr)) {
            break;
        }
    }
    let data = Data::Bytes(dir.bytes());
    if dialect.is_l() {
        server.reply(got.0, Rmsg::Readdir { data });
    } else {
        server.reply(got.0, Rmsg::Read { data });
    }
    true
}

/// The number of entries before this offset.
fn place(offset: u64, n: u64, dialect: Dialect) -> u64 {
    let mut dir = DirBuf::new(dialect, offset as usize, Arc::new(Numeric));
    let attr = Attr { mode: mode::S_IFREG | 0o644, ..Attr::default() };
    let fits = |i: &u64| {
        dir.push(&Dirent { qid: Qid::default(), cookie: *i, ty: 8, name: name(*i).as_bytes() }, Some(&attr))
    };
    let before = (1..=n).take_while(fits).count() as u64;
    assert_eq!(dir.bytes().len() as u64, offset, "directory reads go on where the last one ended");
    before
}

/// Lists with attributes, and returns the entries and the number of round trips.
fn list(w: &mut World, n: u64) -> (Vec<Entry>, usize) {
    let listing = w.start(|root| async move {
        let mut dir = root.read_dir().await.unwrap();
        let mut all = Vec::new();
        while let Some(entries) = dir.next_with_attrs(GetMask::BASIC).await {
            all.extend(entries.unwrap());
        }
        all
    });
    let waits = w.serve(|server, got| lists(server, got, n));
    (listing.take(), waits)
}

#[test]
fn forty_thousand_files_with_attributes_wait_for_the_link_less_than_a_fifth_as_often() {
    for dialect in [Dialect::L, Dialect::U, Dialect::P2000] {
        let mut w = world_with(dialect, 1 << 20, Options::default());
        let (entries, waits) = list(&mut w, N);
        assert_eq!(entries.len() as u64, N - 2, "without dot and dot-dot");
        assert!(entries.iter().all(|entry| entry.attr.is_some()));
        assert_eq!(*entries[0].name, *b"f3");
        assert!(waits < N as usize / 50, "{}: {waits}", dialect.name());
        assert_eq!((w.client.fids(), w.server.fids.len()), (1, 1));
    }
}

#[test]
fn a_small_msize_lists_the_same() {
    for dialect in [Dialect::L, Dialect::P2000] {
        let mut w = world_with(dialect, 512, Options::default());
        assert_eq!(list(&mut w, 100).0.len(), 98);
    }
}

#[test]
fn a_file_that_goes_while_it_is_listed_is_left_out() {
    let mut w = world(Dialect::L);
    let listing = w.start(|root| async move {
        let mut dir = root.read_dir().await.unwrap();
        dir.next_with_attrs(GetMask::BASIC).await.unwrap().unwrap()
    });
    w.serve(|server, got| match got.message() {
        Tmsg::Walk { names, .. } if names.iter().next() == Some(b"f5") => {
            server.error(got.0, 2, "");
            true
        }
        _ => lists(server, got, 10),
    });
    let names: Vec<_> = listing.take().into_iter().map(|entry| entry.name).collect();
    assert_eq!(names.len(), 7);
    assert!(!names.contains(&(*b"f5").into()));
}

#[test]
fn attributes_of_many_names_come_in_their_order_with_their_own_errors() {
    let mut w = world(Dialect::L);
    let stats = w.start(|root| async move {
        let mut stats = root.stat_all(["a", "gone", "dir"], GetMask::BASIC);
        let mut all = Vec::new();
        while let Some(attr) = stats.next().await {
            all.push(attr.map(|attr| attr.qid.is_dir()).map_err(|error| error.to_string()));
        }
        all
    });
    w.serve(|server, got| match got.message() {
        Tmsg::Walk { names, .. } if names.iter().next() == Some(b"gone") => {
            server.error(got.0, 2, "");
            true
        }
        _ => false,
    });
    assert_eq!(stats.take(), [Ok(false), Err("gone: No such file or directory".into()), Ok(true)]);
}

fn lied_to(dialect: Dialect, data: impl Fn() -> Vec<u8>) -> String {
    let mut w = world(dialect);
    let listing = w.start(|root| async move {
        let mut dir = root.read_dir().await.unwrap();
        loop {
            match dir.next().await {
                Some(Ok(_)) => {}
                Some(Err(error)) => break error.to_string(),
                None => panic!("the lie was believed"),
            }
        }
    });
    w.serve(|server, got| {
        let data = data();
        match got.message() {
            Tmsg::Readdir { .. } => server.reply(got.0, Rmsg::Readdir { data: Data::Bytes(&data) }),
            Tmsg::Read { .. } => server.reply(got.0, Rmsg::Read { data: Data::Bytes(&data) }),
            _ => return false,
        }
        true
    });
    listing.take()
}

fn entry(name: &[u8]) -> Vec<u8> {
    let mut dir = DirBuf::new(Dialect::L, 1000, Arc::new(Numeric));
    dir.push(&Dirent { qid: Qid::default(), cookie: 1, ty: 8, name }, None);
    dir.bytes().to_vec()
}

#[test]
fn lies_about_directories_are_errors() {
    for name in [&b"../../etc/passwd"[..], b"a/b", b"", b"a\0b"] {
        assert_eq!(lied_to(Dialect::L, || entry(name)), "the server lists a name that no file can have");
    }
    assert_eq!(
        lied_to(Dialect::L, || entry(b"same")),
        "the server goes on with the same place of the directory"
    );
    assert_eq!(lied_to(Dialect::P2000, || vec![1, 0, 0]), "the server sends malformed directory data");
}

#[test]
fn blocks_can_be_read_from_any_cookie() {
    let mut w = world(Dialect::L);
    let reading = w.start(|root| async move {
        let dir: File = root.open("", OpenFlags::READ).await.unwrap();
        let (entries, next) = dir.read_dir_block(7, 8192).await.unwrap().unwrap();
        (entries.into_iter().map(|entry| entry.cookie).collect::<Vec<_>>(), next)
    });
    w.serve(|server, got| lists(server, got, 10));
    assert_eq!(reading.take(), (vec![8, 9, 10], 10));
}
