//! What keeps threads out of an interpreter that is ending.
//!
//! A thread that takes the interpreter's lock while it is finalized is ended by Python, through frames that do not bear
//! it. So whoever takes the lock, or may lose it for a moment, goes through the [`Gate`] of his session, which a
//! callback of `atexit` closes: it waits for who is inside, and nobody comes in after it but the thread that ends.
//!
//! Always holds: no Python runs while the lock of a gate is held, and no gate of before a fork is waited at.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, ThreadId};

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyModule;

/// Who is inside, and whether it is closed.
pub struct Gate {
    maker: u32,
    state: Mutex<State>,
    left: Condvar,
}

#[derive(Default)]
struct State {
    inside: usize,
    /// Closed, by this thread.
    ended: Option<ThreadId>,
}

/// Somebody inside.
pub struct Inside<'g>(&'g Gate);

/// The gates that there are. Only who has the interpreter's lock looks here: so it is free after a fork.
static GATES: Mutex<Vec<Weak<Gate>>> = Mutex::new(Vec::new());

impl Gate {
    /// An open one, which is closed when the interpreter ends.
    pub fn new(py: Python<'_>) -> PyResult<Arc<Self>> {
        static TOLD: PyOnceLock<()> = PyOnceLock::new();
        TOLD.get_or_try_init(py, || {
            let module = PyModule::import(py, "atexit")?;
            module.call_method1("register", (Bound::new(py, Ending)?,)).map(drop)
        })?;
        let gate = Self { maker: std::process::id(), state: Mutex::default(), left: Condvar::new() };
        let gate = Arc::new(gate);
        let mut gates = GATES.lock().unwrap_or_else(PoisonError::into_inner);
        gates.retain(|gate| gate.strong_count() > 0);
        gates.push(Arc::downgrade(&gate));
        Ok(gate)
    }

    /// Goes in. `None`: the interpreter is ending, and this is not the thread that ends it.
    pub fn enter(&self) -> Option<Inside<'_>> {
        let mut state = self.lock();
        if state.ended.is_some_and(|ender| ender != thread::current().id()) {
            return None;
        }
        state.inside += 1;
        Some(Inside(self))
    }

    /// Whether the interpreter is ending.
    pub fn is_closed(&self) -> bool {
        self.lock().ended.is_some()
    }

    fn close(&self) {
        let mut state = self.lock();
        state.ended = Some(thread::current().id());
        while state.inside > 0 {
            state = self.left.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.lock().inside -= 1;
        self.0.left.notify_all();
    }
}

/// What `atexit` calls.
#[pyclass(frozen)]
struct Ending;

#[pymethods]
impl Ending {
    fn __call__(&self, py: Python<'_>) {
        let gates: Vec<_> = {
            let gates = GATES.lock().unwrap_or_else(PoisonError::into_inner);
            gates.iter().filter_map(Weak::upgrade).collect()
        };
        let ours = gates.iter().filter(|gate| gate.maker == std::process::id());
        // Who is inside may be waiting for the interpreter's lock.
        py.detach(|| ours.for_each(|gate| gate.close()));
    }
}
