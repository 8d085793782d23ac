//! `mount`, `unmount` and `ns`: files of servers for programs without 9P, by the kernel's FUSE.
//!
//! Tests that need root are skipped for other users, with a note. Tests for ordinary users get a /dev/fuse with its
//! usual mode, in a mount name space that ends with the test.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, geteuid, kill_process};

use crate::common::{Server, chmod, copy_program, ended_within, ninefold, not_covered, until};

/// Longer than anything here takes, unless it hangs.
const LIMIT: Duration = Duration::from_mins(1);

/// Returns whether this user may mount here.
pub fn may_mount() -> bool {
    let device = File::options().read(true).write(true).open("/dev/fuse");
    let may = geteuid().is_root() && device.is_ok();
    if !may {
        not_covered("mounts: this is not root, or there is no /dev/fuse");
    }
    may
}

/// The directories `files` and `mnt`, and name space files.
pub struct World(tempfile::TempDir);

impl World {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        chmod(dir.path(), 0o755);
        for name in ["files", "mnt"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        fs::write(dir.path().join("files/motd"), "welcome\n").unwrap();
        Self(dir)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    fn command<S: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = S>) -> Command {
        let mut command = ninefold(self.0.path());
        command.args(words).stdin(Stdio::null());
        command
    }

    fn run<S: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = S>) -> Output {
        self.command(words).output().unwrap()
    }

    /// Runs a command that must fail with status 1. Returns its error text.
    #[track_caller]
    fn fails(&self, words: &[&str]) -> String {
        let output = self.run(words);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{words:?}: {said}");
        said
    }

    /// Mounts on `mnt` in the foreground.
    fn mounted(&self, words: &[&str]) -> Mounted {
        self.mounted_on("mnt", words)
    }

    /// Mounts on another directory, which is among the words.
    pub fn mounted_on(&self, dir: &str, words: &[&str]) -> Mounted {
        let log = File::create(self.path("log")).unwrap();
        let mut command = self.command(["mount", "-f"]);
        let mut child = command.args(words).stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        let dir = self.0.path().canonicalize().unwrap().join(dir);
        let mounted = Mounted { child, dir: dir.clone(), _out: out };
        let log = fs::read_to_string(self.path("log")).unwrap();
        assert_eq!(line, format!("mounted on {}\n", dir.display()), "{log}");
        mounted
    }

    /// Starts a server of `files` at the socket `s`.
    pub fn server(&self) -> Server {
        let socket = format!("unix!{}", self.path("s").display());
        let files = self.path("files");
        let line = ["serve", files.to_str().unwrap(), "--listen", &socket];
        Server::in_dir(tempfile::tempdir().unwrap(), &line)
    }

    fn script(&self, words: &[&str], text: &str) -> Output {
        self.run([&["ns"], words, &["--", "sh", "-c", text]].concat())
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // Unmount first: the removal of the directory would also remove the files in the mount.
        take(&self.path("mnt"));
    }
}

pub struct Mounted {
    child: Child,
    pub dir: PathBuf,
    _out: BufReader<ChildStdout>,
}

impl Mounted {
    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    #[track_caller]
    fn ends(&mut self) -> ExitStatus {
        ended_within(&mut self.child, LIMIT).expect("it ends")
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // This fails if the process has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
        take(&self.dir);
    }
}

/// Unmounts the directory, whatever is mounted there.
fn take(dir: &Path) {
    let _ = Command::new("umount").arg("-l").arg(dir).stderr(Stdio::null()).status();
}

/// Returns the mount options of a directory, if it is a mount point.
fn options(dir: &Path) -> Option<String> {
    let mounts = fs::read_to_string("/proc/mounts").unwrap();
    let dir = dir.canonicalize().unwrap_or(dir.into());
    let is_it = |line: &&str| line.split(' ').nth(1).is_some_and(|at| Path::new(at) == dir);
    mounts.lines().rfind(is_it).map(str::to_owned)
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[track_caller]
fn out(output: &Output) -> String {
    assert!(output.status.success(), "{}: {}", output.status, said(output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Does what programs do with files.
fn used(dir: &Path, behind: &Path) {
    assert_eq!(fs::read_to_string(dir.join("motd")).unwrap(), "welcome\n");
    fs::create_dir(dir.join("sub")).unwrap();
    let text: Vec<u8> = (0..1_000_000_u32).flat_map(u32::to_le_bytes).collect();
    fs::write(dir.join("sub/big"), &text).unwrap();
    assert!(fs::read(behind.join("sub/big")).unwrap() == text);
    assert!(fs::read(dir.join("sub/big")).unwrap() == text);
    let mut file = File::options().read(true).write(true).open(dir.join("sub/big")).unwrap();
    file.write_all_at(b"here", 1_234_567).unwrap();
    file.seek(SeekFrom::Start(1_234_565)).unwrap();
    let mut piece = [0; 8];
    file.read_exact(&mut piece).unwrap();
    assert_eq!(&piece[2..6], b"here");
    file.set_len(10).unwrap();
    file.sync_all().unwrap();
    assert_eq!(fs::metadata(behind.join("sub/big")).unwrap().len(), 10);
    fs::rename(dir.join("sub/big"), dir.join("small")).unwrap();
    symlink("small", dir.join("link")).unwrap();
    assert_eq!(fs::read_link(dir.join("link")).unwrap(), Path::new("small"));
    assert_eq!(fs::read(dir.join("link")).unwrap(), &text[..10]);
    fs::hard_link(dir.join("small"), dir.join("hard")).unwrap();
    assert_eq!(fs::metadata(dir.join("hard")).unwrap().nlink(), 2);
    let mut names: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["hard", "link", "motd", "small", "sub"]);
    // An open file stays usable after its removal.
    fs::remove_file(dir.join("small")).unwrap();
    file.write_all_at(b"0", 0).unwrap();
    drop(file);
    fs::remove_file(dir.join("hard")).unwrap();
    fs::remove_file(dir.join("link")).unwrap();
    fs::remove_dir(dir.join("sub")).unwrap();
    assert!(!dir.join("small").exists() && !behind.join("sub").exists());
    let mut appended = File::options().append(true).open(dir.join("motd")).unwrap();
    writeln!(appended, "again").unwrap();
    assert_eq!(fs::read_to_string(behind.join("motd")).unwrap(), "welcome\nagain\n");
    fs::write(behind.join("motd"), "welcome\n").unwrap();
    exchanged(dir);
    // A running program is mapped into memory.
    copy_program("/bin/true", dir.join("true"));
    assert!(Command::new(dir.join("true")).status().unwrap().success());
    fs::remove_file(dir.join("true")).unwrap();
    mapped(dir, behind);
}

/// Tests the flags of renameat2(2), on files and directories.
fn exchanged(dir: &Path) {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    let rename = |old: &str, new: &str, flags| renameat_with(CWD, dir.join(old), CWD, dir.join(new), flags);
    fs::create_dir(dir.join("sub")).unwrap();
    fs::write(dir.join("sub/below"), "below").unwrap();
    fs::write(dir.join("one"), "1").unwrap();
    let held = File::open(dir.join("one")).unwrap();
    assert_eq!(rename("one", "sub", RenameFlags::NOREPLACE), Err(rustix::io::Errno::EXIST));
    assert_eq!(rename("one", "none", RenameFlags::EXCHANGE), Err(rustix::io::Errno::NOENT));
    assert_eq!(rename("one", "sub", RenameFlags::EXCHANGE), Ok(()));
    assert_eq!(fs::read_to_string(dir.join("one/below")).unwrap(), "below");
    assert_eq!(fs::read_to_string(dir.join("sub")).unwrap(), "1");
    let mut text = [0; 1];
    held.read_exact_at(&mut text, 0).unwrap();
    assert_eq!(&text, b"1");
    assert_eq!(rename("one", "two", RenameFlags::NOREPLACE), Ok(()));
    assert_eq!(fs::read_to_string(dir.join("two/below")).unwrap(), "below");
    fs::remove_dir_all(dir.join("two")).unwrap();
    fs::remove_file(dir.join("sub")).unwrap();
}

/// Two threads exchange directories and files in them, and read them at the same time. Afterwards each name leads to
/// the same file as on the server.
fn exchanged_by_two(dir: &Path, behind: &Path) {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    let exchange = |one: &str, two: &str| {
        renameat_with(CWD, dir.join(one), CWD, dir.join(two), RenameFlags::EXCHANGE).unwrap();
    };
    for name in ["one", "two"] {
        fs::create_dir(dir.join(name)).unwrap();
        fs::write(dir.join(name).join("file"), name).unwrap();
    }
    for _ in 0..4 {
        std::thread::scope(|scope| {
            for (one, two) in [("one/file", "two/file"), ("one", "two")] {
                scope.spawn(move || {
                    for _ in 0..100 {
                        exchange(one, two);
                        let text = fs::read_to_string(dir.join("one/file")).unwrap();
                        assert!(text == "one" || text == "two", "{text}");
                        assert_eq!(fs::read_dir(dir.join("one")).unwrap().count(), 1);
                    }
                });
            }
        });
        let texts =
            |dir: &Path| ["one/file", "two/file"].map(|name| fs::read_to_string(dir.join(name)).unwrap());
        assert_eq!(texts(dir), texts(behind));
    }
    fs::write(dir.join("two/file"), "written").unwrap();
    assert_eq!(fs::read_to_string(behind.join("two/file")).unwrap(), "written");
    fs::remove_dir_all(dir.join("one")).unwrap();
    fs::remove_dir_all(dir.join("two")).unwrap();
}

/// Writes through a shared memory map.
fn mapped(dir: &Path, behind: &Path) {
    fs::write(dir.join("map"), [b'.'; 10_000]).unwrap();
    let program = "import mmap, sys
with open(sys.argv[1], 'r+b') as f:
    m = mmap.mmap(f.fileno(), 0)
    m[5000:5004] = b'here'
    m.flush()
    print(m[4999:5005].decode())
";
    match Command::new("python3").args(["-c", program]).arg(dir.join("map")).output() {
        Ok(output) => {
            assert_eq!(out(&output), ".here.\n");
            assert_eq!(&fs::read(behind.join("map")).unwrap()[4999..5005], b".here.");
        }
        Err(_) => not_covered("a file that is mapped and written: there is no python3"),
    }
    fs::remove_file(dir.join("map")).unwrap();
}

#[test]
fn a_server_of_this_command_is_mounted_and_used() {
    if !may_mount() {
        return;
    }
    let world = World::new();
    let mut mounted = world.mounted(&["disk:files", "mnt"]);
    let shown = options(&mounted.dir).unwrap();
    assert!(shown.starts_with("disk:") && shown.contains(" fuse.ninefold rw,nosuid,nodev,"), "{shown}");
    used(&mounted.dir, &world.path("files"));
    exchanged_by_two(&mounted.dir, &world.path("files"));
    mounted.signal(Signal::TERM);
    assert_eq!(mounted.ends().code(), Some(0));
    assert_eq!(options(&mounted.dir), None);
}

#[test]
fn a_server_elsewhere_is_mounted_and_used() {
    if !may_mount() {
        return;
    }
    let world = World::new();
    let _server = world.server();
    for server in ["unix!s", "s"] {
        let mounted = world.mounted(&[server, "mnt"]);
        used(&mounted.dir, &world.path("files"));
        exchanged_by_two(&mounted.dir, &world.path("files"));
    }
    // Mount a part of the tree, and the default server.
    fs::create_dir(world.path("files/part")).unwrap();
    fs::write(world.path("files/part/of"), "it").unwrap();
    let part = format!("unix:{}/part", world.path("s").display());
    let mounted = world.mounted(&[&part, "mnt"]);
    assert_eq!(fs::read_to_string(mounted.dir.join("of")).unwrap(), "it");
    drop(mounted);
    let server = format!("unix!{}", world.path("s").display());
    let mounted = world.mounted(&["--server", &server, ":/part", "mnt"]);
    assert_eq!(fs::read_to_string(mounted.dir.join("of")).unwrap(), "it");
    drop(mounted);
    let file = format!("unix:{}/part/of", world.path("s").display());
    assert!(world.fails(&["mount", "-f", &file, "mnt"]).contains("is no directory"));
    let none = format!("unix:{}/none", world.path("s").display());
    assert!(world.fails(&["mount", &none, "mnt"]).contains("No such file"));
    assert!(world.fails(&["mount", "unix!absent", "mnt"]).contains("Is a server running there?"));
    assert_eq!(options(&world.path("mnt")), None);
    // Of equal servers the first one may be away.
    let equal = format!("unix!{},{server}", world.path("absent").display());
    let mounted = world.mounted(&[&equal, "mnt"]);
    assert_eq!(fs::read_to_string(mounted.dir.join("motd")).unwrap(), "welcome\n");
}

#[test]
fn a_name_space_is_mounted() {
    if !may_mount() {
        return;
    }
    let world = World::new();
    world.write("home.ns", "mount disk:files /n/lab\nmount ram: /tmp\nspace other\nmount ram: /else\n");
    let mounted = world.mounted(&["home.ns", "mnt"]);
    assert_eq!(fs::read_to_string(mounted.dir.join("n/lab/motd")).unwrap(), "welcome\n");
    fs::copy(mounted.dir.join("n/lab/motd"), mounted.dir.join("tmp/copy")).unwrap();
    let moved = fs::rename(mounted.dir.join("tmp/copy"), mounted.dir.join("n/lab/copy")).unwrap_err();
    assert_eq!(moved.kind(), std::io::ErrorKind::CrossesDevices);
    drop(mounted);
    let mounted = world.mounted(&["home.ns", "mnt", "--aname", "other"]);
    assert!(mounted.dir.join("else").is_dir() && !mounted.dir.join("n").exists());
}

/// Returns the value of `u::OWNER,u:1235:rw,g::GROUP,m::MASK,o::OTHER` as an extended attribute.
fn list_for_1235(owner: u16, group: u16, mask: u16, other: u16) -> Vec<u8> {
    let nobody = u32::MAX;
    let entries =
        [(1u16, owner, nobody), (2, 6, 1235), (4, group, nobody), (16, mask, nobody), (32, other, nobody)];
    let mut value = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        value.extend([tag.to_le_bytes(), perm.to_le_bytes()].concat());
        value.extend(id.to_le_bytes());
    }
    value
}

#[test]
fn access_control_lists_count_in_a_mount() {
    if !may_mount() {
        return;
    }
    let world = World::new();
    let set = |path: &Path, name: &str, value: &[u8]| {
        rustix::fs::setxattr(path, name, value, rustix::fs::XattrFlags::empty())
    };
    if set(&world.path("files/motd"), "system.posix_acl_access", &list_for_1235(6, 4, 6, 4)).is_err() {
        return not_covered("access control lists: the temporary directory's file system has none");
    }
    world.write("home.ns", "mount disk:files /disk\nmount ram: /ram\n");
    let mode_of = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
    for options in [&["home.ns", "mnt"][..], &["home.ns", "mnt", "--allow-other"]] {
        let mounted = world.mounted(options);
        for server in ["disk", "ram"] {
            let dir = mounted.dir.join(server).join(options.len().to_string());
            fs::create_dir(&dir).unwrap();
            chmod(&dir, 0o755);
            // A new mode takes effect at once, although the kernel caches attributes.
            let file = dir.join("f");
            fs::write(&file, "secret\n").unwrap();
            std::os::unix::fs::chown(&file, Some(1234), Some(50)).unwrap();
            chmod(&file, 0o600);
            assert_eq!(mode_of(&file), 0o600);
            set(&file, "system.posix_acl_access", &list_for_1235(6, 0, 6, 0)).unwrap();
            assert_eq!(mode_of(&file), 0o660, "{server} {options:?}");
            chmod(&file, 0o640);
            let mut value = [0; 100];
            let len = rustix::fs::getxattr(&file, "system.posix_acl_access", &mut value).unwrap();
            assert_eq!(value[..len], list_for_1235(6, 0, 4, 0));
            if options.contains(&"--allow-other") {
                let reads = |uid: &str, gid: &str| {
                    let mut command = Command::new("setpriv");
                    command.args(["--reuid", uid, "--regid", gid, "--clear-groups", "cat"]).arg(&file);
                    command.output().unwrap().status.success()
                };
                // A member of the group, denied by the list; a user on the list; the owner; another user.
                let all = [("1236", "50"), ("1235", "1235"), ("1234", "1234"), ("1237", "1237")];
                assert_eq!(all.map(|(uid, gid)| reads(uid, gid)), [false, true, true, false], "{server}");
            }
            // The umask applies if there is no default list.
            let script = "umask 077; mkdir d; : >d/before; mkdir d/without";
            let made = |script: &str| {
                let output = Command::new("sh").args(["-ec", script]).current_dir(&dir).output().unwrap();
                out(&output)
            };
            made(script);
            set(&dir.join("d"), "system.posix_acl_default", &list_for_1235(7, 5, 7, 1)).unwrap();
            made("umask 077; : >d/f; mkdir d/d; mkfifo d/p; mkdir d/without/d");
            let modes = ["before", "without", "without/d", "f", "d", "p"]
                .map(|name| mode_of(&dir.join("d").join(name)));
            assert_eq!(modes, [0o600, 0o700, 0o700, 0o660, 0o771, 0o660], "{server} {options:?}");
        }
    }
}

#[test]
fn it_ends_when_it_is_unmounted() {
    if !may_mount() {
        return;
    }
    let world = World::new();
    let mut mounted = world.mounted(&["disk:files", "mnt"]);
    assert!(Command::new("umount").arg(&mounted.dir).status().unwrap().success());
    assert_eq!(mounted.ends().code(), Some(0));
    let mut mounted = world.mounted(&["disk:files", "mnt"]);
    assert_eq!(out(&world.run(["unmount", "mnt"])), "");
    assert_eq!(mounted.ends().code(), Some(0));
    // A mount in use stays, unless --lazy is given.
    let mut mounted = world.mounted(&["disk:files", "mnt"]);
    let mut open = File::open(mounted.dir.join("motd")).unwrap();
    assert!(world.fails(&["unmount", "mnt"]).contains("it is in use: `fuser -m` shows by whom"));
    out(&world.run(["unmount", "--lazy", "mnt"]));
    assert_eq!(options(&mounted.dir), None);
    let mut text = String::new();
    open.read_to_string(&mut text).unwrap();
    assert_eq!(text, "welcome\n");
    drop(open);
    assert_eq!(mounted.ends().code(), Some(0));
}

#[test]
fn a_signal_unmounts_also_what_is_in_use() {
    if !may_mount() {
        return;
    }
    let world = World::new();
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let mut mounted = world.mounted(&["disk:files", "mnt"]);
        let open = File::open(mounted.dir.join("motd")).unwrap();
        mounted.signal(signal);
        assert_eq!(mounted.ends().code(), Some(0));
        assert_eq!(options(&mounted.dir), None);
        drop(open);
    }
}

/// Returns the processes with this text in their command line.
fn processes(text: &str) -> Vec<(i32, PathBuf)> {
    let all = fs::read_dir("/proc").unwrap().flatten();
    let found = all.filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let words = fs::read(entry.path().join("cmdline")).ok()?;
        String::from_utf8_lossy(&words).contains(text).then(|| (pid, entry.path()))
    });
    found.collect()
}

#[test]
fn in_the_background_it_keeps_nothing_of_its_caller() {
    if !may_mount() {
        return;
    }
    let world = World::new();
    let _server = world.server();
    let (mnt, server) = (world.path("mnt"), format!("unix!{}", world.path("s").display()));
    // The caller's pipes reach EOF although the background process continues.
    let mut command = Command::new("sh");
    command.args(["-c", "exec \"$0\" mount \"$1\" \"$2\" 7>kept", env!("CARGO_BIN_EXE_ninefold")]);
    let output =
        command.args([server.as_ref(), mnt.as_os_str()]).current_dir(world.0.path()).output().unwrap();
    assert_eq!((out(&output), said(&output)), Default::default());
    let found = processes(mnt.to_str().unwrap());
    let [(pid, dir)] = &found[..] else { panic!("{found:?}") };
    assert_eq!(fs::read_link(dir.join("cwd")).unwrap(), Path::new("/"));
    let stat = fs::read_to_string(dir.join("stat")).unwrap();
    let session = stat.rsplit_once(") ").unwrap().1.split(' ').nth(3).unwrap();
    assert_eq!(session, pid.to_string());
    let open = || {
        let all = fs::read_dir(dir.join("fd")).unwrap();
        all.filter_map(|fd| fs::read_link(fd.unwrap().path()).ok()).collect::<Vec<_>>()
    };
    // One pipe reported that the directory is mounted, so it is closed last.
    let is_callers = |file: &PathBuf| file.ends_with("kept") || file.to_string_lossy().starts_with("pipe:");
    until("it has nothing of its caller", || !open().iter().any(is_callers));
    assert_eq!(fs::read_to_string(mnt.join("motd")).unwrap(), "welcome\n");
    out(&world.run(["unmount", "mnt"]));
    until("it ends", || processes(mnt.to_str().unwrap()).is_empty());
    // Errors are reported as in the foreground.
    let output = world.run(["mount", "unix!absent", "mnt"]);
    assert!(
        output.status.code() == Some(1) && said(&output).contains("Is a server running there?"),
        "{output:?}"
    );
}

#[test]
fn what_is_wrong_with_a_mount_point_is_said() {
    if !may_mount() {
        return;
    }
    let world = World::new();
    let fails = |dir: &str| world.fails(&["mount", "disk:files", dir]);
    assert_eq!(fails("none"), "ninefold: mount: none: there is no such directory\n");
    assert!(fails("files/motd").contains("it is no directory"));
    assert!(fails("files").contains("not empty: -o nonempty hides"));
    fs::write(world.path("mnt/hidden"), "").unwrap();
    let mounted = world.mounted(&["disk:files", "mnt", "-o", "nonempty"]);
    assert!(!mounted.dir.join("hidden").exists());
    drop(mounted);
    fs::remove_file(world.path("mnt/hidden")).unwrap();
    for (dir, why) in
        [("mnt", "nothing is mounted there"), ("none", "no such"), ("/proc", "is proc, and not ours")]
    {
        let said = world.fails(&["unmount", dir]);
        assert!(said.contains(why), "{said}");
    }
    // The mount of a killed process stays.
    let mut mounted = world.mounted(&["disk:files", "mnt", "-o", "noexec"]);
    let listed = out(&world.run(["mount"]));
    let dir = mounted.dir.display().to_string();
    let row = listed.lines().find(|line| line.starts_with(&dir)).unwrap_or_default();
    assert!(listed.starts_with("DIR ") && row.contains("  disk:/") && row.contains(",noexec,"), "{listed}");
    assert_eq!(world.run(["mount", "disk:files"]).status.code(), Some(2));
    mounted.signal(Signal::KILL);
    mounted.ends();
    let said = fails("mnt");
    assert!(said.contains("its server has gone without unmounting it: `ninefold unmount mnt`"), "{said}");
    out(&world.run(["unmount", "mnt"]));
    assert_eq!(options(&mounted.dir), None);
}

#[test]
fn options_are_known_or_named() {
    if !may_mount() {
        return;
    }
    let world = World::new();
    let said = world.fails(&["mount", "disk:files", "mnt", "-o", "ro,bogus"]);
    assert!(said.contains("-o bogus: unknown option; `ninefold mount --help` lists all"), "{said}");
    for words in [&["-r"][..], &["-o", "ro"]] {
        let mounted = world.mounted(&[&["disk:files", "mnt"], words].concat());
        let refused = fs::write(mounted.dir.join("new"), "").unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    }
    let words = "noexec,dev,allow_other,max_read=131072,cache=never,_netdev,x-ours";
    let mounted = world.mounted(&["disk:files", "mnt", "-o", words]);
    let shown = options(&mounted.dir).unwrap();
    for word in ["rw,nosuid,noexec,", "default_permissions", "allow_other", "max_read=131072"] {
        assert!(shown.contains(word) && !shown.contains("nodev"), "{shown}");
    }
    // Changes by others are visible at once.
    for text in ["one\n", "another\n"] {
        fs::write(world.path("files/motd"), text).unwrap();
        assert_eq!(fs::read_to_string(mounted.dir.join("motd")).unwrap(), text);
    }
}

#[test]
fn a_server_comes_back_under_a_mount_in_use() {
    if !may_mount() {
        return;
    }
    let world = World::new();
    let mut server = world.server();
    let mounted = world.mounted(&["unix!s", "mnt", "--cache", "never"]);
    let file = File::open(mounted.dir.join("motd")).unwrap();
    let mut piece = [0; 7];
    file.read_exact_at(&mut piece, 0).unwrap();
    server.signal(Signal::KILL);
    server.child.wait().unwrap();
    let (begun, begins) = std::sync::mpsc::channel();
    let (open, other) = (file.try_clone().unwrap(), mounted.dir.join("motd"));
    let waits = thread::spawn(move || {
        begun.send(()).unwrap();
        let mut piece = [0; 7];
        open.read_exact_at(&mut piece, 0).map(|()| piece)
    });
    begins.recv().unwrap();
    let _server = world.server();
    assert_eq!(&waits.join().unwrap().unwrap(), b"welcome");
    assert_eq!(fs::read_to_string(other).unwrap(), "welcome\n");
}

#[test]
fn who_waits_for_a_silent_server_can_be_killed() {
    if !may_mount() {
        return;
    }
    let world = World::new();
    let server = world.server();
    let mut mounted = world.mounted(&["unix!s", "mnt", "--cache", "never", "--patience", "1"]);
    assert!(mounted.dir.join("motd").exists());
    server.signal(Signal::STOP);
    let mut cat = Command::new("cat").arg(mounted.dir.join("motd")).stdout(Stdio::null()).spawn().unwrap();
    let waiting = format!("/proc/{}/wchan", cat.id());
    until("it waits", || {
        fs::read_to_string(&waiting).is_ok_and(|at| at.contains("fuse") || at.contains("request"))
    });
    kill_process(Pid::from_child(&cat), Signal::KILL).unwrap();
    let ended = ended_within(&mut cat, Duration::from_secs(10)).expect("it can be killed");
    assert_eq!(ended.signal(), Some(9));
    server.signal(Signal::CONT);
    assert_eq!(fs::read_to_string(mounted.dir.join("motd")).unwrap(), "welcome\n");
    // The shutdown does not wait long for a silent server.
    server.signal(Signal::STOP);
    mounted.signal(Signal::TERM);
    assert_eq!(mounted.ends().code(), Some(0));
    server.signal(Signal::CONT);
}

/// Runs commands in a mount name space of their own.
fn unshared(world: &World, script: &str) -> Option<Output> {
    let may = Command::new("unshare").args(["-m", "true"]).stderr(Stdio::null()).status();
    if !geteuid().is_root() || !may.is_ok_and(|status| status.success()) {
        not_covered("mounts of others: this user may not unshare(1)");
        return None;
    }
    let program = world.path("ninefold");
    if fs::hard_link(env!("CARGO_BIN_EXE_ninefold"), &program).is_err() {
        copy_program(env!("CARGO_BIN_EXE_ninefold"), &program);
    }
    let mut command = Command::new("unshare");
    command.args(["-m", "--propagation", "private", "sh", "-ec", script]).current_dir(world.0.path());
    command.env("HOME", world.0.path()).env("NINEFOLD", program).env_remove("XDG_RUNTIME_DIR");
    Some(command.stdin(Stdio::null()).output().unwrap())
}

/// Runs commands as an ordinary user with access to /dev/fuse.
fn ordinary(world: &World, script: &str) -> Option<Output> {
    fs::create_dir_all(world.path("dev")).unwrap();
    for name in ["files", "files/motd", "mnt"] {
        rustix::fs::chown(world.path(name), Some(rustix::fs::Uid::from_raw(NOBODY)), None).unwrap();
    }
    fs::write(world.path("script"), script).unwrap();
    let become_one = format!(
        "mount -t tmpfs -o mode=755 none dev; mknod -m 666 dev/fuse c 10 229; mount --bind dev/fuse /dev/fuse
         exec setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups sh -e script"
    );
    unshared(world, &become_one)
}

const NOBODY: u32 = 65534;

#[test]
fn an_ordinary_user_mounts_by_fusermount3() {
    let world = World::new();
    let script = "
        $NINEFOLD mount disk:files mnt -o allow_other 2>said && exit 9
        grep -q 'unless /etc/fuse.conf has the line user_allow_other' said || { cat said >&2; exit 8; }
        PATH=/nowhere $NINEFOLD mount disk:files mnt 2>said && exit 7
        grep -q 'package fuse3' said || { cat said >&2; exit 6; }
        $NINEFOLD mount disk:files mnt
        cat mnt/motd; echo more >>mnt/motd; mv mnt/motd mnt/moved
        grep $PWD/mnt.fuse.ninefold /proc/mounts
        cd mnt; $NINEFOLD unmount . 2>../said && exit 5; cd ..
        grep -q 'in use' said || { cat said >&2; exit 4; }
        $NINEFOLD unmount mnt
        ls mnt; cat files/moved
    ";
    // Ordinary users must be able to write here.
    chmod(world.0.path(), 0o777);
    if Command::new("fusermount3").arg("-V").output().is_err() {
        not_covered("mounts of ordinary users: there is no fusermount3 (package fuse3)");
        return;
    }
    let Some(output) = ordinary(&world, script) else { return };
    let lines = out(&output);
    let lines: Vec<&str> = lines.lines().collect();
    let [first, mounted, second, third] = lines[..] else { panic!("{output:?}") };
    assert_eq!([first, second, third], ["welcome", "welcome", "more"]);
    assert!(mounted.contains("rw,nosuid,nodev,") && mounted.contains("user_id=65534"), "{mounted}");
}

#[test]
fn mount_8_knows_it_by_its_name() {
    let world = World::new();
    world.write(
        "fstab",
        &format!("unix!{0}/s {0}/mnt fuse.ninefold ro,noauto,_netdev,x-a=b 0 0\n", world.0.path().display()),
    );
    let _server = world.server();
    let script = "
        mount -t tmpfs none /sbin
        ln -s $NINEFOLD /sbin/mount.fuse.ninefold
        mount -t fuse.ninefold unix!s mnt -o noexec,cache=2,_netdev,nofail
        cat mnt/motd; grep -o 'fuse.ninefold .*,noexec,' /proc/mounts
        umount mnt
        mount -T fstab $PWD/mnt
        cat mnt/motd; touch mnt/new 2>/dev/null && exit 9
        umount mnt
        mount -f -t fuse.ninefold unix!s mnt
        mount -t fuse.ninefold unix!s mnt -o bogus 2>said && exit 8
        grep -o 'bogus: unknown option' said
        mount -t fuse.ninefold unix!absent mnt 2>said && exit 7
        grep -o 'Is a server running there?' said
    ";
    if !may_mount() {
        return;
    }
    let Some(output) = unshared(&world, script) else { return };
    let expected = "welcome\nfuse.ninefold rw,nosuid,nodev,noexec,\nwelcome\nbogus: unknown option\n\
                    Is a server running there?\n";
    assert_eq!(out(&output), expected, "{}", said(&output));
}

#[test]
fn a_command_sees_a_name_space_of_its_own() {
    if !may_mount() {
        return;
    }
    let world = World::new();
    world.write("new.ns", "mount disk:files /none-of-ours/lab\nmount disk:files /mnt\n");
    let text = "cat /none-of-ours/lab/motd /mnt/motd; pwd; test -d /usr/bin; echo $HOME";
    let output = world.script(&["new.ns"], text);
    let home = world.0.path().display();
    assert_eq!(out(&output), format!("welcome\nwelcome\n{home}\n{home}\n"));
    assert!(!Path::new("/none-of-ours").exists());
    // Only mount points that exist on the host.
    world.write("there.ns", "mount disk:files /mnt\nmount ram: /media\nunmount /media\n");
    let output = world.script(&["there.ns"], "cat /mnt/motd; echo new >/mnt/new; ! mountpoint -q /media");
    assert_eq!(out(&output), "welcome\n");
    assert_eq!(fs::read_to_string(world.path("files/new")).unwrap(), "new\n");
    let output = world.script(&["--read-only", "there.ns"], "echo new >/mnt/new");
    assert!(said(&output).contains("Read-only file system"), "{output:?}");
    for (text, status) in [("exit 7", 7), ("kill -TERM $$", 143), ("kill -KILL $$", 137)] {
        assert_eq!(world.script(&["there.ns"], text).status.code(), Some(status), "{text}");
    }
    for (program, status) in [("none-of-ours", 127), ("/none-of-ours", 127), ("/etc/passwd", 126)] {
        let output = world.run(["ns", "there.ns", "--", program]);
        assert_eq!(output.status.code(), Some(status));
        assert!(said(&output).starts_with(&format!("ninefold: ns: {program}: ")), "{output:?}");
    }
    world.write("wrong.ns", "mount disk:files /usr/none-of-ours\n");
    let output = world.script(&["wrong.ns"], "true");
    assert_eq!(output.status.code(), Some(125));
    assert!(said(&output).contains("/usr/none-of-ours: this machine has no such directory"), "{output:?}");
    world.write("empty.ns", "space a\nmount ram: /mnt\n");
    assert!(world.fails(&["ns", "empty.ns", "--", "true"]).contains("it mounts and binds nothing"));
}

#[test]
fn a_tree_is_the_root_of_a_command() {
    if !may_mount() {
        return;
    }
    let Some(busybox) = ["/bin/busybox", "/usr/bin/busybox"].iter().find(|path| Path::new(path).exists())
    else {
        return not_covered("a root of one's own: there is no busybox (package busybox-static)");
    };
    let world = World::new();
    copy_program(busybox, world.path("files/busybox"));
    for dir in ["proc", "dev"] {
        fs::create_dir(world.path("files").join(dir)).unwrap();
    }
    world.write("root.ns", "nomux\nmount disk:files /\n");
    let text = "pwd; ./busybox ls /; ./busybox test -e /proc/self/exe -a -c /dev/null";
    let output = world.run(["ns", "root.ns", "--", "/busybox", "sh", "-c", text]);
    assert_eq!(out(&output), "/\nbusybox\ndev\nmotd\nproc\n", "{}", said(&output));
}

#[test]
fn signals_reach_the_command_and_nothing_outlives_it() {
    if !may_mount() {
        return;
    }
    let world = World::new();
    world.write("there.ns", "mount disk:files /mnt\n");
    let begun = |text: &str| {
        let mut command = world.command(["ns", "there.ns", "--", "sh", "-c", text]);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        (child, line.trim().parse::<i32>().unwrap())
    };
    let (mut child, _) =
        begun("trap 'exit 3' TERM; echo $$; cat /proc/self/mounts >/dev/null; while :; do :; done");
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert_eq!(ended_within(&mut child, LIMIT).expect("it ends").code(), Some(3));
    let (mut child, pid) = begun("echo $$; exec sleep 1000");
    child.kill().unwrap();
    child.wait().unwrap();
    until("the command ends", || {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
        stat.map_or(true, |stat| stat.contains(") Z ") || !stat.contains("(sleep)"))
    });
}

#[test]
fn an_ordinary_user_has_a_name_space_of_his_own() {
    let world = World::new();
    world.write("new.ns", "mount disk:files /none-of-ours/lab\nmount disk:files /mnt\n");
    let script = "
        $NINEFOLD ns new.ns -- sh -c 'cat /none-of-ours/lab/motd; echo more >>/mnt/motd; id -u; test -d /usr/bin'
        echo in | $NINEFOLD ns new.ns -- cat
        $NINEFOLD ns new.ns -- none-of-ours || echo $?
        $NINEFOLD ns new.ns -- touch /x 2>/dev/null || echo no
    ";
    let clone = fs::read_to_string("/proc/sys/kernel/unprivileged_userns_clone").unwrap_or_default();
    let most = fs::read_to_string("/proc/sys/user/max_user_namespaces").unwrap_or_default();
    if clone.trim() == "0" || most.trim() == "0" {
        not_covered("name spaces of ordinary users: the kernel gives them none");
        return;
    }
    let Some(output) = ordinary(&world, script) else { return };
    assert_eq!(out(&output), "welcome\n65534\nin\n127\nno\n", "{}", said(&output));
    assert_eq!(fs::read_to_string(world.path("files/motd")).unwrap(), "welcome\nmore\n");
}

#[test]
fn the_setting_that_forbids_name_spaces_is_named() {
    let world = World::new();
    world.write("there.ns", "mount disk:files /mnt\n");
    // Limits only this user's own user name space, in which root gets no capabilities.
    let script = "unshare -r sh -ec '
        echo 0 >/proc/sys/user/max_user_namespaces
        exec setpriv --bounding-set=-all --inh-caps=-all $NINEFOLD ns there.ns -- true'";
    let Some(output) = unshared(&world, script) else { return };
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    assert!(said(&output).contains("sysctl user.max_user_namespaces is 0"), "{output:?}");
}
