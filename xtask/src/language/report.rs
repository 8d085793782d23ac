//! Measures the whole repository: one row for each crate and each document.
//!
//! In: the text of the repository. Out: a [`LanguageReport`], which holds each value with the places that count in it.

use std::collections::{BTreeMap, BTreeSet};

use super::goals::{CRATE_MEASURES, DOCUMENT_MEASURES, LanguageMeasure, MeasureUnit, is_guide};
use super::prose::{ProseSentence, document_sentences};
use super::source::{self, SourceFile, camel_words};
use super::words::{COINAGES, FORBIDDEN_TYPES, MANUAL_NOUNS};
use crate::tidy::Tree;

/// All rows, each group sorted by name.
pub struct LanguageReport<'a> {
    pub crates: Vec<MeasuredRow<'a>>,
    pub documents: Vec<MeasuredRow<'a>>,
    /// All crates together.
    pub crate_total: MeasuredRow<'a>,
    pub document_total: MeasuredRow<'a>,
}

/// One crate or document, with a value for each measure of its group, in their order.
pub struct MeasuredRow<'a> {
    pub name: String,
    pub values: Vec<MeasuredValue<'a>>,
    /// The number of modules `x/mod.rs`, and of modules `x.rs` with a folder `x`.
    pub layouts: (usize, usize),
}

/// One value.
pub struct MeasuredValue<'a> {
    pub measure: &'static LanguageMeasure,
    /// The number in the ratchet.
    pub number: f64,
    /// The number that the goal is about.
    pub ratio: f64,
    pub places: Vec<OffencePlace<'a>>,
}

/// A place that counts in a value.
#[derive(Clone)]
pub struct OffencePlace<'a> {
    pub path: &'a str,
    pub line: usize,
    pub text: String,
}

/// Measures all crates and documents.
pub fn measure<'a>(tree: &'a Tree) -> LanguageReport<'a> {
    let our_crates: BTreeSet<String> = tree.crates().map(|name| name.replace('-', "_")).collect();
    let mut files: BTreeMap<&'a str, SourceFile<'a>> = tree
        .rust()
        .filter(|(path, _)| !path.contains("/tests/") && !path.ends_with("/tests.rs"))
        .map(|(path, text)| (path, source::measure(text, &our_crates)))
        .collect();
    remove_test_modules(&mut files);
    let mut uses: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (path, file) in &files {
        for found in &file.types {
            uses.entry(found.name).or_default().insert(path);
        }
    }
    let is_repeated = |name: &str| uses[name].len() > 1;
    let mut crates: BTreeMap<&str, CrateCounts> = BTreeMap::new();
    for (path, file) in &files {
        crates.entry(crate_of(path)).or_default().add_file(path, file, &is_repeated);
    }
    count_layouts(&mut crates, &files);
    let mut crate_total = CrateCounts::default();
    let crates = crates
        .into_iter()
        .map(|(name, counts)| {
            crate_total.add(&counts);
            counts.row(name)
        })
        .collect();
    let mut document_total = DocumentCounts::default();
    let documents = tree
        .documents()
        .map(|(path, text)| {
            let counts = DocumentCounts::of(path, text);
            document_total.add(&counts);
            counts.row(path)
        })
        .collect();
    LanguageReport {
        crates,
        documents,
        crate_total: crate_total.row("all crates"),
        document_total: document_total.row("all documents"),
    }
}

/// The crate of a file, named as its folder.
fn crate_of(path: &str) -> &str {
    path.strip_prefix("crates/").unwrap_or(path).split('/').next().unwrap_or(path)
}

/// The folder of a module's parts, from the path of its file.
fn module_folder(path: &str) -> &str {
    let stem = path.strip_suffix(".rs").unwrap_or(path);
    ["/mod", "/lib", "/main"].iter().find_map(|root| stem.strip_suffix(root)).unwrap_or(stem)
}

/// Drops the files of modules that other files declare under `#[cfg(test)]`.
fn remove_test_modules(files: &mut BTreeMap<&str, SourceFile>) {
    let mut folders: Vec<String> = Vec::new();
    for (path, file) in files.iter() {
        folders.extend(file.test_modules.iter().map(|name| format!("{}/{name}", module_folder(path))));
    }
    files.retain(|path, _| {
        let is_of = |folder: &String| {
            path.strip_prefix(folder.as_str()).is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
        };
        !folders.iter().any(is_of)
    });
}

/// Counts the files of both layouts of modules with parts.
fn count_layouts<'a>(
    crates: &mut BTreeMap<&str, CrateCounts<'a>>,
    files: &BTreeMap<&'a str, SourceFile<'a>>,
) {
    for path in files.keys().copied() {
        let Some(counts) = crates.get_mut(crate_of(path)) else { continue };
        let folder = format!("{}/", module_folder(path));
        if path.ends_with("/mod.rs") {
            counts.mod_files.push(path);
        } else if !path.ends_with("/lib.rs") && !path.ends_with("/main.rs") {
            let has_parts =
                files.range(folder.as_str()..).next().is_some_and(|(next, _)| next.starts_with(&folder));
            if has_parts {
                counts.named_files.push(path);
            }
        }
    }
}

/// Sums over the files of a crate.
#[derive(Default)]
struct CrateCounts<'a> {
    types: usize,
    one_word: Vec<OffencePlace<'a>>,
    repeated: Vec<OffencePlace<'a>>,
    forbidden: Vec<OffencePlace<'a>>,
    renamed: Vec<OffencePlace<'a>>,
    constants: Vec<OffencePlace<'a>>,
    undocumented: Vec<OffencePlace<'a>>,
    mod_files: Vec<&'a str>,
    named_files: Vec<&'a str>,
    /// Modules in the less frequent layout of their crate.
    mixed: Vec<OffencePlace<'a>>,
    comment_lines: usize,
    code_lines: usize,
    prose: ProseCounts<'a>,
}

impl<'a> CrateCounts<'a> {
    fn add_file(&mut self, path: &'a str, file: &SourceFile<'a>, is_repeated: &dyn Fn(&str) -> bool) {
        let place = |line, text| OffencePlace { path, line, text };
        self.types += file.types.len();
        for found in &file.types {
            let name = found.name;
            if camel_words(name) == 1 && !MANUAL_NOUNS.contains(&name) {
                self.one_word.push(place(found.line, format!("type `{name}` has a one-word name")));
            }
            if is_repeated(name) {
                self.repeated.push(place(found.line, format!("type `{name}` has the name of another type")));
            }
            if FORBIDDEN_TYPES.contains(&name) {
                self.forbidden.push(place(found.line, format!("type `{name}` has a forbidden name")));
            }
        }
        self.renamed.extend(
            file.renamed_imports
                .iter()
                .map(|found| place(found.line, format!("an import of ours is renamed to `{}`", found.name))),
        );
        self.constants.extend(file.forbidden_constants.iter().map(|found| {
            place(found.line, format!("constant `{}`: end it with MAX, MIN, LEN or TIMEOUT", found.name))
        }));
        self.undocumented.extend(
            file.undocumented.iter().map(|found| {
                place(found.line, format!("`{}` is public and has no documentation", found.name))
            }),
        );
        self.comment_lines += file.comment_lines;
        self.code_lines += file.code_lines;
        self.prose.add_sentences(path, &file.sentences);
    }

    fn add(&mut self, other: &CrateCounts<'a>) {
        self.types += other.types;
        self.one_word.extend_from_slice(&other.one_word);
        self.repeated.extend_from_slice(&other.repeated);
        self.forbidden.extend_from_slice(&other.forbidden);
        self.renamed.extend_from_slice(&other.renamed);
        self.constants.extend_from_slice(&other.constants);
        self.undocumented.extend_from_slice(&other.undocumented);
        self.mod_files.extend_from_slice(&other.mod_files);
        self.named_files.extend_from_slice(&other.named_files);
        self.comment_lines += other.comment_lines;
        self.code_lines += other.code_lines;
        self.prose.add(&other.prose);
    }

    fn row(mut self, name: &str) -> MeasuredRow<'a> {
        let layouts = (self.mod_files.len(), self.named_files.len());
        let (mixed, kind) = if layouts.0 <= layouts.1 {
            (self.mod_files, "x/mod.rs")
        } else {
            (self.named_files, "x.rs with a folder")
        };
        let text = format!("{kind} is the less frequent layout in {name}");
        self.mixed.extend(mixed.into_iter().map(|path| OffencePlace { path, line: 1, text: text.clone() }));
        let per_type = |places: &[OffencePlace]| ratio(places.len(), self.types, 100.0);
        let values = CRATE_MEASURES.iter().map(|measure| {
            let (ratio, places) = match measure.name {
                "one-word" => (per_type(&self.one_word), &self.one_word),
                "repeated" => (per_type(&self.repeated), &self.repeated),
                "forbidden" => (self.forbidden.len() as f64, &self.forbidden),
                "renamed" => (self.renamed.len() as f64, &self.renamed),
                "constants" => (self.constants.len() as f64, &self.constants),
                "layout" => (self.mixed.len() as f64, &self.mixed),
                "comments" => {
                    return measured(measure, ratio(self.comment_lines, self.code_lines, 100.0), &[]);
                }
                "no-docs" => (self.undocumented.len() as f64, &self.undocumented),
                _ => return self.prose.value(measure),
            };
            measured(measure, ratio, places)
        });
        MeasuredRow { name: name.to_string(), values: values.collect(), layouts }
    }
}

/// Sums over sentences.
#[derive(Default)]
struct ProseCounts<'a> {
    words: usize,
    sentences: usize,
    you: usize,
    what_who: Vec<OffencePlace<'a>>,
    what_first: Vec<OffencePlace<'a>>,
    coinages: Vec<OffencePlace<'a>>,
    /// The number of words of each sentence that is more than two words.
    lengths: Vec<usize>,
}

impl<'a> ProseCounts<'a> {
    fn add_sentences(&mut self, path: &'a str, sentences: &[ProseSentence<'a>]) {
        for sentence in sentences {
            self.sentences += 1;
            self.words += sentence.words.len();
            if sentence.words.len() > 2 {
                self.lengths.push(sentence.words.len());
            }
            self.add_words(path, sentence);
        }
    }

    fn add_words(&mut self, path: &'a str, sentence: &ProseSentence<'a>) {
        let words: Vec<String> = sentence.words.iter().map(|word| stem(word.text)).collect();
        let place = |at: usize, text| OffencePlace { path, line: sentence.words[at].line, text };
        for (at, word) in words.iter().enumerate() {
            if matches!(word.as_str(), "what" | "who" | "whose" | "whom") {
                self.what_who.push(place(at, format!("`{}`", excerpt(sentence, at))));
            }
            self.you += usize::from(matches!(word.as_str(), "you" | "your" | "yours" | "yourself"));
            let rest = &words[at..];
            for (phrase, instead) in coinages_from(word) {
                let is_here = phrase.split(' ').zip(rest).filter(|(a, b)| a == b).count();
                if is_here == phrase.split(' ').count() {
                    self.coinages.push(place(at, format!("`{phrase}`: write {instead}")));
                }
            }
        }
        let is_head = words.first().is_some_and(|word| NOUN_CLAUSE_HEADS.contains(&word.as_str()));
        if is_head && !sentence.is_question {
            self.what_first.push(place(0, format!("a sentence begins with `{}`", excerpt(sentence, 0))));
        }
    }

    fn add(&mut self, other: &ProseCounts<'a>) {
        self.words += other.words;
        self.sentences += other.sentences;
        self.you += other.you;
        self.what_who.extend_from_slice(&other.what_who);
        self.what_first.extend_from_slice(&other.what_first);
        self.coinages.extend_from_slice(&other.coinages);
        self.lengths.extend_from_slice(&other.lengths);
    }

    fn value(&self, measure: &'static LanguageMeasure) -> MeasuredValue<'a> {
        let per_word = |count: usize| ratio(count, self.words, 1000.0);
        match measure.name {
            "what-who" => measured(measure, per_word(self.what_who.len()), &self.what_who),
            "what-first" => {
                measured(measure, ratio(self.what_first.len(), self.sentences, 100.0), &self.what_first)
            }
            "coinages" => measured(measure, per_word(self.coinages.len()), &self.coinages),
            "mean" => measured(measure, ratio(self.lengths.iter().sum(), self.lengths.len(), 1.0), &[]),
            "p90" => measured(measure, percentile(&self.lengths, 90), &[]),
            "you" => measured(measure, per_word(self.you), &[]),
            other => unreachable!("no measure of prose is named {other}: a test measures all"),
        }
    }
}

/// Sums over a document.
#[derive(Default)]
struct DocumentCounts<'a> {
    prose: ProseCounts<'a>,
    long: Vec<OffencePlace<'a>>,
}

impl<'a> DocumentCounts<'a> {
    fn of(path: &'a str, text: &'a str) -> DocumentCounts<'a> {
        let mut counts = DocumentCounts::default();
        let sentences = document_sentences(text);
        counts.prose.add_sentences(path, &sentences);
        for sentence in sentences.iter().filter(|sentence| sentence.words.len() > LONG_SENTENCE) {
            let text = format!("{} words in a sentence: `{}`", sentence.words.len(), excerpt(sentence, 0));
            counts.long.push(OffencePlace { path, line: sentence.words[0].line, text });
        }
        counts
    }

    fn add(&mut self, other: &DocumentCounts<'a>) {
        self.prose.add(&other.prose);
        self.long.extend_from_slice(&other.long);
    }

    fn row(self, name: &str) -> MeasuredRow<'a> {
        let values = DOCUMENT_MEASURES.iter().map(|measure| {
            let mut value = self.prose.value(measure);
            match measure.name {
                "p90" => value.places.clone_from(&self.long),
                // Zero demands nothing of a document that does not speak to the reader.
                "you" if !is_guide(name) => value.number = 0.0,
                _ => {}
            }
            value
        });
        MeasuredRow { name: name.to_string(), values: values.collect(), layouts: (0, 0) }
    }
}

fn measured<'a>(
    measure: &'static LanguageMeasure,
    ratio: f64,
    places: &[OffencePlace<'a>],
) -> MeasuredValue<'a> {
    let number = match measure.unit {
        MeasureUnit::Ratio { .. } => (ratio * 10.0).round() / 10.0,
        _ => places.len() as f64,
    };
    MeasuredValue { measure, number, ratio, places: places.to_vec() }
}

fn ratio(part: usize, whole: usize, scale: f64) -> f64 {
    part as f64 * scale / whole.max(1) as f64
}

fn percentile(lengths: &[usize], percent: usize) -> f64 {
    let mut sorted = lengths.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len() * percent / 100).map_or(0.0, |length| *length as f64)
}

/// A word in lower case, up to an apostrophe: `What's` is `what`.
fn stem(word: &str) -> String {
    word.split(['\'', '’']).next().unwrap_or(word).to_lowercase()
}

/// The coinages that begin with a word.
fn coinages_from(word: &str) -> impl Iterator<Item = &'static (&'static str, &'static str)> {
    let from = COINAGES.partition_point(|(phrase, _)| first_word(phrase) < word);
    COINAGES[from..].iter().take_while(move |(phrase, _)| first_word(phrase) == word)
}

fn first_word(phrase: &str) -> &str {
    phrase.split(' ').next().unwrap_or(phrase)
}

/// A few words of a sentence from a place in it.
fn excerpt(sentence: &ProseSentence, from: usize) -> String {
    let start = from.saturating_sub(2);
    let words: Vec<&str> = sentence.words[start..].iter().take(7).map(|word| word.text).collect();
    words.join(" ").replace('`', "..")
}

const NOUN_CLAUSE_HEADS: &[&str] = &["what", "whatever", "who", "whoever", "whom", "whose"];

/// The goal for the 90th percentile.
const LONG_SENTENCE: usize = 26;
