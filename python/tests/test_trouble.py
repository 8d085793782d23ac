"""What goes wrong: servers that go away or make no sense, signals, forks, and what nobody waits for any more."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import os
import pathlib
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import fsspec
import ninefold
import pytest
from conftest import TCLUNK, TFLUSH, TWALK, Served, Stub
from ninefold import aio

Make = Callable[..., Stub]


def silent(stub: Stub, kind: int, tag: int, body: bytes) -> bytes | None:
    """Answers nothing but flushes and clunks."""
    return b"" if kind in (TFLUSH, TCLUNK) else None


def interrupting(stub: Stub, kind: int, tag: int, body: bytes) -> bytes | None:
    """Has the interpreter interrupted by whoever walks, who gets no answer."""
    if kind == TWALK:
        os.kill(os.getpid(), signal.SIGINT)
    return silent(stub, kind, tag, body)


def leaving(stub: Stub, kind: int, tag: int, body: bytes) -> bytes | None:
    """Goes away when it is asked."""
    stub.hang_up()
    return None


@pytest.fixture
def heeding() -> Iterator[None]:
    """SIGINT interrupts, also where whoever has started the tests ignores it: what runs in the background does."""
    was = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, was)


def test_an_interrupt_ends_a_wait_and_takes_the_request_back(stub: Make, heeding: None) -> None:
    server = stub(interrupting)
    conn = ninefold.connect(server.url)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            conn.stat("/a")
    assert TFLUSH in server.seen, "the first was flushed with the second"
    assert conn.alive


def test_an_interrupt_ends_a_dial() -> None:
    # Whoever connects there waits: nobody answers the version.
    code = """if True:
        import os, signal, socket, threading, ninefold
        signal.signal(signal.SIGINT, signal.default_int_handler)
        listener = socket.create_server(("127.0.0.1", 0))
        def interrupt():
            global near
            near, _ = listener.accept()
            near.recv(1)
            os.kill(os.getpid(), signal.SIGINT)
        threading.Thread(target=interrupt, daemon=True).start()
        try:
            ninefold.connect(f"9p://127.0.0.1:{listener.getsockname()[1]}", timeout=3600)
        except KeyboardInterrupt:
            print("interrupted")
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "interrupted\n", done.stderr


def test_a_server_that_goes_away_is_told_at_once_to_all_who_wait(stub: Make) -> None:
    arrived = threading.Barrier(4)

    def answer(server: Stub, kind: int, tag: int, body: bytes) -> bytes | None:
        if server.seen.count(TWALK) == 4:
            server.hang_up()
        return None

    conn = ninefold.connect(stub(answer).url)
    errors: list[BaseException] = []

    def ask() -> None:
        arrived.wait()
        try:
            conn.stat("/a")
        except OSError as error:
            errors.append(error)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(errors) == 4 and all(isinstance(error, ConnectionError) for error in errors), errors
    assert not conn.alive
    with pytest.raises(ConnectionError):
        conn.stat("/a")


def test_a_server_that_makes_no_sense_is_left(stub: Make) -> None:
    def nonsense(server: Stub, kind: int, tag: int, body: bytes) -> bytes | None:
        assert server.conn is not None
        server.conn.sendall(b"\xff" * 100)
        return None

    conn = ninefold.connect(stub(nonsense).url)
    with pytest.raises(OSError, match="9P"):
        conn.stat("/a")
    assert not conn.alive


def test_a_server_that_says_no_version_in_time_is_given_up() -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"9p://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(TimeoutError, match=r"0\.3 s"):
            ninefold.connect(address, timeout=0.3)


def test_a_file_system_dials_again_when_its_server_is_back(tmp_path: pathlib.Path) -> None:
    listen = ["--listen", "tcp!127.0.0.1!0 -insecure"]
    first = Served(tmp_path, *listen)
    (first.tree / "a").write_text("1")
    fs = fsspec.filesystem("9p", server=first.url, skip_instance_cache=True)
    file = fs.open("/a")
    assert fs.cat("/a") == b"1"
    first.stop()
    with pytest.raises(OSError):
        fs.cat("/a")
    second = Served(tmp_path, "--listen", f"tcp!127.0.0.1!{first.tcp} -insecure")
    try:
        assert fs.cat("/a") == b"1" and fs.open("/a").read() == b"1"
        fs.pipe("/b", b"2")
        with pytest.raises(ConnectionError):
            file.read()
    finally:
        fs.close()
        second.stop()


def test_what_was_made_before_a_fork_is_refused_after_it(served: Served, tree: pathlib.Path) -> None:
    conn = ninefold.connect(f"{served.url}/{tree.name}")
    conn.write("f", b"x" * 100)
    file, stream = conn.open("f", "rb"), conn.stream("f")
    fs = fsspec.filesystem("9p", server=served.url)
    assert fs.cat(f"/{tree.name}/f") == b"x" * 100
    # Files with something in their buffers, whose locks are held here: by a thread that no child has.
    layers = [
        conn.open("w", "wb"),
        conn.open("t", "w"),
        conn.open("r", "w+b"),
        conn.open("u", "wb", buffering=0),
    ]
    for layer in layers:
        layer.write("early" if "b" not in layer.mode else b"early")
    held, let_go = threading.Event(), threading.Event()

    def hold() -> None:
        raws = [getattr(layer, "buffer", layer) for layer in layers]
        with contextlib.ExitStack() as stack:
            for raw in raws:
                stack.enter_context(getattr(raw, "raw", raw)._lock)
            held.set()
            let_go.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    # Other threads are in the midst of calls, with whatever locks they hold.
    over = threading.Event()

    def busy() -> None:
        while not over.is_set():
            conn.stat("f")

    threads = [threading.Thread(target=busy) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        child = os.fork()
        if child == 0:
            os._exit(_in_child(conn, file, stream, fs, served, tree, layers))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    over.set()
    for thread in threads:
        thread.join()
    let_go.set()
    holder.join()
    assert file.read() == b"x" * 100 and stream.read(100) == b"x" * 100 and conn.alive
    for layer in layers:
        layer.close()
    assert {name: conn.read(name) for name in "wtru"} == dict.fromkeys("wtru", b"early")


def _in_child(conn, file, stream, fs, served, tree, layers) -> int:  # type: ignore[no-untyped-def]
    signal.alarm(60)
    for n, use in enumerate(
        [
            lambda: conn.stat("f"),
            lambda: file.read(1),
            lambda: stream.read(1),
            conn.close,
            lambda: conn.open("f"),
        ]
    ):
        try:
            use()
            return 10 + n
        except RuntimeError as error:
            if "fork" not in str(error):
                return 20 + n
    for n, layer in enumerate(layers):
        try:
            layer.write("late" if "b" not in layer.mode else b"late")
            return 40 + n
        except RuntimeError as error:
            if "fork" not in str(error):
                return 50 + n
        layer.flush()
        layer.close()
        if not layer.closed:
            return 60 + n
    file.close()
    if conn.alive or fs.open(f"/{tree.name}/f").read() != b"x" * 100:
        return 30
    again = fsspec.filesystem("9p", server=served.url)
    if again.cat(f"/{tree.name}/f") != b"x" * 100:
        return 31
    with ninefold.connect(f"{served.url}/{tree.name}") as new:
        if new.read("f") != b"x" * 100:
            return 32
    gc.collect()
    return 0


def test_a_task_that_is_cancelled_takes_its_request_back(stub: Make) -> None:
    asked = threading.Event()

    def answer(server: Stub, kind: int, tag: int, body: bytes) -> bytes | None:
        if kind == TWALK:
            asked.set()
        return silent(server, kind, tag, body)

    server = stub(answer)

    async def main() -> None:
        async with await aio.connect(server.url) as conn:
            task = asyncio.ensure_future(conn.stat("/a"))
            await asyncio.to_thread(asked.wait)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.to_thread(server.flushed.wait)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(conn.stat("/b"), 0.01)

    asyncio.run(main())


def test_a_read_of_a_stream_that_is_cancelled_loses_nothing(served: Served, tree: pathlib.Path) -> None:
    data = os.urandom(20 << 20)
    (tree / "f").write_bytes(data)

    async def main() -> None:
        async with await aio.connect(f"{served.url}/{tree.name}") as conn, await conn.open("f") as file:
            stream, got, cancelled = file.stream(), [], 0
            for n in range(200):
                task = asyncio.ensure_future(stream.read(300_000))
                for _ in range(n % 3):
                    await conn.stat("f")
                task.cancel()
                try:
                    got.append(await task)
                except asyncio.CancelledError:
                    cancelled += 1
            async for piece in stream:
                got.append(piece)
            assert cancelled > 0 and b"".join(got) == data

    asyncio.run(main())


def test_a_file_that_is_closed_has_what_its_streams_have_written(served: Served, tree: pathlib.Path) -> None:
    data = os.urandom(12 << 20)

    async def main() -> None:
        async with await aio.connect(f"{served.url}/{tree.name}") as conn:
            async with await conn.open("f", "wb") as file:
                await file.stream(write=True).write(data)
            assert await conn.read("f") == data
            async with await conn.stream("g", "w") as stream:
                await stream.write(b"12345")
            async with await conn.stream("g", offset=1) as stream:
                assert await stream.read(2) == b"23" and await stream.read() == b"45"
            await conn.link("g", "h")
            await conn.chown("h", -1, -1)
            assert (
                await conn.isfile("h") and not await conn.isfile("/") and (await conn.statvfs()).f_bsize > 0
            )
            await conn.makedirs("a/b")
            assert [where async for where, _, _ in conn.walk()] == ["/", "/a", "/a/b"]
            assert [where async for where, _, _ in conn.walk(topdown=False)] == ["/a/b", "/a", "/"]

    asyncio.run(main())


def test_a_write_of_a_stream_that_is_cancelled_is_told_when_it_is_closed(served: Served) -> None:
    async def main() -> None:
        async with await aio.connect(served.url) as conn:
            file = await conn.open("torn", "wb")
            stream = file.stream(write=True)
            task = asyncio.ensure_future(stream.write(bytes(1 << 30)))
            # It has begun, and from here on the server takes no more of it.
            while not (served.tree / "torn").stat().st_size:
                await asyncio.sleep(0)
            served.process.send_signal(signal.SIGSTOP)
            task.cancel()
            try:
                with pytest.raises(asyncio.CancelledError):
                    await task
            finally:
                served.process.send_signal(signal.SIGCONT)
            with pytest.raises(OSError) as raised:
                await stream.write(b"more")
            assert raised.value.errno == errno.ECANCELED
            with pytest.raises(OSError, match="given up"):
                await file.close()
            await file.close()

    asyncio.run(main())
    (served.tree / "torn").unlink()


def test_a_file_goes_on_where_it_was_when_a_read_was_interrupted(served: Served, tree: pathlib.Path) -> None:
    data = os.urandom(20 << 20)
    (tree / "f").write_bytes(data)

    class Interrupted:
        def __init__(self, stream: object) -> None:
            self.stream = stream

        def read(self, count: int) -> bytes:
            self.stream.read(1000)  # type: ignore[attr-defined]
            raise KeyboardInterrupt

        def readinto(self, buffer: bytearray) -> int:
            return len(self.read(len(buffer)))

    with ninefold.connect(f"{served.url}/{tree.name}") as conn, conn.open("f", "rb", buffering=0) as raw:
        assert raw.read(100) == data[:100] and raw.read(100) == data[100:200]
        for again in (lambda: raw.read(100), raw.readall):
            raw._stream = Interrupted(raw._stream or raw._handle.stream(raw.tell(), len(data), False))
            at = raw.tell()
            with pytest.raises(KeyboardInterrupt):
                again()
            assert raw.tell() == at and raw.read(50) == data[at : at + 50]
        at = raw.tell()
        assert raw.readall() == data[at:]


def test_a_loop_that_ends_with_requests_under_way_troubles_nobody(stub: Make, served: Served) -> None:
    server = stub(silent)

    async def leave() -> aio.Connection:
        conn = await aio.connect(server.url)
        asyncio.ensure_future(conn.stat("/a"))  # noqa: RUF006
        return conn

    conn = asyncio.run(leave())

    async def main() -> int:
        async with await aio.connect(served.url) as other:
            found = await asyncio.gather(*(other.stat("/") for _ in range(1000)))
            return len(found)

    assert asyncio.run(main()) == 1000
    asyncio.run(conn.close())


# Leaves at once with requests under way: of a loop of its own, of fsspec's thread, of one that nobody waits for.
LEAVING = """if True:
    import asyncio, sys, threading, fsspec, ninefold
    from ninefold import aio
    url, fs = sys.argv[1], fsspec.filesystem("9p", server=sys.argv[1])
    async def ask(connected):
        conn = await connected
        tasks = [asyncio.ensure_future(conn.stat("/")) for _ in range(2000)]
        await tasks[0]
        return conn, tasks
    loop = asyncio.new_event_loop()
    mine = loop.run_until_complete(ask(aio.connect(url)))
    theirs = asyncio.run_coroutine_threadsafe(ask(fs._asking()), fs.loop).result()
    conn = ninefold.connect(url)
    def stat():
        while True:
            conn.stat("/")
    threading.Thread(target=stat, daemon=True).start()
"""


def test_an_interpreter_ends_well_with_requests_under_way(served: Served) -> None:
    for _ in range(24):
        command = [sys.executable, "-W", "ignore", "-c", LEAVING, served.url]
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=60)
        assert done.returncode == 0, done.stderr


def test_a_session_may_be_used_while_the_interpreter_ends(served: Served, tree: pathlib.Path) -> None:
    (tree / "f").write_text("read")
    code = """if True:
        import asyncio, atexit, sys
        def at_the_end():
            print(conn.read("f"))
            file.write(b"written")
            file.close()
            try:
                asyncio.run(other.stat("f"))
            except RuntimeError as error:
                print("ending" in str(error))
        atexit.register(at_the_end)
        import ninefold
        from ninefold import aio
        conn, other = ninefold.connect(sys.argv[1]), asyncio.run(aio.connect(sys.argv[1]))
        file = conn.open("g", "wb")
    """
    command = [sys.executable, "-c", code, f"{served.url}/{tree.name}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout == "b'read'\nTrue\n", done.stderr
    assert (tree / "g").read_bytes() == b"written"


def test_many_requests_of_many_tasks_are_each_answered(served: Served, tree: pathlib.Path) -> None:
    async def main() -> None:
        async with await aio.connect(f"{served.url}/{tree.name}") as conn:
            await conn.makedirs("a/b")
            await asyncio.gather(*(conn.write(f"a/{n}", b"%d" % n) for n in range(500)))
            found = await asyncio.gather(*(conn.read(f"a/{n}") for n in range(500)))
            assert found == [b"%d" % n for n in range(500)]
            errors = await asyncio.gather(
                *(conn.read(f"none/{n}") for n in range(500)), return_exceptions=True
            )
            assert all(isinstance(error, FileNotFoundError) for error in errors)
            async with await conn.open("a/big", "w+b") as file:
                assert await file.pwrite(b"x" * (10 << 20), 0) == 10 << 20
                assert await file.pread(5, 10) == b"xxxxx"
                assert (await file.stat()).st_size == 10 << 20
                await file.truncate(9 << 20)
                await file.sync()
            async with await conn.open("a/big") as file:
                assert sum([len(piece) async for piece in file.stream()]) == 9 << 20
            await conn.rename("a/big", "a/large")
            await conn.symlink("large", "a/link")
            assert await conn.readlink("a/link") == "large" and await conn.copy("a/link", "c") == 9 << 20
            await conn.chmod("c", 0o600)
            await conn.truncate("c", 3)
            await conn.utime("c", (5, 7))
            known = await conn.stat("c")
            assert (known.st_size, known.st_mode & 0o777, known.st_mtime_ns) == (3, 0o600, 7)
            assert sorted(await conn.listdir("/")) == ["a", "c"]
            await conn.rmtree("a")
            assert [entry.name for entry in await conn.scandir()] == ["c"]
            await conn.remove("c")
            await conn.mkdir("d")
            await conn.rmdir("d")
            assert not await conn.exists("d") and await conn.isdir("/")

    asyncio.run(main())


def test_a_session_that_is_left_lets_go_of_its_connection(stub: Make) -> None:
    gone = threading.Event()

    class Watching(Stub):
        def talk(self, conn: object) -> None:
            super().talk(conn)  # type: ignore[arg-type]
            gone.set()

    server = Watching(silent)
    conn = ninefold.connect(server.url)
    assert conn.alive
    del conn
    gc.collect()
    assert gone.wait(60)
    gone.clear()
    connected = asyncio.run(aio.connect(server.url))
    assert connected.alive
    del connected
    gc.collect()
    assert gone.wait(60)
    server.stop()
