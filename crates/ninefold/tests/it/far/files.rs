//! Files that cannot be streamed, that change during a stream, and that do not fit on their disk.

use std::fs;
use std::io::Write;

use nine_proto::Errno;

use crate::far::site::{Door, Net, SIZE, Site, bytes, ended};
use crate::far::talk::Data;

#[test]
fn what_can_have_no_stream_is_refused_with_its_reason_and_leaves_none() {
    let site = Site::new(Door::Open);
    site.put("f", bytes(1000));
    let mut talk = site.talk();
    talk.open(2, "f", 0);
    talk.open(3, "f", 1);
    talk.begin_walk(4, "f");
    talk.open(5, "", 0);
    talk.open(6, "f", 2);
    for (fid, read, errno) in [
        (1, true, Errno::EISDIR),
        (5, true, Errno::EISDIR),
        (5, false, Errno::EISDIR),
        (4, true, Errno::EBADF),
        (4, false, Errno::EBADF),
        (2, false, Errno::EBADF),
        (3, true, Errno::EBADF),
        (99, true, Errno::EBADF),
    ] {
        assert_eq!(talk.stream(fid, read), Err(errno.0), "fid {fid} read {read}");
        let none = talk.close(fid, u64::MAX).unwrap_err();
        assert_eq!(none, if fid == 99 { Errno::EBADF.0 } else { Errno::EINVAL.0 }, "fid {fid}");
    }
    let token = talk.stream(6, true).unwrap();
    assert_eq!([true, false].map(|read| talk.stream(6, read)), [(); 2].map(|()| Err(Errno::EBUSY.0)));
    assert!(Data::shown(site.connect(), &token).rest() == bytes(1000));
    assert_eq!(talk.close(6, u64::MAX), Ok((1000, 0, String::new())));
}

#[test]
fn a_file_that_is_cut_under_its_stream_arrives_as_it_is_or_not_at_all() {
    let site = Site::new(Door::Gate);
    let cut = |len: u64| fs::File::options().write(true).open(site.file("f")).unwrap().set_len(len).unwrap();
    // Cut the file behind the data sent so far, and before it. Data waiting to be sent that is cut off within a page
    // has become zeros.
    for (sent, len, whole) in [(1, 10 << 20, true), (4, 2 << 20, false)] {
        site.put("f", bytes(SIZE));
        site.gate().stop_after(sent << 20);
        let get = site.spawn(&["get", "-q", "/f", "got"]);
        site.gate().is_stopped();
        cut(len);
        site.gate().go_on();
        let (status, said) = ended(get);
        if whole {
            assert_eq!((status, &*said), (Some(0), ""));
            assert!(fs::read(site.home.path().join("got")).unwrap() == bytes(len as usize));
        } else {
            assert!(status == Some(1) && said.contains("it ends after"), "{status:?} {said}");
        }
        assert_eq!(fs::read_dir(site.home.path()).unwrap().count(), usize::from(whole));
        // The stream itself reports only the truth: as many bytes as were sent, all of them from the file.
        site.put("f", bytes(SIZE));
        let mut talk = site.talk();
        talk.open(2, "f", 0);
        let token = talk.stream(2, true).unwrap();
        let mut data = Data::shown(site.connect(), &token);
        let mut come = data.read((sent as usize) << 20);
        cut(len);
        come.extend(data.rest());
        let (count, errno, _) = talk.close(2, u64::MAX).unwrap();
        assert!(bytes(SIZE).starts_with(&come), "{} bytes", come.len());
        assert!(errno != 0 || count == come.len() as u64 && count >= len, "{count} of {len}, {errno}");
        let _ = fs::remove_file(site.home.path().join("got"));
    }
}

#[test]
fn a_file_that_grows_under_its_stream_arrives_up_to_the_end_that_was_found() {
    const MORE: usize = 1 << 20;
    let site = Site::new(Door::Gate);
    let grow = || {
        let mut file = fs::File::options().append(true).open(site.file("f")).unwrap();
        file.write_all(&bytes(SIZE + MORE)[SIZE..]).unwrap();
    };
    site.put("f", bytes(SIZE));
    site.gate().stop_after(1 << 20);
    let get = site.spawn(&["get", "-q", "/f", "got"]);
    site.gate().is_stopped();
    grow();
    site.gate().go_on();
    assert_eq!(ended(get), (Some(0), String::new()));
    let got = fs::read(site.home.path().join("got")).unwrap();
    assert!(got.len() >= SIZE && bytes(SIZE + MORE).starts_with(&got), "{} bytes", got.len());
    site.put("f", bytes(SIZE));
    let mut talk = site.talk();
    talk.open(2, "f", 0);
    let token = talk.stream(2, true).unwrap();
    let mut data = Data::shown(site.connect(), &token);
    let mut come = data.read(1000);
    grow();
    come.extend(data.rest());
    assert_eq!(talk.close(2, u64::MAX), Ok((come.len() as u64, 0, String::new())));
    assert!(come.len() >= SIZE && bytes(SIZE + MORE).starts_with(&come), "{} bytes", come.len());
}

#[test]
fn a_disk_that_fills_up_under_a_stream_is_told_with_what_it_has_taken() {
    const ROOM: u64 = 4 << 20;
    let net = Net::new();
    // With the delay box the server gets a small disk of its own; else a limit on file sizes, in blocks of 512.
    let (small, errno) = match net {
        Net::Far(_) => (format!("mount -t tmpfs -o size={ROOM} tmpfs files"), Errno::ENOSPC),
        Net::Near(_) => (format!("trap '' XFSZ && ulimit -f {}", ROOM / 512), Errno::EFBIG),
    };
    let shell = ["sh", "-c", &format!("{small} && exec \"$@\""), "sh"];
    let apart: &[&str] = if errno == Errno::ENOSPC { &["unshare", "--mount"] } else { &[] };
    let site = Site::on(net, Door::Open, &[apart, &shell].concat());
    // The path inside the server's mount name space.
    let files = site.server.files();
    let files = format!("/proc/{}/root{}", site.server.child.id(), files.display());
    fs::write(format!("{files}/f"), "").unwrap();
    let mut talk = site.talk();
    talk.open(2, "f", 1);
    let token = talk.stream(2, false).unwrap();
    let mut data = Data::shown(site.connect(), &token);
    // A server that has failed accepts no more data.
    let _ = data.write(bytes(SIZE));
    data.close();
    let (count, refused, text) = talk.close(2, SIZE as u64).unwrap();
    assert_eq!((refused, text), (errno.0, errno.to_string()));
    assert!(0 < count && count <= ROOM, "{count}");
    let stored = fs::read(format!("{files}/f")).unwrap();
    assert!(stored[..count as usize] == bytes(SIZE)[..count as usize], "{count} bytes are not there");
    // The command reports the error and removes its incomplete file; then there is room again.
    fs::remove_file(format!("{files}/f")).unwrap();
    talk.clunk(2);
    fs::write(site.home.path().join("up"), bytes(SIZE)).unwrap();
    let (status, said) = site.run(&["put", "-q", "up", "/up"]);
    assert!(status == Some(1) && said.contains(&errno.to_string()), "{status:?} {said}");
    assert_eq!(fs::read_dir(&files).unwrap().count(), 0);
    fs::write(site.home.path().join("up"), bytes(ROOM as usize / 2)).unwrap();
    assert_eq!(site.run(&["put", "-q", "up", "/up"]), (Some(0), String::new()));
    assert!(fs::read(format!("{files}/up")).unwrap() == bytes(ROOM as usize / 2));
}
