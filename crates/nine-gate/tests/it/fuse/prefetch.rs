//! Lookups in directories of a server far away.

use super::*;

/// Mounts a distant server with the files `/d/0` to `/d/9`, looks up two of them, and waits for the prefetch of the
/// others.
fn prefetched() -> Option<Mounted> {
    let names: Vec<String> = (0..10).map(|n| n.to_string()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let server = Liar::with([("/d", dir(2, &names)), ("/d/sub", Lie { far: true, ..dir(3, &[]) })]).tells();
    for (n, name) in names.iter().enumerate() {
        server.set(&format!("/d/{name}"), Lie { far: true, ..plain(n as u64 + 10, "text") });
    }
    let mounted = Mounted::new(server)?;
    assert_eq!(mounted.stat("d/0").unwrap().len(), 4);
    assert_eq!(mounted.stat("d/1").unwrap().len(), 4);
    until("all are walked to", || names.iter().all(|name| mounted.walks(&format!("/d/{name}")) > 0));
    // The attributes of the last one have arrived when another request has been answered.
    assert!(mounted.stat("none").is_err());
    Some(mounted)
}

impl Mounted {
    fn walks(&self, path: &str) -> usize {
        lock(&self.server.walked).iter().filter(|walked| *walked == path).count()
    }
}

#[test]
fn the_files_of_a_distant_directory_are_looked_up_together() {
    let Some(mounted) = prefetched() else { return };
    for n in 2..10 {
        assert_eq!(mounted.stat(&format!("d/{n}")).unwrap().len(), 4);
    }
    let walks: usize = (2..10).map(|n| mounted.walks(&format!("/d/{n}"))).sum();
    assert_eq!(walks, 8, "one for each");
    assert!(mounted.stat("d/none").is_err());
}

#[test]
fn a_change_that_the_server_reports_is_seen_in_prefetched_files() {
    let Some(mounted) = prefetched() else { return };
    mounted.server.set("/d/5", plain(15, "new and longer"));
    mounted.server.remove("/d/6");
    mounted.server.tell([Change::Write(at("/d/5")), Change::Remove(at("/d/6"))]);
    // The report of a later change has arrived.
    mounted.server.set("/flag", plain(99, "1"));
    assert_eq!(mounted.stat("flag").unwrap().len(), 1);
    mounted.server.set("/flag", plain(99, "22"));
    mounted.server.tell([Change::Write(at("/flag"))]);
    until("the changes are seen", || mounted.stat("flag").unwrap().len() == 2);
    assert_eq!(mounted.stat("d/5").unwrap().len(), 14);
    assert!(mounted.stat("d/6").is_err());
    assert_eq!(mounted.stat("d/7").unwrap().len(), 4);
}

#[test]
fn a_change_by_this_mount_is_seen_in_prefetched_files() {
    let Some(mounted) = prefetched() else { return };
    mounted.ends("d/5", |path| File::options().append(true).open(path)?.write_all(b" and more")).unwrap();
    mounted.ends("d/new", |path| File::create_new(path)?.write_all(b"new")).unwrap();
    for (name, len) in [("d/5", 13), ("d/new", 3), ("d/6", 4)] {
        assert_eq!(mounted.stat(name).unwrap().len(), len, "{name}");
    }
}
