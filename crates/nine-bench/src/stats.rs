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

/// Whether what should be the same each time was not.
pub fn varied(figures: &[f64]) -> bool {
    spread(figures) > STEADY
}

/// The figure below which this share of them lies, one of them.
fn quantile(figures: &[f64], share: f64) -> Option<f64> {
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
    fn one_round_in_twenty_is_no_noise() {
        let mut figures = vec![100.0; 20];
        figures[7] = 900.0;
        assert!(!varied(&figures));
    }
}
