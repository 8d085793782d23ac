//! The messages of each operation in each dialect, and the operations that a dialect does not have.

use std::future::Future;
use std::rc::Rc;

use nine_io::client::{Client, File, Options, Result};
use nine_proto::msg::{Data, Rmsg, Tmsg};
use nine_proto::{
    Dialect, Errno, Fid, GetMask, LockRequest, LockStatus, LockType, NOFID, NOGID, NOTAG, OpenFlags, Qid,
    SetAttr, Stat, StatIds, Time, TimeSet, mode,
};

use crate::client::world::{Exec, Got, Server, pair, world};

const L: Dialect = Dialect::L;
const U: Dialect = Dialect::U;
const P: Dialect = Dialect::P2000;

/// Runs `f`, and returns its result and its messages, without walks, clunks and the like.
fn sent<T: 'static, F: Future<Output = Result<T>> + 'static>(
    dialect: Dialect,
    f: impl FnOnce(Rc<File>) -> F,
) -> (Result<T>, Vec<String>) {
    sent_with(dialect, |_, _| false, f)
}

fn sent_with<T: 'static, F: Future<Output = Result<T>> + 'static>(
    dialect: Dialect,
    mut answer: impl FnMut(&mut Server, &Got) -> bool,
    f: impl FnOnce(Rc<File>) -> F,
) -> (Result<T>, Vec<String>) {
    let mut w = world(dialect);
    let join = w.start(f);
    let mut log = Vec::new();
    w.serve(|server, got| {
        if !matches!(got.message(), Tmsg::Walk { .. } | Tmsg::Clunk { .. }) {
            let line = got.message().with_tag(got.0).to_string();
            let words: Vec<_> = line.split(' ').collect();
            log.push(format!("{} {}", words[0], words[3..].join(" ")));
        }
        answer(server, got) || usual(server, got)
    });
    let result = join.take();
    assert_eq!((w.client.fids(), w.server.fids.len()), (1, 1), "only the root is left: {log:?}");
    (result, log)
}

fn usual(server: &mut Server, got: &Got) -> bool {
    let qid = Qid { ty: 0, vers: 1, path: 77 };
    let reply = match got.message() {
        Tmsg::Lcreate { .. } => Rmsg::Lcreate { qid, iounit: 0 },
        Tmsg::Create { .. } => Rmsg::Create { qid, iounit: 0 },
        Tmsg::Mkdir { .. } => Rmsg::Mkdir { qid },
        Tmsg::Symlink { .. } => Rmsg::Symlink { qid },
        Tmsg::Mknod { .. } => Rmsg::Mknod { qid },
        Tmsg::Link { .. } => Rmsg::Link {},
        Tmsg::Renameat { .. } => Rmsg::Renameat {},
        Tmsg::Rename { .. } => Rmsg::Rename {},
        Tmsg::Unlinkat { .. } => Rmsg::Unlinkat {},
        Tmsg::Setattr { .. } => Rmsg::Setattr {},
        Tmsg::Wstat { .. } => Rmsg::Wstat {},
        Tmsg::Fsync { .. } => Rmsg::Fsync {},
        Tmsg::Statfs { .. } => Rmsg::Statfs { statfs: Default::default() },
        Tmsg::Readlink { .. } => Rmsg::Readlink { target: b"../t" },
        Tmsg::Stat { .. } => {
            let ids = StatIds { extension: b"../t", ..StatIds::UNSET };
            Rmsg::Stat {
                stat: Stat {
                    mode: mode::DMSYMLINK | 0o777,
                    qid,
                    length: 4,
                    name: b"n",
                    ids,
                    ..Stat::DONT_TOUCH
                },
            }
        }
        Tmsg::Lock { .. } => Rmsg::Lock { status: 1 },
        Tmsg::Getlock { .. } => Rmsg::Getlock { ty: 1, start: 3, length: 4, proc_id: 5, client_id: b"host" },
        Tmsg::Xattrcreate { .. } => Rmsg::Xattrcreate {},
        _ => return false,
    };
    server.reply(got.0, reply);
    true
}

/// The operation sends these messages in .L, .u and 9P2000; `None`: it is refused without a request.
#[track_caller]
fn says<T: 'static, F>(f: impl Fn(Rc<File>) -> F, lines: [Option<&[&str]>; 3])
where
    F: Future<Output = Result<T>> + 'static,
{
    for (dialect, lines) in [L, U, P].into_iter().zip(lines) {
        let (result, log) = sent(dialect, &f);
        match lines {
            Some(lines) => {
                assert!(result.is_ok(), "{}: {:?}", dialect.name(), result.err());
                assert_eq!(log, lines, "{}", dialect.name());
            }
            None => {
                let errno = result.err().expect("refused").errno();
                assert!(matches!(errno, Errno::EOPNOTSUPP | Errno::EXDEV), "{}: {errno:?}", dialect.name());
                assert_eq!(log, [""; 0], "{}", dialect.name());
            }
        }
    }
}

#[test]
fn files_and_directories_are_made_in_every_dialect() {
    says(
        |root| async move { root.create("n", OpenFlags::WRITE, 0o644, NOGID).await.map(|file| file.qid()) },
        [
            Some(&["Tlcreate fid 1 name 'n' flags 65 mode 420 gid 4294967295"]),
            Some(&["Tcreate fid 1 name 'n' perm 420 mode 1 extension ''"]),
            Some(&["Tcreate fid 1 name 'n' perm 420 mode 1 extension ''"]),
        ],
    );
    says(
        |root| async move { root.mkdir("n", 0o755, 5).await },
        [
            Some(&["Tmkdir dfid 0 name 'n' mode 493 gid 5"]),
            Some(&["Tcreate fid 1 name 'n' perm 2147484141 mode 0 extension ''"]),
            Some(&["Tcreate fid 1 name 'n' perm 2147484141 mode 0 extension ''"]),
        ],
    );
}

#[test]
fn links_and_nodes_are_made_where_the_dialect_has_them() {
    says(
        |root| async move { root.symlink("n", "../t", 5).await },
        [
            Some(&["Tsymlink dfid 0 name 'n' target '../t' gid 5"]),
            Some(&["Tcreate fid 1 name 'n' perm 33554943 mode 0 extension '../t'"]),
            None,
        ],
    );
    says(
        |root| async move { root.link("n", &root.walk("old").await?).await },
        [
            Some(&["Tlink dfid 0 fid 1 name 'n'"]),
            Some(&["Tcreate fid 2 name 'n' perm 16777216 mode 0 extension '1'"]),
            None,
        ],
    );
    says(
        |root| async move { root.mknod("n", mode::S_IFBLK | 0o600, (8, 1), 5).await },
        [
            Some(&["Tmknod dfid 0 name 'n' mode 24960 major 8 minor 1 gid 5"]),
            Some(&["Tcreate fid 1 name 'n' perm 8388992 mode 0 extension 'b 8 1'"]),
            None,
        ],
    );
    says(
        |root| async move {
            let target = root.walk("n").await?.readlink().await?;
            assert_eq!(*target, *b"../t");
            Ok(())
        },
        [Some(&["Treadlink fid 1"]), Some(&["Tstat fid 1"]), None],
    );
}

#[test]
fn names_change_in_every_dialect_within_one_directory() {
    let wstat = "Twstat fid 1 stat 'new' '' '' '' q (ffffffffffffffff 4294967295 dalmAtsk) m 0o37777777777 \
                 at 4294967295 mt 4294967295 l 18446744073709551615 t 65535 d 4294967295";
    says(
        |root| async move { root.rename("old", &root, "new").await },
        [
            Some(&["Trenameat olddirfid 0 oldname 'old' newdirfid 0 newname 'new'"]),
            Some(&[wstat]),
            Some(&[wstat]),
        ],
    );
    says(
        |root| async move { root.rename("old", &root.walk("d").await?, "new").await },
        [Some(&["Trenameat olddirfid 0 oldname 'old' newdirfid 1 newname 'new'"]), None, None],
    );
}

#[test]
fn names_are_removed_in_every_dialect() {
    says(
        |root| async move { root.unlink("n", false).await },
        [Some(&["Tunlinkat dirfid 0 name 'n' flags 0"]), Some(&["Tremove fid 1"]), Some(&["Tremove fid 1"])],
    );
    says(
        |root| async move { root.unlink("d", true).await },
        [
            Some(&["Tunlinkat dirfid 0 name 'd' flags 512"]),
            Some(&["Tremove fid 1"]),
            Some(&["Tremove fid 1"]),
        ],
    );
    for (name, dir, errno) in [("n", true, Errno::ENOTDIR), ("d", false, Errno::EISDIR)] {
        let (result, log) = sent(P, |root| async move { root.unlink(name, dir).await });
        assert_eq!((result.unwrap_err().errno(), log.len()), (errno, 0));
    }
}

#[test]
fn a_server_without_the_newer_messages_is_asked_with_the_older_ones() {
    let old = |server: &mut Server, got: &Got| {
        let new = matches!(got.message(), Tmsg::Renameat { .. } | Tmsg::Unlinkat { .. });
        if new {
            server.error(got.0, Errno::EOPNOTSUPP.0, "");
        }
        new
    };
    let (result, log) = sent_with(L, old, |root| async move { root.rename("old", &root, "new").await });
    assert!(result.is_ok() && log[1] == "Trename fid 1 dfid 0 name 'new'", "{log:?}");
    let (result, log) = sent_with(L, old, |root| async move { root.unlink("n", false).await });
    assert!(result.is_ok() && log[1] == "Tremove fid 1", "{log:?}");
}

#[test]
fn attributes_change_all_or_none() {
    let time = TimeSet::To(Time { sec: 9, nsec: 8 });
    let set = SetAttr { mode: Some(0o600), size: Some(5), mtime: Some(time), ..SetAttr::default() };
    let wstat = "Twstat fid 0 stat '' '' '' '' q (ffffffffffffffff 4294967295 dalmAtsk) m 0o20000000600 \
                 at 4294967295 mt 9 l 5 t 65535 d 4294967295";
    says(
        move |root| async move { root.setattr(&set).await },
        [
            Some(&["Tsetattr fid 0 valid 0x129 mode 384 uid 4294967295 gid 4294967295 size 5 \
                    atime 0.000000000 mtime 9.000000008"]),
            Some(&[wstat]),
            Some(&[wstat]),
        ],
    );
    let now = SetAttr { atime: Some(TimeSet::Now), ..SetAttr::default() };
    let (result, _) = sent(P, |root| async move { root.setattr(&now).await });
    assert_eq!(result.unwrap_err().errno(), Errno::EOPNOTSUPP);
    let name = SetAttr { name: Some(b"n"), ..SetAttr::default() };
    let (result, _) = sent(L, |root| async move { root.setattr(&name).await });
    assert_eq!(result.unwrap_err().errno(), Errno::EINVAL);
}

#[test]
fn sync_is_a_twstat_that_changes_nothing_where_there_is_no_tfsync() {
    let (_, log) = sent(L, |root| async move { root.fsync(true).await });
    assert_eq!(log, ["Tfsync fid 0 datasync 1"]);
    let (result, log) = sent(P, |root| async move { root.fsync(true).await });
    assert!(result.is_ok() && log[0].starts_with("Twstat fid 0 stat '' ''"));
}

#[test]
fn locks_statfs_and_attributes_of_l() {
    let lock =
        LockRequest { ty: LockType::Write, flags: 1, start: 3, length: 4, proc_id: 5, client_id: b"host" };
    let (status, _) = sent(L, |root| async move { root.lock(&lock).await });
    assert_eq!(status.unwrap(), LockStatus::Blocked);
    let (owner, _) = sent(L, |root| async move { root.getlock(&lock).await });
    let owner = owner.unwrap();
    assert_eq!((owner.ty, owner.proc_id, &*owner.client_id), (LockType::Write, 5, &b"host"[..]));
    assert!(sent(L, |root| async move { root.statfs().await }).0.is_ok());
    assert!(sent(P, |root| async move { root.statfs().await }).0.is_err());

    let bad = |server: &mut Server, got: &Got| {
        server.reply(got.0, Rmsg::Lock { status: 9 });
        true
    };
    let (status, _) = sent_with(L, bad, |root| async move { root.lock(&lock).await });
    assert_eq!(status.unwrap_err().errno(), Errno::EPROTO);
}

#[test]
fn stat_texts_stay_beside_the_numbers() {
    let (attr, _) = sent(U, |root| async move { root.getattr(GetMask::BASIC).await });
    let attr = attr.unwrap();
    assert_eq!((attr.mode, &*attr.texts.unwrap().target), (mode::S_IFLNK | 0o777, &b"../t"[..]));
}

#[test]
fn extended_attributes_are_read_and_written_through_fids_of_their_own() {
    let answer = |server: &mut Server, got: &Got| {
        match got.message() {
            Tmsg::Xattrwalk { newfid, name, .. } => {
                server.fids.insert(newfid, Qid::default());
                server.reply(got.0, Rmsg::Xattrwalk { size: if name.is_empty() { 14 } else { 5 } });
            }
            Tmsg::Read { count: 14, .. } => {
                server.reply(got.0, Rmsg::Read { data: Data::Bytes(b"user.a\0user.b\0") })
            }
            Tmsg::Read { .. } => server.reply(got.0, Rmsg::Read { data: Data::Bytes(b"value") }),
            _ => return false,
        }
        true
    };
    let (value, _) = sent_with(L, answer, |root| async move { root.xattr("user.a").await });
    assert_eq!(value.unwrap(), b"value");
    let (names, _) = sent_with(L, answer, |root| async move { root.xattrs().await });
    assert_eq!(names.unwrap(), [b"user.a", b"user.b"]);
    let (_, log) = sent(L, |root| async move { root.set_xattr("user.a", b"new", 1).await });
    assert_eq!(
        log,
        ["Txattrcreate fid 1 name 'user.a' size 3 flags 1", "Twrite fid 1 offset 0 data 3 bytes"]
    );
    let (_, log) = sent(L, |root| async move { root.remove_xattr("user.a").await });
    assert_eq!(log, ["Txattrcreate fid 1 name 'user.a' size 0 flags 2"]);

    let huge = |server: &mut Server, got: &Got| {
        let Tmsg::Xattrwalk { newfid, .. } = got.message() else { return false };
        server.fids.insert(newfid, Qid::default());
        server.reply(got.0, Rmsg::Xattrwalk { size: u64::MAX });
        true
    };
    let (value, _) = sent_with(L, huge, |root| async move { root.xattr("user.a").await });
    assert_eq!(value.unwrap_err().errno(), Errno::E2BIG);
}

#[test]
fn open_or_create_follows_create_2() {
    // An existing file is opened, a missing one created; one that another client creates meanwhile is opened.
    for (walks, creates, expected) in [
        (vec![true], vec![], "Tlopen"),
        (vec![false], vec![true], "Tlcreate"),
        (vec![false, true], vec![false], "Tlopen"),
    ] {
        let (mut walks, mut creates) = (walks.into_iter(), creates.into_iter());
        let answer = move |server: &mut Server, got: &Got| match got.message() {
            Tmsg::Walk { names, .. } if !names.is_empty() && !walks.next().unwrap() => {
                server.error(got.0, Errno::ENOENT.0, "");
                true
            }
            Tmsg::Lcreate { .. } if !creates.next().unwrap() => {
                server.error(got.0, Errno::EEXIST.0, "");
                true
            }
            _ => false,
        };
        let flags = OpenFlags::WRITE;
        let (file, log) =
            sent_with(
                L,
                answer,
                |root| async move { root.open_or_create("n", flags, 0o644).await.map(drop) },
            );
        assert!(file.is_ok() && log.last().unwrap().starts_with(expected), "{log:?}");
    }
}

#[test]
fn names_that_could_leave_a_directory_are_refused_before_they_are_asked() {
    for name in ["", ".", "..", "a/b"] {
        let (result, log) = sent(L, |root| async move { root.mkdir(name, 0o755, NOGID).await });
        assert_eq!((result.unwrap_err().errno(), log.len()), (Errno::EINVAL, 0));
    }
}

/// Attaches with a token; `auth` answers Tauth. Returns the result and the messages.
fn attached(token: Option<&str>, mut auth: impl FnMut(&mut Server, &Got)) -> (Result<()>, Vec<String>) {
    let (ours, theirs) = pair();
    let mut exec = Exec::default();
    let mut server = Server::new(theirs, U);
    let options = Options { token: token.map(String::from), dialects: vec![U], ..Options::default() };
    let joining = exec.spawn(async move {
        let (client, driver) = Client::connect(ours, options).await?;
        let attach = client.attach("glenda", 1000, "main");
        // Both in one task: this works without an executor.
        let mut driver = Box::pin(driver);
        let mut attach = Box::pin(attach);
        std::future::poll_fn(|cx| {
            let _ = driver.as_mut().poll(cx);
            attach.as_mut().poll(cx).map(|attached| attached.map(drop))
        })
        .await
    });
    let mut log = Vec::new();
    loop {
        exec.run();
        let got = server.got();
        if got.is_empty() {
            return (joining.take(), log);
        }
        for got in got {
            if got.0 != NOTAG {
                log.push(got.message().with_tag(got.0).to_string());
            }
            match got.message() {
                Tmsg::Version { .. } => {
                    server.reply(NOTAG, Rmsg::Version { msize: 8192, version: U.name().as_bytes() });
                }
                Tmsg::Auth { .. } => auth(&mut server, &got),
                Tmsg::Attach { fid, afid, .. } => {
                    assert!(afid == NOFID || server.fids.contains_key(&afid));
                    server.fids.insert(fid, Qid::default());
                    server.reply(got.0, Rmsg::Attach { qid: Qid::default() });
                }
                _ => server.answer(&got),
            }
        }
    }
}

#[test]
fn a_token_is_shown_to_a_server_that_wants_one() {
    let (result, log) = attached(Some("secret"), |server, got| {
        server.fids.insert(Fid(0), Qid { ty: Qid::AUTH, ..Qid::default() });
        server.reply(got.0, Rmsg::Auth { aqid: Qid { ty: Qid::AUTH, ..Qid::default() } });
    });
    assert!(result.is_ok());
    let expected = [
        "Tauth tag 0 afid 0 uname 'glenda' aname 'main' n_uname 1000",
        "Twrite tag 0 fid 0 offset 0 data 6 bytes",
        "Tattach tag 0 fid 1 afid 0 uname 'glenda' aname 'main' n_uname 1000",
    ];
    assert_eq!(log[..3], expected);
}

#[test]
fn a_server_that_wants_no_token_is_attached_without_one() {
    for token in [Some("secret"), None] {
        let (result, log) =
            attached(token, |server, got| server.error(got.0, 0, "authentication not required"));
        assert!(result.is_ok());
        let attach = log.iter().find(|line| line.starts_with("Tattach")).unwrap();
        assert_eq!(attach, "Tattach tag 0 fid 0 afid nofid uname 'glenda' aname 'main' n_uname 1000");
        assert_eq!(log[0].starts_with("Tauth"), token.is_some());
    }
}
