//! The limits of requests in flight, and the behaviour at these limits.

use std::cell::RefCell;
use std::rc::Rc;

use nine_io::client::Options;
use nine_proto::msg::{Rmsg, Tmsg};
use nine_proto::{Attr, Dialect, GetMask, SetAttr};

use crate::client::world::{Got, world, world_with};

fn getattrs(got: &[Got]) -> usize {
    got.iter().filter(|got| matches!(got.message(), Tmsg::Getattr { .. })).count()
}

#[test]
fn a_thousand_calls_at_once_are_answered_whatever_the_order() {
    let mut w = world(Dialect::L);
    let calls: Vec<_> = (0..1000)
        .map(|_| {
            let root = w.root.clone();
            w.exec.spawn(async move { root.getattr(GetMask::BASIC).await.unwrap().size })
        })
        .collect();
    let writes = w.writes();
    w.exec.run();
    assert_eq!(w.writes(), writes + 1, "a thousand messages leave in one write");
    let got = w.server.got();
    assert_eq!(getattrs(&got), 1000);
    for got in got.iter().rev() {
        w.server.reply(got.0, Rmsg::Getattr { attr: Attr { size: got.0.0.into(), ..Attr::default() } });
    }
    w.exec.run();
    let mut sizes: Vec<_> = calls.iter().map(|call| call.take()).collect();
    sizes.sort_unstable();
    sizes.dedup();
    assert_eq!(sizes.len(), 1000, "every caller has its own answer");
}

#[test]
fn beyond_the_limit_callers_wait_in_order() {
    let mut w = world_with(Dialect::L, 8192, Options { calls: 4, ..Options::default() });
    let order = Rc::new(RefCell::new(Vec::new()));
    for i in 0..12 {
        let (root, order) = (w.root.clone(), order.clone());
        w.exec.spawn(async move {
            root.getattr(GetMask::BASIC).await.unwrap();
            order.borrow_mut().push(i);
        });
    }
    for _ in 0..3 {
        w.exec.run();
        let got = w.server.got();
        assert_eq!(getattrs(&got), 4);
        for got in &got {
            w.server.answer(got);
        }
    }
    w.exec.run();
    assert_eq!(*order.borrow(), (0..12).collect::<Vec<_>>());
}

#[test]
fn a_caller_that_leaves_the_queue_lets_the_next_one_by() {
    let mut w = world_with(Dialect::L, 8192, Options { calls: 1, ..Options::default() });
    let first = w.start(|root| async move { root.getattr(GetMask::BASIC).await });
    let second = w.start(|root| async move { root.walk("x").await });
    let third = w.start(|root| async move { root.getattr(GetMask::BASIC).await });
    w.exec.cancel(&second);
    w.serve(|_, _| false);
    assert!(first.take().is_ok() && third.take().is_ok());
    assert_eq!(w.client.fids(), 1, "the walk's fid was never taken");
}

#[test]
fn calls_taken_back_count_until_the_server_lets_go_of_them() {
    let mut w = world_with(Dialect::L, 8192, Options { calls: 2, ..Options::default() });
    for _ in 0..100 {
        let call = w.start(|root| async move { root.getattr(GetMask::BASIC).await });
        w.exec.cancel(&call);
    }
    w.exec.run();
    let got = w.server.got();
    assert_eq!(got.len(), 4, "two calls, each flushed once; the other 98 never left");
    assert_eq!(w.client.under_way(), (2, 2));
    for got in &got {
        w.server.answer(got);
    }
    w.exec.run();
    assert_eq!(w.client.under_way(), (0, 0));
}

#[test]
fn answers_on_their_way_are_charged_and_a_call_larger_than_the_budget_goes_alone() {
    let mut w = world_with(Dialect::L, 65536, Options { budget: 20_000, ..Options::default() });
    let file = w.file();
    let reads: Vec<_> = [8_000, 8_000, 8_000, 60_000, 10]
        .into_iter()
        .map(|count| {
            let file = file.clone();
            w.start(|_| async move { file.read(0, count).await.unwrap().len() })
        })
        .collect();
    let mut rounds = Vec::new();
    loop {
        w.exec.run();
        let got = w.server.got();
        if got.is_empty() {
            break;
        }
        rounds.push(got.len());
        for got in &got {
            let Tmsg::Read { count, .. } = got.message() else { panic!("a read") };
            crate::client::world::read_of(&mut w.server, got.0, &[1; 65536], 0, count);
        }
    }
    assert_eq!(rounds, [2, 1, 1, 1]);
    assert_eq!(reads.iter().map(|read| read.take()).collect::<Vec<_>>(), [8_000, 8_000, 8_000, 60_000, 10]);
}

#[test]
fn clunks_wait_for_a_tag_and_are_never_lost() {
    let mut w = world_with(Dialect::L, 8192, Options { calls: 1, ..Options::default() });
    let files: Vec<_> = (0..5).map(|_| w.file()).collect();
    let call = w.start(|root| async move { root.getattr(GetMask::BASIC).await });
    let got = w.server.one();
    drop(files);
    w.exec.run();
    assert!(w.server.got().is_empty());
    w.server.answer(&got);
    w.serve(|_, _| false);
    assert!(call.take().is_ok());
    assert_eq!((w.client.fids(), w.server.fids.len()), (1, 1));
}

#[test]
fn a_request_that_fits_no_message_is_refused_here() {
    let mut w = world_with(Dialect::P2000, 512, Options::default());
    let set = w.start(|root| async move {
        let name = vec![b'x'; 600];
        root.setattr(&SetAttr { name: Some(&name), ..SetAttr::default() }).await
    });
    assert_eq!(set.take().unwrap_err().errno(), nine_proto::Errno::E2BIG);
    assert!(w.server.got().is_empty());
}

#[test]
fn reads_and_writes_keep_to_the_msize_and_to_the_iounit() {
    for (iounit, most) in [(0, 1000 - 24), (500, 500), (5000, 1000 - 24)] {
        let mut w = world_with(Dialect::L, 1000, Options::default());
        let opening = w.start(|root| async move { root.open("x", nine_proto::OpenFlags::RDWR).await });
        w.serve(|server, got| {
            let open = matches!(got.message(), Tmsg::Lopen { .. });
            if open {
                server.reply(got.0, Rmsg::Lopen { qid: nine_proto::Qid::default(), iounit });
            }
            open
        });
        let file = opening.take().unwrap();
        w.start(|_| async move { file.write_all_at(0, &[1; 3000]).await });
        let got = w.server.got();
        assert!(got.iter().all(|got| got.1.len() <= 1000));
        assert!(matches!(got[0].message(), Tmsg::Write { data, .. } if data.bytes().len() == most));
    }
}

#[test]
fn every_future_may_move_to_another_thread() {
    fn sends<T: Send>(_: T) {}
    let mut w = world(Dialect::L);
    let file = std::rc::Rc::into_inner(w.file()).unwrap();
    sends(w.client.attach("glenda", 0, ""));
    sends(file.open("x", nine_proto::OpenFlags::READ));
    sends(file.open_or_create("x", nine_proto::OpenFlags::READ, 0));
    sends(file.rename("x", &file, "y"));
    sends(file.set_xattr("x", b"y", 0));
    sends(file.read_at(0, &mut [0; 10]));
    sends(file.write_all_at(0, &[0; 10]));
    sends(nine_io::client::Reader::new(&file, 0, 0));
    sends(nine_io::client::Writer::new(&file, 0));
    sends(file.stat_all(["x"], GetMask::BASIC));
    sends(file.read_dir());
}
