"""What `tools/bench_remote.py` serves: sets of synthetic images."""

import hashlib
import io
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
from PIL import Image

from tools.remote.processes import ROOT

WIDTH, HEIGHT = 500, 375
_MILLION_SHARDS, _MILLION_EACH = 1000, 1000
_SEEDS = 50  # different images; more would take minutes to make


def make_images(out: Path, images: int, per_shard: int) -> Path:
    """A packed set of JPEGs of 500×375."""
    if not (out / "train" / "manifest.json").exists():
        source = out.with_name(f"{out.name}.source")
        for number, data in enumerate(_jpegs(_SEEDS, WIDTH, HEIGHT, 18) * (images // _SEEDS)):
            path = source / f"class{number % 10}" / f"{number:06d}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        command = [sys.executable, "-m", "gpuload", "pack", str(source), str(out), "--maxcount", str(per_shard)]
        subprocess.run([*command, "--overwrite"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        shutil.rmtree(source)
    return out / "train"


def make_million(folder: Path) -> Path:
    """An index of one million samples in 1,000 shards, of which only those of the first window exist: 10 MB each."""
    from gpuload.disk import Manifest, ShardInfo, write_index
    from gpuload.disk.tar import member_span, ustar_header
    from gpuload.fields.field import IMAGE, LABEL
    from gpuload.fields.registry import index_schema
    from gpuload.order.epoch import EpochOrder

    out = folder / "million"
    if (out / "manifest.json").exists():
        return out
    out.mkdir(parents=True)
    (image,) = _jpegs(1, 160, 120, 18)
    span = member_span(len(image)) + member_span(1)
    sizes = np.full(_MILLION_SHARDS, _MILLION_EACH)
    needed = set(EpochOrder(sizes, seed=0, epoch=0, window=8).window_shards(0).tolist())
    infos, offsets = [], np.arange(_MILLION_EACH, dtype=np.int64) * span + 512
    schema = index_schema((IMAGE, LABEL))
    with write_index(out / "index.arrow", (IMAGE, LABEL)) as write:
        for shard in range(_MILLION_SHARDS):
            numbers = np.arange(_MILLION_EACH) + shard * _MILLION_EACH
            columns = {
                "key": pa.array(np.char.mod("%09d", numbers)).cast(pa.large_string()),
                "source": pa.array(np.char.mod("%09d.jpg", numbers)).cast(pa.large_string()),
                "width": np.full(_MILLION_EACH, 160, np.int32),
                "height": np.full(_MILLION_EACH, 120, np.int32),
                "image_offset": offsets,
                "image_bytes": np.full(_MILLION_EACH, len(image)),
                "label_offset": offsets + member_span(len(image)),
                "label_bytes": np.full(_MILLION_EACH, 1),
                "label": numbers % 10,
            }
            write(pa.record_batch([columns[name] for name in schema.names], schema))
            name, size, digest = f"shard-{shard:06d}.tar", _MILLION_EACH * span + 1024, f"{shard:064x}"
            if shard in needed:
                data = io.BytesIO()
                for number in numbers.tolist():
                    for suffix, content in (("jpg", image), ("cls", b"%d" % (number % 10))):
                        data.write(ustar_header(f"{number:09d}.{suffix}", len(content)))
                        data.write(content + bytes(member_span(len(content)) - 512 - len(content)))
                data.write(bytes(1024))
                (out / name).write_bytes(data.getvalue())
                digest = hashlib.sha256(data.getvalue()).hexdigest()
                assert len(data.getvalue()) == size
            infos.append(ShardInfo(name, _MILLION_EACH, size, digest))
    manifest = Manifest(tuple(infos), (IMAGE, LABEL), tuple(map(str, range(10))), 160, 120, len(image))
    manifest.write(out)
    return out


def _jpegs(count: int, width: int, height: int, noise: int) -> list[bytes]:
    """Smooth images with some noise, which decides their size."""
    rng, made = np.random.default_rng(1), []
    for _ in range(count):
        small = Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8))
        pixels = np.asarray(small.resize((width, height), Image.Resampling.BICUBIC), np.int16)
        pixels = np.clip(pixels + rng.integers(-noise, noise + 1, pixels.shape), 0, 255).astype(np.uint8)
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "JPEG", quality=90)
        made.append(file.getvalue())
    return made
