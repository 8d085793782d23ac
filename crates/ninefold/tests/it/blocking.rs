//! The blocking client of nine-io with our server: the base of the interfaces for Python and C.

use std::fs;
use std::io::{self, Read};
use std::net::TcpListener;
use std::os::unix::fs::symlink;
use std::thread;
use std::time::Duration;

use nine_io::client::{Direction, Options, blocking::Client};
use nine_net::Target;
use nine_proto::{Errno, GetMask, NOUID, OpenFlags};

use crate::common::Server;

const LIMIT: Duration = Duration::from_secs(30);

fn connect(addr: &str, token: Option<String>) -> Client {
    let target = Target::parse(addr, nine_net::is_socket).unwrap();
    let options = Options { token, ..Options::default() };
    Client::dial_streaming(&target.addr, None, LIMIT, options).unwrap()
}

fn data() -> Vec<u8> {
    (0..20_000_000_u32).map(|n| (n >> 6) as u8 ^ n as u8).collect()
}

#[test]
fn a_large_file_goes_both_ways_over_a_connection_of_its_own() {
    let server = Server::start();
    let client = connect(&server.addr("tcp"), Some(server.token()));
    assert!(client.client().dialect().streaming);
    let (root, data) = (client.attach("", NOUID, "").unwrap(), data());
    let new = root.create("large", OpenFlags::WRITE, 0o644, nine_proto::NOGID).unwrap();
    let mut stream = new.stream(0, Direction::Write).unwrap();
    for piece in data.chunks(1 << 20) {
        assert_eq!(stream.swrite(piece).unwrap(), piece.len());
    }
    assert!(stream.has_connection());
    assert_eq!(stream.sclose().unwrap(), data.len() as u64);
    new.close().unwrap();
    assert!(fs::read(server.files().join("large")).unwrap() == data);
    let file = root.open("large", OpenFlags::READ).unwrap();
    let (mut stream, mut read) = (file.stream(0, Direction::Read).unwrap(), vec![0; data.len()]);
    let mut at = 0;
    while at < data.len() / 2 {
        at += stream.sread(&mut read[at..]).unwrap();
    }
    assert!(stream.has_connection());
    for piece in &mut stream {
        let piece = piece.unwrap();
        read[at..at + piece.len()].copy_from_slice(&piece);
        at += piece.len();
    }
    assert!(at == data.len() && read == data);
}

#[test]
fn no_stream_begins_where_no_file_goes() {
    let server = Server::start();
    fs::write(server.files().join("file"), "12345").unwrap();
    let client = connect(&format!("unix!{}", server.socket().display()), None);
    let root = client.attach("", NOUID, "").unwrap();
    let file = root.open("file", OpenFlags::RDWR).unwrap();
    for offset in [1 << 63, u64::MAX - 1, u64::MAX] {
        assert_eq!(file.stream(offset, Direction::Read).unwrap().sread(&mut [0; 10]).unwrap(), 0);
        let mut stream = file.stream(offset, Direction::Write).unwrap();
        assert_eq!(stream.swrite(b"too far").unwrap_err().errno(), Errno::EFBIG);
    }
    assert_eq!(fs::read(server.files().join("file")).unwrap(), b"12345");
}

#[test]
fn files_are_found_and_opened_by_their_paths_as_open_does() {
    let server = Server::start();
    let here = server.files();
    fs::create_dir_all(here.join("dir/below")).unwrap();
    fs::write(here.join("dir/file"), "12345").unwrap();
    symlink("dir", here.join("link")).unwrap();
    symlink("/dir/file", here.join("absolute")).unwrap();
    symlink("../../../../etc/passwd", here.join("outside")).unwrap();
    symlink("dir/made", here.join("coming")).unwrap();
    let client = connect(&format!("unix!{}", server.socket().display()), None);
    let root = client.attach("", NOUID, "").unwrap();
    let root = root.file();
    let open = |path: &str, flags| client.wait(root.open_at(path.as_bytes(), flags, 0o644));
    let errno = |path, flags| open(path, flags).map(drop).unwrap_err().errno();
    for path in ["dir/file", "/link/file", "link/../link/./file", "absolute", "dir/below/../file"] {
        assert_eq!(open(path, OpenFlags::READ).unwrap().1.size, 5, "{path}");
    }
    assert_eq!(errno("outside", OpenFlags::READ), Errno::ENOENT);
    assert_eq!(errno("dir", OpenFlags::READ), Errno::EISDIR);
    assert_eq!(errno("dir/file/x", OpenFlags::READ), Errno::ENOTDIR);
    assert_eq!(errno("none", OpenFlags::WRITE), Errno::ENOENT);
    assert_eq!(errno("none/new", OpenFlags::CREAT), Errno::ENOENT);
    let exclusive = OpenFlags::WRITE | OpenFlags::CREAT | OpenFlags::EXCL;
    assert_eq!(errno("link/file", exclusive), Errno::EEXIST);
    assert_eq!(open("link/new", exclusive).unwrap().1.size, 0);
    let cut = OpenFlags::WRITE | OpenFlags::CREAT | OpenFlags::TRUNC;
    assert_eq!(open("absolute", cut).unwrap().1.size, 0);
    assert!(here.join("dir/new").exists() && fs::read(here.join("dir/file")).unwrap().is_empty());
    let find = |path: &str, follow| client.wait(root.find(path, follow, GetMask::BASIC)).unwrap().1;
    assert!(find("link", false).qid.is_symlink() && find("link", true).qid.is_dir());
    for path in ["/", "", "dir/..", "dir/."] {
        assert_eq!(client.wait(root.parent(path.as_bytes())).unwrap_err().errno(), Errno::EINVAL, "{path}");
    }
    assert_eq!(client.wait(root.parent(b"link/new//")).unwrap().1, b"new");
}

#[test]
fn a_server_that_accepts_and_says_nothing_is_given_up_in_time() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = format!("tcp!127.0.0.1!{}", listener.local_addr().unwrap().port());
    let silent = thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        io::copy(&mut socket.by_ref().take(u64::MAX), &mut io::sink())
    });
    let target = Target::parse(&addr, |_| false).unwrap();
    let limit = Duration::from_millis(100);
    let error = Client::dial_streaming(&target.addr, None, limit, Options::default()).unwrap_err();
    assert_eq!(error.errno(), Errno::ETIMEDOUT, "{error}");
    assert!(error.to_string().contains("does not answer within 0.1 s"), "{error}");
    silent.join().unwrap().unwrap();
}
