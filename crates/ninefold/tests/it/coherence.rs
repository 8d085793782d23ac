//! Each of two mounts of one server sees the other's changes at the points that programs rely on: opens, locks,
//! access(2), and open flags.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{Access, AtFlags, FlockOperation, OFlags};

use crate::common::{chmod, until};
use crate::mount::{Mounted, World, may_mount};

/// Creates two mounts of one server with this value of `--cache`.
fn two(world: &World, address: &str, cache: &str) -> [Mounted; 2] {
    fs::create_dir_all(world.path("other")).unwrap();
    ["mnt", "other"].map(|dir| world.mounted_on(dir, &[address, dir, "--cache", cache]))
}

/// Runs a check for a disk, a `ram:`, and both through a name space.
fn each(mut check: impl FnMut(&str, [&Path; 2])) {
    if !may_mount() {
        return;
    }
    let world = World::new();
    let server = world.server();
    let disk = format!("unix!{}", world.path("s").display());
    world.write(
        "both.ns",
        &format!("mount ram: /ram\nmount {disk} /disk\nlisten unix!{}\n", world.path("n").display()),
    );
    let names = crate::common::Server::in_dir(
        tempfile::tempdir().unwrap(),
        &["serve", world.path("both.ns").to_str().unwrap()],
    );
    let space = format!("unix!{}", world.path("n").display());
    for (address, dir, cache) in [
        (&disk, "", "1"),
        (&disk, "", "auto"),
        (&space, "ram", "60"),
        (&space, "disk", "1"),
        (&space, "ram", "auto"),
    ] {
        let [a, b] = two(&world, address, cache);
        check(&format!("{address} {dir} --cache {cache}"), [&a.dir.join(dir), &b.dir.join(dir)]);
    }
    drop((server, names));
}

#[test]
fn whoever_gets_a_lock_sees_the_changes_of_the_last_holder() {
    each(|world, [a, b]| {
        for name in ["posix", "flock"] {
            fs::write(a.join(name), "000").unwrap();
            until("the file is seen", || b.join(name).exists());
            let [a, b] =
                [a, b].map(|dir| File::options().read(true).write(true).open(dir.join(name)).unwrap());
            let lock = |file: &File, how| match name {
                "posix" => rustix::fs::fcntl_lock(file, how).unwrap(),
                _ => rustix::fs::flock(file, how).unwrap(),
            };
            let step = |file: &File, add: u32| {
                lock(file, FlockOperation::LockExclusive);
                let mut text = [0; 3];
                file.read_exact_at(&mut text, 0).unwrap();
                let n: u32 = std::str::from_utf8(&text).unwrap().parse().unwrap();
                if add > 0 {
                    file.write_all_at(format!("{:03}", n + add).as_bytes(), 0).unwrap();
                }
                lock(file, FlockOperation::Unlock);
                n
            };
            // Steps that only look leave the kernel with attributes it believes to be current.
            let looks_and_adds = [(&b, 0), (&a, 1), (&b, 1), (&a, 0), (&b, 1), (&b, 0), (&a, 1), (&a, 0)];
            let mut sum = 0;
            for (n, (file, add)) in looks_and_adds.into_iter().cycle().take(40).enumerate() {
                assert_eq!(step(file, add), sum, "{world} {name}, step {n}");
                sum += add;
            }
        }
    });
}

#[test]
fn an_open_after_a_close_reads_the_whole_new_file() {
    each(|world, [a, b]| {
        fs::write(a.join("f"), "x").unwrap();
        until("the file is seen", || b.join("f").exists());
        for n in 0..60 {
            // Cache the attributes first, with a longer or shorter length.
            fs::metadata(b.join("f")).unwrap();
            let text = char::from(b'a' + n % 26).to_string().repeat(usize::from(n) * 7919 % 30_000 + 1);
            fs::write(a.join("f"), &text).unwrap();
            let read = fs::read_to_string(b.join("f")).unwrap();
            assert!(read == text, "{world}, {n}: {} bytes of {}", read.len(), text.len());
        }
    });
}

#[test]
fn access_says_what_the_mode_and_the_server_say() {
    each(|world, [dir, _]| {
        let file = dir.join("f");
        fs::write(&file, "x").unwrap();
        for (mode, may_execute) in [(0o644, false), (0o755, true), (0o600, false), (0o700, true)] {
            chmod(&file, mode);
            let access = |how| rustix::fs::accessat(rustix::fs::CWD, &file, how, AtFlags::empty()).is_ok();
            let all = [Access::EXEC_OK, Access::READ_OK, Access::WRITE_OK, Access::EXISTS].map(access);
            assert_eq!(all, [may_execute, true, true, true], "{world} {mode:o}");
        }
        let is_dir = rustix::fs::accessat(rustix::fs::CWD, dir, Access::EXEC_OK, AtFlags::empty());
        assert!(is_dir.is_ok(), "{world}");
    });
}

#[test]
fn a_write_appends_if_its_descriptor_does_at_that_moment() {
    each(|world, [dir, _]| {
        let path = dir.join("f");
        fs::write(&path, "Hello, world!").unwrap();
        let set = |file: &File, flags| rustix::fs::fcntl_setfl(file.as_fd(), flags).unwrap();
        let file = File::options().append(true).open(&path).unwrap();
        set(&file, OFlags::empty());
        rustix::io::pwrite(&file, b"JELLO", 0).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "JELLO, world!", "{world}");
        set(&file, OFlags::APPEND);
        rustix::io::write(&file, b"+").unwrap();
        let file = File::options().write(true).open(&path).unwrap();
        set(&file, OFlags::APPEND);
        rustix::io::write(&file, b"!").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "JELLO, world!+!", "{world}");
    });
}

#[test]
fn a_rename_that_must_not_replace_moves_a_file_and_replaces_nothing() {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    each(|world, [dir, _]| {
        let rename =
            |old: &str, new: &str, flags| renameat_with(CWD, dir.join(old), CWD, dir.join(new), flags);
        fs::write(dir.join("a"), "A").unwrap();
        fs::write(dir.join("b"), "B").unwrap();
        assert_eq!(rename("a", "b", RenameFlags::NOREPLACE), Err(rustix::io::Errno::EXIST), "{world}");
        rename("a", "c", RenameFlags::NOREPLACE).unwrap();
        let read = |name| fs::read_to_string(dir.join(name)).ok();
        assert_eq!(["a", "b", "c"].map(read), [None, Some("B".into()), Some("A".into())], "{world}");
        assert_eq!(rename("b", "c", RenameFlags::EXCHANGE), Ok(()), "{world}");
        assert_eq!(["b", "c"].map(read), [Some("A".into()), Some("B".into())], "{world}");
        fs::create_dir(dir.join("d")).unwrap();
        assert_eq!(rename("d", "c", RenameFlags::NOREPLACE), Err(rustix::io::Errno::EXIST), "{world}");
        assert_eq!(rename("d", "e", RenameFlags::NOREPLACE), Ok(()), "{world}");
        fs::remove_dir(dir.join("e")).unwrap();
        fs::remove_file(dir.join("c")).unwrap();
    });
}
