//! Tests the initiator without a network: frames in, frames out, simulated time.

use std::sync::{Arc, Mutex};

use super::*;
use crate::frame::{Ata, Config, EVERYBODY, Header, Reserve, ata, command, config, error};

const MS: Duration = Duration::from_millis(1);
const DISK: Address = Address { shelf: 1, slot: 2 };
const ME: Interface = Interface { mac: Mac([2, 0, 0, 0, 0, 1]), mtu: 1500 };
const IT: Mac = Mac([2, 0, 0, 0, 0, 2]);

type Over = Arc<Mutex<Vec<Result<Bytes>>>>;

fn vblade() -> Identify {
    Identify {
        serial: "1.2:host".into(),
        firmware: "V25".into(),
        model: "EtherDrive vblade".into(),
        sectors: 1000,
        long: true,
        flush: true,
        flush_ext: false,
        boot: 0,
    }
}

/// Returns the next sent frame, in parts.
fn sent(it: &mut Initiator, now: Duration) -> (Header, Ata, Vec<u8>) {
    let out = it.transmit(now).expect("a frame leaves");
    assert_eq!((out.port, out.to), (0, IT));
    let (header, body) = Header::parse(&out.head).expect("a header");
    let (ata, _) = Ata::parse(body).expect("ata");
    assert!(header.tag >> 31 == 1 && header.address == DISK && !header.response && header.version == 1);
    (header, ata, out.data.to_vec())
}

fn answers(it: &mut Initiator, now: Duration, header: &Header, ata: Ata, data: &[u8]) {
    let body = [&ata.bytes()[..], data].concat();
    it.receive(now, 0, IT, &header.answer(DISK, None).with(&body));
}

fn well(ata: Ata) -> Ata {
    Ata { count: 0, command: ata::READY, ..ata }
}

/// Returns an initiator that has connected to this target.
fn up(disk: &Identify) -> Initiator {
    let mut it = Initiator::new(Duration::ZERO, Setup::new(DISK, 7), vec![ME]);
    let query = it.transmit(Duration::ZERO).expect("a query");
    assert_eq!(query.to, EVERYBODY);
    let (header, _) = Header::parse(&query.head).expect("a header");
    let config = Config { buffers: 16, firmware: 0x4019, sectors: 2, what: config::READ, string: b"" };
    it.receive(MS, 0, IT, &header.answer(DISK, None).with(&config.bytes()));
    let (header, ata, _) = sent(&mut it, MS);
    assert_eq!((ata.command, it.shape().sectors), (ata::IDENTIFY, 0));
    answers(&mut it, MS, &header, well(ata), &disk.bytes());
    assert_eq!((it.state(), it.shape().sectors), (&State::Up, disk.sectors));
    assert_eq!(it.transmit(MS), None);
    it
}

fn submit(it: &mut Initiator, now: Duration, io: impl FnOnce(nine_block::Done) -> Io) -> Over {
    let over = Over::default();
    let told = over.clone();
    it.submit(now, io(Box::new(move |result| told.lock().expect("no panic").push(result))));
    over
}

fn ends(it: &mut Initiator, over: &Over) -> Option<std::result::Result<Bytes, Kind>> {
    std::iter::from_fn(|| it.ended()).for_each(Ended::tell);
    over.lock().expect("no panic").pop().map(|result| result.map_err(|error| error.kind))
}

#[test]
fn a_read_is_cut_to_frames_and_put_together_in_any_order() {
    let mut it = up(&vblade());
    let over = submit(&mut it, MS, |done| Io::read(10, 5, done));
    let frames: Vec<_> = (0..3).map(|_| sent(&mut it, MS)).collect();
    assert_eq!(it.transmit(MS), None);
    let asked: Vec<_> = frames.iter().map(|(_, ata, _)| (ata.command, ata.sector(), ata.count)).collect();
    assert_eq!(asked, [(0x24, 10, 2), (0x24, 12, 2), (0x24, 14, 1)]);
    for (header, ata, _) in frames.iter().rev() {
        assert_eq!(ends(&mut it, &over), None);
        let data: Vec<u8> = (0..u64::from(ata.count)).flat_map(|n| [(ata.sector() + n) as u8; 512]).collect();
        answers(&mut it, 2 * MS, header, well(*ata), &data);
    }
    let data: Vec<u8> = (10..15).flat_map(|n| [n; 512]).collect();
    assert_eq!(ends(&mut it, &over), Some(Ok(data.into())));
}

#[test]
fn what_does_not_fit_the_question_is_not_taken_and_a_runt_is_asked_again() {
    let mut it = up(&vblade());
    let over = submit(&mut it, MS, |done| Io::read(10, 1, done));
    let (header, ata, _) = sent(&mut it, MS);
    let good = header.answer(DISK, None).with(&[&well(ata).bytes()[..], &[1; 512]].concat());
    // From an unknown address; then with another tag, sector, length, direction, command, target.
    it.receive(MS, 0, Mac([9; 6]), &good);
    answers(&mut it, MS, &Header { tag: header.tag ^ 1, ..header }, well(ata), &[2; 512]);
    answers(&mut it, MS, &header, well(Ata { lba: 17, ..ata }), &[3; 512]);
    answers(&mut it, MS, &header, well(ata), &[4; 1024]);
    answers(&mut it, MS, &header, well(Ata { flags: ata.flags | ata::WRITES, ..ata }), &[5; 512]);
    answers(&mut it, MS, &Header { command: command::RESERVE, ..header }, well(ata), &[6; 512]);
    it.receive(MS, 0, IT, &Header { address: Address { slot: 9, ..DISK }, ..header }.with(&good[10..]));
    it.receive(MS, 0, IT, &good[..9]);
    assert_eq!((ends(&mut it, &over), it.transmit(MS)), (None, None));
    let Counts { foreign, unexpected, malformed, .. } = it.counts();
    assert_eq!((foreign, unexpected, malformed), (5, 1, 1));
    // Fewer bytes than requested.
    answers(&mut it, MS, &header, well(ata), &[7; 511]);
    let (again, ata, _) = sent(&mut it, MS);
    assert!(again.tag != header.tag && it.counts().runts == 1);
    answers(&mut it, MS, &again, well(Ata { lba: ata.lba + 1, ..ata }), &[8; 512]);
    assert_eq!(
        ends(&mut it, &over),
        Some(Ok(Bytes::from_static(&[8; 512]))),
        "behind the last sector is right, too"
    );
}

#[test]
fn what_is_lost_is_sent_again_with_another_tag_and_the_first_answer_is_late() {
    let mut it = up(&vblade());
    let over = submit(&mut it, MS, |done| Io::write(10, Bytes::from_static(&[1; 512]), done));
    let (first, ata, data) = sent(&mut it, MS);
    assert_eq!((ata.command, data), (ata::WRITE_EXT, vec![1; 512]));
    let later = it.deadline();
    let (second, ..) = sent(&mut it, later);
    assert!(first.tag != second.tag);
    answers(&mut it, later, &first, well(ata), &[]);
    assert_eq!((ends(&mut it, &over), it.counts().late), (None, 1));
    answers(&mut it, later, &second, well(ata), &[]);
    assert_eq!(ends(&mut it, &over), Some(Ok(Bytes::new())));
    answers(&mut it, later, &second, well(ata), &[]);
    assert_eq!(it.counts().unexpected, 1);
}

#[test]
fn a_write_over_one_whose_copy_may_arrive_waits_for_it() {
    let mut it = up(&vblade());
    let over = submit(&mut it, MS, |done| Io::write(10, Bytes::from_static(&[1; 512]), done));
    let (first, ata, _) = sent(&mut it, MS);
    let later = it.deadline();
    let (second, ..) = sent(&mut it, later);
    answers(&mut it, later, &second, well(ata), &[]);
    assert!(ends(&mut it, &over).is_some());
    submit(&mut it, later, |done| Io::write(10, Bytes::from_static(&[2; 512]), done));
    assert_eq!((it.transmit(later), it.counts().held), (None, 1));
    submit(&mut it, later, |done| Io::write(11, Bytes::from_static(&[3; 512]), done));
    assert_eq!(sent(&mut it, later).1.sector(), 11);
    answers(&mut it, later, &first, well(ata), &[]);
    assert_eq!(sent(&mut it, later).1.sector(), 10);
}

#[test]
fn errors_have_their_kinds() {
    let status = |feature| Ata { feature, command: ata::READY | ata::ERR, ..Ata::new(0, 0, 0, true, false) };
    for (code, feature, kind) in [
        (Some(error::RESERVED), 0, Kind::Reserved),
        (Some(error::UNAVAILABLE), 0, Kind::Down),
        (Some(error::COMMAND), 0, Kind::Unsupported),
        (Some(error::ARGUMENT), 0, Kind::Failed),
        (None, ata::NO_SECTOR, Kind::Range),
        (None, ata::UNCORRECTABLE, Kind::Failed),
        (None, ata::ABORTED, Kind::Failed),
    ] {
        let mut it = up(&vblade());
        let over = submit(&mut it, MS, |done| Io::read(10, 1, done));
        let (header, ..) = sent(&mut it, MS);
        it.receive(MS, 0, IT, &header.answer(DISK, code).with(&status(feature).bytes()));
        assert_eq!(ends(&mut it, &over), Some(Err(kind)), "{code:?} {feature}");
    }
    let mut it = up(&vblade());
    let over = submit(&mut it, MS, |done| Io::read(999, 2, done));
    assert_eq!(ends(&mut it, &over), Some(Err(Kind::Range)));
}

#[test]
fn a_flush_is_what_the_disk_has_and_durable_only_where_it_says_so() {
    let flushes = |disk: Identify| {
        let mut it = up(&disk);
        let over = submit(&mut it, MS, |done| Io::other(Op::Flush, 0, 0, done));
        let asked = it.transmit(MS).map(|out| Header::parse(&out.head).expect("a header").1[3]);
        (it.shape().durable, asked, ends(&mut it, &over))
    };
    assert_eq!(flushes(vblade()), (false, Some(ata::FLUSH), None));
    assert_eq!(flushes(Identify { flush_ext: true, ..vblade() }), (true, Some(ata::FLUSH_EXT), None));
    assert_eq!(flushes(Identify { flush: false, ..vblade() }), (false, None, Some(Ok(Bytes::new()))));
    // A failed flush poisons.
    let mut it = up(&vblade());
    let over = submit(&mut it, MS, |done| Io::other(Op::Flush, 0, 0, done));
    let (header, ata, _) = sent(&mut it, MS);
    let aborted = Ata { feature: ata::ABORTED, command: ata::READY | ata::ERR, ..ata };
    answers(&mut it, MS, &header, aborted, &[]);
    assert_eq!(ends(&mut it, &over), Some(Err(Kind::Poisoned)));
}

#[test]
fn a_flush_behind_which_the_machine_has_started_anew_says_so_once() {
    let disk = Identify { flush_ext: true, boot: 1, ..vblade() };
    let mut it = up(&disk);
    for (boot, ends_with) in [(1, Ok(Bytes::new())), (2, Err(Kind::Poisoned)), (2, Ok(Bytes::new()))] {
        let wrote = submit(&mut it, MS, |done| Io::write(10, Bytes::from_static(&[1; 512]), done));
        let (header, ata, _) = sent(&mut it, MS);
        answers(&mut it, MS, &header, well(ata), &[]);
        assert!(ends(&mut it, &wrote).is_some());
        let over = submit(&mut it, MS, |done| Io::other(Op::Flush, 0, 0, done));
        let (header, ata, _) = sent(&mut it, MS);
        assert_eq!(ata.command, ata::FLUSH_EXT);
        answers(&mut it, MS, &header, well(ata), &[]);
        assert_eq!(ends(&mut it, &over), None);
        let (header, ata, _) = sent(&mut it, MS);
        assert_eq!(ata.command, ata::IDENTIFY);
        answers(&mut it, MS, &header, well(ata), &Identify { boot, ..disk.clone() }.bytes());
        assert_eq!(ends(&mut it, &over), Some(ends_with));
    }
}

#[test]
fn a_disk_of_short_addresses_is_asked_in_short_ones() {
    let mut it = up(&Identify { long: false, ..vblade() });
    submit(&mut it, MS, |done| Io::read(10, 1, done));
    let (_, ata, _) = sent(&mut it, MS);
    assert_eq!((ata.command, ata.flags, ata.lba), (ata::READ, 0, 0xe000_000a));
}

#[test]
fn no_more_is_under_way_than_the_target_queues() {
    let mut it = up(&vblade());
    submit(&mut it, MS, |done| Io::read(0, 1000, done));
    let under_way = std::iter::from_fn(|| it.transmit(MS)).count();
    assert!((1..=16).contains(&under_way), "{under_way}");
}

#[test]
fn a_question_of_lists_that_is_not_answered_ends() {
    let mut it = up(&vblade());
    let over = Arc::new(Mutex::new(None));
    let told = over.clone();
    let body = Reserve { what: 0, macs: vec![] }.bytes();
    let told = Box::new(move |result| *told.lock().expect("no panic") = Some(result));
    it.ask(MS, command::RESERVE, body, told);
    let mut now = MS;
    while over.lock().expect("no panic").is_none() {
        assert!(now < Duration::from_secs(3));
        while it.transmit(now).is_some() {}
        std::iter::from_fn(|| it.ended()).for_each(Ended::tell);
        now = it.deadline();
    }
    let result = over.lock().expect("no panic").take().expect("it is over");
    assert_eq!(result.expect_err("nobody answers").kind, Kind::Down);
}

/// Lets time pass up to `end`, while a target answers each ATA frame with `how`. Returns when and how the operation
/// ended.
fn passes(
    it: &mut Initiator,
    over: &Over,
    (from, end): (Duration, Duration),
    mut how: impl FnMut(&Header, Ata) -> Option<Vec<u8>>,
) -> Option<(Duration, std::result::Result<Bytes, Kind>)> {
    let mut now = from;
    while now < end {
        while let Some(out) = it.transmit(now) {
            let (header, body) = Header::parse(&out.head).expect("a header");
            let answer = if out.to == EVERYBODY {
                let config =
                    Config { buffers: 16, firmware: 0x4019, sectors: 2, what: config::READ, string: b"" };
                Some(header.answer(DISK, None).with(&config.bytes()))
            } else {
                how(&header, Ata::parse(body).expect("ata").0)
            };
            answer.iter().for_each(|answer| it.receive(now, 0, IT, answer));
        }
        if let Some(result) = ends(it, over) {
            return Some((now, result));
        }
        now = it.deadline().max(now + MS / 10);
    }
    None
}

/// The answer of a working target.
fn is_well(disk: &Identify, header: &Header, ata: Ata) -> Option<Vec<u8>> {
    let data = if ata.command == ata::IDENTIFY { disk.bytes().to_vec() } else { vec![1; 512] };
    Some(header.answer(DISK, None).with(&[&well(ata).bytes()[..], &data].concat()))
}

const PATIENCE: Duration = Duration::from_secs(5);

#[test]
fn who_says_that_it_has_no_disk_is_believed_when_patience_ends() {
    let setup = Setup { patience: PATIENCE, ..Setup::new(DISK, 7) };
    let mut it = Initiator::new(Duration::ZERO, setup, vec![ME]);
    let over = submit(&mut it, Duration::ZERO, |done| Io::other(Op::Look, 0, 0, done));
    let ended = passes(&mut it, &over, (Duration::ZERO, 60_000 * MS), |header, ata| {
        Some(header.answer(DISK, Some(error::UNAVAILABLE)).with(&ata.bytes()))
    });
    let (at, result) = ended.expect("it ends");
    assert!(result == Err(Kind::Down) && at < 6000 * MS, "{at:?}");
    assert!(it.refused.as_ref().is_some_and(|error| error.text.contains("no device now")));
    it.submit(at, Io::read(0, 1, |result| assert!(result.is_err())));
    assert!(matches!(&it.ended[0], Ended::Io(_, Err(error)) if error.text.contains("no device now")));
    // Now it has a device.
    passes(&mut it, &Over::default(), (at, at + 2000 * MS), |header, ata| is_well(&vblade(), header, ata));
    assert_eq!(it.state(), &State::Up);
}

#[test]
fn what_was_down_is_up_when_the_target_answers_however_slow_it_was_before() {
    let mut it = up(&vblade());
    it.setup.patience = PATIENCE;
    it.query_at = 100_000 * MS;
    let mut now = MS;
    for _ in 0..3 {
        let over = submit(&mut it, now, |done| Io::read(10, 1, done));
        let (header, ata, _) = sent(&mut it, now);
        now += 900 * MS;
        answers(&mut it, now, &header, well(ata), &[1; 512]);
        assert!(ends(&mut it, &over).is_some());
    }
    let over = submit(&mut it, now, |done| Io::read(10, 1, done));
    let (at, result) =
        passes(&mut it, &over, (now, now + 60_000 * MS), |_, _| None).expect("patience has an end");
    assert_eq!((result, it.state()), (Err(Kind::Down), &State::Down));
    passes(&mut it, &Over::default(), (at, at + 2000 * MS), |header, ata| is_well(&vblade(), header, ata));
    assert_eq!(it.state(), &State::Up, "{}", it.status());
}

#[test]
fn a_large_probe_that_is_answered_when_the_target_has_just_started_is_no_end_of_probing() {
    let mut it = up(&vblade());
    it.ports[0].mtu = 9000;
    let path = &mut it.paths[0];
    path.fits(17);
    (path.sectors, path.probe_at) = (2, Some(2 * MS));
    let (large, ata, _) = sent(&mut it, 2 * MS);
    assert_eq!((ata.command, ata.count), (ata::READ_EXT, 17));
    let config = Config { buffers: 16, firmware: 0x4019, sectors: 17, what: config::READ, string: b"" };
    let hello = Header::ask(DISK, command::CONFIG, 0).answer(DISK, None).with(&config.bytes());
    it.receive(3 * MS, 0, IT, &hello);
    answers(&mut it, 3 * MS, &large, well(ata), &[0; 17 * 512]);
    let over = submit(&mut it, 3 * MS, |done| Io::read(10, 1, done));
    let well = |header: &Header, ata| is_well(&vblade(), header, ata);
    let (at, result) = passes(&mut it, &over, (3 * MS, 1000 * MS), well).expect("it ends");
    assert!(result.is_ok() && at < 100 * MS && it.paths[0].live);
}

#[test]
fn a_disk_that_syncs_longer_than_patience_at_a_target_that_is_well_is_waited_for() {
    let disk = Identify { flush_ext: true, ..vblade() };
    let mut it = up(&disk);
    it.setup.patience = PATIENCE;
    let mut flushes: Vec<Over> =
        (0..20).map(|_| submit(&mut it, MS, |done| Io::other(Op::Flush, 0, 0, done))).collect();
    it.buffers = 64;
    // Other operations do not wait for it.
    let over = submit(&mut it, MS, |done| Io::read(10, 1, done));
    let mut asked = 0;
    let mut syncs = |header: &Header, ata: Ata| {
        asked += u32::from(ata.command == ata::FLUSH_EXT);
        if ata.command == ata::FLUSH_EXT { None } else { is_well(&disk, header, ata) }
    };
    let read = passes(&mut it, &over, (MS, 1000 * MS), &mut syncs).expect("it ends");
    assert!(read.1.is_ok() && read.0 < 10 * MS, "{:?}", read.0);
    let flush = flushes.remove(0);
    assert_eq!(passes(&mut it, &flush, (read.0, 60_000 * MS), &mut syncs), None);
    assert!(asked <= 20 * 8, "{asked} in a minute");
    let well = |header: &Header, ata| is_well(&disk, header, ata);
    let ended = passes(&mut it, &flush, (60_000 * MS, 120_000 * MS), well).expect("it ends");
    assert!(ended.1.is_ok());
    // A target that does not answer at all is given up.
    let flush = submit(&mut it, ended.0, |done| Io::other(Op::Flush, 0, 0, done));
    let (at, result) = passes(&mut it, &flush, (ended.0, 300_000 * MS), |_, _| None).expect("it ends");
    assert!(result == Err(Kind::Down) && at < ended.0 + 8000 * MS, "{at:?}");
}

#[test]
fn what_has_no_number_in_a_frame_is_not_there() {
    assert_eq!(up(&vblade()).shape().sectors, 1000);
    let huge = Identify::parse(&Identify { sectors: u64::MAX, ..vblade() }.bytes()).expect("long enough");
    assert_eq!(huge.sectors, 1 << 48);
    let mut block = Identify { long: false, ..vblade() }.bytes();
    block[120..124].copy_from_slice(&0x2000_0000u32.to_le_bytes());
    assert_eq!(Identify::parse(&block).map(|disk| disk.sectors), Some(0x0fff_ffff));
}

#[test]
fn paths_that_never_led_anywhere_make_room_and_what_they_say_does_not_count() {
    let mut it = up(&vblade());
    it.query_at = 2 * MS;
    let query = it.transmit(2 * MS).expect("a query");
    let (header, _) = Header::parse(&query.head).expect("a header");
    for n in 0..200u8 {
        let config = Config { buffers: 1, firmware: 0, sectors: 1, what: config::READ, string: b"" };
        let liar = Mac([6, 6, 6, 6, 6, n]);
        it.receive(2 * MS, 0, liar, &header.answer(DISK, None).with(&config.bytes()));
    }
    assert_eq!((it.paths.len(), it.buffers, it.takes, it.paths[0].mac), (PATHS, 16, 2, IT));
}
