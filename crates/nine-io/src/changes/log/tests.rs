//! A log driven by hand: changes, opens and reads go in, lines come out. Waiting reads are numbers.

use super::*;
use crate::changes::parse_line;

type Test = ReaderLog<u32>;

fn on() -> (Test, u64) {
    let mut log = Test::new("ab".into());
    let (reader, begins) = log.open(path("/"), None, &ClientPrincipal::Owner).unwrap();
    assert!(begins);
    log.ready();
    (log, reader)
}

fn path(text: &str) -> Path {
    text.as_bytes().into()
}

fn write(text: &str) -> Change {
    Change::Write(path(text))
}

fn text(read: Option<Result<Bytes>>) -> String {
    read.map_or_else(String::new, |bytes| String::from_utf8(bytes.unwrap().to_vec()).unwrap())
}

fn cursor(epoch: &str, next: u64) -> Cursor {
    Cursor { epoch: epoch.into(), next }
}

const ALL: u32 = 1 << 20;

#[test]
fn a_reader_is_told_what_changes_from_its_open_on() {
    let (mut log, early) = on();
    log.push(write("/a"));
    let (late, begins) = log.open(path("/"), None, &ClientPrincipal::Owner).unwrap();
    assert!(!begins);
    log.push(Change::Move(path("/a"), path("/b c")));
    assert_eq!(text(log.read(early, ALL)), "here ab 2\n2 write /a\n3 move /a '/b c'\n");
    assert_eq!(text(log.read(late, ALL)), "here ab 3\n3 move /a '/b c'\n");
    assert!(log.read(late, ALL).is_none());
}

#[test]
fn lines_are_whole_and_one_that_does_not_fit_is_refused_and_stays() {
    let (mut log, reader) = on();
    log.push(write("/first"));
    log.push(write("/second"));
    assert_eq!(text(log.read(reader, 12)), "here ab 2\n");
    assert!(log.read(reader, 14).unwrap().unwrap_err().ename().contains("15 bytes"));
    assert_eq!(text(log.read(reader, 30)), "2 write /first\n");
    assert_eq!(text(log.read(reader, 16)), "3 write /second\n");
}

#[test]
fn reads_that_wait_are_answered_in_their_order_and_each_can_be_taken_back() {
    let (mut log, reader) = on();
    assert_eq!(text(log.read(reader, ALL)), "here ab 2\n");
    (1..=3).for_each(|wait| log.wait(reader, ALL, wait));
    assert!(log.answers().is_empty());
    assert_eq!(log.take(reader, |&wait| wait == 1), Some(1));
    assert_eq!(log.take(reader, |&wait| wait == 1), None);
    log.push(write("/a"));
    let answers = log.answers();
    assert_eq!(answers[0].1.as_deref().unwrap(), b"2 write /a\n");
    assert_eq!(answers.iter().map(|(wait, _)| *wait).collect::<Vec<_>>(), [2]);
    assert_eq!(log.close(reader), [3]);
    assert!(log.read(reader, ALL).unwrap().is_err());
}

#[test]
fn of_what_nobody_was_told_once_is_enough_and_what_was_told_stays() {
    let (mut log, reader) = on();
    for _ in 0..1000 {
        log.push(write("/a"));
        log.push(Change::Attr(path("/a")));
        log.push(write("/b"));
    }
    assert_eq!(text(log.read(reader, ALL)), "here ab 2\n2 write /a\n3 attr /a\n4 write /b\n");
    log.push(write("/b"));
    assert_eq!(text(log.read(reader, ALL)), "5 write /b\n");
    // The name led to another file in between.
    log.push(write("/b"));
    log.push(Change::Remove(path("/b")));
    log.push(Change::Create(path("/b")));
    log.push(write("/b"));
    assert_eq!(text(log.read(reader, ALL)), "6 write /b\n7 remove /b\n8 create /b\n9 write /b\n");
    // A reader that has left may continue at its position.
    log.close(reader);
    log.push(write("/b"));
    let (back, _) = log.open(path("/"), Some(&cursor("ab", 10)), &ClientPrincipal::Owner).unwrap();
    assert_eq!(text(log.read(back, ALL)), "here ab 10\n10 write /b\n");
}

#[test]
fn who_is_behind_by_more_than_is_remembered_is_told_from_where_on() {
    let (mut log, slow) = on();
    let (fast, _) = log.open(path("/"), None, &ClientPrincipal::Owner).unwrap();
    let long = "x".repeat(200);
    for n in 0..40_000 {
        log.push(write(&format!("/{n}/{long}")));
        assert!(log.bytes <= BYTES_MAX);
        assert!(text(log.read(fast, 1 << 10)).contains(&format!("/{n}/")) || n == 0);
    }
    let lines = text(log.read(slow, 1 << 10));
    let mut lines = lines.lines().map(|line| parse_line(line.as_bytes()).unwrap());
    let first = log.first();
    assert!(first > 10_000);
    assert_eq!(lines.next(), Some(Line::Here(cursor("ab", 2))));
    assert_eq!(lines.next(), Some(Line::Change(first, Change::Lost(2))));
    assert!(matches!(lines.next(), Some(Line::Change(n, Change::Write(_))) if n == first));
}

#[test]
fn a_place_of_another_life_is_lost_and_one_that_is_still_to_come_is_none() {
    let (mut log, _) = on();
    log.push(write("/a"));
    assert_eq!(
        log.open(path("/"), Some(&cursor("ab", 4)), &ClientPrincipal::Owner).unwrap_err().errno,
        Errno::EINVAL
    );
    assert_eq!(
        log.open(path("/"), Some(&cursor("ab", u64::MAX)), &ClientPrincipal::Owner).unwrap_err().errno,
        Errno::EINVAL
    );
    for (epoch, next, is) in [
        ("cd", u64::MAX, "here ab 0\n2 lost 0\n2 write /a\n"),
        ("ab", 0, "here ab 0\n2 lost 0\n2 write /a\n"),
        ("ab", 2, "here ab 2\n2 write /a\n"),
        ("ab", 3, "here ab 3\n"),
    ] {
        let (reader, _) = log.open(path("/"), Some(&cursor(epoch, next)), &ClientPrincipal::Owner).unwrap();
        assert_eq!(text(log.read(reader, ALL)), is);
    }
}

#[test]
fn nobody_is_greeted_before_changes_are_told() {
    let mut log = Test::new("ab".into());
    let (reader, begins) = log.open(path("/"), None, &ClientPrincipal::Owner).unwrap();
    assert!(begins && log.is_on());
    log.push(write("/early"));
    assert!(log.read(reader, ALL).is_none());
    log.wait(reader, ALL, 1);
    assert!(log.answers().is_empty());
    log.ready();
    assert_eq!(log.answers()[0].1.as_deref().unwrap(), b"here ab 3\n");
}

#[test]
fn what_is_blind_is_said_to_each_reader_at_the_beginning() {
    let (mut log, reader) = on();
    log.push(Change::Blind(path("/a")));
    log.push(Change::Blind(path("/a")));
    log.push(Change::Blind(path("/b")));
    log.push(Change::Sees(path("/a")));
    log.push(Change::Sees(path("/never")));
    assert_eq!(text(log.read(reader, ALL)), "here ab 2\n2 blind /b\n2 blind /a\n3 blind /b\n4 sees /a\n");
    let (late, _) = log.open(path("/b/c"), None, &ClientPrincipal::Owner).unwrap();
    assert_eq!(text(log.read(late, ALL)), "here ab 5\n5 blind /\n");
    (0..=BLIND_MAX).for_each(|n| log.push(Change::Blind(path(&format!("/{n}")))));
    let (late, _) = log.open(path("/x"), None, &ClientPrincipal::Owner).unwrap();
    let lines = text(log.read(late, ALL));
    assert!(lines.starts_with("here ab ") && lines.ends_with(" blind /\n"), "{lines}");
    assert!(log.blind.len() <= BLIND_MAX);
}

#[test]
fn what_is_blind_is_so_under_its_new_name_and_not_when_it_has_gone() {
    let (mut log, _) = on();
    log.push(Change::Blind(path("/a/b")));
    log.push(Change::Blind(path("/c")));
    log.push(Change::Move(path("/a"), path("/x")));
    log.push(Change::Remove(path("/c")));
    let (late, _) = log.open(path("/"), None, &ClientPrincipal::Owner).unwrap();
    assert_eq!(text(log.read(late, ALL)), "here ab 6\n6 blind /x/b\n");
}

#[test]
fn a_reader_of_a_part_is_told_of_that_part() {
    let (mut log, _) = on();
    let (reader, _) = log.open(path("/a"), None, &ClientPrincipal::Owner).unwrap();
    log.push(write("/b"));
    log.push(write("/a/b"));
    log.push(Change::Move(path("/a/b"), path("/b")));
    assert_eq!(text(log.read(reader, ALL)), "here ab 2\n3 write /b\n4 remove /b\n");
    log.push(write("/b"));
    assert!(log.read(reader, ALL).is_none());
    log.wait(reader, ALL, 1);
    log.push(write("/b"));
    assert!(log.answers().is_empty());
    log.push(Change::Remove(path("/a")));
    assert_eq!(log.answers()[0].1.as_deref().unwrap(), b"7 remove /\n");
}

#[test]
fn nothing_is_remembered_while_nobody_reads_and_nobody_can_come_back() {
    let mut log = Test::new("ab".into());
    log.push(write("/a"));
    assert!(!log.is_on() && log.changes.is_empty() && log.end());
    let (reader, _) = log.open(path("/"), None, &ClientPrincipal::Owner).unwrap();
    log.ready();
    assert!(!log.end());
    log.push(write("/a"));
    log.close(reader);
    // Recording continues for a reader that may return...
    log.push(write("/b"));
    assert!(log.is_on() && log.changes.len() == 2);
    // ...until its position is lost.
    let long = "x".repeat(PATHS_MAX - 1);
    (0..BYTES_MAX / PATHS_MAX + 2)
        .for_each(|n| log.push(Change::Create(path(&format!("/{long}{}", n % 10)[1..]))));
    assert!(!log.is_on() && log.changes.is_empty());
    let (back, begins) = log.open(path("/"), Some(&cursor("ab", 3)), &ClientPrincipal::Owner).unwrap();
    log.ready();
    assert!(begins);
    let lines = text(log.read(back, ALL));
    assert!(lines.starts_with("here ab 3\n") && lines.ends_with("lost 3\n"), "{lines}");
}

#[test]
fn paths_without_end_are_lost() {
    let (mut log, reader) = on();
    log.push(write("/a"));
    log.push(write(&"/x".repeat(PATHS_MAX)));
    assert!(log.changes.is_empty());
    assert_eq!(text(log.read(reader, ALL)), "here ab 2\n4 lost 2\n");
}

#[test]
fn readers_have_a_number_and_there_are_not_too_many() {
    let (mut log, first) = on();
    while log.open(path("/"), None, &ClientPrincipal::Owner).is_ok() {}
    assert_eq!(log.readers(), READERS_MAX);
    assert_eq!(log.open(path("/"), None, &ClientPrincipal::Owner).unwrap_err().errno, Errno::ENFILE);
    log.close(first);
    assert_ne!(log.open(path("/"), None, &ClientPrincipal::Owner).unwrap().0, first);
}

#[test]
fn one_client_that_opens_without_end_leaves_readers_to_others_and_to_the_owner() {
    let (mut log, _) = on();
    let client = |n: u8| ClientPrincipal::Address(format!("192.0.2.{n}").into());
    while log.open(path("/"), None, &client(1)).is_ok() {}
    assert_eq!(log.readers(), 97);
    assert_eq!(log.open(path("/"), None, &client(1)).unwrap_err().errno, Errno::ENFILE);
    let (other, _) = log.open(path("/"), None, &client(2)).unwrap();
    log.close(other);
    while log.open(path("/"), None, &ClientPrincipal::Owner).is_ok() {}
    assert_eq!(log.readers(), READERS_MAX);
}

#[test]
fn who_reads_what_is_over_is_told() {
    let (mut log, reader) = on();
    assert_eq!(text(log.read(reader, ALL)), "here ab 2\n");
    log.wait(reader, ALL, 1);
    log.over();
    assert!(matches!(&log.answers()[..], [(1, Err(error))] if error.errno == Errno::ESTALE));
    assert_eq!(log.read(reader, ALL).unwrap().unwrap_err().errno, Errno::ESTALE);
}
