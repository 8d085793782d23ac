"""Reads a large file over and over: through fsspec, and with the command's own client, one after the other.

`memory` has no server: what it costs Python to put as many bytes together, below which `whole` cannot be.

Usage: bench.py PROGRAM URL [ROUNDS]    PROGRAM is `ninefold`, URL that of the file, 9p://host:port/file
"""

from __future__ import annotations

import io
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import fsspec


def main() -> None:
    program, url = sys.argv[1], sys.argv[2]
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 7
    fs, path = fsspec.url_to_fs(url)
    size = fs.size(path)

    def command() -> None:
        subprocess.run([program, "--config", "/dev/null", "cat", url], stdout=subprocess.DEVNULL, check=True)

    def pieces() -> None:
        with fs.open(path) as file:
            assert sum(len(piece) for piece in iter(lambda: file.read(1 << 20), b"")) == size

    def into() -> None:
        buffer, count = bytearray(1 << 20), 0
        with fs.open(path) as file:
            while got := file.readinto(buffer):
                count += got
        assert count == size

    def whole() -> None:
        with fs.open(path) as file:
            assert len(file.read()) == size

    def memory() -> None:
        whole, piece = io.BytesIO(), bytes(1 << 20)
        for _ in range(size >> 20):
            whole.write(piece)
        assert len(whole.getvalue()) == size >> 20 << 20

    ways: dict[str, Callable[[], None]] = {
        "command": command,
        "read": pieces,
        "readinto": into,
        "whole": whole,
        "memory": memory,
    }
    took: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            begun = time.monotonic()
            way()
            took[name].append(time.monotonic() - begun)
    command_median = statistics.median(took["command"])
    for name, seconds in took.items():
        median = statistics.median(seconds)
        slowest, fastest = size / max(seconds) / 1e6, size / min(seconds) / 1e6
        rate = f"{size / median / 1e6:7.0f} MB/s  [{slowest:.0f}..{fastest:.0f}]"
        print(f"{name:<9} {rate}  {command_median / median:.2f} x the command")


if __name__ == "__main__":
    main()
