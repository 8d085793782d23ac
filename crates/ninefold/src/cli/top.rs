//! Command line of `top`: the activity of a running server.

use std::ffi::OsString;

use clap::Args;

use crate::config::Remote;

/// Show the activity of a running server: requests, bytes, times, queues
///
/// Shows for each server behind it and each client: requests and bytes per second, response times, and requests in
/// flight. On a terminal it updates the screen every second, until you type q; elsewhere it prints tables. The server
/// measures times only while a client asks for them: docs/namespace.md, "/mux".
#[derive(Debug, Args)]
pub struct Top {
    /// The server [default: the default server]
    #[arg(value_name = "ADDR")]
    pub addr: Option<OsString>,
    /// Seconds between two updates
    #[arg(short = 'd', long, value_name = "SECONDS", default_value_t = 1.0, value_parser = seconds)]
    pub delay: f64,
    /// Measure one interval, print it, and exit
    #[arg(long)]
    pub once: bool,
    /// Print a JSON object per interval
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
