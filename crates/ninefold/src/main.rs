//! The command: the crate where all others meet. Each verb has a file in `verbs`. Work that several verbs share has a
//! module of its own: `operand` (operands on the command line), `dial` (sessions), `blocks`, `disks` and `stores`,
//! `archive`, `copy` (copying trees), `serve`.
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
    // A launcher is about to become another program: it reads no configuration and starts no log.
    match std::env::args_os().nth(1) {
        Some(word) if word == nine_servers::part::VERB => return nine_servers::part::launch(),
        Some(word) if word == nine_gate::fuse::space::VERB => return nine_gate::fuse::space::launch(),
        _ => {}
    }
    let cli = cli::parse();
    let verb = cli.verb.name();
    fail::status(verb, verbs::run(cli))
}
