//! Archives whose dumps are shown: calendars, and versions of files.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use nine_gate::http::{Options, Pair};
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};

use crate::http::site::Site;

/// Creates a directory that looks like an archive and its dumps.
fn tree(dir: &Path) {
    let put = |path: &str, text: &str, changed: i64| {
        let path = dir.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        let time = Timespec { tv_sec: changed, tv_nsec: 0 };
        let times = Timestamps { last_access: time, last_modification: time };
        utimensat(CWD, &path, &times, AtFlags::empty()).unwrap();
    };
    put("archive/now only", "new", 1_700_000_000);
    put("archive/d/<b>", "three", 1_600_000_000);
    put("dump/2025/1231/d/<b>", "one", 1_500_000_000);
    put("dump/2026/1119/other", "", 0);
    // An unchanged file keeps its version.
    for day in ["1121", "11211"] {
        let there = dir.join("dump/2026").join(day).join("d");
        fs::create_dir_all(&there).unwrap();
        fs::hard_link(dir.join("archive/d/<b>"), there.join("<b>")).unwrap();
    }
    put("dump/lost+found/x", "", 0);
    for number in 1..=5 {
        fs::create_dir(dir.join(format!("dump/2026/0203{number}"))).unwrap();
    }
    fs::create_dir(dir.join("dump/2026/0203")).unwrap();
}

fn site() -> (tempfile::TempDir, Site) {
    let dir = tempfile::tempdir().unwrap();
    tree(dir.path());
    let pair = Pair { archive: b"archive".to_vec(), below: Vec::new(), dumps: b"dump".to_vec() };
    let archives: nine_gate::http::Pairs = Arc::new(move || vec![pair.clone()]);
    let site = Site::disk(dir.path(), Options { archives: Some(archives), ..Options::default() });
    (dir, site)
}

fn page(site: &Site, path: &str) -> String {
    let answer = site.get(path, "");
    assert_eq!(answer.status, 200, "{path}");
    assert!(answer.header("Content-Security-Policy").is_some(), "{path}");
    String::from_utf8(answer.body).unwrap()
}

fn json(site: &Site, path: &str) -> serde_json::Value {
    serde_json::from_slice(&site.get(path, "Accept: application/json\r\n").body).unwrap()
}

#[test]
fn each_file_of_an_archive_has_its_versions() {
    let (_dir, site) = site();
    let listing = page(&site, "/archive/d/");
    for part in ["href=\"./%3Cb%3E?versions\"", "href=\"./?versions\"", "<th scope=\"col\">Before</th>"] {
        assert!(listing.contains(part), "{part} in {listing}");
    }
    let found = page(&site, "/archive/d/%3Cb%3E?versions");
    for part in [
        "Versions of /archive/d/&lt;b&gt;",
        "2 versions, newest first",
        "<th scope=\"row\">2026/1121 to now</th>",
        "href=\"/dump/2026/1121/d/%3Cb%3E\">download</a>",
        "<th scope=\"row\">2026/0203 to 2026/1119</th><td class=\"n\"></td><td>removed</td>",
        "<th scope=\"row\">2025/1231</th><td class=\"n\" title=\"3 bytes\">3 B</td>",
        "href=\"/dump/2025/1231/d/%3Cb%3E\">download</a>",
    ] {
        assert!(found.contains(part), "{part} in {found}");
    }
    assert!(!found.contains("<b>") && !found.contains("<script"));
    // The same from a path in a dump, and as JSON.
    let all = json(&site, "/dump/2025/1231/d/%3Cb%3E?versions");
    assert_eq!((&all["complete"], &all["versions"][0]["first"]), (&true.into(), &"2026/1121".into()));
    assert_eq!(
        (&all["versions"][0]["last"], &all["versions"][2]["size"]),
        (&serde_json::Value::Null, &3.into())
    );
    assert_eq!(all["versions"][1]["type"], "removed");
    // A directory, a new file, a removed one, and one that never existed.
    let found = page(&site, "/archive/d?versions");
    assert!(found.contains("href=\"/dump/2025/1231/d/\">open</a>"), "{found}");
    assert_eq!(json(&site, "/archive/now%20only?versions")["versions"][0]["first"], serde_json::Value::Null);
    assert!(page(&site, "/archive/other?versions").contains(">removed<"));
    assert_eq!(site.get("/archive/none?versions", "").status, 404);
    // Versions before a dump.
    let all = json(&site, "/archive/d/%3Cb%3E?versions&before=2026/1121");
    assert_eq!(
        (&all["versions"][0]["type"], &all["versions"][1]["last"]),
        (&"removed".into(), &"2025/1231".into())
    );
    assert_eq!(json(&site, "/archive/d/%3Cb%3E?versions&before=2026%2F1121"), all);
    assert_eq!(site.get("/archive/d/%3Cb%3E?versions&before=x", "").status, 400);
    // Outside of archives the query has no effect.
    assert!(page(&site, "/?versions").contains("id=\"files\""));
    assert!(!page(&site, "/").contains("?versions"));
}

#[test]
fn dumps_are_a_calendar() {
    let (_dir, site) = site();
    let all = page(&site, "/dump/");
    for part in [
        "<caption>November 2026</caption>",
        "<a href=\"./2026/1119/\">19</a></td>",
        ">21</a> <a class=\"soft\" aria-label=\"number 2 of 11-21\" href=\"./2026/11211/\">2</a>",
        "href=\"./2026/?day=0203\">+5</a>",
        "href=\"./2025/\"",
    ] {
        assert!(all.contains(part), "{part} in {all}");
    }
    assert!(!all.contains("2025</caption>"));
    let year = page(&site, "/dump/2026/");
    assert!(year.contains("<a href=\"./1119/\">19</a>") && year.contains("9 entries"), "{year}");
    let day = page(&site, "/dump/2026/?day=0203");
    assert!(day.contains("6 entries") && !day.contains("href=\"./1119/\""), "{day}");
    assert!(!page(&site, "/dump/2026/1121/").contains("months\""));
    assert_eq!(json(&site, "/dump/2026/?day=1121")["entries"].as_array().unwrap().len(), 2);
}

#[test]
fn thousands_of_dumps_are_looked_at_by_and_by() {
    let dir = tempfile::tempdir().unwrap();
    for number in 0..2500 {
        let name = if number == 0 { "0101".into() } else { format!("0101{number}") };
        let dump = dir.path().join("dump/2026").join(name);
        fs::create_dir_all(&dump).unwrap();
        if number % 500 < 250 {
            fs::write(dump.join("f"), vec![b'x'; number / 500]).unwrap();
        }
    }
    fs::create_dir(dir.path().join("archive")).unwrap();
    let pair = Pair { archive: b"archive".to_vec(), below: Vec::new(), dumps: b"dump".to_vec() };
    let archives: nine_gate::http::Pairs = Arc::new(move || vec![pair.clone()]);
    let site = Site::disk(dir.path(), Options { archives: Some(archives), ..Options::default() });
    let first = json(&site, "/archive/f?versions");
    assert_eq!((&first["complete"], &first["before"]), (&false.into(), &"2026/0101500".into()));
    assert!(page(&site, "/archive/f?versions").contains("href=\"?versions&amp;before=2026/0101500\""));
    let rest = json(&site, "/archive/f?versions&before=2026/0101500");
    assert_eq!((&rest["complete"], &rest["before"]), (&true.into(), &serde_json::Value::Null));
    // As many dumps as one answer reads, and a year before them.
    let old = dir.path().join("dump/2025/1231");
    fs::create_dir_all(&old).unwrap();
    fs::write(old.join("f"), "old").unwrap();
    let first = json(&site, "/archive/f?versions&before=2026/01012000");
    assert_eq!((&first["complete"], &first["before"]), (&false.into(), &"2026/0101".into()));
    let rest = json(&site, "/archive/f?versions&before=2026/0101");
    assert_eq!((&rest["complete"], &rest["versions"][0]["first"]), (&true.into(), &"2025/1231".into()));
}
