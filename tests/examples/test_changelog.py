"""tools/changelog.py: the files of changes/ become lines of CHANGELOG.md."""

from pathlib import Path

import changelog
import pytest
from images import write_files

BEFORE = "# Changelog\n\n## Unreleased\n\n### Packing\n- Old.\n\n## 1.0\n\n### Loading\n- Older.\n"


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_files(tmp_path, {"CHANGELOG.md": BEFORE.encode(), "changes/README.md": b"How"})
    monkeypatch.setattr(changelog, "CHANGELOG", tmp_path / "CHANGELOG.md")
    monkeypatch.setattr(changelog, "CHANGES", tmp_path / "changes")
    return tmp_path


def test_changes_go_to_their_sections_of_what_is_unreleased(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_files(
        repository / "changes", {"packing.zip.md": b"- Zips.\n", "loading.order.md": b"- An order\n  of two lines."}
    )
    assert changelog.main([]) == 0
    shown = capsys.readouterr().out
    assert (repository / "CHANGELOG.md").read_text() == BEFORE
    assert changelog.main(["--write"]) == 0
    written = (repository / "CHANGELOG.md").read_text()
    unreleased = "### Packing\n- Zips.\n- Old.\n\n### Loading\n- An order\n  of two lines.\n"
    assert written == shown == f"# Changelog\n\n## Unreleased\n\n{unreleased}\n## 1.0\n\n### Loading\n- Older.\n"
    assert [path.name for path in (repository / "changes").iterdir()] == ["README.md"]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [("notes.md", "- Text.", "expected a name such as"), ("packing.zip.md", "Text.", "expected lines that begin with")],
)
def test_files_that_cannot_be_placed(
    repository: Path, name: str, text: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (repository / "changes" / name).write_text(text)
    assert changelog.main(["--write"]) == 2
    assert message in capsys.readouterr().err


def test_the_repositorys_own_files_can_be_placed() -> None:
    assert {path.suffix for path, _ in changelog.fragments(changelog.CHANGES)} <= {".md"}
