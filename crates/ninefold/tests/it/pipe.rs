//! Programs that communicate by a pipe of a name space.

use std::io::Read;
use std::process::{Child, Stdio};
use std::time::Duration;

use nine_io::client::{Options, blocking};
use nine_net::Addr;
use nine_proto::{Errno, NOUID, OpenFlags};

use crate::common::{Server, ended_within};

const LIMIT: Duration = Duration::from_secs(60);

/// Serves a name space with pipes on `cores` cores.
fn serve(cores: &str) -> Server {
    let dir = tempfile::tempdir().unwrap();
    let listen = format!("unix!{}", dir.path().join("s").display());
    std::fs::write(dir.path().join("home.ns"), "mount pipe: /pipe\nmount pipe: /other\n").unwrap();
    Server::in_dir(dir, &["serve", "home.ns", "--listen", &listen, "--cores", cores])
}

/// Returns the root, for a client that stays connected.
fn root(server: &Server) -> blocking::File {
    let addr: Addr = format!("unix!{}", server.socket().display()).parse().unwrap();
    let client = blocking::Client::dial(&addr, LIMIT, Options::default()).unwrap();
    client.attach("", NOUID, "").unwrap()
}

/// Starts a program that reads a file until EOF.
fn cat(server: &Server, path: &str) -> Child {
    server.client().args(["cat", path]).stdout(Stdio::piped()).spawn().unwrap()
}

/// Waits for the program's end and returns its output.
fn output(mut program: Child) -> Vec<u8> {
    let mut seen = Vec::new();
    program.stdout.take().unwrap().read_to_end(&mut seen).unwrap();
    assert!(ended_within(&mut program, LIMIT).is_some_and(|status| status.success()));
    seen
}

#[test]
fn two_programs_talk_by_a_pipe_until_one_of_them_ends() {
    for cores in ["1", "3"] {
        let server = serve(cores);
        let root = root(&server);
        let ctl = root.open("pipe/clone", OpenFlags::RDWR).unwrap();
        assert_eq!(&*ctl.read(0, 100).unwrap(), b"0\n");
        assert_eq!(
            server.ok(["ls", "/pipe", "/pipe/0"]),
            "/pipe:\n0\nclone\n\n/pipe/0:\nctl\nctl1\ndata\ndata1\nstatus\n"
        );
        // Another line is another server.
        assert_eq!(server.ok(["ls", "/other"]), "clone\n");
        let reader = cat(&server, "/pipe/0/data1");
        server.fed(&["write", "/pipe/0/data"], b"hello\n");
        assert_eq!(output(reader), b"hello\n");
        let said = server.fails(["write", "/pipe/0/data"]);
        assert!(said.contains("Broken pipe"), "{said}");
        ctl.close().unwrap();
        assert_eq!(server.ok(["ls", "/pipe"]), "clone\n");

        // More than a pipe buffers, and compressed in transit.
        let _ctl = root.open("pipe/clone", OpenFlags::RDWR).unwrap();
        server.fed(&["write", "/pipe/1/ctl"], b"push zstd\n");
        server.fed(&["write", "/pipe/1/ctl1"], b"push zstd\n");
        let status = server.ok(["cat", "/pipe/1/status"]);
        assert!(status.contains("\ndata zstd ") && status.contains("\ndata1 zstd "), "{status}");
        let large: Vec<u8> = (0..3_000_000u32).flat_map(|n| (n / 7).to_le_bytes()).collect();
        let reader = cat(&server, "/pipe/1/data");
        let seen = std::thread::spawn(move || output(reader));
        server.fed(&["write", "/pipe/1/data1"], &large);
        assert!(seen.join().unwrap() == large, "it is not what was written");
    }
}

#[test]
fn a_read_only_client_takes_nothing_out_of_pipes_by_any_mount() {
    let dir = tempfile::tempdir().unwrap();
    let lines = format!(
        "listen unix!{}\nlisten tcp!127.0.0.1!0\nmount pipe: /pipe\nmount pipe: /named aname\n",
        dir.path().join("s").display()
    );
    std::fs::write(dir.path().join("home.ns"), lines).unwrap();
    let server = Server::in_dir(dir, &["serve", "home.ns"]);
    let owner = root(&server);
    // Loopback TCP without the token is read-only.
    let addr: Addr = server.addr("tcp").parse().unwrap();
    let reader = blocking::Client::dial(&addr, LIMIT, Options::default()).unwrap();
    let reader = reader.attach("", NOUID, "").unwrap();
    for at in ["pipe", "named"] {
        let _ctl = owner.open(format!("{at}/clone").as_str(), OpenFlags::RDWR).unwrap();
        let [data, data1] = ["data", "data1"]
            .map(|end| owner.open(format!("{at}/0/{end}").as_str(), OpenFlags::RDWR).unwrap());
        data.write(0, b"a message").unwrap();
        for file in ["clone", "0/data1", "0/ctl"] {
            let error = reader.open(format!("{at}/{file}").as_str(), OpenFlags::READ).unwrap_err();
            assert_eq!(error.errno(), Errno::EACCES, "{at}/{file}: {error}");
        }
        assert_eq!(&*data1.read(0, 100).unwrap(), b"a message", "{at}");
    }
}
