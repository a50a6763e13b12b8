"""The sources that are installed, and which one the user means.

A new one of gpuload's own is a file with its class and a row in `BUILT_IN`, and one in `LABELS`, if it describes the
images of a folder and is given with --labels; one of another package is an entry point.
"""

import posixpath
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from itertools import islice
from pathlib import Path
from typing import Any

from gpuload.checks import check_option, choice
from gpuload.errors import ArgumentError, MissingPackageError, SourceError, some_of
from gpuload.machine.plugins import Plugin, plugins
from gpuload.sources.archives import is_archive_at, open_archive, open_archive_at
from gpuload.sources.files import (
    ARCHIVES,
    ELSEWHERE,
    Files,
    Folder,
    OneFile,
    lone_folder,
)
from gpuload.sources.listing import SPLIT, split_called
from gpuload.sources.numbering import read_classes
from gpuload.sources.source import (
    CERTAIN,
    FALLBACK,
    FilesSource,
    Names,
    Sight,
    Source,
    SourceOptions,
    located,
    open_files,
)
from gpuload.sources.survey import KINDS, AnnotationFile, kind_of_file, survey
from gpuload.store.url import URL, scheme_of, without_secrets

Columns = Mapping[str, Names]

TAR_SUFFIX = ".tar"
_MOST_FOLDERS = 1_000  # that are looked into for images
GROUP = "gpuload.sources"
# gpuload's own, as entry points of other packages declare theirs.
BUILT_IN = {
    "folder": "gpuload.sources.folder:FolderSource",
    "sidecar": "gpuload.sources.folder:SidecarSource",
    "unlabeled": "gpuload.sources.folder:UnlabeledSource",
    "voc": "gpuload.sources.voc:VocSource",
    "coco": "gpuload.sources.coco:CocoSource",
    "yolo": "gpuload.sources.yolo:YoloSource",
    "boxes": "gpuload.sources.drawn_table:BoxTableSource",
    "cvat": "gpuload.sources.drawn_text:CvatSource",
    "labelme": "gpuload.sources.drawn_json:LabelMeSource",
    "labelme-xml": "gpuload.sources.drawn_text:LabelMeXmlSource",
    "label-studio": "gpuload.sources.label_studio:LabelStudioSource",
    "via": "gpuload.sources.drawn_json:ViaSource",
    "datumaro": "gpuload.sources.drawn_json:DatumaroSource",
    "fiftyone": "gpuload.sources.drawn_json:FiftyOneSource",
    "ndjson": "gpuload.sources.drawn_json:NdjsonSource",
    "createml": "gpuload.sources.drawn_json:CreateMlSource",
    "bdd": "gpuload.sources.drawn_json:BddSource",
    "crowdhuman": "gpuload.sources.drawn_json:CrowdHumanSource",
    "kitti": "gpuload.sources.drawn_text:KittiSource",
    "visdrone": "gpuload.sources.drawn_text:VisDroneSource",
    "dota": "gpuload.sources.drawn_text:DotaSource",
    "wider": "gpuload.sources.drawn_text:WiderSource",
    "mot": "gpuload.sources.drawn_text:MotSource",
    "masks": "gpuload.sources.mask_folders:MaskFoldersSource",
    "hdf5": "gpuload.sources.arrays:Hdf5Source",
    "lmdb": "gpuload.sources.stores.lmdb:LmdbSource",
    "npy": "gpuload.sources.arrays:ArraysSource",
    "tar": "gpuload.sources.tars:TarsSource",
    "parquet": "gpuload.sources.stores.parquet:ParquetSource",
    "arrow": "gpuload.sources.stores.arrow:ArrowSource",
    "saved": "gpuload.sources.stores.arrow:SavedDatasetSource",
    "mds": "gpuload.sources.stores.mds:MdsSource",
    "litdata": "gpuload.sources.stores.litdata:LitDataSource",
    "beton": "gpuload.sources.stores.beton:BetonSource",
    "tfrecord": "gpuload.sources.stores.tfrecord:TfRecordSource",
    "array_record": "gpuload.sources.stores.tfrecord:ArrayRecordSource",
    "recordio": "gpuload.sources.stores.recordio:RecordIoSource",
    "lance": "gpuload.sources.stores.lance:LanceSource",
    "duckdb": "gpuload.sources.stores.duckdb:DuckDbSource",
    "zarr": "gpuload.sources.stores.zarr:ZarrSource",
    "ome_zarr": "gpuload.sources.stores.zarr:OmeZarrSource",
    "table": "gpuload.sources.table:TableSource",
}
# What --labels can be, for the images of a folder, by its suffix; else it is a table.
LABELS = {".json": "coco"}


@dataclass(frozen=True)
class Recognised:
    """A source that was found for a place.

    Args:
        name: Of its plug-in.
        kind: The class.
        files: Where it begins: the place, or a folder inside it.
        reason: What it sees there.
        uses: Names of the files of annotations that it reads.
    """

    name: str
    kind: type[Source]
    files: Files
    reason: str = "--from names it"
    uses: Names = ()

    @property
    def holds_files(self) -> bool:
        """Whether its images are files of a container."""
        return issubclass(self.kind, FilesSource)


def sources() -> dict[str, Plugin]:
    """The sources that are installed, by the names that `--from` takes."""
    return plugins(GROUP, BUILT_IN)


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
    options: Mapping[str, Any] | None = None,
    classes: str | Path | None = None,
) -> Source:
    """The source for what the user named: `form` where it is given, else the one that recognises it best.

    Args:
        root: A file, a folder, an archive or a URL.
        labels: A table of paths, COCO's JSON, or for an `.npy` of images one of labels.
        columns: Names of columns, arrays or keys by what they hold.
        form: The name of a source, as `--from` takes it.
        no_labels: Images alone, wherever in a folder they lie, or those of a file or of shards.
        no_splits: The splits that the source itself has are ignored.
        negatives: Images without an annotation are images without an object, where that is an error else.
        out: The output folder, whose files are not samples.
        zip_encoding: Of the names in a zip archive that are not UTF-8, such as "gbk".
        options: Other options of the source, by name.
        classes: A file with the names of all classes, that of class 0 first; without, numbers are the source's own.

    Raises:
        ArgumentError: options contradict each other, or this kind of source does not take one.
        SourceError: no source recognises `root`, or several do.
    """
    if form is not None:
        check_option("--from", form, choice(*sources()))
    if no_labels:
        _refuse_labels(labels, columns)
    _check_labels(labels)
    _refuse_device(root)
    if zip_encoding is not None:
        _check_encoding(root, zip_encoding)
    path = located(root)
    files = _container(root, path, form, zip_encoding)
    if out is not None:
        files.leave_out(out)
    recognised = _choose(files, form, labels, no_labels)
    if no_labels and recognised.holds_files:
        recognised = _unlabeled(files, form)
    all_options = {
        "labels": labels,
        "columns": columns,
        "negatives": negatives,
        **(options or {}),
    }
    chosen_options = {name: value for name, value in all_options.items() if value}
    _check_options(path, recognised, chosen_options)
    place: Any = recognised.files
    if not recognised.holds_files:
        place = _path_of(recognised.files, path)
    return recognised.kind(
        place,
        own_splits=not no_splits,
        images_alone=no_labels and not recognised.holds_files,
        named=form == recognised.name,
        classes=() if classes is None else read_classes(classes),
        **chosen_options,
    )


def parse_options(entries: Sequence[str]) -> dict[str, Any]:
    """Parses `--option NAME=VALUE`: yes and no are flags, whole numbers and others are numbers, else it is a text.

    Raises:
        ArgumentError: an entry has another form, or a name comes twice.
    """
    options = dict[str, Any]()
    for entry in entries:
        name, equals, text = entry.partition("=")
        if not name.isidentifier() or not equals:
            raise ArgumentError(f"--option {entry}: write NAME=VALUE")
        if name in options:
            raise ArgumentError(f"--option {entry}: {name!r} is given twice. Give one")
        options[name] = _parsed(text)
    return options


_WORDS = {"yes": True, "true": True, "no": False, "false": False}


def _parsed(text: str) -> Any:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text


def _refuse_labels(labels: str | Path | None, columns: Columns | None) -> None:
    """Raises ArgumentError if the user says what belongs to images that are packed alone."""
    if labels or set(columns or ()) - {"image", "path", SPLIT}:
        raise ArgumentError(
            "--no-labels packs images alone; --labels and --column say what belongs to them. Give one"
        )


def _check_labels(labels: str | Path | None) -> None:
    """Raises SourceError for labels that are no regular file, or COCO's JSON at a URL."""
    if labels is None:
        return
    if scheme_of(labels) is None:
        _refuse_device(labels)
    elif Path(str(labels)).suffix.lower() in LABELS:
        raise SourceError(
            f"--labels {without_secrets(labels)}: is a URL, expected a path. {ELSEWHERE}"
        )


_OPTIONS = {"labels": "--labels", "columns": "--column", "negatives": "--negatives"}


def _check_options(
    path: object, recognised: Recognised, options: Mapping[str, Any]
) -> None:
    """Raises ArgumentError if the source does not take one of the options."""
    names = [option.name for option in fields(recognised.kind.Options)]
    for name in options:
        if name in names:
            continue
        packed = f"{path} is packed as {recognised.name!r}"
        if name == "negatives":
            raise ArgumentError(
                f"--negatives: {packed}, where it has no meaning; it is for Pascal VOC (--from voc). Leave it out"
            )
        if name in _OPTIONS:
            raise ArgumentError(
                f"{_OPTIONS[name]}: {packed}, which takes none. Leave it out, or give --labels table.csv and --from "
                "folder"
            )
        special = [option for option in names if option not in _COMMON]
        takes = f"has {some_of(special)}" if special else "has none"
        raise ArgumentError(f"--option {name}=: {packed}, which {takes}. Correct it")


_COMMON = {option.name for option in fields(SourceOptions)}


def _path_of(files: Files, path: Path | URL) -> Path | URL:
    """Where a source that is read by its path begins."""
    return files.path if isinstance(files, Folder) else path


def _unlabeled(files: Files, form: str | None) -> Recognised:
    """The source of images alone.

    Raises:
        ArgumentError: `form` names a source of images with something beside them.
    """
    if form not in (None, "folder", "unlabeled"):
        raise ArgumentError(
            f"--no-labels packs images alone, --from {form} what lies beside them: give one"
        )
    return Recognised("unlabeled", sources()["unlabeled"].load(), files)


def _choose(
    files: Files, form: str | None, labels: str | Path | None, no_labels: bool
) -> Recognised:
    """The source of a container, and the folder in it in which it begins."""
    if form is not None and not (labels and form == "folder"):
        kind = sources()[form].load()
        begins = files
        if issubclass(kind, FilesSource) and not files.fault():
            begins = _begin_of(files, form, kind)
        return Recognised(form, kind, begins)
    if labels is not None:
        sight = None if form else _by_mark(files)
        if sight is not None:
            return sight
        name = _kind_of_labels(labels)
        return Recognised(name, sources()[name].load(), files)
    return _recognise(files, ask=not no_labels)


def _container(
    root: str | Path | URL, path: Path | URL, form: str | None, zip_encoding: str | None
) -> Files:
    """What holds the files of a source. A tar is one where it is no shard of WebDataset, or the user says so."""
    may_hold_files = form is None or _holds_files(form)
    archive: Files | None = None
    if isinstance(path, URL):
        if is_archive_at(path) and may_hold_files:
            archive = open_archive_at(path, zip_encoding)
    elif path.is_file():
        is_tar = path.suffix.lower() == TAR_SUFFIX
        archive = (
            _tar(path, form)
            if is_tar
            else open_archive(path, may_hold_files, zip_encoding)
        )
    if archive is not None:
        return archive
    if path.suffix.lower() not in ARCHIVES and _is_one_file(path):
        return OneFile(path)
    return open_files(root, zip_encoding)


def _tar(path: Path, form: str | None) -> Files:
    """A tar as a container of files, or as a single file, which a source of shards reads."""
    from gpuload.sources.tar_archive import TarArchive, is_plain_tar

    is_container = is_plain_tar(path) if form is None else _holds_files(form)
    return TarArchive(path) if is_container else OneFile(path)


def _holds_files(form: str) -> bool:
    """Whether a source reads files of a container."""
    return issubclass(sources()[form].load(), FilesSource)


def _is_one_file(path: Path | URL) -> bool:
    """Whether a path is that of a file, or nothing is there but its name is that of one; of a URL, whether its name
    tells a source, so that it need not be listed as a folder."""
    if isinstance(path, Path):
        return path.is_file() or bool(path.suffix and not path.exists())
    return bool(_sights(OneFile(path)))


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


def _refuse_device(place: str | Path | URL) -> None:
    """Raises SourceError for a pipe, on which reading would wait for a writer, a device or a socket."""
    if isinstance(place, URL) or scheme_of(place) is not None:
        return
    path = Path(place)
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


def _kind_of_labels(labels: str | Path) -> str:
    """The source for what --labels names, by its suffix; of a table of objects, by its columns."""
    suffix = Path(str(labels)).suffix.lower()
    if suffix in (".csv", ".tsv") and scheme_of(labels) is None:
        table = Path(labels)
        if table.is_file() and kind_of_file(OneFile(table), table.name) == "boxes":
            return "boxes"
    return LABELS.get(suffix, "table")


def _sights(files: Files) -> list[tuple[Sight, Recognised]]:
    """What each source sees in a container, the surest first."""
    seen = list[tuple[Sight, Recognised]]()
    absent = _absent_tools(files)
    for name, plugin in sources().items():
        if name in absent:
            continue
        try:
            kind = plugin.load()
        except MissingPackageError as error:
            warnings.warn(str(error), stacklevel=2)
            continue
        sight = kind.recognise(files)
        if sight is not None:
            source = Recognised(name, kind, files, sight.reason, sight.uses)
            seen.append((sight, source))
    return sorted(seen, key=lambda pair: -pair[0].confidence)


def _absent_tools(files: Files) -> set[str]:
    """The sources of gpuload's own that a place says nothing to, since no file of their annotation tools lies there."""
    of_tools = {kind.form for kind in KINDS.values() if kind.tells}
    return of_tools - {KINDS[sheet.kind].form for sheet in survey(files)}


def _by_mark(files: Files) -> Recognised | None:
    """The source that is certain of a place, and is not one of files; None if there is none."""
    for sight, source in _sights(files):
        if sight.confidence >= CERTAIN and not source.holds_files:
            return source
    return None


def _recognise(files: Files, ask: bool) -> Recognised:
    """The source that is surest of a container, or of a folder that is alone in it.

    A folder with folders of splits is a data set, too; one with class folders is not, since a single folder around
    images is a class.

    Args:
        ask: Whether files of annotations that this source does not use are an error.

    Raises:
        SourceError: see `ask`; or no source recognises it, or two are equally sure.
    """
    fallback = Recognised(
        "folder", sources()["folder"].load(), files, "a folder of class folders"
    )
    if isinstance(files, OneFile):
        return _recognise_file(files) or fallback
    if files.fault():
        return fallback  # which will say what is wrong
    for inner in _nested(files):
        seen = [pair for pair in _sights(inner) if pair[0].confidence > FALLBACK]
        is_set = inner is not files and any(map(split_called, inner.folders()))
        if not seen and not is_set:
            continue
        best = seen[0][1] if seen else replace(fallback, files=inner)
        if ask:
            _refuse_tie(inner, seen)
            if best.holds_files:
                _refuse_unused(inner, best)
            else:
                _refuse_class_folders(inner, best)
        return best
    if ask:
        _refuse_unused(files, fallback)
    return fallback


def _recognise_file(file: OneFile) -> Recognised | None:
    """The source of a single file; None if there is no such file, whose name says nothing.

    Raises:
        SourceError: no source recognises it, or two are equally sure.
    """
    seen = _sights(file)
    if seen:
        _refuse_tie(file, seen)
        return seen[0][1]
    if not file.exists:
        return None
    fault = f"is not a file that is packed by itself. Name its kind with --from ({', '.join(sources())})"
    raise SourceError(
        f"{file}: {fault}, give its folder, or pass its samples to gpuload.pack() from a program"
    )


def _refuse_tie(files: Files, seen: Sequence[tuple[Sight, Recognised]]) -> None:
    """Raises SourceError if several sources are equally sure."""
    ways = [
        f"--from {source.name} ({source.reason})"
        for sight, source in seen
        if sight.confidence == seen[0][0].confidence
    ]
    if len(ways) > 1:
        raise SourceError(
            f"{files}: several sources recognise it equally well. Give {' or '.join(ways)}"
        )


def _refuse_class_folders(files: Files, form: Recognised) -> None:
    """Raises SourceError if folders of images lie beside a store, which would not be packed."""
    folders = islice(files.folders(), _MOST_FOLDERS)
    holding = [folder for folder in folders if files.images(folder)]
    if len(holding) > 1:
        fault = f"{form.reason}, and images in the folders {some_of(holding)}"
        raise SourceError(
            f"{files}: {fault}. Give --from {form.name}, or --from folder for the images"
        )


def _begin_of(files: Files, form: str, kind: type[Source]) -> Files:
    """The container in which a source that the user named begins."""
    for inner in _nested(files):
        sight = kind.recognise(inner)
        if sight is not None and sight.confidence > FALLBACK:
            return inner
        is_set = inner is not files and any(map(split_called, inner.folders()))
        if form == "folder" and is_set:
            return inner
    return files


def _refuse_unused(files: Files, form: Recognised) -> None:
    """Raises SourceError if there are files of annotations that the format does not use."""
    unused = [
        sheet
        for sheet in survey(files)
        if sheet.kind not in form.kind.uses and sheet.name not in form.uses
    ]
    if not unused:
        return
    order = list(KINDS)
    first = min(unused, key=lambda sheet: order.index(sheet.kind))
    fault = f"holds {first.name!r}, {KINDS[first.kind].title}, which {form.name!r} would not use"
    ways = _ways_to_use(files, first)
    if form.name == "folder":
        ways += [
            "--from folder to pack class folders without it",
            "--no-labels to pack the images alone",
        ]
    else:
        ways.append(f"--from {form.name} to pack without it")
    raise SourceError(f"{files}: {fault}. Give {', or '.join(ways)}")


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
    if not files.images(place) and place != lone_folder(files):
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
