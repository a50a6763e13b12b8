"""What the names at the top of a container tell about what it is, before anything is listed."""

from collections import Counter
from collections.abc import Callable, Iterable

from gpuload.sources.files import IMAGE_EXTENSIONS, Files, Folder
from gpuload.sources.splits import split_called

_TABLES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet", ".json")
_ANNOTATIONS = "annotations"
# Folders that data sets have for all of their images, or for what belongs to these: hardly ever a class.
_NO_CLASSES = frozenset(("images", "image", "imgs", "img", "jpegimages", _ANNOTATIONS, "masks"))
_MOST_AROUND = 4  # folders around everything that are looked into


def annotation_files(files: Files, extension: str) -> list[str]:
    """Names of the files with this extension in the folder of annotations, if there is one."""
    folders = [name for name in files.folders() if name.lower() == _ANNOTATIONS]
    return [
        f"{folder}/{name}" for folder in folders for name in files.names(folder) if name.lower().endswith(extension)
    ]


def no_class(names: Iterable[str]) -> str:
    """The first of these folders whose name is hardly that of a class; "" if there is none."""
    return next((name for name in names if name.lower() in _NO_CLASSES), "")


def tables_in(files: Files) -> list[str]:
    """Files at the first level that may tell what belongs to the images."""
    return [name for name in files.names() if name.lower().endswith(_TABLES)]


def labels_advice(files: Files) -> str:
    """How to give labels from elsewhere, with a table that lies there."""
    found = tables_in(files)
    if not found or not isinstance(files, Folder):
        return "--labels table.csv"
    return f"--labels {files.path / found[0]}"


def names_alike(names: list[str]) -> list[str]:
    """Those that differ from another one in case only."""
    counts = Counter(name.lower() for name in names)
    return [name for name in names if counts[name.lower()] > 1]


def unwrapped(files: Files, known: Callable[[Files], bool]) -> Files:
    """The folder in which a data set begins, where folders that hold nothing else are around it; else the container.

    known: whether a folder is a data set by what lies in it. One with folders of splits is, too; one with class folders
    is not, since a single folder around images is a class.
    """
    inner = files
    for _ in range(_MOST_AROUND):
        folders = inner.folders() if isinstance(inner, Folder) else []
        if len(folders) != 1 or split_called(folders[0]) or _holds_images(inner) or not isinstance(inner, Folder):
            break
        inner = inner.inside(folders[0])
        if known(inner) or any(split_called(name) for name in inner.folders()):
            return inner
    return files


def _holds_images(files: Files) -> bool:
    return any(name.rpartition(".")[2].lower() in IMAGE_EXTENSIONS for name in files.names())
