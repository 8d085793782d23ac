//! A virtual machine with Debian's kernel and this host's files, for checks that need a separate kernel.
//!
//! In: a command. Out: its output and exit status. The guest's root is the host's, read-only, with writes kept in the
//! guest's memory. A host folder can be shared for writing, as `/share`. 10.0.2.2 is the host's loopback, and no other
//! address is reachable. QEMU runs without KVM, so it works on any host.

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

/// Parameters of a guest.
pub struct Guest {
    /// The command and its arguments.
    pub command: Vec<String>,
    /// The host folder that the guest sees as `/share`.
    pub share: Option<PathBuf>,
    /// Timeout of the whole run, boot included.
    pub limit: Duration,
    /// Additional arguments of QEMU: devices, networks.
    pub qemu: Vec<String>,
    /// Kernel modules loaded at boot, after those that connect to the host.
    pub modules: Vec<&'static str>,
    /// A command prefix for QEMU, for example to run it in a network name space. 10.0.2.2 is then the loopback of that
    /// name space.
    pub before: Vec<String>,
    /// Whether the output is printed while the guest runs.
    pub show: bool,
}

/// The reason why there is no exit status.
#[derive(Debug)]
pub enum Trouble {
    /// The command did not run: a program or the initramfs is missing, or the guest did not boot.
    NotStarted(String),
    /// The command did not end in time.
    NotEnded(String),
}

/// Runs a step that needs a guest. If no guest can start, `what` is reported as not covered or, with `must`, the step
/// fails.
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

/// Result of a command in a guest.
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

    /// Boots a machine, runs the command, and waits until the machine stops.
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

    /// Returns the command as a shell script, which runs in the host's current directory and with the kernel's modules
    /// in place.
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

/// `cargo xtask guest`: exits with the status of the command. Returns `None` if the arguments are invalid.
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
        // The exit status of a shell is a byte.
        Ok(ended) => ExitCode::from(u8::try_from(ended.status).unwrap_or(1)),
        Err(Trouble::NotStarted(why) | Trouble::NotEnded(why)) => {
            eprintln!("guest: {why}");
            ExitCode::FAILURE
        }
    })
}

/// Returns the reason why this host cannot start a guest, if any.
pub fn lacking() -> Option<String> {
    if !cfg!(all(target_arch = "x86_64", target_os = "linux")) {
        return Some("this host is not x86_64 Linux".to_string());
    }
    let missing = PROGRAMS.iter().find(|(program, _)| packages::program(program).is_none());
    missing.map(|(program, package)| format!("{program} is not there (package {package})"))
}

/// Quotes a word for a shell.
pub fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Returns the folder for downloaded and generated files of guests.
pub fn folder() -> Result<PathBuf, String> {
    let dir = crate::target().join("guest");
    fs::create_dir_all(&dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    Ok(dir)
}

/// A folder that is removed when this is dropped.
pub struct Scratch(pub PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        // A folder that remains is in target. The next one of the same name replaces it.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Creates an empty folder below `target/guest`.
pub fn scratch(name: &str) -> Result<Scratch, String> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let dir = folder()?.join(format!("{name}-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed)));
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    Ok(Scratch(dir))
}

/// Newer processors have features that the kernel would use and that TCG emulates slowly.
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
