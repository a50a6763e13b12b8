"""The kinds of sources, and which one the user means.

A new kind is a file with its class and a row in `FORMATS`, and one in `LABELS`, if it describes the images of a folder
or archive and is given with --labels.
"""

import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name

from gpuload.errors import ArgumentError, SourceError
from gpuload.sources.at_path import FilesSource, open_files
from gpuload.sources.files import ARCHIVES, COMPRESSED_TARS, ELSEWHERE, IMAGE_EXTENSIONS, Files, extension_of
from gpuload.sources.listing import SPLIT, split_called
from gpuload.sources.local_folder import Folder
from gpuload.sources.rows import Names, Source
from gpuload.store.url import URL, as_location, scheme_of, why_not_local, without_secrets

Columns = Mapping[str, Names]

_MOST_AROUND = 4  # folders around everything that are looked into


@dataclass(frozen=True)
class Format:
    """One kind of source.

    source: module and class below `gpuload.sources`. The module is imported when it is needed: some need packages that
        others do not, or take long to import.
    suffixes: of the names of its files and folders.
    """

    name: str
    source: str
    suffixes: Names = ()

    @property
    def made(self) -> type[Source]:
        made: type[Source] = resolve_name(f"gpuload.sources.{self.source}")
        return made

    @property
    def holds_files(self) -> bool:
        """Whether its images are files of a container."""
        return issubclass(self.made, FilesSource)

    def open(self, root: Path | URL, files: Files, labels: str | Path | None, columns: Columns | None) -> Source:
        """The source at a path; `files` are those in it, for a class that takes files.

        Raises:
            ArgumentError: labels or columns are given, and it takes none.
        """
        made = self.made
        if labels is not None and not made.takes_labels:
            raise ArgumentError(
                f"--labels: {root} is packed as {self.name!r}, which takes no labels from elsewhere. "
                "Leave out --labels, or say with --from folder that its images are meant"
            )
        if columns and not made.takes_columns:
            other = "give it with --labels table.csv" if self == FORMATS[0] else "leave them out"
            raise ArgumentError(
                f"--path-column, --label-column and --column name columns of a table; {self.name!r} has none: {other}"
            )
        if isinstance(root, URL) and not (self.holds_files or made.suffixes):
            raise SourceError(f"{root}: is a URL, and {self.name!r} is read from local files alone. {ELSEWHERE}")
        first = files if self.holds_files else files.path if isinstance(files, Folder) else root
        given = {"columns": columns} if columns else {}
        return made(first, *([] if labels is None else [labels]), **given)  # type: ignore[call-arg]


# What SOURCE can be. Without --from or a known suffix, it is the first format that fits, else the first one.
FORMATS = (
    Format("folder", "folder:FolderSource"),
    Format("sidecar", "folder:SidecarSource"),
    Format("unlabeled", "folder:UnlabeledSource"),
    Format("voc", "voc:VocSource"),
    Format("coco", "coco:CocoSource"),
    Format("yolo", "yolo:YoloSource"),
    Format("hdf5", "hdf5:Hdf5Source", (".h5", ".hdf5", ".hdf")),
    Format("lmdb", "lmdb_store:LmdbSource", (".mdb", ".lmdb")),
    Format("npy", "arrays:ArraysSource", (".npy", ".npz")),
    Format("tar", "tars:TarsSource", (".tar",)),
    Format("parquet", "parquet:ParquetSource", (".parquet",)),
)
TABLE = Format("table", "table:TableSource")
# What --labels can be, for the images of a folder or archive, by its suffix; else it is a table.
LABELS = {".json": next(row for row in FORMATS if row.name == "coco")}


def format_names() -> list[str]:
    """What --from takes."""
    return [form.name for form in FORMATS]


def open_source(
    root: str | Path | URL,
    labels: str | Path | None = None,
    columns: Columns | None = None,
    form: str | None = None,
    no_labels: bool = False,
    no_splits: bool = False,
    out: str | Path | None = None,
) -> Source:
    """The source for what the user named: `form` where it is given, else by its name, else by what it holds.

    labels: a table of paths, COCO's JSON, or for an `.npy` of images one of labels.
    columns: names of columns, arrays or keys by what they hold.
    no_labels: images alone, wherever in a folder or archive they lie, or those of a file or of shards.
    no_splits: the splits that the source itself has are ignored.
    out: the output folder, whose files are not samples.

    Raises:
        ArgumentError: options contradict each other, or this kind of source does not take one.
        SourceError: `root` is a file of unknown kind.
    """
    if scheme_of(labels) is not None and Path(str(labels)).suffix.lower() in LABELS:
        raise SourceError(f"--labels {without_secrets(labels)}: {why_not_local(labels)}. {ELSEWHERE}")
    for given in (root, labels):
        if isinstance(given, str | Path) and scheme_of(given) is None:
            _refuse_device(Path(given))
    files, path = open_files(root), as_location(root)
    path = path if isinstance(path, URL) else Path(path)
    if out is not None and isinstance(files, Folder):
        files.leave_out(out)
    if no_labels:
        _check_alone(labels, columns)
    found = _by_name(path) if form is None else _named(form)
    if labels is not None and found in (None, FORMATS[0]):
        found = LABELS.get(Path(labels).suffix.lower(), TABLE)
    elif no_labels:
        found, files = _images_alone(found, files)
    elif found is None:
        found, files = _by_content(files)
    source = found.open(path, files, labels, columns)
    if form == "folder":
        source.sure = True  # type: ignore[attr-defined]
    if no_splits:
        source.own_splits = False
    if no_labels and not found.holds_files:
        source.images_alone = True
    return source


def _check_alone(labels: object, columns: Columns | None) -> None:
    """Raises ArgumentError if labels or fields are asked for as well."""
    if labels is not None:
        raise ArgumentError("--no-labels packs images alone, --labels says what belongs to them: give one of them")
    if said := sorted(set(columns or ()) - {"image", "path", SPLIT}):
        raise ArgumentError(f"--no-labels packs images alone, --column {said[0]}= names a field: give one of them")


def _images_alone(found: Format | None, files: Files) -> tuple[Format, Files]:
    unlabeled = _named("unlabeled")
    if found is None:
        inside, begin = _by_content(files)
        return (unlabeled, files) if inside.holds_files else (inside, begin)
    if found.holds_files and found not in (FORMATS[0], unlabeled):
        raise ArgumentError(
            f"--no-labels packs images alone, --from {found.name} what lies beside them: give one of them"
        )
    return (unlabeled if found.holds_files else found), files


def _refuse_device(path: Path) -> None:
    """Raises SourceError for a pipe, on which reading would wait for a writer, a device or a socket."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return  # its source says so
    except OSError as error:  # such as links in a circle
        raise SourceError(f"{path}: cannot be opened ({error.strerror}). Give a folder or a file") from None
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise SourceError(
            f"{path}: is neither a file nor a folder, but a device, pipe or socket. Give a folder or a file"
        )


def _named(name: str) -> Format:
    for form in FORMATS:
        if form.name == name:
            return form
    raise ArgumentError(f"--from is one of {', '.join(format_names())}; got {name!r}")


def _by_name(path: Path | URL) -> Format | None:
    """The format with this suffix; None if several are possible."""
    suffix = path.suffix.lower()
    for form in FORMATS:
        if suffix in form.suffixes:
            return form
    if isinstance(path, Path) and path.is_file() and suffix not in ARCHIVES:
        raise SourceError(f"{path}: {_about_unknown(path)}")
    return None


def _about_unknown(path: Path) -> str:
    """What kind of unsupported file this is, by its name, and what to do."""
    for name, advice in _UNKNOWN:
        if re.fullmatch(name, path.name, re.IGNORECASE):
            return advice.format(path=path, name=path.name, folder=path.parent, by_program=_BY_PROGRAM)
    return (
        f"is of an unknown kind. Name it with --from: {', '.join(format_names())}. Or read it "
        "in a program of yours: gpuload.pack() takes dicts"
    )


_CIFAR = r"data_batch_\d|test_batch|batches\.meta"
_BY_PROGRAM = (
    "Load it in a program, as torchvision.datasets or its library does, and hand the samples to gpuload.pack(), such "
    'as pack(({"image": image, "label": label} for image, label in loaded), out)'
)
# Names of files that cannot be packed by themselves, and what to do instead.
_UNKNOWN = (
    (rf".*\.({'|'.join(sorted(IMAGE_EXTENSIONS))})", "is a single image. Give the folder in which it lies, {folder}"),
    (
        r".*\.(csv|tsv|jsonl|ndjson|json|txt|xml)",
        "describes images but does not hold them. Give the folder of the images, and --labels {path}",
    ),
    (
        rf".*({'|'.join(map(re.escape, COMPRESSED_TARS))})",
        "is a compressed tar, which is not supported. Unpack it, as with `tar xf {name}`, and give the folder",
    ),
    (
        r".*[-.]idx[1-4]-ubyte(\.gz)?",
        "is one file of a set such as MNIST. Give its folder, {folder}",
    ),
    (r".*\.arrow", "is one file of what save_to_disk wrote. Give the folder in which it lies, {folder}"),
    (
        rf"{_CIFAR}|.*\.(pkl|pickle|pt|pth|joblib)",
        "is a pickle, which could run anything and is never opened. {by_program}",
    ),
    (r".*\.(tfrecords?|beton|mds|mat)", "is of another library (TensorFlow, FFCV, Streaming or MATLAB). {by_program}"),
    (
        r".*\.(7z|rar|gz|bz2|xz|zst|lz4)",
        "is an archive of an unsupported kind. Unpack it, and give the folder; or pack it again as .zip",
    ),
)


def _by_content(files: Files) -> tuple[Format, Files]:
    """The format, and the container in which it begins: the given one, or a folder that is alone in it."""
    if files.fault():
        return FORMATS[0], files  # whose class will say what is wrong
    if pickled := [name for name in files.names() if re.fullmatch(_CIFAR, name)]:
        raise SourceError(f"{files}: {pickled[0]} {_about_unknown(Path(pickled[0]))}")
    if (form := _held(files)) is None:
        inner = _unwrapped(files)
        return _held(inner) or FORMATS[0], inner
    return form, files


def _held(files: Files) -> Format | None:
    return next((form for form in FORMATS if form.made.fits(files)), None)


def _unwrapped(files: Files) -> Files:
    """The folder in which a data set begins, inside folders that hold nothing else; else the container.

    A folder with folders of splits is a data set, too; one with class folders is not, since a single folder around
    images is a class.
    """
    inner = files
    for _ in range(_MOST_AROUND):
        folders = inner.folders() if isinstance(inner, Folder) else []
        holds_images = any(extension_of(name) in IMAGE_EXTENSIONS for name in inner.names())
        if len(folders) != 1 or split_called(folders[0]) or holds_images or not isinstance(inner, Folder):
            break
        inner = inner.inside(folders[0])
        if _held(inner) is not None or any(split_called(name) for name in inner.folders()):
            return inner
    return files
