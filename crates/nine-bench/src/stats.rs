//! What is made of the figures of many rounds.

/// A contestant varied when its rounds, the extreme tenths left out, lie further apart than this share of the median.
const STEADY: f64 = 0.2;

/// The middle one; of an even number the mean of the two in the middle. `None` of nothing.
pub fn median(figures: &[f64]) -> Option<f64> {
    Some((quantile(figures, 0.5 - 1e-9)? + quantile(figures, 0.5 + 1e-9)?) / 2.0)
}

/// From the tenth to the ninetieth percentile, as a share of the median; 0 of fewer than two.
pub fn spread(figures: &[f64]) -> f64 {
    let all = (quantile(figures, 0.1), median(figures), quantile(figures, 0.9));
    let (Some(low), Some(middle), Some(high)) = all else { return 0.0 };
    if middle == 0.0 { 0.0 } else { (high - low) / middle }
}

/// The exponent of growth: the slope of log(y) over log(x), by least squares, in the upper half of the range of log(x).
/// `None` of fewer than two points there.
pub fn growth(points: &[(f64, f64)]) -> Option<f64> {
    Some(line(points)?.0)
}

/// Where in the upper half a point is furthest from the line of [`growth`]: its x, and y over that of the line.
pub fn furthest(points: &[(f64, f64)]) -> Option<(f64, f64)> {
    let (slope, at_one) = line(points)?;
    let off = |&(x, y): &(f64, f64)| (x, (y.ln() - at_one - slope * x.ln()).exp());
    let far = |(_, off): &(f64, f64)| off.ln().abs();
    upper_half(points).iter().map(off).max_by(|a, b| far(a).total_cmp(&far(b)))
}

/// The slope, and the line's log(y) at x = 1.
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

/// Whether what should be the same each time was not.
pub fn varied(figures: &[f64]) -> bool {
    spread(figures) > STEADY
}

/// The figure below which this share of them lies, one of them.
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
