//! The mux's access to the time, timers and tasks, which exist only where [`run`](crate::Mux::run) is polled.
//!
//! In: requests for tasks, alarms and the time, from any thread. Out: [`OutsideTasks::visit`] serves them on core 0. A
//! connection lives on the core of its clients. Core 0 polls `run`; the other cores are the [`Seat`]s.

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
pub(crate) struct OutsideTasks {
    errands: Mutex<OutsideQueue>,
    seats: OnceLock<Vec<Arc<Seat>>>,
}

#[derive(Default)]
struct OutsideQueue {
    /// Tasks to spawn: dials, and drivers of new upstream connections. One for each connection.
    tasks: Vec<Boxed<()>>,
    /// Wakers of the jobs that wait for the time, at most one for each job.
    asking: Vec<Waker>,
    /// Requested alarms with their durations, at most one for each job.
    alarms: Vec<(Duration, Arc<JobAlarm>)>,
    /// The monotonic and the wall time of the latest visit, and the number of visits.
    now: Duration,
    wall: Duration,
    visits: u64,
    runner: Option<Waker>,
}

/// A timer, shared by the job that sets it and the task that runs it. A job cancels the timer when it is no longer
/// needed: while a timer exists, the runtime reads the clock whenever it sleeps.
#[derive(Default)]
struct JobAlarm(Mutex<AlarmState>);

#[derive(Default)]
struct AlarmState {
    over: bool,
    setter: Option<Waker>,
    task: Option<Waker>,
}

impl JobAlarm {
    /// Ends the timer because it has expired or is cancelled.
    fn end(&self) {
        let wakers = {
            let mut state = lock(&self.0);
            state.over = true;
            [state.setter.take(), state.task.take()]
        };
        wakers.into_iter().flatten().for_each(Waker::wake);
    }

    fn poll(&self, cx: &mut Context<'_>, waits: fn(&mut AlarmState) -> &mut Option<Waker>) -> Poll<()> {
        let mut state = lock(&self.0);
        if state.over {
            return Poll::Ready(());
        }
        *waits(&mut state) = Some(cx.waker().clone());
        Poll::Pending
    }
}

/// One side's handle of an alarm. The alarm ends when either side drops its handle.
struct AlarmHandle(Arc<JobAlarm>);

impl Drop for AlarmHandle {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// A core of the [`OutsideTasks`].
#[derive(Clone)]
pub(crate) struct OutsideCore {
    pub(crate) outside: Arc<OutsideTasks>,
    seat: usize,
}

impl Spawn for OutsideCore {
    fn spawn(&self, task: Boxed<()>) {
        match self.seat.checked_sub(1) {
            Some(n) => self.outside.seats()[n].spawn(task),
            None => self.outside.errand(|errands| errands.tasks.push(task)),
        }
    }
}

impl OutsideCore {
    /// Runs a future on that core, with that core's reactor. Dropping the returned future drops it. `None` if it did
    /// not complete.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        if self.outside.seats().is_empty() {
            return Some(future.await);
        }
        let alarm = Arc::<JobAlarm>::default();
        let (rings, told) = (AlarmHandle(alarm.clone()), Arc::new(Mutex::new(None)));
        let tell = told.clone();
        self.spawn(Box::pin(async move {
            let mut future = pin!(future);
            let value = poll_fn(|cx| match rings.0.poll(cx, |state| &mut state.task) {
                Poll::Ready(()) => Poll::Ready(None),
                Poll::Pending => future.as_mut().poll(cx).map(Some),
            });
            *lock(&tell) = value.await;
            // This wakes the waiting caller.
            drop(rings);
        }));
        let waits = AlarmHandle(alarm);
        poll_fn(|cx| waits.0.poll(cx, |state| &mut state.setter)).await;
        lock(&told).take()
    }
}

impl OutsideTasks {
    /// Sets the other cores. Called before the first client connects.
    pub(crate) fn sit(&self, seats: Vec<Arc<Seat>>) {
        let _ = self.seats.set(seats);
    }

    /// Returns the other cores. Empty if there is one core.
    pub(crate) fn seats(&self) -> &[Arc<Seat>] {
        self.seats.get().map_or(&[], Vec::as_slice)
    }

    /// Returns the number by which a client selects its upstream connection. With as many connections as cores, each
    /// client uses the connection of its own core.
    pub(crate) fn number(&self, conn: u64, who: &Who) -> u64 {
        conn * (self.seats().len() as u64 + 1) + u64::from(who.seat)
    }

    /// Returns the core of an upstream connection.
    pub(crate) fn place(self: &Arc<Self>, lane: u16) -> OutsideCore {
        OutsideCore { outside: self.clone(), seat: usize::from(lane) % (self.seats().len() + 1) }
    }

    fn errand(&self, leave: impl FnOnce(&mut OutsideQueue)) {
        let runner = {
            let mut errands = lock(&self.errands);
            leave(&mut errands);
            errands.runner.take()
        };
        runner.into_iter().for_each(Waker::wake);
    }

    /// Returns the monotonic time.
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

    /// Returns the time since 1970.
    pub(crate) async fn wall(&self) -> Duration {
        self.now().await;
        lock(&self.errands).wall
    }

    /// Awaits a future for at most `limit`. Returns `None` after that.
    pub(crate) async fn within<T>(&self, limit: Duration, future: impl Future<Output = T>) -> Option<T> {
        let mut future = pin!(future);
        let mut alarm: Option<AlarmHandle> = None;
        poll_fn(|cx| {
            if let Poll::Ready(value) = future.as_mut().poll(cx) {
                return Poll::Ready(Some(value));
            }
            let alarm = alarm.get_or_insert_with(|| {
                let alarm = Arc::<JobAlarm>::default();
                self.errand(|errands| errands.alarms.push((limit, alarm.clone())));
                AlarmHandle(alarm)
            });
            alarm.0.poll(cx, |state| &mut state.setter).map(|()| None)
        })
        .await
    }

    /// Serves the pending requests, and registers the caller's waker for the next ones.
    pub(crate) fn visit(&self, env: &impl Env, cx: &mut Context<'_>) {
        let (tasks, asking, alarms) = {
            let mut errands = lock(&self.errands);
            (errands.now, errands.wall) = (env.now(), env.wall());
            errands.visits += 1;
            errands.runner = Some(cx.waker().clone());
            let OutsideQueue { tasks, asking, alarms, .. } = &mut *errands;
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
