//! How calls wait: on the calling thread, or as asyncio futures.
//!
//! In: futures of the client. Out: their results, or an `asyncio.Future`. A caller waits without the interpreter's lock
//! and checks for signals every [`LOOK`]. A signal that raises cancels the request, by dropping its future. A session
//! for asyncio has a thread that drives its reactor; a cancelled asyncio future cancels the request, too.

use std::future::{Future, poll_fn};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use nine_io::client::{Client, Error, Result, blocking};
use nine_net::Reactor;
use nine_proto::Errno;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyAnyMethods, PyModule};
use pyo3::{IntoPyObjectExt, intern};

use crate::ending::Gate;
use crate::error;

/// Interval of checks for signals during a wait.
const LOOK: Duration = Duration::from_millis(50);

/// How the calls of one session wait.
pub struct Waits {
    reactor: Reactor,
    leader: Option<Arc<Leader>>,
    gate: Arc<Gate>,
}

impl Waits {
    pub fn new(py: Python<'_>, client: &blocking::Client, asynchronous: bool) -> PyResult<Self> {
        let gate = Gate::new(py)?;
        let leader = asynchronous.then(|| Leader::start(client)).transpose()?;
        Ok(Self { reactor: client.reactor().clone(), leader, gate })
    }

    /// Returns the result of `future`; for asyncio an awaitable. `path` is the path for errors.
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
            Some(leader) => self.begin(py, leader, path, future, None),
        }
    }

    /// Like [`Waits::call`], for asyncio only. If no caller waits for the result any more, calls the function that
    /// `keep` returned.
    pub fn keep<'py, T>(
        &self,
        py: Python<'py>,
        path: &[u8],
        future: impl Future<Output = Result<T>> + Send + 'static,
        keep: impl FnOnce(&T) -> Undo + Send + 'static,
    ) -> PyResult<Bound<'py, PyAny>>
    where
        T: for<'p> IntoPyObject<'p> + Send + 'static,
    {
        let leader = self.leader.as_ref().expect("asked only by who is of asyncio");
        self.begin(py, leader, path, future, Some(Box::new(keep)))
    }

    /// Waits for the result of `future` on this thread.
    pub fn wait<T: Send>(
        &self,
        py: Python<'_>,
        path: &[u8],
        future: impl Future<Output = Result<T>> + Send,
    ) -> PyResult<T> {
        let mut future = pin!(future);
        loop {
            let (done, inside) = py.detach(|| {
                let done = self.reactor.block_on_for(LOOK, future.as_mut());
                (done, self.gate.enter().unwrap_or_else(|| never()))
            });
            drop(inside);
            match done {
                Some(done) => return done.map_err(|error| error::of(&error, path)),
                None => py.check_signals()?,
            }
        }
    }

    /// Returns whether calls return awaitables.
    pub fn is_async(&self) -> bool {
        self.leader.is_some()
    }

    fn begin<'py, T>(
        &self,
        py: Python<'py>,
        leader: &Arc<Leader>,
        path: &[u8],
        future: impl Future<Output = Result<T>> + Send + 'static,
        keep: Option<Keep<T>>,
    ) -> PyResult<Bound<'py, PyAny>>
    where
        T: for<'p> IntoPyObject<'p> + Send + 'static,
    {
        // Fail if the interpreter is ending. Stay inside the gate, because the Python calls below may let other threads
        // run.
        let inside = if self.gate.is_closed() { None } else { self.gate.enter() };
        let _inside = inside.ok_or_else(error::ending)?;
        let events = running_loop(py)?;
        let told = events.call_method0(intern!(py, "create_future"))?;
        let request = Request { future: Some(Box::pin(future)), waker: None, keep, undo: None };
        let request = Arc::new(Mutex::new(request));
        let mine = request.clone();
        let done = Done(Box::new(move || Request::take_back(&request)));
        told.call_method1(intern!(py, "add_done_callback"), (Bound::new(py, done)?,))?;
        let (events, future, path) = (events.unbind(), told.clone().unbind(), path.to_vec());
        let (under_way, gate) = (leader.begin(), self.gate.clone());
        self.reactor.spawn(async move {
            let _under_way = under_way;
            let Some(result) = poll_fn(|cx| Request::poll(&mine, cx)).await else { return };
            // In an interpreter that is ending, no caller waits any more.
            let Some(_inside) = gate.enter() else { return };
            Python::try_attach(|py| {
                let result = result.map_err(|error| error::of(&error, &path));
                if let Err(error) = tell(py, &events, &future, result, gate.clone()) {
                    // The event loop was closed.
                    tracing(py, error);
                }
            });
        });
        Ok(told)
    }
}

/// Parks a thread that must not return to an ending interpreter, as Python itself does since 3.14.
fn never() -> ! {
    loop {
        thread::park();
    }
}

/// The error that callers get after a panic in a request.
fn bug() -> Error {
    Error::Refused(nine_proto::Error::new(Errno::EIO, "a bug in ninefold: a request has panicked"))
}

/// Reports an error as Python does, except that of a closed event loop, in which no caller waits.
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

/// Schedules a future's result on its event loop's thread.
fn tell<T: for<'p> IntoPyObject<'p>>(
    py: Python<'_>,
    events: &Py<PyAny>,
    future: &Py<PyAny>,
    result: PyResult<T>,
    gate: Arc<Gate>,
) -> PyResult<()> {
    let settle = Bound::new(py, Settle(gate))?;
    let (is_error, value) = match result.and_then(|value| value.into_bound_py_any(py)) {
        Ok(value) => (false, value),
        Err(error) => (true, error.into_value(py).into_bound(py).into_any()),
    };
    events
        .bind(py)
        .call_method1(intern!(py, "call_soon_threadsafe"), (settle, future.bind(py), is_error, value))?;
    Ok(())
}

/// Sets the result of a future, unless it was cancelled.
#[pyclass(frozen)]
struct Settle(Arc<Gate>);

#[pymethods]
impl Settle {
    fn __call__(&self, future: &Bound<'_, PyAny>, is_error: bool, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = future.py();
        // Futures run Python code, which lets other threads run.
        let Some(_inside) = self.0.enter() else { return Ok(()) };
        if future.call_method0(intern!(py, "done"))?.is_truthy()? {
            return Ok(());
        }
        let how = if is_error { intern!(py, "set_exception") } else { intern!(py, "set_result") };
        future.call_method1(how, (value,)).map(drop)
    }
}

/// A request until it is done or cancelled. It is polled with its lock held, and needs no other lock.
struct Request<T> {
    future: Option<Pin<Box<dyn Future<Output = Result<T>> + Send>>>,
    waker: Option<Waker>,
    keep: Option<Keep<T>>,
    /// Undoes a completed request.
    undo: Option<Undo>,
}

/// A function that runs when a result is not delivered.
pub type Undo = Box<dyn FnOnce() + Send>;
type Keep<T> = Box<dyn FnOnce(&T) -> Undo + Send>;

impl<T> Request<T> {
    /// Polls the request. Returns `None` if it was cancelled. A panic becomes the error of this request only.
    fn poll(this: &Mutex<Self>, cx: &mut Context<'_>) -> Poll<Option<Result<T>>> {
        let mut this = this.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(future) = &mut this.future else { return Poll::Ready(None) };
        match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx))) {
            Ok(Poll::Pending) => {
                this.waker = Some(cx.waker().clone());
                Poll::Pending
            }
            Ok(Poll::Ready(result)) => {
                this.future = None;
                let keep = this.keep.take();
                this.undo = keep.zip(result.as_ref().ok()).map(|(keep, value)| keep(value));
                Poll::Ready(Some(result))
            }
            Err(_) => {
                this.future = None;
                Poll::Ready(Some(Err(bug())))
            }
        }
    }

    /// Cancels the request immediately: afterwards the caller may reuse its resources.
    fn take_back(this: &Mutex<Self>) {
        let (future, waker, undo) = {
            let mut this = this.lock().unwrap_or_else(PoisonError::into_inner);
            (this.future.take(), this.waker.take(), this.undo.take())
        };
        if let Some(undo) = undo {
            undo();
        }
        if future.is_some() {
            drop(future);
            waker.into_iter().for_each(Waker::wake);
        }
    }
}

/// Cancels or undoes the request when its future is cancelled, before the waiting task continues.
#[pyclass(frozen)]
struct Done(Box<dyn Fn() + Send + Sync>);

#[pymethods]
impl Done {
    fn __call__(&self, future: &Bound<'_, PyAny>) -> PyResult<()> {
        if future.call_method0(intern!(future.py(), "cancelled"))?.is_truthy()? {
            (self.0)();
        }
        Ok(())
    }
}

/// The thread that drives a session for asyncio. It ends when the session is dropped and no request is in flight.
pub struct Leader {
    under_way: AtomicUsize,
    state: Mutex<(bool, Option<Waker>)>,
}

impl Leader {
    fn start(client: &blocking::Client) -> io::Result<Arc<Self>> {
        let leader = Arc::new(Self { under_way: AtomicUsize::new(0), state: Mutex::default() });
        let (reactor, mine) = (client.reactor().clone(), leader.clone());
        let client = client.client().clone();
        thread::Builder::new().name("ninefold".into()).spawn(move || mine.lead(&reactor, &client))?;
        Ok(leader)
    }

    fn lead(&self, reactor: &Reactor, client: &Client) {
        let over = || {
            poll_fn(|cx| {
                let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
                if state.0 && self.under_way.load(Ordering::SeqCst) == 0 {
                    return Poll::Ready(());
                }
                state.1 = Some(cx.waker().clone());
                Poll::Pending
            })
        };
        // A panic of the connection's driver ends the connection, and waiting callers get an error.
        while catch_unwind(AssertUnwindSafe(|| reactor.block_on(over()))).is_err() {
            client.abort(io::Error::other("a bug in ninefold: what drives the connection has panicked"));
        }
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

/// A request in flight, which the leader must complete.
struct UnderWay(Arc<Leader>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::SeqCst);
        self.0.look(false);
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        if let Some(leader) = &self.leader {
            leader.look(true);
        }
    }
}

/// Runs a blocking call on a thread of its own, so that signals are checked meanwhile. If a signal raises, the call
/// continues unattended.
pub fn beside<T: Send + 'static>(
    py: Python<'_>,
    call: impl FnOnce() -> Result<T> + Send + 'static,
) -> PyResult<T> {
    let ((send, receive), gate) = (mpsc::sync_channel(1), Gate::new(py)?);
    thread::Builder::new().name("ninefold-dial".into()).spawn(move || {
        let _ = send.send(call());
    })?;
    let receive = Mutex::new(receive);
    loop {
        let (came, inside) = py.detach(|| {
            let came = receive.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(LOOK);
            (came, gate.enter().unwrap_or_else(|| never()))
        });
        drop(inside);
        match came {
            Ok(done) => return done.map_err(|error: Error| error::of(&error, b"")),
            Err(mpsc::RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                return Err(pyo3::exceptions::PyRuntimeError::new_err("the dial has ended without a word"));
            }
        }
    }
}
