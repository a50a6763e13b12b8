"""Existing WebDataset tars, to repack into other shards, in another order or encoding."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from gpuload.disk import Manifest
from gpuload.disk.tar import Member, group_members, read_members, split_name
from gpuload.errors import DecodeError, ShardError, SourceError, some_of
from gpuload.fields.captions import CaptionKind
from gpuload.fields.field import Field
from gpuload.fields.images import MaskKind
from gpuload.fields.picture_lists import PicturesKind, any_member
from gpuload.fields.pictures import PictureKind
from gpuload.fields.registry import all_kinds, kind_of
from gpuload.formats import image_extensions
from gpuload.headers import npy
from gpuload.sources.annotations import are_boxes, no_captions
from gpuload.sources.files import (
    Files,
    Findings,
    Folder,
    OneFile,
    Ref,
    by_count,
    is_text,
    read_at,
    readable,
)
from gpuload.sources.known_samples import LOST, KnownFolder, KnownSamples
from gpuload.sources.list_numbers import ListLengths, ListNumbers
from gpuload.sources.listing import NO_IMAGE, SPLIT
from gpuload.sources.source import CERTAIN, LAYOUT, Row, Sight, Source, SourceOptions
from gpuload.sources.stores.unpacked import (
    COMPRESSED_TARS,
    is_compressed_tar,
    unpack_tar,
)
from gpuload.sources.tar_samples import KEY_DOTS, KeyDot, SampleCheck, SplitName
from gpuload.types import Array

_DOTS = (
    "Give --option key_dot=last, by which keys end at the last dot, or key_dot=first, by which such members are left "
    "out; or rename the files"
)
_TARS = (".tar", *COMPRESSED_TARS)
_UNPACK = "Unpack the tars, and give --from yolo"
# The extension of a picture in a list, whose number has no more digits than a sample has pictures.
_NUMBERED = re.compile(
    r"(?:(?P<name>.+)\.)?(?P<number>\d{1,9})\.(?P<encoding>\w+)", re.A
)
_LOOKED_INTO = 8  # texts, to tell whether they are captions


@dataclass(frozen=True)
class TarOptions(SourceOptions):
    """The options of shards.

    Args:
        key_dot: The dot of a member's name at which its key ends, "first", as in WebDataset, or "last"; "" is the first
            where no file has a dot in its own name, and else an error.
    """

    key_dot: KeyDot = ""


class TarsSource(Source):
    """WebDataset shards: one, those that match wildcards, or those in a folder, or else in its folders named after
    splits (see `splits`).

    Shards of several splits, by their names or those of their folders, are the splits of the set. In a folder that
    gpuload packed, fields and classes are those of its manifest. Else `cls` is the label, `txt` the caption, `json`
    JSON, `mask.png` or `seg.png` a mask and `npy` an array; the fields are those that most samples have, and a sample
    that lacks one is left out with that reason. Samples are in stored order; a key that comes twice is two samples,
    unless the members of one sample do not lie together, which is an error.
    """

    Options = TarOptions
    options: TarOptions
    spools = False
    suffixes = (".tar",)

    _paths: Sequence[Path] = ()
    _unpacked: Mapping[Path, Path] = {}  # where compressed shards are read
    _may_lack_image = False  # where pictures lie in lists, which may be empty
    _list_numbers = ListNumbers()

    @classmethod
    def recognise(cls, files: Files) -> Sight | None:
        if isinstance(files, OneFile) and is_compressed_tar(files.path.name):
            return Sight(CERTAIN, "is a compressed tar")
        sight = super().recognise(files)
        if sight is None and isinstance(files, Folder) and files.split_files(_TARS):
            return Sight(LAYOUT, "holds compressed tars")
        return sight

    def prepare(self, scratch: Path) -> None:
        _check_key_dot(self.options.key_dot)
        super().prepare(scratch)
        unpacked = dict[Path, Path]()
        self._paths = self._shards()
        for number, path in enumerate(self._paths):
            if is_compressed_tar(path.name):
                unpacked[path] = _unpacked(path, scratch / f"tar-{number:06d}")
        self._unpacked = unpacked
        given = {tar: path for path, tar in unpacked.items()}
        self.originals = {**given, **self.originals}

    def _shards(self) -> list[Path]:
        """The shards: those of the folder (`Files.split_files`), those that match wildcards, or the one at the path."""
        if self._local.is_file():
            return [self._local]
        fault = "no such file"
        paths = self.matching()
        if self._local.is_dir():
            fault = f"holds no {_TARS[0]}"
            names = Folder(self._local).split_files(_TARS)
            paths = [self._local / name for name in names]
        if not paths:
            raise SourceError(
                f"{self._local}: {fault}. Give a file, or the folder that holds some"
            )
        return paths

    def _name_of(self, path: Path) -> str:
        """The name of a shard, relative to its folder."""
        folder = self._local if self._local.is_dir() else path.parent
        return path.relative_to(folder).as_posix()

    def _tar(self, path: Path) -> Path:
        """Where a shard is read: unpacked, if it is compressed."""
        return self._unpacked.get(path, path)

    def rows(self, findings: Findings) -> Iterator[Row]:
        """Every sample of every shard; only small members are read.

        Raises:
            SourceError: no such file, or no sample in them. ShardError: a tar is damaged.
        """
        self._paths = self._paths or self._shards()
        image, fields = self._find_fields(findings)
        splits = list[str]()
        if self._local.is_dir():
            names = list(map(self._name_of, self._paths))
            _tell_others(Folder(self._local), names, findings)
            splits = self.splits_of(names, findings)
        packed = _Packed(fields)
        known_folders = self._known_folders(findings)
        for number, path in enumerate(self._paths):
            known = known_folders[path.parent].shard(path.name)
            samples = self._whole_samples(path, image, fields, known, findings)
            for name, sample in samples:
                packed.add(sample)
                row = self._row(number, name, sample, fields, image)
                yield {**row, SPLIT: splits[number]} if splits else row
        self._tell_about(packed, image, fields, findings)

    def _tell_about(
        self,
        packed: "_Packed",
        image: Field | None,
        fields: Sequence[Field],
        findings: Findings,
    ) -> None:
        """Notes what was left of the samples.

        Raises:
            SourceError: they may not be samples at all.
        """
        if packed.unused:
            counts = by_count(packed.unused)
            findings.notes.append(
                f"members that are not packed: {counts}; fields are what most samples have"
            )
        if packed.count and not (fields or self.options.images_alone):
            self._tell_images_alone(packed, findings)
        if packed.count and image is None and packed.holds_dotted_pictures:
            self._ask_what_dots_mean(packed)

    def _whole_samples(
        self,
        path: Path,
        image: Field | None,
        fields: Sequence[Field],
        known: KnownSamples,
        findings: Findings,
    ) -> Iterator[tuple[str, "_TarSample"]]:
        """The samples of a shard that have all fields, with their names; rejects all others.

        Args:
            path: Of the shard.
            image: As `_find_fields` gives it.
            fields: As `_find_fields` gives them.
            known: What the index of its folder says of the shard.
            findings: Receives what is rejected.
        """
        keys = set[str]()
        for sample in self._samples(path, image, findings):
            keys.add(sample.key)
            name = f"{self._name_of(path)}/{sample.name}"
            fault = sample.fault(name, fields, self._may_lack_image)
            fault = fault or sample.fault_of_lists(fields, self._list_numbers)
            fault = fault or known.fault(sample.key, counts_of_lists(sample.members))
            if fault:
                findings.reject(name, fault)
            else:
                yield name, sample
        for key in known.lost(keys):
            findings.reject(f"{self._name_of(path)}/{key}", LOST)

    def _known_folders(self, findings: Findings) -> dict[Path, KnownFolder]:
        """What is known of the shards in each folder, with a note where some are gone."""
        folders = {path.parent: KnownFolder(path.parent) for path in self._paths}
        for folder, known in folders.items():
            if known.fault:
                findings.notes.append(
                    f"what shards may have lost is not known: {known.fault}"
                )
            gone = [name for name in known.shards if not (folder / name).exists()]
            if gone and self._local.is_dir():
                findings.notes.append(
                    f"{folder}: {some_of(gone)}, which its manifest.json names, is not there"
                )
        return folders

    def _find_fields(
        self, findings: Findings
    ) -> tuple[Field | None, tuple[Field, ...]]:
        """The field of the image, where gpuload packed the tars, and those of the other members."""
        image, fields = self._packed_fields(findings)
        if self.options.images_alone:
            fields = ()
        elif fields is None:
            fields = self._guess(image, findings)
        findings.fields = {field.name: field for field in fields}
        findings.kinds = {field.name: field.kind for field in fields}
        if image is not None and image.name != "image":
            findings.kinds[image.name] = PictureKind.name
        return image, fields

    def _tell_images_alone(self, packed: "_Packed", findings: Findings) -> None:
        """Raises SourceError if images lie in folders, as in a tar that is no shard; else notes that they are alone."""
        if packed.lies_in_folders and not self.options.named:
            fault = "nothing lies beside its images, which lie in folders: it holds plain folders and no shards"
            advice = (
                "Pack one such tar by its path, unpack them, or give --no-labels or"
            )
            raise SourceError(
                f"{self.title}: {fault}. {advice} --from tar for the images alone"
            )
        findings.notes.append(
            "no sample has more than its image, so that the set has no labels"
        )

    def _ask_what_dots_mean(self, packed: "_Packed") -> None:
        """Raises SourceError if files in folders may have dots in their names, or may be several pictures of a sample,
        unless the user said that it is a shard."""
        options = self.options
        if packed.lies_in_folders and not (options.named or options.key_dot):
            raise SourceError(
                f"{self.title}: its images lie in folders, and their names have dots, as {packed.dotted_name!r}. Give "
                "--from folder if the folders are classes, or --from tar if the images of one name up to the first "
                "dot are one sample"
            )

    def _samples(
        self, path: Path, image: Field | None, findings: Findings | None = None
    ) -> Iterator["_TarSample"]:
        """The samples of a shard.

        Args:
            findings: Receives members that belong to no sample.
        """
        others = list[tuple[str, str]]()
        key_dot = self.options.key_dot
        split = KEY_DOTS[key_dot]
        tar = self._tar(path)
        check = SampleCheck(str(path), unique=False, advice=_DOTS)
        for key, members in group_members(read_members(tar, others), split):
            # As in WebDataset. Fields of gpuload's own tars may have capitals.
            is_foreign = image is None
            by_end = by_extension(path, key, members, fold=is_foreign, split=split)
            check.add(key, by_end)
            yield _TarSample(key, by_end, _image_of(by_end, image))
        if image is None and not key_dot:
            check.refuse_dots()
        if findings is not None:
            for member, kind in others:
                findings.reject(
                    f"{self._name_of(path)}/{member}",
                    f"is a {kind}, not a regular file",
                )

    def _guess(self, image: Field | None, findings: Findings) -> tuple[Field, ...]:
        """The fields of foreign shards: one for each extension that most samples have, in the order of appearance."""
        survey = _ForeignSamples()
        for path in self._paths:
            for sample in self._samples(path, image):
                if sample.picture is not None:
                    survey.add(self._tar(path), sample)
        self._may_lack_image = survey.are_lists
        fields = survey.fields()
        self._list_numbers = survey.list_numbers(fields)
        names = [field.name for field in fields if field.kind == PicturesKind.name]
        findings.notes.extend(survey.list_lengths.notes(names))
        return fields

    def _row(
        self,
        number: int,
        name: str,
        sample: "_TarSample",
        fields: Sequence[Field],
        image: Field | None,
    ) -> Row:
        image_name = "image" if image is None else image.name
        picture = Ref(name, 0, NO_IMAGE)
        if sample.picture is not None:
            picture = _ref(number, sample.picture, name)
        row: dict[str, object] = {image_name: picture}
        for field in fields:
            if field.kind == PicturesKind.name:
                ends = list_ends(sample.members, field)
                row[field.name] = [_ref(number, sample.members[end]) for end in ends]
                continue
            ends = field.member.split(";")
            member = next(sample.members[end] for end in ends if end in sample.members)
            if kind_of(field).stays_in_shard:
                row[field.name] = _ref(number, member, detail=field.dtype or "")
                continue
            path = self._paths[number]
            faults = (ValueError, KeyError, TypeError)
            with readable(f"{path}: {member.name!r}", f"a {field.kind}", *faults):
                content = read_at(self._tar(path), member.offset, member.size)
                row |= kind_of(field).load(field, content)
        return row

    def _packed_fields(
        self, findings: Findings
    ) -> tuple[Field | None, tuple[Field, ...] | None]:
        """Image and fields from the manifests, if all tars lie in folders that gpuload packed; else None.

        Raises:
            SourceError: the folders have different fields or classes.
        """
        folders = list(dict.fromkeys(path.parent for path in self._paths))
        if not all((folder / "manifest.json").exists() for folder in folders):
            return None, None
        manifests = [Manifest.read(folder) for folder in folders]
        if not all(manifest.upright for manifest in manifests):
            # An index of foreign shards may have fewer fields.
            return None, None
        first = manifests[0]
        if not all(_are_alike(first, manifest) for manifest in manifests):
            names = some_of([folder.name for folder in folders])
            raise SourceError(
                f"{self.title}: its folders {names} differ in fields or classes. Pack each of them by itself"
            )
        for field in first.fields:
            classes = kind_of(field).class_names(field, first.classes)
            if classes is not None:
                findings.classes[field.name] = classes
        extensions = _extensions_of(manifest.fields[0] for manifest in manifests)
        image = replace(first.fields[0], member=";".join(sorted(extensions)))
        self._may_lack_image = any(
            manifest.image.counts is not None for manifest in manifests
        )
        return image, first.fields[1:]

    def read(self, address: str) -> bytes | Array:
        number, offset, size = map(int, address.split(":"))
        data = read_at(self._tar(self._paths[number]), offset, size)
        if not data.startswith(npy.START):
            return data
        try:
            return npy.read_array(data)
        except ValueError as error:
            raise DecodeError(f"cannot be read as .npy: {error}") from None


def _extensions_of(fields: Iterable[Field]) -> set[str]:
    """The extensions that the members of these fields have."""
    return {extension for field in fields for extension in field.member.split(";")}


def _are_alike(first: Manifest, second: Manifest) -> bool:
    """Whether two sets have the same fields and classes; the extensions of their images may differ."""
    return (
        first.fields[0].kind == second.fields[0].kind
        and first.fields[1:] == second.fields[1:]
        and first.classes == second.classes
    )


def _check_key_dot(key_dot: object) -> None:
    """Raises SourceError if it is no word for a dot."""
    if key_dot not in KEY_DOTS:
        raise SourceError(
            f"--option key_dot={key_dot}: expected first or last, the dot at which the key of a member ends"
        )


def _tell_others(folder: Folder, shards: Sequence[str], findings: Findings) -> None:
    """Notes tars in other folders than those of splits."""
    inner = [
        f"{place}/{name}" for place in folder.folders() for name in folder.names(place)
    ]
    ending = Path(shards[0]).suffix.lower()
    others = sorted(
        {name for name in inner if name.lower().endswith(ending)} - set(shards)
    )
    if others:
        findings.notes.append(
            f"passed over {some_of(others)}: in folders that are not named after splits"
        )


def _unpacked(path: Path, target: Path) -> Path:
    """A compressed shard unpacked into a file of a run, once."""
    if not target.exists():
        part = target.with_suffix(".part")
        unpack_tar(path, part)
        part.rename(target)
    return target


class _TarSample(NamedTuple):
    """The members of a sample by extension, and its image, if it has one."""

    key: str
    members: Mapping[str, Member]
    picture: Member | None

    @property
    def name(self) -> str:
        """That of its image in the tar, or else its key."""
        return self.picture.name if self.picture else self.key

    @property
    def begins_a_list(self) -> bool:
        """Whether its image is the first picture of a list."""
        ends = (end for end, member in self.members.items() if member == self.picture)
        return numbered_picture(next(ends, "")) is not None

    def others(self) -> Iterator[tuple[str, Member]]:
        """The members besides the image, with their extensions."""
        for end, member in self.members.items():
            if member != self.picture:
                yield end, member

    def parts(self) -> dict[str, Member | None]:
        """The members besides the image by extension, and lists of pictures, as None, by that of all their members."""
        parts: dict[str, Member | None] = {}
        for end, member in self.members.items():
            numbered = numbered_picture(end)
            if numbered is not None:
                parts[any_member(numbered.list_name, "")] = None
            elif member != self.picture:
                parts[end] = member
        return parts

    def fault(
        self, name: str, fields: Sequence[Field], may_lack_image: bool = False
    ) -> str:
        """Why it is left out; "" if it is packed.

        Args:
            name: Under which it is known.
            fields: Those that samples have besides the image.
            may_lack_image: Whether it need not have a picture.
        """
        if not is_text(name):
            return "its name is not UTF-8"
        if self.picture is None and not may_lack_image:
            return "has no image"
        lacking = [
            f".{field.member}"
            for field in fields
            if field.kind != PicturesKind.name
            and not set(field.member.split(";")) & set(self.members)
        ]
        return f"has no {min(lacking)}, which most samples have" if lacking else ""

    def lists(self) -> dict[str, list[int]]:
        """The numbers of the pictures in its lists by their names, in ascending order."""
        lists: dict[str, list[int]] = {}
        for numbered in map(numbered_picture, self.members):
            if numbered is not None:
                lists.setdefault(numbered.list_name, []).append(numbered.number)
        return {name: sorted(numbers) for name, numbers in lists.items()}

    def fault_of_lists(self, fields: Sequence[Field], expected: ListNumbers) -> str:
        """Why it is left out because of the numbers of its pictures; "" if it is packed.

        Args:
            fields: As in `fault`.
            expected: Of the set.
        """
        for field in fields:
            if field.kind == PicturesKind.name:
                numbers = list(numbers_of_list(self.members, field).values())
                fault = expected.fault(field.name, numbers)
                if fault:
                    return fault
        return ""


class _ForeignSamples:
    """What the samples of foreign shards that have an image are seen to have.

    Attributes:
        count: Of these samples.
        in_lists: Those of them whose image is the first picture of a list.
        list_lengths: Of their lists of pictures.
    """

    def __init__(self) -> None:
        self.count = 0
        self.in_lists = 0
        self._having = Counter[str]()  # samples by what they have
        self._first_members: dict[str, list[tuple[Path, Member]]] = {}
        self._list_numbers: dict[str, ListNumbers] = {}
        self.list_lengths = ListLengths()

    def add(self, tar: Path, sample: _TarSample) -> None:
        self.count += 1
        self.in_lists += sample.begins_a_list
        for name, numbers in sample.lists().items():
            self._list_numbers.setdefault(name, ListNumbers()).add(numbers)
            self.list_lengths.add(name, len(numbers), sample.name)
        for end, member in sample.parts().items():
            self._having[end] += 1
            members = self._first_members.setdefault(end, [])
            if member is not None and len(members) < _LOOKED_INTO:
                members.append((tar, member))

    @property
    def are_lists(self) -> bool:
        """Whether all of their images lie in lists, which may be empty in other samples."""
        return 0 < self.count == self.in_lists

    def fields(self) -> tuple[Field, ...]:
        """Those of what most samples have, in the order of appearance."""
        guesses = (
            _field_of(end, members)
            for end, members in self._first_members.items()
            if self._having[end] * 2 > self.count
        )
        return tuple(field for field in guesses if field is not None)

    def list_numbers(self, fields: Iterable[Field]) -> ListNumbers:
        """The numbers of the pictures in those of the fields that are lists."""
        return ListNumbers.of_all(
            self._list_numbers[field.name]
            for field in fields
            if field.kind == PicturesKind.name
        )


class _Packed:
    """What is known of the samples that were packed.

    Args:
        fields: Of the set.
    """

    def __init__(self, fields: Sequence[Field]) -> None:
        self._wanted = _extensions_of(fields)
        self._lists = [field for field in fields if field.kind == PicturesKind.name]
        self.unused = Counter[str]()  # members by extension
        self.count = 0
        self.lies_in_folders = True
        self.holds_dotted_pictures = True  # and nothing else
        self.dotted_name = ""

    def add(self, sample: _TarSample) -> None:
        listed = {
            end for field in self._lists for end in list_ends(sample.members, field)
        }
        for end, _ in sample.others():
            if end not in self._wanted and end not in listed:
                self.unused[f".{end}"] += 1
        self.count += 1
        self.lies_in_folders = self.lies_in_folders and "/" in sample.key
        for end, member in sample.members.items():
            name, _, encoding = end.rpartition(".")
            is_picture = encoding.lower() in image_extensions()
            if not name or not is_picture:
                self.holds_dotted_pictures = False
            self.dotted_name = self.dotted_name or member.name


def by_extension(
    path: Path,
    key: str,
    members: Sequence[Member],
    fold: bool = False,
    split: SplitName = split_name,
) -> dict[str, Member]:
    """The members of a sample by extension.

    Args:
        path: Of the shard, for messages.
        key: Of the sample, for messages.
        members: Of the sample.
        fold: Whether extensions are converted to lower case.
        split: Divides a name into key and extension.

    Raises:
        ShardError: two members have the same.
    """
    by_end = {}
    for member in members:
        _, end = split(member.name)
        by_end[end.lower() if fold else end] = member
    if len(by_end) < len(members):
        names = some_of([member.name for member in members], 8)
        raise ShardError(
            f"{path}: sample {key!r} has two members of one extension ({names}). Rename one, and pack the tar again"
        )
    return by_end


def _image_of(members: Mapping[str, Member], image: Field | None) -> Member | None:
    """The image among the members of a sample, by extension; None if there is none.

    Args:
        image: Its field, where gpuload packed the tar. Else it is the first that is called after the key alone, as
            "1.jpg", or the first of several pictures, as "1.left.jpg".
    """
    if image is not None:
        ends = image.member.split(";")
        return next((members[end] for end in members if end in ends), None)
    plain = (end for end in members if end.lower() in image_extensions())
    pictures = (
        end
        for end in members
        if end.lower().rpartition(".")[2] in image_extensions()
        and end not in MaskKind.members
    )
    chosen = next(plain, None) or next(pictures, None)
    if chosen is None:
        return None
    numbered = numbered_picture(chosen)
    if numbered is not None:
        chosen = list_ends(members, list_field(numbered.list_name))[0]
    return members[chosen]


class NumberedPicture(NamedTuple):
    """What the extension of a member tells of a picture in a list: "frames.3.jpg" or, of `images`, "3.jpg"."""

    list_name: str
    number: int


def numbered_picture(extension: str) -> NumberedPicture | None:
    """The list and the number of a picture by the extension of its member; None if it is in no list."""
    parts = _NUMBERED.fullmatch(extension)
    if parts is None or parts["encoding"].lower() not in image_extensions():
        return None
    return NumberedPicture(parts["name"] or "images", int(parts["number"]))


def list_field(name: str) -> Field:
    """The field of a list of pictures in foreign shards."""
    ends = [any_member(name, extension) for extension in sorted(image_extensions())]
    return Field(name, PicturesKind.name, ";".join(ends))


def list_ends(members: Iterable[str], field: Field) -> list[str]:
    """The extensions of the members of a list, in the order of their numbers."""
    return list(numbers_of_list(members, field))


def numbers_of_list(members: Iterable[str], field: Field) -> dict[str, int]:
    """The numbers of the members of a list by their extensions, in ascending order.

    Args:
        members: Extensions of all members of a sample.
        field: The list.
    """
    encodings = {end.rpartition(".")[2].lower() for end in field.member.split(";")}
    numbers = dict[str, int]()
    for end in members:
        parts = _NUMBERED.fullmatch(end)
        if parts is None or parts["encoding"].lower() not in encodings:
            continue
        if (parts["name"] or "images") == field.name:
            numbers[end] = int(parts["number"])
    return dict(sorted(numbers.items(), key=lambda member: member[1]))


def counts_of_lists(ends: Iterable[str]) -> Counter[str]:
    """The number of members that lists have in a sample, by their names, whether files or pixels.

    Args:
        ends: Extensions of all members of the sample.
    """
    numbered = filter(None, map(_NUMBERED.fullmatch, ends))
    return Counter(parts["name"] or "images" for parts in numbered)


def _field_of(extension: str, members: Sequence[tuple[Path, Member]]) -> Field | None:
    """The field for members with this extension in a foreign shard; None if its kind is unknown.

    Args:
        extension: Of all of them, or of a list of pictures as `any_member` says.
        members: Some, each with its tar; none of a list.

    Raises:
        SourceError: they hold boxes instead of captions.
    """
    if not members:
        return list_field(extension.removesuffix(any_member("", "")))
    path, first = members[0]
    guesses = (
        kind.guess(extension, lambda: read_at(path, first.offset, first.size))
        for kind in all_kinds().values()
    )
    guess = next((field for field in guesses if field is not None), None)
    if guess is not None and guess.kind == CaptionKind.name:
        texts = [
            read_at(tar, member.offset, member.size).decode("utf-8", "replace")
            for tar, member in members
        ]
        if are_boxes(texts):
            raise no_captions(str(path), next(filter(str.strip, texts)), _UNPACK)
    return guess


def _ref(number: int, member: Member, name: str = "", detail: str = "") -> Ref:
    return Ref(name, member.size, f"{number}:{member.offset}:{member.size}", detail)
