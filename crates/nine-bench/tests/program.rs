//! The program itself, with tiny sizes: every key exists, and nothing is left behind. Figures are not checked.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

const HTTP: &[&str] = &[
    "mem64_vs_nginx",
    "mem512_vs_nginx",
    "p99_vs_nginx",
    "disk_vs_nginx",
    "srpt_median_vs_fifo",
    "uniform_price",
    "idle_conn_bytes",
    "load_vs_wrk",
    "copies_4k",
    "copies_256k",
    "rounds",
    "nginx",
    "noisy",
];

const RPC: &[&str] = &[
    "small32_vs_diod",
    "small32_128conn_vs_diod",
    "depth1_vs_limit",
    "seqread_vs_limit",
    "seqread_vs_diod",
    "seqwrite_vs_diod",
    "idle_conn_bytes",
    "fid_bytes",
    "rounds",
    "diod",
    "noisy",
];

const CHANNEL: &[&str] = &[
    "empty_vs_pingpong",
    "asleep_vs_unix",
    "asleep_same_core_vs_unix",
    "big_vs_memcpy",
    "big_vs_unix",
    "slope_vs_memcpy",
    "file_slope_vs_memcpy",
    "file_slope_vs_cross_memcpy",
    "idle_wakeups",
    "adaptive_empty_vs_pingpong",
    "guest_empty_us",
    "guest_empty_vs_process",
    "guest_remote_vs_process",
    "guest_vs_virtio",
    "guest_first_line_ms",
    "guest_image_kib",
    "rounds",
    "guest_rounds",
    "diod",
    "noisy",
];

const MUX: &[&str] = &[
    "hop_depth1_vs_direct",
    "hop_depth32_vs_direct",
    "read1m_vs_direct",
    "clients_growth",
    "servers_growth",
    "both_growth",
    "walk_growth",
    "union_growth",
    "stalled_p99_ratio",
    "idle_client_bytes",
    "idle_upstream_bytes",
    "cfid_bytes",
    "rounds",
    "noisy",
];

const STREAMING: &[&str] = &[
    "read50_vs_http",
    "write50_vs_http",
    "read05_vs_http",
    "compat50_vs_http",
    "plain50_vs_http",
    "kernel_mux50_vs_http",
    "open_first_byte_rtts",
    "tree50_sftp_speedup",
    "cpu_vs_nginx",
    "fair8_worst",
    "read15_vs_http",
    "read100_vs_http",
    "read200_vs_http",
    "write05_vs_http",
    "write15_vs_http",
    "write100_vs_http",
    "write200_vs_http",
    "nginx",
    "curl",
    "openssh",
    "rsync",
    "diod",
    "noisy",
];

const STREAMS: &[&str] = &[
    "pipe_copy_vs_linux_pipe",
    "pipe_move_vs_linux_pipe",
    "rtt_vs_socketpair",
    "module_ns",
    "pipe_copy_same_core_vs_linux_pipe",
    "pipe_move_same_core_vs_linux_pipe",
    "rtt_same_core_vs_socketpair",
    "stands_small32_vs_bare",
    "stands_depth1_vs_bare",
    "stands_read_vs_bare",
    "stands_write_vs_bare",
    "stands_hop32_vs_bare",
    "il_vs_tcp",
    "il_rtt_vs_udp",
    "il_loss_vs_tcp",
    "il_loopback_vs_tcp",
    "il_loopback_same_core_vs_tcp",
    "il_rtt_cross_vs_udp",
    "il_rtt_same_core_vs_udp",
    "net_vs_relay",
    "net_4_reads_vs_relay",
    "net_same_core_vs_relay",
    "net_4_reads_same_core_vs_relay",
    "rounds",
    "noisy",
];

const AOE: &[&str] = &[
    "read64k_vs_raw",
    "read64k_vs_nbd",
    "target_vs_vblade",
    "rand4k_vs_nbd",
    "depth1_vs_raw",
    "twopath",
    "loss1_vs_clean",
    "loss01_vs_clean",
    "twopath_back_s",
    "write64k_vs_raw",
    "write64k_vs_nbd",
    "depth1_vs_nbd",
    "rounds",
    "nbdkit",
    "vblade",
    "noisy",
];

const ARCHIVE: &[&str] = &[
    "seqread_vs_disk",
    "seqwrite_vs_disk",
    "create_vs_disk",
    "dump_pause_p99_ms",
    "dump_pause_growth",
    "dump_cost",
    "dump_restic_speedup",
    "open_old_vs_today",
    "lookup_1m_vs_1k",
    "crash_start_s",
    "seqread_uncached_vs_disk",
    "remove_vs_disk",
    "dump_copied_restic_speedup",
    "seqread_uncached_warm_vs_disk",
    "rand4k_read_vs_disk",
    "rand4k_write_vs_disk",
    "unpack_vs_disk",
    "memory_per_million_files_mib",
    "store_cold_read_vs_download",
    "scrub_keeps",
    "resync_keeps",
    "no_cache_write_and_dump_vs_cached",
    "takeover_s",
    "rounds",
    "restic",
    "noisy",
];

const MOUNT: &[&str] = &[
    "seqread_vs_sshfs",
    "seqwrite_vs_sshfs",
    "rand4k_vs_sshfs",
    "untar_sshfs_speedup",
    "gitstatus_sshfs_speedup",
    "reread_vs_direct",
    "passthrough_vs_direct",
    "rounds",
    "sshfs",
    "rclone",
    "fio",
    "openssh",
    "noisy",
];

const LINES: &[&str] = &[
    "streaming-fair.svg",
    "streaming-plain.svg",
    "streaming-read.svg",
    "streaming-sizes.svg",
    "streaming-write.svg",
];

const PLOTS: &[&str] = &[
    "figure-10.svg",
    "figure-11.svg",
    "figure-12-again.svg",
    "figure-12.svg",
    "figure-8.svg",
    "figure-9.svg",
];

const GRAPHS: &[&str] = &[
    "channel-file.svg",
    "channel-host.svg",
    "channel-machine.svg",
    "channel-null.svg",
    "channel-remote.svg",
];

fn bench(args: &[&str], tmp: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nine-bench"));
    command.args(args).env("TMPDIR", tmp).output().expect("it runs")
}

#[test]
fn rpc_ends_with_every_key_of_its_result_line() {
    ends_with_every_key("rpc", RPC, &[]);
}

#[test]
fn mux_ends_with_every_key_of_its_result_line_and_every_figure() {
    ends_with_every_key("mux", MUX, PLOTS);
}

#[test]
fn streaming_ends_with_every_key_of_its_result_line_and_every_figure() {
    ends_with_every_key("streaming", STREAMING, LINES);
}

#[test]
fn http_ends_with_every_key_of_its_result_line_and_every_figure() {
    ends_with_every_key("http", HTTP, &["http-clients.svg", "http-times.svg"]);
}

#[test]
fn channel_ends_with_every_key_of_its_result_line_and_every_figure() {
    ends_with_every_key("channel", CHANNEL, GRAPHS);
}

#[test]
fn streams_ends_with_every_key_of_its_result_line() {
    ends_with_every_key("streams", STREAMS, &[]);
}

#[test]
fn aoe_ends_with_every_key_of_its_result_line() {
    ends_with_every_key("aoe", AOE, &[]);
}

#[test]
fn archive_ends_with_every_key_of_its_result_line() {
    ends_with_every_key("archive", ARCHIVE, &[]);
}

#[test]
fn mount_ends_with_every_key_of_its_result_line() {
    ends_with_every_key("mount", MOUNT, &[]);
}

fn ends_with_every_key(name: &str, expected: &[&str], plots: &[&str]) {
    let (tmp, out_dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (json, svg) = (out_dir.path().join("json"), out_dir.path().join("plots"));
    let args =
        [name, "--tiny", "--any-profile", "--json", json.to_str().unwrap(), "--plots", svg.to_str().unwrap()];
    let out = bench(&args, tmp.path());
    let (text, log) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{log}");
    let line = text.lines().last().and_then(|line| line.strip_prefix(&format!("result {name} ")));
    let result = line.expect("a result line");
    let keys: Vec<&str> = result.split(' ').map(|pair| pair.split_once('=').expect("key=value").0).collect();
    assert_eq!(keys, expected);
    // A part without peers is never left out, and a missing peer is reported.
    for missing in text.lines().filter(|line| line.contains("MISSING")) {
        let said = format!("NOT COVERED: nine-bench {name}: {missing}\n");
        std::io::Write::write_all(&mut std::io::stderr(), said.as_bytes()).unwrap();
    }
    for key in result.split(' ').filter_map(|pair| pair.strip_suffix("=na")) {
        let why = |line: &str| line.contains("MISSING") || line.contains(&format!("{key} is na"));
        assert!(text.lines().any(why), "{key}: {text}");
        assert!(
            key.contains("diod")
                || key.contains("restic")
                || key.starts_with("guest_")
                || ["streaming", "streams", "http", "aoe", "mount"].contains(&name),
            "{key}"
        );
    }
    let json: serde_json::Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    let least = if text.contains("all keys are na") { 0 } else { 11 };
    assert!(json["rows"].as_array().is_some_and(|rows| rows.len() >= least), "{json}");
    let names = |dir: &Path| {
        let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    // Without QEMU there are no machines.
    let there = |plot: &&&str| !plot.contains("machine") || !text.contains("MISSING: qemu");
    assert_eq!(names(&svg), plots.iter().filter(there).copied().collect::<Vec<_>>());
    assert_eq!(names(tmp.path()), Vec::<String>::new());
}

#[test]
fn a_signal_ends_the_servers_and_leaves_no_files() {
    ["rpc", "streaming"].into_iter().for_each(ends_by_a_signal);
}

fn ends_by_a_signal(name: &str) {
    let tmp = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_nine-bench"));
    // Use a process group of its own, so that the signal reaches only the program, as with `kill`.
    let command = command.args([name]).env("TMPDIR", tmp.path()).process_group(0);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut log = std::io::BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("the servers run") {
        line.clear();
        assert!(std::io::BufRead::read_line(&mut log, &mut line).unwrap() > 0, "it ended early");
    }
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    // EOF means that all processes with our end of the pipe have ended.
    std::io::copy(&mut log, &mut std::io::sink()).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let beside = Path::new(env!("CARGO_BIN_EXE_nine-bench")).parent().unwrap();
    for dir in [tmp.path(), beside] {
        let mut names =
            std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let left = names.find(|name| name.starts_with(&format!("nine-bench-{pid}-")));
        assert_eq!(left, None, "in {}", dir.display());
    }
}

#[test]
fn a_build_that_is_not_published_prints_no_result_line_unless_told() {
    let tmp = tempfile::tempdir().unwrap();
    let out = bench(&["rpc", "--tiny", "--only", "depth1"], tmp.path());
    let (text, log) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{log}");
    assert!(text.contains("# built with profile `dev`"), "{text}");
    assert!(!text.contains("result rpc"), "{text}");
    assert!(log.contains("--any-profile"), "{log}");
}

#[test]
fn what_it_cannot_do_is_refused_with_the_usage() {
    let tmp = tempfile::tempdir().unwrap();
    for args in [&[][..], &["nonsense"], &["rpc", "--fast"], &["mux", "--plots"]] {
        let out = bench(args, tmp.path());
        assert_eq!(out.status.code(), Some(2), "{args:?}");
        assert!(String::from_utf8_lossy(&out.stderr).contains("usage"), "{args:?}");
    }
    let list = bench(&["LIST"], tmp.path());
    assert!(String::from_utf8_lossy(&list.stdout).lines().any(|line| line.starts_with("rpc ")));
}
