"""The kinds of sources, and which one the user means.

A new kind is a file with its class and a row in `FORMATS`, and one in `LABELS`, if it describes the images of a folder
and is given with --labels.
"""

import posixpath
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from pkgutil import resolve_name

from gpuload.checks import check_option, choice
from gpuload.errors import ArgumentError, SourceError
from gpuload.sources.archive import Archive
from gpuload.sources.files import (
    ARCHIVES,
    ELSEWHERE,
    IMAGE_EXTENSIONS,
    Files,
    Folder,
    extension_of,
    lone_folder,
)
from gpuload.sources.listing import SPLIT, split_called
from gpuload.sources.rows import FilesSource, Names, Source, located, open_files
from gpuload.sources.survey import KINDS, AnnotationFile, survey
from gpuload.store.url import URL, scheme_of, without_secrets

Columns = Mapping[str, Names]

TAR_SUFFIX = ".tar"


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
        return resolve_name(f"gpuload.sources.{self.source}")

    @property
    def holds_files(self) -> bool:
        """Whether its images are files of a container."""
        return issubclass(self.made, FilesSource)

    def open(
        self,
        root: Path | URL,
        files: Files,
        labels: str | Path | None,
        columns: Columns | None,
    ) -> Source:
        """The source at a path; `files` are those in it, for a class that takes files.

        Raises:
            ArgumentError: labels or columns are given, and it takes none.
        """
        more = {
            name: given
            for name, given in (("labels", labels), ("columns", columns))
            if given
        }
        if refused := sorted(more.keys() - signature(self.made).parameters.keys()):
            option = {"labels": "--labels", "columns": "--column"}[refused[0]]
            what = f"{root} is packed as {self.name!r}, which takes none"
            raise ArgumentError(
                f"{option}: {what}. Leave it out, or give --labels table.csv and --from folder"
            )
        first = (
            files
            if self.holds_files
            else files.path
            if isinstance(files, Folder)
            else root
        )
        return self.made(first, **more)  # type: ignore[call-arg]


# What SOURCE can be. Without --from or a known suffix, it is the first format that fits, else the first one.
FORMATS = (
    Format("folder", "folder:FolderSource"),
    Format("sidecar", "folder:SidecarSource"),
    Format("unlabeled", "folder:UnlabeledSource"),
    Format("voc", "boxes:VocSource"),
    Format("coco", "coco:CocoSource"),
    Format("yolo", "boxes:YoloSource"),
    Format("hdf5", "arrays:Hdf5Source", (".h5", ".hdf5", ".hdf")),
    Format("lmdb", "records:LmdbSource", (".mdb", ".lmdb")),
    Format("npy", "arrays:ArraysSource", (".npy", ".npz")),
    Format("tar", "tars:TarsSource", (TAR_SUFFIX,)),
    Format("parquet", "records:ParquetSource", (".parquet",)),
)
_BY_NAME = {form.name: form for form in FORMATS}
TABLE = Format("table", "table:TableSource")
# What --labels can be, for the images of a folder, by its suffix; else it is a table.
LABELS = {".json": _BY_NAME["coco"]}


def format_names() -> list[str]:
    """What --from takes."""
    return list(_BY_NAME)


def open_source(
    root: str | Path | URL,
    labels: str | Path | None = None,
    columns: Columns | None = None,
    form: str | None = None,
    no_labels: bool = False,
    no_splits: bool = False,
    negatives: bool = False,
    out: str | Path | None = None,
    zip_encoding: str | None = None,
) -> Source:
    """The source for what the user named: `form` where it is given, else by its name, else by what it holds.

    labels: a table of paths, COCO's JSON, or for an `.npy` of images one of labels.
    columns: names of columns, arrays or keys by what they hold.
    no_labels: images alone, wherever in a folder they lie, or those of a file or of shards.
    no_splits: the splits that the source itself has are ignored.
    negatives: images without an annotation are images without an object, where that is an error else.
    out: the output folder, whose files are not samples.
    zip_encoding: of the names in a zip archive that are not UTF-8, such as "gbk".

    Raises:
        ArgumentError: options contradict each other, or this kind of source does not take one.
        SourceError: `root` is a file of unknown kind.
    """
    if form is not None:
        check_option("--from", form, choice(*_BY_NAME))
    if no_labels and (
        labels is not None or set(columns or ()) - {"image", "path", SPLIT}
    ):
        raise ArgumentError(
            "--no-labels packs images alone; --labels and --column say what belongs to them. Give one"
        )
    suffix = "" if labels is None else Path(str(labels)).suffix.lower()
    if scheme_of(labels) is not None and suffix in LABELS:
        raise SourceError(
            f"--labels {without_secrets(labels)}: is a URL, expected a path. {ELSEWHERE}"
        )
    for given in (root, labels):
        if isinstance(given, str | Path) and scheme_of(given) is None:
            _refuse_device(Path(given))
    if zip_encoding is not None:
        _check_encoding(root, zip_encoding)
    path = located(root)
    files = _container(root, path, form, zip_encoding)
    if out is not None:
        files.leave_out(out)
    begin, found = files, None
    if form is not None:
        found = _BY_NAME[form]
    elif not isinstance(files, Archive):
        found = _by_name(path)
    if form is not None and _BY_NAME[form].holds_files and not files.fault():
        begin = _begin_of(files, _BY_NAME[form])
    if labels is not None and found in (None, FORMATS[0]):
        found = LABELS.get(suffix, TABLE)
    elif found is None:
        begin, found = _by_content(files, ask=not no_labels)
    if no_labels and found.holds_files:
        if form not in (None, "folder", "unlabeled"):
            raise ArgumentError(
                f"--no-labels packs images alone, --from {form} what lies beside them: give one"
            )
        begin, found = files, _BY_NAME["unlabeled"]
    source = found.open(path, begin, labels, columns)
    if form in ("folder", "tar"):
        source.sure = True  # type: ignore[attr-defined]
    if no_splits:
        source.own_splits = False
    if negatives and not hasattr(source, "negatives"):
        what = f"{path} is packed as {found.name!r}, where it has no meaning; it is for Pascal VOC (--from voc)"
        raise ArgumentError(f"--negatives: {what}. Leave it out")
    if negatives:
        source.negatives = True  # type: ignore[attr-defined]
    if no_labels and not found.holds_files:
        source.images_alone = True
    return source


def _container(
    root: str | Path | URL, path: Path | URL, form: str | None, zip_encoding: str | None
) -> Files:
    """What holds the files of a source. A tar is one where it is no shard of WebDataset, or the user says so."""
    if isinstance(path, Path) and path.suffix.lower() == TAR_SUFFIX and path.is_file():
        from gpuload.sources.tar_archive import TarArchive, is_plain_tar

        is_container = (
            is_plain_tar(path) if form is None else _BY_NAME[form].holds_files
        )
        if is_container:
            return TarArchive(path)
    return open_files(root, zip_encoding)


def _check_encoding(root: str | Path | URL, encoding: str) -> None:
    """Raises ArgumentError if Python has no such encoding, or SOURCE is no zip archive."""
    try:
        "".encode(encoding)
    except LookupError:
        expected = "expected one that Python has, such as gbk, shift_jis or cp437"
        raise ArgumentError(f"--zip-encoding: {expected}; got {encoding!r}") from None
    if located(root).suffix.lower() not in ARCHIVES:
        raise ArgumentError(
            f"--zip-encoding is of the names in a zip archive, and SOURCE is {str(root)!r}. Leave it out"
        )


def _refuse_device(path: Path) -> None:
    """Raises SourceError for a pipe, on which reading would wait for a writer, a device or a socket."""
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise OSError(
                None, "is neither a file nor a folder, but a device, pipe or socket"
            )
        path.stat()
    except FileNotFoundError:
        return  # its source says so
    except OSError as error:  # such as links in a circle
        raise SourceError(
            f"{path}: cannot be opened ({error.strerror}). Give a folder or a file"
        ) from None


def _by_name(path: Path | URL) -> Format | None:
    """The format with this suffix; None if several are possible."""
    suffix = path.suffix.lower()
    for form in FORMATS:
        if suffix in form.suffixes:
            return form
    if isinstance(path, Path) and path.is_file() and suffix not in ARCHIVES:
        what = f"is not a file that is packed by itself. Name its kind with --from ({', '.join(_BY_NAME)})"
        raise SourceError(
            f"{path}: {what}, give its folder, or pass its samples to gpuload.pack() from a program"
        )
    return None


def _by_content(files: Files, ask: bool) -> tuple[Files, Format]:
    """The container in which the source begins, the given one or a folder inside it, and the format.

    A folder with folders of splits is a data set, too; one with class folders is not, since a single folder around
    images is a class. ask: whether files of annotations that this format does not use are an error.

    Raises:
        SourceError: see `ask`.
    """
    for inner in (
        () if files.fault() else _nested(files)
    ):  # the class of the first format will say what is wrong
        form = next((form for form in FORMATS if form.made.fits(inner)), None)
        if (
            form is None
            and inner is not files
            and any(map(split_called, inner.folders()))
        ):
            form = FORMATS[0]
        if form is not None:
            if ask and form.holds_files:
                _refuse_unused(inner, form)
            return inner, form
    if ask and not files.fault():
        _refuse_unused(files, FORMATS[0])
    return files, FORMATS[0]


def _begin_of(files: Files, form: Format) -> Files:
    """The container in which a source of a format that the user named begins."""
    for inner in _nested(files):
        if form.made.fits(inner):
            return inner
        if (
            form is FORMATS[0]
            and inner is not files
            and any(map(split_called, inner.folders()))
        ):
            return inner
    return files


def _refuse_unused(files: Files, form: Format) -> None:
    """Raises SourceError if there are files of annotations that the format does not use."""
    unused = [sheet for sheet in survey(files) if sheet.kind not in form.made.uses]
    if not unused:
        return
    order = list(KINDS)
    first = min(unused, key=lambda sheet: order.index(sheet.kind))
    what = f"holds {first.name!r}, {KINDS[first.kind].title}, which {form.name!r} would not use"
    ways = _ways_to_use(files, first)
    if form is FORMATS[0]:
        ways += [
            "--from folder to pack class folders without it",
            "--no-labels to pack the images alone",
        ]
    else:
        ways.append(f"--from {form.name} to pack without it")
    raise SourceError(f"{files}: {what}. Give {', or '.join(ways)}")


def _ways_to_use(files: Files, sheet: AnnotationFile) -> list[str]:
    """The options that use a file of annotations."""
    form = KINDS[sheet.kind].form
    if form and form != "labels":
        return [f"--from {form} to use it"]
    if sheet.kind == "list":
        return []
    if not form:
        return [
            "COCO's JSON or YOLO's texts instead, into which other programs convert it"
        ]
    if not isinstance(files, Folder):
        return [f"--labels and a copy of {sheet.name!r} outside to use it"]
    labels = f"--labels {files}/{sheet.name} to use it"
    place = posixpath.dirname(sheet.name)
    holds_images = any(
        extension_of(name) in IMAGE_EXTENSIONS for name in files.names(place)
    )
    if not holds_images and place != lone_folder(files):
        place = ""
    if place or files.around:
        labels = f"{files.path / place} as SOURCE and {labels}"
    return [labels]


def _nested(files: Files) -> Iterator[Files]:
    """The container, then each folder that is alone, but for files that are no images, in the one around it."""
    yield files
    while isinstance(files, Folder) and (folder := lone_folder(files)):
        files = files.inside(folder)
        yield files
