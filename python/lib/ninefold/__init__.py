"""Files of 9P servers.

    import ninefold

    with ninefold.connect("9p://fs.lab/") as lab:
        print(lab.listdir("/"))
        with lab.open("/notes/today", "w") as today:
            today.write("hello")

A session may be used by any number of threads at once. :mod:`ninefold.aio` has the same for asyncio, and
:mod:`ninefold.fs` is a file system for fsspec, which pandas, pyarrow, zarr and others use: ``9p://host/path``.
"""

from ninefold._session import Connection, DirEntry, Stream, connect

__all__ = ["Connection", "DirEntry", "Stream", "connect"]
