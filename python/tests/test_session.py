"""Sessions: names, links, attributes, errors, and who is let in."""

from __future__ import annotations

import errno
import inspect
import os
import pathlib
import stat
import sys

import ninefold
import pytest
from conftest import TOKEN, Served


def test_a_tree_is_made_listed_and_removed(conn: ninefold.Connection, tree: pathlib.Path) -> None:
    conn.makedirs("a/b/c")
    conn.makedirs("a/b/c", exist_ok=True)
    with pytest.raises(FileExistsError):
        conn.makedirs("a/b/c")
    conn.write("a/one", b"1")
    conn.symlink("one", "a/link")
    conn.link("a/one", "a/two")
    assert sorted(conn.listdir("a")) == ["b", "link", "one", "two"]
    assert conn.readlink("a/link") == "one"
    assert conn.stat("a/one").st_nlink == 2
    kinds = {entry.name: (entry.is_dir(), entry.is_file(), entry.is_symlink()) for entry in conn.scandir("a")}
    assert kinds["b"] == (True, False, False) and kinds["link"] == (False, False, True)
    assert [where for where, _, _ in conn.walk("a")] == ["a", "a/b", "a/b/c"]
    assert [where for where, _, _ in conn.walk("a", topdown=False)] == ["a/b/c", "a/b", "a"]
    conn.rename("a/one", "a/b/three")
    assert conn.copy("a/b/three", "a/four") == 1 and conn.read("a/four") == b"1"
    with pytest.raises(OSError):
        conn.rmdir("a")
    outside = tree.parent / f"{tree.name}-outside"
    outside.mkdir()
    (outside / "kept").touch()
    (tree / "a" / "out").symlink_to(f"../../{outside.name}")
    conn.rmtree("a")
    assert not conn.exists("a") and (outside / "kept").exists(), "a link is removed, not followed"


def test_attributes_are_those_of_the_servers_disk(conn: ninefold.Connection, tree: pathlib.Path) -> None:
    conn.write("f", b"12345")
    conn.chmod("f", 0o640)
    conn.utime("f", (1_000_000_001, 2_000_000_003))
    conn.truncate("f", 3)
    conn.utime("f", (1_000_000_001, 2_000_000_003))
    ours, theirs = conn.stat("f"), os.stat(tree / "f")
    for name in (
        "st_mode",
        "st_ino",
        "st_nlink",
        "st_uid",
        "st_gid",
        "st_size",
        "st_mtime_ns",
        "st_atime_ns",
    ):
        assert getattr(ours, name) == getattr(theirs, name), name
    assert (ours.st_size, stat.S_IMODE(ours.st_mode)) == (3, 0o640)
    assert conn.statvfs().f_bsize > 0
    conn.chown("f", os.getuid(), -1)
    conn.utime("f")
    assert conn.stat("f").st_mtime > 2_000_000


def test_the_umask_is_taken_from_what_is_made(conn: ninefold.Connection, tree: pathlib.Path) -> None:
    was = os.umask(0o027)
    try:
        conn.write("f", b"")
        conn.mkdir("d")
        with conn.open("g", "w", perm=0o600):
            pass
    finally:
        os.umask(was)
    modes = [stat.S_IMODE((tree / name).stat().st_mode) for name in ("f", "d", "g")]
    assert modes == [0o640, 0o750, 0o600]


def test_names_need_not_be_text(conn: ninefold.Connection, tree: pathlib.Path) -> None:
    odd = os.fsdecode(b"caf\xe9 \xf0\x9f\x90\x87")
    conn.write(odd, b"1")
    assert conn.listdir() == [odd] and conn.read(os.fsencode(odd)) == b"1"
    assert conn.read(pathlib.PurePosixPath(odd)) == b"1"
    with pytest.raises(OSError, match="NUL"):
        conn.read("a\0b")
    with pytest.raises(OSError):
        conn.write("x" * 300, b"")
    with pytest.raises(TypeError):
        conn.read(7)  # type: ignore[arg-type]


def test_links_are_followed_and_lead_nowhere_outside(conn: ninefold.Connection, tree: pathlib.Path) -> None:
    (tree / "d").mkdir()
    (tree / "d" / "f").write_text("found")
    (tree / "to").symlink_to("d")
    (tree / "up").symlink_to("../" * 30 + "etc/passwd")
    (tree / "round").symlink_to("round")
    (tree / "new").symlink_to("d/made")
    assert conn.read("to/f") == b"found" and conn.read("to/../to/f") == b"found"
    assert stat.S_ISLNK(conn.stat("to", follow_symlinks=False).st_mode)
    with pytest.raises(FileNotFoundError):
        conn.read("up")
    with pytest.raises(OSError, match="symbolic links"):
        conn.read("round")


def test_an_error_says_what_failed_on_what(conn: ninefold.Connection) -> None:
    conn.write("f", b"")
    conn.mkdir("d")
    for error, path, call in [
        (FileNotFoundError, "none", lambda: conn.stat("none")),
        (NotADirectoryError, "f/x", lambda: conn.stat("f/x")),
        (IsADirectoryError, "d", lambda: conn.open("d")),
        (FileExistsError, "f", lambda: conn.open("f", "x")),
        (FileExistsError, "d", lambda: conn.mkdir("d")),
        (FileNotFoundError, "none", lambda: conn.remove("none")),
        (IsADirectoryError, "d", lambda: conn.remove("d")),
        (NotADirectoryError, "f", lambda: conn.rmdir("f")),
        (OSError, "/", lambda: conn.rename("/", "x")),
        (OSError, "f", lambda: conn.copy("f", "f")),
    ]:
        with pytest.raises(error) as raised:
            call()
        assert str(raised.value.filename).endswith(path) and raised.value.strerror, path


def test_a_closed_session_says_so(served: Served) -> None:
    conn = ninefold.connect(served.url)
    conn.write("closed", b"x")
    file = conn.open("closed", "rb")
    conn.close()
    conn.close()
    assert not conn.alive and "closed" in repr(conn)
    with pytest.raises(ValueError, match="closed session"):
        conn.stat("/")
    with pytest.raises(OSError):
        file.read()


def test_every_door_of_a_server_leads_in(
    served: Served, authority: dict[str, str], tree: pathlib.Path
) -> None:
    (tree / "f").write_text("in")
    port = served.port("tls!127.0.0.1!")
    pin = next(word for word in _fingerprint(authority["cert"]))
    for address, how in [
        (f"tcp!127.0.0.1!{served.tcp}", {}),
        (f"ninefold://127.0.0.1:{served.tcp}", {}),
        (f"unix!{served.socket}", {}),
        (f"9p+tls://{TOKEN}@127.0.0.1:{port}", {"ca": authority["ca"]}),
        (f"tls!127.0.0.1!{port}", {"pin": pin, "token": TOKEN}),
    ]:
        with ninefold.connect(address, **how) as conn:
            assert conn.read(f"{tree.name}/f") == b"in", address


def _fingerprint(path: str) -> list[str]:
    import hashlib
    import ssl

    text = pathlib.Path(path).read_text()
    end = "-----END CERTIFICATE-----"
    return [hashlib.sha256(ssl.PEM_cert_to_DER_cert(text.split(end)[0].strip() + "\n" + end)).hexdigest()]


def test_who_is_not_known_or_not_let_in_is_told_why(served: Served, authority: dict[str, str]) -> None:
    port = served.port("tls!127.0.0.1!")
    with pytest.raises(ValueError, match="ca=FILE"):
        ninefold.connect(f"tls!127.0.0.1!{port}")
    with pytest.raises(OSError):
        ninefold.connect(f"tls!127.0.0.1!{port}", pin="00" * 32)
    with pytest.raises(ValueError, match="64"):
        ninefold.connect(f"tls!127.0.0.1!{port}", pin="00")
    with (
        ninefold.connect(f"tls!127.0.0.1!{port}", ca=authority["ca"]) as reader,
        pytest.raises(OSError) as raised,
    ):
        reader.write("f", b"without the token")
    assert raised.value.strerror == "Read-only file system"


@pytest.mark.parametrize(
    ("server", "error"),
    [
        ("nothing", ValueError),
        ("ftp://h", ValueError),
        ("tcp!", ValueError),
        ("tcp!127.0.0.1!1", ConnectionRefusedError),
        ("unix!/nowhere/at/all", OSError),
        ("shm!/nowhere", OSError),
        ("tcp!*!564", OSError),
    ],
)
def test_where_nobody_is_the_error_names_the_address(server: str, error: type[Exception]) -> None:
    with pytest.raises(error) as raised:
        ninefold.connect(server, timeout=5)
    assert server.split("!")[-1].split("://")[-1] in str(raised.value)


@pytest.mark.parametrize("timeout", [-1.0, float("nan"), 1e300])
def test_what_is_no_time_is_refused(timeout: float) -> None:
    with pytest.raises(ValueError, match="timeout"):
        ninefold.connect("tcp!127.0.0.1!1", timeout=timeout)


def test_a_path_behind_a_socket_is_where_paths_begin(served: Served, tree: pathlib.Path) -> None:
    (tree / "a").mkdir()
    (tree / "a" / "f").write_text("there")
    with ninefold.connect(f"unix:{served.socket}/{tree.name}/a") as conn:
        assert conn.listdir() == ["f"] and conn.read("/f") == b"there"
        conn.write("g", b"")
        assert (tree / "a" / "g").exists()
        assert conn.listdir("..") == ["a"], "where paths begin is no limit"


@pytest.mark.parametrize(
    ("server", "how"),
    [
        ("9p://secret@h", {"ca": __file__}),
        ("9p://secret@h", {"pin": "00" * 32}),
        ("9p://secret@h", {"cert": __file__, "key": __file__}),
        ("9p+tls://secret@h", {}),
        ("9p+tls://secret@h", {"ca": __file__, "pin": "00" * 32}),
        ("9p+tls://secret@h", {"pin": "00" * 32, "cert": __file__}),
        ("9p+tls://secret@h", {"pin": "00" * 32, "key": __file__}),
    ],
)
def test_what_says_who_a_server_is_is_never_ignored(server: str, how: dict[str, str]) -> None:
    with pytest.raises(ValueError) as raised:
        ninefold.connect(server, **how)
    assert "secret" not in str(raised.value)


def test_a_file_of_certificates_that_is_missing_is_named() -> None:
    for name in ("ca", "cert", "key"):
        how = {"ca": __file__, "cert": __file__, "key": __file__, name: "/no/such.pem"}
        with pytest.raises(FileNotFoundError) as raised:
            ninefold.connect("9p+tls://h", **how)
        assert raised.value.filename == "/no/such.pem"
    with pytest.raises(OSError, match="PEM") as raised_by_tls:
        ninefold.connect("9p+tls://h", ca=__file__)
    assert raised_by_tls.value.errno == errno.EINVAL


def test_an_error_names_the_file_as_it_is(conn: ninefold.Connection) -> None:
    name = os.fsdecode(b"not-\xff-utf-8")
    with pytest.raises(FileNotFoundError) as raised:
        conn.stat(name)
    assert raised.value.filename.endswith(name)


def test_trees_are_walked_and_removed_however_deep(conn: ninefold.Connection, tree: pathlib.Path) -> None:
    deep, limit = 80, sys.getrecursionlimit()
    (tree / "/".join("d" * deep)).mkdir(parents=True)
    # Deeper than anything may call itself.
    sys.setrecursionlimit(len(inspect.stack()) + deep // 2)
    try:
        assert sum(1 for _ in conn.walk("/")) == deep + 1
        assert sum(1 for _ in conn.walk("/", topdown=False)) == deep + 1
        conn.rmtree("d")
    finally:
        sys.setrecursionlimit(limit)
    assert conn.listdir() == []


def test_a_link_is_no_tree_to_remove(conn: ninefold.Connection, tree: pathlib.Path) -> None:
    conn.makedirs("there")
    conn.write("there/kept", b"")
    conn.symlink("there", "link")
    with pytest.raises(NotADirectoryError):
        conn.rmtree("link")
    assert conn.exists("there/kept")
    dirs = [dirs for _, dirs, _ in conn.walk()]
    assert dirs == [["there"], []]
