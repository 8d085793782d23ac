//! curl, the HTTP client that everybody has.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::Path;

/// Fetches a file of a server.
pub fn get(server: SocketAddr, path: &str, to: &Path) -> Vec<OsString> {
    words(&["-o".as_ref(), to.as_os_str()], server, path)
}

/// Stores a file on a server that knows PUT.
pub fn put(from: &Path, server: SocketAddr, path: &str) -> Vec<OsString> {
    words(&["-T".as_ref(), from.as_os_str()], server, path)
}

/// Without anybody's configuration, and with an error status where HTTP says that it failed.
fn words(what: &[&std::ffi::OsStr], server: SocketAddr, path: &str) -> Vec<OsString> {
    let before = ["curl", "-q", "-sSf"].map(OsString::from);
    let what = what.iter().map(|word| word.to_os_string());
    before.into_iter().chain(what).chain([format!("http://{server}/{path}").into()]).collect()
}
