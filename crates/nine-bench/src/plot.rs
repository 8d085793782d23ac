//! Figures as SVG: points and lines. An axis is logarithmic if its values span a wide range.
//!
//! In: curves of positive points. Out: one file for each figure, readable on white and on dark backgrounds.

use std::fmt::Write as _;
use std::io;
use std::path::Path;

/// The labels of a figure.
#[derive(Clone, Copy, Debug)]
pub struct PlotLabels {
    /// File name without `.svg`.
    pub file: &'static str,
    pub title: &'static str,
    /// Labels of the axes, with units.
    pub x: &'static str,
    pub y: &'static str,
}

/// A figure.
#[derive(Clone, Debug)]
pub struct PlotFigure {
    pub plot: PlotLabels,
    /// Curves with their names.
    pub curves: Vec<(&'static str, Vec<(f64, f64)>)>,
}

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 400.0;
/// Margins for labels: left, right, top, bottom.
const MARGINS: [f64; 4] = [72.0, 16.0, 34.0, 48.0];
const COLOURS: [&str; 7] = ["#1f77b4", "#d9730d", "#7f7f7f", "#2ca02c", "#9467bd", "#8c564b", "#b8a000"];
/// The x axis is logarithmic if its largest value is at least `WIDE` times its smallest.
/// The y axis is only logarithmic if the x axis is, and if its own ratio is at least `HIGH`.
const WIDE: f64 = 32.0;
const HIGH: f64 = 3.0;

impl PlotFigure {
    /// Writes the figure into a directory, which is created if necessary.
    pub fn write(&self, dir: &Path) -> io::Result<()> {
        std::fs::create_dir_all(dir)?;
        std::fs::write(dir.join(self.plot.file).with_extension("svg"), self.svg())
    }

    fn svg(&self) -> String {
        let points = || self.curves.iter().flat_map(|(_, points)| points);
        let (x, y) =
            (PlotAxis::of(points().map(|point| point.0)), PlotAxis::of(points().map(|point| point.1)));
        let is_wide = x.most / x.least >= WIDE;
        let is_high = is_wide && y.most / y.least >= HIGH;
        let x = if is_wide { x.in_decades() } else { x.above_zero() };
        let y = if is_high { y.in_decades() } else { y.above_zero() };
        let [left, right, top, bottom] = MARGINS;
        let across = |value| left + x.share(value) * (WIDTH - left - right);
        let up = |value| HEIGHT - bottom - y.share(value) * (HEIGHT - top - bottom);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" \
             font-size=\"12\">\n<rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n"
        );
        let mut text = |x: f64, y: f64, anchor: &str, more: &str, words: &str| {
            let _ = writeln!(
                svg,
                "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\"{more}>{words}</text>"
            );
        };
        let (middle, base) = (left + (WIDTH - left - right) / 2.0, HEIGHT - bottom);
        let centre = top + (base - top) / 2.0;
        text(middle, 18.0, "middle", " font-weight=\"bold\"", self.plot.title);
        text(middle, HEIGHT - 10.0, "middle", "", self.plot.x);
        text(16.0, centre, "middle", &format!(" transform=\"rotate(-90 16 {centre:.1})\""), self.plot.y);
        for tick in x.ticks() {
            text(across(tick), base + 16.0, "middle", "", &short(tick));
        }
        for tick in y.ticks() {
            text(left - 6.0, up(tick) + 4.0, "end", "", &short(tick));
        }
        // Put the names where no curve begins.
        let firsts = || self.curves.iter().filter_map(|(_, points)| Some(y.share(points.first()?.1)));
        let is_falling = firsts().sum::<f64>() > 0.6 * firsts().count() as f64;
        let names = if is_falling { base - 16.0 * self.curves.len() as f64 } else { top + 16.0 };
        for (n, (name, _)) in self.curves.iter().enumerate() {
            let (x, y) = (left + 12.0, names + 16.0 * n as f64);
            text(x, y, "start", &format!(" fill=\"{}\"", COLOURS[n % COLOURS.len()]), name);
        }
        let mut path = |points: &[(f64, f64)], colour: &str, width: f64| {
            let all: Vec<_> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
            let all = all.join(" ");
            let _ = writeln!(
                svg,
                "<polyline points=\"{all}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width}\"/>"
            );
        };
        for tick in x.ticks() {
            path(&[(across(tick), top), (across(tick), base)], "#e0e0e0", 1.0);
        }
        for tick in y.ticks() {
            path(&[(left, up(tick)), (WIDTH - right, up(tick))], "#e0e0e0", 1.0);
        }
        path(&[(left, top), (left, base), (WIDTH - right, base)], "black", 1.0);
        for (n, (_, points)) in self.curves.iter().enumerate() {
            let at: Vec<_> = points.iter().map(|&(x, y)| (across(x), up(y))).collect();
            path(&at, COLOURS[n % COLOURS.len()], 1.5);
        }
        for (n, (_, points)) in self.curves.iter().enumerate() {
            for &(x, y) in points {
                let colour = COLOURS[n % COLOURS.len()];
                let _ = writeln!(
                    svg,
                    "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\" fill=\"{colour}\"/>",
                    across(x),
                    up(y)
                );
            }
        }
        svg + "</svg>\n"
    }
}

/// The range of an axis.
struct PlotAxis {
    least: f64,
    most: f64,
    is_log: bool,
}

impl PlotAxis {
    /// Returns the range of the values; without values, one decade.
    fn of(values: impl Iterator<Item = f64> + Clone) -> Self {
        let values = values.filter(|value| value.is_finite() && *value > 0.0);
        let (least, most) = (values.clone().fold(f64::MAX, f64::min), values.fold(0.0, f64::max));
        let (least, most) = if least <= most { (least, most) } else { (1.0, 10.0) };
        Self { least, most, is_log: false }
    }

    /// Extends the range to whole decades, logarithmic.
    fn in_decades(self) -> Self {
        let decade = |value: f64| 10f64.powf(value);
        let (least, most) = (decade(self.least.log10().floor()), decade(self.most.log10().ceil()));
        Self { least, most: most.max(least * 10.0), is_log: true }
    }

    fn above_zero(self) -> Self {
        Self { least: 0.0, most: self.most * 1.05, is_log: false }
    }

    fn share(&self, value: f64) -> f64 {
        match self.is_log {
            true => (value / self.least).ln() / (self.most / self.least).ln(),
            false => value / self.most,
        }
    }

    fn ticks(&self) -> Vec<f64> {
        if self.is_log {
            return std::iter::successors(Some(self.least), |tick| Some(tick * 10.0))
                .take_while(|tick| *tick <= self.most * 1.001)
                .collect();
        }
        let rough = 10f64.powf((self.most / 4.0).log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|n| n * rough).into_iter().find(|step| self.most / step <= 8.0);
        let step = step.unwrap_or(10.0 * rough);
        (0..).map(|n| f64::from(n) * step).take_while(|tick| *tick <= self.most).collect()
    }
}

/// Formats a value at an axis.
fn short(value: f64) -> String {
    match value {
        v if v >= 1e6 => format!("{} M", v / 1e6),
        v if v >= 1e4 => format!("{} k", v / 1e3),
        v => format!("{}", (v * 1000.0).round() / 1000.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(points: &[(f64, f64)]) -> String {
        let plot = PlotLabels { file: "f", title: "T", x: "clients", y: "us" };
        PlotFigure { plot, curves: vec![("ours", points.to_vec())] }.svg()
    }

    #[test]
    fn a_power_law_is_a_straight_line_where_the_range_is_wide() {
        let svg = figure(&[(1.0, 10.0), (10.0, 100.0), (100.0, 1000.0)]);
        let line = svg.lines().rfind(|line| line.starts_with("<polyline")).unwrap();
        assert!(line.contains("points=\"72.0,352.0 348.0,193.0 624.0,34.0\""), "{line}");
        assert_eq!(svg.matches("<circle").count(), 3);
    }

    #[test]
    fn a_figure_of_nothing_has_axes_all_the_same() {
        for points in [&[][..], &[(0.0, 0.0)], &[(f64::NAN, f64::INFINITY)], &[(1.0, 0.0), (5.0, -1.0)]] {
            let svg = figure(points);
            assert!(svg.len() < 4000 && svg.contains("clients"), "{points:?}: {svg}");
        }
    }

    #[test]
    fn what_falls_or_stays_leaves_the_lower_corner_to_the_names() {
        let low = |svg: &str| {
            svg.lines().any(|line| line.contains("y=\"336.0\"") && line.ends_with(">ours</text>"))
        };
        assert!(low(&figure(&[(1.0, 12.0), (200.0, 9.0)])));
        assert!(!low(&figure(&[(1.0, 1.0), (200.0, 300.0)])));
    }

    #[test]
    fn a_narrow_range_begins_at_zero() {
        let svg = figure(&[(1.0, 5.0), (16.0, 20.0)]);
        assert!(
            svg.contains(">0</text>") && svg.contains(">clients</text>") && svg.contains(">us</text>"),
            "{svg}"
        );
        let ticks = PlotAxis::of([1.0, 16.0].into_iter()).above_zero().ticks();
        assert_eq!(ticks, [0.0, 5.0, 10.0, 15.0]);
    }
}
