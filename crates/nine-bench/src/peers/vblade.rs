//! vblade, the AoE target in Debian: one thread, one frame at a time, on one interface.

use std::ffi::OsString;
use std::io;
use std::path::Path;

use nine_sim::delay::Side;

use super::find;
use crate::child::ChildProcess;
use crate::far::RemoteLink;

/// The number of frames that it offers to queue by default.
pub const BUFFERS: u32 = 16;

/// Exports a file as shelf 2, slot 0 on an interface of the far side. `None` if it is not
/// installed.
pub fn start(
    far: &RemoteLink,
    interface: &str,
    file: &Path,
    buffers: u32,
    run: &Path,
) -> io::Result<Option<ChildProcess>> {
    let Some(program) = find("vblade") else { return Ok(None) };
    let mut words: Vec<OsString> = vec![program.into()];
    words.extend(["-b", &buffers.to_string(), "2", "0", interface].map(OsString::from));
    words.push(file.into());
    far.start(Side::There, &words, &run.join(format!("vblade-{interface}.log"))).map(Some)
}

/// Returns the version of the package, or `None` if it is not installed.
pub fn version() -> Option<String> {
    super::version("vblade", "vblade")
}
