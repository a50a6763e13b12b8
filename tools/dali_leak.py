"""DALI keeps memory of every pipeline with an image decoder that was ever built: a reproduction with DALI alone.

Builds many pipelines, of which each is released before the next one, and asks glibc how much memory is in use: with
`fn.external_source` alone, and with `fn.decoders.image(device="cpu")` behind it. Needs Linux, nvidia-dali, and nothing
of gpuload.

    python tools/dali_leak.py
    python tools/dali_leak.py --pipelines 1000 --json leak.json
"""

import argparse
import ctypes
import gc
import json
import platform
from importlib import metadata
from pathlib import Path

_FIELDS = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
_SETTLE = 30  # pipelines before the first look: they import and allocate what is made once


class _MallInfo(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in _FIELDS]


def in_use() -> int:
    """Bytes that this process has allocated and not freed."""
    gc.collect()
    library = ctypes.CDLL(None)
    library.mallinfo2.restype = _MallInfo
    found = library.mallinfo2()
    return int(found.uordblks + found.hblkhd)


def build_and_release(decodes: bool) -> None:
    from nvidia.dali import Pipeline, fn

    pipeline = Pipeline(batch_size=8, num_threads=2, device_id=None)
    with pipeline:
        data = fn.external_source(name="data", device="cpu")
        pipeline.set_outputs(fn.decoders.image(data, device="cpu") if decodes else data)
    pipeline.build()


def bytes_per_pipeline(decodes: bool, pipelines: int) -> float:
    for _ in range(_SETTLE):
        build_and_release(decodes)
    before = in_use()
    for _ in range(pipelines):
        build_and_release(decodes)
    return round((in_use() - before) / pipelines, 1)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pipelines", type=int, default=300, help="of each kind (default 300)")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    args = parser.parse_args(argv)
    if args.pipelines < 1:
        parser.error("expected --pipelines of at least 1")
    result = {
        "pipelines": args.pipelines,
        "bytes_per_pipeline": {
            "external_source": bytes_per_pipeline(False, args.pipelines),
            "external_source and decoders.image": bytes_per_pipeline(True, args.pipelines),
        },
        "dali": metadata.version("nvidia-dali-cuda130"),
        "python": platform.python_version(),
    }
    print(json.dumps(result, indent=1))
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
