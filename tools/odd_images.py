"""Packs and loads every file of folders of odd images, such as the test images of Pillow and libjpeg-turbo.

    python tools/odd_images.py pillow-11.3.0/Tests/images libjpeg-turbo-2.1.5/testimages --out odd.json

Each file must be in the epoch, in `rejected.jsonl`, or passed over with its count; and each sample of the epoch must
decode, with both decoders, unless it was packed by its header alone: then its error must name it. Exit code 1 where one
is missing or does not decode.
"""

import argparse
import io
import json
import os
import platform
import re
import sys
import tempfile
from collections import Counter
from contextlib import redirect_stdout
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import gpuload
from gpuload.sources import open_source
from gpuload.sources.files import IMAGE_EXTENSIONS

_UNDECODED = "keep, headers"
ENCODINGS: dict[str, dict[str, Any]] = {
    "keep": {},
    _UNDECODED: {"check": "header"},
    "jpeg of 64": {"encode": "jpeg", "size": 64},
    "raw of 32": {"encode": "raw", "size": 32, "fit": "stretch", "enlarge": True},
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--decoders", nargs="+", default=["native", "dali"], metavar="NAME", help="(native dali)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="JSON")
    args = parser.parse_args()
    results = [_run(folder, encoding, args.decoders) for folder in args.folders for encoding in ENCODINGS]
    for result in results:
        print({name: value for name, value in result.items() if name != "reasons"})
    if args.out:
        packages = {name: version(name) for name in ("pillow", "simplejpeg", "numpy")}
        about = {"python": platform.python_version(), "versions": packages, "results": results}
        args.out.write_text(json.dumps(about, indent=1, ensure_ascii=False) + "\n")
    return int(any(map(_is_fault, results)))


def _is_fault(result: dict[str, Any]) -> bool:
    errors = [error for found in result["undecodable"].values() for error in found]
    if result["encoding"] == _UNDECODED:
        errors = [error for error in errors if ": sample '" not in error]
    return bool(result["missing"] or result["uncounted"] or errors)


def _run(folder: Path, encoding: str, decoders: list[str]) -> dict[str, Any]:
    """What became of the files of a folder."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    names = {path.relative_to(folder).as_posix() for path in files}
    images = {name for name in names if name.rpartition(".")[2].lower() in IMAGE_EXTENSIONS}
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "set"
        with redirect_stdout(io.StringIO()):
            source = open_source(folder, no_labels=True)
            report = gpuload.pack(source, out, workers=len(os.sched_getaffinity(0)), **ENCODINGS[encoding])
        dataset = gpuload.Dataset(out / "train")
        packed = {name for shard in range(len(dataset.shard_paths)) for name in _sources(dataset, shard)}
        rejected = {rejection.source: rejection.reason for rejection in report.rejected}
        undecodable = {decoder: _undecodable(dataset, decoder) for decoder in decoders}
    counted = sum(int(number.replace(",", "")) for number in re.findall(r"([\d,]+) × ", " ".join(report.notes)))
    reasons = Counter(reason.split(":")[0][:60] for reason in rejected.values())
    return {
        "folder": folder.name if folder.name != "images" else "/".join(folder.parts[-3:]),
        "encoding": encoding,
        "files": len(names),
        "passed over": counted,
        "images": len(images),
        "in the epoch": len(packed & images),
        "rejected": len(rejected),
        "missing": sorted(images - packed - set(rejected)),
        "uncounted": sorted(names - images) if counted != len(names - images) else [],
        "undecodable": {decoder: found for decoder, found in undecodable.items() if found},
        "notes": list(report.notes),
        "reasons": dict(reasons.most_common()),
    }


def _sources(dataset: gpuload.Dataset, shard: int) -> list[str]:
    found: list[str] = dataset.rows(shard).column("source").to_pylist()
    return found


def _undecodable(dataset: gpuload.Dataset, decoder: str) -> list[str]:
    """Errors of samples that do not decode, each loaded by itself where the epoch does not pass as a whole."""
    if not _error(dataset, decoder, 16):
        return []
    parts = (dataset.subset([number]) for number in range(len(dataset)))
    return [error for part in parts if (error := _error(part, decoder, 1))]


def _error(dataset: gpuload.Dataset, decoder: str, batch_size: int) -> str:
    seen = 0
    try:
        with gpuload.DaliIterator(
            dataset,
            batch_size,
            augment=gpuload.Augment(32, crop="none", dtype="uint8"),
            fields=("image", "index"),
            decoder=decoder,  # type: ignore[arg-type]
            device="cpu",
            shuffle=False,
            drop_last=False,
            output="numpy",
        ) as loader:
            seen = sum(len(index) for _, index in loader)
    except gpuload.GpuloadError as error:
        return str(error).replace(str(dataset.folder), "")
    return "" if seen == len(dataset) else f"{seen} of {len(dataset)} samples"


if __name__ == "__main__":
    sys.exit(main())
