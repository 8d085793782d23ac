//! Compares our clients with wrk: both request the same file of the same server, in turns, and should measure the same.

use std::ffi::OsStr;
use std::io;
use std::time::Duration;

use super::load;
use super::set::RequestMix;
use super::{HttpContest, NAMES};
use crate::child::ChildProcess;
use crate::peers::find;
use crate::place::CpuPlacement;
use crate::report::{BenchReport, ReportRow};
use crate::scratch::ScratchDir;
use crate::stats::quantile;

const CLIENTS: [usize; 2] = [8, 64];

/// Requests a second, their median time, and the 99th percentile, us.
type LoadFigures = [f64; 3];

pub fn measure(contest: &HttpContest, report: &mut BenchReport) -> io::Result<()> {
    if find("wrk").is_none() {
        report.notes.push("wrk is MISSING (Debian package wrk): load_vs_wrk is na".into());
        return Ok(());
    }
    let run = ScratchDir::new()?;
    let log = run.path().join("wrk.log");
    let (path, mut mix) = RequestMix::one();
    // wrk's shortest duration is one second.
    let seconds = contest.pace.of(4, 2, 1);
    for (name, web) in NAMES.into_iter().zip(&contest.servers).take(2) {
        let Some(web) = web else { continue };
        CpuPlacement::Cross.arrange(&[web.child.pid()])?;
        for clients in CLIENTS {
            let (mut ours, mut wrks): (Vec<LoadFigures>, Vec<LoadFigures>) = Default::default();
            let rounds = contest.pace.of(11, 5, 0);
            for round in 0..=rounds {
                let seen = load::run(web.addr, clients, &mut mix, Duration::from_secs(seconds))?;
                let time = |share| quantile(&seen.times, share).unwrap_or_default();
                let [connections, duration] = [format!("-c{clients}"), format!("-d{seconds}s")];
                let url = format!("http://{}{path}", web.addr);
                let words = ["wrk", "-t1", &connections, &duration, "--latency", &url].map(OsStr::new);
                let ended = ChildProcess::program(&words, &log)?.wait(Duration::from_secs(seconds + 30))?;
                let said = std::fs::read_to_string(&log)?;
                let saw = saw(&said).filter(|_| ended.success()).ok_or(io::Error::other(said))?;
                // The first round is a warm-up, unless it is the only one.
                if round > 0 || rounds == 0 {
                    ours.push([seen.rate(), time(0.5), time(0.99)]);
                    wrks.push(saw);
                }
            }
            for (at, (what, unit)) in
                [("requests", "1/s"), ("median", "us"), ("99th", "us")].into_iter().enumerate()
            {
                let of = |saw: &[LoadFigures]| saw.iter().map(|saw| saw[at]).collect();
                let what = format!("{what} of {name}, our clients, wrk, {clients} clients");
                let row = ReportRow { what, unit, ours: of(&ours), peer: of(&wrks), ..ReportRow::default() };
                if (name, clients, at) == (NAMES[1], 64, 0) {
                    report.key("load_vs_wrk", row.vs_peer());
                }
                report.push(row);
            }
        }
    }
    Ok(())
}

/// Parses wrk's output. Returns `None` if any answer was not successful.
fn saw(said: &str) -> Option<LoadFigures> {
    let value = |name: &str| said.lines().find_map(|line| line.trim().strip_prefix(name)).map(str::trim);
    if said.contains("Socket errors") || said.contains("Non-2xx") {
        return None;
    }
    Some([value("Requests/sec:")?.parse().ok()?, micros(value("50%")?)?, micros(value("99%")?)?])
}

fn micros(time: &str) -> Option<f64> {
    let units = [("us", 1.0), ("ms", 1e3), ("s", 1e6)];
    let (digits, unit) = units.iter().find_map(|(name, unit)| Some((time.strip_suffix(name)?, unit)))?;
    Some(digits.parse::<f64>().ok()? * unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_wrk_says_is_understood() {
        let said =
            "  Latency Distribution\n     50%  812.00us\n     99%    1.50ms\nRequests/sec:  78012.34\n";
        assert_eq!(saw(said), Some([78012.34, 812.0, 1500.0]));
        assert_eq!(saw(&format!("{said}  Non-2xx or 3xx responses: 3\n")), None);
        assert_eq!(micros("2.00s"), Some(2e6));
    }
}
