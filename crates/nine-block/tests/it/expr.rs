//! Expressions: random ones, and the devices built from them.

use std::future::Future;
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};

use nine_block::{
    Arg, Built, Device, Error, How, Kind, Making, Op, OpenMirrors, Proof, Start, Table, Tree, What, Wrong,
    parse,
};

use crate::common::*;

const WORDS: [&str; 2] = ["ram", "store"];

/// Any text is parsed, or gives an error with a position.
#[test]
fn no_text_is_too_strange() {
    let pieces = [
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        "p",
        "f",
        "x",
        "c",
        "j",
        "o",
        "n",
        "w",
        "e",
        "ro",
        "ram",
        "bare",
        "store",
        "buffer",
        "64M",
        "<",
        ">",
        "-",
        ".",
        "\"",
        "/",
        " ",
        "0",
        "7",
        "99999999999999999999",
        "<0-3>",
        "<9-2>",
        "é",
        "\n",
        "\u{0}",
        "w\"a\"",
        "e1.2",
        "{w0w1}",
    ];
    let mut rng = Rng(3);
    for _ in 0..20_000 {
        let text: String =
            (0..rng.below(14)).map(|_| pieces[rng.below(pieces.len() as u64) as usize]).collect();
        match parse(&text, &WORDS) {
            Ok(tree) => assert_eq!(parse(&tree.to_string(), &WORDS), Ok(tree), "{text}"),
            Err(wrong) => {
                assert!(text.is_char_boundary(wrong.at), "{text:?} {wrong:?}");
                assert_eq!(wrong.to_string().lines().count(), 3, "{wrong}");
            }
        }
    }
    for _ in 0..20_000 {
        let bytes: Vec<u8> = (0..rng.below(20)).map(|_| rng.bits() as u8).collect();
        drop(parse(&String::from_utf8_lossy(&bytes), &WORDS));
    }
    assert!(parse(&"(".repeat(5000), &WORDS).is_err());
    assert!(parse(&"(".repeat(4000), &WORDS).is_err());
}

fn tree(rng: &mut Rng, depth: u64) -> Tree {
    let some = |least: u64, most: u64, rng: &mut Rng| -> Vec<Tree> {
        (0..least + rng.below(most - least + 1)).map(|_| tree(rng, depth - 1)).collect()
    };
    let what = match if depth == 0 { rng.below(4) } else { rng.below(15) } {
        0 => What::Leaf("n".into(), Arg::None),
        1 => What::Leaf("o".into(), Arg::None),
        2 => {
            let letter = ["w", "h", "m", "a", "r", "l", "e", "b", "ram", "store"][rng.below(10) as usize];
            let count = 1 + rng.below(3);
            What::Leaf(letter.into(), Arg::Numbers((0..count).map(|_| rng.below(1000)).collect()))
        }
        3 => What::Leaf("w".into(), Arg::Text(["/dev/sda", "a b", "é)"][rng.below(3) as usize].into())),
        4 => What::Of("(", some(2, 4, rng)),
        5 => What::Of("[", some(2, 4, rng)),
        6 => What::Of("{", some(2, 4, rng)),
        7 => What::Of("bare", some(1, 3, rng)),
        8 => What::Of("ro", some(1, 1, rng)),
        9 => What::Of(["f", "x"][rng.below(2) as usize], some(1, 1, rng)),
        10 => What::Of(["c", "j"][rng.below(2) as usize], some(2, 2, rng)),
        11 => What::Named(Box::new(some(1, 1, rng).remove(0)), "other part".into()),
        12 => What::Buffer(rng.bits() >> rng.below(64) << rng.below(45), Box::new(some(1, 1, rng).remove(0))),
        _ => What::Part(Box::new(some(1, 1, rng).remove(0)), rng.below(200), rng.bits()),
    };
    Tree { at: 0, what }
}

#[test]
fn a_tree_is_parsed_as_it_is_shown() {
    let mut rng = Rng(4);
    for _ in 0..3000 {
        let depth = rng.below(5);
        let tree = tree(&mut rng, depth);
        match parse(&tree.to_string(), &WORDS) {
            Ok(parsed) => assert_eq!(parsed, tree, "{tree}"),
            // The parentheses of partitions count as devices.
            Err(wrong) => assert!(wrong.text.starts_with("more than"), "{wrong}"),
        }
    }
}

pub fn how(make: bool) -> How {
    let told = Arc::new(|_: &nine_block::Event| ());
    let make = make.then_some([7; 16]);
    let mirrors = OpenMirrors::default();
    How { block: 2, start: Start::Careful, watch: false, make, told, rest: rest(), owned: false, mirrors }
}

/// `w0` to `w3` are disks of the world; `e` disks do not answer.
pub fn build(world: &mut World, text: &str, how: &How) -> Result<Built, Wrong> {
    let mut table = Table::default();
    let disks = world.devices();
    table.letter("w", move |arg| {
        let Arg::Numbers(numbers) = arg else { panic!("no numbers") };
        let disk = disks[numbers[0] as usize].clone();
        Box::pin(async move { Ok(disk) })
    });
    table.letter("e", |_| Box::pin(async { Err(Error::new(Kind::Down, "no answer")) }));
    world.run(table.build(text, how)).unwrap()
}

pub fn disks() -> World {
    World::new(1, (0..4).map(|at| Disk::new(&format!("w{at}"), 400)).collect())
}

#[test]
fn expressions_are_built() {
    for (text, sectors, name) in [
        ("w0", 400, "w0"),
        ("(w0w1)", 800, "(w0w1)"),
        ("[w0w1ram100]", 300, "[w0w1ram100]"),
        ("p(w0)25.50", 200, "p(w0)25.50"),
        ("p(w0)25.120", 240, "p(w0)25.120"),
        ("bare{w<0-2>}", 400, "bare{w0w1w2}"),
        ("roram5", 5, "roram5"),
        ("{w0w1}", 272, "{w0w1}"),
        ("f{w2w3}", 268, "f{w2w3}"),
        ("(buffer 1M w0 w1)", 800, "(buffer 1M w0w1)"),
    ] {
        let mut world = disks();
        let built = build(&mut world, text, &how(true)).unwrap_or_else(|wrong| panic!("{wrong}"));
        assert_eq!((built.device.shape().sectors, built.device.name().as_str()), (sectors, name));
        let is_driven = (text.contains("{w") || text.contains("buffer")) && !text.contains("bare");
        assert_eq!(built.drivers.len(), usize::from(is_driven));
        let again = build(&mut world, text, &how(false)).unwrap_or_else(|wrong| panic!("{wrong}"));
        assert_eq!(again.device.shape().sectors, sectors);
        assert!(again.device.status().lines().count() > 0);
    }
}

#[test]
fn what_cannot_be_built_is_pointed_at() {
    for (text, said) in [
        ("(w0b7)", "column 4: no device `b` is known here; these are: e, n, ram, w\n    (w0b7)\n       ^"),
        ("{w0b7}", "column 4: no device `b` is known here; these are: e, n, ram, w\n    {w0b7}\n       ^"),
        ("cw0w1", "column 1: nobody here makes `c` of devices\n    cw0w1\n    ^"),
        ("(w0e1.2)", "column 4: no answer\n    (w0e1.2)\n       ^"),
        (
            "xw0",
            "column 1: `x` exchanged bytes for machines of another order; our disks have one order\n    xw0\n    ^",
        ),
        ("p(w0)60.50", "column 1: sectors 240+200 are not among the 400 of w0\n    p(w0)60.50\n    ^"),
        ("ram\"x\"", "column 1: a number of sectors is expected\n    ram\"x\"\n    ^"),
    ] {
        let wrong = build(&mut disks(), text, &how(false)).map(|_| ()).expect_err(text);
        assert_eq!(wrong.to_string(), said);
    }
}

#[test]
fn a_mirror_starts_without_a_member_that_does_not_answer_when_told() {
    let mut world = disks();
    drop(build(&mut world, "{w0w1}", &how(true)).map(drop));
    let careful = build(&mut world, "{w0e1.0}", &how(false)).map(|_| ()).expect_err("it may be newer");
    assert_eq!(careful.text, "{w0e1.0}: e1.0 may have what is newer, and cannot be used: no answer");
    let anyway = How { start: Start::Anyway, ..how(false) };
    let built = build(&mut world, "{w0e1.0}", &anyway).unwrap_or_else(|wrong| panic!("{wrong}"));
    world.run(built.device.write(0, tagged(1, 0, 1))).unwrap().unwrap();
    assert!(built.device.status().contains("1 out: no answer"), "{}", built.device.status());
}

/// Another program writes, sets a member aside and lets it return. A watching program never writes, and sees the newest
/// data.
#[test]
fn what_another_program_writes_is_watched() {
    let mut world = disks();
    let text = "f{w0w1}";
    let writer = build(&mut world, text, &how(true)).unwrap_or_else(|wrong| panic!("{wrong}"));
    world.run(writer.device.write(0, tagged(1, 0, 4))).unwrap().unwrap();
    let image = |world: &World| -> Vec<_> {
        (0..2)
            .flat_map(|disk| (0..400).map(move |at| (disk, at)))
            .map(|(disk, at)| world.disks[disk].peek(at))
            .collect()
    };
    let before = image(&world);
    let watch = How { watch: true, ..how(false) };
    let watched = build(&mut world, text, &watch).unwrap_or_else(|wrong| panic!("{wrong}")).device;
    assert!(watched.shape().read_only && watched.shape().sectors == writer.device.shape().sectors);
    let read = |world: &mut World, proof: Option<Proof>| {
        let bytes = world.run(watched.read_proven(0, 1, proof)).unwrap();
        bytes.map(|bytes| tag(&bytes, 0))
    };
    assert_eq!(read(&mut world, None), Ok(1));
    assert!(world.run(watched.write(8, tagged(9, 8, 2))).unwrap().is_err());
    world.run(watched.look()).unwrap().unwrap();
    world.run(watched.flush()).unwrap().unwrap();
    assert!(image(&world) == before, "who watches has written");
    // The first member fails and is set aside: later data is on the other one.
    world.disks[0].fail(Op::Write, Kind::Failed);
    world.run(writer.device.write(4, tagged(2, 4, 4))).unwrap().unwrap();
    let of = |watched: &Arc<dyn Device>, world: &mut World, proof| {
        world.run(watched.read_proven(4, 1, proof)).unwrap().map(|bytes| tag(&bytes, 4))
    };
    let right = Proof::new(1, |_, bytes: &[u8]| tag(bytes, 4) == 2);
    assert_eq!(of(&watched, &mut world, Some(right)), Ok(2), "the other member has it");
    world.run(watched.look()).unwrap().unwrap();
    assert_eq!(of(&watched, &mut world, None), Ok(2), "the labels say which member has everything");
    world.disks[1].always(Some(Kind::Failed));
    assert!(of(&watched, &mut world, None).is_err(), "what a member lacks is not taken from it");
}

#[test]
fn a_member_that_was_set_aside_is_not_waited_for() {
    let mut world = disks();
    let built = build(&mut world, "{w0w1}", &how(true)).unwrap_or_else(|wrong| panic!("{wrong}"));
    world.disks[1].fail(Op::Write, Kind::Failed);
    world.run(built.device.write(0, tagged(1, 0, 1))).unwrap().unwrap();
    drop(built);
    let mut table = Table::default();
    let disks = world.devices();
    table.letter("w", move |arg| {
        let Arg::Numbers(numbers) = arg else { panic!("no numbers") };
        match numbers[0] {
            // This device never answers.
            1 => Box::pin(std::future::pending()),
            n => std::future::ready(Ok(disks[n as usize].clone())).boxed(),
        }
    });
    let built =
        world.run(table.build("{w0w1}", &how(false))).unwrap().unwrap_or_else(|wrong| panic!("{wrong}"));
    assert!(built.device.status().contains("1 out: "), "{}", built.device.status());
    let read = world.run(built.device.read(0, 1)).unwrap().unwrap();
    assert_eq!(tag(&read, 0), 1);
    // A member that is in is waited for.
    let how = how(false);
    let mut waits = std::pin::pin!(table.build("{w1w0}", &how));
    for _ in 0..1000 {
        world.turn();
        assert!(waits.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }
}

/// Another program may be writing to a reserved member; and an unsupported device will not appear later.
#[test]
fn no_mirror_starts_without_a_member_that_another_has() {
    for (kind, starts) in [(Kind::Reserved, false), (Kind::Unsupported, false), (Kind::Failed, true)] {
        let mut world = disks();
        drop(build(&mut world, "{w0w1}", &how(true)).map(drop));
        let anyway = How { start: Start::Anyway, ..how(false) };
        let mut table = Table::default();
        let disk = world.devices().remove(0);
        table.letter("w", move |_| std::future::ready(Ok(disk.clone())).boxed());
        table.letter("e", move |_| std::future::ready(Err(Error::new(kind, "no"))).boxed());
        let built = world.run(table.build("{w0p(e1.0)0.50}", &anyway)).unwrap();
        assert_eq!(built.is_ok(), starts, "{kind:?}");
    }
}

/// The future type of a table.
trait Boxed: Future<Output = nine_block::Result<Arc<dyn Device>>> + Send + Sized + 'static {
    fn boxed(self) -> Making {
        Box::pin(self)
    }
}

impl<F: Future<Output = nine_block::Result<Arc<dyn Device>>> + Send + 'static> Boxed for F {}

#[test]
fn a_member_that_was_missing_at_the_start_comes_back_without_a_restart() {
    let mut world = disks();
    let wait = |world: &mut World| (0..2000).for_each(|_| assert!(world.turn()));
    let built = build(&mut world, "{w0w1}", &how(true)).unwrap_or_else(|wrong| panic!("{wrong}"));
    world.beside.extend(built.drivers);
    wait(&mut world);
    built.device.control(&["aside", "1"]).unwrap();
    wait(&mut world);
    world.cut(Keep::Nothing);
    let (there, tries) =
        (Arc::new(Mutex::new(Err(Error::new(Kind::Down, "no answer")))), Arc::new(Mutex::new(0)));
    let mut table = Table::default();
    let (disks, opens, tried) = (world.devices(), there.clone(), tries.clone());
    table.letter("w", move |_| std::future::ready(Ok(disks[0].clone())).boxed());
    table.letter("e", move |_| {
        *tried.lock().unwrap() += 1;
        std::future::ready(opens.lock().unwrap().clone()).boxed()
    });
    let built = world.run(table.build("{w0(e1.0)}", &how(false))).unwrap();
    let Built { device, drivers } = built.unwrap_or_else(|wrong| panic!("{wrong}"));
    assert_eq!(*tries.lock().unwrap(), 1, "who waited once for it does not wait again");
    world.beside.extend(drivers);
    world.run(device.write(0, tagged(1, 0, 1))).unwrap().unwrap();
    device.control(&["return", "1"]).unwrap();
    wait(&mut world);
    assert_eq!(*tries.lock().unwrap(), 2);
    assert!(device.status().contains("1 out: no answer"), "{}", device.status());
    *there.lock().unwrap() = Ok(world.devices().remove(1));
    device.control(&["return", "1"]).unwrap();
    wait(&mut world);
    assert!(device.status().contains("1 in"), "{}", device.status());
    assert_eq!(tag(&world.disks[1].peek(128), 0), 1);
    assert_eq!(*tries.lock().unwrap(), 3);
}

#[test]
fn a_buffer_has_what_is_written_until_some_time_has_passed() {
    let mut world = disks();
    let built = build(&mut world, "buffer 1M w0", &how(false));
    let Built { device, drivers } = built.unwrap_or_else(|wrong| panic!("{wrong}"));
    let mut call = device.write(0, tagged(1, 0, 2));
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(std::pin::Pin::new(&mut call).poll(&mut cx).is_ready());
    assert!(
        device
            .status()
            .starts_with("buffer 1M w0 400 sectors\n  blocks 1 of 1024, of 1024 bytes, 1 dirty, 0 in runs\n")
    );
    world.beside.extend(drivers);
    (0..5).for_each(|_| assert!(world.turn()));
    assert_eq!(tag(&world.disks[0].peek(1), 1), 1);
    assert!(device.status().contains("w0 cached, 0 blocks dirty\n"), "{}", device.status());

    // Another owner has reserved the device.
    world.disks[0].fail(Op::Write, Kind::Reserved);
    world.run(device.write(4, tagged(2, 4, 2))).unwrap().unwrap();
    assert_eq!(world.run(device.flush()).unwrap().unwrap_err().kind, Kind::Reserved);
    assert!(device.status().contains("cached, 1 blocks dirty, not written now: "), "{}", device.status());
    device.control(&["resume"]).unwrap();
    world.run(device.flush()).unwrap().unwrap();
    world.disks[0].fail(Op::Write, Kind::Failed);
    world.run(device.write(6, tagged(3, 6, 2))).unwrap().unwrap();
    assert_eq!(world.run(device.flush()).unwrap().unwrap_err().kind, Kind::Failed);
    assert!(device.status().contains("1 blocks may be lost: 3\n"), "{}", device.status());
    let error = device.control(&["restart"]).unwrap_err();
    assert!(error.text.ends_with("; buffer 1M w0 knows `resume`"), "{error}");
}
