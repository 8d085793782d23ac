//! The command: where everything meets. A verb is a file; what is done for several of them is a room of its own:
//! `operand` (what a person means by a word), `dial` (sessions), `blocks`, `disks` and `stores`, `archive`, `copy`
//! (trees from here to there), `serve`.
//!
//! In: arguments, environment, configuration files. Out: exit status 0, 1 (something failed) or 2 (the command line).
#![forbid(unsafe_code)]

mod ancestors;
mod archive;
mod blocks;
mod cli;
mod completions;
mod config;
mod copy;
mod dial;
mod disks;
mod fail;
mod keys;
mod log;
mod operand;
mod output;
mod serve;
mod stores;
mod verbs;

fn main() -> std::process::ExitCode {
    // What becomes another program has nothing of ours: no configuration, no log.
    match std::env::args_os().nth(1) {
        Some(word) if word == nine_servers::part::VERB => return nine_servers::part::launch(),
        Some(word) if word == nine_gate::fuse::space::VERB => return nine_gate::fuse::space::launch(),
        _ => {}
    }
    let cli = cli::parse();
    let verb = cli.verb.name();
    fail::status(verb, verbs::run(cli))
}
