//! Debian's kernel, downloaded from its archive and unpacked under `target/guest`. It is never installed.
//!
//! Out: an ELF vmlinux, which QEMU boots by PVH without firmware and without the self-extraction of a bzImage; and the
//! modules, in a tree for `modprobe -d`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// An unpacked kernel.
pub struct Kernel {
    pub vmlinux: PathBuf,
    /// The folder that contains `lib/modules`.
    pub tree: PathBuf,
    modules: PathBuf,
}

impl Kernel {
    /// Returns the kernel in `target/guest`, or downloads the archive's newest.
    pub fn get() -> Result<Kernel, String> {
        let tree = super::folder()?.join("kernel");
        if !tree.exists() {
            let scratch = super::scratch("unpack")?;
            unpack(&scratch.0)?;
            fs::rename(scratch.0.join("kernel"), &tree).map_err(|e| format!("{}: {e}", tree.display()))?;
        }
        let modules = only_entry(&tree.join("lib/modules"))?;
        Ok(Kernel { vmlinux: tree.join("vmlinux"), modules, tree })
    }

    /// Returns these modules and their dependencies (names and contents), in load order.
    pub fn modules(&self, names: &[&str]) -> Result<Vec<(String, Vec<u8>)>, String> {
        let needs = read(&self.modules.join("modules.dep"))?;
        let needs = String::from_utf8_lossy(&needs);
        let mut order = Vec::new();
        for name in names {
            load(&needs, name, &mut order)?;
        }
        let mut seen = BTreeSet::new();
        order.retain(|path| seen.insert(*path));
        order
            .iter()
            .map(|path| Ok((module_name(path).to_string(), read_module(&self.modules.join(path))?)))
            .collect()
    }
}

/// Downloads the package, and leaves the needed part in `scratch/kernel`.
fn unpack(scratch: &Path) -> Result<(), String> {
    println!("==> guest: fetching Debian's kernel (some 70 MB, kept in target/guest)");
    let package = match fetch(scratch, &[]) {
        Ok(package) => package,
        Err(_) => {
            // The package lists are old or missing. Download them into a directory that needs no rights.
            let (state, cache) = (scratch.join("state"), scratch.join("cache"));
            for dir in [state.join("lists/partial"), cache.join("archives/partial")] {
                fs::create_dir_all(&dir).map_err(|e| format!("{}: {e}", dir.display()))?;
            }
            let lists = [
                format!("-oDir::State::lists={}", state.join("lists").display()),
                format!("-oDir::Cache={}", cache.display()),
                "-oAPT::Sandbox::User=".to_string(),
            ];
            run(Command::new("apt-get").args(&lists).args(["-q", "update"]))?;
            fetch(scratch, &lists)?
        }
    };
    let all = scratch.join("all");
    run(Command::new("dpkg-deb").arg("-x").arg(&package).arg(&all))?;
    let kernel = scratch.join("kernel");
    // If /lib is a symbolic link, packages may have their files below usr.
    let lib = [all.join("lib"), all.join("usr/lib")].into_iter().find(|lib| lib.join("modules").is_dir());
    let lib = lib.ok_or("the package has no lib/modules")?;
    fs::create_dir(&kernel).map_err(|e| e.to_string())?;
    fs::rename(lib, kernel.join("lib")).map_err(|e| e.to_string())?;
    let modules = only_entry(&kernel.join("lib/modules"))?;
    let release = modules.file_name().unwrap_or_default();
    let depmod = crate::packages::program("depmod").ok_or("depmod is not there (package kmod)")?;
    run(Command::new(depmod).arg("-b").arg(&kernel).arg(release))?;

    let image = all.join("boot").join(format!("vmlinuz-{}", release.display()));
    let packed = scratch.join("vmlinux.xz");
    fs::write(&packed, payload(&read(&image)?)?).map_err(|e| e.to_string())?;
    let vmlinux = unxz(&packed)?;
    fs::write(kernel.join("vmlinux"), vmlinux).map_err(|e| e.to_string())
}

/// Downloads the package that linux-image-amd64 depends on.
fn fetch(scratch: &Path, options: &[String]) -> Result<PathBuf, String> {
    let depends = run(Command::new("apt-cache").args(options).args(["depends", "linux-image-amd64"]))?;
    let name = depends.split_whitespace().find(|word| word.starts_with("linux-image-") && word.contains('.'));
    let name = name.ok_or("linux-image-amd64 names no kernel")?;
    let dir = scratch.join("package");
    fs::create_dir_all(&dir).map_err(|e| e.to_string())?;
    run(Command::new("apt-get").args(options).args(["-q", "download", name]).current_dir(&dir))?;
    only_entry(&dir)
}

/// Returns the compressed ELF file inside a bzImage, at the position in the setup header.
fn payload(image: &[u8]) -> Result<&[u8], String> {
    let word = |at: usize| -> Option<usize> {
        let bytes = image.get(at..at + 4)?;
        Some(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as usize)
    };
    let sectors = image.get(0x1f1).map(|n| if *n == 0 { 4 } else { usize::from(*n) });
    let found = || {
        let from = (sectors? + 1) * 512 + word(0x248)?;
        image.get(from..from + word(0x24c)?)
    };
    match found() {
        Some(payload) if payload.starts_with(b"\xfd7zXZ\0") => Ok(payload),
        Some(_) => Err("the kernel's image is not compressed by xz".to_string()),
        None => Err("the kernel's image is no bzImage".to_string()),
    }
}

/// Adds the dependencies of `name`, then itself, as paths below the modules' folder. Built-in modules have no
/// dependencies.
fn load<'a>(needs: &'a str, name: &str, order: &mut Vec<&'a str>) -> Result<(), String> {
    let line =
        needs.lines().find(|line| line.split(':').next().is_some_and(|path| module_name(path) == name));
    let Some((path, first)) = line.and_then(|line| line.split_once(':')) else {
        return Err(format!("this kernel has no module {name}"));
    };
    // modules.dep lists the dependencies so that the last one must be loaded first.
    order.extend(first.split_whitespace().rev());
    order.push(path);
    Ok(())
}

/// `kernel/fs/9p/9p.ko.xz` is 9p.
fn module_name(path: &str) -> &str {
    let file = path.rsplit('/').next().unwrap_or(path);
    file.split(".ko").next().unwrap_or(file)
}

fn read_module(path: &Path) -> Result<Vec<u8>, String> {
    if path.extension().is_some_and(|end| end == "xz") { unxz(path) } else { read(path) }
}

/// Decompresses an xz file. The kernel's payload has its length after its end.
fn unxz(path: &Path) -> Result<Vec<u8>, String> {
    let mut xz = Command::new("xz");
    xz.args(["-dc", "--single-stream"]).arg(path).stderr(Stdio::inherit());
    let output = xz.output().map_err(|e| format!("xz: {e}"))?;
    if output.status.success() {
        Ok(output.stdout)
    } else {
        Err(format!("xz {}: {}", path.display(), output.status))
    }
}

/// Returns a command's output. If it fails, its stderr is the error.
fn run(command: &mut Command) -> Result<String, String> {
    let name = command.get_program().display().to_string();
    let output = command.env("LC_ALL", "C").stdin(Stdio::null()).output();
    let output = output.map_err(|e| format!("cannot start {name}: {e}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(format!("{name}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim()))
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|e| format!("{}: {e}", path.display()))
}

fn only_entry(dir: &Path) -> Result<PathBuf, String> {
    let mut entries = fs::read_dir(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    match (entries.next(), entries.next()) {
        (Some(Ok(entry)), None) => Ok(entry.path()),
        _ => Err(format!("{}: not exactly one entry", dir.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_payload_is_where_the_setup_header_says() {
        let mut image = vec![0; 4096];
        image[0x1f1] = 2;
        image[0x248..0x24c].copy_from_slice(&16u32.to_le_bytes());
        image[0x24c..0x250].copy_from_slice(&8u32.to_le_bytes());
        image[1552..1560].copy_from_slice(b"\xfd7zXZ\0ab");
        assert_eq!(payload(&image), Ok(&b"\xfd7zXZ\0ab"[..]));
        image[1552] = 0x28;
        assert!(payload(&image).unwrap_err().contains("not compressed by xz"));
        assert!(payload(&image[..600]).unwrap_err().contains("no bzImage"));
    }

    #[test]
    fn what_a_module_needs_is_loaded_before_it() {
        let needs = "fs/9p.ko.xz: net/9pnet.ko.xz fs/netfs.ko.xz\nnet/9pnet.ko.xz:\nfs/netfs.ko.xz:\n";
        let mut order = Vec::new();
        load(needs, "9p", &mut order).unwrap();
        let names: Vec<&str> = order.into_iter().map(module_name).collect();
        assert_eq!(names, ["netfs", "9pnet", "9p"]);
        assert!(load(needs, "p9", &mut Vec::new()).is_err());
    }
}
