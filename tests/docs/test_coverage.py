"""What a user may write is explained in a guide, and found by the words of somebody who does not know its name."""

import inspect
import json
import re
from collections.abc import Iterator

import pytest
from snippets import PAGES, ROOT, blocks

import gpuload
from gpuload import cli, errors

# Pages that list all there is, made from the code. The others explain it.
LISTS = {"reference.md", "command-line.md", "changelog.md"}
GUIDES = {page.name: page.read_text() for page in PAGES if page.name not in LISTS}
CODE = {word for text in GUIDES.values() for word in re.findall(r"\w+", " ".join(re.findall(r"`([^`\n]+)`", text)))}
CODE |= {word for text in GUIDES.values() for block in blocks(text) for word in re.findall(r"\w+", block.text)}


def names() -> Iterator[set[str]]:
    """Arguments, methods and public names, but for those of the package's own use."""
    for value in (gpuload.DaliIterator, gpuload.Augment, gpuload.Dataset, gpuload.mix):
        yield set(inspect.signature(value).parameters) - {"self", "data", "folder", "data_sets"}
    inner = {"open_store", "stored_samples", "require_field", "first_row", "shards_of", "all_rows", "image_sizes"}
    for owner in (gpuload.DaliIterator, gpuload.Dataset):
        yield {name for name, one in vars(owner).items() if name[0] != "_" and inspect.isfunction(one)} - inner
    for module in (gpuload, gpuload.transforms, gpuload.batchwise):
        yield {*module.__all__} - {"BatchForm", "BatchTransform"}


def test_every_name_is_in_a_guide() -> None:
    found = list(names())
    assert len(found) == 9 and all(found)
    assert [part - CODE for part in found] == [set()] * 9


def test_every_error_is_in_the_table() -> None:
    for name in (name for name in vars(errors) if name.endswith("Error") and name != "GpuloadError"):
        assert f"\n| `{name}` | " in GUIDES["faq.md"], name


def test_every_command_is_in_a_guide() -> None:
    text = "".join(GUIDES.values())
    assert len(cli.COMMANDS) > 9
    for name in cli.COMMANDS:
        parser = cli.parser_of(name)
        assert f"python -m gpuload {name}" in text, name
        assert [action.dest for action in parser._actions if not action.help] == []


# Pages, and what somebody types who comes from elsewhere and must find them.
WORDS = {
    "coming-from": "DistributedSampler, num_workers, pin_memory, collate_fn, ImageFolder",
    "sampling": "WeightedRandomSampler, class imbalance, oversampled",
    "training-loops": "torchrun, DistributedDataParallel, Slurm, checkpoint, validation",
    "fields": "segmentation, bounding box, regression, multi-label",
    "augmentations": "progressive resizing, multi-crop, mixed precision, MixUp",
    "pixels-and-encodings": "grayscale, multispectral, medical",
    "large-images": "sliding window, satellite",
    "loading": "reproducib, out of memory",
    "buckets": "text-to-image",
    "geometry": "CIFAR",
    "remote": "MinIO",
    "quickstart": "Docker",
    "report": "duplicates",
    "long-runs": "corrupt",
    "waiting": "bottleneck",
}


@pytest.mark.parametrize("page", WORDS)
def test_a_newcomers_words_are_found(page: str) -> None:
    text = " ".join(GUIDES[f"{page}.md"].casefold().split())
    assert [word for word in WORDS[page].split(", ") if word.casefold() not in text] == []


TITLES = {"dataloader": "torch", "ffcv": "FFCV", "dali": "DALI", "mosaic": "Streaming", "litdata": "LitData"}
TITLES |= {"spdl": "SPDL"}


def test_the_versions_of_other_loaders_are_those_of_the_record() -> None:
    record = json.loads((ROOT / "tools" / "results" / "peers.json").read_text())
    page = " ".join((ROOT / "docs" / "coming-from.md").read_text().split())
    for found in record["peers"]:
        version = next(iter(found["versions"].values())).partition("+")[0]
        assert f"{TITLES.get(found['peer'], found['peer'])} {version}" in page, found
