//! Partitions: what is an image, the lines of a policy, and words.

use nine_servers::part::{Policy, is_image, quote, words};

/// Any bytes are an image or none, and a policy or wrong at a line that is there; words come back as they were.
pub fn part(data: &[u8]) {
    is_image(data);
    is_image(&[&b"\x7fELF\x02\x01"[..], data].concat());
    let text = String::from_utf8_lossy(data);
    if let Err(why) = text.parse::<Policy>() {
        let line = why.strip_prefix("line ").and_then(|rest| rest.split(':').next()?.parse::<usize>().ok());
        assert!(line.is_some_and(|line| (1..=text.lines().count()).contains(&line)), "{why}");
    }
    if let Ok(all) = words(&text) {
        let line: Vec<String> = all.iter().map(|word| quote(word)).collect();
        assert_eq!(words(&line.join(" ")).ok(), Some(all));
    }
}
