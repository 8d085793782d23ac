//! Cancelled requests: in any order of answers, no fid stays on the server and no tag is reused too early.

use nine_proto::msg::{Qids, Rmsg, Tmsg};
use nine_proto::{Dialect, Fid, OpenFlags, Qid, Tag};

use crate::client::world::{World, world};

/// Starts a walk, drops it, and answers with `answer`; then only the root's fid is left.
fn cancelled_walk(w: &mut World, answer: impl FnOnce(&mut World, Tag, Tag)) {
    let walking = w.start(|root| async move { root.walk("x").await });
    let walk = w.server.one();
    w.exec.cancel(&walking);
    w.exec.run();
    let flush = w.server.one();
    assert_eq!(flush.message(), Tmsg::Flush { oldtag: walk.0 });
    answer(w, walk.0, flush.0);
    w.serve(|_, _| false);
    assert_eq!(w.client.under_way(), (0, 0));
    assert_eq!(w.client.fids(), 1, "only the root is left");
    assert_eq!(w.server.fids.len(), 1, "only the root is left");
}

#[test]
fn flushed_before_it_happened() {
    let mut w = world(Dialect::L);
    cancelled_walk(&mut w, |w, _, flush| w.server.reply(flush, Rmsg::Flush {}));
}

#[test]
fn a_late_success_is_clunked() {
    let mut w = world(Dialect::L);
    for _ in 0..3 {
        cancelled_walk(&mut w, |w, walk, flush| {
            w.server.fids.insert(Fid(1), Qid::default());
            w.server.reply(walk, Rmsg::Walk { qids: Qids::Slice(&[Qid::default()]) });
            w.exec.run();
            let clunk = w.server.one();
            assert_eq!(clunk.message(), Tmsg::Clunk { fid: Fid(1) });
            assert!(clunk.0 != walk && clunk.0 != flush, "the flushed tag is not free yet");
            w.server.reply(flush, Rmsg::Flush {});
            w.exec.run();
            assert_eq!(w.client.under_way(), (1, 0));
            w.server.answer(&clunk);
        });
    }
}

#[test]
fn a_late_error_leaves_nothing() {
    let mut w = world(Dialect::P2000);
    cancelled_walk(&mut w, |w, walk, flush| {
        w.server.error(walk, 2, "file not found");
        w.server.reply(flush, Rmsg::Flush {});
    });
}

#[test]
fn an_answer_that_nobody_took_is_undone() {
    let mut w = world(Dialect::L);
    for taken_in in [false, true] {
        let walking = w.start(|root| async move { root.walk("x").await });
        let walk = w.server.one();
        w.server.answer(&walk);
        if taken_in {
            // The driver delivers the answer, and the caller is dropped before it takes it.
            w.exec.poll(&w.driver);
        }
        w.exec.cancel(&walking);
        let mut flushes = 0;
        w.serve(|_, got| {
            flushes += usize::from(matches!(got.message(), Tmsg::Flush { .. }));
            false
        });
        assert_eq!(flushes, usize::from(!taken_in));
        assert_eq!((w.client.fids(), w.server.fids.len()), (1, 1));
    }
}

#[test]
fn what_was_never_sent_needs_no_flush() {
    let mut w = world(Dialect::L);
    let walking = w.exec.spawn({
        let root = w.root.clone();
        async move { root.walk("x").await }
    });
    w.exec.cancel(&walking);
    w.exec.run();
    assert!(w.server.got().is_empty());
    assert_eq!(w.client.fids(), 1);
}

#[test]
fn the_clunk_of_a_fid_waits_for_the_flushed_request_on_it() {
    let mut w = world(Dialect::L);
    let opening = w.start(|root| async move { root.open("file", OpenFlags::READ).await });
    let walk = w.server.one();
    w.server.answer(&walk);
    w.exec.run();
    let open = w.server.one();
    w.exec.cancel(&opening);
    w.exec.run();
    let flush = w.server.one();
    w.server.answer(&open);
    w.exec.run();
    assert!(w.server.got().is_empty(), "the tag of the open is still the flush's");
    w.server.answer(&flush);
    w.exec.run();
    let clunk = w.server.one();
    assert!(matches!(clunk.message(), Tmsg::Clunk { .. }));
    w.server.answer(&clunk);
    w.exec.run();
    assert_eq!((w.client.fids(), w.server.fids.len()), (1, 1));
}

#[test]
fn a_remove_taken_back_ends_with_its_fid_gone_either_way() {
    for answered in [false, true] {
        let mut w = world(Dialect::L);
        let removing = w.start(|root| async move { root.walk("x").await.unwrap().remove().await });
        let walk = w.server.one();
        w.server.answer(&walk);
        w.exec.run();
        let remove = w.server.one();
        w.exec.cancel(&removing);
        w.exec.run();
        if answered {
            w.server.answer(&remove);
        }
        w.serve(|_, _| false);
        assert_eq!((w.client.fids(), w.server.fids.len()), (1, 1));
    }
}

#[test]
fn a_close_taken_back_goes_on_in_the_background() {
    let mut w = world(Dialect::L);
    let file = std::rc::Rc::into_inner(w.file()).unwrap();
    let closing = w.start(|_| async move { file.close().await });
    w.exec.cancel(&closing);
    w.exec.run();
    let clunk = w.server.one();
    assert!(matches!(clunk.message(), Tmsg::Clunk { .. }));
    w.server.answer(&clunk);
    w.exec.run();
    assert_eq!((w.client.fids(), w.client.under_way()), (1, (0, 0)));
}

#[test]
fn dropping_a_file_clunks_it_and_close_says_how_that_went() {
    let mut w = world(Dialect::L);
    drop(w.file());
    w.serve(|_, _| false);
    assert_eq!(w.server.fids.len(), 1);

    let file = std::rc::Rc::into_inner(w.file()).unwrap();
    let closing = w.start(|_| async move { file.close().await });
    w.serve(|server, got| {
        server.error(got.0, 28, "");
        true
    });
    assert_eq!(closing.take().unwrap_err().to_string(), "No space left on device");
    assert_eq!(w.client.fids(), 1, "the fid is gone even on error");
}
