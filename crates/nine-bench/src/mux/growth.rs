//! Evaluates rows that differ only in size: the exponent of growth, and the figure.

use crate::plot::{PlotFigure, PlotLabels};
use crate::report::{BenchReport, ReportRow};
use crate::stats::{furthest, growth, median};

/// Growth of a cost with a number of things.
pub struct CostGrowth<'a> {
    pub key: &'static str,
    pub plot: PlotLabels,
    /// Names of the curves of ours, the peer and the limit; empty if there is none.
    pub curves: [&'static str; 3],
    /// The size of each row.
    pub sizes: &'a [usize],
}

impl CostGrowth<'_> {
    /// Adds rows, key, figure and a note to the report. The exponent is the median over the rounds: all turns of a
    /// round ran under the same conditions.
    pub fn tell(self, report: &mut BenchReport, rows: Vec<ReportRow>) -> Option<f64> {
        type Figures = fn(&ReportRow) -> &Vec<f64>;
        let all: [Figures; 3] = [|row| &row.ours, |row| &row.peer, |row| &row.limit];
        let mut curves = Vec::new();
        let rounds = rows.iter().map(|row| row.ours.len()).min().unwrap_or(0);
        let mut note = format!("{}, {rounds} rounds:", self.plot.title);
        for (name, figures) in self.curves.into_iter().zip(all).filter(|(name, _)| !name.is_empty()) {
            let sized = |pick: &dyn Fn(&[f64]) -> Option<f64>| -> Option<Vec<(f64, f64)>> {
                let point = |(&n, row)| Some((n as f64, pick(figures(row))?));
                self.sizes.iter().zip(&rows).map(point).collect()
            };
            let Some(middle) = sized(&|figures| median(figures)) else { continue };
            let rounds = (0..).map_while(|round| sized(&|figures| figures.get(round).copied()));
            let exponents: Vec<f64> = rounds.filter_map(|points| growth(&points)).collect();
            if let (Some(exponent), Some((at, off))) = (median(&exponents), furthest(&middle)) {
                let off = (off - 1.0) * 100.0;
                note +=
                    &format!(" {name}: exponent {exponent:.3}, furthest from the line {off:+.1} % at {at};");
                curves.push((name, middle, Some(exponent)));
            }
        }
        report.notes.push(note.trim_end_matches(';').into());
        let exponent = curves.first().and_then(|(_, _, exponent)| *exponent);
        let curves = curves.into_iter().map(|(name, points, _)| (name, points)).collect();
        report.figures.push(PlotFigure { plot: self.plot, curves });
        for row in rows {
            report.push(row);
        }
        if !self.key.is_empty() {
            report.key(self.key, exponent);
        }
        exponent
    }
}
