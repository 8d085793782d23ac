//! The QEMU command line: the computer that a machine runs on (docs/guest.md, "Images").

use std::ffi::OsString;
use std::fmt;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};

use nine_net::shm::{Slot, Waits};

/// The default name of the QEMU program.
pub const QEMU: &str = "qemu-system-x86_64";
/// The default memory of a machine, in MiB.
pub const MEMORY: u32 = 32;

/// How a machine's instructions are executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accel {
    /// Natively, by the kernel.
    Kvm,
    /// By QEMU's binary translation: available everywhere, and slower.
    Tcg,
}

impl Accel {
    /// Returns the common name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kvm => "KVM",
            Self::Tcg => "TCG",
        }
    }

    /// Returns whether this user may use it here and it is worthwhile; if not, why.
    pub fn may(self) -> Result<(), String> {
        const KVM: &str = "/dev/kvm";
        if self == Self::Tcg {
            return Ok(());
        }
        // Without hardware virtualization, kvm_pvm emulates most instructions, many times slower than TCG translates
        // them.
        if Path::new("/sys/module/kvm_pvm").exists() {
            return Err("this kernel's KVM (kvm_pvm) has no help of the processor".into());
        }
        let opened = std::fs::File::options().read(true).write(true).open(KVM);
        opened.map(drop).map_err(|error| format!("{KVM}: {error}"))
    }
}

impl fmt::Display for Accel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A computer and the image that runs on it.
#[derive(Clone, Debug)]
pub struct Computer {
    /// The image that it boots.
    pub image: PathBuf,
    /// Memory in MiB.
    pub memory: u32,
    /// How the guest waits for its host.
    pub wait: Waits,
    /// How its instructions are executed.
    pub accel: Accel,
    /// Further arguments for QEMU, after ours.
    pub more: Vec<OsString>,
}

impl Computer {
    /// Returns QEMU's arguments. It inherits the descriptors of `slot`, and `last`, which gets the machine's debug
    /// output.
    pub fn words(&self, slot: &Slot, last: RawFd) -> Vec<OsString> {
        let Self { image, memory, wait, accel, more } = self;
        let mut words: Vec<OsString> = COMMON.iter().map(OsString::from).collect();
        let mut add = |option: &str, value: OsString| words.extend([option.into(), value]);
        add("-kernel", image.into());
        add("-append", format!("wait={}", wait.name()).into());
        add("-m", format!("{memory}M").into());
        add("-add-fd", format!("fd={last},set=1").into());
        add("-chardev", "file,id=last,path=/dev/fdset/1,append=on".into());
        add("-device", "isa-debugcon,iobase=0xe9,chardev=last".into());
        add(
            "-accel",
            match accel {
                Accel::Kvm => "kvm".into(),
                // Multi-threaded TCG, though there is one processor: else the guest's atomic operations are not
                // atomic for the host.
                Accel::Tcg => "tcg,thread=multi,tb-size=32".into(),
            },
        );
        // qboot takes a fraction of a BIOS' time, and leaves the rest to the guest.
        if let Some(firmware) = FIRMWARE.iter().find(|file| Path::new(file).is_file()) {
            add("-bios", firmware.into());
        }
        // A machine has one tenant. Some nested kernels do not allow setting IA32_ARCH_CAPABILITIES.
        let cpu = if *accel == Accel::Kvm { "host,-arch-capabilities" } else { "max" };
        add("-cpu", cpu.into());
        match wait {
            // No doorbells are needed.
            Waits::Poll => {
                let (fd, size) = slot.memory();
                add(
                    "-object",
                    format!(
                        "memory-backend-file,id=channels,share=on,mem-path=/proc/self/fd/{fd},size={size}"
                    )
                    .into(),
                );
                add("-device", "ivshmem-plain,memdev=channels".into());
            }
            Waits::Interrupt | Waits::Adaptive => {
                let (fd, bells) = slot.socket();
                add("-chardev", format!("socket,id=channels,fd={fd}").into());
                add("-device", format!("ivshmem-doorbell,chardev=channels,vectors={bells}").into());
            }
        }
        words.extend_from_slice(more);
        words
    }
}

/// Returns the path of a program, searched in PATH as by a shell.
pub fn found(program: &Path) -> Option<PathBuf> {
    if program.components().count() > 1 {
        return program.is_file().then(|| program.into());
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(program)).find(|file| file.is_file())
}

/// The paths where distributions install qboot.
const FIRMWARE: [&str; 2] = ["/usr/share/qemu/qboot.rom", "/usr/share/qboot/bios.bin"];
const COMMON: &[&str] = &[
    "-nodefaults",
    "-no-user-config",
    "-display",
    "none",
    "-no-reboot",
    "-machine",
    "q35",
    "-smp",
    "1,maxcpus=2",
    "-sandbox",
    "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny",
    "-device",
    "isa-debug-exit,iobase=0xf4,iosize=4",
];
