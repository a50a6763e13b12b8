"""`README.md`: the dataset card, by which Hugging Face's `datasets` and the Hub's viewer read a packed folder as it is.

Without it `datasets` guesses: it takes the JSON files beside the shards for the data, and the columns of the first five
samples for those of all.
"""

import glob
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from gpuload.disk.commit import open_index
from gpuload.disk.manifest import CARD_NAME, Manifest
from gpuload.fields.field import Field
from gpuload.fields.picture_lists import members_of
from gpuload.fields.registry import kind_of
from gpuload.fields.rows import lengths_of
from gpuload.store.files import write_atomically
from gpuload.types import ClassNames

_SIGNATURE = re.compile(rb"<!-- gpuload: ([0-9a-f]{64}) -->\n\Z")
_SHARD_NAME = re.compile(r"(?P<folder>(?:.*/)?)[^/]*?(?P<end>(?:\.[^./]*)?)", re.DOTALL)
_BODY = """
# Images packed by gpuload

{sizes}.

The shards are plain tars in WebDataset's convention. These programs read the folder as it is:

```python
{programs}
```
"""
_READ_SET = """\
gpuload.DaliIterator("FOLDER/{split}", batch_size=256, augment=gpuload.Augment(224))
datasets.load_dataset("FOLDER")  # Hugging Face's
timm.data.create_dataset("wds/", "FOLDER", split="{name}")
webdataset.WebDataset("FOLDER/{split}/{shards}", shardshuffle=False)
ray.data.read_webdataset("FOLDER/{split}", file_extensions=["tar"])"""
_READ_SPLIT = """\
gpuload.DaliIterator("FOLDER", batch_size=256, augment=gpuload.Augment(224))
datasets.load_dataset("FOLDER")  # Hugging Face's"""


def write_card(folder: Path, manifests: Mapping[Path, Manifest]) -> bool:
    """Writes the card of a folder, unless somebody has edited the one that is there; returns whether it did.

    Args:
        folder: The one that the card is about.
        manifests: Those of its splits, by their folders: `folder` itself, or folders in it. Of indexed shards, which
            may hold more than their index, it names no columns.
    """
    path = folder / CARD_NAME
    if path.exists() and not is_unedited(path.read_bytes()):
        return False
    content = _card_text(folder, manifests).encode()
    signature = f"<!-- gpuload: {hashlib.sha256(content).hexdigest()} -->\n"
    write_atomically(path, content + signature.encode())
    return True


def is_unedited(card: bytes) -> bool:
    """Whether a card is as gpuload wrote it. Its last line tells: it holds the SHA-256 of all before it."""
    signature = _SIGNATURE.search(card)
    return (
        signature is not None
        and hashlib.sha256(card[: signature.start()]).hexdigest().encode()
        == signature[1]
    )


def public_names(splits: Iterable[str]) -> dict[str, str]:
    """The name by which other readers know each split: "validation" for "val"; letters, digits and "_" alone."""
    splits = list(splits)
    names: dict[str, str] = {}
    for split in splits:
        is_validation = split == "val" and "validation" not in splits
        name = "validation" if is_validation else re.sub(r"\W", "_", split)
        while name in names.values():
            name += "_"
        names[split] = name
    return names


def _card_text(folder: Path, manifests: Mapping[Path, Manifest]) -> str:
    names = public_names(split.name for split in manifests)
    data_files = []
    for split, manifest in manifests.items():
        prefix = "" if split == folder else f"{split.relative_to(folder).as_posix()}/"
        data_files.append(
            {"split": names[split.name], "path": _patterns(prefix, manifest)}
        )
    header: dict[str, Any] = {
        "configs": [{"config_name": "default", "data_files": data_files}]
    }
    if all(manifest.upright for manifest in manifests.values()):
        header["dataset_info"] = {"features": _features(manifests)}
    lines = ["---", *_yaml(header), "---"]
    return "\n".join(lines) + "\n" + _body(folder, manifests)


def _body(folder: Path, manifests: Mapping[Path, Manifest]) -> str:
    names = public_names(split.name for split in manifests)
    split, manifest = next(iter(manifests.items()))
    programs = _READ_SPLIT
    if split != folder:
        numbers = [
            shard.name.removeprefix("shard-").removesuffix(".tar")
            for shard in manifest.shards
        ]
        shards = f"shard-{{{numbers[0]}..{numbers[-1]}}}.tar"
        programs = _READ_SET.format(
            split=split.name, name=names[split.name], shards=shards
        )
    sizes = (
        f"{names[split.name]}: {manifest.samples:,} samples"
        for split, manifest in manifests.items()
    )
    return _BODY.format(sizes="; ".join(sizes), programs=programs)


def _patterns(prefix: str, manifest: Manifest) -> list[str]:
    """Patterns that fit the shards of a split and no other file in its folder.

    Beside shards of others, which were indexed where they are, there may be more: these are named one by one.
    """
    if not manifest.upright:
        return [glob.escape(prefix + shard.name) for shard in manifest.shards]
    patterns = set()
    for shard in manifest.shards:
        match = _SHARD_NAME.fullmatch(shard.name)
        assert match is not None  # it fits every name
        patterns.add(
            f"{glob.escape(prefix + match['folder'])}*{glob.escape(match['end'])}"
        )
    return sorted(patterns)


def _features(manifests: Mapping[Path, Manifest]) -> list[dict[str, Any]]:
    """The columns of all splits with their types. Each encoding of images is a column of its own."""
    features: dict[str, Any] = {}
    for split, manifest in manifests.items():
        for field in manifest.fields:
            kind = kind_of(field)
            classes = _distinct(kind.class_names(field, manifest.classes))
            dimensions = _dimensions(split, manifest, field)
            for member in members_of(field):
                features[member] = kind.hub_feature(field, classes, dimensions)
    features["__key__"] = {"dtype": "string"}
    features["__url__"] = {"dtype": "string"}
    return [{"name": name, **feature} for name, feature in features.items()]


def _distinct(classes: ClassNames) -> ClassNames:
    """The names of classes, or None where two are the same, which `datasets` refuses."""
    return (
        classes if classes is not None and len(set(classes)) == len(classes) else None
    )


def _dimensions(split: Path, manifest: Manifest, field: Field) -> frozenset[int]:
    """The numbers of dimensions that the arrays of a field have; empty for other kinds of fields."""
    column = f"{field.name}_shape"
    if column not in kind_of(field).columns(field):
        return frozenset()
    index = open_index(split, manifest)
    counts = set[int]()
    for number in range(len(index)):
        counts.update(lengths_of(index.shard(number).column(column)).tolist())
    return frozenset(counts)


def _yaml(value: Any) -> Iterator[str]:
    """The lines of dicts, lists and texts in YAML, for which a packing host needs no package."""
    if isinstance(value, str):
        yield _quoted(value)
    elif isinstance(value, list):
        for entry in value:
            yield from _indented("- ", _yaml(entry))
    else:
        for key, entry in value.items():
            name = key if key.isidentifier() else _quoted(key)
            if isinstance(entry, str):
                yield f"{name}: {_quoted(entry)}"
            else:
                yield f"{name}:"
                yield from _indented("  ", _yaml(entry))


def _indented(start: str, lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        yield start + line
        start = "  "


def _quoted(text: str) -> str:
    """A text in YAML, in double quotes: JSON's, with escapes for what YAML does not print."""
    characters = json.dumps(text, ensure_ascii=False)
    return "".join(
        character if character.isprintable() else f"\\U{ord(character):08x}"
        for character in characters
    )
