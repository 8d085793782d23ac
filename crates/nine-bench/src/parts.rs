//! The parts of an experiment: all of them, or the one that `--only` names.

use std::io;

use crate::report::BenchReport;

/// The name of a part, and the function that measures it.
pub type ExperimentPart<C> = (&'static str, fn(&C, &mut BenchReport) -> io::Result<()>);

/// Returns the selected parts.
pub fn chosen<C>(all: &[ExperimentPart<C>], only: Option<&str>) -> io::Result<Vec<ExperimentPart<C>>> {
    let chosen: Vec<_> =
        all.iter().filter(|(name, _)| only.is_none_or(|only| only == *name)).copied().collect();
    if chosen.is_empty() {
        let names: Vec<_> = all.iter().map(|(name, _)| *name).collect();
        return Err(io::Error::other(format!("there is no such part, but {}", names.join(", "))));
    }
    Ok(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_part_all_parts_or_their_names() {
        let nothing = |_: &(), _: &mut BenchReport| Ok(());
        let all: [ExperimentPart<()>; 2] = [("a", nothing), ("b", nothing)];
        let names =
            |only| chosen(&all, only).map(|parts| parts.iter().map(|part| part.0).collect::<Vec<_>>());
        assert_eq!(names(None).unwrap(), ["a", "b"]);
        assert_eq!(names(Some("b")).unwrap(), ["b"]);
        assert!(names(Some("c")).unwrap_err().to_string().ends_with("but a, b"));
    }
}
