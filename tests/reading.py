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
