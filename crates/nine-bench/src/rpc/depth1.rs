//! One request at a time: a read of 4 KiB from the page cache, with client and server on one
//! processor.

use std::io;

use nine_io::client::blocking::File;
use nine_proto::msg::Tmsg;
use nine_proto::{Fid, OpenFlags, Tag};

use super::RpcContest;
use crate::files::SMALL;
use crate::place::CpuPlacement;
use crate::report::{BenchReport, BenchTurn, alternate};
use crate::server::MeasuredServer;
use crate::turns::{each, exchange};
use crate::wire::{LeanConnection, encoded};

const COUNT: usize = 4096;
/// `size[4] Rread tag[2] count[4]`.
const RREAD_HEAD_LEN: usize = 11;

pub(super) fn measure(contest: &RpcContest, report: &mut BenchReport) -> io::Result<()> {
    let RpcContest { pace, ours, diod, echo, .. } = contest;
    let place = CpuPlacement::Same;
    place.arrange(&contest.servers())?;
    let turn = pace.turn();
    let client = |server: &MeasuredServer| -> io::Result<BenchTurn<'static>> {
        let (client, root) = server.client()?;
        let file: File = root.open(SMALL, OpenFlags::READ)?;
        let mut buf = vec![0; COUNT];
        Ok(each(turn, move || {
            let _client = &client;
            full(file.read_at(0, &mut buf)?)
        }))
    };
    let request = encoded(&Tmsg::Read { fid: Fid(1), offset: 0, count: COUNT as u32 }, Tag(1));
    let exchange = |conn: LeanConnection| exchange(turn, conn, request.clone(), RREAD_HEAD_LEN + COUNT);
    let lean = |server: &MeasuredServer| -> io::Result<BenchTurn<'static>> {
        let mut conn = server.dial()?;
        conn.walk(Fid(0), Fid(1), SMALL.as_bytes())?;
        conn.call(&Tmsg::Lopen { fid: Fid(1), flags: OpenFlags::READ.to_wire() })?;
        Ok(exchange(conn))
    };
    let limit = || Ok::<_, io::Error>(exchange(LeanConnection::bare(&echo.socket)?));

    let whole = alternate(
        format!("read 4 KiB, depth 1, our client, {}", place.label()),
        "us",
        pace.rounds(),
        [Some(client(ours)?), diod.as_ref().map(client).transpose()?, Some(limit()?)],
    )?;
    report.key("depth1_vs_limit", whole.vs_limit());
    report.push(whole);
    let server_only = alternate(
        format!("read 4 KiB, depth 1, lean client, {}", place.label()),
        "us",
        pace.rounds(),
        [Some(lean(ours)?), diod.as_ref().map(lean).transpose()?, Some(limit()?)],
    )?;
    report.push(server_only);
    Ok(())
}

fn full(n: usize) -> io::Result<()> {
    if n == COUNT { Ok(()) } else { Err(io::Error::other(format!("a read brought {n} bytes"))) }
}
