//! Tokens presented by anyone, and offers that are not taken.

use nine_proto::Errno;

use crate::far::gate::Kind;
use crate::far::site::{Door, SIZE, Site, bytes};
use crate::far::talk::Data;

#[test]
fn a_token_that_is_wrong_guessed_used_or_void_brings_nothing_and_harms_no_stream() {
    const FILE: usize = 300_000;
    let site = Site::new(Door::Open);
    site.put("f", bytes(FILE));
    let mut talk = site.talk();
    (2..5).for_each(|fid| talk.open(fid, "f", 0));
    let token = talk.stream(2, true).unwrap();
    let taken_back = talk.stream(3, true).unwrap();
    assert_eq!(talk.close(3, 0), Ok((0, 0, String::new())));
    let clunked = talk.stream(4, true).unwrap();
    talk.clunk(4);
    let mut other = site.talk();
    other.open(2, "f", 0);
    let begun_anew = other.stream(2, true).unwrap();
    other.version("9P2000.L.s");
    let flipped = |at: usize| {
        let mut wrong = token.clone().into_bytes();
        wrong[at] = if wrong[at] == b'0' { b'1' } else { b'0' };
        String::from_utf8(wrong).unwrap()
    };
    let no_digits = "g".repeat(token.len());
    let mut wrong = vec![flipped(0), flipped(31), no_digits, taken_back, clunked, begun_anew];
    wrong.extend(
        (0..5u128).map(|n| format!("{:032x}", n.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835))),
    );
    // Present all wrong tokens and the right one at the same time.
    let wrong: Vec<Data> = wrong.iter().map(|wrong| Data::shown(site.connect(), wrong)).collect();
    let mut good = Data::shown(site.connect(), &token);
    let mut come = good.read(1);
    let mut used = Data::shown(site.connect(), &token);
    for (n, mut wrong) in wrong.into_iter().enumerate() {
        assert!(wrong.rest().is_empty(), "{n}");
    }
    assert!(used.rest().is_empty());
    come.extend(good.rest());
    assert!(come == bytes(FILE));
    assert_eq!(talk.close(2, u64::MAX), Ok((FILE as u64, 0, String::new())));
    assert!(Data::shown(site.connect(), &token).rest().is_empty(), "it is good once");
}

#[test]
fn who_asks_for_a_thousand_streams_and_dials_none_is_told_to_wait_and_others_are_served() {
    let site = Site::new(Door::Gate);
    site.put("f", bytes(SIZE));
    let mut talk = site.talk();
    for fid in 100..200 {
        talk.begin_open(fid, "f", 0);
    }
    let asked: Vec<_> = (0..1000).map(|n| talk.begin_stream(100 + n % 100, true)).collect();
    let mut had = 0;
    for (n, tag) in asked.into_iter().enumerate() {
        match talk.offer(tag) {
            Ok(_) => had += 1,
            Err(errno) if n % 100 < 64 => assert_eq!((errno, had), (Errno::EBUSY.0, 64)),
            Err(errno) => assert_eq!((errno, had), (Errno::EAGAIN.0, 64)),
        }
    }
    assert_eq!(had, 64);
    // A cancelled offer, or a clunked fid, frees a slot.
    assert_eq!(talk.close(100, 0), Ok((0, 0, String::new())));
    talk.clunk(101);
    let again: Vec<_> = (197..200).map(|fid| talk.begin_stream(fid, true)).collect();
    let again: Vec<_> = again.into_iter().map(|tag| talk.offer(tag).map(drop)).collect();
    assert_eq!(again, [Ok(()), Ok(()), Err(Errno::EAGAIN.0)]);
    // Reads of its session still work, and other clients get streams.
    assert_eq!(talk.read(150, 0, 10).unwrap(), bytes(10));
    let before = site.gate().carried(Kind::Session);
    assert_eq!(site.run(&["get", "-q", "/f", "got"]), (Some(0), String::new()));
    assert!(std::fs::read(site.home.path().join("got")).unwrap() == bytes(SIZE));
    assert!(site.gate().carried(Kind::Session) - before < SIZE as u64 / 2, "it has not come by a stream");
}
