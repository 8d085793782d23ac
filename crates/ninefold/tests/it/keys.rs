//! A private authority, attach rights, and the audit log: docs/keys.md.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use nine_io::client::{Options, blocking};
use nine_proto::msg::Tmsg;
use nine_proto::{Errno, NOUID, OpenFlags};
use serde_json::Value;

use crate::common::{self, Server, chmod, copy_program, ninefold, not_covered, until};

/// Returns the blocks of a document: the word after the fence, and the text.
fn blocks(text: &str) -> Vec<(String, String)> {
    let mut blocks: Vec<(String, String)> = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        match line.strip_prefix("```") {
            Some(kind) if !inside => blocks.push((kind.into(), String::new())),
            Some(_) => {}
            None if inside => blocks.last_mut().unwrap().1 += &format!("{line}\n"),
            None => {}
        }
        inside ^= line.starts_with("```");
    }
    blocks
}

/// Runs a shell line at home; `ninefold` is the program under test.
fn shell(home: &Path, line: &str) -> Output {
    let binary = Path::new(env!("CARGO_BIN_EXE_ninefold")).parent().unwrap();
    let path = format!("{}:{}", binary.display(), std::env::var("PATH").unwrap());
    let environment = ninefold(home);
    let mut shell = Command::new("sh");
    shell.env_clear().envs(environment.get_envs().filter_map(|(name, value)| Some((name, value?))));
    shell.env("PATH", path).current_dir(home).args(["-ec", line]).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// Creates another machine's home with the copied files.
fn home(keys: &Path, user: &str) -> tempfile::TempDir {
    let home = tempfile::tempdir().unwrap();
    let id = home.path().join(".config/ninefold/id");
    fs::create_dir_all(&id).unwrap();
    for entry in fs::read_dir(keys.join("clients").join(user)).unwrap() {
        let path = entry.unwrap().path();
        let to = id.join(path.file_name().unwrap());
        fs::copy(&path, &to).unwrap();
        assert_eq!(mode(&to), mode(&path));
    }
    home
}

fn mode(path: &Path) -> u32 {
    path.metadata().unwrap().permissions().mode() & 0o7777
}

#[test]
fn five_minutes_are_as_the_document_says() {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/keys.md")).unwrap();
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path().to_path_buf();
    fs::create_dir_all(dir.join("srv/lab/pub")).unwrap();
    let keys = dir.join(".config/ninefold/keys");
    let mut scratch = Some(scratch);
    let mut server: Option<Server> = None;
    let (mut port, mut done) = (String::new(), Vec::new());
    for (kind, text) in blocks(&text) {
        // Replace the host name and the port by those of this machine.
        let here = |text: &str, port: &str| {
            text.replace("9p+tls://fs.lab/", &format!("9p+tls://localhost:{port}/"))
                .replace("fs.lab", "localhost")
                .replace("192.0.2.7", "127.0.0.1")
                .replace("/srv/lab", "srv/lab")
                .replace("'tls!*!5640'", "'tls!127.0.0.1!0'")
        };
        match &*kind {
            "sh" => {
                let output = shell(&dir, &here(&text, &port));
                assert!(output.status.success() && output.stderr.is_empty(), "{text}{}", said(&output));
            }
            "exports" => {
                fs::write(dir.join("exports"), &text).unwrap();
                chmod(&dir.join("exports"), 0o644);
            }
            "serve" => {
                let line = here(&text, &port).replace("~/", &format!("{}/", dir.display()));
                let words = line.replace("\\\n", " ").replace('\'', "");
                let words: Vec<&str> = words.split_whitespace().skip(1).collect();
                let served = Server::in_dir(scratch.take().unwrap(), &words);
                port = served.addr("tls!").rsplit('!').next().unwrap().into();
                assert!(served.banner.contains(", as far as exports lets them"), "{}", served.banner);
                server = Some(served);
            }
            "glenda" | "rob" => {
                let user = if kind == "rob" { "rob@lab" } else { "glenda" };
                let home = home(&keys, user);
                let (mut script, mut seen) = (String::new(), String::new());
                for line in text.lines().filter_map(|line| line.strip_prefix("$ ")) {
                    seen += &format!("$ {line}\n");
                    match line.split(' ').next() {
                        Some("cd" | "export") => script += &format!("{line}\n"),
                        _ => seen += &said(&shell(home.path(), &format!("{script}{}", here(line, &port)))),
                    }
                }
                let seen = seen
                    .replace(&format!("localhost:{port}"), "fs.lab")
                    .replace(&format!("127.0.0.1!{port}"), "192.0.2.7!5640");
                assert_eq!(seen, text);
            }
            "toml" => {
                let config = dir.join("config.toml");
                let known = text.replace(
                    "/home/rob/.config/ninefold/id",
                    &keys.join("clients/glenda").display().to_string(),
                );
                fs::write(&config, known).unwrap();
                let output = shell(&dir, "ninefold config check config.toml");
                assert!(output.status.success(), "{}", said(&output));
            }
            "json" => {
                text.lines().for_each(|line| assert!(serde_json::from_str::<Value>(line).is_ok(), "{line}"))
            }
            _ => panic!("a block of no known kind: {kind}"),
        }
        done.push(kind);
    }
    assert_eq!(done, ["sh", "exports", "serve", "glenda", "rob", "toml", "sh", "json"]);
    let server = server.unwrap();
    let list = shell(&dir, "ninefold keys list");
    assert!(
        said(&list).lines().any(|line| line.contains("rob@lab") && line.contains("revoked")),
        "{}",
        said(&list)
    );
    let audit = dir.join("audit.jsonl");
    assert_eq!(mode(&audit), 0o640);
    until("it is told", || fs::read_to_string(&audit).unwrap().contains("\"identity\":\"cert:glenda\""));
    drop(server);
}

/// A server of two directories for clients with certificates, and its authority.
struct Lab {
    server: Server,
    keys: PathBuf,
}

impl Lab {
    fn new(exports: &str, users: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        for path in ["files/pub", "files/own"] {
            fs::create_dir_all(dir.path().join(path)).unwrap();
        }
        fs::write(dir.path().join("files/pub/f"), "public").unwrap();
        let run = |words: &[&str]| {
            let output = ninefold(dir.path()).args(["keys", "--dir", "keys"]).args(words).output().unwrap();
            assert!(output.status.success(), "{}", said(&output));
        };
        run(&["init"]);
        run(&["server", "localhost"]);
        users.iter().for_each(|user| run(&["client", user]));
        let keys = dir.path().join("keys");
        export(dir.path(), exports);
        let socket = format!("unix!{}", dir.path().join("s").display());
        let line =
            ["serve", "files", "--listen", &socket, "--listen", "tls!127.0.0.1!0", "--exports", "exports"];
        let of = |name: &str| format!("keys/servers/localhost/{name}.pem");
        let (cert, key) = (of("cert"), of("key"));
        let tls = [
            "--cert",
            &*cert,
            "--key",
            &*key,
            "--client-ca",
            "keys/authority.pem",
            "--crl",
            "keys/revoked.pem",
        ];
        let server =
            Server::in_dir(dir, &[&line[..], &tls, &["--token-file", "token", "--audit", "audit"]].concat());
        Self { server, keys }
    }

    fn url(&self, path: &str) -> String {
        format!("9p+tls://localhost:{}/{path}", self.server.addr("tls!").rsplit('!').next().unwrap())
    }

    /// Returns the options for a client with this certificate.
    fn words(&self, user: &str) -> Vec<String> {
        let of = |name: &str| self.keys.join("clients").join(user).join(name).display().to_string();
        let words = ["--ca", &of("authority.pem"), "--cert", &of("cert.pem"), "--key", &of("key.pem")];
        words.map(String::from).to_vec()
    }

    fn run(&self, user: &str, words: &[&str]) -> Output {
        self.server.client().args(words).args(self.words(user)).output().unwrap()
    }

    fn keys(&self, words: &[&str]) -> String {
        let mut command = ninefold(self.server.dir.path());
        let output = command.args(["keys", "--dir", "keys"]).args(words).output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
        said(&output)
    }

    /// Waits for an audit line that matches, and returns it.
    fn told(&self, is: impl Fn(&Value) -> bool) -> Value {
        let mut found = None;
        until("it is told", || {
            let text = fs::read_to_string(self.server.dir.path().join("audit")).unwrap();
            // The last line may be incomplete.
            let lines = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
            let mut lines = lines.map(|line| serde_json::from_str::<Value>(line).expect(line));
            found = lines.find(|line| is(line));
            found.is_some()
        });
        found.unwrap()
    }
}

/// Replaces the exports file atomically.
fn export(dir: &Path, text: &str) {
    fs::write(dir.join("exports.new"), text).unwrap();
    chmod(&dir.join("exports.new"), 0o644);
    fs::rename(dir.join("exports.new"), dir.join("exports")).unwrap();
}

/// Starts a program that stays connected, with an open file.
fn stays(lab: &Lab, user: &str, words: &[&str]) -> std::process::Child {
    let mut watch = lab.server.client();
    watch.args(["watch", "--json"]).args(words).args(lab.words(user));
    watch.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::null()).spawn().unwrap()
}

#[test]
fn who_may_do_what_is_as_the_lines_say() {
    let lab = Lab::new(
        "deny cert:mallory\nallow cert:glenda / rw\nallow cert:rob /pub ro\nallow token /pub rw\n",
        &["glenda", "rob", "mallory", "nobody"],
    );
    let fails = |output: Output| {
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        said(&output)
    };
    assert_eq!(said(&lab.run("glenda", &["ls", &lab.url("")])), "own\npub\n");
    assert!(lab.run("glenda", &["mkdir", &lab.url("own/new")]).status.success());
    assert_eq!(said(&lab.run("rob", &["cat", "--aname", "/pub", &lab.url("f")])), "public");
    // Nothing outside the tree is reachable.
    assert!(fails(lab.run("rob", &["ls", "--aname", "/pub", &lab.url("../own")])).contains("No such file"));
    let refused = fails(lab.run("rob", &["rm", "--aname", "/pub", &lab.url("f")]));
    assert!(refused.contains("Read-only file system"), "{refused}");
    for (user, words, why) in [
        ("rob", &["ls"][..], "cert:rob may not attach to /, but to /pub: say so with --aname"),
        ("rob", &["ls", "--aname", "/own"], "cert:rob may not attach to /own, but to /pub"),
        ("rob", &["ls", "--aname", "/pub/../own"], "an aname with `.` or `..` in it is not let in"),
        ("rob", &["ls", "--aname", "pub"], "cert:rob may not attach to pub, but to /pub"),
        ("mallory", &["ls"], "the exports of this server give nothing to cert:mallory"),
        ("nobody", &["ls"], "no line in the exports of this server is about cert:nobody"),
    ] {
        let heard = fails(lab.run(user, &[words, &[&lab.url("")]].concat()));
        assert!(heard.contains(why) && !heard.contains("prints the token"), "{heard}");
    }
    // The token is an identity of its own.
    let ca = lab.keys.join("authority.pem").display().to_string();
    let with = |aname: &str| {
        lab.server.run(["ls", "--ca", &ca, "--token-file", "token", "--aname", aname, &lab.url("")])
    };
    assert!(with("/pub").status.success());
    assert!(fails(with("/")).contains("token may not attach to /, but to /pub"));
    assert!(fails(lab.server.run(["ls", "--ca", &ca, &lab.url("")])).contains("no proof of who you are"));
    // The owner of the files uses the socket.
    assert_eq!(lab.server.ok(["ls"]), "own\npub\n");
    let told = lab.told(|told| told["identity"] == "cert:mallory");
    assert_eq!((&told["event"], &told["allowed"]), (&"attach".into(), &false.into()));
    assert!(
        told["why"].as_str().unwrap().contains("give nothing")
            && told["peer"].as_str().unwrap().starts_with("tls!")
    );
    let told = lab.told(|told| told["identity"] == "token" && told["allowed"] == true);
    assert_eq!((&told["tree"], &told["read_only"]), (&"/pub".into(), &false.into()));
    let token = fs::read_to_string(lab.server.dir.path().join("token")).unwrap();
    let all = fs::read_to_string(lab.server.dir.path().join("audit")).unwrap() + &lab.server.log();
    assert!(!all.contains(token.trim()), "the token is told");
}

#[test]
fn who_may_not_any_more_is_cut_off_and_others_stay() {
    let lab = Lab::new("allow cert:* / rw\n", &["glenda", "rob", "eve"]);
    let root = lab.url("");
    let (mut glenda, mut rob, mut eve) =
        (stays(&lab, "glenda", &[&root]), stays(&lab, "rob", &[&root]), stays(&lab, "eve", &[&root]));
    for user in ["glenda", "rob", "eve"] {
        lab.told(|told| told["user"] == user && told["event"] == "attach");
    }
    lab.keys(&["revoke", "rob"]);
    let told = lab.told(|told| told["event"] == "end");
    assert_eq!(
        (&told["user"], &told["why"]),
        (&"rob".into(), &"it has shown a certificate that was revoked".into())
    );
    let refused = lab.run_old("rob", &["ls", &root]);
    assert!(said(&refused).contains("refuses our certificate: it was revoked"), "{}", said(&refused));
    // A client that lost its write right is cut off, and may only read after a reconnect.
    export(lab.server.dir.path(), "allow cert:glenda / rw\nallow cert:eve / ro\n");
    let told = lab.told(|told| told["event"] == "end" && told["user"] == "eve");
    assert_eq!(told["why"], "cert:eve may only read now what it might change");
    lab.told(|told| told["user"] == "eve" && told["read_only"] == true);
    // Other clients are not affected.
    assert!(said(&lab.run("glenda", &["mkdir", &lab.url("new")])).is_empty());
    assert!(glenda.try_wait().unwrap().is_none());
    let all = fs::read_to_string(lab.server.dir.path().join("audit")).unwrap();
    assert_eq!(all.lines().filter(|line| line.contains("\"end\"") && line.contains("glenda")).count(), 0);
    // An invalid file changes nothing.
    export(lab.server.dir.path(), "allow cert:glenda / r\n");
    until("it is said", || {
        lab.server.log().contains("exports:1:21: `r`: `ro` (reads) or `rw` (changes) is due")
    });
    assert!(lab.run("glenda", &["ls", &root]).status.success());
    for child in [&mut glenda, &mut rob, &mut eve] {
        // This fails if the process has ended.
        let _ = child.kill();
        let _ = child.wait();
    }
}

impl Lab {
    /// Like `run`, with an archived certificate.
    fn run_old(&self, user: &str, words: &[&str]) -> Output {
        let find = |entry: fs::DirEntry| {
            let name = entry.file_name().into_string().unwrap();
            name.starts_with(&format!("client-{user}-")).then(|| entry.path())
        };
        let dir =
            fs::read_dir(self.keys.join("old")).unwrap().find_map(|entry| find(entry.unwrap())).unwrap();
        let of = |name: &str| dir.join(name).display().to_string();
        let more = ["--ca", &of("authority.pem"), "--cert", &of("cert.pem"), "--key", &of("key.pem")];
        self.server.client().args(words).args(more).output().unwrap()
    }
}

#[test]
fn a_renewed_certificate_and_the_old_one_are_good_until_the_old_is_revoked() {
    let lab = Lab::new("allow cert:glenda / rw\n", &["glenda"]);
    let root = lab.url("");
    assert!(lab.keys(&["renew", "glenda"]).contains("ninefold keys revoke --old clients/glenda"));
    assert!(lab.run("glenda", &["ls", &root]).status.success());
    assert!(lab.run_old("glenda", &["ls", &root]).status.success());
    lab.keys(&["revoke", "--old", "clients/glenda"]);
    until("the list is read", || !lab.run_old("glenda", &["ls", &root]).status.success());
    assert!(lab.run("glenda", &["ls", &root]).status.success());
    let list = lab.keys(&["list", "--json"]);
    let states: Vec<Value> = list.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let state = |n: usize| (states[n]["kind"].as_str().unwrap(), states[n]["state"].as_str().unwrap());
    assert_eq!(
        [state(0), state(1), state(2), state(3)],
        [("authority", "good"), ("server", "good"), ("client", "good"), ("client", "revoked")]
    );
    let pin = states[1]["fingerprint"].as_str().unwrap();
    let shown =
        lab.keys(&["show", "keys/servers/localhost/cert.pem", "keys/revoked.pem", "keys/authority.key"]);
    assert!(shown.contains(pin) && shown.contains("a server's certificate"), "{shown}");
    assert!(
        shown.contains("has revoked: 1,") && shown.contains("a private key, which is not shown"),
        "{shown}"
    );
    let cert = lab.words("glenda");
    let words = ["ls", "--pin", pin, &cert[2], &cert[3], &cert[4], &cert[5], &root];
    assert_eq!(lab.server.ok(words), "own\npub\n");
}

#[test]
fn keys_are_kept_from_others_and_nothing_is_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let run = |words: &[&str]| ninefold(dir.path()).arg("keys").args(words).output().unwrap();
    let fails = |words: &[&str], why: &str| {
        let output = run(words);
        assert!(
            output.status.code() == Some(1) && said(&output).contains(why),
            "{words:?}: {}",
            said(&output)
        );
    };
    fails(&["list"], "no authority is here; `ninefold keys init` makes one");
    assert!(run(&["init"]).status.success());
    let keys = dir.path().join(".config/ninefold/keys");
    assert_eq!((mode(&keys), mode(&keys.join("authority.key"))), (0o700, 0o600));
    let before = common::tree(&keys);
    fails(&["init"], "it is there already, and nothing is changed");
    fails(&["server", "fs lab"], "no name of a host and no address");
    fails(&["client", "../x"], "no name of a user");
    fails(&["revoke", "glenda"], "nobody is called so");
    assert_eq!(common::tree(&keys), before);
    let made = said(&run(&["server", "fs.lab", "::1"]));
    assert!(
        made.contains("servers/fs.lab is for fs.lab, ::1, until ") && made.contains("--client-ca"),
        "{made}"
    );
    let key = keys.join("servers/fs.lab/key.pem");
    assert_eq!((mode(key.parent().unwrap()), mode(&key)), (0o700, 0o600));
    let before = common::tree(&keys);
    fails(
        &["server", "fs.lab"],
        "there is a server of this name already; `ninefold keys renew servers/fs.lab`",
    );
    assert_eq!(common::tree(&keys), before);
    let output = run(&["client", "glenda", "--days", "0"]);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    chmod(&keys, 0o755);
    fails(&["list"], "others can look into this directory; try: chmod 700");
    chmod(&keys, 0o700);
    chmod(&keys.join("authority.key"), 0o640);
    fails(&["client", "glenda"], "others can read the authority's key");
    assert!(!keys.join("clients/glenda").exists());
}

#[test]
fn one_authority_takes_the_place_of_another_while_both_are_good() {
    let lab = Lab::new("allow cert:* / rw\n", &["glenda"]);
    let (dir, root) = (lab.server.dir.path(), lab.url(""));
    let keys = |of: &str, words: &[&str]| {
        let output = ninefold(dir).args(["keys", "--dir", of]).args(words).output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
    };
    let ls = |of: &str| {
        let (cert, key) = (format!("{of}/cert.pem"), format!("{of}/key.pem"));
        let ca = "keys/servers/localhost/authority.pem";
        lab.server.run(["ls", "--ca", ca, "--cert", &cert, "--key", &key, &root]).status.success()
    };
    // Each authority has the name that it generated.
    keys("next", &["init"]);
    keys("next", &["client", "rob"]);
    assert!(ls("keys/clients/glenda") && !ls("next/clients/rob"));
    for file in ["authority.pem", "revoked.pem"] {
        let of = |of: &str| fs::read_to_string(dir.join(of).join(file)).unwrap();
        fs::write(dir.join("both"), of("keys") + &of("next")).unwrap();
        fs::rename(dir.join("both"), dir.join("keys").join(file)).unwrap();
    }
    until("the new one counts", || ls("next/clients/rob"));
    assert!(ls("keys/clients/glenda"));
    // A new authority with an existing name changes nothing.
    keys("third", &["init", "--name", "lab"]);
    keys("fourth", &["init", "--name", "lab"]);
    for file in ["authority.pem", "revoked.pem"] {
        let of = |of: &str| fs::read_to_string(dir.join(of).join(file)).unwrap();
        fs::write(dir.join("all"), of("keys") + &of("third") + &of("fourth")).unwrap();
        fs::rename(dir.join("all"), dir.join("keys").join(file)).unwrap();
    }
    until("it is said", || {
        lab.server.log().contains("two authorities in it have one name and different keys")
    });
    assert!(ls("keys/clients/glenda") && ls("next/clients/rob"));
}

#[test]
fn what_is_wrong_with_files_is_said_before_anything_is_served() {
    let lab = Lab::new("allow cert:* / rw\n", &["glenda"]);
    let dir = lab.server.dir.path();
    let serve = |words: &[&str]| {
        let output =
            ninefold(dir).args(["serve", "files", "--listen", "unix!other"]).args(words).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{words:?}");
        said(&output)
    };
    let of = |name: &str| format!("keys/servers/localhost/{name}.pem");
    let (cert, key) = (of("cert"), of("key"));
    let tls = ["--cert", &*cert, "--key", &*key];
    fs::write(dir.join("bad"), "alow cert:x / ro\nallow cert:x /\n").unwrap();
    chmod(&dir.join("bad"), 0o644);
    let wrong = serve(&["--exports", "bad"]);
    assert!(
        wrong.contains("bad:1:1: `alow` is not known") && wrong.contains("did you mean `allow`?"),
        "{wrong}"
    );
    assert!(wrong.contains("bad:2:15: `ro` or `rw` is due"), "{wrong}");
    assert!(serve(&["--exports", "none"]).contains("none: No such file"));
    let ca = ["--client-ca", "keys/authority.pem"];
    let crl = |file: &str| serve(&[&tls[..], &ca, &["--crl", file]].concat());
    assert!(crl("bad").contains("bad: no list of revoked certificates (X509 CRL) in PEM is in this file"));
    let other = ninefold(dir).args(["keys", "--dir", "others", "init", "--name", "others"]).output().unwrap();
    assert!(other.status.success());
    assert!(
        crl("others/revoked.pem")
            .contains("a list in it is of none of the authorities in keys/authority.pem")
    );
    let open = lab.keys.join("clients/glenda/key.pem");
    chmod(&open, 0o644);
    let refused = said(&lab.run("glenda", &["ls", &lab.url("")]));
    assert!(refused.contains("others can read or change this key; try: chmod 600"), "{refused}");
    chmod(&open, 0o600);
    let glenda = lab.words("glenda");
    let words = ["ls", "--ca", &glenda[1], "--cert", &glenda[3], "--key", &key, &lab.url("")];
    assert!(lab.server.fails(words).contains("this key is not that of the certificate in"));
    // A server's certificate is refused from a client, and so is that of another authority.
    let words = ["ls", "--ca", &glenda[1], "--cert", &cert, "--key", &key, &lab.url("")];
    let refused = lab.server.fails(words);
    assert!(refused.contains("refuses our certificate: it is not one for clients"), "{refused}");
    let refused = lab.server.fails(["ls", "--ca", "others/authority.pem", &lab.url("")]);
    assert!(refused.contains("shows a certificate that none of our authorities has signed"), "{refused}");
    let refused =
        lab.server.fails(["ls", "--ca", &glenda[1], &lab.url("").replace("localhost", "127.0.0.1")]);
    assert!(refused.contains("shows a certificate that is for localhost, not for 127.0.0.1"), "{refused}");
}

#[test]
fn a_user_of_the_machine_has_what_his_lines_give_him() {
    if !rustix::process::geteuid().is_root() {
        return not_covered("lines about other users of this machine: only root can be one");
    }
    use std::os::unix::process::CommandExt;
    let dir = tempfile::tempdir().unwrap();
    chmod(dir.path(), 0o755);
    for path in ["files", "files/pub"] {
        fs::create_dir(dir.path().join(path)).unwrap();
        chmod(&dir.path().join(path), 0o777);
    }
    export(dir.path(), "allow unix:4711 /pub ro\nallow unix:4712 / rw\n");
    let socket = format!("unix!{}", dir.path().join("s").display());
    let line = [
        "serve",
        "files",
        "--listen",
        &socket,
        "--exports",
        "exports",
        "--as",
        "client",
        "--socket-mode",
        "666",
    ];
    let server = Server::in_dir(dir, &line);
    let binary = server.dir.path().join("ninefold");
    copy_program(env!("CARGO_BIN_EXE_ninefold"), &binary);
    let run = |uid: u32, words: &[&str]| {
        let mut command = Command::new(&binary);
        let envs = server.client();
        command.env_clear().envs(envs.get_envs().filter_map(|(name, value)| Some((name, value?))));
        said(&command.current_dir("/").args(words).uid(uid).gid(uid).output().unwrap())
    };
    assert_eq!(run(4712, &["mkdir", "/new"]), "");
    assert_eq!(run(4711, &["ls", "--aname", "/pub"]), "");
    assert!(run(4711, &["mkdir", "--aname", "/pub", "/x"]).contains("Read-only file system"));
    assert!(run(4711, &["ls"]).contains("unix:4711 may not attach to /, but to /pub"));
    assert!(run(4713, &["ls"]).contains("no line in the exports of this server is about unix:4713"));
}

#[test]
fn texts_for_control_files_are_told_without_secrets() {
    let dir = tempfile::tempdir().unwrap();
    let socket = format!("unix!{}", dir.path().join("s").display());
    fs::write(dir.path().join("home.ns"), "mount ram: /tmp\nmount net: /net\n").unwrap();
    let server =
        Server::in_dir(dir, &["serve", "home.ns", "--listen", &socket, "--audit", "audit", "--log", "error"]);
    let lab = Lab { keys: server.dir.path().into(), server };
    lab.server.ok(["mux", "mount", "ram:", "/more"]);
    let told = lab.told(|told| told["event"] == "mount");
    assert_eq!((&told["text"], &told["allowed"]), (&"mount ram: /more".into(), &true.into()));
    assert_eq!((&told["file"], &told["owner"]), (&"mux/ctl".into(), &true.into()));
    // It is mounted although the server does not answer.
    lab.server.run(["mux", "mount", "9p://0123456789abcdef@127.0.0.1:1", "/none"]);
    lab.told(|told| told["text"] == "mount 9p://...@127.0.0.1:1 /none");
    let addr: nine_net::Addr = format!("unix!{}", lab.server.socket().display()).parse().unwrap();
    let client =
        blocking::Client::dial(&addr, std::time::Duration::from_mins(1), Options::default()).unwrap();
    let root = client.attach("", NOUID, "").unwrap();
    let ctl = root.open("mux/ctl", OpenFlags::WRITE).unwrap();
    ctl.write(0, b"unmount /nowhere\x1b[2J").unwrap_err();
    let told = lab.told(|told| told["event"] == "unmount");
    assert!(told["allowed"] == false && told["why"].is_string(), "{told}");
    assert_eq!(told["text"], "unmount /nowhere\\u{1b}[2J");
    let ctl = root.open("net/tcp/clone", OpenFlags::RDWR).unwrap();
    ctl.write(0, b"connect 10.1.2.3!80").unwrap_err();
    let told = lab.told(|told| told["event"] == "ctl");
    assert_eq!((&told["file"], &told["text"]), (&"net/tcp/0/ctl".into(), &"connect 10.1.2.3!80".into()));
    assert!(told["allowed"] == false && told["why"].as_str().unwrap().contains("policy"), "{told}");
    let all = fs::read_to_string(lab.server.dir.path().join("audit")).unwrap();
    assert!(
        !all.contains("0123456789abcdef")
            && !all.contains('\u{1b}')
            && !lab.server.log().contains("0123456789")
    );
    // The file is renamed and opened again, as log rotation expects.
    let (file, old) = (lab.server.dir.path().join("audit"), lab.server.dir.path().join("audit.1"));
    fs::rename(&file, &old).unwrap();
    lab.server.signal(rustix::process::Signal::HUP);
    until("it is opened again", || file.exists());
    lab.server.ok(["mux", "mount", "ram:", "/again"]);
    lab.told(|told| told["text"] == "mount ram: /again");
}

#[test]
fn a_browser_reads_what_anyone_may() {
    use std::io::{Read, Write};
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("files")).unwrap();
    fs::write(dir.path().join("files/f"), "for browsers").unwrap();
    let socket = format!("unix!{}", dir.path().join("s").display());
    let line = ["serve", "files", "--listen", &socket, "--exports", "exports", "--http=http!127.0.0.1!0"];
    export(dir.path(), "allow anyone /pub ro\n");
    let output = ninefold(dir.path()).args(line).output().unwrap();
    let refused = said(&output);
    assert!(output.status.code() == Some(1) && refused.contains("allow anyone / ro"), "{refused}");
    export(dir.path(), "allow anyone / ro\n");
    let server = Server::in_dir(dir, &line);
    let get = || {
        let at = server.addr("http://").trim_start_matches("http://").trim_end_matches('/').to_owned();
        let mut stream = std::net::TcpStream::connect(&at).unwrap();
        write!(stream, "GET /f HTTP/1.0\r\nHost: {at}\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    assert!(get().ends_with("for browsers"));
    export(server.dir.path(), "allow token / rw\n");
    until("browsers are cut off", || !get().ends_with("for browsers"));
}

#[test]
fn whoever_is_refused_makes_a_short_line_whatever_he_asks_for() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("files")).unwrap();
    export(dir.path(), "allow token / rw\n");
    let line = ["serve", "files", "--listen", "tcp!127.0.0.1!0", "--exports", "exports", "--audit", "audit"];
    let server = Server::in_dir(dir, &[&line[..], &["--token-file", "token"]].concat());
    let lab = Lab { keys: server.dir.path().into(), server };
    let token = fs::read_to_string(lab.server.dir.path().join("token")).unwrap();
    let addr: nine_net::Addr = lab.server.addr("tcp!").parse().unwrap();
    let minute = std::time::Duration::from_mins(1);
    let client = blocking::Client::dial(&addr, minute, Options::default()).unwrap();
    let (long, longer) = ("\u{1}".repeat(4096), "\u{1}".repeat(60_000));
    let refused = |uname, aname| client.attach(uname, NOUID, aname).map(drop).map_err(|error| error.errno());
    assert_eq!(refused("", &long), Err(Errno::EACCES));
    assert_eq!(refused("", &longer), Err(Errno::ENAMETOOLONG));
    // The user name does not matter here.
    let _ = client.attach(&longer, NOUID, &format!("token:{}", token.trim()));
    lab.told(|told| told["allowed"] == true);
    let (audit, log) = (fs::read_to_string(lab.server.dir.path().join("audit")).unwrap(), lab.server.log());
    assert!(audit.lines().chain(log.lines()).all(|line| line.len() < 8192), "{audit}{log}");
}

#[test]
fn who_may_only_read_a_tree_changes_it_by_no_other_one() {
    for space in [None, Some("mount disk:files /\n")] {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in [("a", "a's"), ("b", "b's")] {
            fs::create_dir_all(dir.path().join("files").join(path)).unwrap();
            fs::write(dir.path().join("files").join(path).join("f"), text).unwrap();
        }
        space.iter().for_each(|text| fs::write(dir.path().join("home.ns"), text).unwrap());
        export(dir.path(), "allow token /a rw\nallow token /b ro\n");
        let what = if space.is_some() { "home.ns" } else { "files" };
        let line = ["serve", what, "--listen", "tcp!127.0.0.1!0", "--exports", "exports"];
        let server = Server::in_dir(dir, &[&line[..], &["--token-file", "token"]].concat());
        let token = fs::read_to_string(server.dir.path().join("token")).unwrap();
        let addr: nine_net::Addr = server.addr("tcp!").parse().unwrap();
        let minute = std::time::Duration::from_mins(1);
        let blocking = blocking::Client::dial(&addr, minute, Options::default()).unwrap();
        let client = blocking.client();
        let refused = blocking.wait(async {
            let attach = async |uname: &str, path: &str| {
                let aname = format!("token:{}{path}", token.trim());
                client.attach(uname, NOUID, &aname).await.unwrap()
            };
            let (a, b) = (attach("", "/a").await, attach("", "/b").await);
            let (own, other) = (a.walk("f").await.unwrap(), b.walk("f").await.unwrap());
            let (a, b) = (a.fid(), b.fid());
            let rename = |of: &nine_io::client::File, dfid| Tmsg::Rename { fid: of.fid(), dfid, name: b"n" };
            let renameat =
                |olddirfid, newdirfid| Tmsg::Renameat { olddirfid, oldname: b"f", newdirfid, newname: b"n" };
            let mut refused = Vec::new();
            for message in [
                Tmsg::Link { dfid: a, fid: other.fid(), name: b"n" },
                Tmsg::Link { dfid: b, fid: own.fid(), name: b"n" },
                rename(&own, b),
                rename(&other, a),
                renameat(a, b),
                renameat(b, a),
            ] {
                refused.push(client.ask(message).await.map(drop).map_err(|error| error.errno()));
            }
            assert_eq!(refused, [const { Err(Errno::EROFS) }; 6]);
            // Also not as another user on the same connection.
            let away = attach("glenda", "/a").await;
            let refused = client.ask(renameat(a, away.fid())).await.map(drop).unwrap_err();
            client.ask(Tmsg::Link { dfid: a, fid: own.fid(), name: b"n" }).await.unwrap();
            refused.errno()
        });
        assert_eq!(refused, Errno::EXDEV);
        let names = |path: &str| fs::read_dir(server.files().join(path)).unwrap().count();
        assert_eq!((names("a"), names("b")), (2, 1));
    }
}
