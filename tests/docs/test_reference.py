"""Every public name is in the reference, with every parameter and an example that the page runs, and in a guide that
explains it."""

import inspect
import pydoc
import re
from collections.abc import Iterator
from typing import Any

import pytest
from documentation import commands
from snippets import PAGES, ROOT, blocks

import gpuload
from gpuload import batchwise, cli, errors, transforms

TEXT = (ROOT / "docs" / "reference.md").read_text()
ROOMS = {"": gpuload, "transforms.": transforms, "batchwise.": batchwise}


# What loaders return and `pack` takes, of which users need no name.
RETURNED = ("Report", "CorruptSample", "PackOptions", "Encoding")


def documented(name: str) -> Any:
    """What the page takes from a place of its own."""
    (place,) = re.findall(rf"^::: (gpuload\.(?:\w+\.)*{name})$", TEXT, re.MULTILINE)
    return pydoc.locate(place)


def public() -> dict[str, Any]:
    found = {f"{room}{name}": getattr(module, name) for room, module in ROOMS.items() for name in module.__all__}
    found |= {name: documented(name) for name in (*RETURNED, "monitor.Metrics")}
    return {name: value for name, value in found.items() if not inspect.ismodule(value)}


def described(value: Any) -> set[str]:
    """Names of the arguments that a docstring lists, or that of a class from which fields are inherited."""
    documented_classes = [owner for owner in getattr(value, "__mro__", [value]) if owner is not object]
    texts = [inspect.getdoc(owner) or "" for owner in documented_classes]
    return {name for text in texts for name in re.findall(r"^    \**(\w+): \S", text, re.MULTILINE)}


def parameters(value: Any) -> set[str]:
    return set(inspect.signature(value).parameters) - {"self"}


# What is constructed for the user, or takes anything.
NOT_CALLED = {"Mixture", "batchwise.BatchTransform"}


def signatures() -> Iterator[tuple[str, Any]]:
    """Public classes and functions, and the methods that the reference shows."""
    for name, value in public().items():
        if name in NOT_CALLED or (inspect.isclass(value) and issubclass(value, Exception)):
            continue
        yield name, value
        if name in ("DaliIterator", "Dataset", "Augment"):
            hidden = {"draw", "check_pixels", "stored_samples", "open_store", "require_field"}
            for method, function in vars(value).items():
                if not method.startswith("_") and inspect.isfunction(function) and method not in hidden:
                    yield f"{name}.{method}", function


@pytest.mark.parametrize("value", [pytest.param(value, id=name) for name, value in signatures()])
def test_every_parameter_is_described(value: Any) -> None:
    assert parameters(value) - described(value) == set()


def test_every_public_name_is_in_the_reference() -> None:
    for name in public():
        members = rf"members: .*\b{name.rpartition('.')[2]}\b"
        assert re.search(rf"^::: gpuload\.(?:\w+\.)*{name}$|{members}", TEXT, re.MULTILINE), name


def test_every_public_name_has_an_example() -> None:
    elsewhere = ("batchwise.BatchForm", "batchwise.BatchTransform", "fetch")  # the last one needs a server
    code = "".join(block.text for block in blocks(TEXT) if block.language == "python" and not block.not_run)
    for name, value in public().items():
        if inspect.isclass(value) and issubclass(value, Exception):
            continue  # the page of questions and errors has examples
        if name not in ("Mixture", *RETURNED):
            assert name.rpartition(".")[2] in code or name in elsewhere, name


def test_the_page_of_commands_is_what_help_prints() -> None:
    """But for white space, which differs between versions of Python."""
    written = (ROOT / "docs" / "command-line.md").read_text()
    assert written.split() == commands.page().split(), "run `python tools/documentation/commands.py`"


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
    inner |= {"check_index"}
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
    assert len(cli.COMMANDS) > 8
    for name in cli.COMMANDS:
        parser = cli.parser_of(name)
        assert f"python -m gpuload {name}" in text, name
        assert [action.dest for action in parser._actions if not action.help] == []


# What somebody types who comes from elsewhere.
WORDS = """
DistributedSampler, num_workers, pin_memory, collate_fn, ImageFolder, WeightedRandomSampler, class imbalance, oversampled,
torchrun, DistributedDataParallel, Slurm, checkpoint, validation, segmentation, bounding box, regression, multi-label,
progressive resizing, multi-crop, mixed precision, MixUp, grayscale, multispectral, medical, sliding window, satellite,
reproducib, out of memory, text-to-image, CIFAR, MinIO, Docker, duplicates, corrupt, bottleneck
"""


def test_a_newcomers_words_are_found() -> None:
    text = " ".join("".join(GUIDES.values()).casefold().split())
    words = " ".join(WORDS.casefold().split()).split(", ")
    assert len(words) > 30 and [word for word in words if word not in text] == []
