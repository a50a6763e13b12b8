"""What type checkers say of calls of the public functions: `test_types.py` runs mypy over this file, which is not run.

Where a call is wrong, mypy must say so: an ignore that it does not need is an error, too.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from typing_extensions import assert_type

import gpuload
from gpuload.disk.manifest import Manifest
from gpuload.packing.run import PackReport

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
assert_type(dataset.classes, tuple[str, ...] | None)
assert_type(dataset.num_classes, int | None)
assert_type(dataset.fingerprint, str)
assert_type(dataset.subset([1, 2]), gpuload.Dataset)
assert_type(dataset.keys([0, 1]), list[str])
dataset.subset()  # type: ignore[call-arg]

mixture = gpuload.mix(
    [(dataset, 0.7), ("shards/b", {0: 0.3, 10: 1})], batches="stratified", by="step", between="linear"
)
assert_type(mixture, gpuload.Mixture)
assert_type(mixture.shares_at(5), tuple[float, ...])
gpuload.mix([dataset])  # type: ignore[list-item]
gpuload.mix([(dataset, 1)], by="day")  # type: ignore[arg-type]

buckets = gpuload.Buckets([(64, 64), (48, 80)])
assert_type(buckets.all_sizes, tuple[tuple[int, int], ...])
assert_type(buckets.numbers([1], [1]), npt.NDArray[np.uint8])
augment = gpuload.Augment(64, crop="center", flip=0.5, normalize=None, dtype="uint8")
assert_type(augment, gpuload.Augment)
gpuload.Augment(None, gpuload.Patches(16, max_tokens=1024))
gpuload.Augment()  # type: ignore[call-arg]
gpuload.Augment(64, crop="middle")  # type: ignore[arg-type]
gpuload.Augment(64, dtype="int8")  # type: ignore[arg-type]
gpuload.Patches("16")  # type: ignore[arg-type]

with gpuload.DaliIterator("shards/train", 8, augment=augment, sampling=gpuload.Balance("label")) as loader:
    assert_type(loader, gpuload.DaliIterator)
    assert_type(len(loader), int)
    assert_type(iter(loader), Iterator[tuple[Any, ...]])
    assert_type(loader.state_dict(), dict[str, Any])
    assert_type(loader.metrics(), gpuload.monitor.Metrics)
    assert_type(loader.batch_size, int)
    assert_type(loader.padding, int)
    assert_type(loader.dataset, gpuload.Dataset | gpuload.Mixture)
    loader.set_epoch("3")  # type: ignore[arg-type]
gpuload.DaliIterator("shards/train", 8, augment={"image": augment, "right": augment})
gpuload.DaliIterator(mixture, gpuload.Budget(16_384, multiple=8), augment={0: augment, 6: augment}, drop_last="exact")
gpuload.DaliIterator("shards/train", 8)  # type: ignore[call-arg]
gpuload.DaliIterator("shards/train", 8.5, augment=augment)  # type: ignore[arg-type]
gpuload.DaliIterator("shards/train", 8, augment=augment, on_corrupt="ignore")  # type: ignore[arg-type]
gpuload.DaliIterator("shards/train", 8, augment=augment, decoder="pillow")  # type: ignore[arg-type]
gpuload.DaliIterator("shards/train", 8, augment=augment, shuffel=True)  # type: ignore[call-arg]
gpuload.OnCorrupt("raise")  # type: ignore[arg-type]
gpuload.Weights(weights=np.ones(3), replacement=False, num_samples=2)
gpuload.Shuffle(window="all")  # type: ignore[arg-type]
