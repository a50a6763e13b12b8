"""Which kinds of sources there are, and which one the user means.

A new kind is a file with its class and a row in `FORMATS`; or in `LABELS`, if it describes the images of a folder or
archive and is given with --labels.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name

from gpuload.errors import ArgumentError, SourceError
from gpuload.sources.files import ARCHIVES, Files, Folder, open_files
from gpuload.sources.files.source import FilesSource
from gpuload.sources.listing import Source

Columns = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class Format:
    """One kind of source.

    source: module and class below `gpuload.sources`. The module is imported when it is needed: some need packages that
        others do not, or take long to import.
    suffixes: of the names of its files and folders; of --labels, for a row of `LABELS`.
    holds: whether a folder or archive, whose name says nothing, holds one of these.
    labels, columns: whether the class takes --labels, as its second argument, and --column, as `columns`.
    """

    name: str
    source: str
    suffixes: tuple[str, ...] = ()
    holds: Callable[[Files], bool] = lambda files: False
    labels: bool = False
    columns: bool = False

    def open(self, root: Path, files: Files, labels: str | Path | None, columns: Columns | None) -> Source:
        """The source at a path; `files` are those in it, for a class that takes files.

        Raises:
            ArgumentError: it takes no labels or columns, and some are given.
        """
        if labels is not None and not self.labels:
            raise ArgumentError(
                f"--labels: {root} is packed as {self.name!r}, which takes no labels from elsewhere. "
                "Leave out --labels, or say with --from folder that its images are meant"
            )
        if columns and not self.columns:
            other = "give it with --labels table.csv" if self == FORMATS[0] else "leave them out"
            raise ArgumentError(
                f"--path-column, --label-column and --column name columns of a table; {self.name!r} has none: {other}"
            )
        made = resolve_name(f"gpuload.sources.{self.source}")
        first = files if issubclass(made, FilesSource) else root
        source: Source = made(
            first, *([labels] if labels is not None else []), **({"columns": columns} if columns else {})
        )
        return source


def _file_in_folder(pattern: str) -> Callable[[Files], bool]:
    return lambda files: isinstance(files, Folder) and next(files.path.glob(pattern), None) is not None


def _voc(files: Files) -> bool:
    from gpuload.sources.voc import VocSource

    return VocSource.fits(files)


# What SOURCE can be. Where neither --from nor its name tells, it is the first row that it holds, else the first row.
FORMATS = (
    Format("folder", "folder:FolderSource"),
    Format("sidecar", "sidecar:SidecarSource"),
    Format("unlabeled", "unlabeled:UnlabeledSource"),
    Format("voc", "voc:VocSource", holds=_voc),
    Format("hdf5", "hdf5:Hdf5Source", (".h5", ".hdf5", ".hdf"), columns=True),
    Format("lmdb", "lmdb_store:LmdbSource", (".mdb", ".lmdb"), _file_in_folder("data.mdb"), columns=True),
    Format("npy", "arrays:ArraysSource", (".npy", ".npz"), labels=True, columns=True),
    Format("tar", "tars:TarsSource", (".tar",), _file_in_folder("*.tar")),
    Format("parquet", "parquet:ParquetSource", (".parquet",), _file_in_folder("*.parquet"), columns=True),
)

# What --labels can be, for the images of a folder or archive: the first row with its suffix, else the last row.
LABELS = (
    Format("coco", "coco:CocoSource", (".json",), labels=True),
    Format("table", "table:TableSource", labels=True, columns=True),
)


def format_names() -> list[str]:
    """What --from takes."""
    return [form.name for form in FORMATS]


def open_source(
    root: str | Path,
    labels: str | Path | None = None,
    columns: Columns | None = None,
    form: str | None = None,
    no_labels: bool = False,
) -> Source:
    """The source for what the user named: `form` where it is given, else by its name, else by what it holds.

    labels: a table of paths, COCO's JSON, or for an `.npy` of images one of labels.
    columns: names of columns, arrays or keys by what they hold.
    no_labels: images alone, wherever in a folder or archive they lie; short for form "unlabeled".

    Raises:
        ArgumentError: options contradict each other, or this kind of source does not take one.
        SourceError: `root` is a file of unknown kind.
    """
    path = Path(root)
    files = open_files(path)
    found = _by_name(path) if form is None else _named(form)
    if no_labels:
        if labels is not None:
            raise ArgumentError("--no-labels packs images alone, --labels says what belongs to them: give one of them")
        if found not in (None, _named("folder"), _named("unlabeled")):
            raise ArgumentError(
                f"--no-labels packs the images of a folder or archive; {path} is packed as {found.name!r}. "
                "Leave out --no-labels"
            )
        found = _named("unlabeled")
    elif labels is not None and found in (None, _named("folder")):
        suffix = Path(labels).suffix.lower()
        found = next((row for row in LABELS if suffix in row.suffixes), LABELS[-1])
    return (found or _by_content(files)).open(path, files, labels, columns)


def _named(name: str) -> Format:
    for form in FORMATS:
        if form.name == name:
            return form
    raise ArgumentError(f"--from is one of {', '.join(format_names())}; got {name!r}")


def _by_name(path: Path) -> Format | None:
    """The format with this suffix; None for what may be of several."""
    suffix = path.suffix.lower()
    for form in FORMATS:
        if suffix in form.suffixes:
            return form
    if path.is_file() and suffix not in ARCHIVES:
        raise SourceError(f"{path}: is a file of a kind that is not known. Say with --from what it is")
    return None


def _by_content(files: Files) -> Format:
    if files.fault():
        return FORMATS[0]  # whose class will say what is wrong
    return next((form for form in FORMATS if form.holds(files)), FORMATS[0])
