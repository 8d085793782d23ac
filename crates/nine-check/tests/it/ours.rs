//! Our own servers meet every clause, in every dialect; and the table of cases is in order.

use std::collections::HashSet;

use nine_check::{Speaks, all};
use nine_servers::{Disk, DiskOptions, Ram};

use crate::common::{not_covered, options, real, simulated};

/// The host directory has no files of these kinds.
const SKIPPED: &[&str] = &[
    "9P2000 open/exclusive_use_opens_once",
    "9P2000 open/append_only_appends",
    "9P2000 open/append_only_is_not_truncated",
    "9P2000 open/append_only_comes_and_goes",
    "9P2000.u open/exclusive_use_opens_once",
    "9P2000.u open/append_only_appends",
    "9P2000.u open/append_only_is_not_truncated",
    "9P2000.u open/append_only_comes_and_goes",
];

#[test]
fn ram_passes() {
    simulated(Ram::new(64 << 20), options()).is_good_but_for(&[]);
}

#[test]
fn disk_passes() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Disk::open(dir.path(), DiskOptions::default()).unwrap();
    let mut run = real(disk, options());
    if run.skipped().iter().any(|name| name.contains(" xattr/")) {
        not_covered("extended attributes: the file system of this machine's scratch directories has none");
        run.reports.retain(|report| !report.case.name.starts_with("xattr/"));
    }
    run.is_good_but_for(SKIPPED);
    assert_eq!(dir.path().read_dir().unwrap().count(), 0, "something of the suite has stayed");
}

#[test]
fn every_case_has_a_name_of_its_own_and_a_clause() {
    let mut names = HashSet::new();
    for case in all() {
        assert!(names.insert(case.name), "{} stands twice", case.name);
        let (group, claim) = case.name.split_once('/').expect("a group and a claim");
        assert!(!group.is_empty() && claim.len() > 3, "{}", case.name);
        let (page, says) = case.clause.split_once([':', ',']).expect("a page and what it says");
        assert!(page.contains('(') || page.contains("9P2000"), "{}: {page} is no manual page", case.name);
        assert!(says.len() > 3, "{}: {}", case.name, case.clause);
    }
    for speaks in [Speaks::Any, Speaks::Stat, Speaks::P2000, Speaks::U, Speaks::Errno, Speaks::L] {
        assert!(all().any(|case| case.speaks == speaks), "{speaks:?}");
    }
}
