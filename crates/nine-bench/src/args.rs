//! The command line: the experiment, its length, and the destination of the figures.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

pub const USAGE: &str =
    "usage: nine-bench LIST | NAME [--quick] [--only PART] [--json FILE] [--plots DIR] [--any-profile]";

#[derive(Debug, PartialEq)]
pub enum BenchArgs {
    List,
    Run {
        name: String,
        pace: BenchPace,
        only: Option<String>,
        json: Option<PathBuf>,
        plots: Option<PathBuf>,
        /// Print the result line for every build profile.
        any_profile: bool,
    },
}

/// The extent of the measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BenchPace {
    Full,
    Quick,
    /// For tests: everything runs, but no figure is meaningful.
    Tiny,
}

impl BenchArgs {
    pub fn parse(words: &[OsString]) -> Result<Self, String> {
        let (mut name, mut pace, mut only) = (None, BenchPace::Full, None);
        let (mut json, mut plots, mut any_profile) = (None, None, false);
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match word.to_str() {
                Some("--quick") => pace = BenchPace::Quick,
                Some("--any-profile") => any_profile = true,
                Some("--tiny") => pace = BenchPace::Tiny,
                Some("--only") => {
                    let part = words.next().and_then(|word| word.to_str());
                    only = Some(part.ok_or("--only wants the name of a part")?.to_string());
                }
                Some("--json") => {
                    json = Some(PathBuf::from(words.next().ok_or("--json wants the name of a file")?));
                }
                Some("--plots") => {
                    plots = Some(PathBuf::from(words.next().ok_or("--plots wants the name of a directory")?));
                }
                Some(flag) if flag.starts_with('-') => return Err(format!("{flag} is not known")),
                Some(word) if name.is_none() => name = Some(word.to_string()),
                _ => return Err(format!("{} is too much", word.display())),
            }
        }
        match name {
            None => Err("say what shall be measured".into()),
            Some(list) if list.eq_ignore_ascii_case("list") => Ok(Self::List),
            Some(name) => Ok(Self::Run { name, pace, only, json, plots, any_profile }),
        }
    }
}

impl BenchPace {
    /// Selects a value.
    pub fn of<T>(self, full: T, quick: T, tiny: T) -> T {
        match self {
            Self::Full => full,
            Self::Quick => quick,
            Self::Tiny => tiny,
        }
    }

    /// Returns the number of turns of each contestant.
    pub fn rounds(self) -> usize {
        self.of(25, 7, 2)
    }

    /// Returns the length of a turn.
    pub fn turn(self) -> Duration {
        Duration::from_millis(self.of(250, 100, 5))
    }

    /// Returns the time limit for the races of one figure.
    pub fn patience(self) -> Duration {
        Duration::from_secs(self.of(300, 30, 300))
    }

    pub fn promise(self) -> &'static str {
        self.of("it ends within 45 minutes", "it ends within 5 minutes", "tiny, its figures mean nothing")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<BenchArgs, String> {
        BenchArgs::parse(&line.split_whitespace().map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn a_name_and_its_flags_stand_in_any_order() {
        let run = |pace, json: Option<&str>| {
            let json = json.map(PathBuf::from);
            Ok(BenchArgs::Run { name: "rpc".into(), pace, only: None, json, plots: None, any_profile: false })
        };
        assert_eq!(parse("rpc"), run(BenchPace::Full, None));
        assert_eq!(parse("--quick rpc"), run(BenchPace::Quick, None));
        assert_eq!(parse("rpc --json out.json --quick"), run(BenchPace::Quick, Some("out.json")));
        assert_eq!(parse("LIST"), Ok(BenchArgs::List));
        assert_eq!(parse("list"), Ok(BenchArgs::List));
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for line in ["", "--quick", "rpc mux", "rpc --json", "rpc --only", "rpc --plots", "rpc --fast"] {
            assert!(parse(line).is_err(), "{line:?}");
        }
    }
}
