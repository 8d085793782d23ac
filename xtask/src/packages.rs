//! Third-party programs that some checks call, and the Debian packages that contain them.
//!
//! As root on Debian, missing packages are installed. Otherwise, or if the archive is unreachable, each missing one is
//! reported with the behaviour that is not covered without it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::steps::{Failed, Steps};

/// A program that some check calls.
pub struct Need {
    pub program: &'static str,
    pub package: &'static str,
    pub covers: &'static str,
    /// Only needed with `--all`.
    all: bool,
}

/// Installs missing packages where possible, and reports the others. With `all` this fails if they should have been
/// installable.
pub fn install(steps: &mut Steps, all: bool) -> Result<(), Failed> {
    let missing = |needs: &[Need]| -> Vec<&'static str> {
        let wanted = needs.iter().filter(|need| (all || !need.all) && program(need.program).is_none());
        let mut packages: Vec<&str> = wanted.map(|need| need.package).collect();
        packages.dedup();
        packages
    };
    let packages = missing(NEEDS);
    if !packages.is_empty() && is_root() && on_path("apt-get") {
        let mut apt = apt(&packages);
        if all {
            steps.run("packages", &mut apt)?;
        } else {
            println!("==> packages: {}", packages.join(" "));
            // Packages that could not be installed are reported below.
            let _ = apt.status();
        }
    }
    for package in missing(NEEDS) {
        let covers: Vec<&str> =
            NEEDS.iter().filter(|need| need.package == package).map(|n| n.covers).collect();
        steps.not_covered(format!("{} (package {package} is not installed)", covers.join(", ")));
    }
    Ok(())
}

/// Returns a command that installs packages without starting their services. It downloads the package lists first if
/// the present ones are outdated.
fn apt(packages: &[&str]) -> Command {
    let script = "get() { apt-get install -qqy -oDpkg::Use-Pty=0 --no-install-recommends \"$@\"; }
                  get \"$@\" || { apt-get update -q && get \"$@\"; }";
    let mut apt = Command::new("sh");
    apt.env("DEBIAN_FRONTEND", "noninteractive")
        .env("RUNLEVEL", "1")
        .args(["-c", script, "apt"])
        .args(packages);
    apt.stdin(Stdio::null());
    apt
}

/// Returns the path of a program. /usr/sbin and /sbin are searched for all users.
pub fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs = std::env::split_paths(&path).chain(["/usr/sbin", "/sbin"].map(PathBuf::from));
    dirs.map(|dir| dir.join(name)).find(|file| file.is_file())
}

/// Returns the directory of tools that never change, shared by all checkouts of this user.
pub fn cache() -> PathBuf {
    let home = |name: &str, below: &str| Some(PathBuf::from(std::env::var_os(name)?).join(below));
    let cache = home("XDG_CACHE_HOME", "").or_else(|| home("HOME", ".cache"));
    cache.map_or_else(crate::target, |dir| dir.join("ninefold-xtask"))
}

/// Whether a program is on `PATH`.
pub fn on_path(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(name).is_file())
}

pub fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    Path::new("/proc/self").metadata().is_ok_and(|meta| meta.uid() == 0)
}

const GUEST: &str = "the Linux kernel as a client";
const AOE: &str = "AoE with vblade";
const AOE_LINUX: &str = "our AoE target under the Linux kernel's driver, and under aoetools";
const MOUNT: &str = "mounts by FUSE of ordinary users";
const HTTP: &str = "nine-bench streaming beside HTTP";
const C: &str = "the library for C";
const WEB: &str = "the web server under programs of others";
const SFTP: &str = "nine-bench streaming beside SFTP";
const PACKAGE: &str = "the Debian package";
const NBD: &str = "nine-bench aoe beside NBD";

const NEEDS: &[Need] = &[
    Need { program: "qemu-system-x86_64", package: "qemu-system-x86", covers: GUEST, all: false },
    Need { program: "busybox", package: "busybox-static", covers: GUEST, all: false },
    Need { program: "depmod", package: "kmod", covers: GUEST, all: false },
    Need { program: "xz", package: "xz-utils", covers: GUEST, all: false },
    Need {
        program: "git",
        package: "git",
        covers: "git over the kernel's client, and in mounts by FUSE",
        all: false,
    },
    Need { program: "setfattr", package: "attr", covers: "attributes over the kernel's client", all: true },
    Need {
        program: "sqlite3",
        package: "sqlite3",
        covers: "a data base over the kernel's client, and in mounts by FUSE",
        all: false,
    },
    Need { program: "ed", package: "ed", covers: "an editor in mounts by FUSE", all: false },
    Need { program: "vim.tiny", package: "vim-tiny", covers: "another editor in mounts by FUSE", all: false },
    Need { program: "diodls", package: "diod", covers: "diod's programs as clients", all: false },
    Need {
        program: "diod",
        package: "diod",
        covers: "the kernel's client over a mux of servers",
        all: false,
    },
    Need { program: "cc", package: "gcc", covers: C, all: false },
    Need { program: "pkg-config", package: "pkg-config", covers: C, all: false },
    Need { program: "python3", package: "python3-venv", covers: "the Python module", all: false },
    Need { program: "fusermount3", package: "fuse3", covers: MOUNT, all: false },
    Need { program: "nginx", package: "nginx-light", covers: HTTP, all: false },
    Need { program: "curl", package: "curl", covers: HTTP, all: false },
    Need { program: "sshd", package: "openssh-server", covers: SFTP, all: false },
    Need { program: "sftp", package: "openssh-client", covers: SFTP, all: false },
    Need { program: "rsync", package: "rsync", covers: "nine-bench streaming beside rsync", all: false },
    Need { program: "wget", package: "wget", covers: WEB, all: true },
    Need { program: "wrk", package: "wrk", covers: WEB, all: true },
    Need { program: "ab", package: "apache2-utils", covers: WEB, all: true },
    Need { program: "strace", package: "strace", covers: "how often bytes are copied", all: true },
    Need { program: "openssl", package: "openssl", covers: WEB, all: true },
    Need { program: "pip3", package: "python3-pip", covers: WEB, all: true },
    Need { program: "chromium", package: "chromium", covers: "pages in a browser", all: true },
    Need { program: "lintian", package: "lintian", covers: PACKAGE, all: false },
    Need { program: "dpkg-shlibdeps", package: "dpkg-dev", covers: PACKAGE, all: false },
    Need { program: "systemd-analyze", package: "systemd", covers: PACKAGE, all: false },
    Need { program: "man", package: "man-db", covers: PACKAGE, all: false },
    Need { program: "vblade", package: "vblade", covers: AOE, all: false },
    Need { program: "ip", package: "iproute2", covers: AOE, all: false },
    Need { program: "aoeping", package: "aoetools", covers: AOE_LINUX, all: false },
    Need { program: "debugfs", package: "e2fsprogs", covers: AOE_LINUX, all: false },
    Need { program: "nbdkit", package: "nbdkit", covers: NBD, all: false },
    Need { program: "ethtool", package: "ethtool", covers: NBD, all: false },
    Need { program: "tshark", package: "tshark", covers: "what wireshark says of our bytes", all: false },
];
