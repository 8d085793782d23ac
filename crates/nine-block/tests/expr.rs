//! Expressions: random ones, and what they are built to.

mod common;

use std::sync::Arc;

use common::*;
use nine_block::{Arg, Built, Error, How, Kind, Start, Table, Tree, What, Wrong, parse};

const WORDS: [&str; 2] = ["ram", "store"];

/// Whatever comes, it is understood or pointed at.
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
    let what = match if depth == 0 { rng.below(4) } else { rng.below(14) } {
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
            // Parentheses of partitions count.
            Err(wrong) => assert!(wrong.text.starts_with("more than"), "{wrong}"),
        }
    }
}

fn how(make: bool) -> How {
    let told = Arc::new(|_: &nine_block::Event| ());
    How { block: 2, start: Start::Careful, make: make.then_some([7; 16]), told, rest: rest() }
}

/// `w0` to `w3` are disks of the world; `e` ones do not answer.
fn build(world: &mut World, text: &str, how: &How) -> Result<Built, Wrong> {
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

fn disks() -> World {
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
    ] {
        let mut world = disks();
        let built = build(&mut world, text, &how(true)).unwrap_or_else(|wrong| panic!("{wrong}"));
        assert_eq!((built.device.shape().sectors, built.device.name().as_str()), (sectors, name));
        assert_eq!(built.drivers.len(), text.contains("{w") as usize - text.contains("bare") as usize);
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
