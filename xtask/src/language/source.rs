//! Measures of one Rust file: names of types and constants, imports, documentation, comments.
//!
//! In: the tokens of a file. Out: a [`SourceFile`]. Items under `#[cfg(test)]` or `#[test]` are left out. All of this
//! is syntax alone: no macro is expanded and no name is resolved.

use std::collections::BTreeSet;

use super::lexer::{SourceToken, TokenKind, tokens};
use super::prose::{ProseSentence, comment_sentences};
use super::words::FORBIDDEN_ENDINGS;

/// A name in a file, with its line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamedLine<'a> {
    pub name: &'a str,
    pub line: usize,
}

/// One file without its tests.
#[derive(Debug, Default)]
pub struct SourceFile<'a> {
    /// Structs, enums, traits and unions.
    pub types: Vec<NamedLine<'a>>,
    /// New names that imports from our own crates give.
    pub renamed_imports: Vec<NamedLine<'a>>,
    /// Constants and statics with a forbidden ending.
    pub forbidden_constants: Vec<NamedLine<'a>>,
    /// Public items without documentation. Modules, imports and fields do not count, nor do constants directly below
    /// another line of code: a table of them has one description.
    pub undocumented: Vec<NamedLine<'a>>,
    /// Modules in other files that are for tests alone.
    pub test_modules: Vec<&'a str>,
    pub sentences: Vec<ProseSentence<'a>>,
    pub comment_lines: usize,
    pub code_lines: usize,
}

/// Measures one file. `our_crates` are the names that paths of other crates of ours start with.
pub fn measure<'a>(text: &'a str, our_crates: &BTreeSet<String>) -> SourceFile<'a> {
    let mut file = SourceFile::default();
    let tokens = without_tests(&tokens(text), &mut file.test_modules);
    file.sentences = comment_sentences(&tokens);
    count_lines(&mut file, &tokens);
    find_undocumented(&mut file, &tokens);
    let code: Vec<SourceToken> = tokens.into_iter().filter(|token| !token.is_comment()).collect();
    find_names(&mut file, &code);
    find_renamed_imports(&mut file, &code, our_crates);
    file
}

/// The number of words in a name in camel case: `FsError` has two, `HTTPServer`, too.
pub fn camel_words(name: &str) -> usize {
    let chars: Vec<char> = name.chars().filter(|c| *c != '_').collect();
    let is_start = |at: usize| {
        let follows_small = at > 0 && !chars[at - 1].is_uppercase();
        chars[at].is_uppercase()
            && (follows_small || chars.get(at + 1).is_some_and(|next| next.is_lowercase()))
    };
    1 + (1..chars.len()).filter(|at| is_start(*at)).count()
}

fn count_lines(file: &mut SourceFile, tokens: &[SourceToken]) {
    let mut last_code = 0;
    for token in tokens {
        if token.kind == TokenKind::Comment {
            file.comment_lines += 1;
        } else if !token.is_comment() && token.end_line > last_code {
            file.code_lines += token.end_line - token.line.max(last_code + 1) + 1;
            last_code = token.end_line;
        }
    }
}

/// The tokens without items that are compiled for tests alone. Collects the names of test modules in other files.
fn without_tests<'a>(tokens: &[SourceToken<'a>], test_modules: &mut Vec<&'a str>) -> Vec<SourceToken<'a>> {
    let mut kept = Vec::with_capacity(tokens.len());
    let mut at = 0;
    while at < tokens.len() {
        let Some(attribute) = AttributeTokens::at(tokens, at) else {
            kept.push(tokens[at]);
            at += 1;
            continue;
        };
        if !attribute.is_test(tokens) {
            kept.extend_from_slice(&tokens[at..attribute.end]);
            at = attribute.end;
        } else if attribute.is_inner {
            return Vec::new();
        } else {
            let end = item_end(tokens, attribute.end);
            let mut item = tokens[attribute.end..end].iter().skip_while(|token| !token.is("mod")).skip(1);
            if let (Some(name), Some(end)) = (item.next(), item.next())
                && end.is(";")
            {
                test_modules.push(name.text);
            }
            at = end;
        }
    }
    kept
}

/// An attribute: the range of the tokens between its brackets.
struct AttributeTokens {
    is_inner: bool,
    start: usize,
    end: usize,
}

impl AttributeTokens {
    /// The attribute that starts at this token.
    fn at(tokens: &[SourceToken], at: usize) -> Option<AttributeTokens> {
        let is = |at: usize, text: &str| tokens.get(at).is_some_and(|token| token.is(text));
        if !is(at, "#") {
            return None;
        }
        let is_inner = is(at + 1, "!");
        let open = at + 1 + usize::from(is_inner);
        if !is(open, "[") {
            return None;
        }
        let mut depth = 0;
        for (end, token) in tokens.iter().enumerate().skip(open) {
            match token.text {
                "[" => depth += 1,
                "]" if depth == 1 => {
                    return Some(AttributeTokens { is_inner, start: open + 1, end: end + 1 });
                }
                "]" => depth -= 1,
                _ => {}
            }
        }
        None
    }

    /// Whether this is `test`, `x::test`, `cfg(test)` or `cfg(all(.., test, ..))`.
    fn is_test(&self, tokens: &[SourceToken]) -> bool {
        let texts: Vec<&str> = tokens[self.start..self.end - 1].iter().map(|token| token.text).collect();
        match texts.as_slice() {
            ["cfg", "(", "test", ")"] | ["test"] | [.., ":", ":", "test"] => true,
            ["cfg", "(", "all", "(", conditions @ ..] => {
                let mut depth = 0;
                conditions.iter().any(|text| {
                    match *text {
                        "(" => depth += 1,
                        ")" => depth -= 1,
                        _ => {}
                    }
                    depth == 0 && *text == "test"
                })
            }
            _ => false,
        }
    }
}

/// The end of the item, field, statement or arm that starts at this token, or before it with more attributes.
fn item_end(tokens: &[SourceToken], mut at: usize) -> usize {
    loop {
        match AttributeTokens::at(tokens, at) {
            Some(attribute) => at = attribute.end,
            None if tokens.get(at).is_some_and(SourceToken::is_comment) => at += 1,
            None => break,
        }
    }
    let is_item = tokens.get(at).is_some_and(|token| ITEM_STARTS.contains(&token.text));
    let mut depth = 0;
    for (end, token) in tokens.iter().enumerate().skip(at) {
        if token.kind != TokenKind::Punct {
            continue;
        }
        match token.text {
            "(" | "[" | "{" => depth += 1,
            // The block around a field or a statement closes.
            ")" | "]" | "}" if depth == 0 => return end,
            "}" if depth == 1 => return end + 1,
            ")" | "]" | "}" => depth -= 1,
            ";" if depth == 0 => return end + 1,
            "," if depth == 0 && !is_item => return end + 1,
            _ => {}
        }
    }
    tokens.len()
}

/// Finds types, and constants with a forbidden ending.
fn find_names<'a>(file: &mut SourceFile<'a>, code: &[SourceToken<'a>]) {
    for (at, pair) in code.windows(2).enumerate() {
        let [keyword, name] = pair else { continue };
        if keyword.kind != TokenKind::Ident || name.kind != TokenKind::Ident {
            continue;
        }
        let found = NamedLine { name: name.text.trim_start_matches("r#"), line: name.line };
        match keyword.text {
            "struct" | "enum" | "trait" => file.types.push(found),
            // `union` is a keyword only before a name and a body.
            "union" if code.get(at + 2).is_some_and(|token| token.is("{") || token.is("<")) => {
                file.types.push(found);
            }
            // `*const T` is a pointer.
            "const" | "static" if at == 0 || !code[at - 1].is("*") => {
                let ending = found.name.rsplit('_').next().unwrap_or(found.name);
                if FORBIDDEN_ENDINGS.contains(&ending) {
                    file.forbidden_constants.push(found);
                }
            }
            _ => {}
        }
    }
}

/// Finds `use A as B` where A is one of our crates or a module of this file.
fn find_renamed_imports<'a>(
    file: &mut SourceFile<'a>,
    code: &[SourceToken<'a>],
    our_crates: &BTreeSet<String>,
) {
    let modules: BTreeSet<&str> = code
        .windows(3)
        .filter(|three| three[0].is("mod") && (three[2].is(";") || three[2].is("{")))
        .map(|three| three[1].text)
        .collect();
    for (at, _) in code.iter().enumerate().filter(|(_, token)| token.is("use")) {
        let mut path = code[at + 1..].iter().skip_while(|token| token.is(":")).peekable();
        let is_ours = path.peek().is_some_and(|first| {
            let name = first.text;
            matches!(name, "crate" | "self" | "super") || our_crates.contains(name) || modules.contains(name)
        });
        let mut is_after_as = false;
        for token in path.take_while(|token| is_ours && !token.is(";")) {
            if is_after_as && token.text != "_" {
                file.renamed_imports.push(NamedLine { name: token.text, line: token.line });
            }
            is_after_as = token.is("as");
        }
    }
}

/// Finds public items without documentation.
fn find_undocumented<'a>(file: &mut SourceFile<'a>, tokens: &[SourceToken<'a>]) {
    let mut is_documented = false;
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        at += 1;
        if token.is_comment() {
            is_documented |= token.text.starts_with("///") && !token.text.starts_with("////");
        } else if let Some(attribute) = AttributeTokens::at(tokens, at - 1) {
            is_documented |= tokens[attribute.start..attribute.end].iter().any(|token| token.is("doc"));
            at = attribute.end;
        } else {
            if token.is("pub") && !is_documented {
                let is_below_code = at > 1 && tokens[at - 2].end_line + 1 == token.line;
                file.undocumented.extend(item_name(&tokens[at..], is_below_code));
            }
            is_documented = false;
        }
    }
}

/// The name of the item behind `pub`; none for fields, modules, imports, constants in a table, and for `pub(crate)`.
fn item_name<'a>(tokens: &[SourceToken<'a>], is_in_table: bool) -> Option<NamedLine<'a>> {
    let is_modifier = |token: &SourceToken| {
        matches!(token.text, "async" | "const" | "extern" | "unsafe") || token.kind == TokenKind::Literal
    };
    let at = tokens.iter().take_while(|token| is_modifier(token)).count();
    let is_constant = at > 0 && tokens[at - 1].is("const");
    let keyword = tokens.get(at)?;
    let name = match keyword.text {
        "enum" | "fn" | "static" | "struct" | "trait" | "type" | "union" => tokens.get(at + 1)?,
        _ if is_constant && !is_in_table => keyword,
        _ => return None,
    };
    let is_name = name.kind == TokenKind::Ident;
    is_name.then_some(NamedLine { name: name.text, line: name.line })
}

/// The first words of items, which may hold commas outside of brackets.
const ITEM_STARTS: &[&str] = &[
    "async",
    "const",
    "enum",
    "extern",
    "fn",
    "impl",
    "let",
    "macro_rules",
    "mod",
    "pub",
    "static",
    "struct",
    "trait",
    "type",
    "union",
    "unsafe",
    "use",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(text: &str) -> SourceFile<'_> {
        measure(text, &BTreeSet::from(["nine_io".to_string()]))
    }

    fn names<'a>(found: &[NamedLine<'a>]) -> Vec<&'a str> {
        found.iter().map(|found| found.name).collect()
    }

    #[test]
    fn types_are_found_and_aliases_and_keywords_in_strings_are_not() {
        let file = measured(
            "pub struct A<T>(T);\nenum BigThing {}\ntrait C {}\nunion D { x: u8 }\ntype E = A<u8>;\n\
             let s = \"struct F\";\n\
             // struct G\nlet union = x; union.y(); impl A<u8> {} macro_rules! m { () => { struct $name; } }",
        );
        assert_eq!(names(&file.types), ["A", "BigThing", "C", "D"]);
        assert_eq!(file.types[1].line, 2);
    }

    #[test]
    fn words_of_a_name_are_counted() {
        let counted = ["Fid", "FsError", "HTTPServer", "IO", "P9", "Sha256Sum", "A"].map(camel_words);
        assert_eq!(counted, [1, 2, 2, 1, 1, 2, 1]);
    }

    #[test]
    fn items_for_tests_alone_are_left_out() {
        for test in [
            "#[cfg(test)]\n#[allow(x)]\nmod tests { struct Gone; fn f() { \"}\"; } }",
            "#[cfg(all(test, not(loom)))] impl<A, B> Gone<A, B> { struct Gone; }",
            "#[cfg(all(any(a, b), test))] struct Gone<A, B>(A, B);",
            "#[test] fn gone<A, B>() { struct Gone; }",
            "#[tokio::test] async fn gone() { struct Gone; }",
            "#[cfg(test)] use a::{struct Gone};",
            "#[cfg(test)]\n/// Gone.\nconst GONE: [u8; 2] = [struct Gone];",
        ] {
            let text = format!("struct Stays; {test} struct StaysToo;");
            assert_eq!(names(&measured(&text).types), ["Stays", "StaysToo"], "{test}");
        }
        let file =
            measured("struct S { #[cfg(test)] x: [u8; 2], y: u8 } fn f() { #[cfg(test)] x() } enum E {}");
        assert_eq!(names(&file.types), ["S", "E"]);
        assert_eq!(
            names(&measured("#[cfg(any(test, fuzz))] struct A; #[cfg(not(test))] struct B;").types),
            ["A", "B"]
        );
        assert_eq!(measured("#![cfg(test)]\nstruct A;").types, []);
    }

    #[test]
    fn modules_for_tests_in_other_files_are_named() {
        let file =
            measured("#[cfg(test)]\nmod tests;\nmod real;\n#[cfg(all(test, x))] pub(crate) mod more; ");
        assert_eq!(file.test_modules, ["tests", "more"]);
    }

    #[test]
    fn renamed_imports_of_our_own_crates_are_found() {
        let file = measured(
            "use nine_io::{A as B, c::{D as E, F}};\nuse crate::G as H;\npub use super::I as J;\n\
             use ::nine_io::K as L;\n\
             use std::io::Error as IoError; use nine_io::Trait as _; mod m; use m::N as O; let x = y as Z;\n\
             fn f() -> impl X + use<'a> {}",
        );
        assert_eq!(names(&file.renamed_imports), ["B", "E", "H", "J", "L", "O"]);
        assert_eq!(file.renamed_imports[2].line, 2);
    }

    #[test]
    fn constants_with_a_forbidden_ending_are_found() {
        let file = measured(
            "const MOST: u8 = 1; pub const KEY_MOST: u8 = 1; static PATIENCE: u8 = 1; const fn f() {} \
                             const MOST_KEYS: u8 = 1; const UTMOST: u8 = 1; let p: *const PIECE = &ROWS_MOST;",
        );
        assert_eq!(names(&file.forbidden_constants), ["MOST", "KEY_MOST", "PATIENCE"]);
    }

    #[test]
    fn public_items_without_documentation_are_found() {
        let file = measured(
            "/// Good.\n#[derive(X)]\npub struct A { pub field: u8 }\npub fn b() {}\npub(crate) fn c() {}\n\
             #[doc = \"x\"] pub fn d() {}\n\npub const E: u8 = 1;\npub const TABLED: u8 = 2;\n\
             pub const unsafe extern \"C\" fn f() {}\n\
             pub mod g; pub use h::I; /// Not of K.\nstruct J; pub enum K {}\n// plain\npub trait L {}",
        );
        assert_eq!(names(&file.undocumented), ["b", "E", "f", "K", "L"]);
    }

    #[test]
    fn lines_of_comments_and_of_code_are_counted() {
        let file = measured("//! Head.\n\n/// Doc.\nfn f() { // trailing\n    \"a\n\n    b\"\n}\n// plain\n");
        assert_eq!((file.comment_lines, file.code_lines), (3, 5));
        assert_eq!(file.sentences.len(), 4);
    }
}
