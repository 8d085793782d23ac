"""Libraries of others that find the file system by its name."""

from __future__ import annotations

import pathlib
import subprocess
import sys

from conftest import Served


def test_a_notebook_of_pandas_arrow_and_zarr_runs(served: Served, tree: pathlib.Path) -> None:
    script = pathlib.Path(__file__).parent / "notebook.py"
    url = f"ninefold://127.0.0.1:{served.tcp}/{tree.name}/data"
    done = subprocess.run([sys.executable, script, url], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    said = ["csv 12000", "json 12000", "parquet ['east', 'north', 'south']", "9p 9p", "arrow 3"]
    assert done.stdout.splitlines() == [*said, "zarr (1000, 1000)", "done"]
