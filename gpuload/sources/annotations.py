"""Files beside images as other tools write them: texts, and boxes in YOLO's lines."""

from collections.abc import Iterator, Sequence
from typing import Any

from gpuload.errors import DecodeError, SourceError
from gpuload.fields.parsing import is_number
from gpuload.sources.files import Files, Ref

_ANNOTATIONS = "annotations"
_TOLERANCE = 1e-3  # of a coordinate beyond the image, as rounding leaves it

Box = tuple[int, float, float, float, float]  # class, center x and y, width and height


def annotation_files(files: Files, extension: str) -> list[str]:
    """Names of the files with this extension in the folder of annotations, if there is one."""
    folders = [name for name in files.folders() if name.lower() == _ANNOTATIONS]
    return [
        f"{folder}/{name}" for folder in folders for name in files.names(folder) if name.lower().endswith(extension)
    ]


def read_content(files: Files, file: Ref, title: str) -> bytes:
    """A file that describes images. title: of the source.

    Raises:
        SourceError: it cannot be read.
    """
    try:
        return files.read(file.address)
    except (OSError, DecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SourceError(f"{title}/{file.name}: cannot be read ({reason}). Correct or remove it") from None


def read_text(files: Files, file: Ref, title: str) -> str:
    """As `read_content`, as text with "\\n" at the end of each line."""
    try:
        text = read_content(files, file, title).decode("utf-8")
    except UnicodeDecodeError as error:
        raise SourceError(
            f"{title}/{file.name}: cannot be read as UTF-8 text ({error}). Correct or remove it"
        ) from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def with_boxes(corners: Sequence[Any], classes: Sequence[int]) -> dict[str, Any]:
    """The fields of an image with boxes, x0 y0 x1 y1 in pixels: these, and the classes in the image."""
    return {"boxes": corners, "boxes_class": classes, "labels": sorted(set(classes))}


def no_captions(title: str, text: str, advice: str) -> SourceError:
    """The error for boxes in place of captions."""
    return SourceError(f"{title}: its .txt hold YOLO's boxes, such as {text.strip()[:60]!r}, and no captions. {advice}")


def are_boxes(texts: Sequence[str]) -> bool:
    """Whether all texts that are not empty, and at least one, hold YOLO's boxes."""
    filled = [text for text in texts if text.strip()]
    try:
        return bool(filled) and all(list(parse_boxes(text)) for text in filled)
    except ValueError:
        return False


def parse_boxes(text: str) -> Iterator[Box]:
    """Class, and center x and y, width and height of each box.

    Raises:
        ValueError: a line is something else.
    """
    for number, line in enumerate(text.split("\n"), 1):
        words = line.split()
        if not words:
            continue
        if len(words) > 5 and all(map(is_number, words)):
            raise ValueError(f"line {number} has {len(words)} numbers: polygons, keypoints and scores are not read")
        if len(words) != 5 or not words[0].isdecimal() or not all(map(is_number, words)):
            raise ValueError(f"line {number} is {line[:60]!r}")
        x, y, width, height = shares = [float(word) for word in words[1:]]
        if not all(-_TOLERANCE <= share <= 1 + _TOLERANCE for share in shares):
            raise ValueError(f"line {number}, {line[:60]!r}, has a number outside of 0..1")
        yield int(words[0]), x, y, width, height
