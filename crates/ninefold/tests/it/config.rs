//! Configuration: files, environment and options, and the messages about errors in them.

use crate::common::{self, Server, ninefold};

#[test]
fn flags_beat_the_environment_and_that_beats_the_files() {
    let server = Server::start();
    let here = format!("unix:{}", server.socket().display());
    let dir = server.dir.path().join(".config/ninefold");
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("config.toml"), format!("[client]\nserver = '{here}'\n")).unwrap();
    let ls = |flags: &[&str], env: Option<&str>| {
        let mut command = ninefold(server.dir.path());
        command.arg("ls").args(flags);
        if let Some(env) = env {
            command.env("NINEFOLD_SERVER", env);
        }
        command.output().unwrap().status.code()
    };
    assert_eq!(ls(&[], None), Some(0), "the file counts");
    assert_eq!(ls(&[], Some("unix:/none")), Some(1), "the environment counts more");
    assert_eq!(ls(&["--server", &here], Some("unix:/none")), Some(0), "a flag counts most");
}

#[test]
fn check_names_file_and_line() {
    let dir = tempfile::tempdir().unwrap();
    let check = |text: &str| {
        std::fs::write(dir.path().join("c.toml"), text).unwrap();
        let output = ninefold(dir.path()).args(["config", "check", "c.toml"]).output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(said).unwrap())
    };
    assert_eq!(check("[serve]\nread-only = true\n"), (Some(0), "c.toml: good\n".into()));
    let (status, said) = check("[serve]\nread-only = true\nlisen = ['tcp!*!1']\n");
    assert_eq!(status, Some(1));
    assert!(said.contains("c.toml") && said.contains("line 3, column 1") && said.contains("lisen"), "{said}");
    assert!(said.contains("did you mean `listen`?"), "{said}");
    let (_, said) = check("log = 'worn'\n");
    assert!(said.contains("line 1, column 7") && said.contains("did you mean `warn`?"), "{said}");
    let output = ninefold(dir.path()).args(["--config", "c.toml", "ls"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "no verb runs with a wrong file");
    let tls = "[serve]\nlisten = ['tls!*!1']\ncert = 'cert.pem'\nkey = 'key.pem'\n";
    let (status, said) = check(tls);
    assert!(status == Some(1) && said.contains("c.toml: cert.pem: No such file"), "{said}");
    let made = rcgen::generate_simple_self_signed(["localhost".to_string()]).unwrap();
    std::fs::write(dir.path().join("cert.pem"), made.cert.pem()).unwrap();
    common::secret(&dir.path().join("key.pem"), "no key");
    let (status, said) = check(tls);
    assert!(status == Some(1) && said.contains("key.pem"), "{said}");
    common::secret(&dir.path().join("key.pem"), &made.signing_key.serialize_pem());
    assert_eq!(check(tls).0, Some(0));
    std::fs::write(dir.path().join("exports"), "alow cert:x / ro\n").unwrap();
    common::chmod(&dir.path().join("exports"), 0o644);
    let (status, said) = check("[serve]\nexports = 'exports'\n");
    assert!(status == Some(1) && said.contains("c.toml: exports:1:1: `alow` is not known"), "{said}");
    std::fs::write(dir.path().join("exports"), "allow cert:x / ro\n").unwrap();
    assert_eq!(check("[serve]\nexports = 'exports'\n").0, Some(0));
    assert!(check("[client]\nca = 'none.pem'\n").1.contains("none.pem: No such file"));
    let output = ninefold(dir.path()).args(["--config", "none.toml", "ls"]).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("none.toml: No such file"));
}

#[test]
fn show_prints_what_it_comes_to_and_no_token() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("c.toml"), "[client]\nmsize = 8192\n[serve]\nlisten = ['tcp!h!1']\n")
        .unwrap();
    let mut show = ninefold(dir.path());
    show.args(["config", "show", "--config", "c.toml"])
        .env("NINEFOLD_USER", "glenda")
        .env("NINEFOLD_TOKEN", "secret");
    let shown = String::from_utf8(show.output().unwrap().stdout).unwrap();
    for text in ["msize = 8192", "user = \"glenda\"", "tcp!h!1"] {
        assert!(shown.contains(text), "{text}: {shown}");
    }
    assert!(!shown.contains("secret"));
}
