//! The measures: the name of each, its goal, and how much worse it may get before `cargo xtask tidy` fails.

/// The values that are good enough. The goals are those of the projects we learn from, with some room.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MeasureGoal {
    AtMost(f64),
    AtLeast(f64),
}

impl MeasureGoal {
    /// How far a value is from the goal; zero when it is met.
    pub fn distance(self, value: f64) -> f64 {
        match self {
            MeasureGoal::AtMost(most) => (value - most).max(0.0),
            MeasureGoal::AtLeast(least) => (least - value).max(0.0),
        }
    }

    /// Whether a value is better than another one.
    pub fn is_better(self, value: f64, than: f64) -> bool {
        match self {
            MeasureGoal::AtMost(_) => value < than,
            MeasureGoal::AtLeast(_) => value > than,
        }
    }
}

impl std::fmt::Display for MeasureGoal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            MeasureGoal::AtMost(0.0) => write!(f, "0"),
            MeasureGoal::AtMost(most) => write!(f, "<= {most}"),
            MeasureGoal::AtLeast(least) => write!(f, ">= {least}"),
        }
    }
}

/// How the ratchet keeps a measure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MeasureUnit {
    /// A number of places.
    Count,
    /// A number of places, with a goal for their percentage. A deletion elsewhere does not change the number.
    CountOfShare,
    /// A number of places, with a goal for their number per 1,000 words.
    CountOfRate,
    /// A ratio with one decimal, which may get worse by `slack`. Blessing never writes a worse number, so that the
    /// slack does not add up.
    Ratio { slack: f64 },
}

/// One measure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LanguageMeasure {
    /// The name of the column.
    pub name: &'static str,
    /// The measure in words.
    pub meaning: &'static str,
    pub goal: MeasureGoal,
    pub unit: MeasureUnit,
}

impl LanguageMeasure {
    /// The goal, with the unit that it is about.
    pub fn goal_text(&self) -> String {
        match self.unit {
            MeasureUnit::CountOfShare => format!("{}%", self.goal),
            _ => self.goal.to_string(),
        }
    }
}

const fn measure(
    name: &'static str,
    goal: MeasureGoal,
    unit: MeasureUnit,
    meaning: &'static str,
) -> LanguageMeasure {
    LanguageMeasure { name, meaning, goal, unit }
}

/// A ratio moves with the text around an offence, so that a paragraph may be cut without a search for one word.
const RATIO: MeasureUnit = MeasureUnit::Ratio { slack: 0.3 };
const WIDE_RATIO: MeasureUnit = MeasureUnit::Ratio { slack: 1.0 };

/// The measures of a crate, in the order of the columns.
pub const CRATE_MEASURES: &[LanguageMeasure] = &[
    measure("one-word", MeasureGoal::AtMost(25.0), MeasureUnit::CountOfShare, "types with a one-word name"),
    measure(
        "repeated",
        MeasureGoal::AtMost(12.0),
        MeasureUnit::CountOfShare,
        "types with the name of another type",
    ),
    measure("forbidden", MeasureGoal::AtMost(0.0), MeasureUnit::Count, "types with a forbidden name"),
    measure("renamed", MeasureGoal::AtMost(0.0), MeasureUnit::Count, "imports `A as B` from our own crates"),
    measure(
        "constants",
        MeasureGoal::AtMost(0.0),
        MeasureUnit::Count,
        "constants named MOST, LEAST and the like",
    ),
    measure(
        "layout",
        MeasureGoal::AtMost(0.0),
        MeasureUnit::Count,
        "modules not in the crate's more frequent layout",
    ),
    measure("what-who", MeasureGoal::AtMost(3.0), RATIO, "what, who, whose, whom in 1,000 words of comments"),
    measure(
        "what-first",
        MeasureGoal::AtMost(0.5),
        RATIO,
        "percent of comment sentences that begin with What or Who",
    ),
    measure("coinages", MeasureGoal::AtMost(0.5), MeasureUnit::CountOfRate, "coined words in comments"),
    measure(
        "comments",
        MeasureGoal::AtLeast(18.0),
        WIDE_RATIO,
        "comment lines on 100 code lines (18 to 25 are usual)",
    ),
    measure("no-docs", MeasureGoal::AtMost(0.0), MeasureUnit::Count, "public items without documentation"),
];

/// The measures of a document, in the order of the columns.
pub const DOCUMENT_MEASURES: &[LanguageMeasure] = &[
    measure("mean", MeasureGoal::AtMost(16.0), RATIO, "words in a sentence, mean"),
    measure("p90", MeasureGoal::AtMost(26.0), WIDE_RATIO, "words in a sentence, 90th percentile"),
    measure("what-who", MeasureGoal::AtMost(3.0), RATIO, "what, who, whose, whom in 1,000 words"),
    measure("you", MeasureGoal::AtLeast(5.0), RATIO, "you, your in 1,000 words"),
    measure("coinages", MeasureGoal::AtMost(0.5), MeasureUnit::CountOfRate, "coined words"),
];

/// The documents that speak to the reader. The goal of `you` holds in these alone. A name with a slash at its end is a
/// folder.
pub const GUIDES: &[&str] = &[
    "CONTRIBUTING.md",
    "README.md",
    "docs/archive.md",
    "docs/c.md",
    "docs/guest.md",
    "docs/how-to/",
    "docs/http.md",
    "docs/keys.md",
    "docs/mount.md",
    "docs/namespace.md",
    "docs/net.md",
    "docs/python.md",
    "docs/service.md",
    "docs/start/",
    "docs/streams.md",
];

/// Whether a document speaks to the reader.
pub fn is_guide(path: &str) -> bool {
    GUIDES.iter().any(|guide| path == *guide || guide.ends_with('/') && path.starts_with(guide))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_is_zero_within_the_goal() {
        assert_eq!(MeasureGoal::AtMost(3.0).distance(3.0), 0.0);
        assert_eq!(MeasureGoal::AtMost(3.0).distance(4.5), 1.5);
        assert_eq!(MeasureGoal::AtLeast(5.0).distance(4.0), 1.0);
    }

    #[test]
    fn better_means_nearer_to_the_goal() {
        assert!(MeasureGoal::AtMost(3.0).is_better(1.0, 2.0));
        assert!(!MeasureGoal::AtLeast(5.0).is_better(1.0, 2.0));
    }

    #[test]
    fn folders_of_guides_hold_guides() {
        assert!(is_guide("README.md") && is_guide("docs/start/a.md"));
        assert!(!is_guide("docs/README.md") && !is_guide("docs/starting.md"));
    }
}
