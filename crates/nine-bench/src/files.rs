//! The host directory for disk servers: a large file, a small one, and a directory of many files.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

pub const LARGE: &str = "large";
/// A file of 8 KiB.
pub const SMALL: &str = "small";
pub const MANY: &str = "many";
/// Hard links to one file; ext4 allows 65,000.
const LINKS: u32 = 10_000;

/// Creates the files: the large one has `large` bytes, and the directory `many` names.
pub fn fill(dir: &Path, large: u64, many: u32) -> io::Result<()> {
    let piece: Vec<u8> = (0..1 << 20).map(|i: u32| (i / 7) as u8).collect();
    let mut file = File::create(dir.join(LARGE))?;
    for _ in 0..large >> 20 {
        file.write_all(&piece)?;
    }
    // Otherwise the kernel would write the file to disk during a measurement.
    file.sync_all()?;
    File::create(dir.join(SMALL))?.write_all(&piece[..8192])?;
    std::fs::create_dir(dir.join(MANY))?;
    for n in 0..many {
        // Hard links are enough, because a server sees them as separate names; new inodes would
        // take longer.
        let (first, name) = (n - n % LINKS, dir.join(MANY).join(file_name(n)));
        match n % LINKS {
            0 => drop(File::create(name)?),
            _ => std::fs::hard_link(dir.join(MANY).join(file_name(first)), name)?,
        }
    }
    File::open(dir.join(MANY))?.sync_all()
}

/// Returns the name of a file in [`MANY`].
pub fn file_name(n: u32) -> String {
    format!("f{n:07}")
}
