//! Retries of requests.
//!
//! In: a request, and its timeout. Out: its answer, or the last fault.

use std::future::Future;
use std::time::Duration;

use crate::objects::{Fault, Objects};

/// How long a request is retried before its operation fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience(pub Duration);

impl Patience {
    /// The first delay.
    pub(crate) const RETRY_DELAY_MIN: Duration = Duration::from_millis(50);
    /// The longest delay.
    const RETRY_DELAY_MAX: Duration = Duration::from_secs(5);

    /// Makes a request, and repeats it after [`Fault::Later`] until the time is over. Delays double up to a maximum.
    /// Each is chosen at random between half and all of its length.
    pub(crate) async fn again<T, F: Future<Output = Result<T, Fault>>>(
        self,
        objects: &dyn Objects,
        mut ask: impl FnMut() -> F,
    ) -> Result<T, Fault> {
        let (begun, mut pause, mut asked) = (objects.now(), Self::RETRY_DELAY_MIN, 0u32);
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
            pause = (pause * 2).min(Self::RETRY_DELAY_MAX);
        }
    }
}

impl Default for Patience {
    fn default() -> Self {
        Self(Duration::from_secs(60))
    }
}
