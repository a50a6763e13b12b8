"""Runs an example that imports torchvision, with its arguments:  run_example.py lightning.py shards …"""

import runpy
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "tests"))
    __import__("torchvision_anywhere")
    script = ROOT / "examples" / sys.argv[1]
    sys.argv[:2] = [str(script)]
    sys.path[0] = str(script.parent)  # as Python does for a script
    runpy.run_path(str(script), run_name="__main__")
