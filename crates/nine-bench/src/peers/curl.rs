//! curl, the widespread HTTP client.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::Path;

/// Downloads a file from a server.
pub fn get(server: SocketAddr, path: &str, to: &Path) -> Vec<OsString> {
    words(&["-o".as_ref(), to.as_os_str()], server, path)
}

/// Uploads a file to a server that supports PUT.
pub fn put(from: &Path, server: SocketAddr, path: &str) -> Vec<OsString> {
    words(&["-T".as_ref(), from.as_os_str()], server, path)
}

/// Returns its words, without user configuration, and with a failing exit status on HTTP errors.
fn words(what: &[&std::ffi::OsStr], server: SocketAddr, path: &str) -> Vec<OsString> {
    let before = ["curl", "-q", "-sSf"].map(OsString::from);
    let what = what.iter().map(|word| word.to_os_string());
    before.into_iter().chain(what).chain([format!("http://{server}/{path}").into()]).collect()
}
