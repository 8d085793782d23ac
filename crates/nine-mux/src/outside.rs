//! What a mux needs of the world around it, and what is only there where [`run`](crate::Mux::run) is polled: the time,
//! timers, and tasks. Errands for it are left here, from any thread.
//!
//! Connections live on the cores of those who use them: core 0 polls `run`, the others are the [`Seat`]s.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use nine_io::server::{Seat, Who};
use nine_net::Env;
use nine_net::lock::{Mutex, lock};

use crate::upstream::{Boxed, Spawn};

#[derive(Default)]
pub(crate) struct Outside {
    errands: Mutex<Errands>,
    seats: OnceLock<Vec<Arc<Seat>>>,
}

#[derive(Default)]
struct Errands {
    /// Dials, and drivers of upstreams that were just reached: one for each connection.
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

/// An alarm in the hands of who has set it, or who rings it: it is over when either lets go.
struct Set(Arc<Alarm>);

impl Drop for Set {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// One core of the [`Outside`].
#[derive(Clone)]
pub(crate) struct Place {
    pub(crate) outside: Arc<Outside>,
    seat: usize,
}

impl Spawn for Place {
    fn spawn(&self, task: Boxed<()>) {
        match self.seat.checked_sub(1) {
            Some(n) => self.outside.seats()[n].spawn(task),
            None => self.outside.errand(|errands| errands.tasks.push(task)),
        }
    }
}

impl Place {
    /// What a future comes to that runs there: what it opens is of that core's reactor. Dropping this drops the future;
    /// `None`: it did not come to its end.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        if self.outside.seats().is_empty() {
            return Some(future.await);
        }
        let alarm = Arc::<Alarm>::default();
        let (rings, told) = (Set(alarm.clone()), Arc::new(Mutex::new(None)));
        let tell = told.clone();
        self.spawn(Box::pin(async move {
            let mut future = pin!(future);
            let value = poll_fn(|cx| match rings.0.poll(cx, |state| &mut state.task) {
                Poll::Ready(()) => Poll::Ready(None),
                Poll::Pending => future.as_mut().poll(cx).map(Some),
            });
            *lock(&tell) = value.await;
            // Whoever waits is told by the end of this.
            drop(rings);
        }));
        let waits = Set(alarm);
        poll_fn(|cx| waits.0.poll(cx, |state| &mut state.setter)).await;
        lock(&told).take()
    }
}

impl Outside {
    /// The other cores, once they are known: before the first client.
    pub(crate) fn sit(&self, seats: Vec<Arc<Seat>>) {
        let _ = self.seats.set(seats);
    }

    /// Empty: there is one core.
    pub(crate) fn seats(&self) -> &[Arc<Seat>] {
        self.seats.get().map_or(&[], Vec::as_slice)
    }

    /// The number by which a client chooses its lane: as many lanes as cores keep each client to a lane of its core.
    pub(crate) fn number(&self, conn: u64, who: &Who) -> u64 {
        conn * (self.seats().len() as u64 + 1) + u64::from(who.seat)
    }

    /// The core of a lane.
    pub(crate) fn place(self: &Arc<Self>, lane: u16) -> Place {
        Place { outside: self.clone(), seat: usize::from(lane) % (self.seats().len() + 1) }
    }

    fn errand(&self, leave: impl FnOnce(&mut Errands)) {
        let runner = {
            let mut errands = lock(&self.errands);
            leave(&mut errands);
            errands.runner.take()
        };
        runner.into_iter().for_each(Waker::wake);
    }

    /// The time.
    pub(crate) async fn now(&self) -> Duration {
        let mut asked = None;
        poll_fn(|cx| {
            let runner = {
                let mut errands = lock(&self.errands);
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
        lock(&self.errands).wall
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
                self.errand(|errands| errands.alarms.push((limit, alarm.clone())));
                Set(alarm)
            });
            alarm.0.poll(cx, |state| &mut state.setter).map(|()| None)
        })
        .await
    }

    /// Does the errands, and remembers to be woken for the next.
    pub(crate) fn visit(&self, env: &impl Env, cx: &mut Context<'_>) {
        let (tasks, asking, alarms) = {
            let mut errands = lock(&self.errands);
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
