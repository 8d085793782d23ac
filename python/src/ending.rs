//! Keeps threads out of an interpreter that is shutting down.
//!
//! A thread that takes the interpreter's lock during finalization is ended by Python, through Rust frames that cannot
//! be unwound so. So a thread that takes the lock, or may release it for a moment, first enters the [`Gate`] of its
//! session. A callback of `atexit` closes the gate: it waits for threads inside, and then only the ending thread may
//! enter.
//!
//! Always holds: no Python code runs while the mutex of a gate is held, and no gate from before a fork is waited for.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, ThreadId};

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyModule;

/// Counts the threads inside, and whether it is closed.
pub struct Gate {
    maker: u32,
    state: Mutex<State>,
    left: Condvar,
}

#[derive(Default)]
struct State {
    inside: usize,
    /// The thread that closed the gate.
    ended: Option<ThreadId>,
}

/// A thread's stay inside the gate, ended by drop.
pub struct Inside<'g>(&'g Gate);

/// All gates. Only a thread with the interpreter's lock accesses this list, so its mutex is free after a fork.
static GATES: Mutex<Vec<Weak<Gate>>> = Mutex::new(Vec::new());

impl Gate {
    /// Creates an open gate, which is closed when the interpreter ends.
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

    /// Enters the gate. Returns `None` if the interpreter is ending and this is not the thread that ends it.
    pub fn enter(&self) -> Option<Inside<'_>> {
        let mut state = self.lock();
        if state.ended.is_some_and(|ender| ender != thread::current().id()) {
            return None;
        }
        state.inside += 1;
        Some(Inside(self))
    }

    /// Returns whether the interpreter is ending.
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

/// The callback for `atexit`.
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
        // Release the interpreter's lock: a thread inside may wait for it.
        py.detach(|| ours.for_each(|gate| gate.close()));
    }
}
