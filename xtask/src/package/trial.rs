//! Tests of the installed package.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::guest::{self, Guest, Trouble, scratch};
use crate::packages;
use crate::steps::{Failed, Steps};

/// Tests the package in an overlay of this host's root.
pub fn on_this_host(steps: &mut Steps, package: &Path) -> Result<(), Failed> {
    if !packages::is_root() {
        steps.not_covered("the package installed, upgraded and purged (must be root)".into());
        return Ok(());
    }
    steps.call("package on this host", "cargo xtask package", || match installed(package) {
        Ok(is_right) => is_right,
        Err(why) => super::failed(&why),
    })
}

/// Tests the package in a guest whose process 1 is systemd.
pub fn under_systemd(steps: &mut Steps, root: &Path) -> Result<(), Failed> {
    let what = "the package under systemd";
    guest::call(steps, (what, "cargo xtask package"), what, false, || at_work(root))
}

fn installed(package: &Path) -> Result<bool, String> {
    let place = scratch("package")?;
    let script = place.0.join("package.sh");
    let dir = place.0.join("root");
    fs::create_dir(&dir)
        .and_then(|()| fs::write(&script, CHROOT))
        .map_err(|e| format!("{}: {e}", place.0.display()))?;
    // Its mounts end with its name space.
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "--", "bash"]).arg(&script).arg(&dir).arg(package);
    command.status().map(|status| status.success()).map_err(|e| format!("cannot start unshare: {e}"))
}

/// Runs the services in the guest. It gets the files unpacked, because an emulated machine unpacks slowly.
fn at_work(root: &Path) -> Result<(), Trouble> {
    let place = scratch("systemd").map_err(Trouble::NotStarted)?;
    let put = |name: &str, bytes: &[u8]| {
        fs::write(place.0.join(name), bytes).map_err(|e| Trouble::NotStarted(format!("{name}: {e}")))
    };
    put("systemd.sh", SYSTEMD.as_bytes())?;
    put("service.sh", SERVICE.as_bytes())?;
    super::pack(root, &place.0.join("package.deb"), &["-Znone"]).map_err(Trouble::NotStarted)?;
    let mut guest = Guest::new(&["bash", "/share/systemd.sh"]);
    guest.share = Some(place.0.clone());
    guest.limit = LIMIT;
    let ended = guest.run()?;
    match ended.status {
        0 => Ok(()),
        status => Err(Trouble::NotEnded(format!("the work in the guest ended with status {status}"))),
    }
}

const CHROOT: &str = include_str!("../../guest/package.sh");
const SYSTEMD: &str = include_str!("../../guest/systemd.sh");
const SERVICE: &str = include_str!("../../guest/service.sh");

/// Timeout of the guest, which is emulated and may compete with other jobs. It usually takes two minutes.
const LIMIT: std::time::Duration = std::time::Duration::from_secs(900);
