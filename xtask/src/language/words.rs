//! The word lists of the language rules: names that no type may have, endings that no constant may have, and coinages.
//!
//! Each list holds only words that are wrong nearly everywhere. A word with a sound meaning in the field (place, way,
//! turn, gate, end) is not here: a false alarm costs more than a coinage that stays for a reviewer to find.

/// Names that no type may have.
pub const FORBIDDEN_TYPES: &[&str] = &[
    "Asked", "At", "Both", "Few", "Had", "Held", "How", "Inner", "Is", "Kept", "Made", "Me", "Nothing",
    "Now", "Of", "One", "Other", "Own", "Place", "Said", "Shared", "State", "Then", "Told", "Turn", "Way",
    "What", "Which", "Whom", "Why", "Wrong",
];

/// The manual's nouns: good names for types, although they are one word.
pub const MANUAL_NOUNS: &[&str] = &["Fid", "Mux", "Qid", "Stat", "Tag"];

/// Last words that no constant may have: `*_MAX`, `*_MIN`, `*_LEN` and `*_TIMEOUT` say the same in the field's words.
pub const FORBIDDEN_ENDINGS: &[&str] = &["FEWEST", "LARGEST", "LEAST", "MOST", "PATIENCE", "PIECE"];

/// Coinages, each with the field's word. A phrase matches its words in sequence, also across the end of a line.
///
/// The inflected forms stand in the list, so that `mended` is found and `recommended` or `amend` is not. `borders`,
/// `desk`, `passage` and `seat` have honest meanings elsewhere; no crate of ours is about any of them.
pub const COINAGES: &[(&str, &str)] = &[
    ("are said", "message, event, report"),
    ("are told", "message, event, report"),
    ("bell", "doorbell, wake-up, eventfd"),
    ("bells", "doorbell, wake-up, eventfd"),
    ("border", "switch point"),
    ("borders", "switch points"),
    ("desk", "connection control files"),
    ("desks", "connection control files"),
    ("herald", "change publisher"),
    ("heralds", "change publishers"),
    ("house", "workspace"),
    ("is said", "message, event, report"),
    ("is told", "message, event, report"),
    ("lane", "upstream connection"),
    ("lanes", "upstream connections"),
    ("let go", "close, release"),
    ("let in", "authorize"),
    ("lets go", "closes, releases"),
    ("lets in", "authorizes"),
    ("limbo", "deferred clunks"),
    ("main one", "primary"),
    ("mend", "repair, fix"),
    ("mended", "repaired, fixed"),
    ("mender", "reconnect task"),
    ("menders", "reconnect tasks"),
    ("mending", "repairing, fixing"),
    ("mends", "repairs, fixes"),
    ("passage", "stream adapter"),
    ("passages", "stream adapters"),
    ("patience", "timeout"),
    ("seat", "worker"),
    ("seats", "workers"),
    ("slate", "compare-and-swap object"),
    ("slates", "compare-and-swap objects"),
    ("take turns", "failover"),
    ("takes turns", "failover"),
    ("this room", "crate, module"),
    ("told of", "message, event, report"),
    ("which room", "crate, module"),
    ("who came in", "client"),
    ("who come in", "clients"),
    ("who comes in", "client"),
    ("who is in", "connected client"),
    ("who stands by", "standby"),
    ("whoever comes in", "client"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coinages_are_sorted_lower_case_and_at_most_three_words() {
        assert!(COINAGES.is_sorted());
        for (phrase, _) in COINAGES {
            assert_eq!(*phrase, phrase.to_lowercase());
            assert!(phrase.split(' ').count() <= 3, "{phrase}");
        }
        assert!(FORBIDDEN_TYPES.is_sorted() && FORBIDDEN_ENDINGS.is_sorted() && MANUAL_NOUNS.is_sorted());
    }
}
