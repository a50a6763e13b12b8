"""tools/compare_commits.py, but for the loading itself, which would compile the decoder twice."""

import json
import subprocess
from pathlib import Path

import compare_commits
import pytest

# Stands in for the loader: the second commit's folder is "1", and there it is twice as fast.
LOADER = """
import sys
from pathlib import Path
assert Path("pyproject.toml").exists()
print("ready", flush=True)
for _ in sys.stdin:
    print([200.0, 0.5e-6] if Path.cwd().name == "1" else [100.0, 1e-6], flush=True)
"""


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    (tmp_path / "set" / "train").mkdir(parents=True)
    (tmp_path / "set" / "train" / "manifest.json").touch()
    return tmp_path / "set" / "train"


@pytest.fixture(autouse=True)
def _has_history(monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing has to be compiled."""
    monkeypatch.setattr(compare_commits, "warm_up", lambda folder: None)
    root = compare_commits.ROOT
    if subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True).returncode:
        pytest.skip("needs a git clone with its history")


def test_two_commits_take_turns(shards: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(compare_commits, "_LOADER", LOADER)
    options = ["HEAD", "HEAD", str(shards), "--turns", "4", "--json", str(tmp_path / "found.json")]
    assert compare_commits.main([*options, "--least", "1.9"]) == 0
    assert compare_commits.main([*options, "--least", "2.1"]) == 1
    first, _ = json.loads((tmp_path / "found.json").read_text())
    assert (first["set"], first["images_per_s"], first["cpu_us_per_image"]) == ("set", [100, 200], [1, 0.5])
    assert (first["ratio"], first["cpu_ratio"], first["turns"]) == (2, 0.5, 4)


@pytest.mark.parametrize(
    ("commit", "loader", "message"),
    [("no-such-commit", LOADER, "not a valid object name"), ("HEAD", "raise SystemExit(3)", "the loader of 0 ended")],
)
def test_what_cannot_be_compared(
    commit: str,
    loader: str,
    message: str,
    shards: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(compare_commits, "_LOADER", loader)
    with pytest.raises(SystemExit, match="2"):
        compare_commits.main([commit, "HEAD", str(shards)])
    assert message in capsys.readouterr().err


def test_a_folder_that_is_not_packed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        compare_commits.main(["HEAD", "HEAD", str(tmp_path)])
    assert "is not a packed folder" in capsys.readouterr().err
