"""Polars with delta-rs: tables whose commits are conditional puts, so that several writers need nobody else."""

import concurrent.futures

import deltalake
import polars

from bucket import make_bucket
from day import ACCESS_KEY, BUCKET, ENDPOINT, SECRET_KEY, day, step

OPTIONS = {
    "aws_access_key_id": ACCESS_KEY, "aws_secret_access_key": SECRET_KEY, "aws_endpoint_url": ENDPOINT, "aws_region": "us-east-1",
    "aws_allow_http": "true",
}
TABLE = f"s3://{BUCKET}/table"
ROWS = 10_000


def frame(first):
    return polars.DataFrame({"n": range(first, first + ROWS), "kind": [f"k{n % 3}" for n in range(ROWS)]})


def rows():
    return sorted(polars.read_delta(TABLE, storage_options=OPTIONS)["n"].to_list())


@step
def a_bucket_made_elsewhere():
    # Neither makes buckets.
    make_bucket(BUCKET)


@step
def write_append_and_read():
    frame(0).write_delta(TABLE, storage_options=OPTIONS, delta_write_options={"partition_by": ["kind"]})
    frame(ROWS).write_delta(TABLE, mode="append", storage_options=OPTIONS)
    assert rows() == list(range(2 * ROWS))
    scan = polars.scan_delta(TABLE, storage_options=OPTIONS).filter(polars.col("kind") == "k1")
    assert scan.select(polars.len()).collect().item() == 2 * len(range(1, ROWS, 3))


@step
def writers_at_once_lose_nothing():
    before = len(rows())

    def append(n):
        deltalake.write_deltalake(TABLE, frame(n * ROWS).to_arrow(), mode="append", storage_options=OPTIONS)

    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        list(pool.map(append, range(2, 8)))
    assert rows() == list(range(before + 6 * ROWS))
    assert deltalake.DeltaTable(TABLE, storage_options=OPTIONS).version() == 7


@step
def merge_delete_optimize_vacuum():
    table = deltalake.DeltaTable(TABLE, storage_options=OPTIONS)
    assert table.delete("n >= 10000")["num_deleted_rows"] == 7 * ROWS
    assert rows() == list(range(ROWS))
    table.optimize.compact()
    table.create_checkpoint()
    assert table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    assert rows() == list(range(ROWS))
    old = deltalake.DeltaTable(TABLE, storage_options=OPTIONS)
    assert len(old.history()) > 8


@step
def parquet_of_polars():
    url = f"s3://{BUCKET}/one +.parquet"
    frame(0).write_parquet(url, storage_options=OPTIONS)
    assert polars.read_parquet(url, storage_options=OPTIONS).equals(frame(0))
    lazy = polars.scan_parquet(url, storage_options=OPTIONS).filter(polars.col("n") > 9990)
    assert lazy.collect().height == 9
    lazy.sink_parquet(f"s3://{BUCKET}/sunk.parquet", storage_options=OPTIONS)
    assert polars.read_parquet(f"s3://{BUCKET}/sunk.parquet", storage_options=OPTIONS).height == 9


day(f"{polars.__version__} with delta-rs {deltalake.__version__}")
