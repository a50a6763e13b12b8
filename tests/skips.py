"""Reasons of skipped tests that say how to get what is missing: pytest's own say only that a module was not found."""

import re
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

_PROJECT = Path(__file__).parents[1] / "pyproject.toml"
_NOT_FOUND = re.compile(r"could not import '(\w+)[\w.]*'")
# Modules whose distribution has another name.
_DISTRIBUTIONS = {
    "nvidia": "nvidia-dali-cuda130",
    "material": "mkdocs-material",
    "axe_playwright_python": "axe-playwright-python",
    "boto3": "moto",
}
# Where several extras have it.
_PREFERRED = ("cpu", "dali", "dev")


def extra_of(module: str) -> str:
    """The extra of pyproject.toml that brings a module, "" where none does."""
    name = _DISTRIBUTIONS.get(module, module)
    found = [extra for extra, wanted in _extras().items() if name in (re.split(r"[\[>=<]", one)[0] for one in wanted)]
    return next((extra for extra in _PREFERRED if extra in found), found[0] if found else "")


def _extras() -> dict[str, list[str]]:
    text = _PROJECT.read_text().partition("[project.optional-dependencies]")[2].partition("\n[project.")[0]
    return {
        name: re.findall(r'"([^"]+)"', wanted) for name, wanted in re.findall(r"^(\w+) = \[(.*?)\]$", text, re.M | re.S)
    }


def with_advice(reason: str) -> str:
    """The reason of a skipped test, with the extra to install where a module was not found."""
    found = _NOT_FOUND.search(reason)
    if found is None:
        return reason
    extra = extra_of(found[1])
    return f"Skipped: needs {found[1]}" + (f": pip install -e '.[{extra}]'" if extra else ", which is not installed")


def _mend(report: Any) -> None:
    if report.skipped and isinstance(report.longrepr, tuple):
        path, line, reason = report.longrepr
        report.longrepr = (path, line, with_advice(reason))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, Any, Any]:
    report = yield
    _mend(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, Any, Any]:
    report = yield
    _mend(report)
    return report
