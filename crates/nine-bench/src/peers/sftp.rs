//! OpenSSH: sshd with its internal sftp server, and the client sftp. Host and user have keys of this run. There are no
//! passwords, and no ssh configuration of the machine is read.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nine_sim::delay::Side;
use rustix::process::geteuid;

use super::{PeerServer, find};
use crate::far::RemoteLink;

/// Starts an sshd that accepts this user with the key in `run`. `None` if it is not installed.
pub fn start(far: &RemoteLink, run: &Path) -> io::Result<Option<PeerServer>> {
    let (log, port) = (run.join("sshd.log"), far.free_port(Side::There)?);
    let Some(words) = words((far.server(), port).into(), run)? else { return Ok(None) };
    let mut child = far.start(Side::There, &words, &log)?;
    far.wait_for(&mut child, Side::There, port, &log)?;
    Ok(Some(PeerServer { child, port }))
}

/// Returns the words that start it at this address. `None` if it is not installed.
pub fn words(at: SocketAddr, run: &Path) -> io::Result<Option<Vec<OsString>>> {
    let (Some(program), Some(_), Some(keygen)) = (find("sshd"), find("sftp"), find("ssh-keygen")) else {
        return Ok(None);
    };
    let host = run.join("host-key");
    for key in [&host, &key(run)] {
        let mut make = Command::new(&keygen);
        make.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(key).stdin(Stdio::null());
        if !make.status()?.success() {
            return Err(io::Error::other("ssh-keygen makes no key"));
        }
    }
    if geteuid().is_root() {
        // The directory for privilege separation; normally the service creates it.
        fs::create_dir_all("/run/sshd")?;
    }
    let options = [
        format!("ListenAddress={at}"),
        format!("HostKey={}", host.display()),
        format!("AuthorizedKeysFile={}", key(run).with_extension("pub").display()),
        "StrictModes=no".into(),
        "UsePAM=no".into(),
        "PasswordAuthentication=no".into(),
        "KbdInteractiveAuthentication=no".into(),
        "PermitRootLogin=prohibit-password".into(),
        "PidFile=none".into(),
        "Subsystem=sftp internal-sftp".into(),
    ];
    let mut words: Vec<OsString> = vec![program.into()];
    words.extend(["-D", "-e", "-f", "/dev/null"].map(OsString::from));
    words.extend(options.into_iter().flat_map(|option| ["-o".into(), option.into()]));
    Ok(Some(words))
}

/// A command for sftp. Paths must not need quoting.
pub enum SftpCommand<'a> {
    Get(&'a Path, &'a Path),
    GetTree(&'a Path, &'a Path),
    Put(&'a Path, &'a Path),
}

/// Returns the words of a session with one command.
pub fn sftp(server: SocketAddr, run: &Path, order: SftpCommand<'_>) -> io::Result<Vec<OsString>> {
    let (verb, from, to) = match order {
        SftpCommand::Get(from, to) => ("get", from, to),
        SftpCommand::GetTree(from, to) => ("get -r", from, to),
        SftpCommand::Put(from, to) => ("put", from, to),
    };
    let batch = run.join("sftp.batch");
    fs::write(&batch, format!("{verb} \"{}\" \"{}\"\n", from.display(), to.display()))?;
    let options =
        ["BatchMode=yes", "StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "IdentitiesOnly=yes"];
    let mut words: Vec<OsString> = ["sftp", "-q", "-F", "none"].map(OsString::from).into();
    words.extend(options.iter().flat_map(|option| ["-o", option]).map(OsString::from));
    words.extend(["-i".into(), key(run).into(), "-P".into(), server.port().to_string().into()]);
    words.extend(["-b".into(), batch.into(), server.ip().to_string().into()]);
    Ok(words)
}

/// Returns the path of the user's key.
pub fn key(run: &Path) -> PathBuf {
    run.join("user-key")
}
