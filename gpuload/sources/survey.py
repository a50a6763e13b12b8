"""What describes the images of a container: files of annotations, told by their content and by the images beside them.

Recognition rests on it. A source uses some kinds of these files; one that it does not use is a question to the user,
since packing without it would lose what somebody wrote down about the images.
"""

import posixpath
import re
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from typing import NamedTuple
from weakref import WeakKeyDictionary

from gpuload.errors import DecodeError
from gpuload.formats import image_extensions
from gpuload.sources.annotations import resemble_boxes
from gpuload.sources.files import Files, Folder, extension_of, is_image, read_at
from gpuload.sources.listing import words_of_splits


class AnnotationKind(NamedTuple):
    """A kind of files of annotations.

    Attributes:
        title: What messages call it.
        form: The format of sources that reads them; "labels" for those that are given by that option, "" for those that
            nothing reads.
        tells: Whether that source recognises a place by such files alone, so that it is imported only where there
            are some.
    """

    title: str
    form: str = ""
    tells: bool = False


KINDS = {
    "coco": AnnotationKind("COCO's JSON", "labels"),
    "labelme": AnnotationKind("LabelMe's JSON", "labelme", tells=True),
    "label-studio": AnnotationKind(
        "Label Studio's annotations", "label-studio", tells=True
    ),
    "via": AnnotationKind("VIA's JSON", "via", tells=True),
    "datumaro": AnnotationKind("Datumaro's JSON", "datumaro", tells=True),
    "fiftyone": AnnotationKind("FiftyOne's JSON", "fiftyone", tells=True),
    "ndjson": AnnotationKind("Ultralytics' NDJSON", "ndjson", tells=True),
    "createml": AnnotationKind("Create ML's JSON", "createml", tells=True),
    "bdd": AnnotationKind("BDD100K's JSON", "bdd", tells=True),
    "crowdhuman": AnnotationKind("CrowdHuman's boxes", "crowdhuman", tells=True),
    "voc": AnnotationKind("Pascal VOC's XML", "voc"),
    "cvat": AnnotationKind("CVAT's XML", "cvat", tells=True),
    "xml": AnnotationKind("XML about images"),
    "yolo": AnnotationKind("YOLO's boxes", "yolo"),
    "labelme-xml": AnnotationKind("LabelMe's XML", "labelme-xml", tells=True),
    "kitti": AnnotationKind("KITTI's objects", "kitti", tells=True),
    "visdrone": AnnotationKind("VisDrone's boxes", "visdrone", tells=True),
    "dota": AnnotationKind("DOTA's turned boxes", "dota", tells=True),
    "wider": AnnotationKind("WIDER FACE's boxes", "wider", tells=True),
    "mot": AnnotationKind("boxes of MOTChallenge", "mot", tells=True),
    "boxes": AnnotationKind("a table of objects", "boxes", tells=True),
    "table": AnnotationKind("a table of images", "labels"),
    "json": AnnotationKind("JSON about images"),
    "json beside": AnnotationKind("JSON about images", "sidecar"),
    "text": AnnotationKind("a text beside an image", "sidecar"),
    "list": AnnotationKind("a list of images"),
}

# Columns of tables with a row for each object, in lower case: those of a box, with whether it is x y width height, and
# one of runs of a mask.
BOX_COLUMNS: tuple[tuple[tuple[str, ...], bool], ...] = (
    (("xmin", "ymin", "xmax", "ymax"), False),
    (("x_min", "y_min", "x_max", "y_max"), False),
    (("x1", "y1", "x2", "y2"), False),
    (("x", "y", "width", "height"), True),
    (("bbox",), True),
)
RUN_COLUMNS = ("encodedpixels", "rle")
CLASS_FLAGS = re.compile(
    r"(^|/)_classes\.csv$"
)  # Roboflow's table of columns of 0 and 1

_EXTENSIONS = ("json", "xml", "txt", "csv", "tsv", "jsonl", "ndjson", "odgt")
_MOST_FOLDERS = 64  # that are looked into, those nearest to the top
_MOST_FILES = 64  # of an extension
_MOST_OF_A_FOLDER = 4  # files of an extension
_END_BYTES = 256 << 10  # at both ends of a large file, which are read
_LINES = 50

_QUOTED = re.compile(r'"([^"\\]{1,200})"')
# The keys by which the JSON of a tool is known. The first kind whose keys are all there is meant.
_JSON_KEYS = (
    ("labelme", ("shapes", "imagePath", "imageWidth")),
    ("via", ("shape_attributes", "region_attributes")),
    ("label-studio", ("original_width", "original_height")),
    ("label-studio", ("from_name", "to_name", "result")),
    ("label-studio", ("image", "annotator", "annotation_id")),
    ("datumaro", ("dm_format_version", "items")),
    ("datumaro", ("categories", "items", "annotations", "label_id")),
    ("fiftyone", ("samples", "filepath", "_cls")),
    ("createml", ("image", "annotations", "coordinates", "label")),
    ("bdd", ("name", "labels", "category", "box2d")),
    ("bdd", ("name", "labels", "category", "poly2d")),
)
_FIFTYONE = re.compile(r'\{\s*"classes":\s*(null|\[[^\]]*\]),\s*"labels":\s*\{')
# Create ML's JSON, of which the first image may have no object.
_CREATE_ML = re.compile(
    r'\[\s*\{\s*"image":\s*"[^"]+",\s*"annotations":\s*\[\s*(\]|\{\s*"label":)'
)
_JSON_BEGINS = ((_FIFTYONE, "fiftyone"), (_CREATE_ML, "createml"))
_WORDS = 200  # in JSON that are looked up
_KITTI = re.compile(r"[A-Za-z_][\w-]*( -?[\d.]+(e-?\d+)?){14,15}")
_VISDRONE = re.compile(r"-?\d+(,-?\d+){7},?")
_DOTA = re.compile(r"(-?[\d.]+ ){8}[\w-]+ [0-2]")
DOTA_HEADS = ("imagesource:", "gsd:")  # begin lines about the whole image
_FACE = re.compile(r"-?[\d.]+( -?[\d.]+){3} ")
# Of texts with a line for each object.
_LINES_OF_KINDS = ((_KITTI, "kitti"), (_VISDRONE, "visdrone"), (_DOTA, "dota"))
_TRACK = re.compile(r"\d+,-?\d+(,-?[\d.]+){5,}")


class AnnotationFile(NamedTuple):
    """A file that describes images.

    Attributes:
        name: In its container.
        kind: One of `KINDS`.
    """

    name: str
    kind: str


_SURVEYS: WeakKeyDictionary[Files, list[AnnotationFile]] = WeakKeyDictionary()


@cache
def _image_name() -> re.Pattern[str]:
    """Finds the name of an image in a text."""
    extensions = "|".join(sorted(image_extensions()))
    return re.compile(rf"[^\s,;\"'|]\.({extensions})(?![\w.])", re.IGNORECASE)


def survey(files: Files) -> list[AnnotationFile]:
    """As `_survey`, once for a container, since every source asks for it."""
    if files not in _SURVEYS:
        _SURVEYS[files] = _survey(files)
    return _SURVEYS[files]


def kind_of_file(files: Files, name: str, is_partner: bool = False) -> str:
    """The kind of a file by its content, one of `KINDS`; "" for one that is none.

    Args:
        files: The container of the file.
        name: Of the file in it.
        is_partner: Whether an image has the same name but for the extension.
    """
    return _sniff(name, _text_of(files, name), is_partner)


def _sniff(name: str, text: str, is_partner: bool) -> str:
    if CLASS_FLAGS.search(name):
        return "boxes"
    return _SNIFFERS[extension_of(name)](text, is_partner)


def _survey(files: Files) -> list[AnnotationFile]:
    """The files of annotations in a container, those nearest to the top first; of many that are alike only some."""
    names, folders = _candidates(files)
    stems = {_stem(name) for name in names}
    texts = {name: _text_of(files, name) for name in names}
    texts = {name: text for name, text in texts.items() if text}
    named = {name: _names_in(name, text) for name, text in texts.items()}
    stems.update(*named.values())
    beside, elsewhere = _images_of(files, stems, folders)
    sheets = list[AnnotationFile]()
    for name, text in texts.items():
        is_beside = name.rpartition(".")[0] in beside
        kind = _sniff(name, text, is_beside or _stem(name) in elsewhere)
        if not kind and named[name] & elsewhere:
            kind = _OF_STEMS[extension_of(name)]
        if kind == "json" and is_beside:
            kind = "json beside"
        if kind:
            sheets.append(AnnotationFile(name, kind))
    return sheets


def _candidates(files: Files) -> tuple[list[str], list[str]]:
    """Names of files that may describe images, and of the folders that were looked into."""
    names = list[str]()
    folders = list[str]()
    counts = dict.fromkeys(_EXTENSIONS, 0)
    queue = deque([""])
    while queue and len(folders) < _MOST_FOLDERS:
        folder = queue.popleft()
        folders.append(folder)
        inner, inside = files.scan(folder)
        of_folder = dict.fromkeys(_EXTENSIONS, 0)
        for name in sorted(inside):
            extension = extension_of(name)
            if (
                extension in counts
                and counts[extension] < _MOST_FILES
                and of_folder[extension] < _MOST_OF_A_FOLDER
            ):
                counts[extension] += 1
                of_folder[extension] += 1
                names.append(posixpath.join(folder, name))
        queue.extend(
            posixpath.join(folder, name)
            for name, reason in sorted(inner.items())
            if not reason
        )
    return names, folders


def _images_of(
    files: Files, stems: set[str], folders: list[str]
) -> tuple[set[str], set[str]]:
    """The images with these stems: their paths without extension, and their stems."""
    beside = set[str]()
    elsewhere = set[str]()
    for folder in folders if stems else ():
        for name in files.scan(folder)[1]:
            stem = name.rpartition(".")[0]
            if stem in stems and is_image(name):
                beside.add(posixpath.join(folder, stem))
                elsewhere.add(stem)
    return beside, elsewhere


def _stem(name: str) -> str:
    file = name.rpartition("/")[2]
    return file.rpartition(".")[0] or file


def _names_in(name: str, text: str) -> set[str]:
    """What may be images without their extensions: the first line of a list that is named after a split, the first cell
    of a table, and texts in JSON."""
    if extension_of(name) == "txt":
        is_list = len(words_of_splits(name.rpartition("/")[2])) == 1
        return {_stem(word) for word in text.split()[: int(is_list)]}
    if extension_of(name) in ("csv", "tsv"):
        if "OriginalURL" in text.partition("\n")[0]:
            return set()  # Open Images' list of where images come from
        rows = text[:_END_BYTES].splitlines()[1:2]
        return {
            _stem(cell.strip('" '))
            for row in rows
            for cell in re.split("[,;\t]", row)[:1]
        }
    if extension_of(name) == "json":
        return {_stem(word) for word in _QUOTED.findall(text[:_END_BYTES])[:_WORDS]}
    return set()


def _text_of(files: Files, name: str) -> str:
    """The text of a file, or both ends of a large one; "" if it cannot be read, or is no text."""
    with suppress(OSError, DecodeError):
        file = files.find(name)
        if file.size > 2 * _END_BYTES and isinstance(files, Folder):
            path = files.path / name
            ends = [
                read_at(path, 0, _END_BYTES),
                read_at(path, file.size - _END_BYTES, _END_BYTES),
            ]
        else:
            data = files.read(file.address)
            ends = (
                [data]
                if len(data) <= 2 * _END_BYTES
                else [data[:_END_BYTES], data[-_END_BYTES:]]
            )
        text = "\n".join(end.decode("utf-8-sig", "replace") for end in ends).strip()
        return "" if "\0" in text else text
    return ""


def _lines(text: str) -> Iterator[str]:
    """The first lines that are not empty."""
    for line in text[:_END_BYTES].splitlines()[:_LINES]:
        if line.strip():
            yield line.strip()


def _is_coco(text: str) -> bool:
    has = {
        key: f'"{key}"' in text
        for key in ("file_name", "images", "annotations", "image_id")
    }
    if '"coco_url"' in text and has["images"]:
        return True  # LVIS, which has no names of files
    # Of a large file only one of both lists may begin in the part that is read.
    is_listed = has["images"] or has["annotations"]
    return has["file_name"] and is_listed and (has["annotations"] or has["image_id"])


def _kind_of_json(text: str, is_partner: bool) -> str:
    if _is_coco(text):
        return "coco"
    for kind, keys in _JSON_KEYS:
        if all(f'"{key}"' in text for key in keys):
            return kind
    for begin, kind in _JSON_BEGINS:
        if begin.match(text):
            return kind
    return "json" if is_partner or _image_name().search(text) else ""


def _kind_of_xml(text: str, is_partner: bool) -> str:
    if "<annotations" in text:
        return "cvat"
    if "<annotation" not in text:
        return "xml" if is_partner or _image_name().search(text) else ""
    if "<object" in text and "<polygon" in text and "<pt>" in text:
        return "labelme-xml"
    is_other = "<nrows" in text or ("<object" in text and "<bndbox" not in text)
    return "xml" if is_other else "voc"


def _kind_of_table(text: str, is_partner: bool) -> str:
    columns = {
        name.strip(' "\r').lower()
        for name in re.split("[,;\t]", text.partition("\n")[0])
    }
    if "originalurl" in columns:
        return ""
    if {"annotation_id", "annotator", "lead_time"} <= columns:
        return "label-studio"
    has_box = any(set(names) <= columns for names, _ in BOX_COLUMNS)
    if has_box or columns & {*RUN_COLUMNS, "region_shape_attributes"}:
        return "boxes"
    lines = list(_lines(text))[1:]
    return "table" if lines and _are_named(lines) else ""


def _kind_of_json_lines(text: str, is_partner: bool) -> str:
    if '"class_names"' in text[:_END_BYTES].partition("\n")[0]:
        return "ndjson"
    return "table" if _are_named(list(_lines(text))) else ""


def _kind_of_odgt(text: str, is_partner: bool) -> str:
    return "crowdhuman" if '"gtboxes"' in text else ""


def _kind_of_text(text: str, is_partner: bool) -> str:
    lines = [line for line in _lines(text) if not line.startswith(DOTA_HEADS)]
    if is_partner:
        for pattern, kind in _LINES_OF_KINDS:
            if lines and all(map(pattern.fullmatch, lines)):
                return kind
        return "yolo" if resemble_boxes([text]) else "text"
    if _are_faces(lines):
        return "wider"
    if lines and all(map(_TRACK.fullmatch, lines)):
        return "mot"
    return "list" if _are_named(lines) else ""


def _are_faces(lines: list[str]) -> bool:
    """Whether lines begin as WIDER FACE writes them: the name of an image, how many faces it has, and a face."""
    return (
        len(lines) > 2
        and _image_name().search(lines[0]) is not None
        and lines[1].isdecimal()
        and _FACE.match(lines[2]) is not None
    )


def _are_named(lines: list[str]) -> bool:
    """Whether most lines name an image."""
    return 2 * sum(bool(_image_name().search(line)) for line in lines) > len(lines)


_OF_STEMS = {"txt": "list", "csv": "table", "tsv": "table", "json": "json"}
_SNIFFERS: dict[str, Callable[[str, bool], str]] = {
    "json": _kind_of_json,
    "xml": _kind_of_xml,
    "txt": _kind_of_text,
    "csv": _kind_of_table,
    "tsv": _kind_of_table,
    "jsonl": _kind_of_json_lines,
    "ndjson": _kind_of_json_lines,
    "odgt": _kind_of_odgt,
}
