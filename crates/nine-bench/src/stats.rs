//! Statistics over the figures of many rounds.

/// A contestant counts as varied if the range of its rounds, without the extreme tenths, exceeds this share of the
/// median.
const STEADY: f64 = 0.2;

/// Returns the median; for an even number of figures, the mean of the middle two. `None` without figures.
pub fn median(figures: &[f64]) -> Option<f64> {
    Some((quantile(figures, 0.5 - 1e-9)? + quantile(figures, 0.5 + 1e-9)?) / 2.0)
}

/// Returns the range from the 10th to the 90th percentile as a share of the median; 0 for fewer than two figures.
pub fn spread(figures: &[f64]) -> f64 {
    let all = (quantile(figures, 0.1), median(figures), quantile(figures, 0.9));
    let (Some(low), Some(middle), Some(high)) = all else { return 0.0 };
    if middle == 0.0 { 0.0 } else { (high - low) / middle }
}

/// Returns the exponent of growth: the slope of log(y) over log(x), by least squares, in the upper half of the range of
/// log(x). `None` for fewer than two points there.
pub fn growth(points: &[(f64, f64)]) -> Option<f64> {
    Some(line(points)?.0)
}

/// Returns the point in the upper half that is furthest from the line of [`growth`]: its x, and the ratio of its y to
/// the line's.
pub fn furthest(points: &[(f64, f64)]) -> Option<(f64, f64)> {
    let (slope, at_one) = line(points)?;
    let off = |&(x, y): &(f64, f64)| (x, (y.ln() - at_one - slope * x.ln()).exp());
    let far = |(_, off): &(f64, f64)| off.ln().abs();
    upper_half(points).iter().map(off).max_by(|a, b| far(a).total_cmp(&far(b)))
}

/// Returns the slope of the line, and its log(y) at x = 1.
fn line(points: &[(f64, f64)]) -> Option<(f64, f64)> {
    let logs: Vec<_> = upper_half(points).iter().map(|(x, y)| (x.ln(), y.ln())).collect();
    let n = logs.len() as f64;
    let (x, y) = logs.iter().fold((0.0, 0.0), |sum, at| (sum.0 + at.0 / n, sum.1 + at.1 / n));
    let (xy, xx) = logs
        .iter()
        .fold((0.0, 0.0), |sum, at| (sum.0 + (at.0 - x) * (at.1 - y), sum.1 + (at.0 - x) * (at.0 - x)));
    (logs.len() > 1).then(|| (xy / xx, y - xy / xx * x))
}

fn upper_half(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let most = points.iter().fold(1.0, |most: f64, (x, _)| most.max(*x));
    let least = points.iter().fold(most, |least, (x, _)| least.min(*x));
    points.iter().filter(|(x, _)| x.ln() * 2.0 >= (least * most).ln() - 1e-9).copied().collect()
}

/// Returns whether figures that should be equal varied.
pub fn varied(figures: &[f64]) -> bool {
    spread(figures) > STEADY
}

/// Returns the quantile at this share: always one of the figures.
pub fn quantile(figures: &[f64], share: f64) -> Option<f64> {
    let mut sorted = figures.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let last = sorted.len().checked_sub(1)?;
    Some(sorted[(share * last as f64).round() as usize])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_stands_in_the_middle_whatever_the_order() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0]), Some(3.0));
        assert_eq!(median(&[9.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), Some(2.5));
        assert_eq!(median(&[1e9, 1.0, 1.0, 1.0, 1.0]), Some(1.0));
    }

    #[test]
    fn more_than_a_fifth_is_noise() {
        assert!(!varied(&[]));
        assert!(!varied(&[100.0]));
        assert!(!varied(&[95.0, 100.0, 105.0]));
        assert!(varied(&[85.0, 100.0, 110.0]));
        assert!(varied(&[100.0, 100.0, 130.0]));
    }

    #[test]
    fn growth_is_the_exponent_of_the_upper_half_alone() {
        let law = |exponent: f64| move |n: i32| (2f64.powi(n), 7.0 * 2f64.powi(n).powf(exponent));
        for exponent in [0.0, 0.5, 1.0, 1.3] {
            let points: Vec<_> = (0..13).map(law(exponent)).collect();
            assert!((growth(&points).unwrap() - exponent).abs() < 1e-9);
        }
        let mut points: Vec<_> = (0..13).map(law(1.0)).collect();
        points[..6].iter_mut().for_each(|point| point.1 = 1e6);
        assert!((growth(&points).unwrap() - 1.0).abs() < 1e-9);
        points[9].1 *= 2.0;
        assert_eq!(furthest(&points).unwrap().0, 512.0);
        assert_eq!((growth(&points[..1]), growth(&[])), (None, None));
    }

    #[test]
    fn one_round_in_twenty_is_no_noise() {
        let mut figures = vec![100.0; 20];
        figures[7] = 900.0;
        assert!(!varied(&figures));
    }
}
