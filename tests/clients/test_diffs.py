"""The diffs of docs/coming-from.md: both sides train in as many steps, on the same samples in each epoch."""

import json
from collections import Counter
from pathlib import Path
from statistics import median

import pytest
from documentation import clients
from images import encode, photo, write_files

DIFFS = clients.read_diffs(clients.PAGE.read_text())
EPOCHS, SAMPLES = 2, 48


@pytest.fixture(scope="module")
def client_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clients")
    files = {f"files/{'abc'[n % 3]}/{n}.jpg": encode(photo(n, 60 + n, 50)) for n in range(SAMPLES)}
    write_files(folder, files)
    clients.prepare([folder / name for name in files], folder)
    return folder


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("title", DIFFS)
def test_both_sides_of_a_diff_see_the_same(client_folder: Path, title: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(client_folder)
    steps = [clients.run(title, side, EPOCHS).steps for side in clients.SIDES]
    epoch = SAMPLES // clients.BATCH
    assert {len(found) for found in steps} == {EPOCHS * epoch}
    before, after = (
        [Counter(label for labels in found[at : at + epoch] for label in labels) for at in range(0, len(found), epoch)]
        for found in steps
    )
    assert before == after and len(before[0]) > 1
    assert steps[1][:epoch] != steps[1][epoch:]  # in another order


def test_the_record_is_of_these_diffs() -> None:
    """At most ten lines change, and no program is slower."""
    record = json.loads(clients.RECORD.read_text())["clients"]
    assert all(diff.lines <= 10 for diff in DIFFS.values())
    assert {title: found["lines"] for title, found in record.items()} == {title: DIFFS[title].lines for title in record}
    for title, found in record.items():
        assert found["steps"] == found["samples"] // clients.BATCH
        assert median(found["after"]) >= median(found["before"]), title
