"""A day with a data set on a server, as a notebook has it; `test_users.py` runs it.

Usage: notebook.py URL, where URL is that of an empty directory: ninefold://host:port/dir
"""

# %% The libraries know the file system by its name.
import sys

import fsspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import zarr
from pyarrow.fs import FSSpecHandler, PyFileSystem

base = sys.argv[1]

# %% A table, written as CSV and read back
frame = pd.DataFrame(
    {
        "station": np.repeat(["north", "south", "east"], 4000),
        "hour": np.tile(np.arange(4000), 3),
        "temperature": np.random.default_rng(9).normal(11.0, 4.0, 12_000).round(3),
    }
)
frame.to_csv(f"{base}/weather/all.csv", index=False)
again = pd.read_csv(f"{base}/weather/all.csv")
pd.testing.assert_frame_equal(frame, again)
print("csv", len(again))

# %% Compressed, as JSON lines, as Excel would not
frame.to_csv(f"{base}/weather/all.csv.gz", index=False)
assert len(pd.read_csv(f"{base}/weather/all.csv.gz", chunksize=5000).read()) == len(frame)
frame.to_json(f"{base}/weather/all.jsonl", orient="records", lines=True)
pd.testing.assert_frame_equal(pd.read_json(f"{base}/weather/all.jsonl", lines=True), frame)
print("json", len(frame))

# %% Parquet, by column
frame.to_parquet(f"{base}/weather/all.parquet")
means = (
    pd.read_parquet(f"{base}/weather/all.parquet", columns=["station", "temperature"])
    .groupby("station")
    .mean()
)
print("parquet", sorted(means.index))

# %% 9p:// itself: pandas takes no scheme that begins with a digit, everybody else does
url = base.replace("ninefold://", "9p://")
with fsspec.open(f"{url}/weather/all.csv", "rt") as file:
    assert len(pd.read_csv(file)) == len(frame)
assert len(pd.read_csv(f"simplecache::{url}/weather/all.csv")) == len(frame)
print("9p", url.split("://")[0])

# %% A partitioned data set of Arrow's
fs, root = fsspec.url_to_fs(url)
arrow = PyFileSystem(FSSpecHandler(fs))
table = pa.Table.from_pandas(frame, preserve_index=False)
ds.write_dataset(
    table,
    f"{root}/parts",
    filesystem=arrow,
    format="parquet",
    partitioning=["station"],
    partitioning_flavor="hive",
)
found = ds.dataset(f"{root}/parts", filesystem=arrow, partitioning="hive")
warm = found.to_table(filter=(ds.field("station") == "south") & (ds.field("temperature") > 15.0))
assert warm.num_rows == ((frame.station == "south") & (frame.temperature > 15.0)).sum()
assert pq.read_table(f"{root}/weather/all.parquet", filesystem=fs).num_rows == len(frame)
print("arrow", len(found.files))

# %% An array of zarr's, in pieces
store = zarr.storage.FsspecStore.from_url(f"{url}/grid.zarr")
grid = zarr.create_array(store, shape=(1000, 1000), chunks=(100, 100), dtype="f8")
values = np.random.default_rng(7).random((1000, 1000))
grid[:] = values
opened = zarr.open_array(zarr.storage.FsspecStore.from_url(f"{url}/grid.zarr"), mode="r")
assert (opened[150:250, :] == values[150:250, :]).all()
print("zarr", opened.shape)

# %% And it is gone
fs.rm(root, recursive=True)
assert not fs.exists(root)
print("done")
