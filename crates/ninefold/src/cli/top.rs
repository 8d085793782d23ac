//! Command line of `top`: the activity of a running server.

use std::ffi::OsString;

use clap::Args;

use crate::config::Remote;

/// Show what goes on in the name space of a running server: requests, bytes, times, queues
///
/// Of each server behind it, and each client: requests and bytes a second, how long answers take, what is under way. On
/// a terminal it shows all of it anew each second, until q; elsewhere it prints tables. The server measures times only
/// while somebody looks: docs/namespace.md, "/mux".
#[derive(Debug, Args)]
pub struct Top {
    /// The server; the default one if not given
    #[arg(value_name = "ADDR")]
    pub addr: Option<OsString>,
    /// Seconds between two looks
    #[arg(short = 'd', long, value_name = "SECONDS", default_value_t = 1.0, value_parser = seconds)]
    pub delay: f64,
    /// Look twice, print what has gone on in between, and end
    #[arg(long)]
    pub once: bool,
    /// A JSON object for each look
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub remote: Remote,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("a number of seconds, 0.1 to 3600".into()),
    }
}
