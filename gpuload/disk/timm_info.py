"""`_info.json`: timm's description of WebDataset shards, with which `create_dataset("wds/", folder)` reads them."""

import json
from pathlib import Path

from gpuload.disk.manifest import Manifest

FILE_NAME = "_info.json"


def write_timm_info(folder: Path, manifest: Manifest) -> None:
    """Writes the description of one split, named after the folder, with the keys that timm's `reader_wds.py` reads."""
    split = {
        "name": folder.name,
        "num_samples": manifest.samples,
        "filenames": [shard.name for shard in manifest.shards],
        "shard_lengths": [shard.samples for shard in manifest.shards],
    }
    (folder / FILE_NAME).write_text(json.dumps({"splits": {folder.name: split}}, indent=1) + "\n", encoding="utf-8")
