//! Name spaces as users work with them: a file, a server, the verbs.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use nine_io::client::{Options, blocking::Client};
use nine_proto::{Dialect, Errno, GetMask, NOUID, OpenFlags};

use crate::common::{Server, ninefold};

const DIALECTS: [&str; 3] = ["L", "u", "9P2000"];

/// Creates directories `a` and `b` with a file each and one that both have, and a name space file
/// with these lines.
fn scratch(lines: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for name in ["a", "b"] {
        fs::create_dir(dir.path().join(name)).unwrap();
        fs::write(dir.path().join(name).join(format!("only-{name}")), format!("{name}\n")).unwrap();
        fs::write(dir.path().join(name).join("both"), format!("{name}\n")).unwrap();
    }
    fs::write(dir.path().join("home.ns"), lines).unwrap();
    dir
}

fn serve(lines: &str) -> Server {
    serve_on("1", lines)
}

fn serve_on(cores: &str, lines: &str) -> Server {
    let dir = scratch("");
    let listen = format!("listen unix!{}\n", dir.path().join("s").display());
    fs::write(dir.path().join("home.ns"), format!("{listen}{lines}")).unwrap();
    fs::write(dir.path().join("policy"), "allow any *!loopback!*\n").unwrap();
    Server::in_dir(dir, &["serve", "home.ns", "--cores", cores])
}

/// Runs a server that must fail to start. Returns its error text.
fn fails(dir: &Path) -> String {
    let output = ninefold(dir).args(["serve", "home.ns", "--listen", "unix!s"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn mounts(server: &Server) -> String {
    server.ok(["cat", "/mux/mounts"])
}

#[test]
fn disks_memory_and_another_server_are_one_tree_in_every_dialect() {
    let far = Server::start();
    fs::write(far.files().join("news"), "far away\n").unwrap();
    let far_addr = format!("unix!{}", far.socket().display());
    let server =
        serve(&format!("mount disk:a /a\nmount disk:b /deep/b\nmount ram: /ram\nmount {far_addr} /far\n"));
    assert!(server.banner.contains("serves home.ns\n    mount disk:"), "{}", server.banner);
    for dialect in DIALECTS {
        let with = |verb: &str, words: &[&str]| server.ok([&[verb, "--dialect", dialect], words].concat());
        assert_eq!(with("ls", &["/"]), "a\ndeep\nfar\nmux\nram\n");
        assert_eq!(with("ls", &["/a", "/deep"]), "/a:\nboth\nonly-a\n\n/deep:\nb\n");
        assert_eq!(with("cat", &["/a/both", "/deep/b/both", "/far/news"]), "a\nb\nfar away\n");
        with("put", &["-q", "a/only-a", "/far/copied"]);
        assert_eq!(fs::read_to_string(far.files().join("copied")).unwrap(), "a\n");
        with("mkdir", &["-p", "/ram/x/y"]);
        with("put", &["-q", "-r", "b", "/ram/x/y"]);
        with("mv", &["/ram/x/y/b/both", "/ram/x/y/b/moved"]);
        assert_eq!(with("cat", &["/ram/x/y/b/moved"]), "b\n");
        // A rename across servers fails.
        let said = server.fails(["mv", "--dialect", dialect, "/ram/x/y/b/moved", "/a/moved"]);
        // Only 9P2000.L can even request it.
        assert!(
            said.contains("cross-device") || said.contains("cannot move a file to another directory"),
            "{said}"
        );
        with("rm", &["-r", "/ram/x", "/far/copied"]);
        assert_eq!(with("ls", &["/ram", "/far"]), "/ram:\n\n/far:\nnews\n");
        let said = server.fails(["mv", "--dialect", dialect, "/a", "/elsewhere"]);
        assert!(said.contains("is a mount point") || said.contains("busy"), "{said}");
    }
}

#[test]
fn a_server_mounted_with_and_without_its_token_has_lines_that_can_be_read_again() {
    let far = Server::start();
    let (addr, token) = (far.addr("tcp"), far.token());
    let port = addr.rsplit_once('!').unwrap().1;
    let server = serve(&format!("mount {addr} /plain\nmount 9p://{token}@127.0.0.1:{port} /token\n"));
    let lines = mounts(&server);
    for at in ["/plain", "/token"] {
        assert!(lines.contains(&format!("mount {addr} {at}\n")), "{lines}");
    }
    let again = serve(&lines);
    assert_eq!(mounts(&again), lines);
}

#[test]
fn a_mux_keeps_to_9p_whatever_is_behind_it() {
    let far = Server::start();
    let far_addr = format!("unix!{}", far.socket().display());
    let server = serve(&format!("mount disk:a /disk\nmount ram: /ram\nmount {far_addr} /far\n"));
    let lines = format!("mount -n 2 ram: /ram\nmount -n 2 -r -P {far_addr} /far\nmount {far_addr} /first\n");
    let on_two = serve_on("2", &lines);
    std::thread::scope(|scope| {
        let (one, two) = (&server, &on_two);
        let places =
            [(one, "/disk"), (one, "/ram"), (one, "/far"), (two, "/ram"), (two, "/far"), (two, "/first")];
        for (server, place) in places {
            let checked = move || {
                let output =
                    server.run(["check-server", &format!("unix:{}{place}", server.socket().display())]);
                let said = String::from_utf8_lossy(&output.stdout);
                assert!(
                    output.status.success(),
                    "{place}: {said}{}",
                    String::from_utf8_lossy(&output.stderr)
                );
                for dialect in ["9P2000 ", "9P2000.u", "9P2000.L"] {
                    let tally =
                        said.lines().find(|line| line.starts_with(dialect) && line.contains(" passed, "));
                    assert!(tally.is_some_and(|tally| tally.contains(" 0 failed")), "{place}: {said}");
                }
            };
            scope.spawn(checked);
        }
    });
}

#[test]
fn walks_of_a_name_space_that_holds_itself_end() {
    let server = serve("mount ram: /\nmount ram: /data\nbind / /data/sub\n");
    server.fed(&["write", "--create", "/data/f"], b"f\n");
    let got = server.dir.path().join("got");
    for line in [
        &["tree", "/data"][..],
        &["ls", "-R", "/data"],
        &["get", "-r", "/data", got.to_str().unwrap()],
        &["cp", "-r", ":/data", ":/copy"],
        &["rm", "-r", "/data"],
    ] {
        let said = server.fails(line);
        assert!(said.contains("/data/sub/data: file system loop"), "{line:?}: {said}");
    }
    // All other files arrived.
    assert_eq!(fs::read(got.join("f")).unwrap(), b"f\n");
    assert!(!got.join("sub/data").exists());
    // The same tree twice, as siblings, is not a loop.
    let server = serve("mount disk:a /one\nbind /one /two\n");
    assert!(server.ok(["tree", "/"]).contains("two"));
}

#[test]
fn a_control_file_that_refuses_a_line_says_why() {
    let server = serve("mount ram: /r\n");
    let write = |words: &[&str]| {
        let mut child = server.client();
        child.args(["write", "/mux/ctl"]).args(words).stdin(Stdio::piped()).stderr(Stdio::piped());
        let mut child = child.spawn().unwrap();
        child.stdin.take().unwrap().write_all(b"frobnicate /a\n").unwrap();
        String::from_utf8(child.wait_with_output().unwrap().stderr).unwrap()
    };
    let said = write(&[]);
    assert!(said.contains("`frobnicate` is not known"), "{said}");
    let said = write(&["--dialect", "9P2000"]);
    assert!(said.contains("`frobnicate` is not known"), "{said}");
}

#[test]
fn a_union_lists_a_name_once_and_takes_new_files_where_it_is_told() {
    let server = serve("mount disk:a /all\nmount -ac disk:b /all\nmount disk:a /no\nmount -a disk:b /no\n");
    for dialect in DIALECTS {
        assert_eq!(server.ok(["ls", "--dialect", dialect, "/all"]), "both\nonly-a\nonly-b\n");
        assert_eq!(server.ok(["cat", "--dialect", dialect, "/all/both", "/all/only-b"]), "a\nb\n");
        server.fed(&["write", "--dialect", dialect, "--create", "/all/new"], b"x");
        assert!(server.dir.path().join("b/new").exists() && !server.dir.path().join("a/new").exists());
        server.ok(["rm", "--dialect", dialect, "/all/new"]);
        let said = server.fails(["mkdir", "--dialect", dialect, "/no/new"]);
        assert!(said.contains("forbids creation") || said.contains("not permitted"), "{said}");
    }
}

#[test]
fn a_file_that_is_put_or_moved_onto_a_name_of_a_union_is_seen_there() {
    // The name is in an earlier or a later member than the one for new files.
    let far = Server::start();
    let far_addr = format!("unix!{}", far.socket().display());
    for lines in [
        "mount disk:a /u\nmount -ac ram: /u\n".into(),
        "mount -c ram: /u\nmount -a disk:a /u\n".into(),
        format!("mount disk:a /u\nmount -ac {far_addr} /u\n"),
        format!("mount {far_addr} /far\nmount disk:a /u\nmount -bc {far_addr} /u\n"),
    ] {
        let server = serve(&lines);
        for dialect in DIALECTS {
            fs::write(server.dir.path().join("new"), "new\n").unwrap();
            fs::write(server.dir.path().join("a/both"), "a\n").unwrap();
            server.ok(["put", "-q", "--dialect", dialect, "new", "/u/both"]);
            assert_eq!(server.ok(["cat", "/u/both"]), "new\n", "{lines}");
            server.fed(&["write", "--dialect", dialect, "--create", "/u/x"], b"moved\n");
            let moved = server.run(["mv", "--dialect", dialect, "/u/x", "/u/both"]);
            let (x, both) = if moved.status.success() { ("", "moved\n") } else { ("moved\n", "new\n") };
            assert_eq!(server.ok(["cat", "/u/both"]), both, "{lines}{dialect}");
            if !moved.status.success() {
                assert_eq!(server.ok(["cat", "/u/x"]), x, "{lines}{dialect}");
                server.ok(["rm", "/u/x"]);
            }
            assert_eq!(server.ok(["ls", "/u"]), "both\nonly-a\n", "{lines}{dialect}: nothing else is left");
        }
    }
}

#[test]
fn a_file_that_is_replaced_stays_bound() {
    let server = serve("mount disk:a /a\nmount ram: /r\nbind /a/both /a/only-a\n");
    fs::write(server.dir.path().join("new"), "new\n").unwrap();
    let before = mounts(&server);
    server.ok(["put", "-q", "new", "/a/both"]);
    assert_eq!(server.ok(["cat", "/a/only-a"]), "new\n");
    // Also by the bound name.
    fs::write(server.dir.path().join("new"), "newer\n").unwrap();
    server.ok(["put", "-q", "new", "/a/only-a"]);
    assert_eq!(server.ok(["cat", "/a/only-a", "/a/both"]), "newer\nnewer\n");
    server.ok(["rm", "/a/both"]);
    assert!(server.fails(["cat", "/a/only-a"]).contains("No such file"));
    server.ok(["put", "-q", "new", "/a/both"]);
    assert_eq!(server.ok(["cat", "/a/only-a"]), "newer\n");
    assert_eq!(mounts(&server), before);
    assert_eq!(fs::read_to_string(server.dir.path().join("a/only-a")).unwrap(), "a\n", "it is only covered");
}

#[test]
fn what_is_mounted_on_the_root_may_be_a_disk_beside_the_mount_points_or_memory() {
    let server = serve("mount -c ram: /\nmount disk:a /x/a\n");
    assert_eq!(server.ok(["ls", "/", "/x/a"]), "/:\nmux\nx\n\n/x/a:\nboth\nonly-a\n");
    let server = serve("mount -a disk:a /\nmount disk:b /b\n");
    assert_eq!(server.ok(["ls", "/", "/b"]), "/:\nb\nboth\nmux\nonly-a\n\n/b:\nboth\nonly-b\n");
    // A disk server has only its own directories.
    let dir = scratch("mount disk:a /\nmount disk:b /b\n");
    let said = fails(dir.path());
    assert!(
        said.contains("home.ns:2: mount disk:") && said.contains("make it there, or mount where"),
        "{said}"
    );
    assert!(!dir.path().join("a/b").exists());
    fs::create_dir(dir.path().join("a/b")).unwrap();
    let server = Server::in_dir(dir, &["serve", "home.ns", "--listen", "unix!s"]);
    assert!(server.log().contains("no /mux in main"), "{}", server.log());
    assert_eq!(server.ok(["ls", "/", "/b"]), "/:\nb\nboth\nonly-a\n\n/b:\nboth\nonly-b\n");
    assert!(server.fails(["mux"]).contains("there is no /mux"));
}

#[test]
fn a_running_name_space_is_shown_and_changed() {
    let far = Server::start();
    fs::write(far.files().join("news"), "").unwrap();
    let far_addr = format!("unix!{}", far.socket().display());
    let server = serve("mount disk:a /a\n");
    let a = format!("mount disk:{}/a /a\n", server.dir.path().canonicalize().unwrap().display());
    assert_eq!(mounts(&server), a);
    server.ok(["mux", "mount", &far_addr, "/n/far"]);
    server.ok(["mux", "bind", "-a", "-c", "/n/far", "/a"]);
    server.ok(["mux", "mount", "ram:2M", "/it's"]);
    let all = format!("{a}mount {far_addr} /n/far\nbind -ac /n/far /a\nmount ram:2M '/it''s'\n");
    assert_eq!(mounts(&server), all);
    assert_eq!(server.ok(["ls", "/a"]), "both\nnews\nonly-a\n");
    let shown = server.ok(["mux"]);
    for text in ["AT", "after, takes new files", "SERVER", "9P2000.L", "CLIENT", &far_addr, "/it's"] {
        assert!(shown.contains(text), "{text}: {shown}");
    }
    // The lines create the same name space again.
    let again = serve(&all);
    assert_eq!(mounts(&again), all);
    // A connection is dialled again after a hangup.
    server.ok(["mux", "hangup", &far_addr]);
    assert_eq!(server.ok(["ls", "/n/far"]), "news\n");
    server.ok(["mux", "unmount", "/n/far", "/a"]);
    server.ok(["mux", "unmount", "ram:2M", "/it's"]);
    server.ok(["mux", "unmount", &far_addr, "/n/far"]);
    assert_eq!(mounts(&server), a);
    assert_eq!(server.ok(["ls", "/a", "/n/far"]), "/a:\nboth\nonly-a\n\n/n/far:\n");
    for (words, said) in [
        (&["mux", "mount", "foo:", "/x"][..], "`foo:` is no kind of server"),
        (&["mux", "mount", "-x", "ram:", "/x"], "`-x` is not known to mount"),
        (&["mux", "unmount", "/nothing"], "No such file or directory"),
        (&["mux", "unmount", "/a/only-a"], "nothing is mounted there"),
        (&["mux", "bind", "/none", "/x"], "/none: No such file or directory"),
        (&["mux", "hangup", "tcp!h!1"], "tcp!h!1 is no server here"),
        (&["mux", "mount", "disk:x", "/x"], "a path that begins with `/` is due"),
    ] {
        let heard = server.fails(words);
        assert!(heard.contains(said), "{words:?}: {heard}");
    }
    // The ctl file without the verb.
    server.fed(&["write", "/mux/ctl"], b"mount ram: /y\nbind /a /y\n");
    assert!(server.ok(["cat", "/mux/ctl"]).contains("# the latest message was understood"));
    assert_eq!(server.ok(["ls", "/y"]), "both\nonly-a\n");
}

#[test]
fn each_unmount_takes_the_call_that_was_made_last() {
    let server = serve("mount ram: /u\nmount disk:a /d\n");
    let before = mounts(&server);
    for word in ["ram:", "disk:/work", "/d"] {
        let word = if word == "disk:/work" {
            format!("disk:{}/b", server.dir.path().canonicalize().unwrap().display())
        } else {
            word.into()
        };
        for order in ["-b", "-a", "-bc"] {
            for _ in 0..3 {
                let verb = if word == "/d" { "bind" } else { "mount" };
                server.ok(["mux", verb, order, &word, "/u"]);
                server.ok(["mux", "unmount", &word, "/u/"]);
                assert_eq!(mounts(&server), before, "{verb} {order} {word}");
            }
        }
    }
    // Also with the words as they were written.
    server.ok(["mux", "unmount", "disk:a", "/d"]);
    assert_eq!(mounts(&server), "mount ram: /u\n");
}

#[test]
fn the_owner_keeps_the_files_that_change_the_name_space() {
    let server = serve("mount ram: /t\nmount disk:a /a\n");
    for words in [&["mount", "ram:", "/mux"][..], &["bind", "/t", "/mux"], &["unmount", "/mux"]] {
        let said = server.fails([&["mux"], words].concat());
        assert!(said.contains("this is where the name space is changed"), "{said}");
    }
    // A disk has no directory for the mux files.
    let disk = format!("disk:{}/a", server.dir.path().display());
    assert!(server.fails(["mux", "mount", &disk, "/"]).contains("there would be no /mux"));
    assert_eq!(server.ok(["ls", "/"]), "a\nmux\nt\n");
    // The failed attempt does not replace the tree in memory.
    let on_ram = serve("mount -c ram: /\n");
    on_ram.fed(&["write", "--create", "/kept"], b"kept\n");
    let before = mounts(&on_ram);
    assert!(on_ram.fails(["mux", "mount", &disk, "/"]).contains("there would be no /mux"));
    assert_eq!((on_ram.ok(["cat", "/kept"]), mounts(&on_ram)), ("kept\n".into(), before));
    on_ram.fed(&["write", "--create", "/more"], b"more\n");
    server.ok(["mux", "mount", "ram:", "/"]);
    assert_eq!(server.ok(["ls", "/"]), "mux\n");
    server.ok(["mux", "unmount", "/"]);
    assert_eq!(server.ok(["ls", "/"]), "a\nmux\nt\n");
}

#[test]
fn lines_wait_for_their_server_and_are_done_when_it_comes() {
    let dir = tempfile::tempdir().unwrap();
    let far = dir.path().join("far");
    let lines = format!("mount ram: /r\nmount unix!{} /far\nbind -ac /far/bin /bin\n", far.display());
    let strict = scratch(&lines);
    let output = ninefold(strict.path())
        .args(["serve", "home.ns", "--strict", "--listen", "unix!s"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains("home.ns:3: bind -ac /far/bin /bin"), "{said}");
    let server = serve(&lines);
    assert!(server.log().contains("bind -ac /far/bin /bin: not yet: "), "{}", server.log());
    assert_eq!(server.ok(["ls", "/"]), "far\nmux\nr\n");
    let shown = server.ok(["mux"]);
    assert!(shown.contains("NOT YET") && shown.contains("bind -ac /far/bin /bin"), "{shown}");
    assert!(mounts(&server).ends_with("bind -ac /far/bin /bin\n"));
    fs::create_dir_all(dir.path().join("files/bin")).unwrap();
    fs::write(dir.path().join("files/bin/tool"), "tool\n").unwrap();
    let _there = Server::in_dir(dir, &["serve", "files", "--listen", &format!("unix!{}", far.display())]);
    let begun = Instant::now();
    while !server.run(["cat", "/bin/tool"]).status.success() {
        assert!(begun.elapsed() < Duration::from_secs(30), "{}", server.log());
    }
    assert!(!server.ok(["mux"]).contains("NOT YET"));
    // A token is not shown.
    let lines = "mount unix!/none /far\nmount 9p://0123456789abcdef@127.0.0.1:9 /far/deep\n";
    let server = serve(lines);
    let shown = [mounts(&server), server.ok(["mux"]), server.ok(["cat", "/mux/pending"]), server.log()];
    assert!(shown[2].starts_with("mount tcp!127.0.0.1!9 /far/deep # "), "{}", shown[2]);
    assert!(shown.iter().all(|text| !text.contains("0123456789abcdef")), "{shown:?}");
    server.ok(["mux", "unmount", "/far/deep"]);
    assert_eq!(mounts(&server), "mount unix!/none /far\n");
    // A pending statement may be unmounted.
    let server = serve("mount unix!/none /far\nbind /far/bin /bin\n");
    server.ok(["mux", "unmount", "/far/bin", "/bin"]);
    assert_eq!(mounts(&server), "mount unix!/none /far\n");
    // A user that mounts it while the server runs gets a note.
    let output = server.run(["mux", "mount", "unix!/none", "/other"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(3) && said.contains("mounted, but away: "), "{said}");
}

#[test]
fn a_server_that_is_read_ahead_is_mounted_so_and_says_how_much() {
    let far = Server::start();
    let text: String = (0..200_000).map(|n| format!("{n:07}\n")).collect();
    fs::write(far.files().join("long"), &text).unwrap();
    let far_addr = format!("unix!{}", far.socket().display());
    let server = serve(&format!("mount -P {far_addr} /far\n"));
    assert_eq!(mounts(&server), format!("mount -P {far_addr} /far\n"));
    let addr = nine_net::Addr::Unix { path: server.socket() };
    let client = Client::dial(&addr, Duration::from_secs(30), Options::default()).unwrap();
    let long = client.attach("", nine_proto::NOUID, "").unwrap().open("far/long", OpenFlags::READ).unwrap();
    let mut read = Vec::new();
    while read.len() < text.len() {
        // Read one piece after the other, as programs do.
        read.extend_from_slice(&long.read(read.len() as u64, 32 * 1024).unwrap());
    }
    assert!(read == text.as_bytes());
    let all = server.ok(["ls", "/mux/servers"]);
    let status = all.lines().map(|n| server.ok(["cat", &format!("/mux/servers/{n}/status")]));
    let status = status.into_iter().find(|status| status.contains(&far_addr)).unwrap();
    let served = status.lines().find_map(|line| line.strip_prefix("ahead-served ")).unwrap();
    assert!(served.parse::<u64>().unwrap() > 1_000_000, "{status}");
}

#[test]
fn a_program_reads_the_name_space_as_json() {
    let server = serve("mount disk:a /a\nbind -b /mux /a\n");
    let seen: serde_json::Value = serde_json::from_str(&server.ok(["mux", "--json"])).unwrap();
    assert_eq!((&seen["mounts"][0]["old"], &seen["mounts"][1]["order"]), (&"/a".into(), &"before".into()));
    let disk =
        seen["servers"].as_array().unwrap().iter().find(|s| s["name"].as_str().unwrap().starts_with("disk:"));
    assert_eq!((&disk.unwrap()["dialect"], &disk.unwrap()["connections"]), (&"9P2000.L".into(), &1.into()));
    let client = &seen["clients"][0];
    assert!(
        client["requests"].as_u64() > Some(0) && client["since"].as_u64() > Some(1_700_000_000),
        "{client}"
    );
    assert_eq!(
        client["user"],
        server.ok(["mux", "--json", "--dialect", "9P2000"]).parse::<serde_json::Value>().unwrap()["clients"]
            [0]["user"]
    );
    let missing = Server::start();
    for (line, said) in [
        (&["mux", "mont"][..], "`mont` is no statement; did you mean `mount`?"),
        (&["mux", "mont", "ram:", "/x"], "`mont` is no statement; did you mean `mount`?"),
        (&["mux", "fly", "ram:", "/x"], "`fly` is no statement; write one of: mount, bind, "),
    ] {
        assert!(missing.fails(line).contains(said), "{line:?}");
    }
    let hidden = serve("mount disk:a /a\nnomux\n");
    assert!(hidden.fails(["mux"]).contains("there is no /mux: its name space file says nomux"));
}

#[test]
fn one_served_directory_has_the_files_of_a_mux_for_its_owner_alone() {
    let server = Server::start();
    // Names of the directory itself stay what they are.
    fs::create_dir(server.files().join("mux")).unwrap();
    fs::write(server.files().join("mux/mounts"), "my own\n").unwrap();
    assert_eq!(server.ok(["cat", "/mux/mounts"]), "my own\n");
    let disk = format!("disk:{}", server.files().canonicalize().unwrap().display());
    let seen = || server.ok(["mux", "--json"]).parse::<serde_json::Value>().unwrap();
    let before = seen();
    assert_eq!(
        (&before["mounts"][0]["mount"], &before["mounts"][0]["old"]),
        (&disk.clone().into(), &"/".into())
    );
    assert_eq!(
        (&before["servers"][0]["name"], &before["servers"][0]["connections"]),
        (&disk.into(), &1.into())
    );
    // Clients that have left are counted, too.
    let load = |column: usize| -> u64 {
        let text = server.ok(["cat", "/#mux/load"]);
        text.lines().nth(1).unwrap().split('\t').nth(column).unwrap().parse().unwrap()
    };
    for column in [6, 7, 8] {
        assert!(load(column) < load(column));
    }
    assert!(server.ok(["cat", "/#mux/metrics"]).contains("\nninefold_mux_clients 1\n"));
    assert_eq!(server.ok(["ls", "-a", "/"]), "mux\n");
    let said = server.fails(["mux", "mount", "ram:", "/mux"]);
    assert!(said.contains("one server is served here, without a mux; serve a name space file"), "{said}");
    // Not for others.
    fs::remove_dir_all(server.files().join("mux")).unwrap();
    fs::create_dir(server.files().join("dir")).unwrap();
    let others = server.addr("tcp");
    assert!(server.fails(["mux", &others]).contains("only the owner of this server sees it"));
    assert!(server.ok(["mux", &format!("9p://{}@{}", server.token(), port_of(&others))]).contains("disk:"));
    let addr = nine_net::Addr::Unix { path: server.socket() };
    let client = Client::dial(&addr, Duration::from_secs(30), Options::default()).unwrap();
    let root = client.attach("", NOUID, "").unwrap();
    let files = root.walk("#mux").unwrap();
    assert_eq!(root.rename("dir", &files, "x").unwrap_err().errno(), Errno::EXDEV);
    let qid = |path: &str| files.walk(path).unwrap().getattr(GetMask::BASIC).unwrap().qid;
    assert_eq!((qid("servers/.."), qid("..")), (qid(""), qid("")));
    assert_eq!(files.walk("none").err().unwrap().errno(), Errno::ENOENT);
    assert_eq!(files.remove().unwrap_err().errno(), Errno::EPERM);
}

/// Returns the host and port of a TCP address.
fn port_of(addr: &str) -> String {
    addr.trim_start_matches("tcp!").replacen('!', ":", 1)
}

#[test]
fn only_its_owner_changes_a_name_space() {
    let server = serve("listen tcp!127.0.0.1!0\nlisten tcp!127.0.0.1!0 -insecure\nmount disk:a /a\n");
    let doors: Vec<&str> = server.banner.lines().filter(|line| line.starts_with("tcp!")).collect();
    let [closed, open] = doors[..] else { panic!("{doors:?}") };
    let said = server.fails(["mux", "--server", closed, "mount", "ram:", "/x"]);
    assert!(said.contains("only its owner changes this name space"), "{said}");
    // A client that reaches it may write files and claim any name, but not the owner's.
    server.fed(&["write", "--server", open, "--create", "/a/new"], b"");
    let said = server.fails(["mux", "--server", open, "mount", "ram:", "/x"]);
    assert!(said.contains("only its owner"), "{said}");
    let said = server.fails(["mux", "--user", "4711", "mount", "ram:", "/x"]);
    assert!(said.contains("only its owner"), "{said}");
    assert!(!mounts(&server).contains("/x"));
    server.ok(["mux", "--server", closed, "--token", &server.token(), "mount", "ram:", "/x"]);
    assert!(mounts(&server).contains("mount ram: /x"));
    // The clients that others can see.
    let clients = |words: &[&str]| server.ok([&["cat", "/mux/clients"], words].concat()).lines().count();
    let idle = std::os::unix::net::UnixStream::connect(server.socket()).unwrap();
    let begun = Instant::now();
    while clients(&[]) != 3 {
        assert!(begun.elapsed() < Duration::from_secs(30), "the owner sees everybody");
    }
    assert_eq!(clients(&["--user", "4711"]), 2, "somebody else: itself");
    drop(idle);
}

#[test]
fn who_only_claims_to_be_somebody_has_none_of_his_conversations() {
    let server = serve("mount net:policy /net\nlisten tcp!127.0.0.1!0\nlisten tcp!127.0.0.1!0 -insecure\n");
    let doors: Vec<&str> = server.banner.lines().filter(|line| line.starts_with("tcp!")).collect();
    let [closed, open] = doors[..] else { panic!("{doors:?}") };
    let uid = rustix::process::geteuid().as_raw();
    let root = |addr: &str, uid| {
        let client =
            Client::dial(&addr.parse().unwrap(), Duration::from_secs(30), Options::default()).unwrap();
        client.attach("", uid, "").unwrap()
    };
    let number = |clone: &nine_io::client::blocking::File| -> u32 {
        std::str::from_utf8(&clone.read(0, 100).unwrap()).unwrap().trim().parse().unwrap()
    };
    let ours = root(&format!("unix!{}", server.socket().display()), NOUID);
    let clone = ours.open("net/tcp/clone", OpenFlags::RDWR).unwrap();
    let ctl = format!("net/tcp/{}/ctl", number(&clone));
    assert!(ours.open(&ctl, OpenFlags::RDWR).is_ok());
    // Our own uid, but without any proof.
    let stranger = root(open, uid);
    assert_eq!(stranger.open(&ctl, OpenFlags::RDWR).unwrap_err().errno(), Errno::EACCES);
    let clone = stranger.open("net/tcp/clone", OpenFlags::RDWR).unwrap();
    let ctl = format!("net/tcp/{}/ctl", number(&clone));
    assert!(stranger.open(&ctl, OpenFlags::READ).is_ok() && ours.open(&ctl, OpenFlags::READ).is_ok());
    // The same client where nothing may be changed.
    assert_eq!(root(closed, uid).open(&ctl, OpenFlags::READ).unwrap_err().errno(), Errno::EACCES);
}

#[test]
fn users_have_name_spaces_of_their_own() {
    let server = serve(
        "mount disk:a /mine\nspace guest 4711 4712\nmount disk:b /theirs\nspace open\nmount ram: /tmp\n",
    );
    assert_eq!(server.ok(["ls", "/"]), "mine\nmux\n");
    assert_eq!(server.ok(["ls", "--user", "4711", "/"]), "mux\ntheirs\n");
    assert_eq!(server.ok(["ls", "--user", "4711", "--aname", "open", "/"]), "mux\ntmp\n");
    assert!(server.fails(["ls", "--user", "4713", "--aname", "guest", "/"]).contains("does not let us in"));
    assert!(server.fails(["ls", "--aname", "nosuch", "/"]).contains("does not let us in"));
    let theirs = server.ok(["cat", "--user", "4711", "/mux/mounts"]);
    assert!(theirs.starts_with("space guest 4711 4712\nmount disk:") && !theirs.contains("mine"), "{theirs}");
    let figures = |words: &[&str]| {
        let text = server.ok([&["cat", "/mux/metrics"], words].concat());
        let of = |line: &&str| line.starts_with("ninefold_mux_server_dials_total{server=\"disk:");
        let ends = |line: &str| line.split('"').nth(1).unwrap().rsplit('/').next().unwrap().to_owned();
        text.lines().filter(of).map(ends).collect::<Vec<_>>()
    };
    assert_eq!(
        (figures(&[]), figures(&["--user", "4711"])),
        (vec!["a".into(), "b".into()], vec!["b".into()])
    );
    let all = mounts(&server);
    assert!(all.contains("/mine") && all.contains("space open\nmount ram: /tmp\n"), "{all}");
    // A file created at one user's root is invisible to others.
    server.ok(["mkdir", "--user", "4711", "/left"]);
    assert_eq!(server.ok(["ls", "/"]), "mine\nmux\n");
    server.fed(&["write", "/mux/ctl"], b"space guest\nmount ram: /more\n");
    assert_eq!(server.ok(["ls", "--user", "4711", "/"]), "left\nmore\nmux\ntheirs\n");
    assert!(server.ok(["mux"]).contains("space guest:"));
    let open = server.ok(["mux", "--space", "open", "--json"]);
    assert!(open.contains("mount ram: /tmp") && !open.contains("/theirs"), "{open}");
}

#[test]
fn a_server_that_is_not_there_is_mounted_and_found_later() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("late");
    let addr = format!("unix!{}", socket.display());
    let server = serve(&format!("mount {addr} /late\nmount disk:a /a\n"));
    assert!(server.log().contains(&format!("{addr} is mounted, but away")), "{}", server.log());
    assert_eq!(server.ok(["ls", "/", "/a"]), "/:\na\nlate\nmux\n\n/a:\nboth\nonly-a\n");
    for dialect in DIALECTS {
        let said = server.fails(["ls", "--dialect", dialect, "/late"]);
        assert!(said.contains("No such file") || said.contains("refused"), "{said}");
    }
    fs::create_dir(dir.path().join("files")).unwrap();
    fs::write(dir.path().join("files/here"), "").unwrap();
    let mut late = Server::in_dir(dir, &["serve", "files", "--listen", &addr]);
    // After a failure no dial is tried for a second.
    let begun = Instant::now();
    while !server.run(["ls", "/late"]).status.success() {
        assert!(begun.elapsed() < Duration::from_secs(30), "{}", server.log());
    }
    assert_eq!(server.ok(["ls", "/late"]), "here\n");
    late.stop();
    assert!(!server.run(["ls", "/late"]).status.success());
    assert_eq!(server.ok(["ls", "/a"]), "both\nonly-a\n");
}

#[test]
fn files_of_a_server_that_was_killed_go_on_when_it_is_there_again() {
    let far = tempfile::tempdir().unwrap();
    let addr = format!("unix!{}", far.path().join("s").display());
    fs::create_dir(far.path().join("files")).unwrap();
    fs::write(far.path().join("files/f"), "first second").unwrap();
    let files = far.path().join("files");
    let start = || {
        let line = ["serve", files.to_str().unwrap(), "--listen", &addr];
        Server::in_dir(tempfile::tempdir().unwrap(), &line)
    };
    let killed = start();
    let server = serve(&format!("mount -r {addr} /far\nmount -r -t 1 {addr} /soon\nmount disk:a /a\n"));
    assert!(mounts(&server).starts_with(&format!("mount -r {addr} /far\nmount -r -t 1 {addr} /soon\n")));
    let mux = nine_net::Addr::Unix { path: server.socket() };
    let open = |path: &str, dialect| {
        let options = Options { dialects: vec![dialect], ..Options::default() };
        let client = Client::dial(&mux, Duration::from_secs(30), options).unwrap();
        client.attach("", nine_proto::NOUID, "").unwrap().open(path, OpenFlags::RDWR).unwrap()
    };
    let patient = [Dialect::L, Dialect::U, Dialect::P2000].map(|dialect| open("far/f", dialect));
    let soon = open("soon/f", Dialect::L);
    assert!(patient.iter().chain([&soon]).all(|file| file.read(0, 5).unwrap() == "first"));
    drop(killed);
    std::thread::scope(|scope| {
        let reads = patient.each_ref().map(|file| scope.spawn(|| file.read(6, 100)));
        let said = soon.read(0, 5).unwrap_err();
        assert_eq!(said.errno(), Errno::ECONNREFUSED, "{said}");
        assert!(server.fails(["cat", "/soon/f"]).contains("refused"));
        assert_eq!(server.ok(["cat", "/a/both"]), "a\n");
        assert!(server.ok(["mux"]).contains("refused"), "why it is away");
        let _again = start();
        for read in reads {
            assert_eq!(read.join().unwrap().unwrap(), "second");
        }
        assert_eq!(soon.read(0, 5).unwrap(), "first");
        patient[0].write_at(6, b"third!").unwrap();
        assert_eq!(server.ok(["cat", "/far/f"]), "first third!");
    });
}

#[test]
fn a_server_that_refuses_ends_the_start_and_no_token_is_shown() {
    let far = Server::start();
    let port = far.addr("tcp!").split('!').nth(2).unwrap().to_string();
    let dir = scratch(&format!("\nmount 9p://0123456789abcdef@127.0.0.1:{port} /far\n"));
    let said = fails(dir.path());
    assert!(said.contains(&format!("home.ns:2: mount tcp!127.0.0.1!{port} /far: ")), "{said}");
    assert!(said.contains("wrong token") || said.contains("Permission denied"), "{said}");
    assert!(!said.contains("0123456789abcdef"), "{said}");
    let server = serve(&format!("TOKEN={}\nmount 9p://$TOKEN@127.0.0.1:{port} /far\n", far.token()));
    server.ok(["mkdir", "/far/d"]);
    for text in [&server.banner, &mounts(&server), &server.ok(["mux"]), &server.log()] {
        assert!(!text.contains(&far.token()), "{text}");
    }
}

#[test]
fn everything_that_is_wrong_with_a_file_is_told_at_once() {
    let lines = [
        "mount disk:a",
        "mont ram: /",
        "mount fish: /net",
        "",
        "listen tcp!*!x",
        "mount -C ram: /r",
        "mount $NO /n",
        ". none.ns",
        "mount 9p+tls://h /t",
    ];
    let dir = scratch(&lines.join("\n"));
    let said = fails(dir.path());
    for text in [
        "ninefold: serve: home.ns:1:1: `mount` with one word; write: mount [-abcdrP]",
        "home.ns:2:1: `mont` is not known",
        "home.ns:3:7: `fish:` is no kind of server; write disk:/PATH, ram:",
        "home.ns:5:8: tcp!*!x: the port `x` is not a number",
        "home.ns:6:1: -C (caching) is not there yet",
        "home.ns:7:7: `$NO` is set nowhere",
        "home.ns:8:1: `. none.ns`: ",
        "home.ns:9:1: how shall the server be known? --ca FILE",
    ] {
        assert!(said.contains(text), "{text}: {said}");
    }
    let lines: Vec<&str> = said.lines().map(|line| line.rsplit("home.ns:").next().unwrap()).collect();
    assert!(lines.is_sorted(), "{said}");
    // Files that include each other.
    fs::write(dir.path().join("home.ns"), ". more/b.ns\n").unwrap();
    fs::create_dir(dir.path().join("more")).unwrap();
    fs::write(dir.path().join("more/b.ns"), "mount disk:../a /a\n. ../home.ns\n").unwrap();
    let said = fails(dir.path());
    assert!(
        said.contains("more/b.ns:2:1: `. ../home.ns` leads round in a circle; home.ns is being read"),
        "{said}"
    );
    // Without the loop: names are relative to the including file.
    fs::write(dir.path().join("more/b.ns"), "mount disk:../a /a\n").unwrap();
    let server = Server::in_dir(dir, &["serve", "home.ns", "--listen", "unix!s"]);
    assert_eq!(server.ok(["ls", "/a"]), "both\nonly-a\n");
}

#[test]
fn what_is_seldom_meant_is_said() {
    let server = serve("");
    assert!(
        server.log().contains("home.ns: nothing is mounted; an empty tree is served"),
        "{}",
        server.log()
    );
    assert_eq!(server.ok(["ls", "/"]), "mux\n");
    let server = serve("mount disk:a /x\nmount disk:b /x/\n");
    let said = server.log();
    assert!(
        said.contains("home.ns:3: /x/ again, without -a or -b: what line 2 has put there is hidden"),
        "{said}"
    );
    assert_eq!(server.ok(["ls", "/x"]), "both\nonly-b\n");
    let server = serve("nomux\nmount ram: /x\n");
    assert_eq!(server.ok(["ls", "/"]), "x\n");
}

#[test]
fn muxes_mounted_on_each_other_end_a_walk_that_goes_round() {
    let dir = scratch("");
    let socket = dir.path().join("s").display().to_string();
    fs::write(
        dir.path().join("home.ns"),
        format!("listen unix!{socket}\nmount unix!{socket} /me\nmount disk:a /a\n"),
    )
    .unwrap();
    let server = Server::in_dir(dir, &["serve", "home.ns"]);
    let begun = Instant::now();
    while !server.run(["ls", "/me"]).status.success() {
        assert!(begun.elapsed() < Duration::from_secs(30), "{}", server.log());
    }
    assert_eq!(server.ok(["cat", "/me/me/me/a/both"]), "a\n");
    let said = server.fails(["ls", &"/me".repeat(12)]);
    // A walk that fails halfway may not give a more precise error.
    assert!(said.contains("Too many levels") || said.contains("No such file or directory"), "{said}");
    assert_eq!(server.ok(["ls", "/a"]), "both\nonly-a\n");
}
