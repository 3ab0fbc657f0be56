"""PyArrow's S3FileSystem: the AWS SDK for C++."""

import pyarrow
import pyarrow.dataset
import pyarrow.fs
import pyarrow.parquet

from day import ACCESS_KEY, BUCKET, HOST, MIB, ODD_KEYS, SECRET_KEY, bytes_of, day, refuses, step

FS = pyarrow.fs.S3FileSystem(
    access_key=ACCESS_KEY, secret_key=SECRET_KEY, endpoint_override=HOST, scheme="http", region="us-east-1",
    allow_bucket_creation=True, allow_bucket_deletion=True,
)


def write(key, body):
    with FS.open_output_stream(f"{BUCKET}/{key}") as file:
        file.write(body)


def read(key):
    with FS.open_input_stream(f"{BUCKET}/{key}") as file:
        return file.read()


@step
def make_bucket():
    FS.create_dir(BUCKET)
    assert FS.get_file_info(BUCKET).type == pyarrow.fs.FileType.Directory


@step
def write_and_read():
    for size in (0, 1, 65537, 33 * MIB + 5):
        write(f"size/{size}", bytes_of(size, size))
        assert read(f"size/{size}") == bytes_of(size, size), size
    with FS.open_input_file(f"{BUCKET}/size/65537") as file:
        assert file.size() == 65537 and file.read_at(5, 65530) == bytes_of(65537, 65537)[65530:65535]


@step
def odd_names():
    # Arrow's paths have no empty parts.
    keys = [key for key in ODD_KEYS if "//" not in key]
    for key in keys:
        write(key, key.encode())
        assert read(key) == key.encode(), key
    found = FS.get_file_info(pyarrow.fs.FileSelector(f"{BUCKET}/odd", recursive=True))
    assert {f"{BUCKET}/{key}" for key in keys} <= {info.path for info in found}


@step
def parquet_by_partitions():
    table = pyarrow.table({"n": range(100_000), "kind": [f"k{n % 5}" for n in range(100_000)]})
    pyarrow.dataset.write_dataset(table, f"{BUCKET}/table", filesystem=FS, format="parquet", partitioning=["kind"])
    back = pyarrow.dataset.dataset(f"{BUCKET}/table", filesystem=FS, partitioning=["kind"]).to_table()
    assert sorted(back["n"].to_pylist()) == list(range(100_000))
    pyarrow.parquet.write_table(table, f"{BUCKET}/one.parquet", filesystem=FS)
    assert pyarrow.parquet.read_table(f"{BUCKET}/one.parquet", filesystem=FS).equals(table)


@step
def copy_move_delete():
    write("here", b"x")
    FS.copy_file(f"{BUCKET}/here", f"{BUCKET}/copied +%")
    FS.move(f"{BUCKET}/copied +%", f"{BUCKET}/moved")
    assert read("moved") == b"x"
    FS.delete_file(f"{BUCKET}/moved")
    refuses(lambda: read("moved"), "not")
    FS.delete_dir(f"{BUCKET}/table")
    assert FS.get_file_info(f"{BUCKET}/table").type == pyarrow.fs.FileType.NotFound


@step
def metadata():
    with FS.open_output_stream(f"{BUCKET}/meta", metadata={"Content-Type": "text/x-day"}) as file:
        file.write(b"m")
    with FS.open_input_stream(f"{BUCKET}/meta") as file:
        assert file.metadata()["Content-Type"] == b"text/x-day", file.metadata()


@step
def delete_everything():
    FS.delete_dir(BUCKET)
    assert FS.get_file_info(BUCKET).type == pyarrow.fs.FileType.NotFound


day(pyarrow.__version__)
