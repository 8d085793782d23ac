//! The guest's initramfs: a shell, the modules that connect to the host's files, and `init`. It is a cpio archive in
//! the "newc" format, which the kernel unpacks.

use super::kernel::Kernel;

/// Returns the bytes of the archive. The modules `more` are loaded last.
pub fn make(kernel: &Kernel, more: &[&str]) -> Result<Vec<u8>, String> {
    let busybox =
        crate::packages::program("busybox").ok_or("busybox is not there (package busybox-static)")?;
    let busybox = std::fs::read(&busybox).map_err(|e| format!("{}: {e}", busybox.display()))?;
    let mut archive = Archive::default();
    for dir in ["bin", "modules", "dev", "proc", "sys"] {
        archive.add(dir, 0o040755, b"");
    }
    archive.add("bin/busybox", 0o100755, &busybox);
    for name in APPLETS {
        archive.add(&format!("bin/{name}"), 0o120777, b"busybox");
    }
    let mut order = String::new();
    for (name, module) in kernel.modules(&[MODULES, more].concat())? {
        archive.add(&format!("modules/{name}"), 0o100644, &module);
        order += &format!("{name}\n");
    }
    archive.add("modules/order", 0o100644, order.as_bytes());
    archive.add("init", 0o100755, include_bytes!("../../guest/init"));
    Ok(archive.end())
}

#[derive(Default)]
struct Archive {
    bytes: Vec<u8>,
    files: u32,
}

impl Archive {
    /// Adds a file: a header of thirteen hexadecimal numbers after the magic, the name with its NUL, and the data.
    /// Header with name, and data, are padded.
    fn add(&mut self, name: &str, mode: u32, data: &[u8]) {
        self.files += 1;
        let (links, size, name_size) = (1, data.len() as u32, name.len() as u32 + 1);
        let fields = [self.files, mode, 0, 0, links, 0, size, 0, 0, 0, 0, name_size, 0];
        self.bytes.extend(b"070701");
        for field in fields {
            self.bytes.extend(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend(data);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    fn end(mut self) -> Vec<u8> {
        self.add("TRAILER!!!", 0, b"");
        self.bytes
    }
}

const APPLETS: &[&str] = &["sh", "mount", "mkdir", "insmod", "ip", "grep", "switch_root"];

/// Modules for the host's files, its network, and our output. Their dependencies are added automatically.
const MODULES: &[&str] =
    &["virtio_pci", "virtio_console", "virtio_net", "9pnet_virtio", "9pnet_fd", "9p", "overlay"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_data_of_the_archive_are_padded_to_four_bytes() {
        let mut archive = Archive::default();
        archive.add("init", 0o100755, b"hello");
        let bytes = archive.end();
        let header = "070701 00000001 000081ed 00000000 00000000 00000001 00000000 00000005 \
                      00000000 00000000 00000000 00000000 00000005 00000000";
        assert_eq!(&bytes[..110], header.replace(' ', "").as_bytes());
        assert_eq!(&bytes[110..124], b"init\0\0hello\0\0\0");
        assert!(bytes[124..].starts_with(b"070701"));
        assert_eq!(bytes.len() % 4, 0);
    }
}
