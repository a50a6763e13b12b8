"""The site is built from docs/ without a warning: links, anchors, and everything that the pages name in the package."""

import html.parser
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


class Page(html.parser.HTMLParser):
    """Links and ids of a built page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.links += [value for name in ("href", "src") if (value := values.get(name))]
        self.ids |= {value for name in ("id", "name") if (value := values.get(name))}


def test_every_link_and_anchor_of_the_built_site(site: Path) -> None:
    pages = {path: Page(path.read_text()) for path in site.rglob("*.html") if path.name != "404.html"}
    assert len(pages) >= 25
    broken = []
    for path, page in pages.items():
        for link in page.links:
            if re.match(r"(?:[a-z]+:|//|data:)", link):
                continue
            place, _, anchor = link.partition("#")
            target = (path.parent / place).resolve() if place else path
            if not target.exists() or (anchor and target in pages and anchor not in pages[target].ids):
                broken.append(f"{path.name}: {link}")
    assert broken == []


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    for path in site.rglob("*.html"):
        assert re.findall(r'(?:<script|<img|<iframe)[^>]* src="(?:https?:)?//[^"]*"', path.read_text()) == []
        assert re.findall(r'<link[^>]* href="https?://[^"]*"[^>]*rel="stylesheet"', path.read_text()) == []
