//! The tree of dents alone: one for each name, constant identities, a bounded number of descriptors.

use std::fs;
use std::path::Path;
use std::sync::atomic::AtomicUsize;

use rustix::fs::CWD;

use super::super::host::Linux;
use super::*;

fn tree(path: &Path, handles: usize) -> DentryTree {
    let fd = rustix::fs::openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
    let st = Linux.stat(fd.as_fd(), b"").unwrap();
    DentryTree::new(fd, &st, handles)
}

fn step(tree: &DentryTree, dir: &Arc<HostDentry>, name: &str) -> Result<Arc<HostDentry>> {
    let _still = tree.still(ExecutionMode::Pool)?;
    let fd = tree.handle_still(&Linux, ExecutionMode::Pool, dir)?;
    tree.step(&Linux, ExecutionMode::Pool, dir, &fd, name.as_bytes()).map(|(dent, _)| dent)
}

fn living(tree: &DentryTree) -> usize {
    lock(&tree.table.map).len()
}

#[test]
fn one_name_is_one_dent_as_long_as_it_lives() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("a")).unwrap();
    let tree = tree(dir.path(), 100);
    let a = step(&tree, &tree.root, "a").unwrap();
    assert!(Arc::ptr_eq(&a, &step(&tree, &tree.root, "a").unwrap()));
    assert_eq!(living(&tree), 1);
    drop(a);
    assert_eq!(living(&tree), 0);
    assert_eq!(step(&tree, &tree.root, "none").err(), Some(Errno::NOENT));
}

#[test]
fn a_replaced_file_gets_a_dent_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    fs::write(&path, "old").unwrap();
    let tree = tree(dir.path(), 100);
    let old = step(&tree, &tree.root, "f").unwrap();
    fs::write(dir.path().join("g"), "new").unwrap();
    fs::rename(dir.path().join("g"), &path).unwrap();
    let new = step(&tree, &tree.root, "f").unwrap();
    assert!(!Arc::ptr_eq(&old, &new) && old.is_gone() && !new.is_gone());
    drop(old);
    // The dropped dent must not have removed the other one's entry from the table.
    assert!(Arc::ptr_eq(&new, &tree.known(&tree.root, b"f").unwrap()));
}

#[test]
fn a_descriptor_that_was_given_up_comes_back_for_the_same_file_only() {
    let dir = tempfile::tempdir().unwrap();
    let tree = tree(dir.path(), 4);
    let mut dents = Vec::new();
    for i in 0..20 {
        fs::write(dir.path().join(i.to_string()), "").unwrap();
        dents.push(step(&tree, &tree.root, &i.to_string()).unwrap());
    }
    assert!(dents.iter().filter(|dent| lock(&dent.handle).is_some()).count() <= 4);
    for dent in &dents {
        let fd = tree.handle(&Linux, ExecutionMode::Pool, dent).unwrap();
        assert_eq!(HostFileIdentity::of(&Linux.stat(fd.as_fd(), b"").unwrap()), dent.id);
    }
    fs::write(dir.path().join("new"), "").unwrap();
    fs::rename(dir.path().join("new"), dir.path().join("0")).unwrap();
    fs::remove_file(dir.path().join("1")).unwrap();
    drop(lock(&dents[0].handle).take());
    for dent in &dents[..2] {
        assert_eq!(tree.handle(&Linux, ExecutionMode::Pool, dent).err(), Some(Errno::STALE));
    }
}

#[test]
fn a_file_without_a_name_keeps_its_descriptor() {
    let dir = tempfile::tempdir().unwrap();
    let tree = tree(dir.path(), 8);
    fs::write(dir.path().join("f"), "").unwrap();
    let gone = step(&tree, &tree.root, "f").unwrap();
    fs::remove_file(dir.path().join("f")).unwrap();
    tree.forget(&gone);
    for i in 0..50 {
        fs::write(dir.path().join(i.to_string()), "").unwrap();
        step(&tree, &tree.root, &i.to_string()).unwrap();
    }
    assert!(tree.handle(&Linux, ExecutionMode::Inline, &gone).is_ok());
}

#[test]
fn what_is_below_a_renamed_directory_moves_along() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join("a/b")).unwrap();
    fs::create_dir_all(dir.path().join("x")).unwrap();
    let tree = tree(dir.path(), 2);
    let a = step(&tree, &tree.root, "a").unwrap();
    let b = step(&tree, &a, "b").unwrap();
    let x = step(&tree, &tree.root, "x").unwrap();
    fs::rename(dir.path().join("a"), dir.path().join("x/y")).unwrap();
    tree.rekey(&a, &x, b"y");
    for dent in [&a, &b] {
        drop(lock(&dent.handle).take());
    }
    assert!(tree.handle(&Linux, ExecutionMode::Pool, &b).is_ok());
    assert!(b.is_below(&x) && Arc::ptr_eq(&step(&tree, &x, "y").unwrap(), &a));
    assert!(tree.known(&tree.root, b"a").is_none());
}

#[test]
fn a_move_that_would_close_a_ring_gives_the_dent_up() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join("a/b")).unwrap();
    let tree = tree(dir.path(), 100);
    let a = step(&tree, &tree.root, "a").unwrap();
    let b = step(&tree, &a, "b").unwrap();
    tree.rekey(&a, &b, b"a");
    assert!(a.is_gone() && !a.is_below(&b));
}

#[test]
fn nobody_descends_while_something_is_moved() {
    let dir = tempfile::tempdir().unwrap();
    let tree = tree(dir.path(), 100);
    let moving = tree.moving();
    assert_eq!(tree.still(ExecutionMode::Inline).err(), Some(Errno::AGAIN));
    drop(moving);
    assert!(tree.still(ExecutionMode::Inline).is_ok());
}

#[test]
fn a_tree_deeper_than_the_stack_is_dropped() {
    let dir = tempfile::tempdir().unwrap();
    let tree = tree(dir.path(), 100);
    let mut dent = tree.root.clone();
    for _ in 0..200_000 {
        dent = tree.intern(&dent, b"d", dent.id);
    }
    assert_eq!(living(&tree), 200_000);
    drop(dent);
    assert_eq!(living(&tree), 0);
}

#[test]
fn a_walked_fid_costs_at_most_250_bytes() {
    // The dent and its counts, its name in at most 16 bytes, its table entry at the lowest load, its ring entry.
    let dent = size_of::<HostDentry>() + 2 * size_of::<AtomicUsize>();
    let node = size_of::<super::super::DiskFidState>() + 2 * size_of::<AtomicUsize>();
    let slot = 2 * size_of::<(u64, Weak<HostDentry>)>();
    let ring = 2 * size_of::<Weak<HostDentry>>();
    assert!(dent + node + slot + ring + 16 <= 250, "{dent} + {node} + {slot} + {ring} + 16");
}

#[test]
fn dents_that_are_gone_take_no_memory() {
    let dir = tempfile::tempdir().unwrap();
    for i in 0..10 {
        fs::write(dir.path().join(i.to_string()), "").unwrap();
    }
    let tree = tree(dir.path(), 1 << 20);
    let kept: Vec<_> = (0..5).map(|i| step(&tree, &tree.root, &i.to_string()).unwrap()).collect();
    for i in 0..100_000 {
        step(&tree, &tree.root, &(5 + i % 5).to_string()).unwrap();
    }
    assert_eq!(living(&tree), kept.len());
    assert!(lock(&tree.handles.ring).len() <= 4 * kept.len());
}

#[test]
fn the_event_loop_does_not_climb_a_deep_tree_again() {
    let dir = tempfile::tempdir().unwrap();
    let depth = REOPENED_INLINE + 5;
    fs::create_dir_all(dir.path().join("d/".repeat(depth))).unwrap();
    let tree = tree(dir.path(), 100);
    let mut path = vec![tree.root.clone()];
    for _ in 0..depth {
        path.push(step(&tree, path.last().unwrap(), "d").unwrap());
    }
    path[1..].iter().for_each(|dent| drop(lock(&dent.handle).take()));
    let last = path.last().unwrap();
    assert_eq!(tree.handle(&Linux, ExecutionMode::Inline, last).err(), Some(Errno::AGAIN));
    tree.handle(&Linux, ExecutionMode::Pool, last).unwrap();
}
