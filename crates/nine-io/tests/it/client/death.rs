//! The connection fails, or the server violates 9P: every waiting call gets the reason, as a sentence.

use std::collections::HashMap;

use nine_io::client::{Client, Error, Options};
use nine_proto::msg::{Data, Qids, Rmsg};
use nine_proto::{Dialect, NOTAG, Qid, Tag};

use crate::client::world::{Exec, Server, World, pair, world};

#[test]
fn a_cut_fails_what_waits_and_what_comes_later() {
    let mut w = world(Dialect::L);
    let waiting: Vec<_> = (0..3).map(|_| w.start(|root| async move { root.walk("x").await })).collect();
    w.server.cut();
    w.exec.run();
    for join in waiting {
        let error = join.take().unwrap_err();
        assert!(error.is_disconnect());
        assert_eq!(error.to_string(), "tcp!fs.lab!564: the server closed the connection");
    }
    let later = w.start(|root| async move { root.walk("x").await });
    assert!(later.take().unwrap_err().is_disconnect());
    assert!(w.driver.take().is_err());
    assert!(w.client.dead().is_some());
}

#[test]
fn half_an_answer_and_then_nothing_is_a_cut() {
    let mut w = world(Dialect::L);
    let walking = w.start(|root| async move { root.walk("x").await });
    w.server.send(&[20, 0, 0, 0, 111, 0]);
    w.exec.run();
    assert!(!walking.is_done());
    w.server.cut();
    w.exec.run();
    assert!(walking.take().unwrap_err().is_disconnect());
}

fn broken_by(answer: impl FnOnce(&mut World, Tag)) -> String {
    let mut w = world(Dialect::L);
    let walking = w.start(|root| async move { root.walk("x").await });
    let walk = w.server.one();
    answer(&mut w, walk.0);
    w.exec.run();
    let error = walking.take().unwrap_err();
    assert!(matches!(error, Error::Protocol { .. }), "{error:?}");
    assert!(w.driver.take().is_err());
    error.to_string()
}

#[test]
fn malformed_answers_end_the_connection_with_a_reason() {
    let says = |text: &str| format!("tcp!fs.lab!564 does not keep to 9P: {text}");
    assert_eq!(broken_by(|w, _| w.server.send(&[6, 0, 0, 0, 111, 0, 0])), says("bad message size 6"));
    assert_eq!(broken_by(|w, _| w.server.send(&[0, 0, 1, 1])), says("bad message size 16842752"));
    assert_eq!(
        broken_by(|w, tag| w.server.reply(tag, Rmsg::Clunk {})),
        says("reply of type 121 to nothing that was asked")
    );
    assert_eq!(
        broken_by(|w, tag| w.server.reply(Tag(tag.0 + 1), Rmsg::Walk { qids: Qids::Slice(&[]) })),
        says("reply of type 111 to nothing that was asked")
    );
    assert_eq!(
        broken_by(|w, tag| w.server.reply(tag, Rmsg::Walk { qids: Qids::Slice(&[Qid::default(); 2]) })),
        says("message type 111 has a count beyond its limit")
    );
    assert_eq!(
        broken_by(|w, tag| w.server.send(&[8, 0, 0, 0, 111, tag.0 as u8, 0, 0])),
        says("message type 111 is cut short")
    );
}

#[test]
fn more_data_than_was_asked_for_ends_the_connection() {
    let mut w = world(Dialect::L);
    let file = w.file();
    let reading = w.start(|_| async move { file.read(0, 4).await });
    let read = w.server.one();
    w.server.reply(read.0, Rmsg::Read { data: Data::Bytes(b"12345") });
    w.exec.run();
    assert!(matches!(reading.take(), Err(Error::Protocol { .. })));
}

#[test]
fn a_driver_that_is_dropped_fails_its_calls() {
    let mut w = world(Dialect::L);
    let walking = w.start(|root| async move { root.walk("x").await });
    w.exec.cancel(&w.driver);
    w.exec.run();
    let text = walking.take().unwrap_err().to_string();
    assert_eq!(text, "tcp!fs.lab!564: the connection was closed on this side");
}

#[test]
fn an_abort_gives_its_own_reason() {
    let mut w = world(Dialect::L);
    let walking = w.start(|root| async move { root.walk("x").await });
    w.client.abort(std::io::Error::new(std::io::ErrorKind::TimedOut, "no answer to a flush for 30 s"));
    w.exec.run();
    assert_eq!(walking.take().unwrap_err().to_string(), "tcp!fs.lab!564: no answer to a flush for 30 s");
    assert!(w.driver.take().is_err());
}

#[test]
fn an_answer_that_comes_after_an_abort_is_nobodys() {
    let mut w = world(Dialect::L);
    let walking = w.start(|root| async move { root.walk("x").await });
    let walk = w.server.one();
    w.client.abort(std::io::ErrorKind::TimedOut.into());
    w.server.error(walk.0, 2, "file not found");
    w.exec.run();
    assert!(walking.take().unwrap_err().is_disconnect());
    assert!(w.driver.take().is_err());
}

#[test]
fn the_driver_ends_well_when_nobody_is_left_and_all_is_answered() {
    let World { mut exec, mut server, client, root, driver } = world(Dialect::L);
    drop(client);
    exec.run();
    assert!(!driver.is_done());
    drop(root);
    exec.run();
    assert!(!driver.is_done(), "the clunk of the root is not answered");
    let clunk = server.one();
    server.answer(&clunk);
    exec.run();
    assert!(driver.take().is_ok());
}

#[test]
fn a_connect_taken_back_closes_the_connection() {
    let (ours, theirs) = pair();
    let mut exec = Exec::default();
    let mut server = Server::new(theirs, Dialect::L);
    let connecting = exec.spawn(Client::connect(ours, Options::default()));
    exec.run();
    exec.cancel(&connecting);
    assert_eq!(server.got().len(), 1);
    assert!(server.is_closed());
}

#[test]
fn a_server_without_a_common_dialect_is_named() {
    let (ours, theirs) = pair();
    let mut exec = Exec::default();
    let mut server = Server::new(theirs, Dialect::P2000);
    let connecting = exec.spawn(Client::connect(ours, Options::default()));
    for _ in 0..3 {
        exec.run();
        assert_eq!(server.one().0, NOTAG);
        server.reply(NOTAG, Rmsg::Version { msize: 8192, version: b"unknown" });
    }
    exec.run();
    let error = connecting.take().map(|_| ()).unwrap_err();
    assert_eq!(error.to_string(), "tcp!fs.lab!564 speaks no 9P that we know");
    assert_eq!(server.fids, HashMap::new());
}
