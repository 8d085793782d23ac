//! What a mux needs of the world around it, and what is only there where [`run`](crate::Mux::run) is polled: the time,
//! and tasks. Errands for it are left here, from any thread.

use std::future::poll_fn;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use nine_net::Env;

use crate::sync::{Mutex, lock};
use crate::upstream::{Boxed, Spawn};

#[derive(Default)]
pub(crate) struct Outside(Mutex<Errands>);

#[derive(Default)]
struct Errands {
    /// Drivers of upstreams that were just reached: one for each connection.
    tasks: Vec<Boxed<()>>,
    /// Who wants to know the time; one for each job at most.
    asking: Vec<Waker>,
    /// The time at the latest visit, and how many visits there were.
    now: Duration,
    visits: u64,
    runner: Option<Waker>,
}

impl Spawn for Outside {
    fn spawn(&self, task: Boxed<()>) {
        let runner = {
            let mut errands = lock(&self.0);
            errands.tasks.push(task);
            errands.runner.take()
        };
        runner.into_iter().for_each(Waker::wake);
    }
}

impl Outside {
    /// The time.
    pub(crate) async fn now(&self) -> Duration {
        let mut asked = None;
        poll_fn(|cx| {
            let runner = {
                let mut errands = lock(&self.0);
                match asked {
                    Some(visits) if visits != errands.visits => return Poll::Ready(errands.now),
                    _ => asked = Some(errands.visits),
                }
                errands.asking.push(cx.waker().clone());
                errands.runner.take()
            };
            runner.into_iter().for_each(Waker::wake);
            Poll::Pending
        })
        .await
    }

    /// Does the errands, and remembers to be woken for the next.
    pub(crate) fn visit(&self, env: &impl Env, cx: &mut Context<'_>) {
        let (tasks, asking) = {
            let mut errands = lock(&self.0);
            errands.now = env.now();
            errands.visits += 1;
            errands.runner = Some(cx.waker().clone());
            (std::mem::take(&mut errands.tasks), std::mem::take(&mut errands.asking))
        };
        for task in tasks {
            env.spawn(task);
        }
        asking.into_iter().for_each(Waker::wake);
    }
}
