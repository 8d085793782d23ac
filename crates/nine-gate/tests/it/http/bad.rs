//! Bad input.

use std::io::{Read, Write};
use std::time::Duration;

use nine_gate::http::Options;
use nine_io::synth;

use crate::http::site::{Answer, Site};
use crate::http::{site, tree};

fn status(answer: &[u8]) -> u16 {
    String::from_utf8_lossy(answer).split(' ').nth(1).and_then(|n| n.parse().ok()).unwrap_or(0)
}

#[test]
fn what_is_no_request_is_refused_and_the_connection_closed() {
    let (_dir, site) = site();
    for (text, expected) in [
        ("nonsense\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\n\r\n", 400),
        ("GET / HTTP/3.0\r\nHost: x\r\n\r\n", 505),
        ("GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n", 400),
        ("\x16\x03\x01\x02\x00\x01\x00\x01\u{fc}\x03\x03", 400),
        ("GET / HTTP/1.1\r\nHost: x", 400),
    ] {
        let answer = site.say(format!("{text}GET / HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes());
        assert!(
            status(&answer) == expected || text.ends_with('x'),
            "{text:?}: {}",
            String::from_utf8_lossy(&answer)
        );
        assert_eq!(answer.windows(9).filter(|part| part == b"\r\nServer:").count(), 1, "{text:?}");
    }
}

#[test]
fn endless_heads_have_an_end() {
    let (_dir, site) = site();
    let mut text = b"GET / HTTP/1.1\r\nHost: x\r\n".to_vec();
    text.extend(b"A: b\r\n".repeat(1 << 20));
    assert_eq!(status(&site.say(&text)), 431);
    let mut text = b"GET /".to_vec();
    text.extend(b"x".repeat(1 << 20));
    assert_eq!(status(&site.say(&text)), 414);
}

#[test]
fn bodies_are_passed_over_and_bad_ones_refused() {
    let (_dir, site) = site();
    let get = "GET /a.txt HTTP/1.1\r\nHost: x\r\n";
    let both = |body: &str| site.say(format!("{get}{body}{get}Connection: close\r\n\r\n").as_bytes());
    for body in
        ["Content-Length: 5\r\n\r\nhello", "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"]
    {
        let answer = both(body);
        assert_eq!(answer.windows(15).filter(|part| part == b"HTTP/1.1 200 OK").count(), 2, "{body}");
    }
    assert_eq!(status(&both("Transfer-Encoding: chunked\r\n\r\nzz\r\n")), 400);
    assert_eq!(status(&both("Content-Length: 99999999999\r\nExpect: 100-continue\r\n\r\n")), 200);
    let mut large = format!("{get}Content-Length: 99999999\r\n\r\n").into_bytes();
    large.extend(vec![b'x'; 3 << 20]);
    assert_eq!(status(&site.say(&large)), 413);
    // The answer comes at once, with or without the body.
    for body in ["Content-Length: 99999999\r\n\r\n", "Content-Length: 1048577\r\n\r\nxx"] {
        let mut stream = site.connect();
        stream.write_all(format!("{get}{body}").as_bytes()).unwrap();
        let answer = Answer::read(&mut stream, false);
        assert_eq!((answer.status, answer.header("Connection")), (413, Some("close")), "{body}");
    }
}

#[test]
fn no_spelling_leads_out_of_the_tree() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("served")).unwrap();
    tree(&dir.path().join("served"));
    std::fs::write(dir.path().join("secret"), "secret").unwrap();
    let site = Site::disk(&dir.path().join("served"), Options::default());
    for path in [
        "/../secret",
        "/%2e%2e/secret",
        "/..%2fsecret",
        "/d/../../secret",
        "/d/%2E%2E/%2e./secret",
        "/..\\secret",
        "/%c0%ae%c0%ae/secret",
        "/%252e%252e/secret",
        "//../secret",
        "/./../secret",
        "/d/..;/../secret",
        "/%00/../secret",
    ] {
        let answer =
            site.say(format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").as_bytes());
        assert!(matches!(status(&answer), 400 | 404), "{path}: {}", status(&answer));
        assert!(!answer.windows(6).any(|part| part == b"secret"), "{path}");
    }
}

#[test]
fn thousands_of_ranges_are_not_worked_through() {
    let (_dir, site) = site();
    for ranges in ["0-,".repeat(3000), "0-0,2-2,".repeat(500), "-1,".repeat(3000)] {
        let answer = site.get("/large.bin", &format!("Range: bytes={ranges}\r\n"));
        assert_eq!((answer.status, answer.body.len()), (200, 3_000_000));
    }
}

#[test]
fn who_is_slow_is_let_go_and_holds_up_nobody() {
    let dir = tempfile::tempdir().unwrap();
    tree(dir.path());
    let second = Duration::from_secs(1);
    let options = Options { patience: second, idle: second, stall: second, ..Options::default() };
    let site = Site::disk(dir.path(), options);
    // One sends nothing, one sends half a request, and one does not read the answer.
    let mut silent = site.connect();
    let mut half = site.connect();
    half.write_all(b"GET / HTTP/1.1\r\nHos").unwrap();
    let mut deaf: Vec<_> = (0..3)
        .map(|_| {
            let mut deaf = site.connect();
            deaf.write_all("GET /large.bin HTTP/1.1\r\nHost: x\r\n\r\n".repeat(20).as_bytes()).unwrap();
            deaf
        })
        .collect();
    assert_eq!(site.get("/a.txt", "").body, b"hello\n");
    assert_eq!(silent.read(&mut [0; 100]).unwrap(), 0);
    assert_eq!(Answer::read(&mut half, false).status, 408);
    assert_eq!(half.read(&mut [0; 100]).unwrap(), 0);
    // Without reading it: a client that reads is not late.
    let late = |text: &str| text.contains("ninefold_http_broken_total{why=\"late\"} 3\n");
    while !late(&String::from_utf8(site.get("/metrics", "").body).unwrap()) {
        std::thread::yield_now();
    }
    for deaf in &mut deaf {
        let mut all = Vec::new();
        let _ = deaf.read_to_end(&mut all);
        assert!(all.len() < 20 * 3_000_000);
    }
    assert_eq!(site.get("/a.txt", "").body, b"hello\n");
}

#[test]
fn a_file_that_becomes_shorter_is_cut_and_never_filled() {
    let (dir, site) = site();
    // More than the socket buffers of a connection hold.
    let all = crate::http::bytes(48 << 20);
    let path = dir.path().join("huge.bin");
    std::fs::write(&path, &all).unwrap();
    let mut stream = site.connect();
    stream.write_all(b"GET /huge.bin HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut first = [0; 1000];
    stream.read_exact(&mut first).unwrap();
    std::fs::File::options().write(true).open(&path).unwrap().set_len(10).unwrap();
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
    let head = first.windows(4).position(|part| part == b"\r\n\r\n").unwrap() + 4;
    let body: Vec<u8> = first[head..].iter().chain(&rest).copied().collect();
    assert!(body.len() < all.len(), "its end was not there any more");
    // Zero-copy data in flight has the file's content at the time of sending: the kernel zeroes truncated pages.
    let is_right = body.iter().zip(&all).all(|(came, was)| came == was || *came == 0);
    assert!(is_right && body[..10] == all[..10]);
    // The next request sees the short file.
    assert_eq!(site.get("/huge.bin", "").body, all[..10]);
}

#[test]
fn other_names_of_this_server_are_other_servers() {
    let dir = tempfile::tempdir().unwrap();
    tree(dir.path());
    let options = Options { hosts: Some(vec!["files.lab".into()]), ..Options::default() };
    let site = Site::disk(dir.path(), options);
    for (host, expected) in [
        ("localhost:80", 200),
        ("127.0.0.1:8080", 200),
        ("[::1]:80", 200),
        ("Files.Lab", 200),
        ("evil.example", 421),
        ("localhost.evil.example", 421),
        ("127.0.0.1.evil.example", 421),
    ] {
        let answer =
            site.say(format!("GET /a.txt HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").as_bytes());
        assert_eq!(status(&answer), expected, "{host}");
    }
}

#[test]
fn what_a_name_space_has_for_others_is_not_there() {
    let dir = tempfile::tempdir().unwrap();
    tree(dir.path());
    for hidden in ["net/tcp", "mux", "cons", "netting"] {
        std::fs::create_dir_all(dir.path().join(hidden)).unwrap();
    }
    std::fs::write(dir.path().join("mux/ctl"), "x").unwrap();
    std::fs::write(dir.path().join("mux/stats"), "x").unwrap();
    let site = Site::disk(dir.path(), Options::default());
    for (path, expected) in [
        ("/net/", 404),
        ("/net/tcp/", 404),
        ("/mux/ctl", 404),
        ("/mux/stats", 200),
        ("/cons/", 404),
        ("/netting/", 200),
        ("/%6eet/", 404),
        ("/./net/", 404),
        ("/netting/../net/", 404),
        ("/%23hops=1/", 404),
    ] {
        assert_eq!(site.get(path, "").status, expected, "{path}");
    }
    let page = String::from_utf8(site.get("/", "").body).unwrap();
    assert!(!page.contains("./net/") && page.contains("./netting/") && !page.contains("./cons/"));
}

#[test]
fn links_lead_to_nothing_that_is_hidden() {
    use std::os::unix::fs::symlink;
    let dir = tempfile::tempdir().unwrap();
    tree(dir.path());
    std::fs::create_dir(dir.path().join("net")).unwrap();
    std::fs::write(dir.path().join("net/f"), "x").unwrap();
    symlink("../net", dir.path().join("d/n")).unwrap();
    symlink("net/f", dir.path().join("f")).unwrap();
    symlink("d/../net/f", dir.path().join("sneak")).unwrap();
    symlink("d/../net", dir.path().join("by")).unwrap();
    let site = Site::disk(dir.path(), Options::default());
    for path in ["/d/n/", "/d/n/f", "/f", "/sneak", "/by/", "/by/f"] {
        assert_eq!(site.get(path, "").status, 404, "{path}");
    }
}

#[test]
fn who_sends_a_body_byte_by_byte_has_one_time_for_it() {
    let dir = tempfile::tempdir().unwrap();
    tree(dir.path());
    let options = Options { patience: Duration::from_secs(1), ..Options::default() };
    let site = Site::disk(dir.path(), options);
    let mut slow = site.connect();
    slow.write_all(b"GET /a.txt HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n").unwrap();
    slow.set_nonblocking(true).unwrap();
    let mut answer = Vec::new();
    // The last byte is never sent, however fast this machine is.
    let mut left = 999_999;
    while answer.is_empty() {
        if left > 0 && slow.write(b"x").is_ok() {
            left -= 1;
        }
        let mut buf = [0; 1000];
        if let Ok(n) = slow.read(&mut buf) {
            answer.extend_from_slice(&buf[..n]);
        }
        std::thread::yield_now();
    }
    assert!(matches!(status(&answer), 408 | 413), "{}", String::from_utf8_lossy(&answer));
}

/// A file that returns some data, and then nothing.
struct Upstream;

impl synth::Handle for Upstream {
    fn read(&self, ask: synth::Ask) {
        match ask.offset {
            0 => ask.give(vec![b'x'; 5000].into()),
            // It never answers.
            _ => std::mem::forget(ask),
        }
    }
}

#[test]
fn an_upstream_that_stalls_in_the_middle_of_an_answer_cuts_it_and_holds_up_nobody() {
    let tree = synth::Dir::new()
        .file("stalls", synth::File::opened(|_, _| Ok(Box::new(Upstream))))
        .file("good", synth::File::text(|_| "good".into()));
    let options = Options { stall: Duration::from_secs(1), reads: 1, ..Options::default() };
    let site = Site::of(std::sync::Arc::new(synth::Tree::new(tree, Duration::ZERO)), options);
    let mut waiting: Vec<_> = (0..20).map(|_| site.connect()).collect();
    for stream in &mut waiting {
        stream.write_all(b"GET /stalls HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    }
    assert_eq!(site.get("/good", "").body, b"good");
    for stream in &mut waiting {
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        // The final chunk never arrives.
        assert!(status(&all) == 200 && !all.ends_with(b"0\r\n\r\n"));
    }
    assert_eq!(site.get("/good", "").body, b"good");
}

#[test]
fn text_that_becomes_shorter_while_it_is_compressed_has_no_end() {
    let (dir, site) = site();
    let path = dir.path().join("huge.txt");
    // Text that does not compress to the size of the socket buffers.
    let mut n = 1u64;
    let text: Vec<u8> = (0..48 << 20)
        .map(|_| {
            n = n.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            b' ' + ((n >> 33) % 90) as u8
        })
        .collect();
    std::fs::write(&path, &text).unwrap();
    let mut stream = site.connect();
    stream.write_all(b"GET /huge.txt HTTP/1.1\r\nHost: x\r\nAccept-Encoding: zstd\r\n\r\n").unwrap();
    stream.read_exact(&mut [0; 1000]).unwrap();
    std::fs::File::options().write(true).open(&path).unwrap().set_len(10_000).unwrap();
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
    assert!(!rest.ends_with(b"0\r\n\r\n"));
}
