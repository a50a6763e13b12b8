"""The disk format, which is the interface between packing and loading.

A folder holds one split: `shard-*.tar` with a `.idx` each, `index.arrow`, `manifest.json`, `rejected.jsonl` and
`README.md`. `gpuload/DESIGN.md` says what each file is for.
"""

from gpuload.disk.index import Index, write_index
from gpuload.disk.manifest import Manifest, ShardInfo

__all__ = ["Index", "Manifest", "ShardInfo", "write_index"]
