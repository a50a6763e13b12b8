"""Every program and command of docs/ and of README.

The rules: all ```python blocks of a page are run in their order in one namespace, in a folder with photos/ and
shards/train and shards/val packed from them. Of ```bash blocks, commands that begin with `python -m gpuload` or `python
tools/` or `python benchmarks/` are run, others are parsed. What cannot be run has `<!-- not run: the reason -->` on the line above its block.
"""

import gc
import importlib
import re
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
from readme_data import make_fields, make_sources
from snippets import PAGES, PROGRAMS, ROOT, blocks, parse_command, run_page

import gpuload
from gpuload.packing.verify import verify

README = ROOT / "README.md"


def make_all_sources(folder: Path) -> None:
    shutil.rmtree("photos")  # a smaller one
    make_sources(folder)


# What a page's blocks need besides photos/ and shards/.
PREPARE = {"fields.md": make_fields, "large-images.md": make_fields, "packing.md": make_all_sources}


@pytest.mark.parametrize("page", [*PAGES, README], ids=lambda page: page.name)
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
        assert len(packed) == 24
        assert sorted(path.name for path in Path("split").iterdir() if path.is_dir()) == ["test", "train", "val"]


def test_the_commands_in_readmes_sentences_and_in_the_heads_of_programs(page_folder: Path) -> None:
    importlib.import_module("torchvision_anywhere")  # which some examples import
    sentences = re.sub(r"```.*?```", "", README.read_text(), flags=re.S)
    inline, heads = re.findall(r"`((?:python|bash|torchrun|pip) [^`]+)`", sentences), []
    for script in sorted(path for folder in PROGRAMS for path in (ROOT / folder).glob("*.py")):
        text = script.read_text()
        if "ArgumentParser" in text and "pytorch_lightning" not in text:  # whose import takes seconds
            named = rf"^ {{0,4}}((?:torchrun .*|python ){script.relative_to(ROOT)}.*)$"
            heads += [re.sub(r"\s+# .*", "", line) for line in re.findall(named, text.partition('\n"""\n')[0], re.M)]
    assert inline and len(heads) > 40
    for command in [*inline, *heads]:
        parse_command(command)


def test_no_page_names_the_machine_it_was_written_on() -> None:
    for page in [*PAGES, README, ROOT / "CONTRIBUTING.md"]:
        assert re.findall("/root/|github.com/gpuload", page.read_text()) == [], page
