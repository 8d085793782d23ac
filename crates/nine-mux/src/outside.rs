//! What a mux needs of the world around it, and what is only there where [`run`](crate::Mux::run) is polled: the time,
//! timers, and tasks. Errands for it are left here, from any thread.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
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
    /// Who wants to be woken after so long; one for each job at most.
    alarms: Vec<(Duration, Arc<Alarm>)>,
    /// The times at the latest visit, and how many visits there were.
    now: Duration,
    wall: Duration,
    visits: u64,
    runner: Option<Waker>,
}

/// A timer, between who has set it and the task in which it runs. Who needs it no more takes it back: a timer that is
/// kept has the runtime look at the clock whenever it sleeps.
#[derive(Default)]
struct Alarm(Mutex<State>);

#[derive(Default)]
struct State {
    over: bool,
    setter: Option<Waker>,
    task: Option<Waker>,
}

impl Alarm {
    /// It rings, or is taken back.
    fn end(&self) {
        let wakers = {
            let mut state = lock(&self.0);
            state.over = true;
            [state.setter.take(), state.task.take()]
        };
        wakers.into_iter().flatten().for_each(Waker::wake);
    }

    fn poll(&self, cx: &mut Context<'_>, waits: fn(&mut State) -> &mut Option<Waker>) -> Poll<()> {
        let mut state = lock(&self.0);
        if state.over {
            return Poll::Ready(());
        }
        *waits(&mut state) = Some(cx.waker().clone());
        Poll::Pending
    }
}

/// An alarm in the hands of who has set it.
struct Set(Arc<Alarm>);

impl Drop for Set {
    fn drop(&mut self) {
        self.0.end();
    }
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

    /// The time since 1970.
    pub(crate) async fn wall(&self) -> Duration {
        self.now().await;
        lock(&self.0).wall
    }

    /// What a future comes to, unless `limit` passes before.
    pub(crate) async fn within<T>(&self, limit: Duration, future: impl Future<Output = T>) -> Option<T> {
        let mut future = pin!(future);
        let mut alarm: Option<Set> = None;
        poll_fn(|cx| {
            if let Poll::Ready(value) = future.as_mut().poll(cx) {
                return Poll::Ready(Some(value));
            }
            let alarm = alarm.get_or_insert_with(|| {
                let alarm = Arc::<Alarm>::default();
                let runner = {
                    let mut errands = lock(&self.0);
                    errands.alarms.push((limit, alarm.clone()));
                    errands.runner.take()
                };
                runner.into_iter().for_each(Waker::wake);
                Set(alarm)
            });
            alarm.0.poll(cx, |state| &mut state.setter).map(|()| None)
        })
        .await
    }

    /// Does the errands, and remembers to be woken for the next.
    pub(crate) fn visit(&self, env: &impl Env, cx: &mut Context<'_>) {
        let (tasks, asking, alarms) = {
            let mut errands = lock(&self.0);
            (errands.now, errands.wall) = (env.now(), env.wall());
            errands.visits += 1;
            errands.runner = Some(cx.waker().clone());
            let Errands { tasks, asking, alarms, .. } = &mut *errands;
            (std::mem::take(tasks), std::mem::take(asking), std::mem::take(alarms))
        };
        for (limit, alarm) in alarms {
            let mut timer = env.sleep_until(env.now() + limit);
            env.spawn(Box::pin(poll_fn(move |cx| {
                if timer.as_mut().poll(cx).is_ready() {
                    alarm.end();
                }
                alarm.poll(cx, |state| &mut state.task)
            })));
        }
        for task in tasks {
            env.spawn(task);
        }
        asking.into_iter().for_each(Waker::wake);
    }
}
