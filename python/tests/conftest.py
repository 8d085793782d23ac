"""Servers to test against: ours, in a directory of its own, and one that does what a test tells it."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import signal
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator

import ninefold
import pytest
import trustme

PROGRAM = os.environ.get("NINEFOLD_BIN", "ninefold")
TOKEN = "00112233445566778899aabbccddeeff"


class Served:
    """`ninefold serve` in a directory: over TCP with everybody let in, over TLS with a token, at a socket."""

    def __init__(self, home: pathlib.Path, *words: str, tree: str | None = None) -> None:
        self.tree = home / "tree" if tree is None else pathlib.Path(tree)
        home.mkdir(parents=True, exist_ok=True)
        self.tree.mkdir(exist_ok=True)
        self.socket = home / "socket"
        command = [PROGRAM, "serve", str(self.tree), "--config", "/dev/null", *words]
        command += ["--listen", f"unix!{self.socket}"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self.process.stdout is not None
        said = []
        for line in self.process.stdout:
            said.append(line)
            if line == "ready\n":
                break
        self.said = "".join(said)
        assert said and said[-1] == "ready\n", f"ninefold serve has said: {self.said}"
        self.tcp = self.port("tcp!127.0.0.1!")
        self.url = f"9p://127.0.0.1:{self.tcp}"

    def port(self, prefix: str) -> int:
        found = re.search(re.escape(prefix) + r"(\d+)", self.said)
        return int(found[1]) if found else 0

    def stop(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An authority, and a certificate of it for 127.0.0.1."""
    home = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    server = authority.issue_cert("127.0.0.1", "localhost")
    files = {name: str(home / f"{name}.pem") for name in ("ca", "cert", "key")}
    authority.cert_pem.write_to_path(files["ca"])
    server.private_key_pem.write_to_path(files["key"])
    pathlib.Path(files["key"]).chmod(0o600)
    for pem in server.cert_chain_pems:
        pem.write_to_path(files["cert"], append=True)
    return files


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory, authority: dict[str, str]) -> Iterator[Served]:
    """The server that tests share."""
    home = tmp_path_factory.mktemp("served")
    (home / "token").write_text(TOKEN)
    (home / "token").chmod(0o600)
    listen = ["--listen", "tcp!127.0.0.1!0 -insecure", "--listen", "tls!127.0.0.1!0"]
    tls = ["--cert", authority["cert"], "--key", authority["key"], "--token-file", str(home / "token")]
    served = Served(home, *listen, *tls)
    yield served
    served.stop()


@pytest.fixture
def tree(served: Served, request: pytest.FixtureRequest) -> pathlib.Path:
    """A directory of the test's own on the server."""
    name = re.sub(r"\W", "_", request.node.name)
    here = served.tree / name
    count = 0
    while here.exists():
        count += 1
        here = served.tree / f"{name}{count}"
    here.mkdir()
    return here


@pytest.fixture
def conn(served: Served, tree: pathlib.Path) -> Iterator[ninefold.Connection]:
    """A session whose paths begin in the test's own directory."""
    with ninefold.connect(f"{served.url}/{tree.name}") as conn:
        yield conn


# Message types of 9P.
RLERROR, TVERSION, TATTACH, TFLUSH, TWALK, TCLUNK = 7, 100, 104, 108, 110, 120


class Stub:
    """A server that agrees on 9P2000.L, lets everybody attach, and leaves the rest to `answer(stub, type, tag, body)`:
    which returns the body of the answer to be sent, or None for no answer."""

    def __init__(self, answer: Callable[[Stub, int, int, bytes], bytes | None]) -> None:
        self.answer = answer
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"9p://127.0.0.1:{self.listener.getsockname()[1]}"
        self.conn: socket.socket | None = None
        self.seen: list[int] = []
        self.flushed = threading.Event()
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def serve(self) -> None:
        while True:
            try:
                self.conn, _ = self.listener.accept()
            except OSError:
                return
            with self.conn, contextlib.suppress(OSError):
                self.talk(self.conn)

    def talk(self, conn: socket.socket) -> None:
        stream = conn.makefile("rb")
        while head := stream.read(7):
            size, kind, tag = struct.unpack("<IBH", head)
            body = stream.read(size - 7)
            self.seen.append(kind)
            reply: bytes | None
            if kind == TVERSION:
                reply = body[:4] + struct.pack("<H", 8) + b"9P2000.L"
            elif kind == TATTACH:
                reply = b"\x80" + bytes(12)
            else:
                reply = self.answer(self, kind, tag, body)
            if kind == TFLUSH:
                self.flushed.set()
            if reply is not None:
                conn.sendall(struct.pack("<IBH", 7 + len(reply), kind + 1, tag) + reply)

    def hang_up(self) -> None:
        assert self.conn is not None
        self.conn.shutdown(socket.SHUT_RDWR)

    def stop(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()


@pytest.fixture
def stub() -> Iterator[Callable[..., Stub]]:
    """Makes servers that do what they are told."""
    made: list[Stub] = []

    def make(answer: Callable[[Stub, int, int, bytes], bytes | None]) -> Stub:
        made.append(Stub(answer))
        return made[-1]

    yield make
    for one in made:
        one.stop()
