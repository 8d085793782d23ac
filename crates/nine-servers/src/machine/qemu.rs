//! What QEMU is told: the computer that a machine has (docs/guest.md, "Images").

use std::ffi::OsString;
use std::fmt;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};

use nine_net::shm::{Slot, Waits};

/// The program that is looked for if nobody says where it is.
pub const QEMU: &str = "qemu-system-x86_64";
/// MiB of memory that a machine has if nobody says.
pub const MEMORY: u32 = 32;

/// Who executes what a machine does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accel {
    /// The processor, by the kernel.
    Kvm,
    /// QEMU, by translating it: everywhere, and slower.
    Tcg,
}

impl Accel {
    /// What QEMU and people call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kvm => "KVM",
            Self::Tcg => "TCG",
        }
    }

    /// Whether this user may try it here, and it is worth while; if not, why.
    pub fn may(self) -> Result<(), String> {
        const KVM: &str = "/dev/kvm";
        if self == Self::Tcg {
            return Ok(());
        }
        // Without that help it interprets most of what a machine does, many times slower than TCG translates it.
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

/// A computer and what runs on it.
#[derive(Clone, Debug)]
pub struct Computer {
    /// What it begins with.
    pub image: PathBuf,
    /// MiB.
    pub memory: u32,
    /// How the guest waits for its host.
    pub wait: Waits,
    /// Who executes it.
    pub accel: Accel,
    /// Words for QEMU, behind ours.
    pub more: Vec<OsString>,
}

impl Computer {
    /// QEMU's words. The descriptors of `slot` are inherited, and that of `last`, where the machine's last words go.
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
                // As for several processors, though there is one: else what is atomic in the guest is not for the host.
                Accel::Tcg => "tcg,thread=multi,tb-size=32".into(),
            },
        );
        // It takes a fraction of a BIOS' time, and leaves to the guest what that would do.
        if let Some(firmware) = FIRMWARE.iter().find(|file| Path::new(file).is_file()) {
            add("-bios", firmware.into());
        }
        // A machine has one tenant; and some kernels that are guests themselves do not let that register be set.
        let cpu = if *accel == Accel::Kvm { "host,-arch-capabilities" } else { "max" };
        add("-cpu", cpu.into());
        match wait {
            // Nobody rings.
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

/// Where a program of this name is, as a shell finds it.
pub fn found(program: &Path) -> Option<PathBuf> {
    if program.components().count() > 1 {
        return program.is_file().then(|| program.into());
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(program)).find(|file| file.is_file())
}

/// Where distributions have qboot.
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
