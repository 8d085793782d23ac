//! Walks: of any length, up, partial, and refused.

use nine_io::client::Error;
use nine_proto::msg::{Qids, Rmsg, Tmsg};
use nine_proto::{Dialect, Errno, Qid};

use crate::client::world::world;

const DIR: Qid = Qid { ty: Qid::DIR, vers: 0, path: 1 };
const FILE: Qid = Qid { ty: 0, vers: 0, path: 2 };

#[test]
fn a_long_path_goes_in_runs_of_sixteen_and_leaves_out_what_means_nothing() {
    let mut w = world(Dialect::P2000);
    let path = format!("//./d0/{}/../dx/", (1..18).map(|i| format!("d{i}")).collect::<Vec<_>>().join("/"));
    let walking = w.start(|root| async move { root.walk(path).await });
    let mut runs = Vec::new();
    w.serve(|_, got| {
        if let Tmsg::Walk { fid, newfid, names } = got.message() {
            runs.push((fid.0, newfid.0, names.len(), names.iter().last().map(<[u8]>::to_vec)));
        }
        false
    });
    let last = |name: &str| Some(name.as_bytes().to_vec());
    assert_eq!(runs, [(0, 1, 16, last("d15")), (1, 1, 4, last("dx"))]);
    assert_eq!(walking.take().unwrap().qid().path, 20);
}

#[test]
fn a_partial_walk_names_what_failed_and_makes_no_fid() {
    let mut w = world(Dialect::L);
    for (qids, errno, says) in [
        (&[DIR][..], 2, "d/nothing: No such file or directory"),
        (&[DIR], 5, "d/nothing: Input/output error"),
        (&[DIR], 13, "d/nothing: Permission denied"),
        (&[FILE], 0, "d/nothing: Not a directory"),
    ] {
        let walking = w.start(|root| async move { root.walk("d/nothing/below").await });
        let walk = w.server.one();
        w.server.reply(walk.0, Rmsg::Walk { qids: Qids::Slice(qids) });
        // A short answer gives no reason: the failed step is requested separately.
        w.serve(|server, got| match got.message() {
            Tmsg::Walk { fid, newfid, .. } if fid == newfid => {
                server.error(got.0, errno, "");
                true
            }
            _ => false,
        });
        let error = walking.take().unwrap_err();
        assert_eq!(error.to_string(), says);
        assert_eq!((w.client.fids(), w.client.under_way()), (1, (0, 0)));
    }
}

#[test]
fn a_refused_walk_keeps_the_words_of_the_server() {
    let mut w = world(Dialect::P2000);
    let walking = w.start(|root| async move { root.walk("x").await });
    let walk = w.server.one();
    w.server.error(walk.0, 0, "directory entry not found");
    w.exec.run();
    let error = walking.take().unwrap_err();
    assert_eq!((error.to_string().as_str(), error.errno()), ("x: directory entry not found", Errno::ENOENT));
    assert_eq!(error.into_reply().ename(), "directory entry not found");
}

#[test]
fn a_walk_that_fails_in_its_second_run_clunks_the_fid_of_the_first() {
    for partial in [false, true] {
        let mut w = world(Dialect::L);
        let path = ["d"; 20].join("/");
        let walking = w.start(|root| async move { root.walk(path).await });
        w.serve(|server, got| match got.message() {
            Tmsg::Walk { fid, newfid, .. } if fid == newfid => {
                match got.message() {
                    Tmsg::Walk { names, .. } if partial && names.len() > 1 => {
                        server.reply(got.0, Rmsg::Walk { qids: Qids::Slice(&[DIR, DIR]) });
                    }
                    _ => server.error(got.0, if partial { 5 } else { 13 }, ""),
                }
                true
            }
            _ => false,
        });
        let Err(Error::Walk { path, error }) = walking.take() else { panic!("it failed") };
        assert_eq!(path.split('/').count(), if partial { 19 } else { 17 });
        assert_eq!(error.errno, if partial { Errno::EIO } else { Errno::EACCES });
        assert_eq!((w.client.fids(), w.server.fids.len()), (1, 1));
    }
}

#[test]
fn names_that_no_message_can_carry_are_refused_before_they_are_asked() {
    let mut w = world(Dialect::L);
    for path in [vec![b'x'; 70_000], b"a\0b".to_vec()] {
        let walking = w.start(|root| async move { root.walk(path).await });
        assert!(matches!(walking.take(), Err(Error::Refused(_))));
    }
    // It fits into a string, but not into a message.
    let path = ["x".repeat(60_000), "y".repeat(60_000)].join("/");
    let walking = w.start(|root| async move { root.walk(path).await });
    assert_eq!(walking.take().unwrap_err().errno(), Errno::E2BIG);
    assert!(w.server.got().is_empty());
    assert_eq!(w.client.fids(), 1);
}
