"""Runs what docs/coming-from.md shows of other loaders, with the versions that are installed, on small images.

    python tools/documentation/peers.py
    python tools/documentation/peers.py --python ffcv=/opt/ffcv/bin/python mosaic=/opt/mosaic/bin/python
    python tools/documentation/peers.py --only webdataset litdata --json mine.json

Each snippet is run as it stands on the page, in a process and a folder of its own, after the names that it takes for
granted (`PREPARE`) and with a few words replaced where the page names a bucket or a GPU (`REPLACED`). Then three
batches are taken from its `loader`, if it does not have a loop itself. The page says with which versions that was done;
`--json` writes the record that the tests compare it with.
"""

import argparse
import importlib
import importlib.metadata
import importlib.util
import io
import itertools
import json
import platform
import re
import subprocess
import sys
import tarfile
import tempfile
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "coming-from.md"
CLASSES, EACH, SHARDS = ("bridge", "dragonfly", "fossa", "wine"), 160, 128
_TIMEOUT_S = 600  # FFCV compiles for a minute
_SHOWN = 200  # characters of an error

# The tab of the page, and the distributions that it needs.
PEERS = {
    "dataloader": ("DataLoader", ("torch", "torchvision")),
    "webdataset": ("webdataset", ("webdataset", "torch", "torchvision")),
    "ffcv": ("FFCV", ("ffcv", "torch")),
    "dali": ("DALI", ("nvidia-dali-cuda130|nvidia-dali-cuda120", "torch")),
    "mosaic": ("Streaming", ("mosaicml-streaming", "torch", "torchvision")),
    "litdata": ("LitData", ("litdata", "torch", "torchvision")),
    "spdl": ("SPDL", ("spdl", "torch")),
}
# What is replaced in a snippet: buckets, GPUs, numbers of workers, and batches larger than the small set.
REPLACED = [
    ("s3://bucket/set/train", "remote"),
    ("/nvme/cache", "cache"),
    ("num_workers=8", "num_workers=2"),
    ("batch_size=256", "batch_size=64"),
    ("num_shards=8", "num_shards=1"),
    ('device="mixed"', 'device="cpu"'),
    ("device_id=0", "device_id=None"),
]


def snippet(tab: str) -> str:
    """The code of a tab of the page. Raises ValueError where there is none."""
    pattern = rf'^=== "{re.escape(tab)}"\n+(?: +<!--[^\n]*-->\n)? +```python\n(.*?)\n +```$'
    found = re.search(pattern, PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    if found is None:
        raise ValueError(f"{PAGE}: has no tab {tab!r} with code. Write one, or take it out of PEERS")
    code = textwrap.dedent(found[1])
    for written, run in REPLACED:
        code = code.replace(written, run)
    return code


def make_images(folder: Path) -> None:
    """photos/<class>/<number>.jpg, and the same as shards/train-000000.tar and so on. Needs NumPy and Pillow."""
    import numpy as np
    from PIL import Image

    random = np.random.default_rng(0)
    samples = []
    for number in range(EACH * len(CLASSES)):
        label = number % len(CLASSES)
        small = random.integers(0, 255, (6, 8, 3), np.uint8)
        file = io.BytesIO()
        Image.fromarray(small).resize((320, 240), Image.Resampling.BICUBIC).save(file, "JPEG")
        path = folder / "photos" / CLASSES[label] / f"{number:04d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.getvalue())
        samples.append((f"{number:08d}", file.getvalue(), label))
    (folder / "shards").mkdir()
    for shard in range(SHARDS):
        with tarfile.open(folder / "shards" / f"train-{shard:06d}.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
            for key, jpeg, label in samples[shard::SHARDS]:
                for extension, content in (("jpg", jpeg), ("cls", str(label).encode())):
                    member = tarfile.TarInfo(f"{key}.{extension}")
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))


def _transform() -> Any:
    from torchvision import transforms

    return transforms.Compose([transforms.RandomResizedCrop(224), transforms.ToTensor()])


def _photos() -> list[tuple[Path, int]]:
    return [(path, label) for label, name in enumerate(CLASSES) for path in sorted(Path("photos", name).iterdir())]


def _dataloader() -> dict[str, Any]:
    import torch
    from torch.utils.data import DataLoader
    from torchvision import transforms
    from torchvision.datasets import ImageFolder

    if not torch.cuda.is_available():
        torch.Tensor.cuda = lambda self: self  # type: ignore[assignment]
    return {"DataLoader": DataLoader, "transforms": transforms, "ImageFolder": ImageFolder}


def _webdataset() -> dict[str, Any]:
    import webdataset

    return {"wds": webdataset, "transform": _transform()}


def _ffcv() -> dict[str, Any]:
    import numpy as np
    from ffcv.fields import IntField, RGBImageField
    from ffcv.fields.decoders import IntDecoder, RandomResizedCropRGBImageDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import RandomHorizontalFlip, Squeeze, ToTensor, ToTorchImage
    from ffcv.writer import DatasetWriter
    from PIL import Image

    class Photos:
        def __len__(self) -> int:
            return len(_photos())

        def __getitem__(self, number: int) -> tuple[Any, int]:
            path, label = _photos()[number]
            return np.array(Image.open(path)), label

    fields = {"image": RGBImageField(write_mode="jpg"), "label": IntField()}
    DatasetWriter("train.beton", fields, num_workers=1).from_indexed_dataset(Photos())
    names = [Loader, OrderOption, RandomResizedCropRGBImageDecoder, RandomHorizontalFlip, ToTensor, ToTorchImage]
    return {name.__name__: name for name in [*names, IntDecoder, Squeeze]}


def _dali() -> dict[str, Any]:
    from nvidia.dali import fn, pipeline_def
    from nvidia.dali.plugin.pytorch import DALIGenericIterator

    tars = sorted(map(str, Path("shards").glob("*.tar")))
    indexes = [tar.replace(".tar", ".idx") for tar in tars]
    for tar, index in zip(tars, indexes, strict=True):
        with tarfile.open(tar) as archive:
            members = [(member.name.split("."), member.offset_data, member.size) for member in archive]
        pairs = list(zip(members[::2], members[1::2], strict=True))
        lines = [f"v1.2 {len(pairs)}"]
        lines += [
            " ".join(f"{name[1]} {offset} {size} {'.'.join(name)}" for name, offset, size in pair) for pair in pairs
        ]
        Path(index).write_text("\n".join(lines) + "\n")
    constants = {"MEAN": [124.0, 116.0, 104.0], "STD": [58.0, 57.0, 57.0]}
    names = {"fn": fn, "pipeline_def": pipeline_def, "DALIGenericIterator": DALIGenericIterator}
    return {**names, **constants, "tars": tars, "indexes": indexes, "rank": 0}


def _mosaic() -> dict[str, Any]:
    from PIL import Image
    from streaming import MDSWriter, StreamingDataLoader, StreamingDataset

    with MDSWriter(out="remote", columns={"image": "jpeg", "label": "int"}, progress_bar=False) as writer:
        for path, label in _photos():
            with Image.open(path) as image:
                writer.write({"image": image, "label": label})
    names = {"StreamingDataset": StreamingDataset, "StreamingDataLoader": StreamingDataLoader}
    return {**names, "transform": _transform()}


def _litdata() -> dict[str, Any]:
    from litdata import StreamingDataLoader, StreamingDataset, optimize
    from PIL import Image

    names = {"optimize": optimize, "StreamingDataset": StreamingDataset, "StreamingDataLoader": StreamingDataLoader}
    photos = [(str(path), label) for path, label in _photos()]
    return {**names, "io": io, "Path": Path, "Image": Image, "transform": _transform(), "photos": photos}


def _spdl() -> dict[str, Any]:
    import numpy as np
    import spdl.io
    import torch
    from spdl.pipeline import PipelineBuilder

    photos = [(str(path), label) for path, label in _photos()]
    return {"np": np, "torch": torch, "spdl": spdl, "PipelineBuilder": PipelineBuilder, "photos": photos}


# Makes what a snippet takes for granted: the names that it uses.
PREPARE: dict[str, Callable[[], dict[str, Any]]] = {
    "dataloader": _dataloader,
    "webdataset": _webdataset,
    "ffcv": _ffcv,
    "dali": _dali,
    "mosaic": _mosaic,
    "litdata": _litdata,
    "spdl": _spdl,
}


def script(peer: str) -> str:
    """A program of a snippet. It is a file of its own, since worker processes import what it defines."""
    return f"""import sys
sys.path[1:1] = [{str(ROOT / "tools")!r}, {str(ROOT / "tests")!r}]
from documentation import peers
globals().update(peers.prepare({peer!r}))
{snippet(PEERS[peer][0])}
if __name__ == "__main__":
    peers.tell({peer!r}, globals())
"""


def prepare(peer: str) -> dict[str, Any]:
    """The names that a snippet takes for granted."""
    if importlib.util.find_spec("torchvision"):  # a build for CUDA can then be imported beside a torch for CPUs
        importlib.import_module("torchvision_anywhere")
    return PREPARE[peer]()


def tell(peer: str, names: dict[str, Any]) -> None:
    """Prints what the first batches of a snippet's loader are, as a line of JSON. names: after the snippet was run."""
    if "loader" in names:
        first, *_ = (describe(batch) for batch in itertools.islice(names["loader"], 3))
    else:  # the snippet has a loop of its own
        first = describe((names["images"], names["labels"]))
    print(json.dumps({"peer": peer, "versions": versions(peer), "batch": first}), flush=True)


def describe(value: Any) -> str:
    """Types and shapes of a batch, such as "float32 (64, 3, 224, 224), int64 (64,)"."""
    if isinstance(value, dict):
        return ", ".join(f"{name}: {describe(each)}" for name, each in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(describe, value))
    if hasattr(value, "shape"):
        return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    return type(value).__name__


def versions(peer: str) -> dict[str, str]:
    """Of each distribution that a peer needs. Raises PackageNotFoundError."""
    found = {}
    for wanted in PEERS[peer][1]:
        for name in wanted.split("|"):
            try:
                found[name] = importlib.metadata.version(name)
                break
            except importlib.metadata.PackageNotFoundError:
                continue
        else:
            raise importlib.metadata.PackageNotFoundError(wanted)
    return found


def run_elsewhere(peer: str, python: str) -> dict[str, Any]:
    """Runs a snippet by a Python in a new process and folder; "versions" and "batch", or "failed": why not."""
    with tempfile.TemporaryDirectory() as folder:
        make_images(Path(folder))
        (Path(folder) / "snippet.py").write_text(script(peer), encoding="utf-8")
        command = [python, "snippet.py"]
        try:
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_TIMEOUT_S)
        except (OSError, subprocess.TimeoutExpired) as error:
            return {"failed": str(error)[:_SHOWN]}
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"peer"')]
    if done.returncode == 0 and lines:
        found: dict[str, Any] = json.loads(lines[-1])
        return found
    errors = re.findall(r"^[\w.]*(?:Error|Exception|NotFound\w*)\b.*", done.stderr, re.MULTILINE)
    return {"failed": errors[-1][:_SHOWN] if errors else f"exit code {done.returncode}"}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PEERS, default=list(PEERS), metavar="PEER", help=", ".join(PEERS))
    parser.add_argument("--python", nargs="+", default=[], metavar="PEER=PATH", help="the Python that has a peer")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the record to it")
    args = parser.parse_args(arguments)
    pythons = dict(pair.split("=", 1) for pair in args.python if "=" in pair)
    if unknown := [pair for pair in args.python if pair.partition("=")[0] not in PEERS or "=" not in pair]:
        parser.error(f"--python {unknown[0]}: expected PEER=PATH, such as ffcv=/opt/ffcv/bin/python")
    record = []
    for peer in args.only:
        found = {"peer": peer, **run_elsewhere(peer, pythons.get(peer, sys.executable))}
        record.append(found)
        if "failed" in found:
            print(f"{peer}: did not run: {found['failed']}")
        else:
            listed = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
            print(f"{peer}: ran with {listed}; a batch is {found['batch']}", flush=True)
    if args.json:
        figures = {"python": platform.python_version(), "machine": platform.machine(), "peers": record}
        args.json.write_text(json.dumps(figures, indent=1) + "\n")
    return int(any("failed" in found for found in record))


if __name__ == "__main__":
    sys.exit(main())
