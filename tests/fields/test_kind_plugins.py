"""Kinds of fields of other packages: the one of docs/own-kind.md, built and installed from its page."""

import csv
from pathlib import Path

import pytest
from images import encode, photo
from page_packages import PagePackage, Run, failed, python_with, suites_run

import gpuload

PACKAGE = PagePackage("own-kind.md", "moments.py")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs Python in a folder where the page's package is installed."""
    return python_with(PACKAGE.install(tmp_path_factory), tmp_path_factory.mktemp("work"))


def test_the_kind_of_the_page_is_short() -> None:
    assert PACKAGE.code_lines <= 30


def test_a_table_has_a_column_of_this_kind(run: Run, tmp_path: Path) -> None:
    """Read where the package is installed; elsewhere the set says which kind is unknown."""
    photos, out = tmp_path / "photos", tmp_path / "out"
    photos.mkdir()
    with (tmp_path / "photos.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["path", "taken"])
        for number in range(3):
            (photos / f"{number}.jpg").write_bytes(encode(photo(number, 50, 40)))
            table.writerow([f"{number}.jpg", f"1970-01-01T00:00:0{number}+00:00"])
    run("-m", "gpuload", "pack", photos, out, "--labels", tmp_path / "photos.csv", "--column", "moment=taken")
    show = "data = gpuload.Dataset(sys.argv[1]); print(*sorted(data[n]['moment'] for n in range(3)))"
    done = run("-c", f"import sys, gpuload; {show}", out / "train")
    assert done.stdout.split() == ["0", "1000000", "2000000"]
    with pytest.raises(gpuload.FormatError, match="field 'moment' has kind 'moment'; this gpuload knows"):
        gpuload.Dataset(out / "train")


def test_the_suite_of_the_page(run: Run, tmp_path: Path) -> None:
    """It passes for the page's kind, and fails for one that claims all texts, and for wrong expectations."""
    head = "import gpuload\nfrom moments import MomentKind\n\n"
    greedy = """
class Greedy(MomentKind):
    def claims(self, value):
        return isinstance(value, str)

class TestGreedy(TestMoment):
    kind = Greedy
"""
    suites = {
        "test_moment": head + PACKAGE.suite + greedy,
        "test_other_value": head + PACKAGE.suite.replace("1_000_000", "1").replace('"yesterday", ', ""),
        "test_no_fault": head + PACKAGE.suite.replace('"yesterday"', '"1970-01-01T00:00:01+00:00"'),
    }
    outcomes = suites_run(run, tmp_path, suites)
    assert list(outcomes["test_moment.TestMoment"].values()) == ["passed"] * 6
    assert "test_it_claims_no_values_of_other_kinds" in failed(outcomes["test_moment.TestGreedy"])
    other_value = outcomes["test_other_value.TestMoment"]
    assert len(other_value) == 6 and failed(other_value) == ["test_its_values_come_in_batches"]
    assert len(failed(outcomes["test_no_fault.TestMoment"])) == 1
