"""Files as Python has them: raw ones over a handle of the native module, and what buffers them.

What is read in order comes as a stream: the server sends ahead, over a connection of its own where the file is worth
it. What is only written is a stream, too. Reads and writes here and there go by their offsets.
"""

from __future__ import annotations

import errno
import io
import os
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

from ninefold import _native
from ninefold._names import Attributes, stat_result

# Read or written at once by what buffers: a round trip brings as much as a few packets of a fast link.
BUFFER = 256 * 1024
# The most that a read of all asks for at once, bytes: what has come is still in the processor's cache when it is
# copied to the rest. More is taken before it has come from no server, whatever length of a file it says.
WHOLE = 1 << 20


class RawFile(io.RawIOBase):
    """An open file without a buffer. Threads take turns at its position."""

    def __init__(self, handle: _native.Handle, known: Attributes, path: str, flags: int, mode: str) -> None:
        self._handle = handle
        self._size = known[5]
        self.name = path
        self.mode = mode
        access = flags & os.O_ACCMODE
        self._reads = access in (os.O_RDONLY, os.O_RDWR)
        self._writes = access in (os.O_WRONLY, os.O_RDWR)
        self._appends = bool(flags & os.O_APPEND)
        self._streams = not (self._reads and self._writes) and not self._appends
        self._at = 0
        # It goes on at the position, or is ended.
        self._stream: _native.Stream | None = None
        # Why a stream of writes has ended: what follows would lie in the wrong place.
        self._failed: OSError | None = None
        # Where the last read ended: the next one that begins there goes on in order.
        self._ended = -1
        self._lock = threading.RLock()
        self._maker = os.getpid()
        if self._appends:
            self._at = self._size

    def readable(self) -> bool:
        return self._reads

    def writable(self) -> bool:
        return self._writes

    def seekable(self) -> bool:
        return True

    def fileno(self) -> int:
        raise io.UnsupportedOperation("a file of a server has no descriptor here")

    @property
    def size(self) -> int:
        """Bytes that the file had when this was last asked."""
        return self._size

    @property
    def forked(self) -> bool:
        """Whether this process is a copy of the one that has opened it."""
        return self._maker != os.getpid()

    def stat(self) -> os.stat_result:
        """What is known about the file now; what was written counts."""
        self._check()
        with self._lock:
            self._check()
            self._settle()
            known = self._handle.stat()
        self._size = known[5]
        return stat_result(known)

    def readinto(self, buffer: Any) -> int:
        self._check(reads=True)
        with self._lock:
            self._check(reads=True)
            view = memoryview(buffer).cast("B")
            # In order, or much from the beginning: then the server need not be asked piece by piece. A large piece
            # somewhere else says nothing of what comes behind it.
            begins = self._at == 0 and self._ended < 0 and len(view) >= 4 * BUFFER
            in_order = self._at == self._ended or begins
            if self._stream is None and self._streams and in_order and self._at < self._size:
                self._stream = self._handle.stream(self._at, self._size, False)
            count = 0
            if self._stream is not None:
                count = self._in_stream(lambda stream: stream.readinto(view))
                if count == 0 and view:
                    # Its end; the file may have grown since.
                    self._settle()
            if self._stream is None:
                count = self._handle.preadinto(view, self._at)
            self._at += count
            self._ended = self._at
            return count

    def readall(self) -> bytes:
        return self.read_up_to(None)

    def read_up_to(self, most: int | None) -> bytes:
        """All bytes from the position on, or ``most``, whatever length the server says."""
        # Its memory grows where it is, and becomes the result without a copy.
        whole = io.BytesIO()
        self._check(reads=True)
        with self._lock:
            self._check(reads=True)
            while most is None or most > 0:
                count = min(max(self._size - self._at, BUFFER), WHOLE, WHOLE if most is None else most)
                piece = self._read_in_order(count)
                if not piece:
                    break
                whole.write(piece)
                most = None if most is None else most - len(piece)
        return whole.getvalue()

    def pread(self, count: int, at: int) -> bytes:
        """So many bytes from an offset on, fewer at the end; the position stays."""
        self._check(reads=True)
        pieces: list[bytes] = []
        while count > 0 and (piece := self._handle.pread(min(count, WHOLE), at)):
            pieces.append(piece)
            count, at = count - len(piece), at + len(piece)
        return b"".join(pieces)

    def _read_in_order(self, count: int) -> bytes:
        """The next bytes, none at the end: as a stream, where there are many."""
        if self._stream is None and self._streams and self._size - self._at > BUFFER:
            self._stream = self._handle.stream(self._at, self._size, False)
        piece = b""
        if self._stream is not None:
            piece = self._in_stream(lambda stream: stream.read(count))
        if not piece:
            # The end of the stream; the file may have grown since.
            self._settle()
            piece = self._handle.pread(count, self._at)
        self._at += len(piece)
        self._ended = self._at
        return piece

    def write(self, data: Any) -> int:
        self._check(writes=True)
        with self._lock:
            self._check(writes=True)
            if self._failed is not None:
                raise _again(self._failed)
            if self._appends:
                # Where the dialect has no appending, the end is where it is now.
                self._at = self._handle.stat()[5]
            if self._stream is None and self._streams:
                self._stream = self._handle.stream(self._at, 0, True)
            if self._stream is None:
                count = self._handle.pwrite(data, self._at)
            else:
                count = self._write_in_order(self._stream, data)
            self._at = self._handle.stat()[5] if self._appends else self._at + count
            self._size = max(self._size, self._at)
            return count

    def write_through(self) -> None:
        """Each write waits for the server's answer from now on, so that it fails when it fails."""
        self._streams = self._streams and not self._writes

    def _write_in_order(self, stream: _native.Stream, data: Any) -> int:
        try:
            return stream.write(data)
        except OSError as error:
            self._failed = error
            raise
        except (KeyboardInterrupt, SystemExit):
            # Not EINTR: after that Python's buffers would try again, without end.
            text = "a write was given up, and nobody knows how much of it is there"
            self._failed = OSError(errno.ECANCELED, text, self.name)
            raise

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._check()
        with self._lock:
            self._check()
            if whence == os.SEEK_END:
                self._settle()
                self._size = self._handle.stat()[5]
            base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}.get(whence)
            if base is None:
                raise ValueError(f"invalid whence ({whence}, should be 0, 1 or 2)")
            if base + offset < 0:
                raise ValueError(f"negative seek position {base + offset}")
            if base + offset != self._at:
                self._settle()
                self._at = base + offset
            return self._at

    def tell(self) -> int:
        self._check()
        return self._at

    def truncate(self, size: int | None = None) -> int:
        self._check(writes=True)
        with self._lock:
            self._check(writes=True)
            self._settle()
            size = self._at if size is None else size
            if size < 0:
                raise ValueError("negative size")
            self._handle.truncate(size)
            self._size = size
            return size

    def flush(self) -> None:
        """Waits until the server has taken what was written."""
        if self.forked:
            return
        with self._lock:
            if not self.closed and self._writes:
                self._settle()

    def sync(self, datasync: bool = False) -> None:
        """Waits until what was written is on stable storage."""
        self._check()
        with self._lock:
            self._check()
            self._settle()
            self._handle.fsync(datasync)

    def close(self) -> None:
        if self.closed:
            return
        # After a fork it is the maker's, who has it still.
        if self.forked:
            super().close()
            return
        with self._lock:
            try:
                self._settle()
            finally:
                super().close()
                self._handle.close()

    def _in_stream(self, call: Callable[[_native.Stream], Any]) -> Any:
        """What a read of the stream comes to. Where it is given up, the next one begins at the position."""
        assert self._stream is not None
        try:
            return call(self._stream)
        except BaseException:
            self._stream = None
            raise

    def _settle(self) -> None:
        """Ends the stream, if there is one; what was written is taken then."""
        stream, self._stream = self._stream, None
        if stream is None:
            return
        try:
            stream.close()
        except OSError as error:
            if self._writes and self._failed is None:
                self._failed = error
            raise

    def _check(self, *, reads: bool = False, writes: bool = False) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file.")
        if self.forked:
            # Looked at before any lock, which a thread may hold that is not here.
            raise RuntimeError(
                f"this was opened by process {self._maker}, before a fork: connect anew in each"
            )
        if reads and not self._reads:
            raise io.UnsupportedOperation("File not open for reading")
        if writes and not self._writes:
            raise io.UnsupportedOperation("File not open for writing")

    def __repr__(self) -> str:
        return f"<ninefold.RawFile name={self.name!r} mode={self.mode!r}{' closed' if self.closed else ''}>"


def _again(error: OSError) -> OSError:
    return OSError(error.errno, error.strerror, error.filename)


class _Layer:
    """What stands above a raw file. After a fork it touches neither its own lock nor what it holds: that is its
    maker's, who has it still. And an interrupt that ends a block is not hidden by what it has left undone."""

    def _bottom(self) -> RawFile:
        return self.raw  # type: ignore[attr-defined]

    def flush(self) -> None:
        if not self._bottom().forked:
            super().flush()  # type: ignore[misc]

    def close(self) -> None:
        raw = self._bottom()
        if raw.forked:
            raw.close()
        else:
            super().close()  # type: ignore[misc]

    def write(self, data: Any) -> int:
        raw = self._bottom()
        if raw.forked:
            raw._check()
        return super().write(data)  # type: ignore[misc]

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except OSError:
            if error is None or isinstance(error, Exception):
                raise


class Reader(_Layer, io.BufferedReader):
    """A file to read."""

    @property
    def size(self) -> int:
        """Bytes of the file, as of its open."""
        return self.raw.size  # type: ignore[attr-defined]


class Writer(_Layer, io.BufferedWriter):
    """A file to write. What is flushed, the server has."""

    def flush(self) -> None:
        super().flush()
        self.raw.flush()

    def sync(self) -> None:
        """Flushes, and waits until it is on stable storage."""
        self.flush()
        self.raw.sync()  # type: ignore[attr-defined]


class Random(_Layer, io.BufferedRandom):
    """A file to read and write."""

    def sync(self) -> None:
        """Flushes, and waits until it is on stable storage."""
        self.flush()
        self.raw.sync()  # type: ignore[attr-defined]


class Text(_Layer, io.TextIOWrapper):
    """Text of a file."""

    mode: str

    def _bottom(self) -> RawFile:
        return self.buffer.raw  # type: ignore[attr-defined]


def buffered(raw: RawFile, mode: str, buffering: int) -> io.BufferedIOBase:
    """A buffer around a raw file."""
    size = BUFFER if buffering in (-1, 1) else buffering
    if "+" in mode:
        return Random(raw, size)
    return Reader(raw, size) if raw.readable() else Writer(raw, size)


def check(
    mode: str,
    buffering: int = -1,
    encoding: str | None = None,
    errors: str | None = None,
    newline: str | None = None,
) -> None:
    """Refuses what :func:`open` would, before a file is opened, and perhaps cut."""
    if buffering < -1:
        raise ValueError("invalid buffering size")
    if "b" not in mode:
        if buffering == 0:
            raise ValueError("can't have unbuffered text I/O")
        io.TextIOWrapper(io.BytesIO(), encoding or "utf-8", errors, newline)
    elif encoding is not None or errors is not None or newline is not None:
        raise ValueError("binary mode doesn't take an encoding, errors or newline argument")


def layered(
    raw: RawFile,
    mode: str,
    buffering: int = -1,
    encoding: str | None = None,
    errors: str | None = None,
    newline: str | None = None,
) -> Any:
    """What :func:`open` would make of a raw file, after :func:`check`; if it cannot, the file is closed."""
    try:
        if "b" in mode:
            if buffering != 0:
                return buffered(raw, mode, buffering)
            raw.write_through()
            return raw
        below: Any = buffered(raw, mode, buffering)
        text = Text(below, encoding or "utf-8", errors, newline, line_buffering=buffering == 1)
        text.mode = mode
        return text
    except BaseException:
        raw.close()
        raise
