//! The same graph for machines without an operating system (docs/guest.md): images in QEMU, with files served by the
//! command over channels. For comparison: QEMU's own virtio-9p, driven by an image that only polls for answers; and the
//! Linux kernel's 9P client in a machine.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nine_net::shm::Waits;
use nine_servers::machine::{Accel, QEMU, found};
use rustix::process::Pid;

use crate::command;
use crate::place::{CpuPlacement, move_to_client};
use crate::report::BenchTurn;
use crate::sys::cpu_of_children;

/// Programs and files to run machines.
pub(super) struct MachineSetup {
    command: PathBuf,
    images: PathBuf,
    /// The accelerator that executes them.
    pub(super) accel: Accel,
    /// Name space file for the machines, the same as for the other guests.
    space: PathBuf,
}

/// How a machine reaches its file.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum MachineRoute {
    Channel(Waits),
    /// QEMU's own server, on the directory with the cached file: it does not open special files.
    Virtio,
}

impl MachineSetup {
    /// Finds everything that machines need. The inner error names the missing program or file.
    pub(super) fn find(space: &Path) -> io::Result<Result<Self, String>> {
        if found(Path::new(QEMU)).is_none() {
            return Ok(Err(format!("{QEMU}, its rows are left out (apt-get install qemu-system-x86)")));
        }
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let images = root.join("target/images");
        if let Some(cargo) = std::env::var_os("CARGO") {
            let made = Command::new(cargo).args(["xtask", "images"]).current_dir(&root).output()?;
            if !made.status.success() {
                return Ok(Err("images of machines, which cannot be built: cargo xtask images".into()));
            }
        }
        if !images.join("latency").is_file() {
            return Ok(Err("images of machines (cargo xtask images)".into()));
        }
        std::fs::write(space.with_file_name("devices.toml"), "[serve]\ndevices = true\n")?;
        let accel = if Accel::Kvm.may().is_ok() { Accel::Kvm } else { Accel::Tcg };
        Ok(Ok(Self { command: command::program()?, images, accel, space: space.into() }))
    }

    /// Returns the command that runs a machine. It opens devices of the host and ignores user configurations.
    fn command(&self) -> Command {
        let mut run = Command::new(&self.command);
        run.arg("--config").arg(self.space.with_file_name("devices.toml"));
        run.args(["partition", "run", "--accel", &self.accel.name().to_lowercase()]);
        run
    }

    fn run(&self, way: MachineRoute, file: &str, size: usize, times: &[u32]) -> io::Result<Command> {
        let mut run = self.command();
        // Thread names are needed to place QEMU's threads.
        run.args(["--qemu-word=-name", "--qemu-word=bench,debug-threads=on"]);
        let image = match way {
            MachineRoute::Channel(waits) => {
                run.args(["--wait", waits.name()]);
                "latency"
            }
            MachineRoute::Virtio => {
                let dir = self.space.parent().unwrap_or(Path::new("/")).display();
                let served = format!("local,id=peer,path={dir},security_model=none");
                for word in ["-fsdev", &served, "-device", VIRTIO] {
                    run.arg(format!("--qemu-word={word}"));
                }
                "virtio"
            }
        };
        run.arg(&self.space).arg("--").arg(self.images.join(image)).arg(file);
        for n in times {
            run.args([size.to_string(), n.to_string()]);
        }
        run.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Ok(run)
    }

    /// Runs a machine and returns its output. The server has one processor, the machine another.
    fn placed(&self, way: MachineRoute, file: &str, size: usize, times: &[u32]) -> io::Result<String> {
        CpuPlacement::Cross.stand_far()?;
        let mut child = self.run(way, file, size, times)?.spawn()?;
        let ended = place_qemu(&mut child, way).and_then(|()| child.wait_with_output());
        CpuPlacement::Free.arrange(&[])?;
        let output = ended?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let why = String::from_utf8_lossy(&output.stderr).into_owned();
        Err(io::Error::other(format!("a machine has failed: {why}")))
    }

    /// Measures a write from a machine, microseconds.
    pub(super) fn turn(
        &self,
        way: MachineRoute,
        file: &'static str,
        size: usize,
        times: u32,
    ) -> BenchTurn<'_> {
        Box::new(move || {
            let said = self.placed(way, file, size, &[times / 10 + 1, times])?;
            let nanos = said.lines().last().and_then(|line| line.split(' ').nth(1)?.parse::<f64>().ok());
            nanos
                .map(|nanos| nanos / 1e3)
                .ok_or_else(|| io::Error::other(format!("a machine has said {said}")))
        })
    }

    /// Measures the processor time of a write, both sides together, microseconds. The time of a run with one write is
    /// subtracted, because start and end are the same.
    pub(super) fn cpu(
        &self,
        way: MachineRoute,
        file: &'static str,
        size: usize,
        times: u32,
    ) -> BenchTurn<'_> {
        Box::new(move || {
            let spent = |times| {
                let before = cpu_of_children()?;
                self.placed(way, file, size, &[times])?;
                io::Result::Ok((cpu_of_children()? - before).as_secs_f64() * 1e6)
            };
            Ok((spent(times)? - spent(1)?) / f64::from(times - 1))
        })
    }

    /// Measures the time until an image prints its first line, milliseconds.
    pub(super) fn first_line(&self) -> BenchTurn<'_> {
        Box::new(move || {
            let mut run = self.command();
            run.arg(&self.space).arg("--").arg(self.images.join("hello"));
            run.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
            let begun = Instant::now();
            let mut child = run.spawn()?;
            let mut line = String::new();
            let mut out = io::BufReader::new(child.stdout.take().expect("piped"));
            io::BufRead::read_line(&mut out, &mut line)?;
            let took = begun.elapsed();
            child.wait()?;
            match line.is_empty() {
                false => Ok(took.as_secs_f64() * 1e3),
                true => Err(io::Error::other("a machine has said nothing")),
            }
        })
    }

    /// Returns whether there is an image that drives QEMU's own server.
    pub(super) fn has_virtio(&self) -> bool {
        self.images.join("virtio").is_file()
    }

    /// Returns the size of the image `hello`, KiB.
    pub(super) fn image_size(&self) -> io::Result<f64> {
        Ok(self.images.join("hello").metadata()?.len() as f64 / 1024.0)
    }
}

/// Waits until QEMU runs, and moves it to the clients' processor. If QEMU is the server itself, moves only the thread
/// that executes the machine.
fn place_qemu(child: &mut Child, way: MachineRoute) -> io::Result<()> {
    let threads = if way == MachineRoute::Virtio { "CPU 0/" } else { "" };
    let late = Instant::now() + Duration::from_secs(10);
    while child.try_wait()?.is_none() && Instant::now() < late {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", child.id()))?;
        let all: String = tasks
            .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("children")).ok())
            .collect();
        for pid in all.split_whitespace().filter_map(|pid| pid.parse().ok()) {
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            if name.starts_with("qemu")
                && let Some(pid) = Pid::from_raw(pid)
                && move_to_client(pid, threads)?
            {
                return Ok(());
            }
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    // QEMU may have ended already; the caller reads the reason from its output.
    Ok(())
}

/// QEMU's own server, under the name that the image looks for.
const VIRTIO: &str = "virtio-9p-pci,fsdev=peer,mount_tag=peer";
