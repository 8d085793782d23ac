//! Both transports at the two ends of one channel; and each against a peer that follows no rules.

use std::future::poll_fn;
use std::io::IoSlice;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use nine_net::shm::{Channel, Kind, Layout, MOST, Waits};
use nine_net::{Peer, Proof, Transport, rt};
use nine_ring::linux::{self, Passed};
use nine_ring::{End, Guest, Note, Place};

use super::{Asking, ROOMS, Serving};

fn peer() -> Peer {
    Peer { addr: "test".into(), proof: Proof::None }
}

/// The host's end, and the files passed to the guest.
fn opened(pages: u32) -> (Channel, Passed) {
    let (ours, theirs) = rustix::net::socketpair(
        rustix::net::AddressFamily::UNIX,
        rustix::net::SocketType::STREAM,
        rustix::net::SocketFlags::CLOEXEC | rustix::net::SocketFlags::NONBLOCK,
        None,
    )
    .unwrap();
    let layout = Layout::new(Kind::GuestAsks, 256, pages, "");
    let (channel, given) = Channel::open(layout, Waits::Adaptive, ours, peer()).unwrap();
    (channel, Passed { memory: given.memory, wait: given.wait, ring: given.ring, life: theirs })
}

/// The host's end and the guest's.
async fn ends(pages: u32) -> (Channel, Channel) {
    let (mut host, passed) = opened(pages);
    let mut joining = pin!(Channel::join(passed, Waits::Adaptive, peer()));
    let mut served = false;
    let guest = poll_fn(|cx| {
        // The guest knocks, the host serves it, and the guest notices.
        let guest = joining.as_mut().poll(cx);
        served = served || host.poll_join(cx).is_ready();
        guest
    });
    let guest = guest.await.unwrap();
    (host, guest)
}

async fn joined(pages: u32) -> (Serving, Asking) {
    let (host, guest) = ends(pages).await;
    (Serving::new(host), Asking::new(guest))
}

/// A guest driven by hand.
async fn by_hand(pages: u32) -> (Serving, End, Passed) {
    let (mut host, passed) = opened(pages);
    let guest = Guest::join(linux::map(&passed.memory).unwrap()).unwrap();
    poll_fn(|cx| host.poll_join(cx)).await.unwrap();
    (Serving::new(host), guest.served().unwrap(), passed)
}

fn message(number: u8, tag: u16, rest: &[u8]) -> Vec<u8> {
    let mut bytes = (7 + rest.len() as u32).to_le_bytes().to_vec();
    bytes.push(number);
    bytes.extend_from_slice(&tag.to_le_bytes());
    bytes.extend_from_slice(rest);
    bytes
}

fn some(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
}

fn twrite(tag: u16, data: &[u8]) -> Vec<u8> {
    message(118, tag, &[&[0; 12][..], &(data.len() as u32).to_le_bytes(), data].concat())
}

fn tread(tag: u16, count: u32) -> Vec<u8> {
    message(116, tag, &[&[0; 12][..], &count.to_le_bytes()].concat())
}

fn rread(tag: u16, data: &[u8]) -> Vec<u8> {
    message(117, tag, &[&(data.len() as u32).to_le_bytes()[..], data].concat())
}

async fn send(transport: &mut impl Transport, mut bytes: &[u8], step: usize) {
    while !bytes.is_empty() {
        let part = &bytes[..step.min(bytes.len())];
        let n = poll_fn(|cx| transport.poll_write(cx, &[IoSlice::new(part)])).await.unwrap();
        bytes = &bytes[n..];
    }
    poll_fn(|cx| transport.poll_flush(cx)).await.unwrap();
}

async fn receive(transport: &mut impl Transport, len: usize, step: usize) -> Vec<u8> {
    let mut came = Vec::new();
    while came.len() < len {
        let mut buf = vec![0; step];
        let n = poll_fn(|cx| transport.poll_read(cx, &mut buf)).await.unwrap();
        assert!(n > 0, "it has not ended");
        came.extend_from_slice(&buf[..n]);
    }
    came
}

#[test]
fn messages_come_out_as_they_went_in_whatever_goes_through_the_arena() {
    rt::block_on(async |_| {
        // With an arena that is large, small, or missing.
        for pages in [64, 2, 0] {
            for (step, buf) in [(usize::MAX, 65_536), (1, 65_536), (10, 1), (1000, MOST), (4096, 777)] {
                let (mut server, mut client) = joined(pages).await;
                let data = some(9000);
                for round in 0..20u16 {
                    let asked = [
                        message(104, 4 * round, &some(30)),
                        twrite(4 * round + 1, &data[..[0, 511, 512, 9000][usize::from(round) % 4]]),
                        tread(4 * round + 2, 8192),
                        message(108, 4 * round + 3, &(4 * round).to_le_bytes()),
                    ];
                    for message in &asked {
                        let (_, came) = both(
                            send(&mut client, message, step.min(message.len())),
                            receive(&mut server, message.len(), buf),
                        )
                        .await;
                        assert!(came == *message);
                    }
                    let answers = [
                        message(105, 4 * round, &some(13)),
                        message(119, 4 * round + 1, &[0; 4]),
                        rread(4 * round + 2, &data[..[8192, 511, 0, 600][usize::from(round) % 4]]),
                        message(109, 4 * round + 3, &[]),
                    ];
                    for message in &answers {
                        let (_, came) = both(
                            send(&mut server, message, step.min(message.len())),
                            receive(&mut client, message.len(), buf),
                        )
                        .await;
                        assert!(came == *message);
                    }
                }
            }
        }
    })
    .unwrap();
}

/// Runs both until both have completed.
async fn both<A, B>(a: impl Future<Output = A>, b: impl Future<Output = B>) -> (A, B) {
    let (mut a, mut b) = (pin!(a), pin!(b));
    let (mut first, mut second) = (None, None);
    poll_fn(|cx| {
        if first.is_none()
            && let Poll::Ready(value) = a.as_mut().poll(cx)
        {
            first = Some(value);
        }
        if second.is_none()
            && let Poll::Ready(value) = b.as_mut().poll(cx)
        {
            second = Some(value);
        }
        if first.is_some() && second.is_some() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    (first.unwrap(), second.unwrap())
}

#[test]
fn a_writes_data_is_taken_where_it_lies() {
    rt::block_on(async |_| {
        let (mut server, mut client) = joined(64).await;
        let asked = twrite(1, &some(5000));
        send(&mut client, &asked, usize::MAX).await;
        assert_eq!(receive(&mut server, 23, 4096).await, asked[..23]);
        assert!(server.take_placed(4999).is_none(), "all of it or nothing");
        let data = server.take_placed(5000).unwrap();
        assert_eq!((data.to_vec(9999), data.to_vec(3)), (some(5000), some(3)));
        assert!(server.take_placed(5000).is_none());
        send(&mut client, &message(120, 2, &[0; 4]), usize::MAX).await;
        assert_eq!(receive(&mut server, 11, 4096).await, message(120, 2, &[0; 4]));
    })
    .unwrap();
}

#[test]
fn a_file_goes_from_the_page_cache_into_the_room_for_it() {
    let file: OwnedFd = rustix::fs::memfd_create("file", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::io::pwrite(&file, &some(20_000), 0).unwrap();
    rt::block_on(async |_| {
        // Pages of the arena, bytes of the read, bytes of the file from its offset on.
        for (pages, len, rest) in [(64, 20_000, 20_000), (64, 300, 300), (0, 20_000, 20_000)]
            .into_iter()
            .chain([19_999, 300, 1, 0].map(|rest| (64, 20_000, rest)))
        {
            rustix::fs::ftruncate(&file, rest).unwrap();
            let (mut server, mut client) = joined(pages).await;
            send(&mut client, &tread(7, 20_000), usize::MAX).await;
            receive(&mut server, 23, 4096).await;
            let head: [u8; 11] = rread(7, &some(len))[..11].try_into().unwrap();
            let answer = rread(7, &some(rest as usize));
            let sending = async {
                let read =
                    poll_fn(|cx| server.poll_read_placed(cx, &head, file.as_fd(), 0, len)).await.unwrap();
                let has_room = pages > 0 && len >= super::SMALL;
                assert_eq!(read, has_room.then_some(rest as usize));
                if !has_room {
                    send(&mut server, &answer, usize::MAX).await;
                }
                poll_fn(|cx| server.poll_flush(cx)).await.unwrap();
            };
            let (_, came) = both(sending, receive(&mut client, answer.len(), 65_536)).await;
            assert!(came == answer, "{pages} pages, {rest} bytes");
            rustix::io::pwrite(&file, &some(20_000), 0).unwrap();
        }
    })
    .unwrap();
}

#[test]
fn pages_are_the_clients_again_with_the_answer_whatever_it_is() {
    rt::block_on(async |_| {
        // Room for one request at a time: if the first range were lost, a second request would go through the ring.
        let (mut server, mut client) = joined(2).await;
        let answers: [fn(u16) -> Vec<u8>; 5] = [
            |tag| rread(tag, &some(8192)),
            |tag| rread(tag, &some(1)),
            |tag| message(7, tag, &[5, 0, 0, 0]),
            |tag| message(109, tag + 1, &[]),
            |tag| message(101, tag, &[0, 0, 4, 0, 0, 0]),
        ];
        for round in 0..50u16 {
            let tag = 10 * round;
            let mut asked = tread(tag, 8192);
            let answer = answers[usize::from(round) % 5](tag);
            if answer[4] == 109 {
                asked.extend(message(108, tag + 1, &tag.to_le_bytes()));
            }
            send(&mut client, &asked, usize::MAX).await;
            receive(&mut server, asked.len(), 4096).await;
            send(&mut server, &answer, usize::MAX).await;
            assert!(receive(&mut client, answer.len(), 4096).await == answer);
            // The path that a write of the same size takes shows whether there is room.
            let probe = twrite(tag + 5, &some(8192));
            let (_, head) = both(send(&mut client, &probe, usize::MAX), receive(&mut server, 23, 23)).await;
            assert_eq!(head, probe[..23]);
            assert!(server.take_placed(8192).is_some(), "round {round}");
            send(&mut server, &message(119, tag + 5, &[0; 4]), usize::MAX).await;
            receive(&mut client, 11, 4096).await;
        }
    })
    .unwrap();
}

#[test]
fn the_room_of_a_tag_is_not_that_of_its_next_request() {
    rt::block_on(async |_| {
        let (mut server, mut guest, _kept) = by_hand(4).await;
        let room = Note::Room(Place { at: 0, count: 8192 });
        assert!(guest.put(&tread(3, 8192), room).unwrap());
        assert!(guest.put(&tread(3, 8192), Note::None).unwrap());
        receive(&mut server, 46, 4096).await;
        send(&mut server, &rread(3, &some(600)), usize::MAX).await;
        let mut bytes = [0; MOST];
        let piece = guest.take(&mut bytes).unwrap().unwrap();
        assert_eq!((piece.note, piece.len), (Note::None, 611));
    })
    .unwrap();
}

#[test]
fn rooms_of_reads_that_were_taken_back_are_not_kept_without_end() {
    rt::block_on(async |_| {
        let (mut server, mut guest, _kept) = by_hand(4).await;
        let room = Note::Room(Place { at: 0, count: 8192 });
        for tag in 0..2 * ROOMS as u16 {
            assert!(guest.put(&tread(tag, 8192), room).unwrap());
            receive(&mut server, 23, 4096).await;
            assert!(server.held() <= ROOMS * size_of::<(u16, Place)>());
        }
        // A request above the limit is still answered, through the ring. After an answer there is room again.
        let mut bytes = [0; MOST];
        for (tag, there) in [(2 * ROOMS as u16 - 1, false), (0, true), (2 * ROOMS as u16, true)] {
            assert!(tag != 2 * ROOMS as u16 || guest.put(&tread(tag, 8192), room).unwrap());
            if tag == 2 * ROOMS as u16 {
                receive(&mut server, 23, 4096).await;
            }
            send(&mut server, &rread(tag, &some(600)), usize::MAX).await;
            let came = guest.take(&mut bytes).unwrap().unwrap();
            assert_eq!(came.note, if there { Note::Data(Place { at: 0, count: 600 }) } else { Note::None });
            assert_eq!(came.len, if there { 11 } else { 611 });
        }
    })
    .unwrap();
}

#[test]
fn a_server_that_answers_elsewhere_ends_the_connection() {
    rt::block_on(async |_| {
        for (at, count) in [(4096, 512), (0, 8193), (8192, 100)] {
            let (mut channel, guest) = ends(4).await;
            let mut client = Asking::new(guest);
            send(&mut client, &tread(3, 8192), usize::MAX).await;
            let mut bytes = [0; MOST];
            let piece = poll_fn(|cx| channel.poll_take(cx, &mut bytes)).await.unwrap().unwrap();
            assert_eq!(piece.note, Note::Room(Place { at: 0, count: 8192 }));
            let head = &rread(3, &vec![0; count as usize])[..11];
            let note = Note::Data(Place { at, count });
            poll_fn(|cx| channel.poll_put(cx, head, note)).await.unwrap();
            let mut buf = [0; 100];
            let read = poll_fn(|cx| client.poll_read(cx, &mut buf)).await;
            assert!(read.unwrap_err().to_string().contains("was not given"), "{at} {count}");
        }
    })
    .unwrap();
}

#[test]
fn whatever_a_guest_writes_is_bytes_an_end_or_an_error() {
    let mut seed = 88172645463325252u64;
    let mut chance = move |below: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed % below
    };
    let mut seen = [0; 3];
    rt::block_on(async |_| {
        for _ in 0..300 {
            let (mut server, mut guest, passed) = by_hand(4).await;
            let memory = linux::map(&passed.memory).unwrap();
            for _ in 0..40 {
                let bytes = match chance(4) {
                    0 => tread(chance(3) as u16, chance(20_000) as u32),
                    1 => twrite(chance(3) as u16, &some(chance(100) as usize)),
                    2 => some(chance(40) as usize),
                    _ => twrite(1, &some(5000))[..23].to_vec(),
                };
                let place = Place { at: chance(17_000) as u32, count: chance(17_000) as u32 };
                let note = [Note::None, Note::Data(place), Note::Room(place)][chance(3) as usize];
                if guest.put(&bytes, note).is_err() {
                    break;
                }
                if chance(20) == 0 {
                    let words = [128, 132, 136, 192, 196, 256, 384, 448, 4 * chance(4096) as usize];
                    let value = [0, 1, 2, chance(1 << 32) as u32][chance(4) as usize];
                    memory.write(words[chance(9) as usize], &value.to_le_bytes());
                }
                let mut buf = vec![0; 1 + chance(9000) as usize];
                let mut cx = Context::from_waker(Waker::noop());
                for _ in 0..chance(5) {
                    match server.poll_read(&mut cx, &mut buf) {
                        Poll::Ready(Ok(n)) => seen[usize::from(n == 0)] += 1,
                        Poll::Ready(Err(_)) => seen[2] += 1,
                        Poll::Pending => {}
                    }
                    drop(server.take_placed(chance(5000) as usize));
                }
                let answer = rread(chance(3) as u16, &some(chance(9000) as usize));
                let mut left = &answer[..];
                while let Poll::Ready(Ok(n)) = server.poll_write(&mut cx, &[IoSlice::new(left)]) {
                    left = &left[n..];
                    if left.is_empty() {
                        break;
                    }
                }
                if !left.is_empty() {
                    break;
                }
                let _ = server.poll_flush(&mut cx);
            }
        }
    })
    .unwrap();
    assert!(seen.iter().all(|&n| n > 0), "{seen:?}");
}

#[test]
fn a_guest_that_has_gone_is_an_end_behind_what_it_said_and_a_writer_learns_of_it() {
    rt::block_on(async |_| {
        let (mut server, mut guest, passed) = by_hand(0).await;
        assert!(guest.put(b"last words", Note::None).unwrap());
        drop(passed);
        poll_fn(|cx| server.poll_hangup(cx)).await;
        assert_eq!(receive(&mut server, 10, 4096).await, b"last words");
        let mut buf = [0; 100];
        assert_eq!(poll_fn(|cx| server.poll_read(cx, &mut buf)).await.unwrap(), 0);
        let full = async {
            loop {
                let answer = message(105, 1, &some(900));
                poll_fn(|cx| server.poll_write(cx, &[IoSlice::new(&answer)])).await?;
                poll_fn(|cx| server.poll_flush(cx)).await?;
            }
        };
        let error: std::io::Result<()> = full.await;
        assert_eq!(error.unwrap_err().kind(), std::io::ErrorKind::BrokenPipe);
    })
    .unwrap();
}

#[test]
fn an_end_in_good_order_is_read_as_one_by_either_side() {
    rt::block_on(async |_| {
        let (mut server, mut client) = joined(2).await;
        send(&mut client, &message(120, 1, &[0; 4]), usize::MAX).await;
        poll_fn(|cx| client.poll_close(cx)).await.unwrap();
        assert_eq!(receive(&mut server, 11, 4096).await.len(), 11);
        let mut buf = [0; 100];
        assert_eq!(poll_fn(|cx| server.poll_read(cx, &mut buf)).await.unwrap(), 0);
        drop(server);
        assert_eq!(poll_fn(|cx| client.poll_read(cx, &mut buf)).await.unwrap(), 0);
    })
    .unwrap();
}

#[test]
fn nothing_comes_behind_an_end_or_a_fault() {
    rt::block_on(async |_| {
        let mut buf = [0; 100];
        let (mut server, mut guest, _kept) = by_hand(0).await;
        assert!(guest.put(b"last words", Note::None).unwrap());
        guest.end();
        assert_eq!(receive(&mut server, 10, 4096).await, b"last words");
        assert_eq!(poll_fn(|cx| server.poll_read(cx, &mut buf)).await.unwrap(), 0);
        assert!(guest.put(b"and more", Note::None).unwrap());
        assert_eq!(poll_fn(|cx| server.poll_read(cx, &mut buf)).await.unwrap(), 0);

        let (mut server, mut guest, passed) = by_hand(0).await;
        let memory = linux::map(&passed.memory).unwrap();
        assert!(guest.put(b"a piece", Note::None).unwrap());
        // For a moment, unknown flags of its first line.
        memory.write(4096 + 6, &[3]);
        let broken = poll_fn(|cx| server.poll_read(cx, &mut buf)).await;
        assert_eq!(broken.unwrap_err().kind(), std::io::ErrorKind::InvalidData);
        memory.write(4096 + 6, &[0]);
        assert_eq!(poll_fn(|cx| server.poll_read(cx, &mut buf)).await.unwrap(), 0);
    })
    .unwrap();
}

/// A peer that writes empty pieces as fast as they are read must not monopolize the reader's core, however large the
/// reader's buffer.
#[test]
fn pieces_of_nothing_leave_a_turn_to_others() {
    rt::block_on(async |_| {
        let mut cx = Context::from_waker(Waker::noop());
        let data = rread(1, b"something");
        let pieces = [&[][..], &[], &data];
        for len in [100, MOST, 65_536] {
            let mut buf = vec![0; len];
            let (mut host, guest) = ends(4).await;
            let mut client = Asking::new(guest);
            for piece in pieces {
                assert!(host.poll_put(&mut cx, piece, Note::None).is_ready());
            }
            host.settle();
            assert!(client.poll_read(&mut cx, &mut buf).is_pending());
            assert!(client.poll_read(&mut cx, &mut buf).is_pending());
            assert!(matches!(client.poll_read(&mut cx, &mut buf), Poll::Ready(Ok(n)) if buf[..n] == data));

            let (mut server, mut guest, _kept) = by_hand(4).await;
            for piece in pieces {
                assert!(guest.put(piece, Note::None).unwrap());
            }
            assert!(server.poll_read(&mut cx, &mut buf).is_pending());
            assert!(server.poll_read(&mut cx, &mut buf).is_pending());
            assert!(matches!(server.poll_read(&mut cx, &mut buf), Poll::Ready(Ok(n)) if buf[..n] == data));
        }
    })
    .unwrap();
}
