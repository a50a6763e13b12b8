"""What is said of tests that are skipped."""

import pytest
from skips import extra_of, with_advice

pytest_plugins = ["pytester"]


@pytest.mark.parametrize(
    ("module", "extra"),
    [("h5py", "sources"), ("torch", "cpu"), ("nvidia", "dali"), ("material", "docs"), ("boto3", "dev"), ("wave", "")],
)
def test_the_extra_that_brings_a_module(module: str, extra: str) -> None:
    assert extra_of(module) == extra


def test_a_module_that_is_missing() -> None:
    reason = "Skipped: could not import 'nvidia.dali.fn': No module named 'nvidia'"
    assert with_advice(reason) == "Skipped: needs nvidia: pip install -e '.[dali]'"
    assert with_advice("Skipped: needs g++") == "Skipped: needs g++"


def test_pytest_shows_it(pytester: pytest.Pytester) -> None:
    pytester.makeconftest("from skips import pytest_make_collect_report, pytest_runtest_makereport")
    pytester.makepyfile(
        test_one="import pytest\ndef test_it():\n    pytest.importorskip('lmdb_of_nobody')",
        test_all="import pytest\npytest.importorskip('h5py.not_there', exc_type=ImportError)",
    )
    done = pytester.runpytest("-rs")
    done.stdout.fnmatch_lines_random(
        [
            "SKIPPED *needs h5py: pip install -e '.[[]sources[]]'",
            "SKIPPED *needs lmdb_of_nobody, which is not installed*",
        ]
    )
