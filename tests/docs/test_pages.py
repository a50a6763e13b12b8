"""Every program and command of docs/ and of README.

The rules: all ```python blocks of a page are run in their order in one namespace, in a folder with photos/ and
shards/train and shards/val packed from them. Of ```bash blocks, commands that begin with `python -m gpuload` or `python
tools/` are run, others are parsed. What cannot be run has `<!-- not run: the reason -->` on the line above its block.
"""

import gc
import importlib
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
from readme_data import make_fields, make_sources
from snippets import PAGES, ROOT, Block, blocks, commands, parse_command, run_page

import gpuload
from gpuload.packing.verify import verify


def make_all_sources(folder: Path) -> None:
    shutil.rmtree("photos")  # a smaller one
    make_sources(folder)


# What a page's blocks need besides photos/ and shards/.
PREPARE = {"fields.md": make_fields, "packing.md": make_all_sources}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_of_a_page(page: Path, page_folder: Path) -> None:
    """What it packs is read again."""
    text, packed = page.read_text(), []
    if any(block.language in ("python", "bash") and block.not_run is None for block in blocks(text)):
        PREPARE.get(page.name, lambda folder: None)(page_folder)
    if "torchvision" in text:
        importlib.import_module("torchvision_anywhere")  # which also works with a torch for CPUs alone

    def watch(words: list[str]) -> None:
        if words[3:4] == ["pack"]:
            packed.append(words[5])
            assert verify(words[5], 1) == [], words

    names: dict[str, Any] = {"__name__": "__main__"}
    try:
        with warnings.catch_warnings():
            run_page(page, text, names, watch)
    finally:
        for value in names.values():
            if isinstance(value, gpuload.DaliIterator):
                value.close()
        names.clear()
        gc.collect()
    if page.name == "packing.md":
        assert len(packed) == 25
        assert sorted(path.name for path in Path("split").iterdir()) == ["test", "train", "val"]


def test_the_blocks_of_a_page_are_found() -> None:
    text = '# Page\n\n<!-- not run: needs a GPU -->\n```python title="a.py"\nx = 1\n```\n\n'
    text += '=== "tab"\n\n    ```bash\n    ls  # list\n    a \\\n      b\n    # nothing\n    ```\n'
    first, second = blocks(text)
    assert first == Block("python", "x = 1\n", 5, "needs a GPU")
    assert (second.language, second.line, second.not_run) == ("bash", 11, None)
    assert commands(second.text) == ["ls", "a    b"]
    with pytest.raises(AssertionError, match="line 1: this block has no end"):
        blocks("```python\nx = 1\n")


def test_a_block_that_fails_fails_with_its_page_and_line(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    with pytest.raises(ZeroDivisionError) as error:
        run_page(page, "\n```python\nx = 1\n```\n\n```python\n\nx / 0\n```\n", {})
    assert (str(error.traceback[-1].path), error.traceback[-1].lineno + 1) == (str(page), 8)
    with pytest.raises(AssertionError, match=r"page.md:2: python -m gpuload info nothing"):
        run_page(page, "```bash\npython -m gpuload info nothing\n```\n", {})
    assert run_page(page, "<!-- not run: no -->\n```python\nx / 0\n```\n\n```text\nx / 0\n```\n", {}) == 0
    with pytest.raises(SyntaxError):
        run_page(page, "<!-- not run: no -->\n```python\nx x\n```\n", {})


@pytest.mark.parametrize(
    "command",
    ["python -m gpuload pack photos shards --vol 0.1", "pip install -e '.[gpu]'", "bash tools/none.sh", "ls ("],
)
def test_a_command_that_cannot_be_meant(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises((AssertionError, SystemExit)):
        parse_command(command)


def test_no_page_names_the_machine_it_was_written_on() -> None:
    for page in [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md"]:
        text = page.read_text()
        assert not any(word in text for word in ("/root/", "github.com/gpuload")), page
