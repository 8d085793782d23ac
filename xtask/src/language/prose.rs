//! Sentences and words of comments and of Markdown documents.
//!
//! In: numbered lines of text. Out: sentences, each word with its line. Fenced and indented code, tables, headings,
//! HTML and the targets of links are no prose. A code span or an address counts as one word, [`CODE_WORD`]. A sentence
//! ends with `.`, `!` or `?` before white space, and with its paragraph or list item. It does not end with a colon: the
//! goals for its length were measured like that on other projects.

use super::lexer::{SourceToken, TokenKind};

/// One word, with its line, counted from one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProseWord<'a> {
    pub text: &'a str,
    pub line: usize,
}

/// A run of words up to the end of a sentence.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProseSentence<'a> {
    pub words: Vec<ProseWord<'a>>,
    pub is_question: bool,
}

/// Stands for a code span or an address.
pub const CODE_WORD: &str = "`";

/// The sentences of a Markdown document.
pub fn document_sentences(text: &str) -> Vec<ProseSentence<'_>> {
    let mut reader = ProseReader::default();
    for (index, line) in text.lines().enumerate() {
        reader.line(index + 1, line);
    }
    reader.finish()
}

/// The sentences of all comments among the tokens of a file.
///
/// Comments of one kind (`//`, `///` or `//!`) on adjacent lines are one text. A comment behind code stands alone.
pub fn comment_sentences<'a>(tokens: &[SourceToken<'a>]) -> Vec<ProseSentence<'a>> {
    let mut reader = ProseReader::default();
    let mut last = (0, TokenKind::Comment, "");
    for token in tokens.iter().filter(|token| token.is_comment()) {
        let (marker, text) = comment_text(token.text);
        let is_continued = token.kind == TokenKind::Comment && last == (token.line - 1, token.kind, marker);
        if !is_continued {
            reader.end_text();
        }
        reader.line(token.line, text);
        last = (token.line, token.kind, marker);
    }
    reader.finish()
}

/// Splits a line comment into its slashes and its text.
fn comment_text(comment: &str) -> (&str, &str) {
    let length = match comment {
        _ if comment.starts_with("////") => comment.bytes().take_while(|b| *b == b'/').count(),
        _ if comment.starts_with("///") || comment.starts_with("//!") => 3,
        _ => 2,
    };
    let (marker, text) = comment.split_at(length);
    (marker, text.strip_prefix(' ').unwrap_or(text))
}

/// Collects sentences line by line.
#[derive(Default)]
struct ProseReader<'a> {
    sentences: Vec<ProseSentence<'a>>,
    current: ProseSentence<'a>,
    /// The fence that a code block needs to end.
    fence: Option<&'a str>,
    /// The backticks that a code span needs to end.
    span: usize,
    is_after_blank: bool,
    is_in_list: bool,
    is_in_html_comment: bool,
}

impl<'a> ProseReader<'a> {
    fn line(&mut self, number: usize, line: &'a str) {
        let text = line.trim();
        if let Some(fence) = self.fence {
            if text.starts_with(fence) && text.trim_start_matches(&fence[..1]).is_empty() {
                self.fence = None;
            }
            return;
        }
        if self.is_in_html_comment || text.starts_with("<!--") {
            self.is_in_html_comment = !text.contains("-->");
            return;
        }
        let is_first = std::mem::replace(&mut self.is_after_blank, text.is_empty());
        let is_indented_code = is_first && !self.is_in_list && line.starts_with("    ");
        if let Some(fence) = ["```", "~~~"].into_iter().find(|fence| text.starts_with(fence)) {
            self.end_paragraph();
            let length = text.bytes().take_while(|b| *b == fence.as_bytes()[0]).count();
            self.fence = Some(&text[..length]);
        } else if text.is_empty() || is_indented_code || is_not_prose(text) {
            self.end_paragraph();
            self.is_after_blank |= is_indented_code;
        } else {
            let text = text.trim_start_matches(['>', ' ']);
            let item = list_item(text);
            if item.is_some() {
                self.end_paragraph();
            }
            let is_list_over = is_first && !line.starts_with(' ');
            self.is_in_list = item.is_some() || self.is_in_list && !is_list_over;
            self.words(number, item.unwrap_or(text));
        }
    }

    /// Reads the words of one line of a paragraph.
    fn words(&mut self, number: usize, text: &'a str) {
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            let length = match c {
                '`' => {
                    let ticks = rest.bytes().take_while(|b| *b == b'`').count();
                    if self.span == 0 {
                        self.push(number, CODE_WORD);
                        self.span = ticks;
                    } else if self.span == ticks {
                        self.span = 0;
                    }
                    ticks
                }
                _ if self.span > 0 => c.len_utf8(),
                ']' if rest.starts_with("](") => rest.find(')').map_or(2, |end| end + 1),
                _ if rest.starts_with("https://") || rest.starts_with("http://") => {
                    self.push(number, CODE_WORD);
                    let end = rest.find(|c: char| c.is_whitespace() || matches!(c, '>' | ')'));
                    rest[..end.unwrap_or(rest.len())].trim_end_matches(['.', ',', ':', ';']).len()
                }
                _ if c.is_alphanumeric() => {
                    let length = word_length(rest);
                    self.push(number, rest[..length].trim_end_matches(['-', '_', '\'', '’']));
                    length
                }
                '.' | '!' | '?' => {
                    let before = &text[..text.len() - rest.len() + 1];
                    if is_sentence_end(before, &rest[1..]) {
                        self.end_sentence(c == '?');
                    }
                    1
                }
                _ => c.len_utf8(),
            };
            rest = &rest[length..];
        }
    }

    fn push(&mut self, line: usize, text: &'a str) {
        self.current.words.push(ProseWord { text, line });
    }

    fn end_sentence(&mut self, is_question: bool) {
        let mut sentence = std::mem::take(&mut self.current);
        if !sentence.words.is_empty() {
            sentence.is_question = is_question;
            self.sentences.push(sentence);
        }
    }

    fn end_paragraph(&mut self) {
        self.end_sentence(false);
        self.span = 0;
    }

    /// Ends a text, with any fence, list or comment that is still open in it.
    fn end_text(&mut self) {
        self.end_paragraph();
        self.fence = None;
        self.is_after_blank = false;
        self.is_in_list = false;
        self.is_in_html_comment = false;
    }

    fn finish(mut self) -> Vec<ProseSentence<'a>> {
        self.end_text();
        self.sentences
    }
}

/// Headings, rows of tables, HTML, and definitions of links.
fn is_not_prose(text: &str) -> bool {
    let is_heading = text.starts_with('#') && text.trim_start_matches('#').starts_with(' ');
    let is_html = text.starts_with('<') && text[1..].starts_with(|c: char| c == '/' || c.is_alphabetic());
    let is_definition = text.starts_with('[') && text.contains("]: ") && !text.contains("](");
    is_heading || text.starts_with('|') || is_html && !text.starts_with("<http") || is_definition
}

/// The text of a list item without its marker.
fn list_item(text: &str) -> Option<&str> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let marker = match digits {
        0 => text.strip_prefix(['-', '*', '+']),
        1 | 2 => text[digits..].strip_prefix(['.', ')']),
        _ => None,
    };
    marker.filter(|rest| rest.starts_with(' ')).map(str::trim_start)
}

fn word_length(text: &str) -> usize {
    let is_part = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '\'' | '’');
    text.find(|c: char| !is_part(c)).unwrap_or(text.len())
}

/// Whether the mark at the end of `before` ends a sentence, with `after` behind it on the line.
fn is_sentence_end(before: &str, after: &str) -> bool {
    let behind = after.trim_start_matches([')', '"', '\'', '”', '’', '*', '_', ']']);
    let is_abbreviation = ["e.g.", "i.e.", "cf.", "vs."].iter().any(|short| before.ends_with(short));
    !is_abbreviation && (behind.is_empty() || behind.starts_with(char::is_whitespace))
}

#[cfg(test)]
mod tests {
    use super::super::lexer::tokens;
    use super::*;

    fn spelled(sentences: &[ProseSentence]) -> Vec<String> {
        let words = |sentence: &ProseSentence| {
            let words: Vec<&str> = sentence.words.iter().map(|word| word.text).collect();
            words.join(" ") + if sentence.is_question { "?" } else { "" }
        };
        sentences.iter().map(words).collect()
    }

    fn document(text: &str) -> Vec<String> {
        spelled(&document_sentences(text))
    }

    #[test]
    fn sentences_end_with_their_mark_or_paragraph() {
        assert_eq!(
            document("One two. Three\nfour (five.) Six?\n\nSeven"),
            ["One two", "Three four five", "Six?", "Seven"]
        );
        assert_eq!(document("Note: 9P2000.L is x.y, e.g. here."), ["Note 9P2000 L is x y e g here"]);
    }

    #[test]
    fn code_tables_headings_and_html_are_no_prose() {
        let text = "# A heading\n\nOne.\n```sh\nwhat who\n```\n| what | who |\n\n    what code\n\n    what more\n\n\
                    <img src=\"what\">\n<!-- what\nwho -->\n[what]: https://who\nTwo.\n~~~~\nwhat\n~~~\nwho\n~~~~\n\
                    Three";
        assert_eq!(document(text), ["One", "Two", "Three"]);
    }

    #[test]
    fn code_spans_and_links_are_one_word() {
        assert_eq!(document("See `what. who` and ``a ` b\nc``."), ["See ` and `"]);
        assert_eq!(document("Read [the manual](docs/who-is-who.md) first."), ["Read the manual first"]);
        assert_eq!(
            document("Go to https://example.org/what: now. <https://who> too."),
            ["Go to ` now", "` too"]
        );
    }

    #[test]
    fn list_items_are_sentences() {
        assert_eq!(
            document("Do this\n- one\n  more\n- two\n\n    and two\n10. ten\n\nAfter"),
            ["Do this", "one more", "two", "and two", "ten", "After"]
        );
        assert_eq!(document("1990. a year\n-dash"), ["1990", "a year dash"]);
    }

    #[test]
    fn words_keep_apostrophes_and_hyphens() {
        assert_eq!(document("It's a *re-read* of snake_case_ - not"), ["It's a re-read of snake_case not"]);
    }

    #[test]
    fn comments_of_one_kind_on_adjacent_lines_are_one_text() {
        let source = "//! One\n//! two.\n//!\n//! ```\n//! what\n//! ```\n\n/// Three\n// four\n\
                      let x = \"// no\"; // five\n\
                      // six\n\n// seven\n// eight\n";
        let sentences = comment_sentences(&tokens(source));
        assert_eq!(spelled(&sentences), ["One two", "Three", "four", "five", "six", "seven eight"]);
        assert_eq!(sentences[0].words[1], ProseWord { text: "two", line: 2 });
        assert_eq!(spelled(&comment_sentences(&tokens("/// ```\n/// open\n\n// One"))), ["One"]);
    }
}
