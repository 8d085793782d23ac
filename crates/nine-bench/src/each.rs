//! Starts a program for each client, with the connection as its standard input and output: for servers that refuse
//! clients with addresses that have no names.

use std::ffi::OsStr;
use std::io;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};

/// Listens at an address, and never returns. A program ends when its client disconnects.
pub fn serve(address: &OsStr, program: &[&OsStr]) -> io::Result<()> {
    let address = address.to_str().ok_or(io::ErrorKind::InvalidInput)?;
    let [program, args @ ..] = program else { return Err(io::ErrorKind::InvalidInput.into()) };
    let listener = TcpListener::bind(address)?;
    loop {
        let (client, _) = listener.accept()?;
        client.set_nodelay(true)?;
        let (input, output) = (OwnedFd::from(client.try_clone()?), OwnedFd::from(client));
        let mut command = Command::new(program);
        let mut child = command.args(args).stdin(Stdio::from(input)).stdout(Stdio::from(output)).spawn()?;
        // Reap the process.
        std::thread::spawn(move || drop(child.wait()));
    }
}
