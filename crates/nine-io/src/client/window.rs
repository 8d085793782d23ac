//! Several futures in flight, completed in the order in which they were started.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// See the module. Its user limits the number of futures.
pub(crate) struct FutureWindow<F: Future> {
    slots: VecDeque<FutureSlot<F>>,
    /// The number of futures at the end that have not been polled yet.
    fresh: usize,
}

enum FutureSlot<F: Future> {
    Running(F),
    Done(F::Output),
}

impl<F: Future + Unpin> FutureWindow<F> {
    pub(crate) fn new() -> Self {
        Self { slots: VecDeque::new(), fresh: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn push_back(&mut self, future: F) {
        self.slots.push_back(FutureSlot::Running(future));
        self.fresh += 1;
    }

    /// Inserts a future before all others, to be polled first.
    pub(crate) fn push_front(&mut self, future: F) {
        self.slots.push_front(FutureSlot::Running(future));
    }

    pub(crate) fn clear(&mut self) {
        self.slots.clear();
        self.fresh = 0;
    }

    /// Polls all futures. Behind each completed one it inserts the future that `next` makes of its output, if any.
    pub(crate) fn insert_behind_done(
        &mut self,
        cx: &mut Context<'_>,
        mut next: impl FnMut(&mut F::Output) -> Option<F>,
    ) {
        self.fresh = 0;
        let mut slots = VecDeque::with_capacity(self.slots.len());
        for mut slot in self.slots.drain(..) {
            slot.poll(cx);
            let behind = match &mut slot {
                FutureSlot::Done(output) => next(output),
                FutureSlot::Running(_) => None,
            };
            slots.push_back(slot);
            slots.extend(behind.map(FutureSlot::Running));
        }
        self.slots = slots;
        self.slots.iter_mut().for_each(|slot| slot.poll(cx));
    }

    /// Returns the output of the oldest future; `None` if there is none. For futures that proceed alone after the first
    /// poll, such as single requests: later ones are not polled again until they are the oldest.
    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<F::Output>> {
        self.begin(cx);
        self.take_oldest()
    }

    /// The same, without returning an output. New futures are polled in order: servers recognise sequential requests.
    pub(crate) fn begin(&mut self, cx: &mut Context<'_>) {
        let begun = self.slots.len() - self.fresh;
        self.fresh = 0;
        self.slots.iter_mut().take(1).for_each(|slot| slot.poll(cx));
        self.slots.iter_mut().skip(begun.max(1)).for_each(|slot| slot.poll(cx));
    }

    /// The same for futures that must be polled after every event.
    pub(crate) fn poll_next_driving_all(&mut self, cx: &mut Context<'_>) -> Poll<Option<F::Output>> {
        self.fresh = 0;
        self.slots.iter_mut().for_each(|slot| slot.poll(cx));
        self.take_oldest()
    }

    fn take_oldest(&mut self) -> Poll<Option<F::Output>> {
        match self.slots.pop_front() {
            None => Poll::Ready(None),
            Some(FutureSlot::Done(output)) => Poll::Ready(Some(output)),
            Some(running) => {
                self.slots.push_front(running);
                Poll::Pending
            }
        }
    }
}

impl<F: Future + Unpin> FutureSlot<F> {
    fn poll(&mut self, cx: &mut Context<'_>) {
        if let Self::Running(future) = self
            && let Poll::Ready(output) = Pin::new(future).poll(cx)
        {
            *self = Self::Done(output);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::future::poll_fn;
    use std::rc::Rc;
    use std::task::Waker;

    /// Counts its polls; completes once its flag is set.
    #[derive(Clone, Default)]
    struct Told(Rc<(Cell<u32>, Cell<bool>)>);

    impl Future for Told {
        type Output = u32;
        fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<u32> {
            self.0.0.set(self.0.0.get() + 1);
            if self.0.1.get() { Poll::Ready(self.0.0.get()) } else { Poll::Pending }
        }
    }

    #[test]
    fn each_is_begun_at_once_and_polled_again_when_its_turn_comes() {
        let all: Vec<Told> = (0..3).map(|_| Told::default()).collect();
        let polls = || all.iter().map(|told| told.0.0.get()).collect::<Vec<_>>();
        let (mut window, mut cx) = (FutureWindow::new(), Context::from_waker(Waker::noop()));
        all[..2].iter().for_each(|told| window.push_back(told.clone()));
        assert!(window.poll_next(&mut cx).is_pending());
        assert_eq!(polls(), [1, 1, 0]);
        window.push_back(all[2].clone());
        assert!(window.poll_next(&mut cx).is_pending());
        assert_eq!(polls(), [2, 1, 1]);
        all.iter().for_each(|told| told.0.1.set(true));
        let first = Told::default();
        first.0.1.set(true);
        window.push_front(first);
        for expected in [1, 3, 2, 2] {
            assert_eq!(window.poll_next(&mut cx), Poll::Ready(Some(expected)));
        }
        assert_eq!(window.poll_next(&mut cx), Poll::Ready(None));
    }

    #[test]
    fn those_that_are_new_are_begun_in_order() {
        let begun = Rc::new(Cell::new(0));
        let mut window = FutureWindow::new();
        for n in 0..4 {
            let begun = begun.clone();
            window.push_back(poll_fn(move |_| {
                assert_eq!(begun.replace(n + 1), n);
                Poll::<()>::Pending
            }));
        }
        window.begin(&mut Context::from_waker(Waker::noop()));
        assert_eq!(begun.get(), 4);
    }

    #[test]
    fn what_follows_a_finished_one_is_inserted_behind_it_and_begun() {
        let all: Vec<Told> = (0..3).map(|_| Told::default()).collect();
        let (mut window, mut cx) = (FutureWindow::new(), Context::from_waker(Waker::noop()));
        all.iter().for_each(|told| window.push_back(told.clone()));
        assert!(window.poll_next(&mut cx).is_pending());
        all[1].0.1.set(true);
        let follower = Told::default();
        window.insert_behind_done(&mut cx, |polls| {
            *polls += 10;
            Some(follower.clone())
        });
        assert_eq!(follower.0.0.get(), 1, "it has been begun");
        all.iter().chain([&follower]).for_each(|told| told.0.1.set(true));
        for expected in [4, 12, 2, 4] {
            assert_eq!(window.poll_next(&mut cx), Poll::Ready(Some(expected)));
        }
        assert_eq!(window.poll_next(&mut cx), Poll::Ready(None));
    }

    #[test]
    fn those_with_several_steps_are_all_driven() {
        let all: Vec<Told> = (0..3).map(|_| Told::default()).collect();
        let (mut window, mut cx) = (FutureWindow::new(), Context::from_waker(Waker::noop()));
        all.iter().for_each(|told| window.push_back(told.clone()));
        for _ in 0..2 {
            assert!(window.poll_next_driving_all(&mut cx).is_pending());
        }
        assert!(all.iter().all(|told| told.0.0.get() == 2));
    }
}
