"""What is said of tests that are skipped."""

import pytest

pytest_plugins = ["pytester"]


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
