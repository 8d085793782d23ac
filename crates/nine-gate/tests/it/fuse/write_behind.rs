//! Writes that are answered before the server answers them.

use std::io;
use std::os::unix::fs::FileExt;
use std::sync::mpsc::Receiver;

use super::*;

const PIECE: usize = 64 << 10;

/// Mounts a server that holds the writes of `f`.
fn mounted() -> Option<Mounted> {
    Mounted::new(Liar::with([("/f", Lie { holds_writes: true, ..plain(2, "") }), ("/other", plain(3, "x"))]))
}

impl Mounted {
    fn until_held(&self, many: usize) {
        until("writes are held", || lock(&self.server.held).len() >= many);
    }

    /// Executes the held write at this place, or answers it with this error.
    fn release(&self, at: usize, failure: Option<Errno>) {
        let held = lock(&self.server.held).remove(at);
        let reply = match failure {
            None => self.server.write(&held.path, held.offset, &held.data),
            Some(errno) => Err(errno.into()),
        };
        held.later.respond(reply);
    }

    /// Executes the first write, after so long that the server counts as far away.
    fn release_late(&self) {
        self.until_held(1);
        let held = Instant::now();
        until("it is late", || held.elapsed() > FAR);
        self.release(0, None);
    }

    /// Runs a program that reports its steps.
    fn steps(
        &self,
        program: impl FnOnce(File, &dyn Fn(&'static str)) -> io::Result<()> + Send + 'static,
    ) -> (Receiver<&'static str>, JoinHandle<io::Result<()>>) {
        let (done, steps) = mpsc::channel();
        let path = self.path("f");
        let program = thread::spawn(move || {
            let file = File::options().read(true).write(true).open(path)?;
            program(file, &|step| done.send(step).unwrap())
        });
        (steps, program)
    }

    fn content(&self) -> Vec<u8> {
        lock(&self.server.files)["/f"].data.clone()
    }
}

#[track_caller]
fn next(steps: &Receiver<&'static str>) -> &'static str {
    steps.recv_timeout(LIMIT).expect("the program goes on")
}

fn pieces(file: &mut File, count: u8) -> io::Result<()> {
    (0..count).try_for_each(|n| file.write_all(&[b'0' + n; PIECE]))
}

#[test]
fn sequential_writes_to_a_distant_server_do_not_wait() {
    let Some(mounted) = mounted() else { return };
    let (steps, program) = mounted.steps(|mut file, done| {
        pieces(&mut file, 4)?;
        done("written");
        file.sync_all()?;
        done("synced");
        Ok(())
    });
    mounted.release_late();
    mounted.until_held(3);
    assert_eq!(next(&steps), "written");
    // The length is that of all writes, although the server has executed only one.
    assert_eq!((mounted.stat("f").unwrap().len(), mounted.content().len()), (4 * PIECE as u64, PIECE));
    assert!(steps.try_recv().is_err());
    // A server may execute them in any order.
    (0..3).rev().for_each(|at| mounted.release(at, None));
    assert_eq!(next(&steps), "synced");
    program.join().unwrap().unwrap();
    assert_eq!(mounted.content(), [b'0', b'1', b'2', b'3'].map(|byte| [byte; PIECE]).concat());
    assert_eq!(mounted.stat("f").unwrap().len(), 4 * PIECE as u64);
}

#[test]
fn an_error_is_reported_once_by_the_next_call_that_can() {
    // The error may arrive after a write.
    let write = |file: &mut File| (0..100_000).try_for_each(|_| file.write_all(b"more"));
    let calls: [fn(&mut File) -> io::Result<()>; 2] = [write, |file| file.sync_all()];
    for call in calls {
        let Some(mounted) = mounted() else { return };
        let (steps, program) = mounted.steps(move |mut file, done| {
            pieces(&mut file, 3)?;
            done("written");
            let failed = call(&mut file).map_err(|error| error.raw_os_error());
            assert_eq!(failed, Err(Some(Errno::ENOSPC.0 as i32)));
            done("failed");
            file.sync_all()
        });
        mounted.release_late();
        mounted.until_held(2);
        assert_eq!(next(&steps), "written");
        mounted.release(0, Some(Errno::ENOSPC));
        until("all is answered", || {
            let is_held = !lock(&mounted.server.held).is_empty();
            is_held.then(|| mounted.release(0, None));
            steps.try_recv() == Ok("failed")
        });
        program.join().unwrap().unwrap();
    }
}

#[test]
fn close_reports_the_error_of_a_write() {
    let Some(mounted) = mounted() else { return };
    let script = "dd if=/dev/zero bs=65536 count=3 conv=notrunc of=\"$0\"";
    let mut program = mounted.program(&["sh", "-c", script], "f");
    mounted.release_late();
    mounted.until_held(2);
    mounted.release(0, Some(Errno::EDQUOT));
    // The second write is in flight, or was taken back.
    until("the program ends", || {
        let is_held = !lock(&mounted.server.held).is_empty();
        is_held.then(|| mounted.release(0, None));
        program.try_wait().unwrap().is_some()
    });
    assert!(!ended(&mut program).success());
    // What the server has is shown, and not what the program wrote.
    until("the length is the server's", || {
        let there = mounted.content();
        mounted.stat("f").unwrap().len() == there.len() as u64
    });
    assert_eq!(mounted.read("f").unwrap().into_bytes(), mounted.content());
}

#[test]
fn a_close_that_nobody_sees_does_not_take_the_error() {
    let Some(mounted) = mounted() else { return };
    let (steps, program) = mounted.steps(|mut file, done| {
        pieces(&mut file, 3)?;
        done("written");
        // The child closes its copy of the descriptor at execve(2).
        Command::new("true").status()?;
        done("spawned");
        assert_eq!(file.sync_all().map_err(|error| error.raw_os_error()), Err(Some(Errno::ENOSPC.0 as i32)));
        file.sync_all()
    });
    mounted.release_late();
    mounted.until_held(2);
    assert_eq!(next(&steps), "written");
    mounted.release(0, Some(Errno::ENOSPC));
    mounted.release(0, None);
    assert_eq!(next(&steps), "spawned");
    program.join().unwrap().unwrap();
}

#[test]
fn nothing_is_in_flight_after_a_close_that_failed() {
    let Some(mounted) = mounted() else { return };
    let script = "dd if=/dev/zero bs=65536 count=4 conv=notrunc of=\"$0\"";
    let mut program = mounted.program(&["sh", "-c", script], "f");
    mounted.release_late();
    mounted.until_held(3);
    mounted.release(0, Some(Errno::EDQUOT));
    assert_eq!(mounted.read("other"), Ok("x".into()));
    assert!(program.try_wait().unwrap().is_none());
    mounted.release(0, None);
    mounted.release(0, None);
    assert!(!ended(&mut program).success());
    assert!(lock(&mounted.server.held).is_empty());
}

#[test]
fn other_requests_wait_for_the_writes_that_they_depend_on() {
    let calls: [fn(&mut File) -> io::Result<()>; 4] = [
        // Drops the kernel's pages, so that the read asks the server.
        |file| {
            rustix::fs::fadvise(&*file, 0, None, rustix::fs::Advice::DontNeed)?;
            let mut all = vec![0; 2 * PIECE];
            file.read_exact_at(&mut all, 0)?;
            assert!(
                all[..PIECE].iter().all(|&byte| byte == b'0')
                    && all[PIECE..].iter().all(|&byte| byte == b'1')
            );
            Ok(())
        },
        |file| file.write_all_at(&[b'1'; 10], PIECE as u64),
        |file| rustix::fs::flock(&*file, FlockOperation::LockExclusive).map_err(Into::into),
        |file| {
            File::open(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(file)))
                .and_then(|file| file.sync_all())
        },
    ];
    for (n, call) in calls.into_iter().enumerate() {
        let Some(mounted) = mounted() else { return };
        let (steps, program) = mounted.steps(move |mut file, done| {
            pieces(&mut file, 2)?;
            done("written");
            call(&mut file)?;
            done("called");
            Ok(())
        });
        mounted.release_late();
        assert_eq!(next(&steps), "written");
        mounted.until_held(1);
        // Another request in between, so that the call has been taken from the device in most runs.
        assert_eq!(mounted.read("other"), Ok("x".into()));
        assert!(steps.try_recv().is_err() && lock(&mounted.server.held).len() == 1, "call {n}");
        until("the call ends", || {
            let is_held = !lock(&mounted.server.held).is_empty();
            is_held.then(|| mounted.release(0, None));
            steps.try_recv() == Ok("called")
        });
        program.join().unwrap().unwrap();
        assert_eq!(mounted.content(), [b'0', b'1'].map(|byte| [byte; PIECE]).concat(), "call {n}");
    }
}

#[test]
fn writes_stop_when_enough_are_in_flight() {
    let Some(mounted) = mounted() else { return };
    let script = "exec dd if=/dev/zero bs=65536 count=1000 conv=notrunc of=\"$0\"";
    let mut program = mounted.program(&["sh", "-c", script], "f");
    mounted.release_late();
    mounted.until_held(16);
    assert_eq!(mounted.read("other"), Ok("x".into()));
    let held: usize = lock(&mounted.server.held).iter().map(|held| held.data.len()).sum();
    assert!(held <= (1 << 20) + PIECE, "{held}");
    // An interrupt takes back no write that was answered.
    program.kill().unwrap();
    assert_eq!(ended(&mut program).signal(), Some(9));
    let many = lock(&mounted.server.held).len();
    assert!(many >= 16, "{many}");
}

#[test]
fn a_killed_program_does_not_wait_for_its_writes_but_they_are_executed() {
    let Some(mounted) = mounted() else { return };
    let script = "exec dd if=/dev/zero bs=65536 count=3 conv=notrunc of=\"$0\"";
    let mut program = mounted.program(&["sh", "-c", script], "f");
    mounted.release_late();
    mounted.until_held(2);
    let killed = Instant::now();
    program.kill().unwrap();
    ended(&mut program);
    assert!(killed.elapsed() < GRACE + PATIENCE + Duration::from_secs(3), "{:?}", killed.elapsed());
    mounted.release(1, None);
    mounted.release(0, None);
    assert_eq!(mounted.content().len(), 3 * PIECE);
    assert_eq!(mounted.read("f").unwrap().len(), 3 * PIECE);
}
