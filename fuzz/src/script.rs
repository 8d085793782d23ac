//! Name space files, and lines for a mux's ctl file.

use std::io;
use std::sync::Arc;

use nine_mux::script::{Alone, Script, WRONG_MAX, World, parse};

/// Arbitrary text, and text made of the tokens of scripts. Parsing ends, a parsed statement prints as a line with the
/// same meaning, and errors are single lines.
pub fn script(data: &[u8]) {
    check(&String::from_utf8_lossy(data));
    check(&data.iter().map(|&byte| PIECES[usize::from(byte) % PIECES.len()]).collect::<String>());
}

fn check(text: &str) {
    let Script { lines, wrong } = parse("f", text, &mut Tails(text, 0));
    assert!(wrong.len() <= WRONG_MAX);
    assert!(wrong.iter().all(|wrong| !wrong.to_string().contains('\n')), "an error of several lines");
    for line in lines {
        let shown = line.to_string();
        let again = parse("g", &shown, &mut Alone);
        assert_eq!(again.wrong, [], "{shown}");
        let [same] = &*again.lines else { panic!("{shown}: {:?}", again.lines) };
        assert_eq!(same.statement, line.statement, "{shown}");
    }
}

/// Each included file is a suffix of the first one, a bit shorter each time. The value of a variable is its name.
struct Tails<'a>(&'a str, usize);

impl World for Tails<'_> {
    fn include(&mut self, _: &str, _: &str) -> io::Result<(Arc<str>, String)> {
        self.1 += 1;
        let tail: String = self.0.chars().skip(self.1).collect();
        Ok((self.1.to_string().into(), tail))
    }

    fn variable(&self, name: &str) -> Option<String> {
        (name.len() < 20).then(|| name.into())
    }
}

const PIECES: &[&str] = &[
    "mount ",
    "bind ",
    "unmount ",
    "listen ",
    "space ",
    "hangup ",
    "nomux",
    "\n",
    "\n",
    " ",
    " ",
    "'",
    "'",
    "''",
    "/",
    "/a",
    " /b",
    "ram: ",
    "tcp!h ",
    "-a ",
    "-bd ",
    "-c ",
    "-n ",
    "4 ",
    "-u ",
    ". ",
    "-insecure",
    "A=",
    "$A",
    "${A}",
    "$",
    "=",
    "#",
    "-",
    "x",
    "\u{e9}",
    "\u{7}",
    "..",
];
