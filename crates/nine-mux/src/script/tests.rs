//! Valid scripts, and scripts with each kind of error.

use super::*;

/// Included files by name, and variables.
#[derive(Default)]
struct Fake {
    files: Vec<(&'static str, String)>,
    variables: Vec<(&'static str, &'static str)>,
}

impl World for Fake {
    fn include(&mut self, name: &str, _: &str) -> io::Result<(Arc<str>, String)> {
        let found = self.files.iter().find(|(file, _)| *file == name);
        found.map(|(_, text)| (name.into(), text.clone())).ok_or(io::ErrorKind::NotFound.into())
    }

    fn variable(&self, name: &str) -> Option<String> {
        self.variables.iter().find(|(of, _)| *of == name).map(|(_, value)| value.to_string())
    }
}

fn shown(text: &str) -> Vec<String> {
    let script = parse("f", text, &mut Fake::default());
    assert_eq!(script.wrong, [], "{text}");
    script.lines.iter().map(Line::to_string).collect()
}

/// Parses a script with exactly one error, and returns its text.
fn wrong(text: &str) -> String {
    let script = parse("f", text, &mut Fake::default());
    let [wrong] = &*script.wrong else { panic!("{text}: {:?}", script.wrong) };
    wrong.to_string()
}

#[test]
fn every_statement_is_shown_as_it_is_written() {
    let text = "\
mount ram: /
mount -ac -n 4 -u . tcp!fs.lab!564 /n/lab main
mount -a -r -t 5 -P -n 2 tcp!fs.lab!564 /n/far
mount -bd -u 'glenda o''hara' unix!/run/x /n/y
bind /n/lab/bin /bin
bind -acd '/a b' /c
unmount /bin
unmount tcp!fs.lab!564 /n/lab
listen tls!*!5640
listen tcp!*!564 -insecure
space guest rob ken
mount disk:/srv/public /
nomux
hangup tcp!fs.lab!564";
    assert_eq!(shown(text), text.lines().collect::<Vec<_>>());
}

#[test]
fn flags_may_stand_together_or_alone_and_a_quoted_dash_is_none() {
    assert_eq!(shown("mount -a -c -n 2 ram: /x"), ["mount -ac -n 2 ram: /x"]);
    assert_eq!(shown("mount -acn 2 ram: /x"), ["mount -ac -n 2 ram: /x"]);
    assert_eq!(shown("mount -arP ram: /x"), ["mount -a -r -P ram: /x"]);
    assert_eq!(shown("listen -insecure tcp!*!1"), ["listen tcp!*!1 -insecure"]);
    assert_eq!(shown("listen -poll shm!/x"), ["listen shm!/x -poll"]);
    assert_eq!(shown("listen -srpt http!*!80 -host a.b"), ["listen http!*!80 -srpt -host a.b"]);
    assert_eq!(shown("listen -password p cec!eth0 -shelf 3"), ["listen cec!eth0 -password p -shelf 3"]);
    assert_eq!(shown("mount '-a' /x"), ["mount '-a' /x"]);
    assert_eq!(shown("unmount - /x"), ["unmount '-' /x"]);
}

#[test]
fn words_are_quoted_as_in_rc() {
    assert_eq!(
        shown("  mount\t'fs:c w\"a b\"' /it''s' a'''x # and so on\n# nothing\n\n"),
        ["mount 'fs:c w\"a b\"' '/its a''x'"]
    );
    assert_eq!(shown("bind /a#b /c"), ["bind '/a#b' /c"]);
}

#[test]
fn variables_are_the_script_s_own_before_those_of_the_environment() {
    let mut world = Fake { variables: vec![("HOST", "there"), ("DIR", "/a b")], ..Fake::default() };
    let text = "mount tcp!$HOST!564 $DIR\nHOST='my'${HOST}\nmount tcp!${HOST}x /n\nA=\nbind /$A /'$A'";
    let script = parse("f", text, &mut world);
    assert_eq!(script.wrong, []);
    let lines: Vec<_> = script.lines.iter().map(Line::to_string).collect();
    assert_eq!(lines, ["mount tcp!there!564 '/a b'", "mount tcp!mytherex /n", "bind / '/$A'"]);
}

#[test]
fn lines_are_about_the_space_before_them_also_across_files() {
    let mut world = Fake { files: vec![("g", "bind /a /b\nspace guest\n".into())], ..Fake::default() };
    let script = parse("f", "bind /1 /2\n. g\nbind /3 /4", &mut world);
    assert_eq!(script.wrong, []);
    let places: Vec<_> = script.lines.iter().map(|line| format!("{} {}", line.at, line.space)).collect();
    assert_eq!(places, ["f:1 main", "g:1 main", "g:2 guest", "f:3 guest"]);
}

#[test]
fn files_that_include_each_other_in_a_circle_are_told() {
    let mut world =
        Fake { files: vec![("g", ". h".into()), ("h", "\n. g\nbind /a /b".into())], ..Fake::default() };
    let script = parse("f", ". g", &mut world);
    assert_eq!(script.wrong.len(), 1);
    let said = script.wrong[0].to_string();
    assert_eq!(said, "h:2:1: `. g` leads round in a circle; g is being read already");
    assert_eq!(script.lines.len(), 1, "what stands after it is still read");
    // Not a cycle, but too deep.
    struct Deeper(u32);
    impl World for Deeper {
        fn include(&mut self, _: &str, _: &str) -> io::Result<(Arc<str>, String)> {
            self.0 += 1;
            Ok((self.0.to_string().into(), ". x".into()))
        }
        fn variable(&self, _: &str) -> Option<String> {
            None
        }
    }
    let script = parse("f", ". x", &mut Deeper(0));
    assert!(script.wrong[0].to_string().contains("too deep"), "{:?}", script.wrong);
}

#[test]
fn an_error_says_where_what_is_wrong_and_what_was_expected() {
    for (text, said) in [
        ("mount ram:", "f:1:1: `mount` with one word; write: mount [-abcdrP]"),
        ("\n\nmont ram: /", "f:3:1: `mont` is not known; a line begins with mount, bind"),
        ("  mont ram: /", "f:1:3: `mont` is not known"),
        ("unmuont /x", "; did you mean `unmount`?"),
        ("listen tcp!h!1 -insecrue", "f:1:16: `-insecrue` is not known"),
        ("listen tcp!h!1 -insecrue", "; did you mean `-insecure`?"),
        ("mount ram: x", "f:1:12: OLD is `x`; a path that begins with `/` is due"),
        ("bind /a /b/../c", "`/b/../c` has a `..` in it; a mount point is named without"),
        ("bind -n 3 /a /b", "`-n` is not known to bind; write: bind [-abcd] NEW OLD"),
        ("mount -ab ram: /", "-a and -b; only one of them may stand"),
        ("mount -x ram: /", "`-x` is not known to mount"),
        ("mount -C ram: /", "-C (caching) is not there yet; mount without it"),
        ("mount -rt x ram: /", "`-t x`; a number of seconds from 0 to 86400 is due"),
        ("mount -t 3 ram: /", "-t says how long requests wait; it stands with -r"),
        ("bind -P /a /b", "`-P` is not known to bind"),
        ("mount -n 0 ram: /", "`-n 0`; a number of connections from 1 to 64 is due"),
        ("mount -n ram: /", "`-n ram:`; a number"),
        ("mount -na 3 ram: /", "`-na`: a number of connections is due after -n, as a word of its own"),
        ("mount -u", "`-u` is the last word; a user"),
        ("mount '' /", "SERVER is empty"),
        ("listen tcp!*!1 -secure", "`-secure` is not known; write: listen ADDR [-insecure]"),
        ("listen", "`listen` with no word"),
        ("listen shm!/x -poll -interrupt", "`-interrupt` is not known; write: listen ADDR [-insecure]"),
        ("unmount", "`unmount` with no word"),
        ("space", "`space` without a name"),
        ("space a/b", "`a/b` is no name for a name space"),
        ("nomux x", "`nomux` stands alone"),
        ("mount 'ram: /", "a `'` without its end; another one is due on the same line"),
        ("mount $X /", "`$X` is set nowhere; a line X=VALUE before this one, or the environment, sets it"),
        ("mount ${X /", "`${` without a name and `}`; write ${NAME}"),
        ("mount $ /", "`$` without a name; write $NAME, or '$' for a dollar"),
        ("A=b c", "`c` after a value; a value is one word"),
        (". nofile", "`. nofile`: entity not found"),
        (".", "`.` takes one word"),
        ("bind /a\u{7} /b", "a control character; text is due"),
    ] {
        assert!(wrong(text).contains(said), "{text}: {}", wrong(text));
    }
}

#[test]
fn all_errors_are_told_up_to_a_limit() {
    let script = parse("f", "x\nbind /a /b\ny", &mut Alone);
    assert_eq!(script.wrong.iter().map(|wrong| wrong.at.line).collect::<Vec<_>>(), [1, 3]);
    assert_eq!(script.lines.len(), 1);
    let script = parse("f", &"x\n".repeat(1000), &mut Alone);
    assert_eq!(script.wrong.len(), WRONG_MAX);
}

#[test]
fn files_that_include_many_others_many_times_end() {
    struct Twice(Vec<u32>);
    impl World for Twice {
        fn include(&mut self, name: &str, _: &str) -> io::Result<(Arc<str>, String)> {
            let n: u32 = name.parse().unwrap();
            self.0.push(n);
            Ok((name.into(), format!(". {0}\n", n + 1).repeat(if n < 14 { 4 } else { 0 })))
        }
        fn variable(&self, _: &str) -> Option<String> {
            None
        }
    }
    let mut world = Twice(Vec::new());
    let script = parse("f", ". 1", &mut world);
    assert!(script.wrong[0].what.contains("one file too many"), "{:?}", script.wrong);
    assert_eq!(world.0.len(), FILES_MAX);
}

#[test]
fn a_variable_that_doubles_itself_ends_at_the_longest_word() {
    let text = format!("A=x\n{}", "A=$A$A\n".repeat(60));
    assert!(parse("f", &text, &mut Alone).wrong[0].what.contains("too long"));
}
