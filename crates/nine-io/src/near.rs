//! Suggestions for misspelled words.

use std::cmp::Reverse;

/// Returns the known word nearest to `word`, if one is near. At most a third of the letters (rounded up) may be
/// replaced, missing, added, or swapped with a neighbour.
pub fn near<'w>(word: &str, known: impl IntoIterator<Item = &'w str>) -> Option<&'w str> {
    let letters: Vec<char> = word.chars().take(WORD_LEN_MAX + 1).collect();
    if letters.len() > WORD_LEN_MAX {
        return None;
    }
    let far = |of: &str| distance(&letters, &of.chars().collect::<Vec<_>>());
    // Among equally near words, prefer the one with the longest common prefix.
    let begins = |of: &str| of.chars().zip(&letters).take_while(|(a, b)| a == *b).count();
    let nearest =
        known.into_iter().map(|of| (far(of), of)).min_by_key(|(far, of)| (*far, Reverse(begins(of))));
    nearest.filter(|(far, _)| *far <= letters.len().div_ceil(3)).map(|(_, of)| of)
}

/// Returns `; did you mean ...?` to append to an error message, or an empty text if no known word is near.
pub fn hint<'w>(word: &str, known: impl IntoIterator<Item = &'w str>) -> String {
    near(word, known).map(|known| format!("; did you mean `{known}`?")).unwrap_or_default()
}

/// Edit distance: the number of changes that turn one word into the other.
fn distance(a: &[char], b: &[char]) -> usize {
    let mut rows = vec![(0..=b.len()).collect::<Vec<_>>()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let other = usize::from(a[i - 1] != b[j - 1]);
            let mut least = (rows[i - 1][j] + 1).min(row[j - 1] + 1).min(rows[i - 1][j - 1] + other);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                least = least.min(rows[i - 2][j - 2] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

/// Longest word that gets a suggestion, in letters.
const WORD_LEN_MAX: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_with_a_slip_is_known_and_another_one_is_not() {
        let known = ["mount", "bind", "unmount", "listen", "space", "nomux"];
        for (word, meant) in [
            ("moutn", Some("mount")),
            ("lisen", Some("listen")),
            ("umount", Some("unmount")),
            ("bnd", Some("bind")),
            ("Mount", Some("mount")),
            ("fly", None),
            ("", None),
            ("x", None),
        ] {
            assert_eq!(near(word, known), meant, "{word}");
        }
        assert_eq!(near(&"mount".repeat(1000), known), None);
        assert_eq!(hint("spcae", known), "; did you mean `space`?");
        assert_eq!(hint("fly", known), "");
    }
}
