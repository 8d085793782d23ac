"""Files of 9P servers.

    import ninefold

    with ninefold.connect("9p://fs.lab/") as lab:
        print(lab.listdir("/"))
        with lab.open("/notes/today", "w") as today:
            today.write("hello")

A session may be used by any number of threads at once. :mod:`ninefold.aio` has the same for asyncio, and
:mod:`ninefold.fs` is a file system for fsspec, which pandas, pyarrow, zarr and others use: ``9p://host/path``.
"""

from typing import Any

from ninefold._session import Connection, DirEntry, Stream, connect

__all__ = ["Connection", "DirEntry", "Stream", "connect"]


def __getattr__(name: str) -> Any:
    # Looked up when it is asked for: that takes longer than the rest of the import.
    if name == "__version__":
        from importlib.metadata import version

        return version("ninefold")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
