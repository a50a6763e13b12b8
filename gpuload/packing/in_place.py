"""Further pictures and lists of pictures in shards that others packed, indexed where they lie.

What cannot be loaded from its place is not indexed: a picture that some samples lack, or that has several modes.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from gpuload.disk.tar import Member, split_name
from gpuload.fields.field import Field
from gpuload.fields.images import MaskKind, Pixels, picture_columns
from gpuload.fields.picture_lists import PicturesKind, any_member, list_columns
from gpuload.fields.pictures import PictureKind
from gpuload.formats.modes import common_mode
from gpuload.sources.tars import (
    list_field,
    numbered_picture,
    numbers_of_list,
)

_ENCODED = ("L", "RGB", "RGBA", "I;16")  # modes of what a loader decodes from a file


class PictureInPlace(NamedTuple):
    """A picture of a sample: its member, and the size in pixels and the mode that its header tells."""

    member: Member
    width: int
    height: int
    mode: str


class PicturesOfSample(NamedTuple):
    """The further pictures of a sample, and its lists of pictures, by name."""

    single: Mapping[str, PictureInPlace]
    lists: Mapping[str, Sequence[PictureInPlace]]


def members_of_pictures(
    by_end: Mapping[str, Member], image: Member | None, encodings: Sequence[str]
) -> tuple[dict[str, Member], dict[str, list[Member]]]:
    """The members of further pictures, and of lists of pictures, by name.

    Args:
        by_end: The members of a sample by extension.
        image: Its image, which may be the first picture of a list; None: it is not known yet.
        encodings: Extensions of images.
    """
    single = dict[str, Member]()
    numbered_members = dict[str, list[tuple[int, Member]]]()
    names_of_lists = dict[str, None]()
    for extension, member in by_end.items():
        name, _, encoding = extension.rpartition(".")
        is_picture = encoding in encodings and extension not in MaskKind.members
        numbered = numbered_picture(extension)
        if numbered is not None:
            members = numbered_members.setdefault(numbered.list_name, [])
            members.append((numbered.number, member))
            if is_picture:
                names_of_lists[numbered.list_name] = None
        elif is_picture and name and member != image:
            single[name] = member
    lists = dict[str, list[Member]]()
    for list_name in names_of_lists:
        members = sorted(numbered_members[list_name], key=lambda entry: entry[0])
        lists[list_name] = [member for _, member in members]
    return single, lists


def numbers_of_lists(sample: PicturesOfSample) -> dict[str, list[int]]:
    """The numbers of the pictures in the lists of a sample by their names, in ascending order."""
    lists: dict[str, list[int]] = {}
    for name, pictures in sample.lists.items():
        ends = [split_name(picture.member.name)[1].lower() for picture in pictures]
        lists[name] = list(numbers_of_list(ends, list_field(name)).values())
    return lists


def fields_of_pictures(samples: Sequence[PicturesOfSample]) -> tuple[Field, ...]:
    """The fields of pictures that every sample has in one mode, and of lists that some have, in order of appearance."""
    fields = list[Field | None]()
    for name in dict.fromkeys(name for sample in samples for name in sample.single):
        pictures = [sample.single[name] for sample in samples if name in sample.single]
        if len(pictures) == len(samples):
            ends = {split_name(picture.member.name)[1] for picture in pictures}
            fields.append(_field_of(name, PictureKind.name, pictures, ends))
    for name in dict.fromkeys(name for sample in samples for name in sample.lists):
        lists = [sample.lists.get(name, ()) for sample in samples]
        fields.append(_field_of_lists(name, lists))
    return tuple(field for field in fields if field is not None)


def _field_of_lists(
    name: str, lists: Sequence[Sequence[PictureInPlace]]
) -> Field | None:
    """As `_field_of`, of the list that each sample has."""
    pictures = [picture for of_sample in lists for picture in of_sample]
    encodings = {picture.member.name.rpartition(".")[2] for picture in pictures}
    ends = {any_member(name, encoding) for encoding in encodings}
    field = _field_of(name, PicturesKind.name, pictures, ends)
    if field is None:
        return None
    counts = (min(map(len, lists)), max(map(len, lists)))
    return replace(field, counts=counts)


def _field_of(
    name: str, kind: str, pictures: Sequence[PictureInPlace], ends: Iterable[str]
) -> Field | None:
    """The field of these pictures; None where they have several modes, or one that is not stored in files.

    Args:
        name: Of the field.
        kind: Of the field.
        pictures: Those of all samples.
        ends: What the names of the members end with.
    """
    mode = common_mode(picture.mode for picture in pictures)
    if mode not in _ENCODED:
        return None
    pixels = Pixels.of_mode(mode).in_field()
    return Field(name, kind, ";".join(sorted(ends)), **pixels)


def columns_of_pictures(
    fields: Iterable[Field], sample: PicturesOfSample, somewhere: int
) -> dict[str, Any]:
    """The columns of a sample's row of the index for these fields of pictures.

    Args:
        fields: Of any kind.
        sample: Its pictures.
        somewhere: An offset in the shard, for lists of none.
    """
    row = dict[str, Any]()
    for field in fields:
        if field.kind == PictureKind.name:
            picture = sample.single[field.name]
            row[field.offset_column] = picture.member.offset
            row[field.bytes_column] = picture.member.size
            values = (picture.width, picture.height, b"")
            row.update(zip(picture_columns(field.name), values, strict=True))
        elif field.kind == PicturesKind.name:
            pictures = sample.lists.get(field.name, ())
            row |= _columns_of_list(field, pictures, somewhere)
    return row


def _columns_of_list(
    field: Field, pictures: Sequence[PictureInPlace], somewhere: int
) -> dict[str, Any]:
    """The columns of a list of pictures in a sample's row; otherwise as `columns_of_pictures`."""
    offsets = [picture.member.offset for picture in pictures]
    ends = [picture.member.offset + picture.member.size for picture in pictures]
    start = min(offsets, default=somewhere)
    columns = list_columns(field.name)
    return {
        field.offset_column: start,
        field.bytes_column: max(ends, default=start) - start,
        columns.offsets: offsets,
        columns.sizes: [picture.member.size for picture in pictures],
        columns.widths: [picture.width for picture in pictures],
        columns.heights: [picture.height for picture in pictures],
        columns.points: [b""] * len(pictures),
    }


def pictures_in(fields: Iterable[Field], sample: PicturesOfSample) -> list[Member]:
    """The members of these fields in a sample."""
    names = {field.name for field in fields}
    members = [
        picture.member for name, picture in sample.single.items() if name in names
    ]
    for name, pictures in sample.lists.items():
        if name in names:
            members += [picture.member for picture in pictures]
    return members
