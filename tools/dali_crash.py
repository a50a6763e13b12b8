"""DALI ends the process (SIGSEGV) on a broken image where it should raise: a reproduction with DALI alone.

480 JPEGs, the first 4,096 bytes of one of them zeroed, through `fn.readers.file` (or `fn.external_source`),
`fn.decoders.image(device="cpu")` and `fn.resize`. Each run is a process of its own, which is expected to raise. Needs
nvidia-dali, NumPy and Pillow, and nothing of gpuload.

    python tools/dali_crash.py --runs 24
    python tools/dali_crash.py --runs 24 --feed external_source --threads 1 --json crash.json
"""

import argparse
import io
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from importlib import metadata
from pathlib import Path

import numpy as np
from PIL import Image

FILES, BROKEN, ZEROED = 480, 77, 4096


def make_files(folder: Path) -> list[str]:
    """JPEGs of 320 × 240 pixels, about 20 kB each; the header of one is zeroed."""
    rng = np.random.default_rng(0)
    names = []
    for number in range(FILES):
        small = rng.integers(0, 256, (30, 40, 3), np.uint8)
        file = io.BytesIO()
        Image.fromarray(small).resize((320, 240), Image.Resampling.BILINEAR).save(file, "JPEG", quality=95)
        data = file.getvalue()
        path = folder / f"{number:03d}.jpg"
        path.write_bytes(bytes(ZEROED) + data[ZEROED:] if number == BROKEN else data)
        names.append(str(path))
    return names


def decode(names: list[str], feed: str, device: str, threads: int, batch_size: int, resize: bool) -> None:
    """Decodes all files; raises RuntimeError at the broken one, or the process crashes."""
    from nvidia.dali import fn, pipeline_def

    def batches():
        for start in range(0, len(names), batch_size):
            yield [np.fromfile(name, np.uint8) for name in names[start : start + batch_size]]

    @pipeline_def(batch_size=batch_size, num_threads=threads, device_id=None if device == "cpu" else 0)
    def graph():
        if feed == "readers.file":
            encoded, _ = fn.readers.file(files=names)
        else:
            encoded = fn.external_source(source=batches())
        images = fn.decoders.image(encoded, device=device)
        return fn.resize(images, size=(64, 64)) if resize else images

    pipeline = graph()
    pipeline.build()
    for _ in range(len(names) // batch_size + 1):
        pipeline.run()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=24)
    parser.add_argument("--feed", choices=["readers.file", "external_source"], default="readers.file")
    parser.add_argument("--device", choices=["cpu", "mixed"], default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--no-resize", action="store_true", help="decode alone")
    parser.add_argument("--json", type=Path, help="append the result to this list")
    parser.add_argument("--files", nargs="+", help=argparse.SUPPRESS)  # in the process that may crash
    args = parser.parse_args()
    settings = (args.feed, args.device, args.threads, args.batch_size, not args.no_resize)
    if args.files:
        names = sorted(str(path) for path in Path(args.files[0]).glob("*.jpg"))
        try:
            decode(names, *settings)
        except (RuntimeError, StopIteration) as error:
            print(type(error).__name__)
        return
    outcomes: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        make_files(Path(folder))
        for _ in range(args.runs):
            done = subprocess.run([sys.executable, __file__, *sys.argv[1:], "--files", folder], capture_output=True)
            code = done.returncode
            outcomes[signal.Signals(-code).name if code < 0 else done.stdout.decode().strip() or f"exit {code}"] += 1
    result = {
        "settings": dict(zip(("feed", "device", "threads", "batch_size", "resize"), settings, strict=True)),
        "runs": args.runs,
        "outcomes": dict(sorted(outcomes.items())),
        "dali": metadata.version(next(n for n in _dali_names() if n)),
        "nvimgcodec": {d.name: d.version for d in metadata.distributions() if "nvimgcodec" in d.name},
        "python": platform.python_version(),
        "cores": len(os.sched_getaffinity(0)),
    }
    print(json.dumps(result, indent=1))
    if args.json:
        known = json.loads(args.json.read_text()) if args.json.exists() else []
        args.json.write_text(json.dumps([*known, result], indent=1) + "\n")


def _dali_names() -> list[str]:
    return [d.name for d in metadata.distributions() if d.name.startswith("nvidia-dali")]


if __name__ == "__main__":
    main()
