//! il and nonet beside TCP and UDP: on the loopback, and over links of the delay box; Tables 2 and 3 of *Multiprocessor
//! Streams for Plan 9*. There is no Datakit here, so il over a link with Datakit's rate replaces URP.
//!
//! Always holds: without a delay box, its measurements are reported as missing.

use std::ffi::OsString;
use std::io;
use std::net::Ipv4Addr;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use nine_io::client::Net as Dialler;
use nine_sim::delay::{Shape, Side, Way};

use super::lines::{LineCarrier, LineJob, MACS, NetFiles, NetLocation, turn};
use super::plumbing::ThreadPlumbing;
use super::{ThreadWork, WRITE, alone, gateway, gigabytes_a_second, micros_a_round_trip, volume};
use crate::args::BenchPace;
use crate::child::ChildProcess;
use crate::far::RemoteLink;
use crate::peers;
use crate::place::CpuPlacement;
use crate::report::{BenchRace, BenchReport, BenchTurn, ReportRow, interleave};
use crate::scratch::ScratchDir;
use crate::server::{MeasuredServer, SILENCE};
use crate::stats::median;

/// The Ethernet card on each side, and their addresses.
const CARD: &str = "nine0";
const ETHERNET_AT: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 9, 1, 1), Ipv4Addr::new(10, 9, 1, 2)];
/// Size of a round-trip message for the comparison of datagrams, bytes.
const MESSAGE: usize = 32;
/// Rates, bits per second.
const LINK: u64 = 100_000_000;
const DATAKIT: u64 = 2_600_000;
const ETHERNET: u64 = 10_000_000;
/// Delay in each direction, of the link with loss.
const DELAY: Duration = Duration::from_millis(10);
const LOSS: f64 = 0.01;
/// Share of a packet's 1500 bytes after the IP and UDP headers.
const PAYLOAD: f64 = 1472.0 / 1500.0;

/// A table of the paper: systems, KB/s, microseconds.
type PaperTable = [(&'static str, u32, u32)];
const TABLE_2: &PaperTable = &[
    ("Plan 9, SGI, 2 processors", 235, 1400),
    ("Plan 9, SGI, 4 processors", 235, 1400),
    ("SVR3, M2000", 235, 1200),
    ("Plan 9, Gnot (68020)", 100, 5800),
    ("10th Edition, MicroVAX 3", 85, 3200),
];
const TABLE_3: &PaperTable =
    &[("Plan 9, SGI, 2 processors", 950, 1400), ("Plan 9, SGI, 4 processors", 950, 1400)];

/// A link in the box, the same in each direction.
#[derive(Clone, Copy)]
struct BoxLink {
    what: &'static str,
    way: Way,
}

fn line(what: &'static str, rate: u64, loss: f64, delay: Duration) -> BoxLink {
    BoxLink { what, way: Way { rate: Some(rate), loss, delay, ..Way::default() } }
}

/// Measures il on the loopback and over a link of 100 Mbit/s.
pub(super) fn il(pace: &BenchPace, report: &mut BenchReport) -> io::Result<()> {
    loopback(*pace, report)?;
    let keys = ["il_vs_tcp", "il_loss_vs_tcp", "il_rtt_vs_udp"];
    let Some(far) = boxed(report, &keys)? else { return Ok(()) };
    let size = pace.of(24_000_000, 6_000_000, 60_000);
    let lines = [
        line("100 Mbit/s", LINK, 0.0, Duration::ZERO),
        line("100 Mbit/s, 10 ms each way, 1 % lost", LINK, LOSS, DELAY),
    ];
    let mut races: Vec<BenchRace> = lines
        .iter()
        .map(|&line| BenchRace {
            what: format!("{}: il / TCP", line.what),
            unit: "MB/s",
            turns: beside(
                &far,
                line,
                [LineCarrier::Il, LineCarrier::Tcp],
                LineJob::Bytes(size, WRITE),
                "MB/s",
            ),
        })
        .collect();
    let trips = LineJob::Trips(pace.of(5_000, 1_000, 20), MESSAGE);
    races.push(BenchRace {
        what: format!("32 bytes to and fro, {}: il / UDP", lines[0].what),
        unit: "us",
        turns: beside(&far, lines[0], [LineCarrier::Il, LineCarrier::Udp], trips, "us"),
    });
    let rows = interleave(rounds(*pace), pace.patience(), races)?;
    for (row, key) in rows.into_iter().zip(keys) {
        report.key(key, row.vs_peer());
        report.push(row);
    }
    Ok(())
}

fn loopback(pace: BenchPace, report: &mut BenchReport) -> io::Result<()> {
    let bytes = volume(pace);
    let once = |carrier, place, job, unit: f64| -> Option<BenchTurn<'static>> {
        Some(Box::new(move || Ok(turn(NetLocation::Loopback, carrier, place, job)? * unit)))
    };
    let throughput = |place: CpuPlacement| BenchRace {
        what: format!("loopback, {}: il / TCP", place.label()),
        unit: "GB/s",
        turns: [
            once(LineCarrier::Il, place, LineJob::Bytes(bytes, WRITE), 1.0),
            once(LineCarrier::Tcp, place, LineJob::Bytes(bytes, WRITE), 1.0),
            Some(Box::new(move || Ok(alone(ThreadWork::Copy, bytes)))),
        ],
    };
    let trips = pace.of(20_000, 5_000, 100);
    let trip = |place: CpuPlacement| BenchRace {
        what: format!("32 bytes to and fro, loopback, {}: il / UDP", place.label()),
        unit: "us",
        turns: [
            once(LineCarrier::Il, place, LineJob::Trips(trips, MESSAGE), 1.0),
            once(LineCarrier::Udp, place, LineJob::Trips(trips, MESSAGE), 1.0),
            Some(Box::new(move || micros_a_round_trip(ThreadPlumbing::Park, place, trips))),
        ],
    };
    let races = vec![
        throughput(CpuPlacement::Cross),
        trip(CpuPlacement::Same),
        throughput(CpuPlacement::Same),
        trip(CpuPlacement::Cross),
    ];
    let rows = interleave(pace.rounds(), pace.patience(), races)?;
    let keys = [
        "il_loopback_vs_tcp",
        "il_rtt_same_core_vs_udp",
        "il_loopback_same_core_vs_tcp",
        "il_rtt_cross_vs_udp",
    ];
    for (row, key) in rows.into_iter().zip(keys) {
        report.key(key, row.vs_peer());
        report.push(row);
    }
    Ok(())
}

/// Measures the rows of Tables 2 and 3.
pub(super) fn tables(pace: &BenchPace, report: &mut BenchReport) -> io::Result<()> {
    let Some(far) = boxed(report, &[])? else {
        seed(report, "Table 2 of the seed, URP over Datakit", TABLE_2);
        seed(report, "Table 3 of the seed, nonet over Ethernet", TABLE_3);
        return Ok(());
    };
    let run = ScratchDir::for_sockets()?;
    let (_mux, files) = files(&far, &run)?;
    let (tcp, mux, il_mux) = (LineCarrier::Tcp, LineCarrier::Files(&files), LineCarrier::IlFiles(&files));

    let datakit = line("2.6 Mbit/s", DATAKIT, 0.0, Duration::ZERO);
    let size = pace.of(600_000, 200_000, 6_000);
    let rows = contest(
        *pace,
        &far,
        datakit,
        size,
        &[("il", LineCarrier::Il), ("il through /net", il_mux), ("TCP through /net", mux)],
        tcp,
    )?;
    seed(report, "Table 2 of the seed, URP over Datakit", TABLE_2);
    told(report, "here, il in place of URP, a link of 2.6 Mbit/s in place of Datakit", rows);

    let size = pace.of(3_000_000, 700_000, 20_000);
    let all = [
        ("nonet", LineCarrier::Nonet),
        ("il", LineCarrier::Il),
        ("il through /net", il_mux),
        ("TCP through /net", mux),
    ];
    let clean = line("10 Mbit/s", ETHERNET, 0.0, Duration::ZERO);
    let lossy = line("10 Mbit/s, 1 % lost", ETHERNET, LOSS, Duration::ZERO);
    let rows = contest(*pace, &far, clean, size, &all, tcp)?;
    seed(report, "Table 3 of the seed, nonet over Ethernet", TABLE_3);
    told(report, "here, a link of 10 Mbit/s", rows);
    let rows = contest(*pace, &far, lossy, size, &all, tcp)?;
    told(report, "here, the same, of whose packets 1 % are lost", rows);
    on_ethernet(*pace, &far, &run, report)
}

/// Measures throughput and round trips of one byte, of all these over a link, each beside the same peer.
fn contest<'f>(
    pace: BenchPace,
    far: &'f RemoteLink,
    line: BoxLink,
    size: usize,
    ours: &[(&'static str, LineCarrier<'f>)],
    peer: LineCarrier<'f>,
) -> io::Result<LinkResults> {
    let trips = LineJob::Trips(pace.of(500, 100, 5), 1);
    let races = ours.iter().flat_map(|&(name, ours)| {
        let what = format!("{}: {name} / TCP", line.what);
        [
            BenchRace {
                what: format!("one byte to and fro, {what}"),
                unit: "us",
                turns: beside(far, line, [ours, peer], trips, "us"),
            },
            BenchRace {
                what,
                unit: "KB/s",
                turns: beside(far, line, [ours, peer], LineJob::Bytes(size, WRITE), "KB/s"),
            },
        ]
    });
    let mut rows = interleave(rounds(pace), pace.patience(), races.collect())?.into_iter();
    // The rows of round trips come first.
    let pair = |&(name, _): &(&'static str, LineCarrier<'_>)| {
        let trip = rows.next()?;
        Some((name, rows.next()?, trip))
    };
    Ok(ours.iter().filter_map(pair).collect())
}

/// Names with rows of throughput and of round trips.
type LinkResults = Vec<(&'static str, ReportRow, ReportRow)>;

/// Returns a race of both contestants over a link, with the link's rate as the limit.
fn beside<'f>(
    far: &'f RemoteLink,
    line: BoxLink,
    contestants: [LineCarrier<'f>; 2],
    job: LineJob,
    unit: &'static str,
) -> [Option<BenchTurn<'f>>; 3] {
    let bytes = match unit {
        "MB/s" => 1e6,
        _ => 1e3,
    };
    let [ours, peer] = contestants.map(|carrier| -> Option<BenchTurn<'f>> {
        let mut seed = 0;
        Some(Box::new(move || {
            // Both contestants get the same sequence of random losses.
            seed += 1;
            far.shape(Shape { there: line.way, back: line.way, seed });
            let figure = turn(NetLocation::Far(far), carrier, CpuPlacement::Cross, job)?;
            Ok(if unit == "us" { figure } else { figure * 1e9 / bytes })
        }))
    });
    let let_through =
        line.way.rate.unwrap_or_default() as f64 / 8.0 * PAYLOAD * (1.0 - line.way.loss) / bytes;
    let limit = || -> BenchTurn<'f> { Box::new(move || Ok(let_through)) };
    [ours, peer, (unit != "us").then(limit)]
}

/// Creates a kernel Ethernet between both sides, which exists as long as the returned child.
fn ethernet(far: &RemoteLink, run: &ScratchDir) -> io::Result<ChildProcess> {
    let log = run.path().join("ip.log");
    // A process that stays there, so that its network name space can be addressed.
    let there = far.start(Side::There, &["sleep".into(), "3600".into()], &log)?;
    let [here_mac, there_mac] = MACS.map(|mac| mac.to_string());
    let make = format!(
        "link add {CARD} address {} type veth peer name {CARD} address {} netns {}",
        colons(&here_mac),
        colons(&there_mac),
        there.pid()
    );
    let mut words = vec![(Side::Here, make)];
    for (side, at) in [Side::Here, Side::There].into_iter().zip(ETHERNET_AT) {
        words.push((side, format!("addr add {at}/24 dev {CARD}")));
        words.push((side, format!("link set {CARD} up")));
    }
    let program = peers::find("ip").ok_or_else(|| io::Error::other("there is no ip(8)"))?;
    for (side, words) in &words {
        let words = words.split(' ').map(OsString::from);
        let words: Vec<OsString> = [program.clone().into()].into_iter().chain(words).collect();
        if !far.start(*side, &words, &log)?.wait(SILENCE)?.success() {
            return Err(io::Error::other(std::fs::read_to_string(&log)?.trim().to_owned()));
        }
    }
    Ok(there)
}

/// Measures nonet beside TCP, on an Ethernet.
fn on_ethernet(
    pace: BenchPace,
    far: &RemoteLink,
    run: &ScratchDir,
    report: &mut BenchReport,
) -> io::Result<()> {
    let made = ethernet(far, run).and_then(|there| {
        // Not every user may open a packet socket.
        turn(NetLocation::Far(far), LineCarrier::Ether(CARD), CpuPlacement::Cross, LineJob::Trips(1, 1))
            .map(|_| there)
    });
    let _there = match made {
        Ok(there) => there,
        Err(why) => {
            report.notes.push(format!(
                "MISSING, and not measured: nonet on an Ethernet of the kernel's (veth, iproute2, CAP_NET_RAW): {why}"
            ));
            return Ok(());
        }
    };
    let (bytes, trips) = on_wire(pace, WRITE);
    let carriers = [LineCarrier::Ether(CARD), LineCarrier::TcpAt(ETHERNET_AT)];
    let net = NetLocation::Far(far);
    let races = vec![
        race("64 KiB written, veth, cross: nonet / TCP", net, carriers, bytes),
        race("one byte to and fro, veth, cross: nonet / TCP", net, carriers, trips),
    ];
    for row in interleave(rounds(pace), pace.patience(), races)? {
        report.push(row);
    }
    Ok(())
}

/// Returns the jobs for a connection without a rate limit.
fn on_wire(pace: BenchPace, write: usize) -> (LineJob, LineJob) {
    (
        LineJob::Bytes(pace.of(100_000_000, 20_000_000, 100_000), write),
        LineJob::Trips(pace.of(5_000, 1_000, 5), 1),
    )
}

fn race<'f>(what: &str, net: NetLocation<'f>, carriers: [LineCarrier<'f>; 2], job: LineJob) -> BenchRace<'f> {
    let (unit, times) = if matches!(job, LineJob::Bytes(..)) { ("MB/s", 1e3) } else { ("us", 1.0) };
    let [ours, peer] = carriers.map(|carrier| -> Option<BenchTurn<'f>> {
        Some(Box::new(move || Ok(turn(net, carrier, CpuPlacement::Cross, job)? * times)))
    });
    BenchRace { what: what.into(), unit, turns: [ours, peer, None] }
}

/// Measures Table 1 of *A Diskless Fileserver*: between two processes, writes of 16 KiB in one direction, and one byte
/// to and fro. Of its rows, AoE has an experiment of its own (`aoe`); Datakit and Cyclone no longer exist.
pub(super) fn table_1(pace: &BenchPace, report: &mut BenchReport) -> io::Result<()> {
    const WRITE: usize = 16 << 10;
    let (pace, place) = (*pace, CpuPlacement::Cross);
    let size = volume(pace) / 4;
    let pipe = |plumbing| -> Option<BenchTurn<'static>> {
        Some(Box::new(move || Ok(gigabytes_a_second(plumbing, ThreadWork::Copy, place, size, WRITE)? * 1e3)))
    };
    let trip = |plumbing| -> Option<BenchTurn<'static>> {
        Some(Box::new(move || micros_a_round_trip(plumbing, place, pace.of(20_000, 5_000, 100))))
    };
    let (far, run) = (boxed(report, &[])?, ScratchDir::for_sockets()?);
    let there = far.as_ref().map(|far| ethernet(far, &run)).transpose();
    let (bytes, trips) = on_wire(pace, WRITE);
    let loopback = [LineCarrier::Il, LineCarrier::Tcp];
    let mut races = vec![
        BenchRace {
            what: "Table 1, 16 KiB written: our pipe / pipe(2)".into(),
            unit: "MB/s",
            turns: [pipe(ThreadPlumbing::Ours(0)), pipe(ThreadPlumbing::Pipe), None],
        },
        BenchRace {
            what: "Table 1, one byte to and fro: our pipe / pipe(2)".into(),
            unit: "us",
            turns: [trip(ThreadPlumbing::Ours(0)), trip(ThreadPlumbing::Pipe), trip(ThreadPlumbing::Park)],
        },
        race("Table 1, 16 KiB written: il / TCP, loopback", NetLocation::Loopback, loopback, bytes),
        race("Table 1, one byte to and fro: il / TCP, loopback", NetLocation::Loopback, loopback, trips),
    ];
    match (&far, &there) {
        (Some(far), Ok(_)) => {
            let wire = [LineCarrier::IlAt(ETHERNET_AT), LineCarrier::TcpAt(ETHERNET_AT)];
            races.push(race(
                "Table 1, 16 KiB written: il / TCP, Ethernet (veth)",
                NetLocation::Far(far),
                wire,
                bytes,
            ));
            let what = "Table 1, one byte to and fro: il / TCP, Ethernet (veth)";
            races.push(race(what, NetLocation::Far(far), wire, trips));
        }
        (_, Err(why)) => {
            report.notes.push(format!("MISSING, and not measured: an Ethernet of the kernel's: {why}"))
        }
        (None, Ok(_)) => {}
    }
    for row in interleave(rounds(pace), pace.patience(), races)? {
        report.push(row);
    }
    Ok(())
}

/// Formats a MAC address with colons.
fn colons(mac: &str) -> String {
    let pairs: Vec<&str> = (0..6).map(|n| &mac[2 * n..2 * n + 2]).collect();
    pairs.join(":")
}

/// Starts a mux with `/net` on the near side.
fn files(far: &RemoteLink, run: &ScratchDir) -> io::Result<(MeasuredServer, NetFiles)> {
    let [script, socket, log] = ["ns", "net", "mux.log"].map(|name| run.path().join(name));
    std::fs::write(&script, gateway::SPACE)?;
    let mut child = far.role(Side::Here, &["mux".into(), script.into(), socket.clone().into()], &log)?;
    let begun = Instant::now();
    while UnixStream::connect(&socket).is_err() {
        if child.has_ended()? || begun.elapsed() > SILENCE {
            return Err(io::Error::other(std::fs::read_to_string(&log)?));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let server = MeasuredServer::peer(child, socket, String::new(), 1 << 20);
    let (client, root) = server.client()?;
    let net = Dialler::new(client.wait(root.file().walk("net"))?);
    Ok((server, NetFiles { client, net }))
}

/// Creates a delay box. Without one, notes that and sets these keys to `na`.
fn boxed(report: &mut BenchReport, keys: &[&str]) -> io::Result<Option<RemoteLink>> {
    // The box's thread may use any processor.
    CpuPlacement::Free.arrange(&[])?;
    let far = RemoteLink::new()?;
    if far.is_box() {
        let control =
            std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").unwrap_or_default();
        let note = format!(
            "links: the ends cross, the box's thread free; its queue 1000 packets; TCP of this kernel: {}",
            control.trim()
        );
        if !report.notes.contains(&note) {
            report.notes.push(note);
        }
        return Ok(Some(far));
    }
    let keys = if keys.is_empty() { "no key" } else { &keys.join(", ") };
    report.notes.push(format!(
        "MISSING, and na what needs it: the delay box (CAP_SYS_ADMIN, CAP_NET_ADMIN, /dev/net/tun): {keys}; \
         Tables 2 and 3"
    ));
    Ok(None)
}

/// Returns the number of rounds on links, where a turn is long.
fn rounds(pace: BenchPace) -> usize {
    pace.of(9, 3, 1)
}

fn seed(report: &mut BenchReport, what: &str, table: &PaperTable) {
    report.notes.push(format!("{:<46}{:>7} {:>7}", format!("{what}:"), "KB/s", "us"));
    for (system, rate, trip) in table {
        report.notes.push(format!("  {system:<42} {rate:>9} {trip:>7}"));
    }
}

/// Notes the measured table, with the peer of the first row.
fn told(report: &mut BenchReport, what: &str, found: LinkResults) {
    report.notes.push(format!("  {what}:"));
    let figure = |figures: &[f64]| median(figures).unwrap_or_default();
    let mut tell = |name: &str, rate: f64, trip: f64| {
        report.notes.push(format!("    {name:<40} {rate:>9.0} {trip:>7.0}"));
    };
    for (name, rate, trip) in &found {
        tell(name, figure(&rate.ours), figure(&trip.ours));
    }
    if let Some((_, rate, trip)) = found.first() {
        tell("TCP", figure(&rate.peer), figure(&trip.peer));
    }
    for (_, rate, trip) in found {
        report.push(rate);
        report.push(trip);
    }
}
