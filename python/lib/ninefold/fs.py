"""A file system for fsspec, and so for pandas, pyarrow, zarr, dask and others: ``9p://[token@]host[:port]/path``.

``9p+tls://`` goes over TLS (``ca`` or ``pin`` among the storage options say how the server is known), ``9p:///path`` to
the server of the option ``server``, of ``$NINEFOLD_SERVER``, or to this user's own ``ninefold serve``. The same schemes
are called ``ninefold://`` and ``ninefold+tls://`` for who, like pandas, takes no scheme that begins with a digit.

Directories are asked for again each time: nothing is cached. A server that went away is dialled again by the next
operation; what only reads is asked again by itself. Of what writes, only ``open`` takes part in transactions.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import os
import secrets
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from glob import has_magic
from typing import Any

from fsspec.asyn import AsyncFileSystem, sync
from fsspec.callbacks import DEFAULT_CALLBACK
from fsspec.implementations.local import LocalFileSystem, make_path_posix, trailing_sep
from fsspec.spec import AbstractBufferedFile
from fsspec.utils import other_paths, stringify_path

from ninefold import _files, _session, aio
from ninefold._names import FILE_MODE, default_server, kind, open_flags, split_server, umask

__all__ = ["NinefoldFileSystem"]

# Moved at once between this machine's files and a server, bytes.
PIECE = 1 << 20
# What is not whole yet is called so, and 16 digits: as by the command.
PART = ".ninefold-"
SCHEMES = ("9p", "9p+tls", "ninefold", "ninefold+tls")


class NinefoldFileSystem(AsyncFileSystem):
    """Files of a 9P server.

    Parameters
    ----------
    server: an address (``9p://host:port``, ``unix!/run/x.sock``); see :func:`ninefold.connect`, also for ``token``,
        ``user``, ``aname``, ``ca``, ``pin``, ``cert``, ``key`` and ``timeout``.
    auto_mkdir: make the directories that are missing above a file that is written, as object stores seem to do.
    """

    protocol = SCHEMES
    root_marker = "/"
    cachable = True

    def __init__(
        self,
        server: str | None = None,
        *,
        token: str | None = None,
        user: str | None = None,
        aname: str = "",
        ca: str | None = None,
        pin: str | None = None,
        cert: str | None = None,
        key: str | None = None,
        timeout: float = 30.0,
        auto_mkdir: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.server = server if server is not None else default_server()
        self.auto_mkdir = auto_mkdir
        self._how = (token, user, aname, ca, pin, cert, key, timeout)
        self._dialling = threading.Lock()
        self._asked: aio.Connection | None = None
        self._opened: _session.Connection | None = None
        self._maker = os.getpid()

    # Addresses

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, (list, tuple)):
            return [cls._strip_protocol(one) for one in path]
        path = stringify_path(path)
        scheme, mark, rest = path.partition("://")
        if mark and scheme in SCHEMES:
            path = rest.partition("/")[2]
        return "/" + path.strip("/")

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, Any]:
        scheme, mark, rest = path.partition("://")
        token, at, place = rest.partition("/")[0].rpartition("@")
        if not mark or not place:
            return {}
        options = {"server": f"{scheme.replace('ninefold', '9p')}://{place}"}
        return options | {"token": token} if at else options

    def unstrip_protocol(self, name: str) -> str:
        """A URL that leads to the same file: of servers that URLs can name."""
        address, base = split_server(self.server)
        network, _, place = address.partition("!")
        if network in ("tcp", "tls") and place:
            host, _, port = place.partition("!")
            host = f"[{host}]" if ":" in host else host
            scheme = "9p" if network == "tcp" else "9p+tls"
            address = f"{scheme}://{host}:{port}" if port else f"{scheme}://{host}"
        if address.partition("://")[0] not in ("9p", "9p+tls") or base.strip("/"):
            address = "9p://"
        return address + self._strip_protocol(name)

    # Sessions: one for requests of any number of tasks, one for open files, whose readers wait on their own threads.

    def _ours(self) -> None:
        if self._maker != os.getpid():
            # What was connected before a fork is the maker's.
            self._asked, self._opened, self._dialling = None, None, threading.Lock()
            self._maker = os.getpid()

    def _dial(self, asynchronous: bool) -> Any:
        session, base = _session.dial(self.server, *self._how, asynchronous)
        return aio.Connection(session, base) if asynchronous else _session.Connection(session, base)

    def _dial_once(self) -> aio.Connection:
        with self._dialling:
            if self._asked is None or not self._asked.alive:
                self._asked = self._dial(True)
            return self._asked

    async def _asking(self) -> aio.Connection:
        self._ours()
        session = self._asked
        if session is None or not session.alive:
            session = await asyncio.to_thread(self._dial_once)
        return session

    def _opening(self) -> _session.Connection:
        self._ours()
        with self._dialling:
            if self._opened is None or not self._opened.alive:
                self._opened = self._dial(False)
            return self._opened

    def close(self) -> None:
        """Ends the connections; the next operation makes new ones."""
        self._ours()
        with self._dialling:
            for session in (self._asked, self._opened):
                if session is not None:
                    session._session.close()

    async def _ask(self, call: Callable[[aio.Connection], Any]) -> Any:
        """What a request that changes nothing comes to; asked again where the connection has gone meanwhile."""
        session = await self._asking()
        try:
            return await call(session)
        except ConnectionError:
            if session.alive:
                raise
        return await call(await self._asking())

    # What is there

    async def _info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        known = await self._lstat(path)
        if kind(known.st_mode) == "link":
            return await self._followed(path, known)
        return _known(path, known)

    async def _followed(self, path: str, link: os.stat_result, *, listed: bool = False) -> dict[str, Any]:
        """About a link: what it leads to. In a list, a directory behind it is not gone into."""
        there = await self._ask(lambda session: session.readlink(path))
        try:
            known = await self._ask(lambda session: session.stat(path))
        except OSError:
            known = link
        entry = _known(path, known)
        if listed and entry["type"] == "directory":
            entry["type"] = "link"
        return entry | {"islink": True, "destination": there}

    async def _ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        path = self._strip_protocol(path)
        try:
            if not detail:
                names = await self._ask(lambda session: session.listdir(path))
                return sorted(f"{path.rstrip('/')}/{name}" for name in names)
            entries = await self._ask(lambda session: session.scandir(path))
        except NotADirectoryError:
            entry = await self._info(path)
            return [entry if detail else entry["name"]]

        async def of(entry: _session.DirEntry) -> dict[str, Any]:
            if entry.is_symlink():
                return await self._followed(entry.path, entry.stat(), listed=True)
            if entry._known is None:
                return {"name": entry.path, "size": None, "type": "other"}
            return _known(entry.path, entry.stat())

        found = await asyncio.gather(*(of(entry) for entry in entries))
        return sorted(found, key=lambda entry: entry["name"])

    async def _exists(self, path: str, **kwargs: Any) -> bool:
        try:
            await self._info(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def modified(self, path: str) -> datetime:
        """When its content was last changed."""
        return datetime.fromtimestamp(self.info(path)["mtime"], tz=UTC)

    # Content

    async def _cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any
    ) -> bytes:
        path = self._strip_protocol(path)
        if (start or 0) < 0 or (end or 0) < 0:
            start, end, _ = slice(start, end).indices((await self._info(path))["size"])
        if end is not None and end <= (start or 0):
            return b""
        return await self._ask(lambda session: session.read(path, start or 0, end))

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        """The bytes of a file, or those of a slice; by the thread that asks, without a hop to another one."""
        with self._raw(self._strip_protocol(path), "rb") as raw:
            if (start or 0) < 0 or (end or 0) < 0:
                start, end, _ = slice(start, end).indices(raw.size)
            # Otherwise its size says nothing: what a server makes up as it is read has none.
            raw.seek(start or 0)
            return raw.read_up_to(None if end is None else max(end - (start or 0), 0))

    async def _pipe_file(self, path: str, value: Any, mode: str = "overwrite", **kwargs: Any) -> None:
        path = self._strip_protocol(path)
        session = await self._asking()
        await self._making(path, lambda: session.write(path, value, exclusive=mode == "create"))

    async def _get_file(
        self, rpath: str, lpath: Any, callback: Any = DEFAULT_CALLBACK, **kwargs: Any
    ) -> None:
        rpath = self._strip_protocol(rpath)
        session = await self._asking()
        if hasattr(lpath, "write"):
            async with await session.open(rpath) as file:
                await self._fetch(file, lpath, callback)
            return
        if await self._isdir(rpath):
            os.makedirs(lpath, exist_ok=True)
            return
        # First what may not be there: what is here is not cut for nothing.
        async with await session.open(rpath) as file:
            with open(lpath, "wb") as here:
                await self._fetch(file, here, callback)

    @staticmethod
    async def _fetch(file: aio.File, here: Any, callback: Any) -> None:
        callback.set_size(file.size)
        stream = file.stream()
        while piece := await stream.read(PIECE):
            here.write(piece)
            callback.relative_update(len(piece))
        await stream.close()

    async def _put_file(
        self,
        lpath: str,
        rpath: str,
        mode: str = "overwrite",
        callback: Any = DEFAULT_CALLBACK,
        **kwargs: Any,
    ) -> None:
        rpath = self._strip_protocol(rpath)
        if os.path.isdir(lpath):
            await self._makedirs(rpath, exist_ok=True)
            return
        session = await self._asking()
        how = "xb" if mode == "create" else "wb"
        with open(lpath, "rb") as here:
            callback.set_size(os.fstat(here.fileno()).st_size)
            async with await self._making(rpath, lambda: session.open(rpath, how)) as file:
                stream = file.stream(write=True)
                while piece := here.read(PIECE):
                    await stream.write(piece)
                    callback.relative_update(len(piece))
                await stream.close()

    # Names with wildcards in them. A file that is called so is meant by its name, and then nothing else is.

    async def _is_literal(self, path: Any) -> bool:
        if not isinstance(path, str) or not has_magic(path):
            return False
        try:
            await self._lstat(self._strip_protocol(path))
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    async def _expand_path(
        self, path: Any, recursive: bool = False, maxdepth: int | None = None, assume_literal: bool = False
    ) -> list[str]:
        paths = path if isinstance(path, (list, tuple, set)) else [path]
        literal: list[str] = []
        patterns: list[str] = []
        for name in map(self._strip_protocol, paths):
            named = assume_literal or not has_magic(name) or await self._is_literal(name)
            (literal if named else patterns).append(name)
        found: set[str] = set()
        for names, as_they_are in ((literal, True), (patterns, False)):
            if names:
                with contextlib.suppress(FileNotFoundError):
                    found.update(await super()._expand_path(names, recursive, maxdepth, as_they_are))
        if not found:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), ", ".join(literal + patterns))
        return sorted(found)

    @staticmethod
    def _pairs(source: str, found: list[str], target: str, is_dir: bool) -> tuple[list[str], list[str]]:
        """What was found of a tree, and where each of it goes: into a directory that is there, or in its place."""
        return found, other_paths(found, target, exists=is_dir and not trailing_sep(source))

    async def _found(self, path: str, recursive: bool, maxdepth: int | None) -> list[str]:
        found = await self._expand_path(path, recursive, maxdepth, assume_literal=True)
        if recursive and maxdepth is None:
            return found
        # Without recursion no directory is copied.
        return [name for name in found if not await self._isdir(name)]

    async def _get(
        self, rpath: Any, lpath: Any, recursive: bool = False, maxdepth: int | None = None, **kwargs: Any
    ) -> None:
        if isinstance(lpath, (str, os.PathLike)) and await self._is_literal(rpath):
            here = make_path_posix(lpath)
            found = await self._found(rpath, recursive, maxdepth)
            rpath, lpath = self._pairs(rpath, found, here, trailing_sep(here) or os.path.isdir(here))
        await super()._get(rpath, lpath, recursive=recursive, maxdepth=maxdepth, **kwargs)

    async def _put(
        self, lpath: Any, rpath: Any, recursive: bool = False, maxdepth: int | None = None, **kwargs: Any
    ) -> None:
        if isinstance(rpath, str) and isinstance(lpath, (str, os.PathLike)):
            here = make_path_posix(lpath)
            if has_magic(here) and os.path.lexists(here):
                fs = LocalFileSystem()
                found = fs.expand_path([here], recursive, maxdepth, assume_literal=True)
                if not recursive or maxdepth is not None:
                    found = [name for name in found if not os.path.isdir(name)]
                into = trailing_sep(rpath) or await self._isdir(rpath)
                lpath, rpath = self._pairs(here, found, self._strip_protocol(rpath), into)
        await super()._put(lpath, rpath, recursive=recursive, maxdepth=maxdepth, **kwargs)

    async def _copy(
        self, path1: Any, path2: Any, recursive: bool = False, maxdepth: int | None = None, **kwargs: Any
    ) -> None:
        if isinstance(path2, str) and await self._is_literal(path1):
            found = await self._found(path1, recursive, maxdepth)
            into = trailing_sep(path2) or await self._isdir(path2)
            path1, path2 = self._pairs(path1, found, self._strip_protocol(path2), into)
        await super()._copy(path1, path2, recursive=recursive, maxdepth=maxdepth, **kwargs)

    async def _cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        path1, path2 = self._strip_protocol(path1), self._strip_protocol(path2)
        if (await self._info(path1))["type"] == "directory":
            await self._makedirs(path2, exist_ok=True)
            return
        session = await self._asking()
        await self._making(path2, lambda: session.copy(path1, path2))

    async def _making(self, path: str, make: Callable[[], Any]) -> Any:
        """What making a file at `path` comes to, with the directories above it where they are missing."""
        try:
            return await make()
        except FileNotFoundError:
            if not self.auto_mkdir:
                raise
        await self._makedirs(self._parent(path), exist_ok=True)
        return await make()

    # Names

    async def _mkdir(self, path: str, create_parents: bool = True, **kwargs: Any) -> None:
        path = self._strip_protocol(path)
        session = await self._asking()
        if create_parents:
            await session.makedirs(path)
        else:
            await session.mkdir(path)

    async def _makedirs(self, path: str, exist_ok: bool = False) -> None:
        session = await self._asking()
        path = self._strip_protocol(path)
        if path == "/":
            if not exist_ok:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
            return
        await session.makedirs(path, exist_ok=exist_ok)

    async def _rmdir(self, path: str) -> None:
        session = await self._asking()
        await session.rmdir(self._strip_protocol(path))

    def rmdir(self, path: str) -> None:
        """Removes an empty directory."""
        sync(self.loop, self._rmdir, path)

    async def _rm_file(self, path: str, **kwargs: Any) -> None:
        session = await self._asking()
        await session.remove(self._strip_protocol(path))

    async def _rm(
        self,
        path: Any,
        recursive: bool = False,
        batch_size: int | None = None,
        maxdepth: int | None = None,
        **kwargs: Any,
    ) -> None:
        if maxdepth is not None and maxdepth < 1:
            raise ValueError("maxdepth must be at least 1")
        session = await self._asking()
        named = await self._meant(path if isinstance(path, (list, tuple, set)) else [path], maxdepth)
        for one, is_dir in named.items():
            if is_dir and not recursive:
                raise ValueError(f"{one} is a directory: set recursive=True to remove it with all in it")
        if maxdepth is not None:
            level = [one for one, is_dir in named.items() if is_dir]
            for _ in range(maxdepth):
                found = [entry for one in level for entry in await session.scandir(one)]
                named |= {entry.path: entry.is_dir() for entry in found}
                level = [entry.path for entry in found if entry.is_dir()]
        # What is in a directory goes before it, or with it.
        for one in sorted(named, key=lambda name: name.split("/"), reverse=True):
            above = itertools.accumulate(one.split("/")[1:-1], "{}/{}".format, initial="")
            if maxdepth is None and any(named.get(name or "/") for name in above):
                continue
            if not named[one]:
                await session.remove(one)
            elif maxdepth is None:
                await session.rmtree(one)
            else:
                await session.rmdir(one)

    async def _meant(self, paths: Any, maxdepth: int | None) -> dict[str, bool]:
        """What is there by these names, and whether each is a directory, which no link is. What is there by a name with
        wildcards in it is meant by it, and nothing else."""
        found: dict[str, bool] = {}
        for path in map(self._strip_protocol, paths):
            try:
                found[path] = kind((await self._lstat(path)).st_mode) == "directory"
                continue
            except (FileNotFoundError, NotADirectoryError):
                matches = await self._glob(path, maxdepth=maxdepth) if has_magic(path) else []
                if not matches:
                    raise
            for name in map(self._strip_protocol, matches):
                found[name] = kind((await self._lstat(name)).st_mode) == "directory"
        return found

    async def _lstat(self, path: str) -> os.stat_result:
        return await self._ask(lambda session: session.stat(path, follow_symlinks=False))

    async def _mv_file(self, path1: str, path2: str) -> None:
        session = await self._asking()
        await session.rename(self._strip_protocol(path1), self._strip_protocol(path2))

    def mv(
        self, path1: Any, path2: Any, recursive: bool = False, maxdepth: int | None = None, **kwargs: Any
    ) -> None:
        """Moves files: where that is only another name, nothing is copied."""
        one = isinstance(path1, str) and isinstance(path2, str)
        named = one and (not has_magic(path1) or sync(self.loop, self._is_literal, path1))
        if named and maxdepth is None and not path1.endswith("/"):
            old, new = self._strip_protocol(path1), self._strip_protocol(path2)
            if path2.endswith("/") or self.isdir(new):
                new = f"{new.rstrip('/')}/{old.rsplit('/', 1)[-1]}"
            if old == new:
                return
            self.info(old)
            try:
                sync(self.loop, self._making, new, lambda: self._mv_file(old, new))
                return
            except OSError as error:
                # Another server behind a mux, or a dialect that replaces nothing.
                if error.errno not in (errno.EXDEV, errno.EOPNOTSUPP):
                    raise
        super().mv(path1, path2, recursive=recursive, maxdepth=maxdepth, **kwargs)

    def touch(self, path: str, truncate: bool = True, **kwargs: Any) -> None:
        """Makes an empty file of it; or, unless it shall be cut, one that was changed now, and is made if missing."""
        path = self._strip_protocol(path)
        if not truncate:
            with contextlib.suppress(FileNotFoundError):
                self._opening().utime(path)
                return
        with self._raw(path, "wb" if truncate else "ab"):
            pass

    # Open files

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        cache_options: Any = None,
        **kwargs: Any,
    ) -> Any:
        path = self._strip_protocol(path)
        if not autocommit and "r" not in mode:
            return self._open_part(path, mode, block_size)
        if mode == "rb" and kwargs.get("cache_type") is not None:
            return CachedFile(self, path, block_size=block_size, cache_options=cache_options, **kwargs)
        if mode == "rb":
            return OpenedFile(self, path, block_size)
        return _files.buffered(self._raw(path, mode), mode, block_size or -1)

    def _raw(self, path: str, mode: str) -> _files.RawFile:
        flags, made = open_flags(mode), FILE_MODE & ~umask()

        def open_it() -> _files.RawFile:
            session = self._opening()
            handle, known = session._session.open(session._at(path), flags, made)
            return _files.RawFile(handle, known, path, flags, mode)

        try:
            return open_it()
        except ConnectionError:
            if "r" not in mode or "+" in mode or self._opening_alive():
                raise
        except FileNotFoundError:
            if "r" in mode or not self.auto_mkdir:
                raise
            self._opening().makedirs(self._parent(path), exist_ok=True)
        return open_it()

    def _opening_alive(self) -> bool:
        return self._opened is not None and self._opened.alive

    def _open_part(self, path: str, mode: str, block_size: int | None) -> Part:
        if "a" in mode or "+" in mode:
            raise NotImplementedError("within a transaction a file is written as a whole")
        if "x" in mode and self._opening().exists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        above = self._parent(path).rstrip("/")
        part = f"{above}/{PART}{secrets.token_hex(8)}"
        return Part(self, self._raw(part, "xb"), part, path, block_size or _files.BUFFER, "x" in mode)


class OpenedFile(_files.Reader):
    """A file to read. Another process gets it at the same position, with a connection of its own."""

    def __init__(self, fs: NinefoldFileSystem, path: str, block_size: int | None) -> None:
        self.blocksize = block_size or _files.BUFFER
        super().__init__(fs._raw(path, "rb"), self.blocksize)
        self.fs, self.path = fs, path

    def __reduce__(self) -> tuple[Any, ...]:
        return _opened_at, (self.fs, self.path, self.blocksize, self.tell())

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return self.__reduce__()


def _opened_at(fs: NinefoldFileSystem, path: str, block_size: int, at: int) -> OpenedFile:
    file = OpenedFile(fs, path, block_size)
    file.seek(at)
    return file


class CachedFile(AbstractBufferedFile):
    """A file that is read through one of fsspec's caches, by offset."""

    def __init__(self, fs: NinefoldFileSystem, path: str, **kwargs: Any) -> None:
        self._raw = fs._raw(path, "rb")
        # What a server makes up as it is read has no length until then.
        self._whole = self._raw.read_up_to(None) if self._raw.size == 0 else b""
        kwargs["size"] = len(self._whole) or self._raw.size
        super().__init__(fs, path, "rb", **kwargs)

    def _fetch_range(self, start: int, end: int) -> bytes:
        return self._whole[start:end] if self._whole else self._raw.pread(end - start, start)

    def close(self) -> None:
        super().close()
        self._raw.close()


class Part(_files.Writer):
    """A file that is written in a transaction: it gets its name at the end."""

    def __init__(
        self,
        fs: NinefoldFileSystem,
        raw: _files.RawFile,
        part: str,
        path: str,
        buffer_size: int,
        exclusive: bool,
    ) -> None:
        super().__init__(raw, buffer_size)
        self._fs, self._part, self.path, self._exclusive = fs, part, path, exclusive

    def commit(self) -> None:
        """Gives it its name; an exclusive one replaces nothing that others have made meanwhile."""
        self.close()
        session = self._fs._opening()
        if not self._exclusive:
            session.rename(self._part, self.path)
            return
        try:
            session.link(self._part, self.path)
        except OSError as error:
            if error.errno == errno.EEXIST:
                raise
            # No links there: then it is looked for first, which leaves a moment to others.
            if session.exists(self.path):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), self.path) from error
            session.rename(self._part, self.path)
            return
        session.remove(self._part)

    def discard(self) -> None:
        """Removes it."""
        with contextlib.suppress(OSError):
            self.close()
        self._fs._opening().remove(self._part)


def _known(path: str, known: os.stat_result) -> dict[str, Any]:
    return {
        "name": path,
        "size": known.st_size,
        "type": kind(known.st_mode),
        "created": known.st_ctime,
        "mtime": known.st_mtime,
        "mode": known.st_mode,
        "uid": known.st_uid,
        "gid": known.st_gid,
        "ino": known.st_ino,
        "nlink": known.st_nlink,
        "islink": False,
    }
