"""The same for asyncio: as many requests under way as there are tasks, on one connection and one thread.

    async with await ninefold.aio.connect("9p://fs.lab/") as lab:
        sizes = await asyncio.gather(*(lab.stat(path) for path in paths))

A session may be used from several event loops. A task that is cancelled takes its request back.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import stat as _stat
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any

from ninefold import _files, _native
from ninefold._names import DIR_MODE, FILE_MODE, StrPath, join, open_flags, stat_result, umask
from ninefold._session import DirEntry, dial, entries, no_link, stream_flags, vfs_result

__all__ = ["Connection", "File", "Stream", "connect"]


async def connect(
    server: str | None = None,
    *,
    token: str | None = None,
    user: str | None = None,
    aname: str = "",
    ca: StrPath | None = None,
    pin: str | None = None,
    cert: StrPath | None = None,
    key: StrPath | None = None,
    timeout: float = 30.0,
) -> Connection:
    """Connects to a 9P server, with the arguments of :func:`ninefold.connect`."""
    session, base = await asyncio.to_thread(
        dial, server, token, user, aname, ca, pin, cert, key, timeout, True
    )
    return Connection(session, base)


class Connection:
    """A session with a server, for asyncio."""

    def __init__(self, session: _native.Session, base: bytes = b"") -> None:
        self._session: Any = session
        self._base = base

    @property
    def peer(self) -> str:
        """The server's address."""
        return self._session.peer

    @property
    def dialect(self) -> str:
        """What is spoken, such as ``9P2000.L.s``."""
        return self._session.dialect

    @property
    def alive(self) -> bool:
        """Whether the connection is there."""
        return self._session.alive

    async def close(self) -> None:
        """Ends the session; what is under way fails. Closing it again does nothing."""
        self._session.close()

    async def open(self, path: StrPath, mode: str = "rb", *, perm: int | None = None) -> File:
        """Opens a file, in binary, to be read and written at offsets; ``mode`` as :func:`open` has it."""
        made = FILE_MODE & ~umask() if perm is None else perm
        handle, known = await self._session.open(self._at(path), open_flags(mode), made)
        return File(handle, known[5])

    async def read(self, path: StrPath, start: int = 0, end: int | None = None) -> bytes:
        """All bytes of a file, or those from ``start`` to before ``end``."""
        return await self._session.read_file(self._at(path), start, end)

    async def write(
        self, path: StrPath, data: Any, *, exclusive: bool = False, perm: int | None = None
    ) -> None:
        """Makes a file of these bytes, or replaces what is in it; ``exclusive``: there must be none."""
        made = FILE_MODE & ~umask() if perm is None else perm
        await self._session.write_file(self._at(path), data, os.O_EXCL if exclusive else 0, made)

    async def stream(self, path: StrPath, mode: str = "r", offset: int = 0) -> Stream:
        """A file in order from ``offset`` on: read (``"r"``), or written (``"w"``: made or cut, ``"r+"``: as it is)."""
        handle, known = await self._session.open(self._at(path), stream_flags(mode), FILE_MODE & ~umask())
        return Stream(handle.stream(offset, known[5], mode != "r"), handle)

    async def walk(
        self, path: StrPath = "/", topdown: bool = True
    ) -> AsyncIterator[tuple[str, list[str], list[str]]]:
        """Directories below ``path`` as :func:`os.walk` has them; links are not followed."""
        todo: list[str | tuple[str, list[str], list[str]]] = [os.fsdecode(path)]
        while todo:
            here = todo.pop()
            if isinstance(here, tuple):
                yield here
                continue
            found = await self.scandir(here)
            dirs = [entry.name for entry in found if entry.is_dir()]
            files = [entry.name for entry in found if not entry.is_dir()]
            if topdown:
                yield here, dirs, files
            else:
                todo.append((here, dirs, files))
            todo.extend(os.path.join(here, name) for name in reversed(dirs))

    async def listdir(self, path: StrPath = "/") -> list[str]:
        """Names in a directory, in the server's order."""
        return await self._session.listdir(self._at(path))

    async def scandir(self, path: StrPath = "/") -> list[DirEntry]:
        """Names in a directory with what is known about each."""
        return entries(path, await self._session.scandir(self._at(path)))

    async def stat(self, path: StrPath, *, follow_symlinks: bool = True) -> os.stat_result:
        """What is known about a file."""
        return stat_result(await self._session.stat(self._at(path), follow_symlinks))

    async def exists(self, path: StrPath) -> bool:
        """Whether there is such a file; a link that leads nowhere is none."""
        try:
            await self.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    async def isdir(self, path: StrPath) -> bool:
        """Whether it is a directory."""
        try:
            return _stat.S_ISDIR((await self.stat(path)).st_mode)
        except (FileNotFoundError, NotADirectoryError):
            return False

    async def isfile(self, path: StrPath) -> bool:
        """Whether it is a regular file."""
        try:
            return _stat.S_ISREG((await self.stat(path)).st_mode)
        except (FileNotFoundError, NotADirectoryError):
            return False

    async def mkdir(self, path: StrPath, mode: int = DIR_MODE) -> None:
        """Makes a directory; the umask is taken from ``mode``."""
        await self._session.mkdir(self._at(path), mode & ~umask())

    async def makedirs(self, path: StrPath, mode: int = DIR_MODE, exist_ok: bool = False) -> None:
        """Makes a directory and those above it that are missing."""
        try:
            await self.mkdir(path, mode)
        except FileNotFoundError:
            above = os.path.dirname(os.fsdecode(path).rstrip("/"))
            if not above.strip("/"):
                raise
            await self.makedirs(above, mode, exist_ok=True)
            await self.makedirs(path, mode, exist_ok)
        except OSError:
            # What is there may refuse to be made in other words.
            if not exist_ok or not await self.isdir(path):
                raise

    async def remove(self, path: StrPath) -> None:
        """Removes a file or link."""
        await self._session.unlink(self._at(path), False)

    async def rmdir(self, path: StrPath) -> None:
        """Removes an empty directory."""
        await self._session.unlink(self._at(path), True)

    async def rmtree(self, path: StrPath) -> None:
        """Removes a directory and all that is in it; links are removed in it, not followed, and none is a directory."""
        no_link(path, await self.stat(path, follow_symlinks=False))
        levels: list[list[StrPath]] = [[path]]
        while levels[-1]:
            found = list(itertools.chain(*await asyncio.gather(*map(self.scandir, levels[-1]))))
            await asyncio.gather(*(self.remove(entry.path) for entry in found if not entry.is_dir()))
            levels.append([entry.path for entry in found if entry.is_dir()])
        for level in reversed(levels):
            await asyncio.gather(*map(self.rmdir, level))

    async def rename(self, old: StrPath, new: StrPath) -> None:
        """Gives a file another name. What has it is replaced where the server's dialect can (9P2000.L)."""
        await self._session.rename(self._at(old), self._at(new))

    async def copy(self, old: StrPath, new: StrPath) -> int:
        """Copies the content of a file, through this machine; says how many bytes."""
        return await self._session.copy_file(self._at(old), self._at(new), FILE_MODE & ~umask())

    async def symlink(self, target: StrPath, path: StrPath) -> None:
        """Makes a symbolic link at ``path``."""
        await self._session.symlink(self._at(path), os.fsencode(target))

    async def link(self, old: StrPath, new: StrPath) -> None:
        """Gives a file a second name."""
        await self._session.link(self._at(old), self._at(new))

    async def readlink(self, path: StrPath) -> str:
        """Where a symbolic link leads."""
        return await self._session.readlink(self._at(path))

    async def chmod(self, path: StrPath, mode: int) -> None:
        """Changes permissions."""
        await self._session.setattr(self._at(path), mode=_stat.S_IMODE(mode))

    async def chown(self, path: StrPath, uid: int, gid: int) -> None:
        """Changes owner and group; -1 leaves one as it is."""
        await self._session.setattr(
            self._at(path), uid=None if uid < 0 else uid, gid=None if gid < 0 else gid
        )

    async def statvfs(self, path: StrPath = "/") -> os.statvfs_result:
        """About the file system there (9P2000.L)."""
        return vfs_result(await self._session.statfs(self._at(path)))

    async def truncate(self, path: StrPath, size: int) -> None:
        """Cuts a file, or makes it longer with zeros."""
        await self._session.setattr(self._at(path), size=size)

    async def utime(self, path: StrPath, ns: tuple[int, int] | None = None) -> None:
        """Sets the times of access and change, in nanoseconds since 1970; ``None``: the server's now."""
        atime, mtime = ns if ns is not None else (-1, -1)
        await self._session.setattr(self._at(path), atime=atime, mtime=mtime)

    def _at(self, path: StrPath) -> bytes:
        return join(self._base, path)

    async def __aenter__(self) -> Connection:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


class File:
    """An open file. Any number of tasks may use it at once: it has no position."""

    def __init__(self, handle: Any, size: int) -> None:
        self._handle = handle
        self.size = size
        # What has been written to them is known to be there when they are closed.
        self._writing: list[Stream] = []

    async def pread(self, count: int, offset: int) -> bytes:
        """Up to ``count`` bytes at ``offset``; fewer only at the end."""
        return await self._handle.pread(count, offset)

    async def pwrite(self, data: Any, offset: int) -> int:
        """Writes all of ``data`` at ``offset``."""
        return await self._handle.pwrite(data, offset)

    async def stat(self) -> os.stat_result:
        """What is known about the file now."""
        return stat_result(await self._handle.stat())

    async def truncate(self, size: int) -> None:
        """Cuts the file, or makes it longer with zeros."""
        await self._handle.truncate(size)

    async def sync(self, datasync: bool = False) -> None:
        """Waits until what was written is on stable storage."""
        await self._handle.fsync(datasync)

    def stream(self, offset: int = 0, *, write: bool = False) -> Stream:
        """The file in order from ``offset`` on."""
        stream = Stream(self._handle.stream(offset, self.size, write))
        if write:
            self._writing = [other for other in self._writing if not other.closed]
            self._writing.append(stream)
        return stream

    async def close(self) -> None:
        """Closes it, with its streams of writes: an error may mean that something written was not kept. Again, it does
        nothing."""
        writing, self._writing = self._writing, []
        try:
            for stream in writing:
                await stream.close()
        finally:
            await self._handle.close()

    async def __aenter__(self) -> File:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


class Stream:
    """A file in order. One task reads or writes it at a time."""

    def __init__(self, stream: Any, handle: Any = None) -> None:
        self._stream = stream
        # Its own, where there is no :class:`File`.
        self._handle = handle
        self.closed = False

    async def read(self, count: int = -1) -> bytes:
        """The next ``count`` bytes, fewer only at the end; negative: all of them. Who is cancelled has taken none."""
        coming = self._stream.read(count)
        try:
            return await coming
        except asyncio.CancelledError:
            # It had come, and its task was cancelled before it went on.
            if coming.done() and not coming.cancelled() and coming.exception() is None:
                self._stream.put_back(coming.result())
            raise

    async def write(self, data: Any) -> int:
        """Writes all of ``data`` next. An error may show in a later call, at the latest in :meth:`close`."""
        return await self._stream.write(data)

    async def close(self) -> int:
        """Ends it, and says how many bytes were moved. What was written, the server has taken then."""
        self.closed = True
        try:
            return await self._stream.close()
        finally:
            if self._handle is not None:
                await self._handle.close()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while piece := await self.read(_files.BUFFER):
            yield piece

    async def __aenter__(self) -> Stream:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()
