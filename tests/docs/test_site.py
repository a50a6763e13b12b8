"""The site is built from docs/ without a warning: links, anchors, and everything that the pages name in the package."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from snippets import ROOT

pytest.importorskip("material")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    # Without --quiet, with which --strict counts no warnings.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(out)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert (done.returncode, re.findall("(?:WARNING|ERROR).*", done.stderr)) == (0, [])
    return out


def test_every_file_that_a_page_names_is_there_and_its_own(site: Path) -> None:
    """Also in its HTML, at which mkdocs does not look; it has followed all other links, and their anchors."""
    pages = {path: path.read_text() for path in site.rglob("*.html")}
    assert len(pages) >= 26
    for path, text in pages.items():
        places = re.findall(r'(?:href|src)="([^":#]+)[#"]', text)
        assert path.name == "404.html" or [place for place in places if not (path.parent / place).exists()] == [], path
        assert re.findall(r'(?:<script|<img|<iframe)[^>]* src="(?:https?:)?//[^"]*"', text) == []
        assert re.findall(r'<link[^>]* href="https?://[^"]*"[^>]*rel="stylesheet"', text) == []
