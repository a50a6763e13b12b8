"""Tests of reports: their sets are in report_sets.py beside this file."""

from typing import Any

import pytest
from report_sets import make_report, pack_splits


@pytest.fixture(scope="session")
def split_report(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str]:
    """The facts and the page of three splits, with duplicates, odd images, and classes that a split lacks."""
    return make_report(pack_splits(tmp_path_factory.mktemp("splits") / "sets"))
