"""Open files: what Python's own files do, these do, too; and what is read or written in order is a stream."""

from __future__ import annotations

import array
import errno
import importlib.metadata
import io
import os
import pathlib
import random
import threading

import ninefold
import pytest
from ninefold._files import RawFile

DATA = random.Random(9).randbytes(20 << 20)


@pytest.mark.parametrize(
    "mode", ["r", "rb", "r+", "r+b", "rb+", "w", "wb", "w+b", "a", "ab", "a+", "x", "xb"]
)
def test_a_mode_does_what_it_does_to_files_of_this_machine(
    mode: str, conn: ninefold.Connection, tree: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    def trial(opened: object, path: pathlib.Path) -> tuple[object, ...]:
        if "x" not in mode:
            path.write_bytes(b"0123456789")
        text = "" if "b" in mode else "text"
        data: object = "new" if text else b"new"
        with opened(mode) as file:  # type: ignore[operator]
            did: list[object] = [file.readable(), file.writable(), file.seekable(), file.tell()]
            if file.readable() and "w" not in mode and "a" not in mode:
                did += [file.read(3), file.tell()]
                file.seek(0, os.SEEK_CUR)
            if file.writable():
                did += [file.write(data), file.tell()]
            if file.readable():
                did += [file.seek(1), file.read(2), file.seek(0, os.SEEK_END), file.read()]
        return *did, file.closed, path.read_bytes()

    ours = trial(lambda mode: conn.open("f", mode), tree / "f")
    theirs = trial(lambda mode: open(tmp_path / "f", mode), tmp_path / "f")  # noqa: SIM115
    assert ours == theirs


@pytest.mark.parametrize("mode", ["", "rw", "q", "rr", "b", "+", "bt", "rbt", "wtb"])
def test_what_is_no_mode_is_refused(mode: str, conn: ninefold.Connection) -> None:
    with pytest.raises(ValueError):
        conn.open("f", mode)


@pytest.mark.parametrize(
    "wrong",
    [
        {"mode": "wb", "encoding": "utf-8"},
        {"mode": "wb", "newline": ""},
        {"mode": "wbt"},
        {"mode": "w", "buffering": 0},
        {"mode": "w", "buffering": -2},
        {"mode": "w", "newline": "x"},
        {"mode": "w", "encoding": "no such"},
        {"mode": "w", "encoding": "hex"},
    ],
)
def test_what_cannot_be_opened_is_not_cut(
    wrong: dict[str, object], conn: ninefold.Connection, tree: pathlib.Path
) -> None:
    (tree / "f").write_text("kept")
    with pytest.raises((ValueError, LookupError)):
        conn.open("f", **wrong)
    assert (tree / "f").read_text() == "kept"


def test_text_is_utf_8_unless_told(conn: ninefold.Connection, tree: pathlib.Path) -> None:
    with conn.open("t", "w") as file:
        file.write("Grüße\n")
    assert (tree / "t").read_bytes() == "Grüße\n".encode()
    with conn.open("t", "w", encoding="latin-1", newline="\r\n") as file:
        file.write("Grüße\n")
    assert (tree / "t").read_bytes() == "Grüße\r\n".encode("latin-1")
    assert list(conn.open("t", encoding="latin-1")) == ["Grüße\n"]
    for wrong in ({"mode": "rb", "encoding": "utf-8"}, {"buffering": 0}):
        with pytest.raises(ValueError):
            conn.open("t", **wrong)


def test_what_is_read_in_order_comes_as_a_stream(conn: ninefold.Connection, tree: pathlib.Path) -> None:
    (tree / "big").write_bytes(DATA)
    with conn.open("big", "rb", buffering=0) as raw:
        assert raw.read(1000) == DATA[:1000]
        assert raw._stream is None, "one read says nothing"
        assert raw.read(1000) == DATA[1000:2000]
        assert raw._stream is not None, "two in order do"
        assert raw.read(10 << 20) == DATA[2000 : 2000 + (10 << 20)]
        assert raw._stream.has_connection, "and so much is worth a connection"
        assert raw.readall() == DATA[2000 + (10 << 20) :]
        assert raw.read(1) == b""
    with conn.open("big", "rb") as file:
        assert b"".join(iter(lambda: file.read(77_777), b"")) == DATA
        assert file.seek(5) == 5 and file.read(10) == DATA[5:15]
        assert file.read() == DATA[15:]
        buffer = bytearray(1 << 20)
        file.seek(1 << 20)
        assert file.readinto(buffer) == 1 << 20 and buffer == DATA[1 << 20 : 2 << 20]
        assert file.size == len(DATA)


def test_reads_here_and_there_ask_for_no_stream(conn: ninefold.Connection, tree: pathlib.Path) -> None:
    (tree / "big").write_bytes(DATA)
    places = random.Random(1)
    with conn.open("big", "rb", buffering=0) as raw:
        for most in [100_000] * 40 + [5_000_000] * 10:
            at, count = places.randrange(1, len(DATA)), places.randrange(1, most)
            raw.seek(at)
            assert raw.read(count) == DATA[at : at + count]
            assert raw._stream is None


def test_what_is_written_in_order_is_all_there_once_flushed(
    conn: ninefold.Connection, tree: pathlib.Path
) -> None:
    with conn.open("big", "wb") as file:
        for at in range(0, 10 << 20, 99_999):
            file.write(DATA[at : min(at + 99_999, 10 << 20)])
        file.flush()
        assert (tree / "big").read_bytes() == DATA[: 10 << 20]
        file.seek(10)
        file.write(b"here")
        file.sync()
        assert (tree / "big").read_bytes()[:20] == DATA[:10] + b"here" + DATA[14:20]
        assert file.seek(0, os.SEEK_END) == 10 << 20
        file.write(memoryview(DATA)[10 << 20 :])
        file.truncate(15 << 20)
    assert (tree / "big").stat().st_size == 15 << 20
    assert (tree / "big").read_bytes()[10 << 20 :] == DATA[10 << 20 : 15 << 20]


def test_appends_go_to_the_end_wherever_that_is(conn: ninefold.Connection, tree: pathlib.Path) -> None:
    with conn.open("log", "ab") as one, conn.open("log", "ab") as other:
        for n in range(3):
            one.write(b"one %d\n" % n)
            one.flush()
            other.write(b"other %d\n" % n)
            other.flush()
    assert (tree / "log").read_text().split("\n")[:3] == ["one 0", "other 0", "one 1"]


def test_what_is_appended_moves_the_position_to_the_end(
    conn: ninefold.Connection, tree: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    def trial(opened: object, path: pathlib.Path) -> tuple[object, ...]:
        path.write_bytes(b"0123456789")
        with opened("a+b") as file:  # type: ignore[operator]
            did: list[object] = [file.seek(0), file.write(b"XY"), file.flush(), file.tell(), file.read()]
            did += [file.seek(3), file.read(2), file.write(b"Z"), file.tell(), file.seek(0), file.read()]
        return *did, path.read_bytes()

    ours = trial(lambda mode: conn.open("f", mode), tree / "f")
    assert ours == trial(lambda mode: open(tmp_path / "f", mode), tmp_path / "f")  # noqa: SIM115
    assert ours[3:5] == (12, b"")


def test_where_the_dialect_has_no_appending_writes_go_to_the_end() -> None:
    class Plain:
        """A file of 9P2000: what is written lies where the client says."""

        content = bytearray(b"0123456789")

        def stat(self) -> tuple[object, ...]:
            return (0o100644, 1, 1, 0, 0, len(self.content), (0, 0, 0), 0, 0, 0)

        def pwrite(self, data: bytes, offset: int) -> int:
            self.content[offset : offset + len(data)] = data
            return len(data)

        def close(self) -> None:
            pass

    plain = Plain()
    raw = RawFile(plain, plain.stat(), "f", os.O_RDWR | os.O_APPEND, "a+b")  # type: ignore[arg-type]
    raw.seek(0)
    raw.write(b"XY")
    plain.content += b"others"
    raw.write(b"Z")
    assert plain.content == b"0123456789XYothersZ" and raw.tell() == len(plain.content)


def test_what_is_written_is_any_buffer_in_one_piece(conn: ninefold.Connection) -> None:
    numbers = array.array("d", [1.5, 2.5])
    conn.write("f", numbers)
    with conn.open("g", "wb", buffering=0) as raw:
        raw.write(memoryview(numbers))
    assert conn.read("f") == conn.read("g") == numbers.tobytes()
    with pytest.raises(BufferError):
        conn.write("f", memoryview(b"0123456789")[::2])


def test_counts_are_no_memory(conn: ninefold.Connection, tree: pathlib.Path) -> None:
    (tree / "f").write_bytes(DATA)
    with conn.stream("f") as stream:
        with pytest.raises(OverflowError):
            stream.read(2**63)
        assert stream.read(2**62) == DATA and stream.read(2**62) == b""
    with conn.stream("f", offset=5) as stream:
        assert stream.read(3) == DATA[5:8] and stream.read(-1) == DATA[8:] and stream.read() == b""


def test_a_stream_moves_a_file_both_ways(conn: ninefold.Connection, tree: pathlib.Path) -> None:
    with conn.stream("s", "w") as stream:
        for at in range(0, len(DATA), 1 << 20):
            assert stream.write(DATA[at : at + (1 << 20)]) == 1 << 20
        assert stream.has_connection
        assert stream.close() == len(DATA)
        assert stream.close() == 0
    assert (tree / "s").read_bytes() == DATA
    with conn.stream("s", offset=5) as stream:
        assert stream.read(10) == DATA[5:15]
        buffer = bytearray(100)
        assert stream.readinto(buffer) == 100 and buffer == DATA[15:115]
        assert b"".join(stream) == DATA[115:]
        assert stream.read(1) == b""
    with conn.stream("s", "r+", 3) as stream:
        stream.write(b"x")
    assert (tree / "s").read_bytes() == DATA[:3] + b"x" + DATA[4:]
    with pytest.raises(ValueError, match="closed"):
        stream.write(b"y")
    with pytest.raises(ValueError, match="mode"):
        conn.stream("s", "a")


def test_a_file_that_grows_is_read_to_its_new_end(conn: ninefold.Connection, tree: pathlib.Path) -> None:
    (tree / "f").write_bytes(b"x" * 1000)
    with conn.open("f", "rb", buffering=0) as raw:
        assert len(raw.read(500)) == 500 and len(raw.read(500)) == 500 and raw.read(1) == b""
        with open(tree / "f", "ab") as more:
            more.write(b"y" * 10)
        assert raw.read(100) == b"y" * 10


def test_a_file_after_its_close_says_so(conn: ninefold.Connection) -> None:
    conn.write("f", b"x")
    for mode, uses in [
        (
            "rb",
            [
                lambda f: f.read(1),
                lambda f: f.seek(0),
                lambda f: f.tell(),
                lambda f: f.readinto(bytearray(1)),
            ],
        ),
        ("wb", [lambda f: f.write(b"1"), lambda f: f.truncate()]),
    ]:
        file = conn.open("f", mode, buffering=0)
        file.close()
        file.close()
        for use in uses:
            with pytest.raises(ValueError, match="closed"):
                use(file)
    reader, writer = conn.open("f", "rb"), conn.open("f", "ab")
    with pytest.raises(io.UnsupportedOperation):
        reader.write(b"1")
    with pytest.raises(io.UnsupportedOperation):
        writer.read()
    with pytest.raises(io.UnsupportedOperation):
        reader.fileno()
    with pytest.raises(ValueError):
        reader.seek(-1)
    with pytest.raises((TypeError, BufferError)):
        reader.raw.readinto(b"constant")


def test_threads_that_share_a_file_lose_and_double_nothing(
    conn: ninefold.Connection, tree: pathlib.Path
) -> None:
    (tree / "big").write_bytes(DATA)
    pieces: list[bytes] = []
    with conn.open("big", "rb", buffering=0) as raw:

        def read() -> None:
            while piece := raw.read(65_536):
                pieces.append(piece)

        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sum(map(len, pieces)) == len(DATA)
    assert sorted(pieces) == sorted(DATA[at : at + 65_536] for at in range(0, len(DATA), 65_536))


def test_threads_that_share_a_session_do_not_wait_for_each_other(
    conn: ninefold.Connection, tree: pathlib.Path
) -> None:
    def work(me: int) -> None:
        for n in range(30):
            conn.write(f"{me}-{n}", bytes([me]) * n)
            assert conn.read(f"{me}-{n}") == bytes([me]) * n
            assert conn.stat(f"{me}-{n}").st_size == n

    threads = [threading.Thread(target=work, args=(me,)) for me in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(list(tree.iterdir())) == 8 * 30
    assert all((tree / f"{me}-29").read_bytes() == bytes([me]) * 29 for me in range(8))


class Failing:
    """A stream whose second write fails, by what a test says."""

    def __init__(self, stream: object, why: BaseException) -> None:
        self.stream, self.why, self.count = stream, why, 0

    def write(self, data: bytes) -> int:
        self.count += 1
        if self.count == 2:
            raise self.why
        return self.stream.write(data)  # type: ignore[attr-defined]

    def close(self) -> int:
        return self.stream.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("mode", ["w", "wb"])
@pytest.mark.parametrize("why", [OSError(errno.ENOSPC, "No space left"), KeyboardInterrupt()])
def test_what_ended_a_write_is_what_comes_out(
    why: BaseException, mode: str, conn: ninefold.Connection
) -> None:
    piece = "x" * (1 << 20) if mode == "w" else b"x" * (1 << 20)
    with pytest.raises(type(why)) as raised, conn.open("f", mode) as file:
        raw = file.raw if mode == "wb" else file.buffer.raw
        raw._stream = Failing(raw._handle.stream(0, 0, True), why)
        try:
            for _ in range(3):
                file.write(piece)
        except BaseException:
            with pytest.raises(OSError) as again:
                raw.write(b"in the wrong place")
            wanted = why.errno if isinstance(why, OSError) else errno.ECANCELED
            assert again.value.errno == wanted
            raise
    if isinstance(why, OSError):
        assert isinstance(raised.value, OSError) and raised.value.errno == errno.ENOSPC
    assert file.closed


def test_a_write_without_a_buffer_fails_when_it_fails(conn: ninefold.Connection, tree: pathlib.Path) -> None:
    with conn.open("g", "wb", buffering=0) as raw:
        assert raw.write(b"abc") == 3
        assert (tree / "g").read_bytes() == b"abc"
        raw.seek((1 << 63) - 1)
        with pytest.raises(OSError):
            raw.write(b"xy")
        raw.seek(3)
        assert raw.write(b"def") == 3
    assert (tree / "g").read_bytes() == b"abcdef"


def test_the_module_says_its_version() -> None:
    assert ninefold.__version__ == importlib.metadata.version("ninefold")
    with pytest.raises(AttributeError):
        _ = ninefold.__nothing__
