//! The files of `/mux` for a file server that its clients reach without a mux.
//!
//! In: the SERVER word and the core of its clients. Out: the same files as those of a mux ([`Live`](crate::Live)), with
//! one mount and one server. Each client's connection is one to that server.
//!
//! Always holds: nothing is mounted, bound or pushed. Such a line gets an error that says what to serve instead.

use std::time::Duration;

use nine_io::server::{ClientStatus, Core};
use nine_io::synth::{Dir, File, Tree};
use nine_proto::{Dialect, Errno, Error};

use crate::live::{clients_text, load_head, load_line, status_text};
use crate::metrics;
use crate::script::quote;
use crate::show::{ConnectionStatus, UpstreamStatus};

/// The name of the files in the root of such a server. No listing shows it.
pub const HIDDEN_FILES: &str = "#mux";

/// Creates the files. `word` is displayed as the server; `wall` is the time since 1970, which becomes their time.
pub fn files_of_one(word: &str, clients: &Core, wall: Duration) -> Tree {
    let of = |text: fn(&str, &Core) -> String| {
        let (word, clients) = (word.to_owned(), clients.clone());
        File::text(move |_| text(&word, &clients))
    };
    let status =
        of(|word, clients| status_text(&upstream(word, &clients.clients(), clients.totals().clients)));
    let server = Dir::new().file("status", status).file("trace", File::text(|_| String::new()).mode(0o400));
    let ctl = File::text(|_| format!("# {NO_MUX}\n"))
        .on_write(|ask| ask.fail(Error::new(Errno::EOPNOTSUPP, NO_MUX)));
    let root = Dir::new()
        .file("ctl", ctl)
        .file("mounts", of(|word, _| format!("mount {} /\n", quote(word))))
        .file("pending", File::text(|_| String::new()))
        .file("clients", of(|_, clients| clients_text(&clients.clients())))
        .file("load", of(load))
        .file(
            "metrics",
            of(|word, clients| {
                let all = clients.clients();
                metrics::text(all.len(), &[upstream(word, &all, clients.totals().clients)])
            }),
        )
        .dir("servers", Dir::new().dir("1", server));
    Tree::new(root, wall)
}

fn load(word: &str, clients: &Core) -> String {
    let totals = clients.totals();
    let counts = [totals.requests, totals.received, totals.sent];
    load_head() + &load_line(&upstream(word, &clients.clients(), totals.clients), counts, &[])
}

/// Returns the status of the server. `dials` is the number of its clients since the start.
fn upstream(word: &str, clients: &[ClientStatus], dials: u64) -> UpstreamStatus {
    let connection = |client: &ClientStatus| ConnectionStatus {
        dialect: client.dialect.map(Dialect::name),
        calls: client.outstanding,
        orphans: 0,
        fids: u32::try_from(client.fids).unwrap_or(u32::MAX),
        rtt_us: 0,
        kept: 0,
        waiting: 0,
        away: None,
    };
    UpstreamStatus {
        id: 1,
        name: word.into(),
        modules: Vec::new(),
        dials: u32::try_from(dials).unwrap_or(u32::MAX),
        ahead_served: 0,
        ahead_dropped: 0,
        connections: clients.iter().map(connection).collect(),
    }
}

const NO_MUX: &str =
    "one server is served here, without a mux; serve a name space file to mount, bind or push";
