"""Which files are a packed set's or a run's own, and their removal, one by one: what others put beside them stays."""

import ctypes
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from gpuload.disk import Manifest
from gpuload.disk import index as index_file
from gpuload.disk import manifest as manifest_file
from gpuload.disk.card import is_unedited
from gpuload.disk.commit import NEXT_NAME
from gpuload.disk.manifest import CARD_NAME, JOINED_NAME, TIMM_NAME, dali_index_path
from gpuload.errors import FormatError
from gpuload.store.files import temporaries

REJECTED_NAME = "rejected.jsonl"

# The files that describe a split, the manifest last: while it is there, it tells which other files are the set's.
DESCRIPTIONS = (
    index_file.FILE_NAME,
    NEXT_NAME,
    CARD_NAME,
    TIMM_NAME,
    REJECTED_NAME,
    manifest_file.FILE_NAME,
)

STATE_NAME = "state.json"  # in the scratch folder, once the run is planned; before, nothing else is written
_OWNER_NAME = "gpuload"  # in the scratch folder from its beginning to its end: no other program's folder has it

_AT_FDCWD = -100  # linux/fcntl.h
NO_REPLACE = 1  # linux/fs.h
EXCHANGE = 2


def shard_name(number: int) -> str:
    return f"shard-{number:06d}.tar"


def shard_number(name: str) -> int:
    """As `shard_name` has given it."""
    return int(name.rpartition("-")[2].removesuffix(".tar"))


def shard_files(shards: Iterable[str]) -> Iterator[str]:
    """The names of shards, each followed by that of its index."""
    for name in shards:
        yield name
        yield str(dali_index_path(Path(name)))


def split_files(manifest: Manifest) -> list[str]:
    """The names of the files of a packed split, in the order in which they are removed."""
    shards = shard_files(shard.name for shard in manifest.shards)
    return [*shards, *(file.name for file in manifest.joined), *DESCRIPTIONS]


def remove_files(folder: Path, names: Iterable[str]) -> None:
    """Removes these files, unfinished ones of these names, and the folder, if nothing else is in it. A card that
    somebody edited stays."""
    names = dict.fromkeys(names)
    for path in (*temporaries(folder, names), *(folder / name for name in names)):
        with suppress(OSError):
            if path.name != CARD_NAME or is_unedited(path.read_bytes()):
                path.unlink()
    with suppress(OSError):
        folder.rmdir()


def find_foreign(folder: Path, names: Iterable[str]) -> str:
    """The first of these entries of a folder that is not a packed split; "" if each is one.

    A link is none, since what it leads to lies elsewhere; nor is an index of shards that others packed.
    """
    for name in names:
        if (manifest := _packed(folder / name)) is None or not manifest.upright:
            return name
    return ""


def remove_set(folder: Path, successor: Path) -> None:
    """Removes the files of each packed split in a folder, and those beside the splits.

    Args:
        folder: Of the splits.
        successor: The folder of the set that replaces it. An edited card is removed only where that has a copy.
    """
    for split in sorted(folder.iterdir()):
        if (manifest := _packed(split)) is not None and manifest.upright:
            replaced = filter(JOINED_NAME.fullmatch, os.listdir(split))
            remove_files(split, [*split_files(manifest), *replaced])
    (folder / TIMM_NAME).unlink(missing_ok=True)
    card = folder / CARD_NAME
    with suppress(FileNotFoundError):
        content = card.read_bytes()
        if is_unedited(content) or content == (successor / CARD_NAME).read_bytes():
            card.unlink()


def _packed(folder: Path) -> Manifest | None:
    """The manifest of a packed split; None if the folder is something else."""
    if folder.is_symlink():
        return None
    try:
        return Manifest.read(folder)
    except FormatError:
        return None


class Others(NamedTuple):
    """What others have put into a folder.

    Attributes:
        moved: Their new paths.
        staying: Those that stay there, since their places are taken.
    """

    moved: list[Path]
    staying: list[Path]


def move_others(source: Path, target: Path) -> Others:
    """Moves what lies in one folder to the same place in another, as far as nothing is replaced by that."""
    others = Others([], [])
    for entry in sorted(source.iterdir()):
        place = target / entry.name
        if _is_real_folder(entry) and _is_real_folder(place):
            within = move_others(entry, place)
            others.moved.extend(within.moved)
            others.staying.extend(within.staying)
            with suppress(OSError):
                entry.rmdir()
            continue
        try:
            rename(entry, place, NO_REPLACE)
        except OSError:
            others.staying.append(entry)
        else:
            others.moved.append(place)
    return others


def _is_real_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def rename(source: Path, target: Path, flags: int) -> None:
    """Renames atomically: with NO_REPLACE only if the new name is free; with EXCHANGE both get each other's name, so
    that both names exist at any time.

    Raises:
        OSError: the name is taken, or the file system does not support it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(
        _AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(target), flags
    ):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def make_scratch(folder: Path) -> None:
    """Makes the scratch folder of a run, which holds its sign."""
    folder.mkdir(exist_ok=True)
    (folder / _OWNER_NAME).touch()


def is_scratch(folder: Path) -> bool:
    """Whether a folder is the scratch folder of a run: it holds the sign of one or a planned run, or nothing yet."""
    if not _is_real_folder(folder):
        return False
    names = set(os.listdir(folder))
    return not names or not names.isdisjoint((_OWNER_NAME, STATE_NAME))


def remove_scratch(folder: Path) -> None:
    """Removes the scratch folder of a run, its sign and its state last, so that an interrupted removal can be
    continued."""
    if not is_scratch(folder):
        return
    for entry in sorted(folder.iterdir()):
        if _is_real_folder(entry):
            shutil.rmtree(entry, ignore_errors=True)
        elif entry.name not in (STATE_NAME, _OWNER_NAME):
            entry.unlink(missing_ok=True)
    for name in (_OWNER_NAME, STATE_NAME):
        (folder / name).unlink(missing_ok=True)
    folder.rmdir()
