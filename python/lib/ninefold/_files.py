"""Files as Python has them: raw ones over a handle of the native module, and what buffers them.

What is read in order comes as a stream: the server sends ahead, over a connection of its own where the file is worth
it. What is only written is a stream, too. Reads and writes here and there go by their offsets.
"""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Callable
from typing import Any

from ninefold import _native
from ninefold._names import Attributes, stat_result

# Read or written at once by what buffers: a round trip brings as much as a few packets of a fast link.
BUFFER = 256 * 1024
# The most memory that is taken before anything has come, bytes.
WHOLE = 1 << 30


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

    def stat(self) -> os.stat_result:
        """What is known about the file now; what was written counts."""
        with self._lock:
            self._check()
            self._settle()
            known = self._handle.stat()
        self._size = known[5]
        return stat_result(known)

    def readinto(self, buffer: Any) -> int:
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
        pieces = []
        with self._lock:
            self._check(reads=True)
            while True:
                # A server may say any length: no more is taken at once than that.
                count = min(max(self._size - self._at, BUFFER), WHOLE)
                piece = self._read_in_order(count)
                if not piece:
                    break
                pieces.append(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

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
        with self._lock:
            self._check(writes=True)
            if self._stream is None and self._streams:
                self._stream = self._handle.stream(self._at, 0, True)
            if self._stream is None:
                count = self._handle.pwrite(data, self._at)
            else:
                count = self._stream.write(data)
            self._at += count
            self._size = max(self._size, self._at)
            return count

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
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
        with self._lock:
            if not self.closed and self._writes and self._maker == os.getpid():
                self._settle()

    def sync(self, datasync: bool = False) -> None:
        """Waits until what was written is on stable storage."""
        with self._lock:
            self._check()
            self._settle()
            self._handle.fsync(datasync)

    def close(self) -> None:
        if self.closed:
            return
        # After a fork it is the maker's, who has it still.
        if self._maker != os.getpid():
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
        if stream is not None:
            stream.close()

    def _check(self, *, reads: bool = False, writes: bool = False) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file.")
        if reads and not self._reads:
            raise io.UnsupportedOperation("File not open for reading")
        if writes and not self._writes:
            raise io.UnsupportedOperation("File not open for writing")

    def __repr__(self) -> str:
        return f"<ninefold.RawFile name={self.name!r} mode={self.mode!r}{' closed' if self.closed else ''}>"


class Reader(io.BufferedReader):
    """A file to read."""

    @property
    def size(self) -> int:
        """Bytes of the file, as of its open."""
        return self.raw.size  # type: ignore[attr-defined]


class Writer(io.BufferedWriter):
    """A file to write. What is flushed, the server has."""

    def flush(self) -> None:
        super().flush()
        self.raw.flush()

    def sync(self) -> None:
        """Flushes, and waits until it is on stable storage."""
        self.flush()
        self.raw.sync()  # type: ignore[attr-defined]


class Random(io.BufferedRandom):
    """A file to read and write."""

    def sync(self) -> None:
        """Flushes, and waits until it is on stable storage."""
        self.flush()
        self.raw.sync()  # type: ignore[attr-defined]


def buffered(raw: RawFile, mode: str, buffering: int) -> io.BufferedIOBase:
    """A buffer around a raw file."""
    size = BUFFER if buffering in (-1, 1) else buffering
    if "+" in mode:
        return Random(raw, size)
    return Reader(raw, size) if raw.readable() else Writer(raw, size)


def layered(
    raw: RawFile,
    mode: str,
    buffering: int = -1,
    encoding: str | None = None,
    errors: str | None = None,
    newline: str | None = None,
) -> Any:
    """What :func:`open` would make of a raw file; if it cannot, the file is closed."""
    try:
        if "b" in mode:
            if encoding is not None or errors is not None or newline is not None:
                raise ValueError("binary mode doesn't take an encoding, errors or newline argument")
            return raw if buffering == 0 else buffered(raw, mode, buffering)
        if buffering == 0:
            raise ValueError("can't have unbuffered text I/O")
        return io.TextIOWrapper(
            buffered(raw, mode, buffering),
            encoding or "utf-8",
            errors,
            newline,
            line_buffering=buffering == 1,
        )
    except BaseException:
        raw.close()
        raise
