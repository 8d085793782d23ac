//! Requests that are asked again.
//!
//! In: a request, and how long it may fail. Out: its answer, or the fault that it had last.

use std::future::Future;
use std::time::Duration;

use crate::objects::{Fault, Objects};

/// How long a request may fail before its operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience(pub Duration);

impl Patience {
    /// The first pause.
    pub(crate) const FIRST: Duration = Duration::from_millis(50);
    /// The longest.
    const LONGEST: Duration = Duration::from_secs(5);

    /// Asks until there is an answer that stands: each pause is by chance between half of its length and all of it, and
    /// twice as long as the one before.
    pub(crate) async fn again<T, F: Future<Output = Result<T, Fault>>>(
        self,
        objects: &dyn Objects,
        mut ask: impl FnMut() -> F,
    ) -> Result<T, Fault> {
        let (begun, mut pause, mut asked) = (objects.now(), Self::FIRST, 0u32);
        loop {
            asked += 1;
            let text = match ask().await {
                Err(Fault::Later(text)) => text,
                answer => return answer,
            };
            let half = pause / 2;
            let jitter = half.mul_f64((objects.random() as u32) as f64 / f64::from(u32::MAX));
            if objects.now() + half + jitter >= begun + self.0 {
                let seconds = (objects.now() - begun).as_secs_f64();
                return Err(Fault::Later(format!("{text} (asked {asked} times in {seconds:.1} s)")));
            }
            objects.rest(half + jitter).await;
            pause = (pause * 2).min(Self::LONGEST);
        }
    }
}

impl Default for Patience {
    fn default() -> Self {
        Self(Duration::from_secs(60))
    }
}
