"""Sessions that wait on the thread that calls."""

from __future__ import annotations

import builtins
import errno
import os
import stat as _stat
from collections.abc import Iterator
from types import TracebackType
from typing import Any

from ninefold import _files, _native
from ninefold._names import (
    DIR_MODE,
    FILE_MODE,
    Attributes,
    StrPath,
    credentials,
    default_server,
    join,
    open_flags,
    split_server,
    stat_result,
    umask,
)


def connect(
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
    """Connects to a 9P server.

    ``server`` is an address as the command has them: ``9p://host:port``, ``9p+tls://host``, ``tcp!host!port``,
    ``unix!/run/x.sock``, ``vsock!2!564``; a path behind it is where paths of the session begin (behind a socket:
    ``unix:/run/x.sock/path``), and no limit: ``..`` leads out of it. Without an address it is ``$NINEFOLD_SERVER``,
    else the socket of ``ninefold serve``.

    ``token`` is shown to servers that ask for one (else ``$NINEFOLD_TOKEN``), ``user`` is as whom we attach the tree
    ``aname``. Over TLS the server is known by an authority (``ca``, a PEM file) or by the SHA-256 of its certificate
    (``pin``); ``cert`` and ``key`` are our own. ``timeout`` seconds bound the dial, its handshakes and the attach.

    Raises OSError (ConnectionRefusedError, TimeoutError, PermissionError, ...), or ValueError for what is no address.
    """
    session, base = dial(server, token, user, aname, ca, pin, cert, key, timeout, False)
    return Connection(session, base)


def dial(
    server: str | None,
    token: str | None,
    user: str | None,
    aname: str,
    ca: StrPath | None,
    pin: str | None,
    cert: StrPath | None,
    key: StrPath | None,
    timeout: float,
    asynchronous: bool,
) -> tuple[_native.Session, bytes]:
    """A native session, and the path where its paths begin."""
    for file in (ca, cert, key):
        if file is not None:
            # What is missing is said as everywhere, with its number and name.
            open(file, "rb").close()
    address, path = split_server(server if server is not None else default_server())
    name, uid = credentials(user, None if cert is None else os.fsdecode(cert))
    session = _native.connect(
        address,
        user=name,
        uid=uid,
        aname=aname,
        token=token if token is not None else os.environ.get("NINEFOLD_TOKEN"),
        ca=None if ca is None else os.fsdecode(ca),
        pin=pin,
        cert=None if cert is None else os.fsdecode(cert),
        key=None if key is None else os.fsdecode(key),
        timeout=timeout,
        asynchronous=asynchronous,
    )
    # Only the native module knows where the path of a socket ends.
    return session, os.fsencode(f"{session.base.rstrip('/')}/{path}".rstrip("/"))


class DirEntry:
    """A name in a directory, and what is known about it, as of :func:`os.scandir`."""

    __slots__ = ("_known", "name", "path")

    def __init__(self, name: str, path: str, known: Attributes | None) -> None:
        self.name = name
        self.path = path
        self._known = known

    def stat(self) -> os.stat_result:
        """What is known about it; links are not followed."""
        if self._known is None:
            raise PermissionError(13, "the server does not say", self.path)
        return stat_result(self._known)

    def is_dir(self) -> bool:
        """Whether it is a directory."""
        return self._known is not None and _stat.S_ISDIR(self._known[0])

    def is_file(self) -> bool:
        """Whether it is a regular file."""
        return self._known is not None and _stat.S_ISREG(self._known[0])

    def is_symlink(self) -> bool:
        """Whether it is a symbolic link."""
        return self._known is not None and _stat.S_ISLNK(self._known[0])

    def __fspath__(self) -> str:
        return self.path

    def __repr__(self) -> str:
        return f"<DirEntry {self.name!r}>"


class Connection:
    """A session with a server. Any number of threads may use it at once; after a fork it is its maker's alone."""

    def __init__(self, session: _native.Session, base: bytes = b"") -> None:
        self._session = session
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

    def close(self) -> None:
        """Ends the session; what is under way fails. Closing it again does nothing."""
        self._session.close()

    def open(
        self,
        path: StrPath,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        *,
        perm: int | None = None,
    ) -> Any:
        """Opens a file, with the arguments of :func:`open`; text is UTF-8 unless told.

        What is read or written in order is streamed. ``perm`` are the permissions of a file that is made (0o666 less
        the umask).
        """
        flags = open_flags(mode)
        _files.check(mode, buffering, encoding, errors, newline)
        made = FILE_MODE & ~umask() if perm is None else perm
        handle, known = self._session.open(self._at(path), flags, made)
        raw = _files.RawFile(handle, known, os.fsdecode(path), flags, mode)
        return _files.layered(raw, mode, buffering, encoding, errors, newline)

    def read(self, path: StrPath, start: int = 0, end: int | None = None) -> bytes:
        """All bytes of a file, or those from ``start`` to before ``end``."""
        return self._session.read_file(self._at(path), start, end)

    def write(self, path: StrPath, data: Any, *, exclusive: bool = False, perm: int | None = None) -> None:
        """Makes a file of these bytes, or replaces what is in it; ``exclusive``: there must be none."""
        made = FILE_MODE & ~umask() if perm is None else perm
        self._session.write_file(self._at(path), data, os.O_EXCL if exclusive else 0, made)

    def stream(self, path: StrPath, mode: str = "r", offset: int = 0) -> Stream:
        """A file in order from ``offset`` on: read (``"r"``), or written (``"w"``: made or cut, ``"r+"``: as it is).

        Over TCP and TLS, what is worth it has a connection of its own.
        """
        handle, known = self._session.open(self._at(path), stream_flags(mode), FILE_MODE & ~umask())
        return Stream(handle, handle.stream(offset, known[5], mode != "r"))

    def listdir(self, path: StrPath = "/") -> list[str]:
        """Names in a directory, in the server's order."""
        return self._session.listdir(self._at(path))

    def scandir(self, path: StrPath = "/") -> list[DirEntry]:
        """Names in a directory with what is known about each: of many at a time, not a round trip for each."""
        return entries(path, self._session.scandir(self._at(path)))

    def walk(self, path: StrPath = "/", topdown: bool = True) -> Iterator[tuple[str, list[str], list[str]]]:
        """Directories below ``path`` as :func:`os.walk` has them; links are not followed."""
        todo: list[str | tuple[str, list[str], list[str]]] = [os.fsdecode(path)]
        while todo:
            here = todo.pop()
            if isinstance(here, tuple):
                yield here
                continue
            found = self.scandir(here)
            dirs = [entry.name for entry in found if entry.is_dir()]
            files = [entry.name for entry in found if not entry.is_dir()]
            if topdown:
                yield here, dirs, files
            else:
                todo.append((here, dirs, files))
            todo.extend(os.path.join(here, name) for name in reversed(dirs))

    def stat(self, path: StrPath, *, follow_symlinks: bool = True) -> os.stat_result:
        """What is known about a file."""
        return stat_result(self._session.stat(self._at(path), follow_symlinks))

    def exists(self, path: StrPath) -> bool:
        """Whether there is such a file; a link that leads nowhere is none."""
        try:
            self.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def isdir(self, path: StrPath) -> bool:
        """Whether it is a directory."""
        try:
            return _stat.S_ISDIR(self.stat(path).st_mode)
        except (FileNotFoundError, NotADirectoryError):
            return False

    def isfile(self, path: StrPath) -> bool:
        """Whether it is a regular file."""
        try:
            return _stat.S_ISREG(self.stat(path).st_mode)
        except (FileNotFoundError, NotADirectoryError):
            return False

    def mkdir(self, path: StrPath, mode: int = DIR_MODE) -> None:
        """Makes a directory; the umask is taken from ``mode``."""
        self._session.mkdir(self._at(path), mode & ~umask())

    def makedirs(self, path: StrPath, mode: int = DIR_MODE, exist_ok: bool = False) -> None:
        """Makes a directory and those above it that are missing."""
        try:
            self.mkdir(path, mode)
        except FileNotFoundError:
            above = os.path.dirname(os.fsdecode(path).rstrip("/"))
            if not above.strip("/"):
                raise
            self.makedirs(above, mode, exist_ok=True)
            self.makedirs(path, mode, exist_ok)
        except OSError:
            # What is there may refuse to be made in other words.
            if not exist_ok or not self.isdir(path):
                raise

    def remove(self, path: StrPath) -> None:
        """Removes a file or link."""
        self._session.unlink(self._at(path), False)

    def rmdir(self, path: StrPath) -> None:
        """Removes an empty directory."""
        self._session.unlink(self._at(path), True)

    def rmtree(self, path: StrPath) -> None:
        """Removes a directory and all that is in it; links are removed in it, not followed, and none is a directory."""
        no_link(path, self.stat(path, follow_symlinks=False))
        dirs = [path]
        for one in dirs:
            for entry in self.scandir(one):
                if entry.is_dir():
                    dirs.append(entry.path)
                else:
                    self.remove(entry.path)
        for one in reversed(dirs):
            self.rmdir(one)

    def rename(self, old: StrPath, new: StrPath) -> None:
        """Gives a file another name. What has it is replaced where the server's dialect can (9P2000.L)."""
        self._session.rename(self._at(old), self._at(new))

    def copy(self, old: StrPath, new: StrPath) -> int:
        """Copies the content of a file, through this machine; says how many bytes."""
        return self._session.copy_file(self._at(old), self._at(new), FILE_MODE & ~umask())

    def symlink(self, target: StrPath, path: StrPath) -> None:
        """Makes a symbolic link at ``path``."""
        self._session.symlink(self._at(path), os.fsencode(target))

    def link(self, old: StrPath, new: StrPath) -> None:
        """Gives a file a second name."""
        self._session.link(self._at(old), self._at(new))

    def readlink(self, path: StrPath) -> str:
        """Where a symbolic link leads."""
        return self._session.readlink(self._at(path))

    def chmod(self, path: StrPath, mode: int) -> None:
        """Changes permissions."""
        self._session.setattr(self._at(path), mode=_stat.S_IMODE(mode))

    def chown(self, path: StrPath, uid: int, gid: int) -> None:
        """Changes owner and group; -1 leaves one as it is."""
        self._session.setattr(self._at(path), uid=None if uid < 0 else uid, gid=None if gid < 0 else gid)

    def truncate(self, path: StrPath, size: int) -> None:
        """Cuts a file, or makes it longer with zeros."""
        self._session.setattr(self._at(path), size=size)

    def utime(self, path: StrPath, ns: tuple[int, int] | None = None) -> None:
        """Sets the times of access and change, in nanoseconds since 1970; ``None``: the server's now."""
        atime, mtime = ns if ns is not None else (-1, -1)
        self._session.setattr(self._at(path), atime=atime, mtime=mtime)

    def statvfs(self, path: StrPath = "/") -> os.statvfs_result:
        """About the file system there (9P2000.L)."""
        return vfs_result(self._session.statfs(self._at(path)))

    def _at(self, path: StrPath) -> bytes:
        return join(self._base, path)

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<ninefold.Connection {self.peer} {self.dialect}{'' if self.alive else ' closed'}>"


def stream_flags(mode: str) -> int:
    """The flags of open(2) for a mode of a stream."""
    flags = {"r": os.O_RDONLY, "w": os.O_WRONLY | os.O_CREAT | os.O_TRUNC, "r+": os.O_WRONLY}
    if mode not in flags:
        raise ValueError(f"invalid mode of a stream: {mode!r}")
    return flags[mode]


def vfs_result(known: tuple[int, int, int, int, int, int, int]) -> os.statvfs_result:
    """What is known about a file system, as ``os.statvfs`` would say it."""
    bsize, blocks, bfree, bavail, files, ffree, namelen = known
    return os.statvfs_result((bsize, bsize, blocks, bfree, bavail, files, ffree, ffree, 0, namelen))


def no_link(path: StrPath, known: os.stat_result) -> None:
    """Refuses a link where all of a directory is to go: it leads to what nobody has named."""
    if _stat.S_ISLNK(known.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, "a link, not a directory", os.fsdecode(path))


def entries(path: StrPath, found: list[tuple[str, Attributes | None]]) -> list[DirEntry]:
    """Entries of the directory ``path``."""
    above = os.fsdecode(path).rstrip("/")
    return [DirEntry(name, f"{above}/{name}", known) for name, known in found]


class Stream:
    """A file in order. One thread reads or writes it at a time."""

    def __init__(self, handle: _native.Handle, stream: _native.Stream) -> None:
        self._handle = handle
        self._stream = stream

    @property
    def has_connection(self) -> bool:
        """Whether a connection of its own carries bytes now."""
        return self._stream.has_connection

    def read(self, count: int = -1) -> bytes:
        """The next ``count`` bytes, fewer only at the end; negative: all of them."""
        return self._stream.read(count)

    def readinto(self, buffer: Any) -> int:
        """The next bytes into a buffer; fewer than fit only at the end."""
        return self._stream.readinto(buffer)

    def write(self, data: Any) -> int:
        """Writes all of ``data`` next. An error may show in a later call, at the latest in :meth:`close`."""
        return self._stream.write(data)

    def close(self) -> int:
        """Ends it, and says how many bytes were moved. What was written, the server has taken then."""
        try:
            return self._stream.close()
        finally:
            self._handle.close()

    def __iter__(self) -> Iterator[builtins.bytes]:
        while piece := self.read(_files.BUFFER):
            yield piece

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
