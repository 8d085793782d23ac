//! Long runs, step by step: a fast writer against a slow reader, and control texts of any bytes.

use nine_stream::{Block, CLASSES, Halves, Modules, Pass, Stream, pipe};

use super::hands::{make, now};

/// xorshift64*.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % n
    }
}

fn known() -> Modules {
    Modules::default().with("pass", |_: &str| Ok(Halves { up: Box::new(Pass), down: Box::new(Pass) }))
}

/// The bytes at each position of the sent data. They repeat with a period that divides no other size here.
struct Pattern(Vec<u8>);

impl Pattern {
    fn new() -> Self {
        Self((0..251).cycle().take(251 + LONGEST).collect())
    }

    fn at(&self, place: usize, n: usize) -> &[u8] {
        &self.0[place % 251..][..n]
    }
}

/// Maximum size of a put, in bytes.
const LONGEST: usize = 4096;

fn fast_against_slow(depth: usize, steps: usize) {
    const BYTES: usize = 16 << 10;
    const BLOCKS: usize = 32;
    let pattern = Pattern::new();
    let make = make(BYTES, BLOCKS, known());
    let (a, b) = pipe(&make);
    for end in [&a, &b] {
        (0..depth).for_each(|_| end.push("pass").unwrap());
    }
    let mut random = Random(depth as u64 + 1);
    let (mut sent, mut seen, mut refused) = (0, 0, 0);
    for step in 0..steps {
        // Nine puts for each read: most of them are refused.
        if random.below(10) > 0 {
            let n = random.below(LONGEST);
            let mut block = make.pool.try_alloc(n).expect("there is memory for all that a stream may hold");
            block.fill(pattern.at(sent, n));
            match a.try_put(block) {
                Ok(()) => sent += n,
                Err((_, fault)) => {
                    assert_eq!(fault, None);
                    refused += 1;
                }
            }
        } else if b.waiting().1 > 0 {
            let block = now(b.read_block()).unwrap().unwrap();
            assert!(block.data() == pattern.at(seen, block.len()), "in step {step}");
            seen += block.len();
        }
        let (bytes, blocks) = b.waiting();
        assert!(bytes <= BYTES && blocks <= BLOCKS, "{bytes} bytes, {blocks} blocks in step {step}");
        // One put may wait between every two modules.
        assert!(
            sent - seen <= BYTES + 2 * depth * LONGEST,
            "{} bytes are on their way in step {step}",
            sent - seen
        );
        // Independent of the number of steps: queued blocks, the one that was just refused, and as many free ones of
        // other sizes.
        let most = (BLOCKS + 2 * depth + 1) * (CLASSES[0] + CLASSES[1] + CLASSES[2]);
        assert!(make.pool.bytes() <= most, "{} bytes in step {step}", make.pool.bytes());
    }
    assert!(refused > steps / 2, "the reader was not slow: {refused} of {steps}");
    while b.waiting().1 > 0 {
        let block = now(b.read_block()).unwrap().unwrap();
        assert!(block.data() == pattern.at(seen, block.len()));
        seen += block.len();
    }
    assert_eq!(seen, sent);
    drop((a, b));
    let all: Vec<Block> = std::iter::from_fn(|| make.pool.try_alloc(CLASSES[6])).collect();
    assert_eq!(all.len(), 4, "memory has not come back");
}

#[test]
fn a_slow_reader_keeps_everything_small() {
    for depth in [0, 1, 4] {
        fast_against_slow(depth, 40_000);
    }
}

#[test]
#[ignore = "millions of steps: `--include-ignored` runs it"]
fn a_slow_reader_keeps_everything_small_for_long() {
    for depth in [0, 1, 4, 16] {
        fast_against_slow(depth, 2_000_000);
    }
}

/// Formats the state that a control text may change.
fn shows(end: &Stream) -> String {
    format!("{:?} {:?} {} {}", end.modules(), end.waiting(), end.is_full(), end.is_ending())
}

#[test]
fn texts_of_any_bytes_change_nothing_or_what_they_say() {
    let words: [&[u8]; 10] = [
        b"push pass",
        b"pop",
        b"push",
        b"pass",
        b" ",
        b"\n",
        b"\0",
        b"\xff\xfe",
        b"hangu",
        "\u{a0}".as_bytes(),
    ];
    let (mut random, pattern) = (Random(7), Pattern::new());
    let (a, b) = pipe(&make(400, 8, known()));
    let (mut sent, mut seen, mut done) = (0, 0, [0; 2]);
    let mut mid = false;
    for step in 0..40_000 {
        let mut text = Vec::new();
        for _ in 0..random.below(4) {
            match random.below(3) {
                0 => text.extend((0..random.below(9)).map(|_| random.0 as u8 ^ 0x5a)),
                _ => text.extend(words[random.below(words.len())]),
            }
        }
        let side = random.below(2);
        let end = [&a, &b][side];
        let (before, depth) = (shows(end), end.modules().len());
        match end.control(&text) {
            Err(_) => assert_eq!(shows(end), before, "{text:?} is refused and changes something"),
            Ok(()) => {
                let said = String::from_utf8(text).expect("only text is taken");
                let is_push = said.trim().starts_with("push ");
                assert!(is_push || said.trim() == "pop", "{said:?} is taken");
                assert!(side == 1 || !mid, "{said:?} in the middle of a message");
                assert_eq!(end.modules().len(), if is_push { depth + 1 } else { depth - 1 });
                done[usize::from(is_push)] += 1;
            }
        }
        // Data passes meanwhile, sometimes with half a message before the next text.
        let n = random.below(60);
        let mut block = Block::from(pattern.at(sent, n).to_vec());
        block.delim = random.below(3) > 0;
        let ends = block.delim;
        if a.try_put(block).is_ok() {
            sent += n;
            mid = !ends;
        }
        while b.waiting().1 > 0 && random.below(4) > 0 {
            let block = now(b.read_block()).unwrap().unwrap();
            assert!(block.data() == pattern.at(seen, block.len()), "in step {step}");
            seen += block.len();
        }
    }
    assert!(done[0] > 100 && done[1] > 100, "{done:?} pops and pushes");
    while b.waiting().1 > 0 {
        seen += now(b.read_block()).unwrap().unwrap().len();
    }
    assert_eq!(seen, sent);
}

#[test]
fn the_last_module_is_not_popped_while_a_message_is_under_way() {
    let (a, b) = pipe(&make(1000, 8, known()));
    a.push("pass").unwrap();
    now(a.put(Block::from(b"half ".to_vec()))).unwrap();
    assert_eq!(a.control(b"pop").unwrap_err().to_string(), "a message is under way");
    assert_eq!(a.control(b"push pass").unwrap_err().to_string(), "a message is under way");
    assert_eq!(a.modules().len(), 1);
    let mut rest = Block::from(b"whole".to_vec());
    rest.delim = true;
    now(a.put(rest)).unwrap();
    a.control(b"pop").unwrap();
    assert_eq!(a.control(b"pop").unwrap_err().to_string(), "there is no module to pop");
    assert_eq!(super::hands::read(&b, 100), b"half whole");
}
