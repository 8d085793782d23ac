"""fsspec's own suite for file systems, and what ours says and does beyond it.

Of the suite nothing is excluded.
"""

from __future__ import annotations

import asyncio
import errno
import os
import pathlib
import pickle
from collections.abc import Iterator

import fsspec
import fsspec.tests.abstract as abstract
import pytest
from conftest import TOKEN, Served
from ninefold.fs import NinefoldFileSystem


class Ours(abstract.AbstractFixtures):
    @pytest.fixture
    def fs(self, served: Served) -> NinefoldFileSystem:
        return fsspec.filesystem("9p", server=served.url)

    @pytest.fixture
    def fs_path(self, tree: pathlib.Path) -> str:
        return f"/{tree.name}"

    @pytest.fixture
    def fs_join(self):  # type: ignore[no-untyped-def]
        return lambda *names: "/".join(
            str(name).rstrip("/") if n == 0 else str(name) for n, name in enumerate(names)
        )


class TestCopy(abstract.AbstractCopyTests, Ours):
    pass


class TestGet(abstract.AbstractGetTests, Ours):
    pass


class TestPut(abstract.AbstractPutTests, Ours):
    pass


class TestOpen(abstract.AbstractOpenTests, Ours):
    pass


class TestPipe(abstract.AbstractPipeTests, Ours):
    pass


@pytest.fixture
def fs(served: Served, tree: pathlib.Path) -> Iterator[NinefoldFileSystem]:
    """A file system whose paths begin in the test's own directory."""
    fs = fsspec.filesystem("9p", server=f"{served.url}/{tree.name}", skip_instance_cache=True)
    yield fs
    fs.close()


def test_a_url_names_server_token_and_path(
    served: Served, authority: dict[str, str], tree: pathlib.Path
) -> None:
    (tree / "a").write_text("here")
    with fsspec.open(f"9p://127.0.0.1:{served.tcp}/{tree.name}/a", "rt") as file:
        assert file.read() == "here"
    with fsspec.open(f"ninefold://127.0.0.1:{served.tcp}/{tree.name}/a") as file:
        assert file.read() == b"here"
    port = served.port("tls!127.0.0.1!")
    url = f"9p+tls://{TOKEN}@127.0.0.1:{port}/{tree.name}/b"
    with fsspec.open(url, "wb", ca=authority["ca"]) as file:
        file.write(b"over tls")
    assert (tree / "b").read_bytes() == b"over tls"
    fs, path = fsspec.url_to_fs(f"9p://127.0.0.1:{served.tcp}/x/y/")
    assert (path, fs.server) == ("/x/y", f"9p://127.0.0.1:{served.tcp}")


def test_a_url_without_a_host_is_the_default_server(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NINEFOLD_SERVER", f"unix!{served.socket}")
    fs, path = fsspec.url_to_fs("9p:///a/b", skip_instance_cache=True)
    assert path == "/a/b" and fs.exists("/")
    fs.close()


@pytest.mark.parametrize(
    ("server", "url"),
    [
        ("9p://h:1", "9p://h:1/a"),
        ("tcp!h!1", "9p://h:1/a"),
        ("tls!h", "9p+tls://h/a"),
        ("tcp!::1!564", "9p://[::1]:564/a"),
        ("unix:///run/x", "9p:///a"),
        ("unix!/run/x", "9p:///a"),
        ("9p://h/below", "9p:///a"),
    ],
)
def test_a_path_becomes_a_url_that_leads_back(server: str, url: str) -> None:
    fs = NinefoldFileSystem(server, skip_instance_cache=True)
    assert fs.unstrip_protocol("/a") == url
    assert NinefoldFileSystem._strip_protocol(url) == "/a"


def test_names_are_listed_with_what_is_known(fs: NinefoldFileSystem, tree: pathlib.Path) -> None:
    (tree / "dir").mkdir()
    (tree / "file").write_bytes(b"12345")
    (tree / "to_file").symlink_to("file")
    (tree / "to_dir").symlink_to("dir")
    (tree / "nowhere").symlink_to("gone")
    found = {entry["name"]: (entry["type"], entry["size"]) for entry in fs.ls("/")}
    assert found["/file"] == ("file", 5)
    assert found["/dir"][0] == "directory"
    assert found["/to_file"] == ("file", 5)
    assert found["/to_dir"][0] == "link", "a walk must not go round in circles"
    assert found["/nowhere"][0] == "link"
    assert fs.ls("/", detail=False) == sorted(found)
    assert fs.info("/to_dir")["type"] == "directory" and fs.info("/to_dir")["destination"] == "dir"
    assert fs.ls("/file", detail=False) == ["/file"]
    assert fs.find("/") == ["/file", "/nowhere", "/to_dir", "/to_file"]
    assert fs.du("/file") == 5
    assert abs(fs.modified("/file").timestamp() - (tree / "file").stat().st_mtime) < 1e-5


def test_parts_of_files_come_as_slices_do(fs: NinefoldFileSystem) -> None:
    data = bytes(range(256)) * 16
    fs.pipe("/a", data)
    for start, end in [
        (None, None),
        (0, 10),
        (100, None),
        (-5, None),
        (10, -10),
        (4000, 9999),
        (7, 7),
        (9, 3),
    ]:
        assert fs.cat_file("/a", start, end) == data[start:end], (start, end)
    assert fs.cat_ranges(["/a", "/a"], [0, 5], [3, 9]) == [data[0:3], data[5:9]]
    assert fs.cat("/", recursive=True, on_error="omit") == {"/a": data}
    assert fs.head("/a", 3) == data[:3] and fs.tail("/a", 3) == data[-3:]


def test_directories_are_made_above_what_is_written_unless_told(
    fs: NinefoldFileSystem, served: Served
) -> None:
    fs.pipe("/new/one", b"1")
    with fs.open("/newer/two", "wb") as file:
        file.write(b"2")
    assert fs.cat("/newer/two") == b"2"
    strict = NinefoldFileSystem(fs.server, auto_mkdir=False, skip_instance_cache=True)
    with pytest.raises(FileNotFoundError):
        strict.pipe("/newest/three", b"3")
    with pytest.raises(FileNotFoundError):
        strict.open("/newest/three", "wb")
    assert not fs.exists("/newest")
    strict.close()


def test_a_move_is_another_name_and_copies_nothing(fs: NinefoldFileSystem, tree: pathlib.Path) -> None:
    fs.pipe({"/a/1": b"1", "/a/2": b"2"})
    was = (tree / "a" / "1").stat().st_ino
    fs.mv("/a", "/b", recursive=True)
    fs.mkdir("/c")
    fs.mv("/b/1", "/c/")
    assert (tree / "c" / "1").stat().st_ino == was
    assert fs.find("/") == ["/b/2", "/c/1"]
    fs.mv("/b/*", "/d/")
    assert fs.find("/") == ["/c/1", "/d/2"]
    with pytest.raises(FileNotFoundError):
        fs.mv("/none", "/e")


def test_what_is_removed_is_removed_with_all_in_it_only_when_told(fs: NinefoldFileSystem) -> None:
    fs.pipe({"/a/b/c": b"", "/a/d": b"", "/e": b""})
    with pytest.raises(ValueError, match="recursive"):
        fs.rm("/a")
    fs.rm("/a", recursive=True, maxdepth=None)
    fs.rm("/e")
    assert fs.ls("/") == []
    with pytest.raises(FileNotFoundError):
        fs.rm("/e")
    fs.makedirs("/x/y", exist_ok=True)
    fs.makedirs("/x/y", exist_ok=True)
    with pytest.raises(FileExistsError):
        fs.makedirs("/x/y")
    fs.rmdir("/x/y")
    assert not fs.exists("/x/y") and fs.isdir("/x")


def test_what_is_removed_is_what_was_named(fs: NinefoldFileSystem, tree: pathlib.Path) -> None:
    (tree / "tgt").mkdir()
    (tree / "tgt" / "keep").touch()
    (tree / "lnk").symlink_to("tgt")
    for depth in (2, None):
        (tree / "in").mkdir()
        (tree / "in" / "lnk").symlink_to("../tgt")
        fs.rm("/in", recursive=True, maxdepth=depth)
        assert not (tree / "in").exists() and (tree / "tgt" / "keep").exists()
    fs.rm("/lnk", recursive=True, maxdepth=2)
    assert not (tree / "lnk").is_symlink() and (tree / "tgt" / "keep").exists()
    fs.pipe({"/a[1]": b"", "/a1": b"", "/what?": b"", "/whats": b"", "/b/*": b"", "/b/c": b""})
    fs.rm("/a[1]")
    fs.rm("/what?")
    fs.rm("/b/*")
    assert sorted(fs.find("/")) == ["/a1", "/b/c", "/tgt/keep", "/whats"]
    fs.rm("/w*")
    with pytest.raises(FileNotFoundError):
        fs.rm("/w*")
    fs.pipe({"/n/d/e": b"", "/n/f": b"", "/n2/d/e": b"", "/n3/d/e": b""})
    fs.rm("/n/**", recursive=True)
    fs.rm(["/n2", "/n2/d", "/n2/d/e"], recursive=True)
    fs.rm(["/n3/d", "/n3"], recursive=True, maxdepth=2)
    assert not any(fs.exists(name) for name in ("/n/f", "/n/d", "/n2", "/n3"))
    fs.pipe("/deep/er/est", b"")
    with pytest.raises(OSError):
        fs.rm("/deep", recursive=True, maxdepth=1)
    with pytest.raises(ValueError):
        fs.rm("/deep", recursive=True, maxdepth=0)
    assert fs.exists("/deep/er/est")


def test_a_file_that_cannot_be_had_costs_nothing_here(fs: NinefoldFileSystem, tmp_path: pathlib.Path) -> None:
    (tmp_path / "here").write_text("kept")
    with pytest.raises(FileNotFoundError):
        fs.get_file("/none", str(tmp_path / "here"))
    assert (tmp_path / "here").read_text() == "kept"


def test_a_file_without_length_has_its_bytes(tmp_path: pathlib.Path) -> None:
    # What is made up as it is read, as most of /proc is.
    proc = Served(tmp_path, "--listen", "tcp!127.0.0.1!0 -insecure", tree="/proc/self")
    try:
        fs = NinefoldFileSystem(proc.url, skip_instance_cache=True)
        assert fs.info("/limits")["size"] == 0
        whole = fs.cat_file("/limits")
        assert whole.startswith(b"Limit") and whole.count(b"\n") > 10
        assert fs.cat_file("/limits", 6, 2**40) == whole[6:]
        assert fs.cat_file("/limits", 2, 9) == whole[2:9]
        assert asyncio.run_coroutine_threadsafe(fs._cat_file("/limits", 2), fs.loop).result() == whole[2:]
        assert fs.cat(["/limits", "/status"])["/limits"] == whole
        fs.close()
    finally:
        proc.stop()


def test_an_exclusive_file_of_a_transaction_replaces_nothing(
    fs: NinefoldFileSystem, tree: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for has_links in (True, False):
        if not has_links:
            refuse = lambda *_: (_ for _ in ()).throw(OSError(errno.EOPNOTSUPP, "no links"))  # noqa: E731
            monkeypatch.setattr("ninefold._session.Connection.link", refuse)
        with fs.transaction, fs.open("/new", "xb") as file:
            file.write(b"1")
        assert fs.cat("/new") == b"1"
        fs.rm("/new")
        with pytest.raises(FileExistsError), fs.transaction:
            with fs.open("/new", "xb") as file:
                file.write(b"1")
            (tree / "new").write_text("of another")
        assert [path.name for path in tree.iterdir()] == ["new"] and fs.cat("/new") == b"of another"
        fs.rm("/new")


def test_a_transaction_gives_names_at_its_end_or_never(fs: NinefoldFileSystem) -> None:
    with fs.transaction:
        with fs.open("/whole", "wb") as file:
            file.write(b"all of it")
        assert not fs.exists("/whole")
    assert fs.cat("/whole") == b"all of it"
    with pytest.raises(KeyError), fs.transaction:
        with fs.open("/half", "wb") as file:
            file.write(b"a part")
        raise KeyError("given up")
    assert fs.ls("/", detail=False) == ["/whole"], "nothing is left of it"


def test_a_file_system_is_the_same_in_another_process(fs: NinefoldFileSystem) -> None:
    fs.pipe("/a", b"1")
    other = pickle.loads(pickle.dumps(fs))
    assert other.cat("/a") == b"1"
    other.close()


def test_connections_that_were_closed_come_back(fs: NinefoldFileSystem) -> None:
    fs.pipe("/a", b"1")
    file = fs.open("/a")
    fs.close()
    assert fs.cat("/a") == b"1" and fs.open("/a").read() == b"1"
    with pytest.raises((ConnectionError, ValueError)):
        file.read()


def test_tasks_of_an_event_loop_use_it_directly(fs: NinefoldFileSystem, served: Served) -> None:
    async def main() -> None:
        mine = NinefoldFileSystem(fs.server, asynchronous=True, skip_instance_cache=True)
        await asyncio.gather(*(mine._pipe_file(f"/many/{n}", str(n).encode()) for n in range(200)))
        found = await mine._cat([f"/many/{n}" for n in range(200)])
        assert found == {f"/many/{n}": str(n).encode() for n in range(200)}
        mine.close()

    asyncio.run(main())


def test_a_name_with_wildcards_that_is_there_is_meant_by_itself(
    fs: NinefoldFileSystem, tree: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    for name in ("a[1].txt", "what?", "all*"):
        (tree / name).write_text("right")
    for name in ("a1.txt", "whatx", "all of it"):
        (tree / name).write_text("wrong")
    (tree / "d[1]" / "deep").mkdir(parents=True)
    (tree / "d[1]" / "deep" / "f").write_text("in")
    for name in ("a[1].txt", "what?", "all*"):
        assert fs.cat(f"/{name}") == fs.cat_file(f"/{name}") == b"right"
        fs.get(f"/{name}", str(tmp_path / "got"))
        assert (tmp_path / "got").read_text() == "right"
        fs.copy(f"/{name}", "/copied")
        assert fs.cat("/copied") == b"right"
    # A list may have both.
    assert fs.cat(["/a[1].txt", "/wh*x"]) == {"/a[1].txt": b"right", "/whatx": b"wrong"}
    assert fs.expand_path("/[a]1.txt") == ["/a1.txt"]
    with pytest.raises(FileNotFoundError):
        fs.cat("/none[1]")
    fs.get("/d[1]", str(tmp_path / "tree"), recursive=True)
    assert (tmp_path / "tree" / "deep" / "f").read_text() == "in"
    (tmp_path / "into").mkdir()
    fs.get("/d[1]", str(tmp_path / "into"), recursive=True)
    assert (tmp_path / "into" / "d[1]" / "deep" / "f").read_text() == "in"
    fs.copy("/d[1]", "/e[1]", recursive=True)
    fs.mv("/d[1]", "/f[1]", recursive=True)
    assert fs.cat("/e[1]/deep/f") == fs.cat("/f[1]/deep/f") == b"in"
    assert not fs.exists("/d[1]")
    (tmp_path / "p[1]").write_text("put")
    (tmp_path / "p1").write_text("wrong")
    fs.put(str(tmp_path / "p[1]"), "/put")
    assert fs.cat("/put") == b"put"
    fs.put(str(tmp_path / "into"), "/tree[1]", recursive=True)
    assert fs.cat("/tree[1]/d[1]/deep/f") == b"in"


@pytest.mark.parametrize("kind", ["none", "readahead", "bytes", "blockcache", "all"])
def test_a_file_is_read_through_each_cache_of_fsspec(
    kind: str, fs: NinefoldFileSystem, tree: pathlib.Path
) -> None:
    data = bytes(range(256)) * 400
    (tree / "f").write_bytes(data)
    with fs.open("/f", cache_type=kind, block_size=1000) as file:
        assert file.blocksize == 1000 and file.size == len(data)
        assert file.read(5) == data[:5]
        file.seek(50_000)
        assert file.read(3000) == data[50_000:53_000]
        there = pickle.loads(pickle.dumps(file))
        assert there.tell() == 53_000 and there.read() == data[53_000:]


def test_a_block_cache_keeps_what_was_read(
    fs: NinefoldFileSystem, tree: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    data = bytes(range(256)) * 400
    (tree / "f").write_bytes(data)
    caching = fsspec.filesystem("blockcache", fs=fs, cache_storage=str(tmp_path / "cache"))
    with caching.open("/f", block_size=1000) as file:
        file.seek(2000)
        assert file.read(1000) == data[2000:3000]
    # From the blocks that are here: another content of the same length would be seen otherwise.
    with open(tree / "f", "r+b") as there:
        there.write(bytes(len(data)))
    with caching.open("/f", block_size=1000) as file:
        file.seek(2000)
        assert file.read(1000) == data[2000:3000]


def test_an_open_file_goes_to_another_process_at_its_position(
    fs: NinefoldFileSystem, tree: pathlib.Path
) -> None:
    (tree / "f").write_bytes(b"0123456789")
    with fs.open("/f") as file:
        assert file.read(3) == b"012"
        there = pickle.loads(pickle.dumps(file))
        assert there.read() == b"3456789" and file.read() == b"3456789"
        there.close()
    with fs.open("/g", "wb") as file, pytest.raises(TypeError):
        pickle.dumps(file)


def test_a_touch_cuts_only_when_told(fs: NinefoldFileSystem, tree: pathlib.Path) -> None:
    (tree / "f").write_text("kept")
    os.utime(tree / "f", (1, 1))
    fs.touch("/f", truncate=False)
    assert (tree / "f").read_text() == "kept"
    assert (tree / "f").stat().st_mtime > 1
    fs.touch("/new", truncate=False)
    assert (tree / "new").read_bytes() == b""
    fs.touch("/f")
    assert (tree / "f").read_bytes() == b""
