"""Images with YOLO's boxes, in the layouts of Ultralytics, Roboflow, darknet, CVAT and LabelImg."""

import io
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib import import_module

from PIL import Image

from gpuload.counted import counted
from gpuload.errors import DecodeError, SourceError
from gpuload.headers.jpeg import upright_size
from gpuload.machine.installed import require
from gpuload.sources.annotations import Box, are_boxes, parse_boxes, read_text, with_boxes
from gpuload.sources.at_path import FilesSource
from gpuload.sources.files import IMAGE_EXTENSIONS, Files, Findings, Ref, extension_of
from gpuload.sources.listing import some_of
from gpuload.sources.rows import Row

_NAME_FILES = ("classes.txt", "obj.names", "_darknet.labels")  # LabelImg's, CVAT's and Roboflow's
_NO_LABELS = (*_NAME_FILES, "README.dataset.txt", "README.roboflow.txt")
_YAML = (".yaml", ".yml")
_LOOKED_INTO = 8  # folders, and files of each, to tell whether a container is YOLO's
_MOST_YAML_BYTES = 1 << 20


class YoloSource(FilesSource):
    """Images, each with its boxes in a `.txt` of its name: beside it, or in a folder `labels` where it lies in a folder
    `images`.

    Fields: "boxes", x0 y0 x1 y1 in pixels of the upright image, and "labels", the classes in it. An image without a
    `.txt` has no object. Names of the classes are those of a `.yaml` with `names`, of `classes.txt`, `obj.names` or
    `_darknet.labels` at the first level. Folders named after splits (see `splits`) are the splits; paths in the `.yaml`
    are not used. Samples are in the order of their paths.
    """

    advice = "Give a folder of images with YOLO's .txt"

    @classmethod
    def fits(cls, files: Files) -> bool:
        """Whether the first texts beside images, or in `labels` beside `images`, are boxes."""
        for place in ("", *files.folders()[:_LOOKED_INTO]):
            here = f"{place}/" if place else ""
            names = files.names(place)
            stems = {name.rpartition(".")[0] for name in names if extension_of(name) in IMAGE_EXTENSIONS}
            texts = [here + name for name in names if extension_of(name) == "txt" and name[:-4] in stems]
            inner = {name.lower(): here + name for name in files.folders(place)}
            if "images" in inner and "labels" in inner:
                for folder in (inner["labels"], *(f"{inner['labels']}/{n}" for n in files.folders(inner["labels"]))):
                    texts += [f"{folder}/{name}" for name in files.names(folder) if extension_of(name) == "txt"]
            if are_boxes(list(_readable(files, sorted(texts)[:_LOOKED_INTO]))):
                return True
        return False

    def rows(self, findings: Findings) -> Iterator[Row]:
        findings.strict = True
        files = list(self._files.walk({*IMAGE_EXTENSIONS, "txt"}, findings))
        texts = {file.name.rpartition(".")[0]: file for file in files if extension_of(file.name) == "txt"}
        images = [file for file in files if extension_of(file.name) != "txt"]
        text_of = {image.name: _text_of(image, texts) for image in images}
        if not any(text_of.values()):
            raise SourceError(
                f"{self.title}: none of its {counted(len(images), 'image')} has a .txt of its name, beside it or in a "
                "folder 'labels' beside 'images'. Give the folder that holds both"
            )
        if names := self._class_names():
            findings.classes |= {"boxes": names, "labels": names}
        self.expect([image.address for image in images])
        for image in images:
            text = text_of[image.name]
            boxes = self._boxes(text) if text else []
            try:
                size = _upright_size(self._files.read(image.address))
            except (OSError, DecodeError) as error:
                findings.reject(image.name, f"its size cannot be read: {error}")
                continue
            corners = [_in_pixels(box, *size) for box in boxes]
            yield {"image": image, **with_boxes(corners, [box[0] for box in boxes])}
        if alone := [name for name, text in text_of.items() if text is None]:
            findings.notes.append(
                f"{counted(len(alone), 'image has', 'images have')} no .txt, so no boxes: {some_of(alone)}"
            )
        used = {text.name for text in text_of.values() if text}
        left = [text.name for text in texts.values() if text.name not in used and "/" in text.name]
        if left := [name for name in left if name.rpartition("/")[2] not in _NO_LABELS]:
            findings.notes.append(f"{counted(len(left), '.txt belongs', '.txt belong')} to no image: {some_of(left)}")

    def _boxes(self, text: Ref) -> list[Box]:
        try:
            return list(parse_boxes(read_text(self._files, text, self.title)))
        except ValueError as error:
            raise SourceError(
                f"{self.title}/{text.name}: {error}. A line is a class number, then x, y, width and height of a box in "
                "shares of the image (0 to 1). Correct it; for captions give --from sidecar"
            ) from None

    def _class_names(self) -> tuple[str, ...]:
        """The names in the first file that has any; () if none has."""
        yamls = [name for name in self._files.names() if name.endswith(_YAML)]
        for name in (*yamls, *_NAME_FILES, *(f"{folder}/_darknet.labels" for folder in self._files.folders())):
            try:
                file = self._files.find(name)
            except OSError:
                continue
            if name.endswith(_YAML):
                names = self._names_in_yaml(file)
            else:
                names = read_text(self._files, file, self.title).rstrip("\n").split("\n")
            if any(names):
                return tuple(name.strip() for name in names)
        return ()

    def _names_in_yaml(self, file: Ref) -> list[str]:
        title = f"{self.title}/{file.name}"
        require(title, "yaml")
        yaml = import_module("yaml")
        if file.size > _MOST_YAML_BYTES:
            raise SourceError(f"{title}: {file.size:,} bytes, more than names of classes take. Move it elsewhere")
        try:
            document = yaml.safe_load(read_text(self._files, file, self.title))
        except (yaml.YAMLError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise SourceError(f"{title}: cannot be read as YAML ({reason}). Correct or move it") from None
        names = document.get("names") or [] if isinstance(document, dict) else []
        if isinstance(names, dict):
            if set(names) != set(range(len(names))):
                raise SourceError(f"{title}: 'names' must number the classes from 0 without a gap. Correct it")
            names = [names[number] for number in range(len(names))]
        if not isinstance(names, list) or not all(isinstance(name, str | int | float) for name in names):
            raise SourceError(f"{title}: 'names' must be a list of names of classes. Correct it")
        return list(map(str, names))


def _readable(files: Files, names: Sequence[str]) -> Iterator[str]:
    """The texts of those files that can be read."""
    for name in names:
        with suppress(OSError, DecodeError):
            yield files.read(files.find(name).address).decode("utf-8", "replace")


def _in_pixels(box: Box, width: int, height: int) -> tuple[float, ...]:
    """x0, y0, x1 and y1, within the image."""
    _, x, y, wide, high = box
    x0, x1 = (min(max(side, 0), 1) * width for side in (x - wide / 2, x + wide / 2))
    y0, y1 = (min(max(side, 0), 1) * height for side in (y - high / 2, y + high / 2))
    return x0, y0, x1, y1


def _upright_size(data: bytes) -> tuple[int, int]:
    """Width and height of the upright image, which boxes refer to."""
    try:
        with Image.open(io.BytesIO(data)) as opened:
            return upright_size(opened.size, opened.getexif())
    except OSError:
        raise
    except Exception as error:  # Pillow's many parsers may raise anything
        raise DecodeError(str(error)) from None


def _text_of(image: Ref, texts: dict[str, Ref]) -> Ref | None:
    """The text of an image: beside it, or where the last folder `images` of its path is `labels`."""
    stem = image.name.rpartition(".")[0]
    folders = stem.split("/")
    for at in reversed(range(len(folders) - 1)):
        if folders[at].lower() == "images":
            labels = {"images": "labels", "Images": "Labels"}.get(folders[at], "LABELS")
            return texts.get("/".join([*folders[:at], labels, *folders[at + 1 :]])) or texts.get(stem)
    return texts.get(stem)
