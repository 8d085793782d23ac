//! Reads and writes: short answers, answers out of order, errors in the middle, and the number of requests in flight.

use std::cell::Cell;
use std::rc::Rc;

use bytes::Bytes;
use nine_io::client::{Options, Reader, Writer, copy};
use nine_proto::msg::{Data, Rmsg, Tmsg};
use nine_proto::{Dialect, Errno, OpenFlags, Qid};

use crate::client::world::{Got, Server, read_of, world, world_with};

fn content(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i / 7 + i) as u8).collect()
}

/// Answers a Tread from `content` with at most `most` bytes.
fn reads(server: &mut Server, got: &Got, content: &[u8], most: u32) -> bool {
    let Tmsg::Read { offset, count, .. } = got.message() else { return false };
    read_of(server, got.0, content, offset, count.min(most));
    true
}

fn read_all(msize: u32, most: u32, len: usize) -> usize {
    let mut w = world_with(Dialect::L, msize, Options::default());
    let file = w.file();
    let bytes = content(len);
    let reading = w.start(|_| async move {
        let mut buf = vec![0; len + 10];
        let n = file.read_at(0, &mut buf).await.unwrap();
        buf.truncate(n);
        buf
    });
    let waits = w.serve(|server, got| reads(server, got, &bytes, most));
    assert!(reading.take() == bytes, "msize {msize} most {most} len {len}");
    waits
}

#[test]
fn short_answers_leave_no_holes() {
    for most in [1, 100, 5000, u32::MAX] {
        read_all(8192, most, 20_000);
    }
}

#[test]
fn a_large_read_waits_for_the_link_a_few_times_only() {
    assert!(read_all(1 << 20, u32::MAX, 3_000_000) <= 3);
    assert!(read_all(8192, u32::MAX, 400_000) <= 3);
}

#[test]
fn answers_may_come_in_any_order() {
    let mut w = world_with(Dialect::P2000, 4096, Options::default());
    let file = w.file();
    let bytes = content(50_000);
    let reading = w.start(|_| async move {
        let mut buf = vec![0; 50_000];
        (file.read_at(0, &mut buf).await.unwrap(), buf)
    });
    let got = w.server.got();
    assert!(got.len() > 10);
    for got in got.iter().rev() {
        reads(&mut w.server, got, &bytes, u32::MAX);
        w.exec.run();
    }
    let (n, buf) = reading.take();
    assert!(n == 50_000 && buf == bytes);
}

#[test]
fn an_error_shows_at_its_offset() {
    let mut w = world_with(Dialect::L, 4096, Options::default());
    let file = w.file();
    let bytes = content(50_000);
    let reading = w.start(|_| async move {
        let mut buf = vec![0; 50_000];
        let n = file.read_at(0, &mut buf).await.unwrap();
        (n, file.read_at(n as u64, &mut buf).await.unwrap_err().errno())
    });
    w.serve(|server, got| match got.message() {
        Tmsg::Read { offset, .. } if offset >= 20_000 => {
            server.error(got.0, 5, "");
            true
        }
        _ => reads(server, got, &bytes, u32::MAX),
    });
    let (n, errno) = reading.take();
    assert!((20_000..24_096).contains(&n) && errno == Errno::EIO);
    assert_eq!(w.client.under_way(), (0, 0));
}

#[test]
fn a_reader_keeps_its_window_full_and_no_fuller() {
    let window = 64 * 1024;
    let mut w = world_with(Dialect::L, 8192, Options { window, ..Options::default() });
    let file = w.file();
    let bytes = Rc::new(content(1_000_000));
    let sum = Rc::new(Cell::new(0));
    let reading = w.start({
        let (bytes, sum) = (bytes.clone(), sum.clone());
        |_| async move {
            let mut reader = Reader::new(&*file, 0, bytes.len() as u64);
            while let Some(data) = reader.next().await {
                let data = data.unwrap();
                assert!(data[..] == bytes[sum.get()..sum.get() + data.len()]);
                sum.set(sum.get() + data.len());
            }
        }
    });
    let waits = w.serve(|server, got| reads(server, got, &bytes, u32::MAX));
    assert!(reading.is_done() && sum.get() == bytes.len());
    // A window of 16 pieces of 4 KiB; each round trip moves one window.
    let rounds = bytes.len() / window;
    assert!((rounds..rounds + 4).contains(&waits), "{waits} of {rounds}");
}

#[test]
fn what_is_not_known_to_be_there_is_read_one_piece_at_a_time() {
    let mut w = world(Dialect::L);
    let file = w.file();
    let reading = w.start(|_| async move {
        let mut reader = Reader::new(&*file, 0, 0);
        let mut events = 0;
        while let Some(event) = reader.next().await {
            assert_eq!(event.unwrap()[..], *b"event");
            events += 1;
        }
        events
    });
    for _ in 0..3 {
        let read = w.server.one();
        w.server.reply(read.0, Rmsg::Read { data: Data::Bytes(b"event") });
        w.exec.run();
    }
    let read = w.server.one();
    assert!(matches!(read.message(), Tmsg::Read { offset: 15, .. }));
    w.server.reply(read.0, Rmsg::Read { data: Data::Bytes(b"") });
    w.exec.run();
    assert_eq!(reading.take(), 3);
}

#[test]
fn a_file_that_shrinks_ends_early_and_one_that_grows_is_read_on() {
    for (size, real) in [(100_000, 30_000), (30_000, 100_000), (0, 20_000)] {
        let mut w = world_with(Dialect::L, 8192, Options::default());
        let file = w.file();
        let bytes = content(real);
        let reading = w.start(|_| async move {
            let mut reader = Reader::new(&*file, 0, size);
            let mut all = Vec::new();
            while let Some(data) = reader.next().await {
                all.extend_from_slice(&data.unwrap());
            }
            all
        });
        w.serve(|server, got| reads(server, got, &bytes, u32::MAX));
        assert!(reading.take() == bytes);
        assert_eq!(w.client.under_way(), (0, 0));
    }
}

#[test]
fn writes_arrive_whole_however_little_the_server_takes_at_once() {
    for most in [1000, 5000, usize::MAX] {
        let mut w = world_with(Dialect::L, 8192, Options::default());
        let file = w.file();
        let bytes = content(60_000);
        let sent = bytes.clone();
        let writing = w.start(|_| async move { file.write_all_at(5, &sent).await });
        let mut stored = vec![0; 60_000];
        w.serve(|server, got| {
            let Tmsg::Write { offset, data, .. } = got.message() else { return false };
            let data = &data.bytes()[..data.bytes().len().min(most)];
            stored[offset as usize - 5..][..data.len()].copy_from_slice(data);
            server.reply(got.0, Rmsg::Write { count: data.len() as u32 });
            true
        });
        writing.take().unwrap();
        assert!(stored == bytes, "most {most}");
    }
}

#[test]
fn a_full_disk_shows_how_much_was_written() {
    let mut w = world_with(Dialect::L, 8192, Options::default());
    let file = w.file();
    let writing = w.start(|_| async move {
        let n = file.write_at(0, &[7; 60_000]).await.unwrap();
        (n, file.write_all_at(n as u64, &[7; 10]).await.unwrap_err().errno())
    });
    w.serve(|server, got| match got.message() {
        Tmsg::Write { offset, .. } if offset >= 30_000 => {
            server.error(got.0, 28, "");
            true
        }
        _ => false,
    });
    let (n, errno) = writing.take();
    assert!((24_000..=32_768).contains(&n) && errno == Errno::ENOSPC, "{n} {errno:?}");
}

#[test]
fn a_server_that_takes_nothing_is_an_error_not_a_loop() {
    let mut w = world(Dialect::L);
    let file = w.file();
    let writing = w.start(|_| async move { file.write_all_at(0, b"data").await });
    w.serve(|server, got| {
        let write = matches!(got.message(), Tmsg::Write { .. });
        if write {
            server.reply(got.0, Rmsg::Write { count: 0 });
        }
        write
    });
    assert_eq!(writing.take().unwrap_err().to_string(), "the server takes no more bytes");
}

#[test]
fn append_only_files_are_written_in_one_piece() {
    let mut w = world_with(Dialect::L, 8192, Options::default());
    let opening = w.start(|root| async move { root.open("log", OpenFlags::WRITE).await });
    w.serve(|server, got| {
        let open = matches!(got.message(), Tmsg::Lopen { .. });
        if open {
            server.reply(got.0, Rmsg::Lopen { qid: Qid { ty: Qid::APPEND, ..Qid::default() }, iounit: 0 });
        }
        open
    });
    let file = opening.take().unwrap();
    let writing = w.start(|_| async move { file.write_at(0, &[1; 50_000]).await });
    let write = w.server.one();
    assert!(matches!(write.message(), Tmsg::Write { data, .. } if data.bytes().len() == 8192 - 24));
    w.server.answer(&write);
    w.exec.run();
    assert_eq!(writing.take().unwrap(), 8192 - 24);
}

#[test]
fn an_empty_write_is_a_message_too() {
    let mut w = world(Dialect::L);
    let file = w.file();
    let writing = w.start(|_| async move { file.write(0, b"").await });
    let write = w.server.one();
    assert!(matches!(write.message(), Tmsg::Write { data, .. } if data.bytes().is_empty()));
    w.server.answer(&write);
    w.exec.run();
    assert_eq!(writing.take().unwrap(), 0);
}

#[test]
fn a_copy_moves_every_byte_with_a_budget_as_small_as_one_piece() {
    for budget in [1, 100_000, 1 << 25] {
        let mut w = world_with(Dialect::L, 65536, Options { budget, ..Options::default() });
        let bytes = Rc::new(content(1_000_000));
        let stored = Rc::new(Cell::new(0u64));
        let files: Vec<_> = (0..4).map(|_| (w.file(), w.file())).collect();
        let copies: Vec<_> = files
            .into_iter()
            .map(|(from, to)| {
                w.start(|_| async move {
                    let mut reader = Reader::new(&*from, 0, 1_000_000);
                    let mut writer = Writer::new(&*to, 0);
                    copy(&mut reader, &mut writer, |_| {}).await
                })
            })
            .collect();
        w.serve(|server, got| match got.message() {
            Tmsg::Write { offset, data, .. } => {
                assert!(data.bytes() == &bytes[offset as usize..][..data.bytes().len()]);
                stored.set(stored.get() + data.bytes().len() as u64);
                false
            }
            _ => reads(server, got, &bytes, u32::MAX),
        });
        assert!(copies.iter().all(|copy| copy.take().unwrap() == 1_000_000));
        assert_eq!(stored.get(), 4_000_000);
    }
}

#[test]
fn a_writer_that_is_dropped_takes_back_what_is_under_way() {
    let mut w = world(Dialect::L);
    let file = w.file();
    w.start(|_| async move {
        let mut writer = Writer::new(&*file, 0);
        writer.push(Bytes::from(vec![1; 100_000])).await.unwrap();
    });
    w.serve(|_, _| false);
    assert_eq!((w.client.under_way(), w.client.fids()), ((0, 0), 1));
}
