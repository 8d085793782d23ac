//! A virtual machine with Debian's kernel and this host's files, for checks that need a kernel of their own.
//!
//! In: a command. Out: its output and its status. The guest's root is the host's, read-only, and what is written over
//! it stays in the guest's memory; a folder of the host can be shared with it for writing, as `/share`. 10.0.2.2 is
//! the host's loopback, and nothing else can be reached. QEMU runs without KVM, so that it runs wherever it is.

mod initramfs;
mod kernel;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use crate::child::{Child, last_lines};
use crate::packages;
use crate::steps::{Failed, Steps};
use kernel::Kernel;

/// What to run in a guest.
pub struct Guest {
    /// The words of the command.
    pub command: Vec<String>,
    /// The host's folder that the guest sees as `/share`.
    pub share: Option<PathBuf>,
    /// How long all of it may take, the start included.
    pub limit: Duration,
    /// Further words for QEMU: devices, networks.
    pub qemu: Vec<String>,
    /// Modules that are loaded at the start, behind those that lead to the host.
    pub modules: Vec<&'static str>,
    /// Words that stand in front of QEMU's own, such as those that start it in a network name space: 10.0.2.2 is the
    /// loopback of that one then.
    pub before: Vec<String>,
    /// Whether the output is passed on while it comes.
    pub show: bool,
}

/// Why there is no status.
#[derive(Debug)]
pub enum Trouble {
    /// Nothing has run: a program or the archive cannot be had, or the guest did not come up.
    NotStarted(String),
    /// It was running and did not come to an end.
    NotEnded(String),
}

/// A step that is done in a guest. Where none can be started, `what` is not covered; with `must` that is a failure.
pub fn call(
    steps: &mut Steps,
    (name, again): (&str, &str),
    what: &str,
    must: bool,
    work: impl FnOnce() -> Result<(), Trouble>,
) -> Result<(), Failed> {
    let mut never = None;
    steps.call(name, again, || match work() {
        Ok(()) => true,
        Err(Trouble::NotStarted(why)) if !must => {
            never = Some(why);
            true
        }
        Err(Trouble::NotStarted(why) | Trouble::NotEnded(why)) => {
            eprintln!("{why}");
            false
        }
    })?;
    if let Some(why) = never {
        steps.not_covered(format!("{what}: no guest could be started: {why}"));
    }
    Ok(())
}

/// What a command in a guest came to.
pub struct Ended {
    pub status: i32,
    pub output: String,
}

impl Guest {
    pub fn new(command: &[&str]) -> Guest {
        let command = command.iter().map(|word| word.to_string()).collect();
        let limit = Duration::from_secs(120);
        let (qemu, modules, before) = Default::default();
        Guest { command, share: None, limit, qemu, modules, before, show: true }
    }

    /// Starts a machine, runs the command, and waits for the machine's end.
    pub fn run(&self) -> Result<Ended, Trouble> {
        self.prepare().map_err(Trouble::NotStarted).and_then(|(machine, run)| self.watch(machine, &run.0))
    }

    fn prepare(&self) -> Result<(Child, Scratch), String> {
        if let Some(what) = lacking() {
            return Err(what);
        }
        let kernel = Kernel::get()?;
        let run = scratch("run")?;
        let put = |name: &str, bytes: &[u8]| {
            fs::write(run.0.join(name), bytes).map_err(|e| format!("{}: {e}", run.0.join(name).display()))
        };
        put("initramfs", &initramfs::make(&kernel, &self.modules)?)?;
        put("main", include_bytes!("../guest/main"))?;
        put("command", self.script(&kernel).as_bytes())?;
        let words =
            [&self.before[..], &["qemu-system-x86_64".to_string()], &self.words(&kernel, &run.0)].concat();
        let machine = Child::start(&words[0], &words[1..], self.show)?;
        Ok((machine, run))
    }

    /// The command as a shell reads it, where it was typed, with the kernel's modules in place.
    fn script(&self, kernel: &Kernel) -> String {
        let here = std::env::current_dir().unwrap_or_else(|_| crate::root().to_path_buf());
        let words: Vec<String> = self.command.iter().map(|word| quoted(word)).collect();
        format!(
            "echo up >/run/guest/up\nmkdir -p /lib/modules\nln -sfn {}/lib/modules/* /lib/modules/\ncd {}\n{}\n",
            quoted(&kernel.tree.display().to_string()),
            quoted(&here.display().to_string()),
            words.join(" ")
        )
    }

    fn words(&self, kernel: &Kernel, run: &Path) -> Vec<String> {
        let shared = |path: &Path, tag: &str, how: &str| {
            let path = path.display().to_string().replace(',', ",,");
            format!("local,path={path},mount_tag={tag},security_model=none,multidevs=remap{how}")
        };
        let mut words: Vec<String> = QEMU.iter().map(|word| word.to_string()).collect();
        let mut add = |option: &str, value: String| words.extend([option.to_string(), value]);
        add("-kernel", kernel.vmlinux.display().to_string());
        add("-initrd", run.join("initramfs").display().to_string());
        add("-append", "console=ttyS0 quiet loglevel=4 panic=-1 rdinit=/init".to_string());
        add("-serial", format!("file:{}", run.join("console").display()));
        add("-virtfs", shared(Path::new("/"), "root", ",readonly=on"));
        add("-virtfs", shared(run, "run", ""));
        if let Some(share) = &self.share {
            add("-virtfs", shared(share, "share", ""));
        }
        words.extend(self.qemu.iter().cloned());
        words
    }

    fn watch(&self, mut machine: Child, run: &Path) -> Result<Ended, Trouble> {
        let ended = machine.wait(self.limit);
        let output = machine.output().into_owned();
        let status = fs::read_to_string(run.join("status")).ok().and_then(|text| text.trim().parse().ok());
        let why = match (ended, status) {
            (Ok(_), Some(status)) => return Ok(Ended { status, output }),
            (Ok(status), None) => format!("the guest has left no status; QEMU: {status}"),
            (Err(e), _) => format!("the guest {e} ({} s)", self.limit.as_secs()),
        };
        let console = fs::read(run.join("console")).unwrap_or_default();
        let console = last_lines(&String::from_utf8_lossy(&console), 40);
        let said = last_lines(&output, 40);
        let why =
            format!("{why}\nits output, the last of it:\n{said}its console, the last of it:\n{console}");
        Err(if run.join("up").exists() { Trouble::NotEnded(why) } else { Trouble::NotStarted(why) })
    }
}

/// `cargo xtask guest`: ends as the command does. None: the words are not understood.
pub fn verb(words: &[&str]) -> Option<ExitCode> {
    let at = words.iter().position(|word| *word == "--")?;
    let (options, command) = (&words[..at], &words[at + 1..]);
    if command.is_empty() {
        return None;
    }
    let mut guest = Guest::new(command);
    for pair in options.chunks(2) {
        match *pair {
            ["--timeout", seconds] => guest.limit = Duration::from_secs(seconds.parse().ok()?),
            ["--share", dir] => guest.share = Some(std::path::absolute(dir).ok()?),
            ["--qemu", word] => guest.qemu.push(word.to_string()),
            _ => return None,
        }
    }
    Some(match guest.run() {
        // A status of a shell is a byte.
        Ok(ended) => ExitCode::from(u8::try_from(ended.status).unwrap_or(1)),
        Err(Trouble::NotStarted(why) | Trouble::NotEnded(why)) => {
            eprintln!("guest: {why}");
            ExitCode::FAILURE
        }
    })
}

/// What this host lacks for a guest.
pub fn lacking() -> Option<String> {
    if !cfg!(all(target_arch = "x86_64", target_os = "linux")) {
        return Some("this host is not x86_64 Linux".to_string());
    }
    let missing = PROGRAMS.iter().find(|(program, _)| packages::program(program).is_none());
    missing.map(|(program, package)| format!("{program} is not there (package {package})"))
}

/// A word that a shell reads as it is.
pub fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Where what is fetched and made for guests is kept.
pub fn folder() -> Result<PathBuf, String> {
    let dir = crate::target().join("guest");
    fs::create_dir_all(&dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    Ok(dir)
}

/// A folder that goes when it is dropped.
pub struct Scratch(pub PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        // What stays behind is in target, and the next of its name replaces it.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A new, empty folder below `target/guest`.
pub fn scratch(name: &str) -> Result<Scratch, String> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let dir = folder()?.join(format!("{name}-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed)));
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    Ok(Scratch(dir))
}

/// Under TCG a newer processor has features that are slow to emulate and that the kernel would use.
const QEMU: &[&str] = &[
    "-accel",
    "tcg",
    "-cpu",
    "Nehalem",
    "-smp",
    "1",
    "-m",
    "1024",
    "-nodefaults",
    "-no-user-config",
    "-display",
    "none",
    "-no-reboot",
    "-netdev",
    "user,id=host",
    "-device",
    "virtio-net-pci,netdev=host,romfile=",
    "-device",
    "virtio-serial-pci",
    "-chardev",
    "file,id=out,path=/proc/self/fd/1",
    "-device",
    "virtserialport,chardev=out",
];

const PROGRAMS: &[(&str, &str)] = &[
    ("apt-get", "apt"),
    ("dpkg-deb", "dpkg"),
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("busybox", "busybox-static"),
    ("depmod", "kmod"),
    ("xz", "xz-utils"),
];
