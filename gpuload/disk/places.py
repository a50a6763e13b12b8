"""Where packed sets lie: a folder with a manifest is one; a folder of such folders holds its splits."""

from itertools import islice
from pathlib import Path

from gpuload.checks import nearest
from gpuload.store.url import URL, as_location

FILE_NAME = "manifest.json"

_USUAL = {
    name: place
    for place, name in enumerate(("train", "val", "valid", "validation", "test"))
}
_MOST_LISTED = (
    10_000  # entries of a folder among which the name that was meant is looked for
)


def packed_folders(folder: Path) -> list[Path]:
    """The packed folders in a folder, in the usual order of splits; the folder itself where it is one, or has none."""
    if (folder / FILE_NAME).exists():
        return [folder]
    splits = (path.parent for path in folder.glob(f"*/{FILE_NAME}"))
    return sorted(
        splits, key=lambda path: (_USUAL.get(path.name, len(_USUAL)), path.name)
    ) or [folder]


def packed_folder(folder: Path) -> Path:
    """The packed folder that is meant: the folder itself, or its only split."""
    splits = packed_folders(folder)
    return splits[0] if len(splits) == 1 else folder


def packed_locations(place: str | Path | URL) -> list[Path | URL]:
    """As `packed_folders`, of a path or a URL; a URL is not listed.

    Raises:
        ArgumentError, MissingPackageError: the URL cannot be read from here.
    """
    location = as_location(place)
    return (
        [location] if isinstance(location, URL) else [*packed_folders(Path(location))]
    )


def why_no_set(folder: Path) -> str:
    """A message on a folder without a manifest: what it is instead, and what to give or do."""
    splits = packed_folders(folder)
    if splits != [folder]:
        return (
            f"{folder}: holds packed splits; open one of them, for instance {splits[0]}"
        )
    pack = "Pack images with `python -m gpuload pack`, or index WebDataset shards with `python -m gpuload index`"
    if folder.is_dir():
        return f"{folder}: no {FILE_NAME}, so this is not a packed folder. {pack}"
    if (folder.parent / FILE_NAME).exists():
        return f"{folder}: is not a packed folder, but {folder.parent} is. Open that"
    if folder.is_file():
        is_tar = folder.suffix == ".tar"
        advice = (
            f"Index it with `python -m gpuload index {folder}`, and open {folder.parent}"
            if is_tar
            else pack
        )
        return f"{folder}: is a file, expected a packed folder. {advice}"
    if similar := similar_folder(folder):
        return f"{folder}: no such folder. Did you mean {similar}?"
    return f"{folder}: no such folder. {pack}"


def similar_folder(folder: Path) -> Path | None:
    """The folder that a path means of which one part is misspelt."""
    missing = next(
        (path for path in (*reversed(folder.parents), folder) if not path.exists()),
        None,
    )
    if missing is None or not missing.parent.is_dir():
        return None
    try:
        names = [
            path.name
            for path in islice(missing.parent.iterdir(), _MOST_LISTED)
            if path.is_dir()
        ]
    except OSError:
        return None
    name = nearest(missing.name, names)
    if name is None:
        return None
    similar = missing.parent / name / folder.relative_to(missing)
    return similar if similar.exists() else None
