"""Which column, array or key holds what: named by the user, else by the names people usually give; and samples out of
what programs and Hugging Face keep in columns."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from gpuload.errors import ArgumentError, SourceError, some_of
from gpuload.fields.picture_lists import PicturesKind
from gpuload.fields.pictures import PictureKind
from gpuload.fields.registry import KINDS, all_kinds
from gpuload.machine.untrusted import parse_json
from gpuload.sources.files import Findings
from gpuload.sources.listing import COLUMNS, SPLIT, split_called
from gpuload.sources.objects import ObjectColumn, class_key
from gpuload.sources.source import Names, Row, Source

OBJECTS = "objects"  # the role of Hugging Face's column of boxes and classes
_BY_NAME = (
    "image",
    "label",
    "caption",
    "labels",
    "boxes",
    OBJECTS,
    "mask",
)  # roles that a column's usual name gives it
# Roles that take several columns; each picture is a field of its own, named after its column.
_OF_SEVERAL = ("target", "captions", PictureKind.name)

# fmt: off
_PATHS = (
    "path", "file", "filename", "file_name", "filepath", "file_path", "image", "image_path", "img_path", "image_file",
    "image_name", "img_name", "img", "image_id", "id", "name",
)
# fmt: on

# What `--column` calls what a column can hold: the path of an image, its split, and the kinds of fields.
USUAL: dict[str, Names] = {
    "path": _PATHS,
    **{
        kind.role or kind.name: kind.usual_names
        for kind in all_kinds().values()
        if kind.name not in ("raw", PicturesKind.name)
    },
    "captions": ("captions",),  # several for each image
    OBJECTS: (OBJECTS,),  # boxes x y width height with their classes
    SPLIT: COLUMNS,
}
ROLES = tuple(USUAL)


def parse_columns(entries: Sequence[str]) -> dict[str, Names]:
    """Parses `--column ROLE=NAME[,NAME…]`.

    Raises:
        ArgumentError: an entry has another form.
    """
    columns: dict[str, Names] = {}
    for entry in entries:
        role, equals, names = entry.partition("=")
        if role not in ROLES or not equals or not names:
            raise ArgumentError(
                f"--column {entry}: write ROLE=NAME, with one of the roles {', '.join(ROLES)}"
            )
        if role in columns:
            raise ArgumentError(
                f"--column {entry}: {role!r} is given twice. Write all names of it in one --column"
            )
        columns[role] = tuple(name.strip() for name in names.split(","))
    return columns


def check_columns(
    title: str, present: Sequence[str], columns: Mapping[str, Names]
) -> None:
    """Raises SourceError if a column that the user named does not exist, or several are named for a role of one."""
    for role, names in columns.items():
        if not set(names) <= set(present) or (
            len(names) > 1 and role not in _OF_SEVERAL
        ):
            option = f"--column {role}={','.join(names)}"
            raise SourceError(
                f"{title}: {option}: expected one of {list(present)}, or several for target= and picture=. Correct it"
            )


class Features:
    """Class names from Hugging Face's features, by column: of those with one class a row, and of all.

    Args:
        features: By column, of the package `datasets`: its objects, or their form in metadata.
    """

    def __init__(self, features: Any = None) -> None:
        present = features if isinstance(features, Mapping) else {}
        self._known = present
        self.single = {
            column: names
            for column, feature in present.items()
            if (names := _class_names(feature))
        }
        parts = {
            column: _class_names(_part(feature, "feature"))
            for column, feature in present.items()
        }
        self.all = {
            column: names for column, names in parts.items() if names
        } | self.single

    def within(self, column: str) -> Names:
        """Class names of the objects in a column."""
        feature = self._known.get(column)
        parts = _part(feature, "feature") or feature
        if isinstance(parts, list) and parts:
            parts = parts[0]
        if not isinstance(parts, Mapping):
            return ()
        classes = parts.get(class_key(parts))
        return _class_names(classes) or _class_names(_part(classes, "feature"))

    @classmethod
    def of_metadata(cls, metadata: Mapping[bytes, bytes] | None) -> "Features":
        """Those in the metadata of a schema that Hugging Face wrote; empty for other schemas."""
        try:
            return cls(parse_json((metadata or {})[b"huggingface"])["info"]["features"])
        except (ValueError, LookupError, TypeError):
            return cls()


NO_FEATURES = Features()


def _part(feature: Any, name: str) -> Any:
    return (
        feature.get(name)
        if isinstance(feature, Mapping)
        else getattr(feature, name, None)
    )


def _class_names(feature: Any) -> Names:
    names = _part(feature, "names")
    return (
        tuple(names)
        if isinstance(names, list) and all(isinstance(name, str) for name in names)
        else ()
    )


def roles_of(
    title: str,
    present: Sequence[str],
    columns: Mapping[str, Names],
    known: Sequence[str],
    features: Features,
) -> dict[str, Names]:
    """The columns of each role that has one: those that the user named, else the first with a usual name.

    Args:
        title: Of the source, for messages.
        present: The columns of the table.
        columns: Those that the user named, by role.
        known: The roles that usual names give.
        features: What the table says of its columns.

    Raises:
        SourceError: see `check_columns`.
    """
    check_columns(title, present, columns)
    roles = {role: tuple(names) for role, names in columns.items()}
    taken = {name for names in columns.values() for name in names}
    for role in known:
        free = {
            name.strip().lower(): name
            for name in reversed(present)
            if name not in taken
        }
        usual = [free[name] for name in USUAL[role] if name in free]
        if role == "labels":
            usual = [name for name in usual if name not in features.single]
        if (
            role == "label" and not usual
        ):  # one class a row, whatever the name of the column
            usual = [name for name in features.single if name in free.values()]
        if role not in roles and usual:
            roles[role] = (usual[0],)
            taken.add(usual[0])
    return roles


class Table(NamedTuple):
    """Rows as dicts by column.

    Attributes:
        names: Of its columns.
        rows: Each as a dict by column.
        features: What the table says of its columns.
        find: Reads the image where a row has its path instead of its bytes.
        lists: Columns that are known to hold lists of pictures; those are, too, that hold one in the first row.
    """

    names: Sequence[str]
    rows: Iterable[Row]
    features: Features = NO_FEATURES
    find: Callable[[str], Any] = str
    lists: Sequence[str] = ()

    @classmethod
    def of_arrow(
        cls, schema: pa.Schema, rows: Iterable[Row], find: Callable[[str], Any] = str
    ) -> "Table":
        """Rows of Arrow's batches, perhaps with what Hugging Face says of their columns."""
        features = Features.of_metadata(schema.metadata)
        return cls(schema.names, rows, features, find, lists_of_images(schema))

    def samples(
        self, title: str, columns: Mapping[str, Names], findings: Findings
    ) -> Iterator[Row]:
        """The rows of a listing, one for each row of the table.

        Args:
            title: Of the source, for messages.
            columns: Names by role, where they are not the usual ones.
            findings: Gets what the source reports.

        Raises:
            SourceError: a column that the user named does not exist, or no column holds images.
        """
        lists, rows = self._with_lists()
        check_columns(title, self.names, columns)
        single = [name for name in self.names if name not in lists]
        named = {
            role: names for role, names in columns.items() if not set(names) & lists
        }
        roles = roles_of(title, single, named, _BY_NAME, self.features)
        list_names = sorted(map(_list_name, lists))
        findings.kinds |= dict.fromkeys(list_names, PicturesKind.name)
        if "image" not in roles and not lists:
            raise SourceError(
                f"{title}: its columns are {sorted(self.names)}; which holds the image? Call it 'image', or give "
                "--column image=NAME"
            )
        reader = _SampleReader(title, self, roles, columns, lists, findings)
        for number, row in enumerate(rows):
            missing = reader.missing_picture(row)
            if missing:
                findings.reject(
                    f"row {number}", f"has nothing in its column {missing!r}"
                )
                continue
            yield reader.sample(row)

    def _with_lists(self) -> tuple[set[str], Iterator[Row]]:
        """The columns of lists of pictures, some of which the first row tells; and all rows."""
        rows = iter(self.rows)
        first = next(rows, None)
        if first is None:
            return set(self.lists), rows
        told = (name for name, value in first.items() if _are_files(value))
        return {*self.lists, *told}, chain([first], rows)


class _SampleReader:
    """Makes samples of the rows of a table.

    Args:
        title: Of the source.
        table: Of the rows.
        roles: The columns of each role that has one.
        columns: Those of them that the user named.
        lists: The columns with lists of pictures.
        findings: Gets notes, classes, and the kinds of columns.
    """

    def __init__(
        self,
        title: str,
        table: Table,
        roles: Mapping[str, Names],
        columns: Mapping[str, Names],
        lists: Set[str],
        findings: Findings,
    ) -> None:
        self._title = title
        self._find = table.find
        self._lists = lists
        self._findings = findings
        self._targets = roles.get("target", ())
        self._role_of = {
            column: role for role, names in roles.items() for column in names
        }
        for column in roles.get(PictureKind.name, ()):
            self._role_of[column] = column
            findings.kinds[column] = PictureKind.name
        # Columns that are called as fields for which others were taken.
        unused = sorted(set(table.names) & set(roles) - set(self._role_of))
        if unused:
            findings.note(
                f"columns that are not packed: {some_of(unused)}; others were taken for fields of these names"
            )
        self._role_of |= dict.fromkeys(unused, "")
        features = table.features
        several = [column for column in features.all if column not in self._role_of]
        findings.kinds |= dict.fromkeys(several, "labels")
        for column, names in features.all.items():
            findings.classes[self._role_of.get(column, column)] = names
        # Those with a single class, which are told with those of several.
        self._wrapped = set(several) & set(features.single)
        self._objects = self._find_objects(features, roles, columns)

    def _find_objects(
        self,
        features: Features,
        roles: Mapping[str, Names],
        columns: Mapping[str, Names],
    ) -> dict[str, ObjectColumn]:
        """The column of objects, if there is one: by its role, or one of boxes whose values are such."""
        is_of_boxes = "boxes" in columns
        is_of_objects = OBJECTS in roles and "boxes" not in roles
        if self._findings.images_alone or not (is_of_boxes or is_of_objects):
            return {}
        (column,) = roles["boxes" if is_of_boxes else OBJECTS]
        names = features.within(column)
        if names:
            self._findings.classes |= {"boxes": names, "labels": names}
        is_named = is_of_boxes or OBJECTS in columns
        objects = ObjectColumn(
            self._title, column, self._findings, is_of_boxes, is_named, bool(names)
        )
        return {column: objects}

    def missing_picture(self, row: Row) -> str:
        """The first column of pictures that is null in a row; "" where none is."""
        for column in row:
            role = self._role_of.get(column, column)
            is_picture = self._findings.kinds.get(role) == PictureKind.name
            if (is_picture or role in ("image", "mask")) and _is_null(row[column]):
                return column
        return ""

    def sample(self, row: Row) -> Row:
        """The sample that a row is."""
        sample: dict[str, Any] = {}
        columns_of_objects = list[str]()
        for column, value in row.items():
            objects = None if column in self._lists else self._objects.get(column)
            if objects is not None and objects.are_meant(value):
                columns_of_objects.append(column)
            else:
                sample |= self._fields(column, value)
        for column in columns_of_objects:
            objects = self._objects[column]
            fields = objects.fields(row[column], row, sample.get("image"))
            sample = {**fields, **sample}
        if self._targets:
            values = [row[column] for column in self._targets]
            sample["target"] = predicted(self._title, values)
        return sample

    def _fields(self, column: str, value: Any) -> dict[str, Any]:
        """The fields that the value of a column is; none of a column that is not used."""
        role = self._role_of.get(column, column)
        if column in self._lists:
            files = value if value is not None else ()
            return {_list_name(column): [self._content(file) for file in files]}
        if role in ("image", "mask"):
            return self._picture(role, value)
        if role and _is_file(value):
            self._findings.kinds[role] = PictureKind.name
            return self._picture(role, value)
        if role:
            return {role: [value] if column in self._wrapped else value}
        return {}

    def _picture(self, role: str, value: Any) -> dict[str, Any]:
        """The image or mask, and the name of the image where it has a path."""
        path = value.get("path") if isinstance(value, dict) else value
        fields = {role: self._content(value)}
        if isinstance(path, str) and path and role == "image":
            fields["name"] = path
        return fields

    def _content(self, value: Any) -> Any:
        """A picture, which is found where a row has its path alone."""
        path = value
        content = value
        if isinstance(value, dict):
            path = value.get("path")
            content = value.get("bytes")
        if content is None or isinstance(content, str):
            return self._find(path if isinstance(path, str) else "")
        return content


def _is_file(value: Any) -> bool:
    """Whether a value is an image as Hugging Face's Parquet has it: its bytes, or the path of its file."""
    return isinstance(value, dict) and value.keys() == {"bytes", "path"}


def _is_null(value: Any) -> bool:
    """Whether a cell of a column of images is null; Hugging Face's have neither bytes nor a path there."""
    return value is None or (_is_file(value) and not any(value.values()))


def _list_name(column: str) -> str:
    """The name of a list of pictures, by that of its column: `image` is the sample's own."""
    return "images" if column == "image" else column


def _are_files(value: Any) -> bool:
    """Whether a value is a list of images, such as those of Hugging Face's Parquet, or of encoded ones."""
    if isinstance(value, list) and value and all(map(_is_file, value)):
        return True
    return KINDS[PicturesKind.name].claims(value)


def open_batches(place: Any) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Schema and batches of Arrow's IPC, as a file or a stream.

    Args:
        place: The path of a file, which is mapped, or what else Arrow reads from.

    Raises:
        ArrowInvalid: it is neither. OSError: it cannot be read.
    """
    source = pa.memory_map(str(place)) if isinstance(place, Path) else place
    try:
        file = pa.ipc.open_file(source)
    except pa.ArrowInvalid:
        stream = pa.ipc.open_stream(source)
        return stream.schema, iter(stream)
    return file.schema, map(file.get_batch, range(file.num_record_batches))


def lists_of_images(schema: Any) -> list[str]:
    """The columns of an Arrow schema that hold lists of images, as Hugging Face's data sets have them."""
    return [
        field.name
        for field in schema
        if (pa.types.is_list(field.type) or pa.types.is_large_list(field.type))
        and pa.types.is_struct(field.type.value_type)
        and {part.name for part in field.type.value_type} == {"bytes", "path"}
    ]


def predicted(title: str, values: Sequence[Any]) -> Any:
    """The target of one row, from the values of its columns.

    Raises:
        SourceError: a whole number has too many digits for float32.
    """
    try:
        return KINDS["target"].parse_cells(values)
    except ValueError as error:
        raise SourceError(f"{title}: {error}. Correct the target") from None


def samples_of(given: Any, findings: Findings) -> Iterable[Row]:
    """Samples out of an iterable of dicts, a table of pandas, Polars or Arrow, a data set of Hugging Face, TensorFlow
    or torchvision, or a dict of such by their splits.

    Raises:
        ArgumentError: it is another dict. SourceError: no column holds an image.
    """
    if isinstance(given, Mapping):
        return _by_split(given, findings)
    table = _table_of(given)
    if table is not None:
        single = [name for name in table.names if name not in table.lists]
        roles = roles_of("samples", single, {}, ("image", "path"), NO_FEATURES)
        image = roles.get("image") or roles.get("path")
        return table.samples("samples", {"image": image} if image else {}, findings)
    if hasattr(given, "as_numpy_iterator"):
        return given.as_numpy_iterator()
    if hasattr(given, "__getitem__") and hasattr(given, "transforms"):
        return _pairs(given, findings)
    return given


def _table_of(samples: Any) -> Table | None:
    """A data set of Hugging Face, or a table of pandas, Polars or Arrow; None where it is none."""
    features = getattr(samples, "features", None)
    if isinstance(features, Mapping):
        for name, feature in features.items():
            stored = _undecoded(feature)
            if stored is not None:
                samples = samples.cast_column(name, stored)
        lists = [
            name
            for name, feature in features.items()
            if _inner_image(feature) is not None
        ]
        return Table(list(features), samples, Features(features), lists=lists)
    if hasattr(samples, "itertuples"):
        names = [str(name) for name in samples.columns]
        cells = samples.itertuples(index=False, name=None)
        return Table(names, (dict(zip(names, row, strict=True)) for row in cells))
    if hasattr(samples, "iter_rows"):
        return Table(list(samples.columns), samples.iter_rows(named=True))
    if hasattr(samples, "to_batches"):
        batches = samples.to_batches()
        rows = (row for batch in batches for row in batch.to_pylist())
        return Table(samples.schema.names, rows, lists=lists_of_images(samples.schema))
    return None


def _inner_image(feature: Any) -> Any:
    """The feature of the images in a feature of lists of images of Hugging Face; None for any other."""
    inner = feature[0] if isinstance(feature, list) and feature else None
    inner = getattr(feature, "feature", inner)
    return inner if type(inner).__name__ == "Image" else None


def _undecoded(feature: Any) -> Any:
    """The feature of images as they are stored, in place of their pixels; None for those of other values."""
    inner = _inner_image(feature)
    if type(feature).__name__ == "Image":
        return type(feature)(decode=False)
    if inner is None:
        return None
    stored = type(inner)(decode=False)
    return [stored] if isinstance(feature, list) else type(feature)(stored)


def _pairs(given: Any, findings: Findings) -> Iterator[Row]:
    """Samples out of a data set of torchvision, of images with a class each; those of files stay the bytes of these.

    Raises:
        SourceError: its targets are no classes.
    """
    names = getattr(given, "classes", None)
    if isinstance(names, list) and all(isinstance(name, str) for name in names):
        findings.classes["label"] = tuple(names)
    for number in range(len(given)):
        if hasattr(given, "samples"):
            image, label = given.samples[number]
            yield {"image": image, "label": label, "name": str(image).lstrip("/")}
            continue
        image, label = given[number]
        if not isinstance(label, (int, str)) and getattr(label, "ndim", None) != 0:
            kind = type(given).__name__
            raise SourceError(
                f"samples: the targets of {kind} are no classes but {type(label).__name__}. Give dicts, such as "
                '{"image": image, "mask": target}'
            )
        yield {"image": image, "label": label}


def _by_split(given: Mapping[str, Any], findings: Findings) -> Iterator[Row]:
    unknown = [str(name) for name in given if not split_called(name)]
    if unknown or not given:
        expected = "expected an iterable of dicts, one per sample, or a dict of such by split: train, val and test"
        raise ArgumentError(
            f"pack(samples): a dict with {some_of(unknown) or 'nothing in it'}; {expected}. Give that"
        )
    for name, part in given.items():
        for sample in samples_of(part, findings):
            yield (
                {**sample, SPLIT: split_called(name)}
                if isinstance(sample, Mapping)
                else sample
            )


class IterableSource(Source):
    """Any Python iterable of dicts, or a table that `samples_of` converts; workers get its spool, not the iterable."""

    takes_paths = True

    def __init__(
        self, samples: Any, pictures: Sequence[str] = (), **options: Any
    ) -> None:
        super().__init__("samples", **options)
        self._samples = samples
        self._pictures = tuple(pictures)

    def rows(self, findings: Findings) -> Iterator[Row]:
        findings.kinds |= dict.fromkeys(self._pictures, PictureKind.name)
        yield from samples_of(self._samples, findings)

    @property
    def title(self) -> str:
        return "samples"

    @property
    def identity(self) -> str:
        return "samples of a Python program"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_samples": ()}
