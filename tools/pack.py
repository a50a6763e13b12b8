"""Packs a folder of images into shards; the same as `python -m gpuload pack`, also from a clone without installing.

    python tools/pack.py photos shards --val 0.1
    python tools/pack.py photos shards --labels labels.csv --workers 8 --maxsize 1GB

Exit codes: 0 all packed; 3 packed, but some images were rejected (rejected.jsonl names them); 2 nothing packed, the
reason is on stderr; 130 stopped by Ctrl-C.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gpuload.cli import main

if __name__ == "__main__":
    sys.exit(main(["pack", *sys.argv[1:]]))
