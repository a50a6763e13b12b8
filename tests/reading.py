"""Reads packed folders for the tests, using only the disk format."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """The rows of the index, each with the name of its shard and the bytes of its image."""
    index = pa.ipc.open_file((folder / "index.arrow").read_bytes())
    rows = []
    for number, shard in enumerate(json.loads((folder / "manifest.json").read_text())["shards"]):
        data = (folder / shard["name"]).read_bytes()
        for row in index.get_batch(number).to_pylist():
            image = data[row["image_offset"] : row["image_offset"] + row["image_bytes"]]
            rows.append({**row, "shard": shard["name"], "image": image})
    return rows


def rejected_of(folder: Path) -> dict[str, str]:
    lines = [json.loads(line) for line in (folder / "rejected.jsonl").read_text().splitlines()]
    return {line["source"]: line["reason"] for line in lines}


def files_of(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, by relative path."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def pytest_assertrepr_compare(op: str, left: object, right: object) -> list[str] | None:
    """Says which files differ, and where, instead of their bytes."""
    if op != "==" or not all(isinstance(one, dict) and any(map(_is_bytes, one.values())) for one in (left, right)):
        return None
    names = sorted({**left, **right})
    return [
        "the files differ",
        *(line for name in names if (line := _difference(name, left.get(name), right.get(name)))),
    ]


def _is_bytes(value: object) -> bool:
    return isinstance(value, bytes)


def _difference(name: str, left: Any, right: Any) -> str:
    if left == right:
        return ""
    if not (_is_bytes(left) and _is_bytes(right)):
        sizes = [
            "not there" if one is None else f"{len(one)} bytes" if _is_bytes(one) else repr(one)[:200]
            for one in (left, right)
        ]
        return f"{name}: {sizes[0]}, {sizes[1]}"
    first = next((n for n, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))
    return (
        f"{name}: {len(left)} bytes, {len(right)} bytes, the first difference is at byte {first}: "
        f"{left[max(0, first - 20) : first + 80]!r}, {right[max(0, first - 20) : first + 80]!r}"
    )
