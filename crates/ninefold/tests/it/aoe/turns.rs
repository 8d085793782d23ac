//! Two machines and one archive, on targets of a third machine: one dies under load, and the other takes over.

use std::io::Write;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::*;
use crate::common::Stop;

/// Targets: two members of the cache, two of the worm, the arbiter.
const DISKS: [(&str, &str, u64); 6] = [
    ("1.0", "ca", 64),
    ("1.1", "cb", 64),
    ("2.0", "wa", 400),
    ("2.1", "wb", 400),
    ("3.0", "arbiter", 1),
    ("4.0", "own", 64),
];
/// A mirror member may be silent for a quarter of it, while other processes have the processors.
const PERIOD: &str = "4";

struct Lab {
    site: Site,
    targets: Vec<Target>,
}

/// A running machine.
struct Machine<'a> {
    lab: &'a Lab,
    serve: Ends,
    socket: String,
}

impl Lab {
    fn new() -> Option<Self> {
        let site = Site::new(&[9000, 9000])?;
        let target = |(address, name, mib): (&str, &str, u64)| {
            fs::File::create(site.path(name)).unwrap().set_len(mib << 20).unwrap();
            site.target(&format!("{address} {name} v0 v1"))
        };
        let targets = DISKS.map(target).into();
        let said = site.says(&format!("fs arbiter e3.0 mars venus --period {PERIOD} --over v0"));
        assert!(said.contains("machine=mars"), "{said}");
        let mut ream = site.command("fs ream --over v0");
        let output = ream.arg("c {e1.0e1.1} {e2.0e2.1}").stdin(Stdio::null()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Some(Self { site, targets })
    }

    /// Starts a machine with an interface of its own.
    fn machine(&self, name: &str, cache: &str, words: &str, over: &str) -> Machine<'_> {
        let socket = format!("unix!{}", self.site.path(name).display());
        let mut serve = self.site.command("serve");
        serve.arg(format!(
            "fs:c {cache} {{e2.0e2.1}},arbiter=e3.0,machine={name},schedule=off{words},over={over}"
        ));
        serve.args(["--listen", &socket]).stdin(Stdio::null()).stdout(Stdio::piped());
        let log = fs::File::create(self.site.path(&format!("{name}.log"))).unwrap();
        let mut serve: Child = serve.stderr(log).spawn().unwrap();
        let mut stdout = BufReader::new(serve.stdout.take().unwrap());
        let (serve, mut said) = (Ends(serve), String::new());
        while !said.ends_with("ready\n") {
            let log = || fs::read_to_string(self.site.path(&format!("{name}.log"))).unwrap();
            assert!(stdout.read_line(&mut said).unwrap() > 0, "{said}{}", log());
        }
        Machine { lab: self, serve, socket }
    }
}

impl Machine<'_> {
    fn command(&self, words: &str) -> Command {
        let mut words = words.splitn(2, ' ');
        let (verb, rest) = (words.next().unwrap(), words.next().unwrap_or_default());
        self.lab.site.command(format!("{verb} --server {} {rest}", self.socket).trim_end())
    }

    fn tells(&self, words: &str) -> Command {
        let mut command = self.lab.site.command(words);
        command.env("NINEFOLD_SERVER", self.socket.replacen('!', ":", 1));
        command
    }

    fn fs(&self, words: &str) -> String {
        let output = self.tells(&format!("fs {words}")).stdin(Stdio::null()).output().unwrap();
        assert!(output.status.success(), "{words}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Writes a file. Returns whether it is durable.
    fn writes(&self, name: &str, text: &str) -> bool {
        let mut write = self.command(&format!("write --create :/archive/{name}"));
        let mut write = write.stdin(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let fed = write.stdin.take().unwrap().write_all(text.as_bytes());
        let written = write.wait().unwrap().success() && fed.is_ok();
        let mut sync = self.tells("fs sync");
        written && sync.stdin(Stdio::null()).stderr(Stdio::null()).status().unwrap().success()
    }

    fn reads(&self, path: &str) -> Option<String> {
        let output = self.command(&format!("cat :{path}")).stdin(Stdio::null()).output().unwrap();
        output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.serve.0), signal).unwrap();
    }
}

/// Writes files until the machine is gone. Returns the number acknowledged as durable.
fn under_load(mars: &Machine<'_>, then: impl FnOnce()) -> usize {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (stop, over) = (Stop(&over), &over);
        let load = scope.spawn(|| {
            let mut done = 0;
            while !over.load(Relaxed) && mars.writes(&format!("f{done}"), &format!("text {done}\n")) {
                done += 1;
            }
            done
        });
        let begun = Instant::now();
        while mars.reads("/archive/f9").is_none() {
            assert!(begun.elapsed() < LIMIT, "nothing is written");
        }
        then();
        drop(stop);
        load.join().unwrap()
    })
}

#[test]
fn a_standby_takes_over_a_shared_journal_and_nothing_acknowledged_is_lost() {
    let Some(mut lab) = Lab::new() else { return };
    {
        let mars = lab.machine("mars", "{e1.0e1.1}", ",cache=shared", "v0");
        assert!(mars.writes("first", "first\n"));
        mars.fs("dump --wait");
        mars.signal(Signal::TERM);
    }
    let mut members = std::mem::take(&mut lab.targets);
    let mars = lab.machine("mars", "{e1.0e1.1}", ",cache=shared", "v0");
    let venus = lab.machine("venus", "{e1.0e1.1}", ",cache=shared,begin=standby", "v1");
    assert_eq!(venus.reads("/archive/first").as_deref(), Some("first\n"));
    let done = under_load(&mars, || {
        // Members die while the primary works: it continues without them.
        for member in [1, 3] {
            members[member].signal(Signal::KILL);
            members[member].child.wait().unwrap();
        }
        mars.fs("dump");
        let begun = Instant::now();
        let log = || fs::read_to_string(lab.site.path("mars.log")).unwrap();
        while log().matches("is set aside").count() < 2 {
            assert!(begun.elapsed() < LIMIT, "{}", log());
            assert!(mars.reads("/archive/f9").is_some());
        }
        mars.signal(Signal::KILL);
    });
    assert!(done >= 9, "{done}");
    let said = venus.fs("takeover");
    assert!(said.contains("the main one: after mars, "), "{said}");
    for n in 0..done {
        let text = venus.reads(&format!("/archive/f{n}"));
        assert_eq!(text, Some(format!("text {n}\n")), "f{n} of {done}");
    }
    assert!(venus.writes("after", "after\n"));
}

#[test]
fn with_caches_of_their_own_what_is_lost_is_what_was_said() {
    let Some(lab) = Lab::new() else { return };
    let mars = lab.machine("mars", "{e1.0e1.1}", "", "v0");
    assert!(mars.writes("first", "first\n"));
    let dump = mars.fs("dump --wait");
    let dump = dump.trim_end();
    let venus = lab.machine("venus", "e4.0", ",begin=standby", "v1");
    let done = under_load(&mars, || mars.signal(Signal::KILL));
    assert!(done >= 9, "{done}");
    let said = venus.fs("takeover");
    assert!(said.contains(&format!("from dump {dump} of ")) && said.contains("is not here"), "{said}");
    assert_eq!(venus.reads("/archive/first").as_deref(), Some("first\n"));
    assert!((0..done).all(|n| venus.reads(&format!("/archive/f{n}")).is_none()));
    assert!(venus.writes("after", "after\n"));
}

/// A primary is stopped, another machine takes over, and the primary continues: it must notice that before it writes.
#[test]
fn who_was_stopped_meanwhile_writes_nothing_any_more() {
    let Some(lab) = Lab::new() else { return };
    let mars = lab.machine("mars", "{e1.0e1.1}", ",cache=shared", "v0");
    assert!(mars.writes("first", "first\n"));
    mars.fs("dump --wait");
    let venus = lab.machine("venus", "{e1.0e1.1}", ",cache=shared,begin=standby", "v1");
    mars.signal(Signal::STOP);
    venus.fs("takeover");
    assert!(venus.writes("of-venus", "venus\n"));
    mars.signal(Signal::CONT);
    assert!(!mars.writes("of-mars", "mars\n"), "it believes to be the main one");
    assert!(venus.writes("more-of-venus", "more\n"));
    let begun = Instant::now();
    while !mars.fs("status").contains("machine mars, standby") {
        assert!(begun.elapsed() < LIMIT, "{}", mars.fs("status"));
    }
    venus.fs("dump --wait");
    venus.signal(Signal::TERM);
    drop(venus);
    let mut check = lab.site.command("fs check --over v0 --dumps");
    let output = check.arg("c {e1.0e1.1} {e2.0e2.1}").stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.ends_with("it is whole\n"), "{said}{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn without_the_arbiter_nobody_writes_but_by_word_of_who_answers_for_it() {
    let Some(mut lab) = Lab::new() else { return };
    let mut arbiter = lab.targets.remove(4);
    let mars = lab.machine("mars", "{e1.0e1.1}", ",cache=shared", "v0");
    assert!(mars.writes("first", "first\n"));
    mars.fs("dump --wait");
    let venus = lab.machine("venus", "{e1.0e1.1}", ",cache=shared,begin=standby", "v1");
    let goes = |arbiter: &mut Target| {
        arbiter.signal(Signal::KILL);
        arbiter.child.wait().unwrap();
    };
    let until = |machine: &Machine<'_>, word: &str| {
        let begun = Instant::now();
        while !machine.fs("status").contains(word) {
            assert!(begun.elapsed() < LIMIT, "{}", machine.fs("status"));
        }
    };
    // The primary waits for the arbiter, and continues when it returns.
    goes(&mut arbiter);
    until(&mars, "arbiter: ");
    // The error contains the known facts, and does not call the live machine mars dead.
    let output = venus.tells("fs takeover").stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let known =
        ["mars was the main one (epoch 1) ", "s ago, and may be still: ", "e3.0: the target does not answer"];
    assert!(!output.status.success() && known.iter().all(|known| said.contains(known)), "{said}");
    assert!(mars.fs("status").contains("machine mars, the main one: "));
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| mars.writes("waited", "waited\n"));
        arbiter = lab.site.target("3.0 arbiter v0 v1");
        assert!(waits.join().unwrap());
    });
    // No machine takes over without the arbiter. When it returns, venus sees mars's last record; that is no sign of
    // life.
    assert!(venus.fs("status").contains("main one mars, epoch 1, heard "));
    venus.signal(Signal::STOP);
    let begun = Instant::now();
    for _ in 0..2 {
        let put = || fs::read(lab.site.path("arbiter")).unwrap();
        let before = put();
        while put() == before {
            assert!(begun.elapsed() < LIMIT, "mars puts nothing");
        }
    }
    mars.signal(Signal::KILL);
    goes(&mut arbiter);
    venus.signal(Signal::CONT);
    until(&venus, "arbiter: ");
    let output = venus.tells("fs takeover").stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("e3.0: the target does not answer"), "{said}");
    let said = venus.fs("takeover --main-is-dead");
    assert!(said.contains("the main one: after mars, "), "{said}");
    assert_eq!(venus.reads("/archive/waited").as_deref(), Some("waited\n"));
    assert!(venus.writes("alone", "alone\n"));
    // The arbiter is back: the lease counts again, and nothing is lost.
    let shown = || lab.site.says("fs arbiter e3.0 --over v0");
    let _arbiter = lab.site.target("3.0 arbiter v0 v1");
    let begun = Instant::now();
    while !shown().contains("venus: the main one, ") {
        assert!(begun.elapsed() < LIMIT, "{}", shown());
    }
    until(&venus, "the main one: after venus, ");
    assert_eq!(venus.reads("/archive/alone").as_deref(), Some("alone\n"));
    assert!(venus.writes("after", "after\n"));
}
