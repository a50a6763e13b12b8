"""Lists of pictures: any number of pictures of one name in a sample, such as the frames of a clip or the views of an
object; their columns of the index, how they are requested, and how a batch holds them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Annotated, Any, Literal, NamedTuple, get_args

import numpy as np
import pyarrow as pa

from gpuload.checks import FLAG, Rule, member, number, optional, settings, text, whole
from gpuload.errors import ArgumentError, some_of
from gpuload.fields.arrow_arrays import array_of
from gpuload.fields.field import Field
from gpuload.fields.images import (
    IMAGE_KIND,
    MOST_SIDE,
    Mask,
    Pixels,
    is_raw,
    picture_columns,
)
from gpuload.fields.kind import (
    NAME,
    BadRows,
    FieldSpec,
    Kind,
    Origin,
    Parsed,
    StoredMember,
)
from gpuload.fields.maps import NORMALIZE, InstanceMap, PictureSpec
from gpuload.fields.motion import Placement
from gpuload.fields.pictures import PictureKind
from gpuload.fields.rows import (
    DatasetView,
    PixelField,
    flat,
    lengths_of,
    numbers_of,
    rows_of,
)
from gpuload.lists import bounds_of, places_of
from gpuload.types import I64, Bools, ClassNames

More = Literal["error", "first", "even"]
Fewer = Literal["error", "pad", "repeat"]
Geometry = Literal["shared", "own"]
ListColors = Literal["same", "own", "each", "none"]
ListInterpolation = Literal["bilinear", "bicubic"]


def _as_each(value: Any) -> Any:
    is_map = isinstance(value, PictureSpec) and value.values is not None
    if not (is_map or isinstance(value, Mask)):
        raise TypeError
    return value


EACH = Rule("a spec of masks or maps, such as Mask() or Depth(unit=0.001)", _as_each)
_COUNT = optional(whole(1, 100_000, "a number of pictures from 1"))
_LIKE = optional(text("the name of another picture"))
_SCALE = number(1 / 64, 64, "pixels for each pixel of the other picture, in 1/64..64")
_INTERPOLATION = optional(member(*get_args(ListInterpolation)))
LISTS_OF_MASKS = ("mask", "masks")  # what lists of masks are called
_ANY_NUMBER = "*"  # stands for the number of a picture in the extensions of members


class PackedPictures(NamedTuple):
    """The pictures of all samples of a batch, those of one sample after another.

    Attributes:
        pixels: (sum of counts, C, height, width), as a batch of images.
        counts: int64 (N,), the pictures of each sample.
    """

    pixels: Any
    counts: Any

    def split(self) -> list[Any]:
        """The pictures (n, C, height, width) of each of the N samples."""
        counts = np.array(self.counts.tolist(), np.int64)
        bounds = pairwise(bounds_of(counts).tolist())
        return [self.pixels[start:end] for start, end in bounds]


class PaddedPictures(NamedTuple):
    """As many pictures of each sample of a batch, some of which are zeros.

    Attributes:
        pixels: (N, T, C, height, width): zeros follow the pictures of a sample that has fewer.
        counts: int64 (N,), the pictures of each sample.
    """

    pixels: Any
    counts: Any


@settings
class Pictures(FieldSpec):
    """The pictures of one name of each sample, such as the frames of a clip: as many of each, or as many as it has.

    With a `count` T they are (N, T, C, height, width), with `fewer="pad"` in `PaddedPictures`; without, they are
    `PackedPictures`, those of one sample after another. Where each picture has its own size, a list of N lists.

    Attributes:
        name: Of the packed field.
        count: Pictures of each sample; None: all that it has.
        more: What becomes of samples with more: "error", the "first" ones, or those in the middle of `count` "even"
            parts.
        fewer: What becomes of samples with fewer: "error", "pad" with zeros, or "repeat" from the first one on.
        geometry: "shared": all pictures of a sample have the crop and flips of the picture that `like` names, in
            relative coordinates; "own": each is drawn its own, by the same `Augment`.
        like: The picture with which they move, or the list, each as that of its number; None: the image.
        scale: As of `Picture`.
        colors: Changes of colour are the "same" as of the other picture, drawn for all of a sample ("own") or for
            "each", or left out ("none"); None: the same with a shared geometry, else for each.
        interpolation: "bilinear" or "bicubic"; None: as the image.
        normalize: `Normalize(mean, std)` of these pictures; None: as the image.
        swapped: Whether they change places with those of the list `like`, each with that of its number, where these are
            flipped left to right, as the frames of a stereo camera do.
        each: What each picture of a list of masks or maps is, such as `Depth(unit=0.001)` or `Mask()`, whose name does
            not matter; None: colours. Moved like another list, as masks are with their frames, it has as many pictures
            of each sample, of which the same ones are taken.

    Raises:
        ArgumentError: A value out of its range; `more` or `fewer` without a count. From a loader: samples have more
            or fewer, and nothing is said of that; a count for a list that moves like another one.
    """

    name: Annotated[str, NAME] = "images"
    count: Annotated[int | None, _COUNT] = None
    more: Annotated[More, member(*get_args(More))] = "error"
    fewer: Annotated[Fewer, member(*get_args(Fewer))] = "error"
    geometry: Annotated[Geometry, member(*get_args(Geometry))] = "shared"
    like: Annotated[str | None, _LIKE] = None
    scale: Annotated[float, _SCALE] = 1.0
    colors: Annotated[ListColors | None, optional(member(*get_args(ListColors)))] = None
    interpolation: Annotated[ListInterpolation | None, _INTERPOLATION] = None
    normalize: Annotated[Any, optional(NORMALIZE)] = None
    swapped: Annotated[bool, FLAG] = False
    each: Annotated[Any, optional(EACH)] = None

    kind = "pictures"

    def __post_init__(self) -> None:
        if self.each is not None:
            self._check_each()
        if self.count is None and (self.more, self.fewer) != ("error", "error"):
            raise ArgumentError(
                f"Pictures({self.name!r}, more={self.more!r}, fewer={self.fewer!r}): says what becomes of samples with "
                "more or fewer pictures than count. Give count, such as count=8"
            )
        if self.swapped and not self.like:
            raise ArgumentError(
                f"Pictures({self.name!r}, swapped=True): changes places with another list. Name it: like='left'"
            )
        if self.geometry == "own" and (self.colors == "same" or self.like):
            raise ArgumentError(
                f"Pictures({self.name!r}, geometry='own'): each moves by itself, and not as another picture. Leave out "
                "like, and give colors='each', 'own' or 'none'"
            )

    def _check_each(self) -> None:
        """Raises ArgumentError where what is said of colours, or of one picture, is said of a list of maps."""
        start = f"Pictures({self.name!r}, each={self.each!r})"
        of_colors = (self.colors, self.interpolation, self.normalize)
        if any(value is not None for value in of_colors) or self.geometry == "own":
            raise ArgumentError(
                f"{start}: masks and maps move with another picture, and have no colors, interpolation or normalize "
                "but those of each. Leave these and geometry out"
            )
        moves = getattr(self.each, "like", None) or getattr(self.each, "swapped", False)
        if moves or getattr(self.each, "scale", 1) != 1:
            raise ArgumentError(
                f"{start}: says how one picture moves. Give like, scale and swapped of the list: "
                f"Pictures({self.name!r}, like=…, each=…)"
            )

    @property
    def map_spec(self) -> PictureSpec | None:
        """What becomes of the values of each picture; None of colours. A mask is a map of ids."""
        if isinstance(self.each, Mask):
            return InstanceMap(self.name, fill=self.each.fill, dtype=self.each.dtype)
        spec: PictureSpec | None = self.each
        return spec

    @property
    def drawn_colors(self) -> ListColors:
        """The colours, with the default that the geometry has."""
        return self.colors or ("same" if self.geometry == "shared" else "each")

    def check_counts(self, field: Field, folder: object) -> None:
        """Raises ArgumentError where samples of a set have more or fewer pictures, and nothing is said of that."""
        if self.count is None or field.counts is None:
            return
        least, most = field.counts
        present = (
            f"samples of {folder} have {least} to {most} pictures in {self.name!r}"
        )
        if least == most:
            present = f"samples of {folder} have {most} pictures in {self.name!r}"
        asked = f"Pictures({self.name!r}, count={self.count})"
        if most > self.count and self.more == "error":
            raise ArgumentError(f"{asked}: {present}. Give more='even' or more='first'")
        if least < self.count and self.fewer == "error":
            raise ArgumentError(
                f"{asked}: {present}. Give fewer='pad' or fewer='repeat'"
            )
        if least == 0 and self.fewer == "repeat":
            raise ArgumentError(
                f"{asked}: {present}, and of none nothing can be repeated. Give fewer='pad'"
            )

    def chosen(self, counts: I64) -> tuple[I64, I64]:
        """Which pictures of each sample a batch holds.

        Args:
            counts: int64 (N,), the pictures that each sample has.

        Returns:
            int64 (N,), how many of each are taken; and int64 (their sum,), the numbers of these.
        """
        if self.count is None:
            return counts, places_of(counts)
        is_repeated = (self.fewer == "repeat") & (counts > 0)
        taken = np.where(is_repeated, self.count, np.minimum(counts, self.count))
        positions = places_of(taken)
        had = np.repeat(counts, taken)
        if self.more == "even":
            middles = (2 * positions + 1) * had // (2 * self.count)
            positions = np.where(had > self.count, middles, positions)
        return taken, positions % np.maximum(had, 1)


class ListColumns(NamedTuple):
    """The index columns of a list of pictures, each a list with an entry for each picture of a sample.

    Attributes:
        offsets: int64, of the picture's data in the shard; of the first value, where pictures are pixels.
        sizes: int64, of the data in bytes.
        widths: int32, in pixels.
        heights: int32, in pixels.
        points: large_binary, seek points or an empty value.
    """

    offsets: str
    sizes: str
    widths: str
    heights: str
    points: str


def list_columns(name: str) -> ListColumns:
    """The index columns of a list of pictures of this name."""
    return ListColumns(*(f"{name}_{column}" for column in ListColumns._fields))


def member_of(name: str, position: int | str, extension: str) -> str:
    """The extension of the member of a picture in a list.

    Args:
        name: Of the field.
        position: Of the picture in the list.
        extension: Of its encoding.
    """
    return f"{name}.{position}.{extension}"


def members_of(field: Field) -> list[str]:
    """The extensions of all members of a field; of a list as many as its longest sample has."""
    ends = field.member.split(";")
    if field.kind != PicturesKind.name:
        return ends
    most = 0 if field.counts is None else field.counts[1]
    encodings = [end.rpartition(".")[2] for end in ends]
    return [
        member_of(field.name, position, encoding)
        for position in range(most)
        for encoding in encodings
    ]


def any_member(name: str, extension: str) -> str:
    """What stands in a field for the members of all pictures with this extension."""
    return member_of(name, _ANY_NUMBER, extension)


def _are_misplaced(field: Field, rows: pa.RecordBatch, owners: I64) -> Bools:
    """bool (P,): whether each picture in the lists of a field cannot be where the index says.

    Args:
        field: Of lists.
        rows: Of the index.
        owners: int64 (P,), the row of each picture.
    """
    offsets, sizes, widths, heights = (
        flat(rows.column(name)).astype(np.int64)
        for name in list_columns(field.name)[:4]
    )
    first = numbers_of(rows.column(field.offset_column))[owners]
    span = numbers_of(rows.column(field.bytes_column))[owners]
    is_wrong: Bools = (offsets < first) | (sizes < 0) | (sizes > span)
    is_wrong |= offsets - first > span - np.minimum(sizes, span)
    is_wrong |= (widths < 1) | (widths > MOST_SIDE)
    is_wrong |= (heights < 1) | (heights > MOST_SIDE)
    if is_raw(field):
        pixels = Pixels.of_field(field)
        is_wrong |= sizes != pixels.bytes * widths * heights
        is_wrong |= offsets % np.dtype(pixels.dtype).itemsize != 0
    return is_wrong


class PicturesKind(Kind):
    """Any number of pictures of each sample, each of a size of its own, all of one mode.

    They are stored as further pictures are (`PictureKind`), in members of their own: `images.0.jpg`, `images.1.jpg`.
    """

    name = "pictures"
    specs = (Pictures,)
    stays_in_shard = True
    listed_as = pa.list_(pa.large_string())

    def columns(self, field: Field) -> dict[str, pa.DataType]:
        names = list_columns(field.name)
        return {
            names.offsets: pa.list_(pa.int64()),
            names.sizes: pa.list_(pa.int64()),
            names.widths: pa.list_(pa.int32()),
            names.heights: pa.list_(pa.int32()),
            names.points: pa.list_(pa.large_binary()),
        }

    def field_fault(self, field: Field) -> str:
        counts = field.counts
        if counts is not None and (len(counts) != 2 or counts[0] > counts[1]):
            return f"its counts cannot be {list(counts)}"
        return IMAGE_KIND.field_fault(field)

    def hub_feature(
        self, field: Field, classes: ClassNames, dimensions: Set[int]
    ) -> dict[str, Any]:
        return _PICTURE_KIND.hub_feature(field, classes, dimensions)

    def claims(self, value: Any) -> bool:
        is_list = isinstance(value, list | tuple) and bool(value)
        return is_list and all(map(_PICTURE_KIND.claims, value))

    def parse(
        self,
        where: Origin,
        name: str,
        values: Sequence[Any],
        classes: ClassNames,
        detail: str,
    ) -> Parsed:
        field = Field(name, self.name, any_member(name, "png"))
        return field, [array_of(values, self.listed_as)]

    def store(self, field: Field, value: Any, placement: Placement) -> StoredMember:
        raise NotImplementedError("gpuload.packing.image stores pictures")

    def bad_rows(self, field: Field, rows: pa.RecordBatch) -> Iterator[BadRows]:
        """Samples whose lists differ in length, and those with a picture that cannot be where the index says."""
        columns = [rows.column(name) for name in list_columns(field.name)]
        lengths = np.stack([lengths_of(column) for column in columns])
        unlike = np.flatnonzero((lengths != lengths[0]).any(axis=0))
        if len(unlike):
            yield BadRows(
                unlike,
                lambda row: (
                    f"lists of {some_of(sorted(set(lengths[:, row].tolist())))} entries of its {field.name!r}"
                ),
            )
            return
        counts = lengths[0]
        least, most = field.counts or (0, counts.max(initial=0))
        yield BadRows(
            np.flatnonzero((counts < least) | (counts > most)),
            lambda row: (
                f"{counts[row]} pictures in its {field.name!r}, expected {least} to {most}"
            ),
        )
        owners = rows_of(columns[0])
        yield BadRows(
            np.unique(owners[_are_misplaced(field, rows, owners)]),
            lambda row: f"a picture in its {field.name!r} that cannot be there",
        )

    def each_row(
        self, field: Field, row: Mapping[str, Any]
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """Each picture of a sample, with its offset in the shard, as a row of the index of a further picture."""
        # The columns of a further picture, in the order of those of a list.
        place = (field.offset_column, field.bytes_column)
        columns = (*place, *picture_columns(field.name))
        lists = [row[name] for name in list_columns(field.name)]
        for picture in zip(*lists, strict=True):
            yield picture[0], {**row, **dict(zip(columns, picture, strict=True))}

    def find_fault(
        self,
        field: Field,
        row: Mapping[str, Any],
        content: bytes,
        header: int,
        image_size: Any,
    ) -> str:
        """As `Kind.find_fault`, of one picture, whose row `each_row` gives."""
        return _PICTURE_KIND.find_fault(field, row, content, header, image_size)

    def look(
        self, field: Field, row: Mapping[str, Any], read: Callable[[], bytes]
    ) -> dict[str, Any]:
        """A list of what `PictureKind.look` gives."""
        span = read()
        start = row[field.offset_column]
        pictures = []
        for offset, own_row in self.each_row(field, row):
            begin = offset - start
            content = span[begin : begin + own_row[field.bytes_column]]
            looked = _PICTURE_KIND.look(field, own_row, partial(bytes, content))
            pictures.append(looked[field.name])
        return {field.name: pictures}

    def texts(
        self, field: Field, found: Mapping[str, Any], classes: ClassNames
    ) -> dict[str, str]:
        pictures = found[field.name]
        sizes = [np.shape(picture)[1::-1] for picture in pictures]
        shown = ", ".join(f"{width} × {height}" for width, height in sizes[:_SHOWN])
        more = ", …" if len(sizes) > _SHOWN else ""
        mode = Pixels.of_field(field).mode
        many = f"{len(pictures)} pictures" if len(pictures) != 1 else "1 picture"
        of_sizes = f": {shown}{more} pixels of {mode}" if pictures else ""
        return {field.name: f"{many}{of_sizes}"}

    def meaning(self, field: Field, set_classes: ClassNames) -> dict[str, object]:
        return {"kind": self.name, "mode": Pixels.of_field(field).mode}

    def bind(
        self, spec: FieldSpec | None, field: Field, datasets: Sequence[DatasetView]
    ) -> PixelField:
        pixels = Pixels.of_field(field)
        if spec is None and field.name in LISTS_OF_MASKS and pixels.channels == 1:
            raise ArgumentError(
                f"fields: {field.name!r} is a list of masks, which are not resized as colours are. Request it as "
                f"Pictures({field.name!r}, like=…, each=gpuload.Mask()) with the list like which it moves; as gray "
                f"levels it is Pictures({field.name!r})"
            )
        wanted = _list_spec(field, spec)
        map_spec = wanted.map_spec
        is_colors = map_spec is None
        if is_colors and wanted.normalize is None and pixels.dtype != "uint8":
            raise ArgumentError(
                f"fields: {field.name!r} holds {pixels.in_words}, which are no colours. Request it as "
                f"Pictures({field.name!r}, each=…) of maps, such as each=Depth(), or as Pictures({field.name!r}, "
                "normalize=gpuload.Normalize(mean, std))"
            )
        for dataset in datasets:
            wanted.check_counts(dataset.require_field(field.name), dataset.folder)
        if len({is_raw(dataset.require_field(field.name)) for dataset in datasets}) > 1:
            raise ArgumentError(
                f"fields: {field.name!r} is stored as files in one of the data sets, and as pixels in another. Pack "
                "both in the same way"
            )
        values = None
        if map_spec is not None and map_spec.values is not None:
            values = map_spec.values(field, map_spec)
        return PixelField(
            field.name, self.name, field=field, spec=wanted, values=values
        )


def _list_spec(field: Field, spec: FieldSpec | None) -> Pictures:
    """The spec of a list: as it was requested, or of all its pictures, each as the spec of one picture says."""
    if isinstance(spec, Pictures):
        return spec
    if isinstance(spec, Mask):
        return Pictures(field.name, each=spec)
    if isinstance(spec, PictureSpec):
        swapped = getattr(spec, "swapped", False)
        of_one = {"like": None, "scale": 1.0, **({"swapped": False} if swapped else {})}
        each: Any = replace(spec, **of_one)  # type: ignore[type-var]  # a dataclass
        return Pictures(
            field.name, like=spec.like, scale=spec.scale, swapped=swapped, each=each
        )
    return Pictures(field.name)


def _leading_list(field: PixelField, lists: Mapping[str, PixelField]) -> PixelField:
    """The list that says which pictures of a sample are taken: the last one of those that move like each other, or the
    list itself.

    Args:
        field: A list.
        lists: All requested ones, by name.
    """
    passed: list[str] = []
    leader = field
    while leader.spec.like in lists and leader.name not in passed:
        passed.append(leader.name)
        leader = lists[leader.spec.like]
    return leader


def with_leading_counts(
    fields: Sequence[PixelField], datasets: Sequence[DatasetView]
) -> list[PixelField]:
    """The fields, of which lists that move like others take the pictures that those take.

    Args:
        fields: Those whose values are decoded.
        datasets: Of which samples are.

    Raises:
        ArgumentError: A list that moves like another says itself how many are taken; or samples have other numbers of
            pictures in the two.
    """
    lists = {field.name: field for field in fields if field.kind == PicturesKind.name}
    return [
        _with_leading_count(field, lists, datasets) if field.name in lists else field
        for field in fields
    ]


def _with_leading_count(
    field: PixelField,
    lists: Mapping[str, PixelField],
    datasets: Sequence[DatasetView],
) -> PixelField:
    """As `with_leading_counts`, of one list."""
    leader = _leading_list(field, lists)
    if leader is field:
        return field
    spec: Pictures = field.spec
    if spec.count is not None:
        raise ArgumentError(
            f"Pictures({field.name!r}, like={spec.like!r}, count={spec.count}): as many are taken as of the list that "
            f"it moves like. Give count to {leader.name!r} alone"
        )
    for dataset in datasets:
        counts = dataset.require_field(field.name).counts
        others = dataset.require_field(leader.name).counts
        if counts != others:
            raise ArgumentError(
                f"Pictures({field.name!r}, like={spec.like!r}): the two go together by number, and samples of "
                f"{dataset.folder} have {_span(counts)} pictures in {field.name!r}, {_span(others)} in "
                f"{leader.name!r}. Pack as many of each"
            )
    chosen: Pictures = leader.spec
    taken = replace(spec, count=chosen.count, more=chosen.more, fewer=chosen.fewer)
    return replace(field, spec=taken)


def _span(counts: Sequence[int] | None) -> str:
    """The least and the most of a list, as a message says it."""
    least, most = counts or (0, 0)
    return str(most) if least == most else f"{least} to {most}"


_SHOWN = 4  # sizes in a text
_PICTURE_KIND = PictureKind()
PICTURES_KIND = PicturesKind()
