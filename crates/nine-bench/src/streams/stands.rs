//! The cost of 9P on streams. Our servers and our mux have conversations as connections, on which modules could be
//! pushed but are not. The peer is the same with bare connections. There is no limit, only the peer.

use std::ffi::OsStr;
use std::io;

use nine_proto::msg::Tmsg;
use nine_proto::{Fid, GetMask, OpenFlags, Tag};

use crate::args::BenchPace;
use crate::files::{LARGE, SMALL, fill};
use crate::place::CpuPlacement;
use crate::report::{BenchReport, BenchTurn, alternate};
use crate::scratch::ScratchDir;
use crate::server::MeasuredServer;
use crate::turns::{exchange, read_whole, write_whole};
use crate::wire::{CycleLoad, encoded};

/// The fid of the file.
const FILE: Fid = Fid(1);
/// Requests in flight in rows with many.
const DEPTH: u16 = 32;
const COUNT: u32 = 4096;
/// `size[4] Rread tag[2] count[4]`.
const RREAD_HEAD_LEN: usize = 11;

/// Key, description, unit, placement, both servers, and the work for each.
type StandContest<'m> =
    (&'static str, &'m str, &'static str, CpuPlacement, [&'m MeasuredServer; 2], WorkMaker<'m>);
type WorkMaker<'m> = &'m dyn Fn(&MeasuredServer) -> io::Result<BenchTurn<'static>>;

pub(super) fn measure(pace: &BenchPace, report: &mut BenchReport) -> io::Result<()> {
    let (dir, sockets) = (ScratchDir::new()?, ScratchDir::new()?);
    let size = pace.of(256 << 20, 128 << 20, 4 << 20);
    fill(dir.path(), size, 0)?;
    let role = |role: &str, words: &[&OsStr]| MeasuredServer::role(role, words, sockets.path().join(role));
    let disk = ["serve", "serve-bare"].map(|name| role(name, &[dir.path().as_os_str()]));
    let [ours, bare] = disk;
    let (ours, bare) = (ours?, bare?);
    let script = sockets.path().join("ns");
    std::fs::write(&script, bare.mount_line("u"))?;
    let mux = ["mux", "mux-bare"].map(|name| role(name, &[script.as_os_str()]));
    let [muxed, muxed_bare] = mux;
    let (muxed, muxed_bare) = (muxed?, muxed_bare?);

    let turn = pace.turn();
    let getattr = move |path: &'static [&'static str]| {
        move |server: &MeasuredServer| -> io::Result<BenchTurn<'static>> {
            let mut conn = server.dial()?;
            conn.walk_path(FILE, path)?;
            let message = Tmsg::Getattr { fid: FILE, mask: GetMask::BASIC.0 };
            let mut load = CycleLoad::new(vec![conn], DEPTH, |_, tag| vec![encoded(&message, tag)])?;
            Ok(Box::new(move || Ok(load.run(turn)? / 1000.0)))
        }
    };
    let depth1 = |server: &MeasuredServer| -> io::Result<BenchTurn<'static>> {
        let mut conn = server.dial()?;
        conn.walk_path(FILE, &[SMALL])?;
        conn.call(&Tmsg::Lopen { fid: FILE, flags: OpenFlags::READ.to_wire() })?;
        let read = encoded(&Tmsg::Read { fid: FILE, offset: 0, count: COUNT }, Tag(0));
        Ok(exchange(turn, conn, read, RREAD_HEAD_LEN + COUNT as usize))
    };
    let read = |server: &MeasuredServer| read_whole(server, LARGE, size);
    let write = |server: &MeasuredServer| write_whole(server, LARGE, size);
    let (direct, through) = (getattr(&[SMALL]), getattr(&["u", SMALL]));
    let (same, cross) = (CpuPlacement::Same, CpuPlacement::Cross);
    let contests: [StandContest<'_>; 5] = [
        ("stands_small32_vs_bare", "getattr, depth 32", "k/s", cross, [&ours, &bare], &direct),
        ("stands_depth1_vs_bare", "read 4 KiB, depth 1", "us", same, [&ours, &bare], &depth1),
        ("stands_read_vs_bare", "sequential read", "GB/s", cross, [&ours, &bare], &read),
        ("stands_write_vs_bare", "sequential write", "GB/s", cross, [&ours, &bare], &write),
        (
            "stands_hop32_vs_bare",
            "getattr through a mux, depth 32",
            "k/s",
            same,
            [&muxed, &muxed_bare],
            &through,
        ),
    ];
    for (key, what, unit, place, [ours, peer], make) in contests {
        // Also place the server behind the muxes.
        place.arrange(&[ours, peer, &bare].map(MeasuredServer::pid))?;
        let row = alternate(
            format!("{what}, {}: a conversation / bare", place.label()),
            unit,
            2 * pace.rounds(),
            [Some(make(ours)?), Some(make(peer)?), None],
        )?;
        report.key(key, row.vs_peer());
        report.push(row);
    }
    Ok(())
}
