//! Servers that are mounted by the name under which their address was posted.

use std::io::Write;
use std::process::{Output, Stdio};

use crate::common::{Server, ninefold};

fn serve(space: &str) -> Server {
    let dir = tempfile::tempdir().unwrap();
    let listen = format!("unix!{}", dir.path().join("s").display());
    std::fs::write(dir.path().join("home.ns"), space).unwrap();
    Server::in_dir(dir, &["serve", "home.ns", "--listen", &listen])
}

/// Writes a post. Returns the output.
fn post(server: &Server, words: &[&str], text: &str) -> Output {
    let line = ["write", "--create"].iter().chain(words);
    let mut child = server.client().args(line).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

fn refused(server: &Server, words: &[&str], text: &str) -> String {
    let output = post(server, words, text);
    assert!(!output.status.success());
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn a_post_is_mounted_as_its_address_would_be() {
    let far = Server::start();
    std::fs::write(far.files().join("there"), "from afar\n").unwrap();
    let addr = format!("unix!{}", far.socket().display());
    let server = serve("mount srv: /srv\nmount srv: /other\n");
    assert!(post(&server, &["/srv/lab"], &format!("{addr}\n")).status.success());
    // There is one table for all mounts.
    assert_eq!(server.ok(["ls", "/other"]), "lab\n");
    assert_eq!(server.ok(["cat", "/other/lab"]), format!("{addr}\n"));
    server.ok(["mux", "mount", "/srv/lab", "/n/lab"]);
    server.ok(["mux", "mount", &addr, "/n/same"]);
    for path in ["/n/lab/there", "/n/same/there"] {
        assert_eq!(server.ok(["cat", path]), "from afar\n");
    }
    let mounts = server.ok(["cat", "/mux/mounts"]);
    assert!(
        mounts.contains("mount /srv/lab /n/lab\n") && mounts.contains(&format!("mount {addr} /n/same\n"))
    );
    let servers = server.ok(["mux", "--json"]);
    assert_eq!(servers.matches(&format!("\"name\":\"{addr}")).count(), 1, "{servers}");

    // A withdrawn post stays mounted, but cannot be mounted again.
    server.ok(["rm", "/srv/lab"]);
    assert_eq!(server.ok(["cat", "/n/lab/there"]), "from afar\n");
    let said = server.fails(["mux", "mount", "/srv/lab", "/n/again"]);
    assert!(said.contains("nothing is posted by this name; nothing is"), "{said}");
    server.ok(["mux", "unmount", "/srv/lab", "/n/lab"]);
    assert_eq!(server.ok(["ls", "/n/lab"]), "");

    // A post's modules are used for new connections.
    server.ok(["mux", "unmount", "/n/same"]);
    assert!(post(&server, &["/srv/packed"], &format!("{addr}\npush zstd 3\n")).status.success());
    assert_eq!(server.ok(["cat", "/srv/packed"]), format!("{addr}\npush zstd 3\n"));
    server.ok(["mux", "mount", "/srv/packed", "/n/packed"]);
    assert_eq!(server.ok(["cat", "/n/packed/there"]), "from afar\n");
    let servers = server.ok(["mux", "--json"]);
    assert!(servers.contains("\"modules\":\"zstd 3\""), "{servers}");
    let said = server.fails(["mux", "mount", "/srv/lab", "/n/lab"]);
    assert!(said.contains("posted are: packed"), "{said}");
}

#[test]
fn a_post_is_judged_and_its_token_is_kept() {
    let server = serve("mount srv: /srv\nlisten tcp!127.0.0.1!0 -insecure\n");
    for (text, why) in [
        ("nonsense", "`nonsense` is no server"),
        ("ram:", "`ram:` is no address"),
        ("disk:/etc", "`disk:/etc` is no address"),
        ("cons:", "`cons:` is no address"),
        ("/srv/x", "`/srv/x` is no address"),
        ("tcp!h!564\npop", "`pop` behind an address"),
        ("tcp!h!564\npush nothing", "nothing"),
        ("\n", "`` is no server"),
    ] {
        let said = refused(&server, &["--dialect", "9P2000.u", "/srv/x"], text);
        assert!(said.contains(why), "{text}: {said}");
    }
    // A file that is closed without data is not a post.
    assert!(post(&server, &["/srv/x"], "").status.success());
    assert_eq!(server.ok(["ls", "/srv"]), "");
    assert!(post(&server, &["/srv/x"], "9p://secret@h:5").status.success());
    assert_eq!(server.ok(["cat", "/srv/x"]), "tcp!h!5\n");
    assert!(!server.log().contains("secret"));
    let said = refused(&server, &["--dialect", "9P2000.u", "/srv/x"], "tcp!h!6");
    assert!(said.contains("a post is written once"), "{said}");
    // A client without a proof can neither post nor withdraw.
    let far = server.addr("tcp!");
    let said = refused(&server, &["--dialect", "9P2000.u", &format!("{far}/srv/y")], "tcp!h!6");
    assert!(said.contains("only the owner posts"), "{said}");
    let said = server.fails(["rm", &format!("{far}/srv/x")]);
    assert!(said.contains("Permission denied"), "{said}");
    assert_eq!(server.ok(["cat", &format!("{far}/srv/x")]), "tcp!h!5\n");
    assert_eq!(server.ok(["ls", "/srv"]), "x\n");
}

#[test]
fn a_file_cannot_mount_what_is_posted_later() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("home.ns"), "mount srv: /srv\nmount /srv/lab /lab\n").unwrap();
    let output = ninefold(dir.path()).args(["serve", "home.ns"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && said.contains("home.ns:2:7: `/srv/lab`: nothing is posted at the start"),
        "{said}"
    );
}
