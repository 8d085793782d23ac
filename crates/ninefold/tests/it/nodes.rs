//! Partitions of three nodes, each in a network name space of its own, all mounted in the name space of a fourth.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;

use crate::common::space::Space;
use crate::common::{self, Server, chmod, ended_within, guest, ninefold, not_covered};

const LIMIT: Duration = Duration::from_secs(60);

/// The front end with its name space, and the nodes that it mounts. Cables join it to each node, and `a` to `c`.
struct Site {
    front: Server,
    /// `a`, `b` and `c`.
    nodes: Vec<Server>,
    home: tempfile::TempDir,
    _spaces: Vec<Space>,
}

impl Site {
    /// Returns `None`, and reports that, if the nodes cannot be created.
    fn new() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            not_covered("nodes in network name spaces: that takes root");
            return None;
        }
        let spaces = match joined() {
            Ok(spaces) => spaces,
            Err(why) => {
                not_covered(&format!("nodes in network name spaces: {why}"));
                return None;
            }
        };
        let home = tempfile::tempdir().unwrap();
        chmod(home.path(), 0o711);
        certificates(home.path());
        let [front, a, b, c] = &spaces[..] else { unreachable!("there are four") };
        // Nodes that are mounted by others are started first.
        let there = [("c", c, ""), ("b", b, ""), ("a", a, "mount -r -t 1 tls!10.9.4.2!5641 /n/c\n")];
        let mut nodes: Vec<Server> =
            there.iter().map(|(name, space, more)| node(home.path(), name, space, more)).collect();
        nodes.reverse();
        let mounts = [("a", 1), ("b", 2), ("c", 3)]
            .map(|(name, net)| format!("mount -r -t 1 tls!10.9.{net}.2!5641 /n/{name}\n"));
        let front = serve(home.path(), "front", front, &mounts.concat(), "unix!s");
        Some(Self { front, nodes, home, _spaces: spaces })
    }

    fn run(&self, on: &str, words: &[&str], program: &[&str]) -> Command {
        let mut command = self.front.client();
        command.args(["partition", "run", "--on", on]).args(words).arg("--").args(program);
        command
    }
}

/// Creates four network name spaces with cables. Each node's end of its cable is 10.9.N.2.
fn joined() -> Result<Vec<Space>, String> {
    let spaces = (0..4).map(|_| Space::new()).collect::<Result<Vec<_>, _>>()?;
    for space in &spaces {
        space.ip("link set lo up")?;
    }
    for (net, from, to) in [(1, 0, 1), (2, 0, 2), (3, 0, 3), (4, 1, 3)] {
        let (from, to) = (&spaces[from], &spaces[to]);
        from.ip(&format!("link add v{net} type veth peer name v{net} netns {}", to.0.id()))?;
        for (space, n) in [(from, 1), (to, 2)] {
            space.ip(&format!("addr add 10.9.{net}.{n}/24 dev v{net}"))?;
            space.ip(&format!("link set v{net} up"))?;
        }
    }
    Ok(spaces)
}

/// Creates a certificate for each node, known to all nodes.
fn certificates(home: &Path) {
    let mut all = String::new();
    let addrs = |nets: &[u8]| nets.iter().map(|net| format!("10.9.{net}.2")).collect::<Vec<_>>();
    for (name, mut names) in
        [("front", vec![]), ("a", addrs(&[1])), ("b", addrs(&[2])), ("c", addrs(&[3, 4]))]
    {
        names.insert(0, format!("{name}.lab"));
        let made = rcgen::generate_simple_self_signed(names).unwrap();
        std::fs::write(home.join(format!("{name}.pem")), made.cert.pem()).unwrap();
        common::secret(&home.join(format!("{name}.key")), &made.signing_key.serialize_pem());
        all += &made.cert.pem();
    }
    std::fs::write(home.join("all.pem"), all).unwrap();
}

/// Starts a node with partitions for the front end, and a file.
fn node(home: &Path, name: &str, space: &Space, more: &str) -> Server {
    let dir = home.join(name);
    for of in [&dir, &dir.join("fs"), &dir.join("files")] {
        std::fs::create_dir(of).unwrap();
        chmod(of, 0o755);
    }
    std::fs::write(dir.join("files/motd"), format!("of {name}\n")).unwrap();
    let policy = format!("user nobody\nallow front.lab\nfs {}\n", dir.join("fs").display());
    std::fs::write(dir.join("policy"), policy).unwrap();
    let lines = format!("mount part:{0}/policy /part\nmount disk:{0}/files /files\n{more}", dir.display());
    serve(home, name, space, &lines, "tls!*!5641")
}

/// Runs `ninefold serve` as an administrator would: with a name space file, and a configuration with its identity.
fn serve(home: &Path, name: &str, space: &Space, lines: &str, listen: &str) -> Server {
    let dir = tempfile::tempdir().unwrap();
    let script = dir.path().join("node.ns");
    std::fs::write(&script, lines).unwrap();
    let mut command = ninefold(dir.path());
    let at = |name: String| home.join(name);
    let (cert, key, all) = (at(format!("{name}.pem")), at(format!("{name}.key")), at("all.pem".into()));
    command.arg("serve").arg(&script).args(["--listen", listen]);
    if listen.starts_with("tls!") {
        command.arg("--cert").arg(&cert).arg("--key").arg(&key).arg("--client-ca").arg(&all);
    }
    command.env("NINEFOLD_CA", &all).env("NINEFOLD_CERT", &cert).env("NINEFOLD_KEY", &key);
    let command = space.within(&command);
    Server::by(dir, command)
}

const ALL: &str = ":/n/a/part,:/n/b/part,:/n/c/part";

#[test]
fn three_nodes_run_a_program_and_two_go_on_when_one_is_killed() {
    let Some(mut site) = Site::new() else { return };
    let job = site.home.path().join("job");
    std::fs::write(&job, "#!/bin/sh\necho ran $1; exit 3\n").unwrap();
    chmod(&job, 0o755);
    let output = site.run(ALL, &[], &[job.to_str().unwrap(), "x"]).output().unwrap();
    let (said, err) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    let mut lines: Vec<&str> = said.lines().collect();
    lines.sort_unstable();
    let due = ["a", "b", "c"].map(|name| format!(":/n/{name}/part: ran x"));
    assert_eq!(
        (&lines[..], &*err, output.status.code()),
        (&due.each_ref().map(|line| &**line)[..], "", Some(3))
    );
    // Kill one node in the middle of a run.
    let text = "echo begun; read -r x; echo got $x";
    let mut command = site.run(ALL, &["--there", "--input"], &["sh", "-c", text]);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut begun = String::new();
    for _ in 0..3 {
        out.read_line(&mut begun).unwrap();
    }
    assert_eq!(begun.matches(": begun\n").count(), 3, "{begun}");
    let listed = site.front.ok(["partition", "ls", ":/n/a/part"]);
    assert!(listed.contains("front.lab") && listed.contains("Running"), "{listed}");
    site.nodes[1].signal(Signal::KILL);
    site.nodes[1].child.wait().unwrap();
    let mut err = BufReader::new(child.stderr.take().unwrap());
    let mut why = String::new();
    err.read_line(&mut why).unwrap();
    assert!(why.contains(":/n/b/part"), "{why}");
    child.stdin.take().unwrap().write_all(b"on\n").unwrap();
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    let mut lines: Vec<&str> = rest.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, [":/n/a/part: got on", ":/n/c/part: got on"]);
    assert_eq!(ended_within(&mut child, LIMIT).and_then(|status| status.code()), Some(255));
    // The other nodes keep no sessions of the run.
    while !site.front.ok(["partition", "ls", ":/n/a/part"]).is_empty() {}
}

#[test]
fn a_program_on_one_node_reads_a_file_of_another() {
    let Some(site) = Site::new() else { return };
    let cat = guest("cat");
    let program = [cat.to_str().unwrap(), "n/c/files/motd"];
    let mut command = site.run(":/n/a/part", &["--ctl", "channel on"], &program);
    let output = command.output().unwrap();
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && output.stdout == b"of c\n", "{err}");
}
