//! Tests the target without a network: frames in, frames out, a disk in memory behind it.

use super::*;
use crate::frame::{Edit, Mask, Reserve};
use nine_block::{Ram, Shape};

const DISK: Address = Address { shelf: 1, slot: 2 };
const ME: Interface = Interface { mac: Mac([2, 0, 0, 0, 0, 1]), mtu: 1500 };
const A: Mac = Mac([2, 0, 0, 0, 0, 2]);
const B: Mac = Mac([2, 0, 0, 0, 0, 3]);

fn target(setup: Setup) -> Target {
    let mut target = Target::new(setup, Arc::new(Ram::new(1000)), vec![ME]);
    assert_eq!(target.transmit().map(|out| out.to), Some(EVERYBODY));
    target
}

fn setup() -> Setup {
    Setup::new(DISK, "serial")
}

/// Returns the header and body of the only answer.
fn ask(target: &mut Target, from: Mac, tag: u32, code: u8, body: &[u8]) -> Option<(Header, Vec<u8>)> {
    target.receive(0, from, &Header::ask(DISK, code, tag).with(body));
    let out = target.transmit()?;
    assert_eq!((out.port, out.to, target.transmit()), (0, from, None));
    let bytes = [&out.head[..], &out.data].concat();
    let (header, body) = Header::parse(&bytes).expect("long enough");
    assert!(header.response && header.version == 1 && header.address == DISK && header.tag == tag);
    assert_eq!(header.command, code);
    Some((header, body.to_vec()))
}

fn ask_ata(target: &mut Target, from: Mac, tag: u32, ata: Ata, data: &[u8]) -> (Option<u8>, Ata, Vec<u8>) {
    let body = [&ata.bytes()[..], data].concat();
    let (header, body) = ask(target, from, tag, command::ATA, &body).expect("an answer");
    let (ata, data) = Ata::parse(&body).expect("long enough");
    (header.error, ata, data.to_vec())
}

#[test]
fn it_says_to_everybody_that_it_is_there_and_answers_those_who_ask_all() {
    let mut target = Target::new(setup(), Arc::new(Ram::new(1000)), vec![ME]);
    let hello = target.transmit().expect("the first words");
    let bytes = [0x18, 0, 0, 1, 2, 1, 0, 0, 0, 0, 0, 64, 0x90, 1, 2, 0x10, 0, 0];
    assert_eq!((hello.to, &hello.head[..]), (EVERYBODY, &bytes[..]));
    for (address, answers) in [(Address::ALL, true), (Address { slot: 3, ..DISK }, false)] {
        target.receive(0, A, &Header::ask(address, command::CONFIG, 7).with(&Config::ask(0, b"").bytes()));
        assert_eq!(target.transmit().map(|out| (out.to, out.head[..5].to_vec())).is_some(), answers);
    }
    // Answers are not answered.
    target.receive(0, A, &hello.head);
    assert_eq!(target.transmit(), None);
}

#[test]
fn config_strings_are_read_tested_and_set_and_a_failed_test_is_not_answered() {
    let mut target = target(setup());
    let mut go = |what: u8, string: &[u8]| {
        let (header, body) = ask(&mut target, A, 9, command::CONFIG, &Config::ask(what, string).bytes())?;
        let config = Config::parse(&body).expect("long enough");
        Some((header.error, String::from_utf8(config.string.to_vec()).expect("text")))
    };
    let is = |text: &str| Some((None, text.to_string()));
    assert_eq!(go(config::READ, b""), is(""));
    assert_eq!(go(config::SET_EMPTY, b"lun"), is("lun"));
    assert_eq!(go(config::SET_EMPTY, b"lun"), is("lun"));
    assert_eq!(go(config::SET_EMPTY, b"other"), Some((Some(error::PRESENT), "lun".into())));
    assert_eq!((go(config::IS, b"lun"), go(config::IS, b"lu")), (is("lun"), None));
    assert_eq!((go(config::BEGINS, b"lu"), go(config::BEGINS, b"un")), (is("lun"), None));
    assert_eq!(go(config::SET, b"other"), is("other"));
    assert_eq!(go(9, b""), Some((Some(error::ARGUMENT), "other".into())));
}

#[test]
fn what_is_written_is_read_in_both_lengths_of_lba() {
    let mut target = target(setup());
    for (n, ext) in [(0, true), (1, false)] {
        let (read, write) = if ext { (ata::READ_EXT, ata::WRITE_EXT) } else { (ata::READ, ata::WRITE) };
        let data = vec![n as u8 + 1; 1024];
        let put = Ata::new(write, 998, 2, ext, true);
        let (error, answer, _) = ask_ata(&mut target, A, n, put, &data);
        assert_eq!((error, answer), (None, Ata { count: 0, command: ata::READY, ..put }));
        let (error, answer, came) = ask_ata(&mut target, A, n + 10, Ata::new(read, 998, 2, ext, false), &[]);
        assert!(error.is_none() && answer.command & ata::BAD == 0 && came == data);
        let (error, answer, came) = ask_ata(&mut target, A, n + 20, Ata::new(read, 999, 2, ext, false), &[]);
        assert_eq!((error, answer.feature, answer.command & ata::BAD), (None, ata::NO_SECTOR, ata::ERR));
        assert!(came.is_empty());
    }
    assert_eq!((target.counts().read, target.counts().written), (4, 4));
}

#[test]
fn what_does_not_fit_or_is_unknown_is_refused_with_the_right_error() {
    let mut target = target(setup());
    let bad = [
        (Ata::new(ata::READ, 0, 3, false, false), 0),
        (Ata::new(ata::READ, 0, 0, false, false), 0),
        (Ata::new(ata::WRITE, 0, 2, false, true), 1023),
    ];
    for (ata, len) in bad {
        assert_eq!(ask_ata(&mut target, A, 1, ata, &vec![0; len]).0, Some(error::ARGUMENT), "{ata:?}");
    }
    let (error, answer, _) = ask_ata(&mut target, A, 1, Ata::new(0x99, 0, 0, false, false), &[]);
    assert_eq!((error, answer.feature, answer.command & ata::BAD), (None, ata::ABORTED, ata::ERR));
    let (_, power, _) = ask_ata(&mut target, A, 1, Ata::new(ata::CHECK_POWER, 0, 0, false, false), &[]);
    assert_eq!((power.count, power.command & ata::BAD), (0xff, 0));
    for (code, body, error) in [
        (9, &b""[..], error::COMMAND),
        (command::CONFIG, &[0; 7], error::ARGUMENT),
        (command::CONFIG, &[0, 0, 0, 0, 0, 0, 0, 9, 1], error::ARGUMENT),
        (command::MASK, &[0, 1, 0, 2, 0, 1, 1, 2, 3, 4, 5, 6], error::ARGUMENT),
        (command::RESERVE, &[1, 1, 0], error::ARGUMENT),
        (command::ATA, &[0; 11], error::ARGUMENT),
    ] {
        let (header, _) = ask(&mut target, A, 3, code, body).expect("an answer");
        assert_eq!(header.error, Some(error), "{code} {body:?}");
    }
    target.receive(0, A, &[0x20, 0, 0, 1, 2, 1, 0, 0, 0, 0]);
    assert_eq!(target.transmit().map(|out| out.head[1]), Some(error::VERSION));
    target.receive(0, A, &[0x10; 9]);
    assert_eq!((target.transmit(), target.counts().malformed), (None, 1));
}

#[test]
fn identify_tells_the_disk_and_its_size() {
    let mut target = target(setup());
    let (_, _, data) = ask_ata(&mut target, A, 1, Ata::new(ata::IDENTIFY, 0, 1, false, false), &[]);
    let disk = Identify::parse(&data).expect("long enough");
    assert_eq!((disk.serial.as_str(), disk.sectors, disk.long), ("serial", 1000, true));
    assert!(disk.flush && !disk.flush_ext, "memory is not durable");
    assert_eq!(disk.model, "Ninefold ram1000");
}

#[test]
fn a_mask_silences_others_and_is_edited_whole_or_not_at_all() {
    let mut target = target(Setup { mask: vec![A], ..setup() });
    let read = Config::ask(config::READ, b"").bytes();
    assert!(ask(&mut target, B, 1, command::CONFIG, &read).is_none());
    let mut edit = |edits: Vec<Edit>| {
        let body = Mask { what: 1, error: 0, edits }.bytes();
        let (_, body) = ask(&mut target, A, 1, command::MASK, &body).expect("an answer");
        let answer = Mask::parse(&body).expect("long enough");
        (answer.error, answer.edits.len())
    };
    assert_eq!(edit(vec![Edit::Add(B), Edit::Bad]), (2, 1));
    let many = (0..255).map(|n| Edit::Add(Mac([9, 9, 9, 9, 9, n]))).collect();
    assert_eq!(edit(many), (3, 1));
    assert_eq!(edit(vec![Edit::Add(B), Edit::Add(B), Edit::Nothing]), (0, 2));
    assert!(ask(&mut target, B, 1, command::CONFIG, &read).is_some());
    assert_eq!(target.counts().masked, 1);
}

#[test]
fn who_has_reserved_it_has_it_alone_but_for_identify_and_force() {
    let mut target = target(setup());
    let reserve = |target: &mut Target, from, what, macs: &[Mac]| {
        let body = Reserve { what, macs: macs.to_vec() }.bytes();
        let (header, body) = ask(target, from, 1, command::RESERVE, &body).expect("an answer");
        (header.error, Reserve::parse(&body).map(|answer| answer.macs))
    };
    let read = Ata::new(ata::READ, 0, 1, false, false);
    assert_eq!(reserve(&mut target, A, 1, &[A]), (None, Some(vec![A])));
    assert_eq!(ask_ata(&mut target, B, 2, read, &[]).0, Some(error::RESERVED));
    assert_eq!(ask_ata(&mut target, B, 3, Ata::new(ata::IDENTIFY, 0, 1, false, false), &[]).0, None);
    assert_eq!(reserve(&mut target, B, 1, &[B]).0, Some(error::RESERVED));
    assert_eq!(reserve(&mut target, B, 0, &[]), (None, Some(vec![A])));
    assert_eq!(reserve(&mut target, B, 2, &[B]), (None, Some(vec![B])));
    assert_eq!(ask_ata(&mut target, A, 4, read, &[]).0, Some(error::RESERVED));
    assert_eq!(reserve(&mut target, B, 1, &[]), (None, Some(vec![])));
    assert_eq!(ask_ata(&mut target, A, 5, read, &[]).0, None);
}

#[test]
fn what_is_not_written_aborts_writes() {
    let mut target = target(Setup { read_only: true, ..setup() });
    let (_, answer, _) = ask_ata(&mut target, A, 1, Ata::new(ata::WRITE, 0, 1, false, true), &[1; 512]);
    assert_eq!((answer.feature, answer.command & ata::BAD), (ata::ABORTED, ata::ERR));
}

/// A disk that completes operations only when the test does.
#[derive(Default)]
struct Slow(Mutex<Vec<Io>>);

impl Device for Slow {
    fn shape(&self) -> Shape {
        Shape { sectors: 1000, atom: 1, most: 8, read_only: false, durable: true }
    }

    fn submit(&self, io: Io) {
        lock(&self.0).push(io);
    }

    fn name(&self) -> String {
        "slow".into()
    }
}

#[test]
fn answers_leave_when_the_device_is_done_and_no_more_are_in_hand_than_is_said() {
    let slow = Arc::new(Slow::default());
    let mut target = Target::new(Setup { frames: 2, ..setup() }, slow.clone(), vec![ME]);
    assert!(target.transmit().is_some());
    let write = |n: u64, tag| {
        let ata = Ata::new(ata::WRITE_EXT, n, 1, true, true).bytes();
        Header::ask(DISK, command::ATA, tag).with(&[&ata[..], &[n as u8; 512]].concat())
    };
    target.receive(0, A, &write(1, 1));
    target.receive(0, A, &write(1, 1));
    assert_eq!((target.transmit(), target.counts().repeated, lock(&slow.0).len()), (None, 1, 1));
    // The same tag from another client is another request.
    target.receive(0, B, &write(5, 1));
    target.receive(0, A, &write(2, 2));
    assert_eq!((target.transmit(), target.counts().dropped, lock(&slow.0).len()), (None, 1, 2));
    let ios = std::mem::take(&mut *lock(&slow.0));
    ios.into_iter().rev().for_each(|io| io.end(Ok(Bytes::new())));
    assert_eq!([target.transmit(), target.transmit()].map(|out| out.map(|out| out.to)), [Some(B), Some(A)]);
    // A repeated write is answered again but not executed again: later writes may have followed.
    target.receive(0, A, &write(1, 1));
    assert_eq!(target.transmit().map(|out| (out.to, out.head[13])), Some((A, ata::READY)));
    assert_eq!((lock(&slow.0).len(), target.counts().repeated), (0, 2));
    // The same tag with other data is another write.
    target.receive(0, A, &write(3, 1));
    assert_eq!((target.transmit(), lock(&slow.0).len()), (None, 1));
    lock(&slow.0).pop().into_iter().for_each(|io| io.fail(Kind::Failed, "broken"));
    let out = target.transmit().expect("an answer");
    assert_eq!((out.head[11], out.head[13] & ata::BAD), (ata::ABORTED, ata::ERR));
    target.receive(0, A, &write(3, 1));
    assert_eq!((target.transmit(), lock(&slow.0).len()), (None, 1), "what failed is tried again");
}

/// Takes the disk's pending operations.
fn given(slow: &Slow) -> Vec<Io> {
    std::mem::take(&mut *lock(&slow.0))
}

fn sectors(code: u8, at: u64, count: u8, fill: u8, tag: u32) -> Vec<u8> {
    let writes = code == ata::WRITE_EXT;
    let body = Ata::new(code, at, count, true, writes).bytes();
    let data = vec![fill; if writes { usize::from(count) * 512 } else { 0 }];
    Header::ask(DISK, command::ATA, tag).with(&[&body[..], &data].concat())
}

#[test]
fn what_comes_in_a_row_is_one_operation_and_each_has_its_own_answer() {
    let slow = Arc::new(Slow::default());
    let mut target = Target::new(setup(), slow.clone(), vec![ME]);
    assert!(target.transmit().is_some());
    for tag in 0..4u32 {
        target.receive(0, A, &sectors(ata::READ_EXT, 10 + 2 * u64::from(tag), 2, 0, tag));
    }
    target.receive(0, A, &sectors(ata::WRITE_EXT, 40, 1, 7, 8));
    target.receive(0, A, &sectors(ata::WRITE_EXT, 41, 2, 8, 9));
    assert_eq!(target.transmit(), None);
    let mut ios = given(&slow);
    assert_eq!(format!("{ios:?}"), "[Read 10+8, Write 40+3]");
    let write = ios.pop().expect("two");
    assert!(write.data[..512] == [7; 512] && write.data[512..] == [8; 1024]);
    let data: Vec<u8> = (0..8u8).flat_map(|n| [n; 512]).collect();
    ios.pop().expect("one").end(Ok(data.clone().into()));
    for tag in 0..4usize {
        let out = target.transmit().expect("an answer");
        assert_eq!((usize::from(out.head[9]), &out.data[..]), (tag, &data[tag * 1024..][..1024]));
    }
    // The joined operation fails. Each request is then submitted alone, and only the bad one fails.
    write.fail(Kind::Failed, "one is bad");
    assert_eq!(target.transmit(), None);
    let ios = given(&slow);
    assert_eq!(format!("{ios:?}"), "[Write 40+1, Write 41+2]");
    assert!(ios[1].data == vec![8; 1024]);
    for (n, io) in ios.into_iter().enumerate() {
        io.end(if n == 0 { Ok(Bytes::new()) } else { Err(Error::new(Kind::Failed, "bad")) });
    }
    let status: Vec<u8> = (0..2).filter_map(|_| Some(target.transmit()?.head[13] & ata::BAD)).collect();
    assert_eq!((status, target.in_hand), (vec![0, ata::ERR], 0));
}

#[test]
fn writes_over_each_other_are_done_in_the_order_in_which_they_came() {
    let slow = Arc::new(Slow::default());
    let mut target = Target::new(setup(), slow.clone(), vec![ME]);
    assert!(target.transmit().is_some());
    for (tag, at, fill) in [(1, 10, 1), (2, 10, 1), (3, 11, 2), (4, 12, 3), (5, 30, 4)] {
        target.receive(0, A, &sectors(ata::WRITE_EXT, at, 2, fill, tag));
    }
    assert_eq!(target.transmit(), None);
    let mut order = Vec::new();
    loop {
        let ios = given(&slow);
        if ios.is_empty() {
            break;
        }
        order.push(format!("{ios:?}"));
        ios.into_iter().for_each(|io| io.end(Ok(Bytes::new())));
        while target.transmit().is_some() {}
    }
    assert_eq!(order, ["[Write 10+2, Write 30+2]", "[Write 10+2]", "[Write 11+2]", "[Write 12+2]"]);
    assert_eq!((target.in_hand, target.counts().answered), (0, 5));
}

#[test]
fn what_a_busy_disk_has_no_room_for_is_not_answered_and_may_come_again() {
    let slow = Arc::new(Slow::default());
    let mut target = Target::new(setup(), slow.clone(), vec![ME]);
    assert!(target.transmit().is_some());
    for _ in 0..2 {
        target.receive(0, A, &sectors(ata::WRITE_EXT, 10, 2, 1, 1));
        target.receive(0, A, &sectors(ata::WRITE_EXT, 12, 2, 1, 2));
        assert_eq!(target.transmit(), None);
        given(&slow).remove(0).fail(Kind::Busy, "no room");
        assert_eq!((target.transmit(), target.in_hand), (None, 0));
    }
    assert_eq!((target.counts().dropped, target.counts().repeated), (4, 0));
}

#[test]
fn flushes_behind_one_that_is_under_way_are_one() {
    let slow = Arc::new(Slow::default());
    let mut target = Target::new(setup(), slow.clone(), vec![ME]);
    assert!(target.transmit().is_some());
    for tag in 1..5 {
        target.receive(0, A, &sectors(ata::FLUSH_EXT, 0, 0, 0, tag));
        assert_eq!(target.transmit(), None);
    }
    let mut first = given(&slow);
    assert_eq!((first.len(), target.in_hand), (1, 4));
    first.remove(0).end(Ok(Bytes::new()));
    assert!(target.transmit().is_some_and(|out| out.head[9] == 1) && target.transmit().is_none());
    let mut second = given(&slow);
    assert_eq!(second.len(), 1);
    second.remove(0).fail(Kind::Failed, "broken");
    let tags: Vec<u8> = std::iter::from_fn(|| target.transmit()).map(|out| out.head[9]).collect();
    assert_eq!((tags, target.in_hand), (vec![2, 3, 4], 0));
}

#[test]
fn a_reservation_is_said_when_nothing_of_others_is_in_hand() {
    let slow = Arc::new(Slow::default());
    let mut target = Target::new(setup(), slow.clone(), vec![ME]);
    assert!(target.transmit().is_some());
    target.receive(0, B, &sectors(ata::WRITE_EXT, 10, 1, 1, 1));
    let force = Header::ask(DISK, command::RESERVE, 2).with(&Reserve { what: 2, macs: vec![A] }.bytes());
    target.receive(0, A, &force);
    assert_eq!(target.transmit(), None);
    target.receive(0, B, &sectors(ata::WRITE_EXT, 20, 1, 1, 2));
    assert_eq!(target.transmit().map(|out| out.head[1]), Some(error::RESERVED));
    given(&slow).remove(0).end(Ok(Bytes::new()));
    assert!(target.transmit().is_some_and(|out| out.to == B));
    target.receive(0, A, &force);
    assert!(target.transmit().is_some_and(|out| out.to == A && out.head[0] == 0x18));
}

#[test]
fn a_flush_is_the_devices() {
    let slow = Arc::new(Slow::default());
    let mut target = Target::new(setup(), slow.clone(), vec![ME]);
    assert!(target.transmit().is_some());
    for (tag, code) in [(1, ata::FLUSH), (2, ata::FLUSH_EXT)] {
        let ata = Ata::new(code, 0, 0, true, false);
        target.receive(0, A, &Header::ask(DISK, command::ATA, tag).with(&ata.bytes()));
        assert_eq!(target.transmit(), None);
        let io = lock(&slow.0).pop().expect("submitted");
        assert_eq!(io.op, Op::Flush);
        match code {
            ata::FLUSH => io.end(Ok(Bytes::new())),
            _ => io.fail(Kind::Failed, "broken"),
        }
        let out = target.transmit().expect("an answer");
        assert_eq!(out.head[13] & ata::BAD == 0, code == ata::FLUSH);
    }
}
