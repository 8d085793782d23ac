//! How calls wait: on the caller's thread, or as futures of asyncio.
//!
//! In: futures of the client. Out: their results, or an `asyncio.Future`. A caller waits without the interpreter's lock
//! and looks for signals [`LOOK`] by [`LOOK`]; what a signal interrupts is taken back, as dropping a future does. A
//! session for asyncio has a thread that leads its reactor; a future that is cancelled there is taken back, too.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::task::{Poll, Waker};
use std::thread;
use std::time::Duration;

use futures_util::future::{AbortHandle, abortable};
use nine_io::client::{Error, Result};
use nine_net::Reactor;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyAnyMethods, PyModule};
use pyo3::{IntoPyObjectExt, intern};

use crate::error;

/// So long a signal may wait for a call that waits.
const LOOK: Duration = Duration::from_millis(50);

/// How the calls of one session wait.
pub struct Waits {
    reactor: Reactor,
    leader: Option<Arc<Leader>>,
}

impl Waits {
    pub fn new(reactor: Reactor, asynchronous: bool) -> io::Result<Self> {
        let leader = asynchronous.then(|| Leader::start(&reactor)).transpose()?;
        Ok(Self { reactor, leader })
    }

    /// What `future` comes to; for asyncio an awaitable of it. `path` is what an error names.
    pub fn call<'py, T>(
        &self,
        py: Python<'py>,
        path: &[u8],
        future: impl Future<Output = Result<T>> + Send + 'static,
    ) -> PyResult<Bound<'py, PyAny>>
    where
        T: for<'p> IntoPyObject<'p> + Send + 'static,
    {
        match &self.leader {
            None => self.wait(py, path, future)?.into_bound_py_any(py),
            Some(leader) => self.begin(py, leader, path, future),
        }
    }

    /// What `future` comes to, on this thread.
    pub fn wait<T: Send>(
        &self,
        py: Python<'_>,
        path: &[u8],
        future: impl Future<Output = Result<T>> + Send,
    ) -> PyResult<T> {
        let mut future = pin!(future);
        loop {
            match py.detach(|| self.reactor.block_on_for(LOOK, future.as_mut())) {
                Some(done) => return done.map_err(|error| error::of(&error, path)),
                None => py.check_signals()?,
            }
        }
    }

    /// Whether calls answer with awaitables.
    pub fn is_async(&self) -> bool {
        self.leader.is_some()
    }

    fn begin<'py, T>(
        &self,
        py: Python<'py>,
        leader: &Arc<Leader>,
        path: &[u8],
        future: impl Future<Output = Result<T>> + Send + 'static,
    ) -> PyResult<Bound<'py, PyAny>>
    where
        T: for<'p> IntoPyObject<'p> + Send + 'static,
    {
        let events = running_loop(py)?;
        let told = events.call_method0(intern!(py, "create_future"))?;
        let (task, handle) = abortable(future);
        told.call_method1(intern!(py, "add_done_callback"), (Bound::new(py, Drop(handle))?,))?;
        let (events, future, path) = (events.unbind(), told.clone().unbind(), path.to_vec());
        let under_way = leader.begin();
        self.reactor.spawn(async move {
            let result = task.await;
            let Ok(result) = result else { return };
            // An interpreter that is ending has nobody left to be told.
            Python::try_attach(|py| {
                let result = result.map_err(|error| error::of(&error, &path));
                if let Err(error) = tell(py, &events, &future, result) {
                    // Its loop has been closed.
                    tracing(py, error);
                }
            });
            drop(under_way);
        });
        Ok(told)
    }
}

/// A loop that is closed takes nothing, and nobody waits there; whatever else goes wrong is shown as Python shows it.
fn tracing(py: Python<'_>, error: PyErr) {
    if !error.is_instance_of::<pyo3::exceptions::PyRuntimeError>(py) {
        error.write_unraisable(py, None);
    }
}

fn running_loop(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    static GET: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let get = GET.get_or_try_init(py, || {
        let module = PyModule::import(py, "asyncio")?;
        Ok::<_, PyErr>(module.getattr("get_running_loop")?.unbind())
    })?;
    get.bind(py).call0()
}

/// Has the loop settle the future, on its own thread.
fn tell<T: for<'p> IntoPyObject<'p>>(
    py: Python<'_>,
    events: &Py<PyAny>,
    future: &Py<PyAny>,
    result: PyResult<T>,
) -> PyResult<()> {
    let settle = Bound::new(py, Settle)?;
    let (is_error, value) = match result.and_then(|value| value.into_bound_py_any(py)) {
        Ok(value) => (false, value),
        Err(error) => (true, error.into_value(py).into_bound(py).into_any()),
    };
    events
        .bind(py)
        .call_method1(intern!(py, "call_soon_threadsafe"), (settle, future.bind(py), is_error, value))?;
    Ok(())
}

/// Gives a future its result, unless somebody has cancelled it.
#[pyclass(frozen)]
struct Settle;

#[pymethods]
impl Settle {
    fn __call__(&self, future: &Bound<'_, PyAny>, is_error: bool, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = future.py();
        if future.call_method0(intern!(py, "done"))?.is_truthy()? {
            return Ok(());
        }
        let how = if is_error { intern!(py, "set_exception") } else { intern!(py, "set_result") };
        future.call_method1(how, (value,)).map(drop)
    }
}

/// Takes the request back when its future is done before it: cancelled.
#[pyclass(frozen)]
struct Drop(AbortHandle);

#[pymethods]
impl Drop {
    fn __call__(&self, _future: &Bound<'_, PyAny>) {
        self.0.abort();
    }
}

/// The thread that drives a session for asyncio, until nobody needs it: the session is gone, and nothing is under way.
pub struct Leader {
    under_way: AtomicUsize,
    state: Mutex<(bool, Option<Waker>)>,
}

impl Leader {
    fn start(reactor: &Reactor) -> io::Result<Arc<Self>> {
        let leader = Arc::new(Self { under_way: AtomicUsize::new(0), state: Mutex::default() });
        let (reactor, mine) = (reactor.clone(), leader.clone());
        thread::Builder::new().name("ninefold".into()).spawn(move || {
            reactor.block_on(poll_fn(|cx| {
                let mut state = mine.state.lock().unwrap_or_else(PoisonError::into_inner);
                if state.0 && mine.under_way.load(Ordering::SeqCst) == 0 {
                    return Poll::Ready(());
                }
                state.1 = Some(cx.waker().clone());
                Poll::Pending
            }));
        })?;
        Ok(leader)
    }

    fn begin(self: &Arc<Self>) -> UnderWay {
        self.under_way.fetch_add(1, Ordering::SeqCst);
        UnderWay(self.clone())
    }

    fn look(&self, ends: bool) {
        let waker = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.0 |= ends;
            state.1.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Something that the leader must see to its end.
struct UnderWay(Arc<Leader>);

impl std::ops::Drop for UnderWay {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::SeqCst);
        self.0.look(false);
    }
}

impl std::ops::Drop for Waits {
    fn drop(&mut self) {
        if let Some(leader) = &self.leader {
            leader.look(true);
        }
    }
}

/// What a call of the system's comes to that knows no signals: it goes on by itself where one interrupts.
pub fn beside<T: Send + 'static>(
    py: Python<'_>,
    call: impl FnOnce() -> Result<T> + Send + 'static,
) -> PyResult<T> {
    let (send, receive) = mpsc::sync_channel(1);
    thread::Builder::new().name("ninefold-dial".into()).spawn(move || {
        let _ = send.send(call());
    })?;
    let receive = Mutex::new(receive);
    loop {
        let came = py.detach(|| receive.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(LOOK));
        match came {
            Ok(done) => return done.map_err(|error: Error| error::of(&error, b"")),
            Err(mpsc::RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                return Err(pyo3::exceptions::PyRuntimeError::new_err("the dial has ended without a word"));
            }
        }
    }
}
