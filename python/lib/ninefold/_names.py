"""Where servers are, who we are, and what an answer is in Python's own terms."""

from __future__ import annotations

import os
import pwd
import stat as _stat
from typing import Any, Union

StrPath = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]

# An answer of the native module about a file: see src/args.rs.
Attributes = tuple[int, int, int, int, int, int, tuple[int, int, int], int, int, int]

# Permissions of what is made, before the umask.
FILE_MODE = 0o666
DIR_MODE = 0o777


def default_server() -> str:
    """``$NINEFOLD_SERVER``, or the socket at which ``ninefold serve`` listens for its own user."""
    server = os.environ.get("NINEFOLD_SERVER")
    if server:
        return server
    uid = os.geteuid()
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    # A root shell may still have that of the user before.
    if runtime and (uid != 0 or _owner(runtime) == uid):
        return f"unix!{runtime}/ninefold.sock"
    return "unix!/run/ninefold.sock" if uid == 0 else f"unix!/tmp/ninefold-{uid}/ninefold.sock"


def _owner(path: str) -> int | None:
    try:
        return os.stat(path).st_uid
    except OSError:
        return None


def split_server(server: str) -> tuple[str, str]:
    """The address in ``server``, and the path behind it where there is one."""
    scheme, mark, rest = server.partition("://")
    if mark and scheme not in ("unix", "shm"):
        place, slash, path = rest.partition("/")
        return f"{scheme.replace('ninefold', '9p')}://{place}", slash + path
    network = server.split("!", 1)[0]
    if network in ("tcp", "tls", "vsock", "il"):
        place, slash, path = server.partition("/")
        return place, slash + path
    return server, ""


def credentials(user: str | None, cert: str | None) -> tuple[str, int | None]:
    """As whom we attach: the name and number of this process' user; with a certificate, whom it names."""
    if user is not None:
        return user, int(user) if user.isdecimal() else None
    if cert is not None:
        return "", None
    uid = os.geteuid()
    try:
        return pwd.getpwuid(uid).pw_name, uid
    except KeyError:
        return "", uid


def join(base: bytes, path: StrPath) -> bytes:
    """A path from the server's root; a relative one begins at the session's own root, too."""
    return base + b"/" + os.fsencode(path).lstrip(b"/")


def umask() -> int:
    """The process' umask, which 9P leaves to the client; it can only be read by setting it where /proc does not say."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as status:
            for line in status:
                if line.startswith("Umask:"):
                    return int(line.split()[1], 8)
    except OSError:
        pass
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def stat_result(known: Attributes) -> os.stat_result:
    """What is known about a file, as ``os.stat`` would say it."""
    mode, ino, nlink, uid, gid, size, (atime, mtime, ctime), blksize, blocks, rdev = known
    seconds = [ns // 10**9 for ns in (atime, mtime, ctime)]
    more: dict[str, Any] = {
        "st_atime": atime / 1e9,
        "st_mtime": mtime / 1e9,
        "st_ctime": ctime / 1e9,
        "st_atime_ns": atime,
        "st_mtime_ns": mtime,
        "st_ctime_ns": ctime,
        "st_blksize": blksize,
        "st_blocks": blocks,
        "st_rdev": rdev,
    }
    return os.stat_result((mode, ino, 0, nlink, uid, gid, size, *seconds), more)


def kind(mode: int) -> str:
    """What fsspec calls a file of this mode."""
    if _stat.S_ISDIR(mode):
        return "directory"
    if _stat.S_ISLNK(mode):
        return "link"
    return "file" if _stat.S_ISREG(mode) else "other"


def open_flags(mode: str) -> int:
    """The flags of open(2) for a mode of :func:`open`, which has one of r, w, a, x and perhaps ``+``."""
    letters = set(mode) - {"b", "t", "+"}
    doubled = len(set(mode)) != len(mode) or {"b", "t"} <= set(mode)
    if len(letters) != 1 or not letters <= set("rwax") or doubled:
        raise ValueError(f"invalid mode: {mode!r}")
    how = {"r": 0, "w": os.O_CREAT | os.O_TRUNC, "a": os.O_CREAT | os.O_APPEND, "x": os.O_CREAT | os.O_EXCL}
    (letter,) = letters
    access = os.O_RDWR if "+" in mode else os.O_RDONLY if letter == "r" else os.O_WRONLY
    return access | how[letter]
