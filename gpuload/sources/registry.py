"""Which kinds of sources there are, and which one the user means.

A new kind is a file with its class and a row in `FORMATS`, and one in `LABELS`, if it describes the images of a folder
or archive and is given with --labels.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name

from gpuload.errors import ArgumentError, SourceError
from gpuload.sources.files import ARCHIVES, COMPRESSED_TARS, ELSEWHERE, IMAGE_EXTENSIONS, Files, Folder, open_files
from gpuload.sources.files.source import FilesSource
from gpuload.sources.layout import unwrapped
from gpuload.sources.listing import Source
from gpuload.sources.splits import SPLIT
from gpuload.store.url import URL, as_location, scheme_of, why_not_local, without_secrets

Columns = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class Format:
    """One kind of source.

    source: module and class below `gpuload.sources`. The module is imported when it is needed: some need packages that
        others do not, or take long to import.
    suffixes: of the names of its files and folders.
    holds: whether a folder or archive, whose name says nothing, holds one of these.
    labels, columns: whether the class takes --labels, as its second argument, and --column, as `columns`.
    alone: whether it heeds `Source.images_alone`, for --no-labels.
    remote: whether it can be at a URL, as every class that takes files can.
    """

    name: str
    source: str
    suffixes: tuple[str, ...] = ()
    holds: Callable[[Files], bool] = lambda files: False
    labels: bool = False
    columns: bool = False
    alone: bool = False
    remote: bool = False

    def open(self, root: Path | URL, files: Files, labels: str | Path | None, columns: Columns | None) -> Source:
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
        if isinstance(root, URL) and not (issubclass(made, FilesSource) or self.remote):
            raise SourceError(f"{root}: is a URL, and {self.name!r} is read from local files alone. {ELSEWHERE}")
        first = files if issubclass(made, FilesSource) else files.path if isinstance(files, Folder) else root
        source: Source = made(
            first, *([labels] if labels is not None else []), **({"columns": columns} if columns else {})
        )
        return source


def _fits(source: str) -> Callable[[Files], bool]:
    """What a class itself says of a container; its module is imported when it is asked."""
    return lambda files: bool(resolve_name(f"gpuload.sources.{source}").fits(files))


def _lmdb(files: Files) -> bool:
    return isinstance(files, Folder) and (files.path / "data.mdb").exists()


# What SOURCE can be. Where neither --from nor its name tells, it is the first row that it holds, else the first row.
FORMATS = (
    Format("folder", "folder:FolderSource"),
    Format("sidecar", "sidecar:SidecarSource"),
    Format("unlabeled", "unlabeled:UnlabeledSource"),
    Format("voc", "voc:VocSource", holds=_fits("voc:VocSource")),
    Format("coco", "coco:CocoSource", holds=_fits("coco:CocoSource"), labels=True),
    Format("hdf5", "hdf5:Hdf5Source", (".h5", ".hdf5", ".hdf"), columns=True, alone=True),
    Format("lmdb", "lmdb_store:LmdbSource", (".mdb", ".lmdb"), _lmdb, columns=True, alone=True),
    Format("npy", "arrays:ArraysSource", (".npy", ".npz"), labels=True, columns=True, alone=True),
    Format("tar", "tars:TarsSource", (".tar",), _fits("tars:TarsSource"), alone=True, remote=True),
    Format(
        "parquet",
        "parquet:ParquetSource",
        (".parquet",),
        _fits("parquet:ParquetSource"),
        columns=True,
        alone=True,
        remote=True,
    ),
)

TABLE = Format("table", "table:TableSource", labels=True, columns=True)
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
    out: the folder that is packed into, whose files are no samples.

    Raises:
        ArgumentError: options contradict each other, or this kind of source does not take one.
        SourceError: `root` is a file of unknown kind.
    """
    if scheme_of(labels) is not None and Path(str(labels)).suffix.lower() in LABELS:
        raise SourceError(f"--labels {without_secrets(labels)}: {why_not_local(labels)}. {ELSEWHERE}")
    files, path = open_files(root), as_location(root)
    path = path if isinstance(path, URL) else Path(path)
    if out is not None and isinstance(files, Folder):
        files.leave_out(out)
    found = _by_name(path) if form is None else _named(form)
    if no_labels:
        if labels is not None:
            raise ArgumentError("--no-labels packs images alone, --labels says what belongs to them: give one of them")
        if found is None and (inside := _by_content(files))[0].alone:
            found, files = inside
        elif found in (None, _named("folder")):
            found = _named("unlabeled")
        elif not found.alone and found != _named("unlabeled"):
            raise ArgumentError(
                f"--no-labels packs images alone, --from {found.name} what lies beside them: give one of them"
            )
        if said := sorted(set(columns or ()) - {"image", "path", SPLIT}):
            raise ArgumentError(f"--no-labels packs images alone, --column {said[0]}= names a field: give one of them")
    elif labels is not None and found in (None, _named("folder")):
        found = LABELS.get(Path(labels).suffix.lower(), TABLE)
    if found is None:
        found, files = _by_content(files)
    source = found.open(path, files, labels, columns)
    if form == "folder":
        source.sure = True  # type: ignore[attr-defined]
    if no_splits:
        source.own_splits = False
    if no_labels and found.alone:
        source.images_alone = True
    return source


def _named(name: str) -> Format:
    for form in FORMATS:
        if form.name == name:
            return form
    raise ArgumentError(f"--from is one of {', '.join(format_names())}; got {name!r}")


def _by_name(path: Path | URL) -> Format | None:
    """The format with this suffix; None for what may be of several."""
    suffix = path.suffix.lower()
    for form in FORMATS:
        if suffix in form.suffixes:
            return form
    if isinstance(path, Path) and path.is_file() and suffix not in ARCHIVES:
        raise SourceError(f"{path}: {_about_unknown(path)}")
    return None


def _about_unknown(path: Path) -> str:
    """What a file is that is not packed, by its name, and what to do."""
    folder, name = path.parent, path.name.lower()
    extension = path.suffix.lower()[1:]
    if extension in IMAGE_EXTENSIONS:
        return f"is a single image. Give the folder in which it lies, {folder}"
    if name.endswith(_TABLES):
        return f"tells of images, but is no source of them. Give the folder of the images, and --labels {path}"
    if name.endswith(COMPRESSED_TARS):
        return f"is a compressed tar, which is not read. Unpack it, as with `tar xf {path.name}`, and give the folder"
    if extension in _OTHER_ARCHIVES:
        return "is an archive of a kind that is not read. Unpack it, and give the folder; or pack it again as .zip"
    return f"is a file of a kind that is not known. Say with --from what it is: {', '.join(format_names())}"


_TABLES = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".txt", ".xml")
_OTHER_ARCHIVES = ("7z", "rar", "gz", "bz2", "xz", "zst", "lz4")


def _by_content(files: Files) -> tuple[Format, Files]:
    """The format, and the container in which it begins: perhaps a folder that is alone in the given one."""
    if files.fault():
        return FORMATS[0], files  # whose class will say what is wrong
    if (form := _held(files)) is None:
        inner = unwrapped(files, lambda inside: _held(inside) is not None)
        return _held(inner) or FORMATS[0], inner
    return form, files


def _held(files: Files) -> Format | None:
    return next((form for form in FORMATS if form.holds(files)), None)
