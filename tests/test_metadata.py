"""The links of README, in the repository and on a package index, where relative ones lead nowhere."""

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Any:
    """tools/hatch_build.py, which imports hatchling; pip installs that only while it builds."""
    interface = ModuleType("hatchling.metadata.plugin.interface")
    interface.MetadataHookInterface = object  # type: ignore[attr-defined]
    for name in ("hatchling", "hatchling.metadata", "hatchling.metadata.plugin"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, interface.__name__, interface)
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "tools" / "hatch_build.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_link_leads_somewhere() -> None:
    links = re.findall(r"\]\(([^)]+)\)", README)
    links += re.findall(r'(?:src|srcset)="([^"]+)"', README)
    assert "install" in heads(README) and len(links) > 20
    for link in links:
        if link.startswith("https://"):
            continue
        path, _, head = link.partition("#")
        assert not path or (ROOT / path).exists()
        assert not head or head in heads((ROOT / path).read_text() if path else README)


def heads(text: str) -> set[str]:
    """As links name them."""
    return {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in re.findall(r"^#+ (.*)", text, re.M)}


def test_links_on_a_package_index(hook: Any) -> None:
    text = (
        "see [the *design*](gpuload/DESIGN.md), [below](#here).\n\n![a plot](a/b.png)\n\n"
        '<picture>\n  <img src="a/b.png">\n</picture>\n\nand [c](https://example.org)\n'
    )
    assert hook.without_relative_links(text) == "see the *design*, below.\n\nand [c](https://example.org)\n"
    description = hook.Description()
    description.root = str(ROOT)
    metadata: dict[str, Any] = {}
    description.update(metadata)
    made = metadata["readme"]["text"]
    assert metadata["readme"]["content-type"] == "text/markdown"
    assert re.findall(r"\]\((?!https://)", made) == [] and "](" in README
    for ours, theirs in zip(re.findall(r"```.*?```", README, re.S), re.findall(r"```.*?```", made, re.S), strict=True):
        assert ours == theirs
    assert "Packing from folders, tables" in made and "<img" not in made
