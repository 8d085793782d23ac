//! Full disks: the archive's own, and the host's below them.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

use super::site::{self, Site};
use crate::common;

/// A directory with a small file system, unmounted at the end.
struct Small<'a>(&'a std::path::Path);

impl<'a> Small<'a> {
    /// Returns `None` if this user may not mount.
    fn mounts(dir: &'a std::path::Path, size: &str) -> Option<Self> {
        fs::create_dir(dir).unwrap();
        let mounted = rustix::process::geteuid().is_root()
            && Command::new("mount")
                .args(["-t", "tmpfs", "-o", &format!("size={size}"), "none"])
                .arg(dir)
                .output()
                .is_ok_and(|output| output.status.success());
        if !mounted {
            common::not_covered("an archive on a host's disk that is full: this user may not mount");
        }
        mounted.then_some(Self(dir))
    }
}

impl Drop for Small<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0).status();
    }
}

#[test]
fn a_full_disk_of_the_host_is_enospc_and_the_archive_goes_on_when_there_is_room() {
    let dir = tempfile::tempdir().unwrap();
    let small = dir.path().join("small");
    let Some(_small) = Small::mounts(&small, "48M") else { return };
    fs::write(small.join("other"), vec![1; 16 << 20]).unwrap();
    let mut site = Site::new();
    let archive = small.join("a").display().to_string();
    site.ok(&format!("fs ream {archive} --size 1G"));
    let server = site.serve(&format!("fs:{archive}"));
    server.fed(&["write", "--create", "/archive/kept"], b"kept\n");
    server.ok(["fs", "sync"]);
    assert_eq!(server.ok(["fs", "status", "--check"]), "");
    fs::write(server.dir.path().join("big"), vec![7; 80 << 20]).unwrap();
    let said = server.fails(["put", "-q", "big", "/archive/big"]);
    assert!(said.contains("No space left on device"), "{said}");
    let output = server.run(["fs", "status", "--check"]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.code() == Some(1) && said.starts_with("full, "), "{said}");
    assert!(server.ok(["fs", "status"]).starts_with("trouble: full, "));
    // Removals and reads still work.
    server.run(["rm", "/archive/big"]);
    assert_eq!(server.ok(["cat", "/archive/kept"]), "kept\n");
    fs::remove_file(small.join("other")).unwrap();
    // The archive checks twice a second; a sync before that still fails.
    common::until("it goes on", || server.run(["fs", "status", "--check"]).status.success());
    server.ok(["fs", "sync"]);
    server.fed(&["write", "--create", "/archive/later"], b"later\n");
    server.ok(["fs", "sync"]);
    assert_eq!(server.ok(["fs", "status", "--check"]), "");
    drop(server);
    assert!(Site::new().ok(&format!("fs check {archive}")).ends_with(" is whole\n"));
}

#[test]
fn a_file_that_is_reserved_has_its_bytes_from_the_beginning() {
    let site = Site::new();
    site.ok("fs ream ./sparse --size 40M");
    site.ok("fs ream ./reserved --size 40M --reserve");
    let stored = |name| fs::metadata(site.path(name)).unwrap().blocks() * 512;
    assert!(stored("sparse") < 20 << 20 && stored("reserved") >= 40 << 20);
    assert!(site.fails_words(&["fs", "ream", "c n w\"./reserved\"", "--reserve"]).contains("a single file"));
}

#[test]
fn a_dump_that_a_full_worm_does_not_take_ends_with_three_and_says_that_it_waits() {
    let mut site = Site::new();
    for (name, mib) in [("c", 64), ("w", 8)] {
        fs::File::create(site.path(name)).unwrap().set_len(mib << 20).unwrap();
    }
    site.ok_words(&["fs", "ream", "c w\"./c\" w\"./w\""]);
    let mut server = site.serve("fs:c w\"./c\" w\"./w\"");
    fs::write(server.dir.path().join("file"), vec![7; 16 << 20]).unwrap();
    server.ok(["put", "-q", "file", "/archive/file"]);
    let output = server.run(["fs", "dump"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(3) && said.contains("a dump waits on the cache device"), "{said}");
    assert!(String::from_utf8_lossy(&output.stdout).len() == "2026/1128\n".len());
    assert!(server.ok(["fs", "status"]).starts_with("trouble: a dump waits on the cache device: "));
    drop(site::taken(&mut server));
}
