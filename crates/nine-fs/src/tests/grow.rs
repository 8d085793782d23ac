//! A full worm that grows.

use nine_block::Growing;

use super::*;

#[test]
fn a_dump_that_had_no_room_goes_on_when_the_worm_grows() {
    let mut bench = Bench::new(1 << 18, 8192, true);
    let small: Arc<dyn Device> = Arc::new(Ram::new(4096));
    let growing = Arc::new(Growing::new(small.clone()));
    // Both devices are new, because test archives share one identity, and stale data on c would be accepted.
    (bench.c, bench.w) = (Arc::new(Ram::new(1 << 18)), growing.clone());
    bench.make_again();
    let file = bench.make(ROOT, "file", mode::S_IFREG);
    bench.write(file, 0, &noise(1, 6_000_000));
    let dump = bench.dump();
    let archive = bench.archive.clone();
    let said = bench.run(archive.copied()).unwrap_err();
    assert!(said.to_string().contains("w is full"), "{said}");
    let said = bench.run(archive.command("grow w\"b\"")).unwrap_err();
    assert!(said.to_string().contains("nothing can be put"), "{said}");
    // First there is no new device, then there is.
    bench.run(archive.command("grow")).unwrap();
    let more: Arc<dyn Device> = Arc::new(Ram::new(30_000));
    let (to, new) = (growing.clone(), more.clone());
    archive.grows_by(Arc::new(move |words| {
        let added = match words {
            "more" => to.add(new.clone()).map_err(|error| error.to_string()),
            words => Err(format!("`{words}` is no device")),
        };
        Box::pin(std::future::ready(added))
    }));
    let said = bench.run(archive.command("grow less")).unwrap_err();
    assert!(said.to_string().contains("is no device"), "{said}");
    bench.run(archive.command("grow more")).unwrap();
    bench.copied_in_the_end();
    bench.settle();
    bench.sync();
    // Reopened on both devices, all is there; on the first alone it is refused.
    bench.again();
    assert!(bench.read(Some(dump.generation), file) == noise(1, 6_000_000));
    bench.check();
    let archive = bench.archive.clone();
    bench.run(archive.close()).unwrap();
    let refused = ready(Archive::open(bench.c.clone(), small, &bench.settings)).map(drop).unwrap_err();
    assert!(refused.to_string().contains("what has been put behind it is missing"), "{refused}");
}

#[test]
fn devices_are_told_and_say_what_they_are() {
    let mut bench = Bench::new(1 << 18, 8192, true);
    let archive = bench.archive.clone();
    let said = bench.run(archive.command("worm scrub")).unwrap_err();
    assert!(said.to_string().contains("knows no `scrub`"), "{said}");
    assert!(bench.run(archive.command("cache")).is_err());
}

#[test]
fn what_is_counted_has_names_and_dumps_can_be_turned_off() {
    let mut bench = Bench::new(1 << 18, 8192, true);
    let archive = bench.archive.clone();
    let value = |archive: &Archive, name: &str| {
        let all = archive.figures();
        all.into_iter().find(|figure| figure.name == name).map(|figure| figure.value).unwrap()
    };
    assert_eq!(value(&archive, "dumps"), 0.0);
    bench.make(ROOT, "file", mode::S_IFREG);
    bench.dump();
    assert_eq!(value(&archive, "dumps"), 1.0);
    assert!(value(&archive, "commits_total") > 0.0 && value(&archive, "last_dump_seconds") > 1e9);
    let all = archive.figures();
    let is_name = |name: &str| name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
    assert!(all.iter().all(|figure| is_name(figure.name) && figure.value.is_finite()));
    archive.schedule("every 1h").unwrap();
    bench.run(archive.command("dumpctl off")).unwrap();
    assert!(archive.status().contains("dumpctl off"));
    bench.clock.fetch_add(100_000, Ordering::Relaxed);
    bench.settle();
    assert_eq!(value(&archive, "dumps"), 1.0);
    bench.run(archive.command("dumpctl on")).unwrap();
    bench.clock.fetch_add(100_000, Ordering::Relaxed);
    bench.settle();
    assert_eq!(value(&archive, "dumps"), 2.0);
    assert!(bench.run(archive.command("dumpctl yes")).is_err());
    bench.run(archive.command("attach off")).unwrap();
    assert!(archive.status().contains("nobody new"));
}
