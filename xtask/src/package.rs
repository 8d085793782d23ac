//! The Debian package: built, checked, and tested.
//!
//! In: `packaging/`, the command, the documents. Out: `target/package/ninefold_VERSION_ARCH.deb`. lintian checks it. It
//! is installed, upgraded, removed and purged in a temporary overlay of this host's root, which must be unchanged
//! afterwards. In a guest with systemd its services are tested.

mod trial;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::packages;
use crate::served::Program;
use crate::steps::{Failed, Steps};

/// Builds the package from the program, and tests it. `all`: as it is published; `guest`: also under systemd.
pub fn run(steps: &mut Steps, program: &Program, all: bool, guest: bool) -> Result<(), Failed> {
    if let Some(missing) = TOOLS.iter().find(|tool| packages::program(tool).is_none()) {
        steps.not_covered(format!("the Debian package ({missing} is not there)"));
        return Ok(());
    }
    let mut made = None;
    steps.call("package", "cargo xtask package", || match make(program, all) {
        Ok(package) => {
            println!("{}", package.display());
            made = Some(package);
            true
        }
        Err(why) => failed(&why),
    })?;
    let package = made.expect("the step has not failed");
    match packages::on_path("lintian") {
        true => steps.run("lintian", Command::new("lintian").args(LINTIAN).arg(&package))?,
        false => steps.not_covered("what lintian says of the package (it is not there)".into()),
    }
    trial::on_this_host(steps, &package)?;
    if guest { trial::under_systemd(steps, &root()) } else { Ok(()) }
}

/// The staging directory.
fn root() -> PathBuf {
    crate::target().join("package/root")
}

fn failed(why: &str) -> bool {
    eprintln!("{why}");
    false
}

/// Stages the files and builds the package.
fn make(program: &Program, all: bool) -> Result<PathBuf, String> {
    let place = crate::target().join("package");
    let root = root();
    let _ = fs::remove_dir_all(&root);
    let packaging = crate::root().join("packaging");
    for (from, to) in FILES {
        put(&crate::root().join(from), &root.join(to), 0o644)?;
    }
    let binary = root.join("usr/bin/ninefold");
    put(&program.0, &binary, 0o755)?;
    done(Command::new("strip").args(["--strip-unneeded", "-R", ".comment", "-R", ".note"]).arg(&binary))?;
    fs::create_dir_all(root.join("usr/sbin")).map_err(|e| format!("usr/sbin: {e}"))?;
    symlink("../bin/ninefold", root.join("usr/sbin/mount.fuse.ninefold"))
        .map_err(|e| format!("link: {e}"))?;
    pages(&binary, &root)?;
    for (shell, to) in SHELLS {
        let text = output(Command::new(&binary).args(["completions", shell]))?;
        write(&root.join(to), &text, 0o644)?;
    }
    let version = env!("CARGO_PKG_VERSION");
    let machine = output(Command::new("dpkg").arg("--print-architecture"))?;
    let date = output(Command::new("date").args(["-R", "-u"]))?;
    let filled = |text: &str, libraries: &str, size: u64| {
        let text = text.replace("@VERSION@", version).replace("@ARCHITECTURE@", machine.trim());
        let text = text.replace("@DATE@", date.trim()).replace("@LIBRARIES@", libraries);
        text.replace("@SIZE@", &size.to_string())
    };
    let read = |name: &str| {
        let path = packaging.join("debian").join(name);
        fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))
    };
    let changelog = root.join("usr/share/doc/ninefold/changelog");
    write(&changelog, filled(&read("changelog")?, "", 0), 0o644)?;
    done(Command::new("gzip").args(["-9n"]).arg(&changelog))?;
    let libraries = libraries(&place, &binary)?;
    let size =
        tree(&root)?.iter().map(|path| path.symlink_metadata().map_or(0, |meta| meta.len())).sum::<u64>();
    write(&root.join("DEBIAN/control"), filled(&read("control")?, &libraries, size.div_ceil(1024)), 0o644)?;
    write(&root.join("DEBIAN/conffiles"), &read("conffiles")?, 0o644)?;
    for script in ["postinst", "prerm", "postrm"] {
        write(&root.join("DEBIAN").join(script), &read(script)?, 0o755)?;
    }
    sums(&root)?;
    let package = place.join(format!("ninefold_{version}_{}.deb", machine.trim()));
    // A package for tests only need not be small.
    pack(&root, &package, if all { &["-Zxz", "-z6"] } else { &["-Zgzip", "-z1"] })?;
    Ok(package)
}

fn pack(root: &Path, package: &Path, how: &[&str]) -> Result<(), String> {
    let mut build = Command::new("dpkg-deb");
    build.args(how).args(["--root-owner-group", "--build"]).arg(root).arg(package);
    done(build.stdout(Stdio::null()))
}

/// Creates the manual: a page for each verb, and one for the name by which mount(8) calls the program.
fn pages(binary: &Path, root: &Path) -> Result<(), String> {
    let dir = root.join("usr/share/man/man1");
    done(Command::new(binary).arg("man").arg(&dir))?;
    for page in tree(&dir)? {
        done(Command::new("gzip").arg("-9n").arg(page))?;
    }
    let helper = root.join("usr/share/man/man8");
    fs::create_dir_all(&helper).map_err(|e| format!("{}: {e}", helper.display()))?;
    let page = helper.join("mount.fuse.ninefold.8.gz");
    symlink("../man1/ninefold-mount.1.gz", &page).map_err(|e| format!("{}: {e}", page.display()))
}

/// Returns the library dependencies of the program, as dpkg-shlibdeps reports them.
fn libraries(place: &Path, binary: &Path) -> Result<String, String> {
    // dpkg-shlibdeps needs debian/control in its current directory.
    let source = place.join("debian/control");
    write(&source, "Source: ninefold\n\nPackage: ninefold\nArchitecture: any\n", 0o644)?;
    let said = output(
        Command::new("dpkg-shlibdeps").arg("-O").arg(binary).current_dir(place).stderr(Stdio::null()),
    )?;
    let depends = said.lines().find_map(|line| line.strip_prefix("shlibs:Depends="));
    depends.map(str::to_owned).ok_or_else(|| format!("dpkg-shlibdeps: {said}"))
}

/// Creates DEBIAN/md5sums.
fn sums(root: &Path) -> Result<(), String> {
    let mut text = String::new();
    for path in tree(root)? {
        let name = path.strip_prefix(root).expect("it is below").display().to_string();
        let is_sum = !name.starts_with("DEBIAN/") && !name.starts_with("etc/") && !path.is_symlink();
        if is_sum {
            text += &output(Command::new("md5sum").arg(&name).current_dir(root))?;
        }
    }
    write(&root.join("DEBIAN/md5sums"), &text, 0o644)
}

/// Returns the files and symbolic links below a directory, sorted.
fn tree(top: &Path) -> Result<Vec<PathBuf>, String> {
    let (mut found, mut todo) = (Vec::new(), vec![top.to_path_buf()]);
    while let Some(dir) = todo.pop() {
        for entry in fs::read_dir(&dir).map_err(|e| format!("{}: {e}", dir.display()))? {
            let path = entry.map_err(|e| format!("{}: {e}", dir.display()))?.path();
            if path.is_dir() && !path.is_symlink() { todo.push(path) } else { found.push(path) }
        }
    }
    found.sort();
    Ok(found)
}

fn put(from: &Path, to: &Path, mode: u32) -> Result<(), String> {
    let bytes = fs::read(from).map_err(|e| format!("{}: {e}", from.display()))?;
    write(to, bytes, mode)
}

fn write(to: &Path, bytes: impl AsRef<[u8]>, mode: u32) -> Result<(), String> {
    let wrong = |e| format!("{}: {e}", to.display());
    let dir = to.parent().expect("it is below the root");
    fs::create_dir_all(dir).map_err(wrong)?;
    fs::write(to, bytes).map_err(wrong)?;
    fs::set_permissions(to, fs::Permissions::from_mode(mode)).map_err(wrong)
}

fn done(command: &mut Command) -> Result<(), String> {
    let name = command.get_program().display().to_string();
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{name}: {status}")),
        Err(e) => Err(format!("{name}: {e}")),
    }
}

fn output(command: &mut Command) -> Result<String, String> {
    let name = command.get_program().display().to_string();
    let output = command.stdin(Stdio::null()).output().map_err(|e| format!("{name}: {e}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(format!("{name}: {}: {said}", output.status));
    }
    String::from_utf8(output.stdout).map_err(|_| format!("{name}: its output is no text"))
}

const TOOLS: [&str; 5] = ["dpkg-deb", "dpkg-shlibdeps", "gzip", "md5sum", "strip"];

const LINTIAN: [&str; 4] = ["--fail-on", "error,warning", "--tag-display-limit", "0"];

const SHELLS: [(&str, &str); 3] = [
    ("bash", "usr/share/bash-completion/completions/ninefold"),
    ("zsh", "usr/share/zsh/vendor-completions/_ninefold"),
    ("fish", "usr/share/fish/vendor_completions.d/ninefold.fish"),
];

/// Files that are copied unchanged, with their destinations.
const FILES: &[(&str, &str)] = &[
    ("packaging/ninefold.service", "lib/systemd/system/ninefold.service"),
    ("packaging/ninefold.socket", "lib/systemd/system/ninefold.socket"),
    ("packaging/ninefold-mount@.service", "lib/systemd/system/ninefold-mount@.service"),
    ("packaging/ninefold.sysusers", "usr/lib/sysusers.d/ninefold.conf"),
    ("packaging/ninefold.toml", "etc/ninefold.toml"),
    ("packaging/home.ns", "etc/ninefold/home.ns"),
    ("packaging/debian/copyright", "usr/share/doc/ninefold/copyright"),
    ("packaging/debian/lintian", "usr/share/lintian/overrides/ninefold"),
    ("LICENSE-MIT", "usr/share/doc/ninefold/LICENSE-MIT"),
    ("README.md", "usr/share/doc/ninefold/README.md"),
    ("CHANGELOG.md", "usr/share/doc/ninefold/NEWS.md"),
    ("docs/namespace.md", "usr/share/doc/ninefold/namespace.md"),
    ("docs/mount.md", "usr/share/doc/ninefold/mount.md"),
    ("docs/archive.md", "usr/share/doc/ninefold/archive.md"),
    ("docs/service.md", "usr/share/doc/ninefold/service.md"),
];
