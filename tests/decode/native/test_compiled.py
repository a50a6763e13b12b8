"""What is kept of compiled functions goes with the source text that they are made of."""

import subprocess
import sys
from pathlib import Path

_INNER = "from gpuload.decode.native.compiled import compiled\n\n@compiled\ndef inner(x):\n    return x + {number}\n"
_OUTER = (
    "from gpuload.decode.native.compiled import kept\nfrom inner import inner\n\n@kept\ndef outer(x):\n    return inner(x)\n\n"
    "print(outer(1), sum(outer.stats.cache_hits.values()))\n"
)


def run(folder: Path) -> str:
    result = subprocess.run([sys.executable, "outer.py"], cwd=folder, capture_output=True, text=True, check=True)
    return result.stdout.strip()


def test_a_kept_function_is_loaded_until_a_file_of_its_folder_changes(tmp_path: Path) -> None:
    (tmp_path / "outer.py").write_text(_OUTER)
    (tmp_path / "inner.py").write_text(_INNER.format(number=1))
    assert run(tmp_path) == "2 0"
    assert run(tmp_path) == "2 1"
    (tmp_path / "inner.py").write_text(_INNER.format(number=2))
    assert run(tmp_path) == "3 0"
    assert run(tmp_path) == "3 1"
