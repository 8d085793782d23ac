//! The suite over diod, if it is installed: its known deviations, and no others.
//!
//! Each deviation is described in docs/conformance.md. A change on either side shows here.

use std::cell::RefCell;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;

use nine_check::{Dial, Dialling, Options};
use nine_net::{Addr, Env, Socket, rt};
use nine_proto::msg::Tmsg;
use nine_proto::{Dialect, NOTAG};

use crate::common::{self, not_covered, options};

/// Cases that diod 1.0.24 of Debian 12 always fails.
const KNOWN: &[&str] = &[
    "version/unknown_is_not_an_error",
    "version/again_clunks_all_fids",
    "attach/a_fid_in_use_is_refused",
    "walk/partial_makes_no_fid",
    "walk/partial_onto_itself_stays",
    "walk/a_newfid_in_use_is_refused",
    "walk/a_refused_newfid_keeps_its_file",
    "walk/dotdot_at_the_root_stays",
    "walk/a_slash_does_not_separate",
    "create/a_slash_in_the_name_is_refused",
    "msize/no_rread_is_longer",
    "malformed/a_size_below_seven",
    "malformed/bytes_after_the_last_field",
    "malformed/a_nul_in_a_name",
    "malformed/an_answer_from_the_client",
    "lock/getlock_names_who_holds_it",
    "lock/other_ranges_are_free",
    "xattr/what_is_not_whole_is_not_stored",
];

/// Cases that it fails depending on the scheduling of its threads.
const SOMETIMES: &[&str] = &[
    "version/again_aborts_what_is_outstanding",
    "flush/a_flush_can_be_flushed",
    "flush/several_of_one_request",
];

#[test]
#[ignore = "needs diod and root: `--include-ignored` runs it"]
fn diod_deviates_as_it_is_known_to() {
    if !Path::new(DIOD).exists() || !is_root() {
        return not_covered("the suite over diod: it is not installed, or we are not root");
    }
    let dir = tempfile::tempdir().unwrap();
    let exported = dir.path().join("exported");
    std::fs::create_dir(&exported).unwrap();
    let run = rt::block_on(async |env| {
        let diod = DiodServer {
            env,
            exported: exported.clone(),
            socket: dir.path().join("s"),
            child: RefCell::default(),
        };
        let options = Options {
            aname: exported.display().to_string(),
            only: std::env::var("ONLY").unwrap_or_default(),
            ..options()
        };
        common::run(Rc::new(env), Rc::new(diod), options).await
    })
    .unwrap();
    let failed: Vec<String> = run.failed().iter().map(|name| name.replace("9P2000.L ", "")).collect();
    let mended: Vec<_> = KNOWN.iter().filter(|name| !failed.iter().any(|failed| failed == *name)).collect();
    let of_old = |name: &&String| KNOWN.iter().chain(SOMETIMES).any(|known| known == name);
    let new: Vec<_> = failed.iter().filter(|name| !of_old(name)).collect();
    assert!(mended.is_empty() && new.is_empty(), "it passes {mended:?}, it fails {new:?}\n{}", run.told());
}

/// A diod that is restarted after it has died: some requests kill it, which is one of its deviations.
struct DiodServer {
    env: rt::Real,
    exported: PathBuf,
    socket: PathBuf,
    child: RefCell<Option<Child>>,
}

impl DiodServer {
    fn start(&self) -> io::Result<()> {
        // It may not exist yet.
        let _ = std::fs::remove_file(&self.socket);
        let mut command = Command::new("sh");
        // Without SIGPIPE, as under systemd. Otherwise it would die when a client goes too early.
        command.args(["-c", "trap '' PIPE; exec \"$0\" \"$@\"", DIOD]);
        // Here it cannot write a core dump, which would take time.
        command.current_dir("/proc");
        command.args(["-f", "-n", "-e"]).arg(&self.exported).arg("-l").arg(&self.socket);
        *self.child.borrow_mut() = Some(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?);
        Ok(())
    }

    fn stop(&self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Returns whether it answers a Tversion. While it dies it still accepts connections.
    fn answers(&self) -> bool {
        let mut asked = Vec::new();
        Tmsg::Version { msize: 8192, version: b"9P2000.L" }.encode(NOTAG, Dialect::P2000, &mut asked);
        let Ok(mut diod) = UnixStream::connect(&self.socket) else { return false };
        diod.write_all(&asked).is_ok() && matches!(diod.read(&mut [0; 100]), Ok(n) if n > 0)
    }
}

impl Dial for DiodServer {
    fn dial(&self) -> Dialling<'_> {
        Box::pin(async {
            if !self.answers() {
                let first = self.child.borrow().is_none();
                if !first {
                    // First reports that it has died; the next dial restarts it.
                    self.stop();
                    return Err(io::ErrorKind::ConnectionRefused.into());
                }
                self.start()?;
            }
            // If it does not start, the case's time limit ends this.
            while !self.answers() {
                self.env.sleep_until(self.env.now() + LOOK).await;
            }
            let addr = Addr::Unix { path: self.socket.clone() };
            Ok(Box::new(Socket::connect(&addr, LOOK * 100).await?) as _)
        })
    }
}

impl Drop for DiodServer {
    fn drop(&mut self) {
        self.stop();
    }
}

fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|meta| std::os::unix::fs::MetadataExt::uid(&meta) == 0)
}

const DIOD: &str = "/usr/sbin/diod";
/// The interval between checks whether it listens.
const LOOK: std::time::Duration = std::time::Duration::from_millis(10);
