"""The disk format, which is the interface between packing and loading.

A folder holds one split: `shard-*.tar` with a `.idx` each, `index.arrow`, `manifest.json`, `rejected.jsonl` and
`_info.json`. `gpuload/DESIGN.md` says what each file is for.
"""

from gpuload.disk.index import Index, IndexWriter
from gpuload.disk.manifest import Manifest, ShardInfo

__all__ = ["Index", "IndexWriter", "Manifest", "ShardInfo"]
