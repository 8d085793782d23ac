//! The examples of docs/namespace.md and docs/net.md: each name space file is served, and the commands after it are
//! run. Single lines are only parsed.

use std::fs;
use std::path::Path;
use std::process::Command;

use nine_mux::script;

use crate::common::Server;

/// A fenced block: the words after the fence, and its lines.
type Block = (String, Vec<String>);

#[test]
fn every_example_of_the_documents_is_true() {
    let doc = |name: &str| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name);
        blocks(&fs::read_to_string(path).unwrap())
    };
    let mut server = None;
    let (mut served, mut typed) = (0, 0);
    for (kind, lines) in doc("namespace.md").into_iter().chain(doc("net.md")) {
        match kind.split_once(' ') {
            Some(("ns", name)) => {
                server = Some(serve(name, &lines));
                served += 1;
            }
            None if kind == "console" => {
                let server: &Server = server.as_ref().expect("a name space file comes first");
                assert_eq!(session(server, &lines), lines);
                typed += 1;
            }
            None if kind == "lines" => {
                let script = script::parse("lines", &lines.join("\n"), &mut script::Alone);
                assert_eq!(script.wrong, [], "{lines:?}");
            }
            // A policy, or shell commands for a machine with a mount.
            None if kind == "text" || kind == "sh" => {}
            _ => panic!("a block of no known kind: {kind}"),
        }
    }
    assert!(served >= 4 && typed >= 5, "{served} {typed}");
}

fn blocks(text: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        match line.strip_prefix("```") {
            Some(kind) if !inside => blocks.push((kind.into(), Vec::new())),
            Some(_) => {}
            None if inside => blocks.last_mut().unwrap().1.push(line.into()),
            None => {}
        }
        inside ^= line.starts_with("```");
    }
    blocks
}

fn serve(name: &str, lines: &[String]) -> Server {
    let dir = tempfile::tempdir().unwrap();
    for file in ["music/jazz/so-what", "letters/to-rob"] {
        let path = dir.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
    }
    fs::write(dir.path().join(name), lines.join("\n")).unwrap();
    let listen = format!("unix!{}", dir.path().join("s").display());
    Server::in_dir(dir, &["serve", name, "--listen", &listen])
}

/// Runs the lines of a session. Returns each line with its output, as a user would see it.
fn session(server: &Server, lines: &[String]) -> Vec<String> {
    let binary = Path::new(env!("CARGO_BIN_EXE_ninefold")).parent().unwrap();
    let path = format!("{}:{}", binary.display(), std::env::var("PATH").unwrap());
    let mut seen = Vec::new();
    for command in lines.iter().filter_map(|line| line.strip_prefix("$ ")) {
        let environment = server.client();
        let mut shell = Command::new("sh");
        shell.env_clear().envs(environment.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let output = shell.env("PATH", &path).arg("-c").arg(command).output().unwrap();
        seen.push(format!("$ {command}"));
        for bytes in [output.stdout, output.stderr] {
            seen.extend(String::from_utf8(bytes).unwrap().lines().map(String::from));
        }
    }
    seen
}
