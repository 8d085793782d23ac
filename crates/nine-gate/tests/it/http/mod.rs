//! The web server, over a mux, a host directory and real sockets.

mod bad;
mod past;
mod site;

use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use nine_gate::http::{Log, Options};
use nine_io::synth;
use site::{Answer, LIMIT, Site};

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n * 7 + n / 251) as u8).collect()
}

/// Creates `a.txt`, `large.bin`, `d/`, `d/x.html`, `site/index.html`.
fn tree(dir: &Path) {
    fs::write(dir.join("a.txt"), "hello\n").unwrap();
    fs::write(dir.join("empty"), "").unwrap();
    fs::write(dir.join("large.bin"), bytes(3_000_000)).unwrap();
    fs::write(dir.join("long.txt"), "a line of text, and again\n".repeat(10_000)).unwrap();
    fs::create_dir_all(dir.join("d/e")).unwrap();
    fs::write(dir.join("d/x.html"), "<p>x").unwrap();
    fs::create_dir(dir.join("site")).unwrap();
    fs::write(dir.join("site/index.html"), "<p>index").unwrap();
}

fn site() -> (tempfile::TempDir, Site) {
    let dir = tempfile::tempdir().unwrap();
    tree(dir.path());
    let site = Site::disk(dir.path(), Options::default());
    (dir, site)
}

#[test]
fn files_come_as_they_are_one_after_the_other_on_one_connection() {
    let (dir, site) = site();
    let mut stream = site.connect();
    for (path, kind) in [
        ("a.txt", "text/plain; charset=utf-8"),
        ("large.bin", "application/octet-stream"),
        ("empty", "text/plain; charset=utf-8"),
        ("d/x.html", "text/html; charset=utf-8"),
    ] {
        let answer = site.ask(&mut stream, "GET", &format!("/{path}"), "");
        assert_eq!((answer.status, answer.header("Content-Type")), (200, Some(kind)));
        assert!(answer.body == fs::read(dir.path().join(path)).unwrap(), "{path}");
        assert!(answer.header("ETag").is_some() && answer.header("Last-Modified").is_some());
        let head = site.ask(&mut stream, "HEAD", &format!("/{path}"), "");
        assert_eq!(head.header("Content-Length"), answer.header("Content-Length"));
        assert_eq!(head.header("ETag"), answer.header("ETag"));
    }
}

#[test]
fn what_is_answered_is_not_held_back_by_what_is_not() {
    let (_dir, site) = site();
    let get = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n");
    // The second half of a body never arrives.
    let mut stream = site.connect();
    let half = format!("{}POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nab", get("/a.txt"));
    stream.write_all(half.as_bytes()).unwrap();
    assert_eq!(Answer::read(&mut stream, false).body, b"hello\n");
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).unwrap();
    // An upstream never answers.
    let tree = synth::Dir::new()
        .file("stalls", synth::File::opened(|_, _| Ok(Box::new(Says(None)))))
        .file("bad", synth::File::opened(|_, _| Ok(Box::new(Says(Some(nine_proto::Errno::EIO))))));
    let tree = Arc::new(synth::Tree::new(tree, Duration::ZERO));
    let site = Site::of(tree, Options { stall: Duration::from_secs(1), ..Options::default() });
    let mut stream = site.connect();
    stream.write_all((get("/none") + &get("/stalls")).as_bytes()).unwrap();
    assert_eq!(Answer::read(&mut stream, false).status, 404);
    // No header was sent yet, so an error status is possible.
    assert_eq!(Answer::read(&mut stream, false).status, 504);
    assert_eq!(site.ask(&mut stream, "GET", "/bad", "").status, 500);
}

/// An upstream that answers no read, or each with an error.
struct Says(Option<nine_proto::Errno>);

impl synth::Handle for Says {
    fn read(&self, ask: synth::Ask) {
        match self.0 {
            Some(errno) => ask.fail(errno.into()),
            None => std::mem::forget(ask),
        }
    }
}

#[test]
fn requests_that_come_together_are_answered_in_their_order() {
    let (_dir, site) = site();
    let mut stream = site.connect();
    let mut text = String::new();
    let paths = ["a.txt", "large.bin", "none", "d/x.html", "a.txt"];
    for path in paths {
        text += &format!("GET /{path} HTTP/1.1\r\nHost: x\r\n\r\n");
    }
    stream.write_all(text.as_bytes()).unwrap();
    let sizes: Vec<_> = paths.iter().map(|_| Answer::read(&mut stream, false).body.len()).collect();
    assert_eq!((sizes[0], sizes[1], sizes[3], sizes[4]), (6, 3_000_000, 4, 6));
}

#[test]
fn parts_of_a_file_are_sent_alone() {
    let (_dir, site) = site();
    let all = bytes(3_000_000);
    let get = |ranges: &str| site.get("/large.bin", &format!("Range: bytes={ranges}\r\n"));
    for (ranges, from, to) in
        [("0-0", 0, 1), ("1000000-", 1_000_000, 3_000_000), ("-7", 2_999_993, 3_000_000)]
    {
        let answer = get(ranges);
        let range = format!("bytes {from}-{}/3000000", to - 1);
        assert_eq!((answer.status, answer.header("Content-Range")), (206, Some(&*range)));
        assert!(answer.body == all[from..to], "{ranges}");
    }
    let answer = get("3000000-");
    assert_eq!((answer.status, answer.header("Content-Range")), (416, Some("bytes */3000000")));
    assert_eq!((get("0-").status, get("0-").body.len()), (206, all.len()));
    let answer = get("5-9,100-199,2999999-");
    let kind = answer.header("Content-Type").unwrap();
    let border = kind.strip_prefix("multipart/byteranges; boundary=").unwrap();
    let octets = "Content-Type: application/octet-stream";
    let mut expected = Vec::new();
    for (n, (from, to)) in [(5, 10), (100, 200), (2_999_999, 3_000_000)].into_iter().enumerate() {
        let begin = if n == 0 { "" } else { "\r\n" };
        expected.extend(
            format!(
                "{begin}--{border}\r\n{octets}\r\nContent-Range: bytes {from}-{}/3000000\r\n\r\n",
                to - 1
            )
            .bytes(),
        );
        expected.extend(&all[from..to]);
    }
    expected.extend(format!("\r\n--{border}--\r\n").bytes());
    assert!(answer.status == 206 && answer.body == expected);
    // If the client's part is of a different file, the whole file is sent.
    let answer = site.get("/large.bin", "Range: bytes=0-0\r\nIf-Range: \"other\"\r\n");
    assert_eq!((answer.status, answer.body.len()), (200, all.len()));
    // A range of an empty file gets the whole file.
    for ranges in ["0-", "0-99", "-1"] {
        let answer = site.get("/empty", &format!("Range: bytes={ranges}\r\n"));
        assert_eq!((answer.status, answer.header("Content-Length")), (200, Some("0")), "{ranges}");
    }
    let answer = site.get("/empty", "Range: bytes=5-\r\n");
    assert_eq!((answer.status, answer.header("Content-Range")), (416, Some("bytes */0")));
}

#[test]
fn parts_of_two_versions_are_never_joined() {
    let (dir, site) = site();
    let path = dir.path().join("f");
    fs::write(&path, "A".repeat(1000)).unwrap();
    let first = site.get("/f", "");
    let (tag, date) = (first.header("ETag").unwrap(), first.header("Last-Modified").unwrap());
    let rest = |validator: &str| site.get("/f", &format!("Range: bytes=500-\r\nIf-Range: {validator}\r\n"));
    assert_eq!((rest(tag).status, rest(date).status), (206, 200));
    // In the same second, of the same length, and before the server checks the file again.
    let times = fs::metadata(&path).unwrap();
    fs::write(&path, "B".repeat(1000)).unwrap();
    let changed = std::os::unix::fs::MetadataExt::mtime(&times);
    let changed = rustix::fs::Timespec { tv_sec: changed, tv_nsec: 0 };
    let changed = rustix::fs::Timestamps { last_access: changed, last_modification: changed };
    rustix::fs::utimensat(rustix::fs::CWD, &path, &changed, rustix::fs::AtFlags::empty()).unwrap();
    for validator in [tag, date] {
        let answer = rest(validator);
        assert_eq!((answer.status, &*answer.body), (200, &[b'B'; 1000][..]), "{validator}");
    }
}

#[test]
fn who_has_a_file_is_told_that_it_is_the_same() {
    let (dir, site) = site();
    let first = site.get("/a.txt", "");
    let tag = first.header("ETag").unwrap();
    let again = site.get("/a.txt", &format!("If-None-Match: {tag}\r\n"));
    assert_eq!((again.status, again.header("ETag")), (304, Some(tag)));
    let date = first.header("Last-Modified").unwrap();
    assert_eq!(site.get("/a.txt", &format!("If-Modified-Since: {date}\r\n")).status, 304);
    assert_eq!(site.get("/a.txt", "If-Match: \"other\"\r\n").status, 412);
    // An empty file can be unchanged too.
    fs::write(dir.path().join("empty"), "").unwrap();
    let empty = site.get("/empty", "");
    let asks = format!("If-None-Match: {}\r\n", empty.header("ETag").unwrap());
    assert_eq!((empty.status, site.get("/empty", &asks).status), (200, 304));
    // Another file replaces it.
    fs::write(dir.path().join("new"), "quite another\n").unwrap();
    fs::rename(dir.path().join("new"), dir.path().join("a.txt")).unwrap();
    let begun = std::time::Instant::now();
    loop {
        let answer = site.get("/a.txt", &format!("If-None-Match: {tag}\r\n"));
        if answer.status == 200 {
            assert_eq!(answer.body, b"quite another\n");
            return;
        }
        assert!(begun.elapsed() < LIMIT);
    }
}

#[test]
fn directories_are_pages_and_json_and_redirects() {
    let (_dir, site) = site();
    let page = site.get("/", "");
    let text = String::from_utf8(page.body).unwrap();
    for part in ["./d/", "./a.txt", "./large.bin", "2.9 MiB"] {
        assert!(text.contains(part), "{part}");
    }
    let json = site.get("/d/", "Accept: application/json\r\n");
    let all: serde_json::Value = serde_json::from_slice(&json.body).unwrap();
    assert_eq!((&all["entries"][0]["name"], &all["entries"][1]["size"]), (&"e".into(), &4.into()));
    let moved = site.get("/d?x=y", "");
    assert_eq!((moved.status, moved.header("Location")), (301, Some("/d/?x=y")));
    assert_eq!(site.get("/site/", "").body, b"<p>index");
    assert_eq!(site.get("/a.txt/", "").status, 404);
    assert_eq!(site.get("/none", "").status, 404);
}

#[test]
fn a_long_directory_is_listed_page_by_page() {
    const ALL: usize = 10_050;
    let dir = tempfile::tempdir().unwrap();
    let name = |n: usize| if n < 30 { format!("d {n:05}") } else { format!("f&{n:05}") };
    for n in 0..ALL {
        match n < 30 {
            true => fs::create_dir(dir.path().join(name(n))).unwrap(),
            false => fs::write(dir.path().join(name(n)), "x".repeat(n % 3)).unwrap(),
        }
    }
    let site = Site::disk(dir.path(), Options::default());
    let mut stream = site.connect();
    let (mut names, mut next, mut pages) = (Vec::new(), Some("/".to_owned()), 0);
    while let Some(path) = next {
        let answer = site.ask(&mut stream, "GET", &path, "Accept: application/json\r\n");
        let all: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
        let entries = all["entries"].as_array().unwrap();
        names.extend(entries.iter().map(|entry| entry["name"].as_str().unwrap().to_owned()));
        assert_eq!((&all["total"], &all["complete"]), (&ALL.into(), &all["next"].is_null().into()));
        next = all["next"].as_str().map(String::from);
        let link = next.as_ref().map(|next| format!("<{next}>; rel=\"next\""));
        assert_eq!(answer.header("Link"), link.as_deref());
        pages += 1;
    }
    assert!(pages == 2 && (0..ALL).map(name).eq(names.iter().cloned()));
    // The same for people, by links.
    let (mut shown, mut next) = (0, Some("/".to_owned()));
    while let Some(path) = next {
        let page = String::from_utf8(site.ask(&mut stream, "GET", &path, "").body).unwrap();
        let rows = page.matches("<tr><th scope=\"row\"><a href=\"./").count();
        assert!(page.contains(&format!("Entries {} to {} of {ALL}", shown + 1, shown + rows)));
        shown += rows;
        let link =
            page.split_once("<a rel=\"next\" href=\"").map(|(_, link)| link.split_once('"').unwrap().0);
        next = link.map(String::from);
    }
    assert_eq!(shown, ALL);
    // After an entry that was removed meanwhile, the listing continues with those after it.
    let rest = site.get("/?after=f%2610048x", "Accept: application/json\r\n");
    let rest: serde_json::Value = serde_json::from_slice(&rest.body).unwrap();
    assert_eq!((&rest["entries"][0]["name"], &rest["next"]), (&"f&10049".into(), &serde_json::Value::Null));
    for wrong in ["/?after=", "/?after=a/b", "/?after=..", "/?after=%"] {
        assert_eq!(site.get(wrong, "").status, 400, "{wrong}");
    }
}

#[test]
fn many_that_ask_for_much_work_get_all_of_it() {
    let (dir, site) = site();
    let text = fs::read(dir.path().join("long.txt")).unwrap();
    let asks = [("/long.txt", "gzip"), ("/", "identity"), ("/long.txt", "zstd"), ("/d/", "identity")];
    let mut streams: Vec<_> = (0..80).map(|_| site.connect()).collect();
    for (at, stream) in streams.iter_mut().enumerate() {
        let (path, coding) = asks[at % asks.len()];
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nAccept-Encoding: {coding}\r\n\r\n").unwrap();
    }
    // Some do not wait for the answer.
    streams.drain(..20);
    assert_eq!(site.get("/a.txt", "").body, b"hello\n");
    for (at, stream) in streams.iter_mut().enumerate() {
        let answer = Answer::read(stream, false);
        assert_eq!(answer.status, 200);
        let mut plain = Vec::new();
        match asks[at % asks.len()].1 {
            "gzip" => drop(flate2::read::GzDecoder::new(&*answer.body).read_to_end(&mut plain).unwrap()),
            "zstd" => plain = zstd::stream::decode_all(&*answer.body).unwrap(),
            _ => assert!(answer.body.ends_with(b"</html>\n")),
        }
        assert!(plain.is_empty() || plain == text);
    }
}

#[test]
fn on_a_page_nothing_runs_but_what_it_came_with() {
    let (dir, site) = site();
    fs::write(dir.path().join("<script>alert(1)<"), "").unwrap();
    let nonce = || {
        let page = site.get("/", "");
        let policy = page.header("Content-Security-Policy").unwrap().to_owned();
        let nonce = policy.split("'nonce-").nth(1).unwrap().split('\'').next().unwrap();
        assert!(policy.starts_with("default-src 'none';") && !policy.contains("unsafe"), "{policy}");
        let text = String::from_utf8(page.body).unwrap();
        assert_eq!(text.matches("<script").count(), 1);
        assert!(text.contains(&format!("<script nonce=\"{nonce}\">")) && nonce.len() == 32);
        nonce.to_owned()
    };
    assert_ne!(nonce(), nonce());
}

#[test]
fn metrics_are_those_of_the_whole_program() {
    let says = |text: &'static str| {
        let mux = synth::Dir::new().file("metrics", synth::File::text(move |_| text.into()));
        Arc::new(synth::Tree::new(synth::Dir::new().dir("mux", mux), Duration::ZERO))
    };
    let figures = || Options { figures: Some(Arc::new(|| "process 1\n".into())), ..Options::default() };
    let metrics = |site: &Site| {
        let answer = site.get("/metrics", "");
        assert_eq!((answer.status, answer.header("Content-Type")), (200, Some("text/plain; version=0.0.4")));
        String::from_utf8(answer.body).unwrap()
    };
    let site = Site::of(says("of_mux 2\nhalf a li"), figures());
    assert!(metrics(&site).contains("\nninefold_http_response_seconds_count 0\nprocess 1\nof_mux 2\n"));
    assert!(metrics(&site).contains("\nninefold_http_response_seconds_count 1\n"));
    assert!(metrics(&site).ends_with("\nof_mux 2\n"));
    // An empty part does not suppress the rest.
    let empty = synth::Dir::new().dir("mux", synth::Dir::new());
    let site = Site::of(Arc::new(synth::Tree::new(empty, Duration::ZERO)), figures());
    let text = metrics(&site);
    let last = text.lines().last().unwrap();
    assert!(text.contains("\nprocess 1\n") && last.starts_with("# the mux: "), "{text}");
    let (_dir, site) = self::site();
    assert!(metrics(&site).ends_with("\nninefold_http_response_seconds_count 0\n"));
}

#[test]
fn text_is_compressed_for_who_reads_that() {
    let (dir, site) = site();
    let text = fs::read(dir.path().join("long.txt")).unwrap();
    let answer = site.get("/long.txt", "Accept-Encoding: gzip\r\n");
    assert_eq!(
        (answer.header("Content-Encoding"), answer.header("Vary")),
        (Some("gzip"), Some("Accept-Encoding"))
    );
    let mut plain = Vec::new();
    flate2::read::GzDecoder::new(&*answer.body).read_to_end(&mut plain).unwrap();
    assert!(plain == text && answer.body.len() < text.len() / 10);
    let answer = site.get("/long.txt", "Accept-Encoding: gzip, zstd\r\n");
    assert!(zstd::stream::decode_all(&*answer.body).unwrap() == text);
    assert!(answer.header("ETag").unwrap().ends_with("-zstd\""));
    // By the client's weights (RFC 9110, 12.5.3).
    for (accept, coding) in [
        ("gzip;q=1.0, zstd;q=0.5", Some("gzip")),
        ("*", Some("zstd")),
        ("*;q=0.5, zstd;q=0", Some("gzip")),
        ("identity, gzip;q=0.5", None),
        ("gzip;q=0.000", None),
    ] {
        let answer = site.get("/long.txt", &format!("Accept-Encoding: {accept}\r\n"));
        assert_eq!(answer.header("Content-Encoding"), coding, "{accept}");
    }
    for (path, headers) in [
        ("/long.txt", ""),
        ("/a.txt", "Accept-Encoding: gzip\r\n"),
        ("/large.bin", "Accept-Encoding: gzip\r\n"),
    ] {
        assert_eq!(site.get(path, headers).header("Content-Encoding"), None, "{path}");
    }
}

#[test]
fn who_has_the_compressed_text_is_told_that_it_is_the_same() {
    let (_dir, site) = site();
    let plain = site.get("/long.txt", "");
    for coding in ["gzip", "zstd"] {
        let ask = format!("Accept-Encoding: {coding}\r\n");
        let tag = site.get("/long.txt", &ask).header("ETag").unwrap().to_owned();
        assert_ne!(Some(&*tag), plain.header("ETag"));
        let again = site.get("/long.txt", &format!("{ask}If-None-Match: {tag}\r\n"));
        assert_eq!((again.status, again.header("ETag")), (304, Some(&*tag)));
        assert_eq!(again.header("Vary"), Some("Accept-Encoding"));
        assert_eq!(site.get("/long.txt", &format!("If-None-Match: {tag}\r\n")).status, 200);
        let mut stream = site.connect();
        let head = site.ask(&mut stream, "HEAD", "/long.txt", &ask);
        assert_eq!((head.header("ETag"), head.header("Content-Length")), (Some(&*tag), None));
    }
}

#[test]
fn what_a_program_makes_comes_whole_though_it_has_no_length() {
    let long = "a line\n".repeat(100_000);
    let text = long.clone();
    let tree = synth::Dir::new()
        .file("uptime", synth::File::text(|_| "42 days\n".into()))
        .file("long", synth::File::text(move |_| text.clone()))
        .file("none", synth::File::text(|_| String::new()))
        .file("event", synth::File::text(|_| "taken".into()).event());
    let site = Site::of(Arc::new(synth::Tree::new(tree, Duration::ZERO)), Options::default());
    for _ in 0..2 {
        let answer = site.get("/uptime", "");
        assert_eq!((answer.status, &*answer.body, answer.header("ETag")), (200, &b"42 days\n"[..], None));
    }
    assert!(site.get("/long", "").body == long.as_bytes());
    assert_eq!(site.get("/none", "").body, b"");
    // For an HTTP/1.0 client the end of the connection marks the end.
    let old = site.say(b"GET /uptime HTTP/1.0\r\n\r\n");
    assert!(old.ends_with(b"\r\n\r\n42 days\n"), "{}", String::from_utf8_lossy(&old));
    assert_eq!(site.get("/event", "").status, 403);
}

#[test]
fn each_answer_is_a_line_of_the_log() {
    let dir = tempfile::tempdir().unwrap();
    tree(dir.path());
    let (said, lines) = std::sync::mpsc::channel();
    let log: Log = Arc::new(move |entry| said.send(entry.text()).unwrap());
    let site = Site::disk(dir.path(), Options { log: Some(log), ..Options::default() });
    let mut stream = site.connect();
    for path in ["/a.txt", "/metrics?live", "/none", "/large.bin"] {
        site.ask(&mut stream, "GET", path, "User-Agent: me \"x\"\r\n");
    }
    site.say(b"GET x\r\n\r\n");
    for (path, status, least) in [("/a.txt", 200, 6), ("/none", 404, 1), ("/large.bin", 200, 3_000_000)] {
        let line: String = lines.recv_timeout(LIMIT).unwrap();
        assert!(line.starts_with("127.0.0.1 - - ["), "{line}");
        assert!(line.contains(&format!("] \"GET {path} HTTP/1.1\" {status} ")), "{line}");
        assert!(line.ends_with(" \"-\" \"me \\x22x\\x22\"\n"), "{line}");
        let bytes: u64 = line.split(' ').nth(9).unwrap().parse().unwrap();
        assert!((least..least + 2000).contains(&bytes), "{line}");
    }
    let refused = lines.recv_timeout(LIMIT).unwrap();
    assert!(refused.contains("] \"GET x\" 400 "), "{refused}");
}

#[test]
fn files_from_any_time_are_served() {
    let (dir, site) = site();
    for (seconds, name, said) in [
        (-1, "t1", Some("Wed, 31 Dec 1969 23:59:59 GMT")),
        (0, "t2", Some("Thu, 01 Jan 1970 00:00:00 GMT")),
        // The time must not be later than the answer.
        (253_402_300_800i64, "t3", None),
        (i64::from(u32::MAX) * 50, "t4", None),
    ] {
        let times = rustix::fs::Timestamps {
            last_access: rustix::fs::Timespec { tv_sec: 0, tv_nsec: 0 },
            last_modification: rustix::fs::Timespec { tv_sec: seconds, tv_nsec: 0 },
        };
        let path = dir.path().join(name);
        std::fs::write(&path, "x").unwrap();
        // Not every file system supports every time.
        let _ = rustix::fs::utimensat(rustix::fs::CWD, &path, &times, rustix::fs::AtFlags::empty());
        let answer = site.get(&format!("/{name}"), "");
        assert_eq!(answer.header("Last-Modified"), said.or(answer.header("Date")), "{seconds}");
        assert_eq!((answer.status, site.get("/", "").status), (200, 200), "{seconds}");
        let since = format!("If-Modified-Since: {}\r\n", answer.header("Last-Modified").unwrap());
        assert_eq!(site.get(&format!("/{name}"), &since).status, if said.is_some() { 304 } else { 200 });
    }
}

#[test]
fn a_file_that_is_read_in_small_pieces_is_whole_however_often_it_is_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let content = bytes(12_000);
    fs::write(dir.path().join("f"), &content).unwrap();
    let site = Site::by_messages(dir.path(), 8216);
    let mut stream = site.connect();
    for _ in 0..20 {
        assert!(site.ask(&mut stream, "GET", "/f", "").body == content);
    }
}

#[test]
fn a_file_that_is_changed_is_soon_served_as_it_is() {
    let (dir, site) = site();
    let path = dir.path().join("f");
    let versions = ["one", "two", "three, longer"];
    std::fs::write(&path, versions[0]).unwrap();
    let mut stream = site.connect();
    for (at, version) in versions.iter().enumerate() {
        match at {
            // In place, and by a new file.
            1 => std::fs::write(&path, version).unwrap(),
            _ => {
                std::fs::write(dir.path().join("new"), version).unwrap();
                std::fs::rename(dir.path().join("new"), &path).unwrap();
            }
        }
        let begun = std::time::Instant::now();
        loop {
            let answer = site.ask(&mut stream, "GET", "/f", "");
            let body = std::str::from_utf8(&answer.body).unwrap();
            if body == *version {
                break;
            }
            assert!(at > 0 && body == versions[at - 1], "{body}");
            assert!(begun.elapsed() < LIMIT, "it stays as it was");
        }
    }
}

#[test]
fn links_lead_on_within_the_tree_and_never_out_of_it() {
    use std::os::unix::fs::symlink;
    let (dir, site) = site();
    let link = |to: &str, name: &str| symlink(to, dir.path().join(name)).unwrap();
    link("a.txt", "one");
    link("../d", "d/up");
    link("one", "two");
    link("/etc/passwd", "whole");
    link("../../../../../../etc/passwd", "out");
    link("d/../../a.txt", "above");
    link("loop2", "loop1");
    link("loop1", "loop2");
    link("d/..", "here");
    assert_eq!(site.get("/two", "").body, b"hello\n");
    assert_eq!(site.get("/d/up/x.html", "").body, b"<p>x");
    assert_eq!(site.get("/here/a.txt", "").body, b"hello\n");
    assert_eq!(site.get("/here/", "").status, 200);
    for path in ["/whole", "/out", "/loop1"] {
        assert_eq!(site.get(path, "").status, 403, "{path}");
    }
}

#[test]
fn a_request_that_was_sent_before_the_stop_is_answered() {
    let (_dir, mut site) = site();
    let request = "GET /a.txt HTTP/1.1\r\nHost: x\r\n\r\n";
    let mut streams: Vec<_> = (0..60).map(|_| site.connect()).collect();
    // Some have had an answer, some are accepted, and some wait to be accepted.
    for stream in &mut streams[..20] {
        assert_eq!(site.ask(stream, "GET", "/a.txt", "").status, 200);
    }
    streams.extend((0..20).map(|_| site.connect()));
    let mut several = site.connect();
    several.write_all(request.repeat(3).as_bytes()).unwrap();
    for stream in &mut streams {
        stream.write_all(request.as_bytes()).unwrap();
    }
    site.stop();
    let of_several = (0..3).map(|_| Answer::read(&mut several, false));
    let closes: Vec<_> = of_several.map(|answer| answer.header("Connection").map(String::from)).collect();
    assert_eq!((&closes[2], several.read(&mut [0; 1]).unwrap()), (&Some("close".into()), 0));
    for (at, mut stream) in streams.into_iter().enumerate() {
        let answer = Answer::read(&mut stream, false);
        assert_eq!((answer.status, &*answer.body), (200, &b"hello\n"[..]), "{at}");
        assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0);
    }
}

#[test]
fn what_is_owed_is_sent_before_the_end_and_who_waits_is_let_go() {
    let (_dir, mut site) = site();
    let mut idle = site.connect();
    assert_eq!(site.ask(&mut idle, "GET", "/a.txt", "").status, 200);
    let mut busy = site.connect();
    busy.write_all(b"GET /large.bin HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut first = [0; 1];
    busy.read_exact(&mut first).unwrap();
    let reader = std::thread::spawn(move || {
        let mut rest = Vec::new();
        busy.read_to_end(&mut rest).unwrap();
        rest.len()
    });
    site.stop();
    assert!(reader.join().unwrap() > 3_000_000);
    assert_eq!(idle.read(&mut first).unwrap(), 0);
}
