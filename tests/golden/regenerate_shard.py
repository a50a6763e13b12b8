"""Packs `images/` into `shard-000000.tar` and `.idx`, the golden shard.

    python tests/golden/regenerate_shard.py

Right when the layout of shards changes on purpose, which changelog and manifest version then say: people compare
packed sets by their checksums. `images/` are JPEGs that the packer keeps, so no encoder has a part in it.
"""

import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import gpuload
from gpuload.sources import FolderSource

HERE = Path(__file__).parent
FILES = ("shard-000000.tar", "shard-000000.idx")


def pack_golden(out: Path) -> Path:
    """The folder with the shard, packed anew."""
    gpuload.pack(FolderSource(HERE / "images"), out, seed=1, workers=1)
    return out / "train"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        packed = pack_golden(Path(folder) / "out")
        for name in FILES:
            shutil.copyfile(packed / name, HERE / name)
