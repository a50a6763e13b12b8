"""What type checkers say of calls of the public functions: `test_types.py` runs mypy over this file, which is not run.

Where a call is wrong, mypy must say so: an ignore that it does not need is an error, too.
"""

from pathlib import Path
from typing import assert_type

import gpuload
from gpuload.disk.manifest import Manifest
from gpuload.packing.packer import PackReport

report = gpuload.pack([{"image": b""}], "shards", val="10%", size=64, maxsize="1GB", keep=["webp"], workers=None)
assert_type(report, PackReport)
assert_type(report.images, int)
gpuload.pack([], "shards", splits=[("train", 0.8), ("test", 0.2)], mode="uint16x4", encode="raw", resume=True)
gpuload.pack([], "shards", encode="png")  # type: ignore[arg-type]
gpuload.pack([], "shards", quality="high")  # type: ignore[arg-type]
gpuload.pack([], "shards", shufle=True)  # type: ignore[call-arg]

faults = gpuload.verify("shards", workers=2, quarantine=Path("bad.jsonl"))
assert_type(faults, list[str])
gpuload.verify(3)  # type: ignore[arg-type]

assert_type(gpuload.index("tars/*.tar", out=Path("index"), missing="skip"), tuple[Path, Manifest])
assert_type(gpuload.index(["a.tar", Path("b.tar")]), tuple[Path, Manifest])
gpuload.index("a.tar", missing="all")  # type: ignore[arg-type]

assert_type(gpuload.fetch("s3://bucket/set/train", Path("set")), Manifest)
gpuload.fetch("s3://bucket/set/train")  # type: ignore[call-arg]

dataset = gpuload.Dataset("shards/train")
assert_type(dataset, gpuload.Dataset)
assert_type(len(dataset), int)
