"""Assembles the requested fields of a batch."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from gpuload.augment import Augment, View
from gpuload.augment.pictures import (
    Alone,
    AsImage,
    Follower,
    FormOf,
    MovedList,
    MovedMask,
    MovedPicture,
)
from gpuload.augment.schedule import Schedule
from gpuload.batchwise import BatchForm, BatchTransform, FieldBatch
from gpuload.batchwise.mixers import Mixer
from gpuload.batchwise.transforms import apply_transforms, check_transforms
from gpuload.counted import counted
from gpuload.decode.interface import Changed, Decoded, PictureForm
from gpuload.decode.open import find_stored
from gpuload.decode.patches import patch_places, patch_shapes
from gpuload.disk.dataset import Dataset
from gpuload.errors import ArgumentError, some_of
from gpuload.fields.images import GRAY, Pixels
from gpuload.fields.kind import FieldSpec
from gpuload.fields.maps import Disparity, IdValues
from gpuload.fields.motion import Motion
from gpuload.fields.numbers import BoundIntegers
from gpuload.fields.picture_lists import (
    PackedPictures,
    PaddedPictures,
    Pictures,
    PicturesKind,
    with_leading_counts,
)
from gpuload.fields.pictures import PictureKind
from gpuload.fields.registry import Computed, bind_field
from gpuload.fields.rows import (
    Each,
    MovingField,
    PixelField,
    Ragged,
    Rows,
    map_tree,
)
from gpuload.lists import bounds_of
from gpuload.output.arrays import Arrays
from gpuload.output.names import CORRUPT, BatchNames, name_of
from gpuload.read.batch import Batch
from gpuload.read.shards import check_first_rows
from gpuload.transforms.warps import affine_of
from gpuload.types import I64, HeightWidth

_NOT_IN_INDEX = ("index", "dataset")  # the batch has them


class Collate:
    """Turns decoded batches into named tuples of the user's arrays, or into dicts.

    Args:
        fields: The requested ones, by name or as a spec, in the order of a batch.
        datasets: Of which samples are.
        schedule: The views of the image.
        transforms: Of whole batches, in the order in which they are applied.
        keys: The names of the fields in dicts, in which added fields keep their own; None for named tuples.
        marks: Whether batches tell which samples do not decode.
        alone: By name, the augmentations of pictures that move by themselves.

    Attributes:
        mixes: Whether MixUp and similar transforms mix batches, which may be set.
        has_mixers: Whether there are any, but for those that functions of the user call.
        moving: The fields that move with the image.
        image: The name of the image of the samples.
        has_images: Whether the image is requested.
        masks: Names of the mask fields.
        pictures: Those besides it, in the order in which their views are made.
        columns: Names of the index columns that the fields need.
        members: Names of the shard members that the fields need.
        names: Of the fields of a batch.

    Raises:
        ArgumentError: a field that was not packed, or a batch transform that cannot work on these fields.
        ShardError: the index of a first sample is damaged.
    """

    def __init__(
        self,
        fields: Sequence[str | FieldSpec],
        datasets: Sequence[Dataset],
        schedule: Schedule,
        transforms: Sequence[BatchTransform],
        keys: tuple[str, ...] | None = None,
        marks: bool = False,
        alone: Mapping[str, Augment] | None = None,
    ) -> None:
        for dataset in datasets:
            check_first_rows(dataset)
        self._transforms = tuple(transforms)
        self._datasets = datasets
        self.mixes = True
        self.has_mixers = any(
            isinstance(transform, Mixer) for transform in self._transforms
        )
        self.names = BatchNames.of(fields, transforms, keys, marks)
        bound = _bind(fields, datasets, self.names.added)
        self._taken = tuple(field.name for field in bound)
        self._bound = [field for field in bound if not isinstance(field, PixelField)]
        self.moving = [field for field in self._bound if isinstance(field, MovingField)]
        pixels = [field for field in bound if isinstance(field, PixelField)]
        pixels = with_leading_counts(pixels, datasets)
        self._pixel_fields = {field.name: field for field in pixels}
        self.image = datasets[0].manifest.image.name
        kinds = {field.name: field.kind for field in pixels}
        self.has_images = "image" in kinds.values()
        self.masks = tuple(name for name, kind in kinds.items() if kind == "mask")
        self.pictures = moved_pictures(
            self.image, pixels, alone or {}, len(schedule.forms)
        )
        if schedule.flips:
            check_disparities(pixels, self.pictures)
            check_exchanged(self.image, pixels, self.pictures, self.moving)
        self.columns = _index_columns(self._bound)
        self.members = _shard_members(self._bound)
        self._is_single = schedule.is_single
        self._lists = [form.sizes == "list" for form in schedule.forms]
        self._patch = schedule.forms[0].patch
        classes = datasets[0].classes
        self._num_classes = None if classes is None else len(classes)
        self._check(schedule)

    @property
    def shown(self) -> str:
        """The name of the picture with which previews begin: the image, or the first further picture or list; "" where
        none is requested."""
        if self.has_images:
            return self.image
        further = (
            name
            for name, field in self._pixel_fields.items()
            if field.kind in (PictureKind.name, PicturesKind.name)
        )
        return next(further, "")

    def picture_forms(
        self, schedule: Schedule, needs_image: bool
    ) -> tuple[PictureForm, ...]:
        """What is decoded: the image, if it is needed, and the other pictures.

        Args:
            schedule: Of the image, fitted to its pixels.
            needs_image: Whether the image is decoded.

        Raises:
            ArgumentError: A picture does not fit the one with which it moves; or samples have no image.
        """
        forms = {self.image: schedule.forms}
        decoded = []
        if needs_image:
            for dataset in self._datasets:
                _refuse_missing(dataset)
            stored = find_stored(self._datasets, self.image, schedule.pixels)
            decoded.append(PictureForm(self.image, schedule.forms, stored))
        for picture in self.pictures:
            name = picture.name
            field = self._pixel_fields[name]
            assert field.field is not None
            is_mask = field.kind == "mask"
            pixels = GRAY if is_mask else Pixels.of_field(field.field)
            picture_forms = picture.forms(forms)
            forms[name] = picture_forms
            stored = find_stored(self._datasets, name, pixels, is_mask=is_mask)
            decoded.append(
                PictureForm(
                    name,
                    picture_forms,
                    stored,
                    field.values,
                    is_list=isinstance(picture, MovedList),
                    most=self._most_of(field),
                    is_further=True,
                )
            )
        return tuple(decoded)

    def largest_sizes(self, name: str, schedule: Schedule) -> tuple[HeightWidth, ...]:
        """(height, width) of each view of a picture in pixels, where it is largest.

        Args:
            name: Of the picture.
            schedule: Of the image.
        """
        sizes = {self.image: schedule.largest_sizes}
        for picture in self.pictures:
            sizes[picture.name] = picture.output_sizes(sizes)
        return sizes[name]

    def _most_of(self, field: PixelField) -> int:
        """The most pictures of a name that a sample has in a batch; 0 if that is unknown."""
        if field.kind != PicturesKind.name:
            return 1
        if field.spec.count is not None:
            count: int = field.spec.count
            return count
        fields = [dataset.require_field(field.name) for dataset in self._datasets]
        if any(one.counts is None for one in fields):
            return 0
        return max(one.counts[1] for one in fields if one.counts is not None)

    def _check(self, schedule: Schedule) -> None:
        """Raises ArgumentError where the fields, the views and the batch transforms do not fit together."""
        # Padding that repeats parts of the image repeats them without their boxes and keypoints.
        modes = {form.padding_mode for form in schedule.forms} - {"constant"}
        if modes and self.moving:
            raise ArgumentError(
                f"fields: {self.moving[0].name!r} are not defined with RandomCrop(padding_mode={modes.pop()!r}), whose "
                "padding shows parts of the image again. Use padding_mode='constant'"
            )
        computed = [field.name for field in self._bound if isinstance(field, Computed)]
        if schedule.buckets is None and "bucket" in computed:
            raise ArgumentError(
                "fields: 'bucket' is the number of a batch's bucket, and there are none. Give size=Buckets(...)"
            )
        is_array = self._is_single and not any(self._lists) and not self._patch
        if self._transforms and not is_array:
            raise ArgumentError(
                "batch_transforms: change one view of a batch, of images of one size, not a list of images, patches or "
                "several views. Use one view, or Resize(pad_to_multiple_of=1), or transform them in the training loop"
            )
        classes = tuple(f.name for f in self._bound if isinstance(f, BoundIntegers))
        for augment in schedule.all_augments():
            form = BatchForm(
                self._taken,
                augment.output_size,
                augment.dtype,
                self._num_classes,
                classes,
            )
            check_transforms(self._transforms, form)

    def __call__(self, decoded: Decoded, arrays: Arrays) -> Any:
        """The fields of a batch in the requested order, then those added by batch transforms, by name, then the marks.

        Args:
            decoded: The batch. If samples that do not decode are marked, their pixels become zeros.
            arrays: Makes the user's arrays.
        """
        batch = decoded.batch
        values = self._values(decoded)
        make = arrays.staging() if self._transforms else arrays
        with arrays.stream() if self._transforms else nullcontext():
            fields = {
                name: _each(make.from_host, value) for name, value in values.items()
            }
            for name in self._pixel_fields:
                fields[name] = self._picture_field(name, decoded, make)
            if self._transforms:
                fields = self._transform(batch, fields, arrays)
        if self.names.marks:
            marks = np.zeros(len(batch), np.bool_)
            marks[list(decoded.faults)] = True
            fields[CORRUPT] = arrays.from_host(marks)
        return self.names.batch_of(fields)

    def _picture_field(self, name: str, decoded: Decoded, make: Arrays) -> Any:
        """The pixels of a picture in all views."""
        batch = decoded.batch
        field = self._pixel_fields[name]
        views = [self._array(make, field, array) for array in decoded.pictures[name]]
        if self.names.marks and decoded.faults:
            rows = _rows_of(batch.owners(name), list(decoded.faults))
            _clear(views, rows, missing_value(field))
        if self._patch and name == self.image:
            shapes = patch_shapes(batch.image_views[0], self._patch)
            return _with_places(make, views[0], shapes)
        return self._pixels(batch, name, views, make)

    def _values(self, decoded: Decoded) -> dict[str, Any]:
        """The fields besides the pixels: as they were computed, or where functions of samples moved them, anew."""
        batch = decoded.batch
        values = dict(batch.fields)
        if not any(decoded.changed):
            return values
        views = [
            _rows(batch, number, changed, moves=True)
            for number, changed in enumerate(decoded.changed)
        ]
        moved_columns = {column for moved in self.moving for column in moved.columns}
        for field in self._bound:
            if not moved_columns.isdisjoint(field.columns):
                values[field.name] = self._views([field.values(view) for view in views])
        return values

    def _transform(
        self, batch: Batch, fields: Mapping[str, Any], arrays: Arrays
    ) -> dict[str, Any]:
        """The fields after the batch transforms, with those that these add."""
        transformed = {name: fields[name] for name in self._taken}
        apply_transforms(
            self._transforms,
            FieldBatch(transformed, self._num_classes, batch.draws, self.mixes),
        )
        for name in self.names.fields:
            if name not in transformed:
                raise ArgumentError(
                    f"batch_transforms: removed the field {name!r}, which was requested"
                )
        return {
            name: self._adopt(name, transformed[name], arrays)
            for name in self.names.fields
        }

    def add_fields(self, batch: Batch) -> Batch:
        """The batch with its fields besides the pixels, which are computed where it is read.

        Raises:
            ArgumentError: a label that is no class, if a mixer makes soft labels of them.
        """
        rows = _rows(batch, moves=bool(self.moving))
        fields = {field.name: field.values(rows) for field in self._bound}
        # Behind another transform, labels may be other ones.
        first = self._transforms[0] if self._transforms else None
        if isinstance(first, Mixer):
            self._check_labels(first, fields["label"], rows)
        return replace(batch, fields=fields)

    def _check_labels(self, mixer: Mixer, labels: Any, rows: Rows) -> None:
        strays = mixer.strays(labels, self._num_classes)
        if len(strays):
            row = int(strays[0])
            sample = rows.sample_name(self._datasets, row)
            raise ArgumentError(
                f"{sample}: its 'label' is {labels[row]}, which is no class, and {mixer} cannot mix it. Leave out "
                "samples without a class, or the mixer; for a larger number, give num_classes"
            )

    def _array(self, make: Arrays, field: PixelField, array: Any) -> Any:
        """A picture's view as the user's array: masks and ids have no channels."""
        if field.kind == "mask":
            return make.cast(make.from_decoder(array)[:, 0], field.dtype)
        if field.values is None:
            is_patched = self._patch and field.name == self.image
            return make.patches(array) if is_patched else make.images(array)
        values = make.from_decoder(array)
        return values[:, 0] if isinstance(field.values, IdValues) else values

    def _pixels(self, batch: Batch, name: str, arrays: list[Any], make: Arrays) -> Any:
        """The pictures of all views; in a list, each without its padding."""
        stored = batch.pictures[name]
        for number, (view, is_list) in enumerate(
            zip(batch.views_of(name), self._lists, strict=True)
        ):
            if view.crops.sizes is not None:
                height, width = view.size
                # Smaller if the largest was replaced.
                arrays[number] = arrays[number][..., :height, :width]
                if is_list:
                    arrays[number] = _in_own_sizes(arrays[number], view)
            if isinstance(stored, Ragged):
                field = self._pixel_fields[name]
                arrays[number] = _of_samples(arrays[number], stored.counts, field, make)
        return self._views(arrays)

    def _views(self, values: list[Any]) -> Any:
        return values[0] if self._is_single else tuple(values)

    def _adopt(self, name: str, value: Any, arrays: Arrays) -> Any:
        """Images, and added fields of that shape, get the batch's dtype; other fields do not change."""
        field = self._pixel_fields.get(name)
        is_image = (
            name in self.names.added and getattr(value, "ndim", 0) == 4
            if field is None
            else field.kind != "mask" and field.values is None
        )
        return _each(
            # The counts of a list of pictures are no images.
            lambda array: arrays.adopt(array, is_image=is_image and array.ndim > 1),
            value,
        )


def _samples_of(dataset: Dataset, number: int) -> str:
    """The subject of a sentence that goes on with what the samples lack."""
    folder = dataset.folder
    return counted(number, f"sample of {folder} has", f"samples of {folder} have")


def _refuse_missing(dataset: Dataset) -> None:
    """Raises ArgumentError if samples have no image, for loaders that decode it."""
    without = dataset.samples_without_image()
    if not len(without):
        return
    image = dataset.manifest.image
    lists = [
        field.name
        for field in dataset.fields.values()
        if field.kind == PicturesKind.name
    ]
    name = lists[0] if lists else "images"
    raise ArgumentError(
        f"fields: {_samples_of(dataset, len(without))} no {image.name!r}, such as {dataset.keys(without[:1])[0]!r}. "
        f"Request Pictures({name!r}), with count=1 and fewer='pad' for one of each; or leave these samples out: "
        f"dataset.filter(pc.field({image.bytes_column!r}) > 0)"
    )


def _in_own_sizes(images: Any, view: View) -> list[Any]:
    """Each image without its padding."""
    sizes = map(view.own_size, range(len(images)))
    return [
        image[..., :height, :width]
        for image, (height, width) in zip(images, sizes, strict=True)
    ]


def _of_samples(pixels: Any, counts: I64, field: PixelField, make: Arrays) -> Any:
    """The pictures of a list as `Pictures` says.

    Args:
        pixels: (sum of counts, C, height, width), or a list of pictures of several sizes.
        counts: int64 (N,), of each sample.
        field: The list, with the spec with which it was requested.
        make: Makes arrays.
    """
    spec: Pictures = field.spec
    if isinstance(pixels, list):
        bounds = pairwise(bounds_of(counts).tolist())
        return [pixels[start:end] for start, end in bounds]
    if spec.count is None:
        return PackedPictures(pixels, make.from_host(counts))
    if spec.fewer != "pad":
        return pixels.reshape(len(counts), spec.count, *pixels.shape[1:])
    padded = make.zeros(pixels, (len(counts) * spec.count, *pixels.shape[1:]))
    padded[:] = missing_value(field)
    rows = Ragged(counts, None)
    places = rows.samples * spec.count + rows.positions
    padded[make.from_host(places)] = pixels
    by_sample = padded.reshape(len(counts), spec.count, *pixels.shape[1:])
    return PaddedPictures(by_sample, make.from_host(counts))


def _bind(
    fields: Sequence[str | FieldSpec],
    datasets: Sequence[Dataset],
    added: frozenset[str],
) -> list[Any]:
    """The requested fields as batches have them, without those that transforms alone make."""
    stored = {name for dataset in datasets for name in dataset.fields}
    only_added = added - stored
    return [
        bind_field(field, datasets)
        for field in fields
        if name_of(field) not in only_added
    ]


def _index_columns(fields: Iterable[Any]) -> tuple[str, ...]:
    """The columns of the index that fields need, each once."""
    columns = [column for field in fields for column in field.columns]
    return tuple(
        dict.fromkeys(column for column in columns if column not in _NOT_IN_INDEX)
    )


def _shard_members(fields: Iterable[Any]) -> tuple[str, ...]:
    """The members of shards that fields need, each once."""
    return tuple(dict.fromkeys(member for field in fields for member in field.members))


def missing_value(field: PixelField) -> float:
    """What a picture holds where its sample does not decode."""
    if field.kind == "mask":
        return field.fill
    if field.values is None:
        return 0
    spec = field.spec
    if isinstance(spec, Pictures):
        spec = spec.map_spec
    return float(getattr(spec, "missing", getattr(spec, "fill", 0)))


def moved_pictures(
    image: str, fields: Sequence[PixelField], alone: Mapping[str, Augment], views: int
) -> tuple[MovedPicture, ...]:
    """The pictures besides the image, each after the one with which it moves.

    Args:
        image: The name of the image.
        fields: Those whose values are decoded.
        alone: By name, the augmentations of pictures that move by themselves.
        views: The number of views of the image.

    Raises:
        ArgumentError: a picture moves with one that is not there, or two with each other.
    """
    waiting = {
        field.name: moved_picture(image, field, alone, views)
        for field in fields
        if field.kind != "image"
    }
    if strangers := sorted(set(alone) - set(waiting)):
        raise ArgumentError(
            f"augment: {strangers[0]!r} is not among the requested pictures, {some_of([image, *waiting])}"
        )
    pictures: dict[str, MovedPicture] = {}
    leaders = [image]
    lists: list[str] = []
    while waiting:
        ready = [
            name
            for name, picture in waiting.items()
            if _like_of(picture, image) in leaders
            or (isinstance(picture, MovedList) and picture.like in (name, *lists))
        ]
        if not ready:
            name, picture = next(iter(waiting.items()))
            raise ArgumentError(
                f"fields: {name!r} moves as {_like_of(picture, image)!r}, which is no requested picture that is moved "
                f"before it, or a list. Request it too, or give like={image!r}"
            )
        for name in ready:
            pictures[name] = waiting.pop(name)
            followers = lists if isinstance(pictures[name], MovedList) else leaders
            followers.append(name)
    return tuple(pictures.values())


def _like_of(picture: MovedPicture, image: str) -> str:
    """The name of the picture as which one moves."""
    like: str = getattr(picture, "like", image)
    return like


def check_disparities(
    fields: Sequence[PixelField], pictures: Sequence[MovedPicture]
) -> None:
    """Checks that disparities change places where the views of a stereo camera do.

    Args:
        fields: Those whose values are decoded.
        pictures: Those besides the image, of all fields.

    Raises:
        ArgumentError: A flipped pair would have the disparities of the other view.
    """
    exchanged = _exchanged(pictures)
    paired = {*exchanged, *exchanged.values()}
    disparities = [field for field in fields if _is_disparity(field)]
    views = [
        name for name in exchanged if name not in {one.name for one in disparities}
    ]
    for field in disparities:
        if field.name in exchanged and not views:
            raise ArgumentError(
                f"fields: {field.name!r} and {exchanged[field.name]!r} change places in flipped images, and the views "
                "that they belong to do not. Request the other view, too, with swapped=True, as Picture('right', "
                "swapped=True); or leave one of the disparities out"
            )
        if views and field.name not in paired:
            raise ArgumentError(
                f"fields: {views[0]!r} and {exchanged[views[0]]!r} change places in flipped images, whose disparity is "
                f"then that of the other view. Give it, too, as Disparity(…, like={field.name!r}, swapped=True); or "
                "Augment(flip=0), with vertical_flip=0.5 in its place"
            )


def _exchanged(pictures: Sequence[MovedPicture]) -> dict[str, str]:
    """By name, the pictures that change places with others, and these."""
    pairs = {picture.name: picture.swapped_with for picture in pictures}
    return {name: other for name, other in pairs.items() if other}


def _is_disparity(field: PixelField) -> bool:
    """Whether a field is a disparity, or a list of such."""
    return isinstance(field.spec, Disparity) or isinstance(
        getattr(field.spec, "each", None), Disparity
    )


def check_exchanged(
    image: str,
    fields: Sequence[PixelField],
    pictures: Sequence[MovedPicture],
    moving: Sequence[MovingField],
) -> None:
    """Checks that what belongs to one view of a stereo camera is not shown with the other one.

    Args:
        image: The name of the image.
        fields: Those whose values are decoded.
        pictures: Those besides the image, of all fields.
        moving: Those that move with the image, such as boxes.

    Raises:
        ArgumentError: A map, a mask or such a field belongs to a picture that changes places with another.
    """
    exchanged = _exchanged(pictures)
    partners = {**{other: name for name, other in exchanged.items()}, **exchanged}
    owners = {field.name: image for field in moving}
    for field in fields:
        if field.kind == "mask":
            owners[field.name] = image
        elif field.values is not None and field.name not in partners:
            owners[field.name] = field.spec.like or image
    for name, owner in owners.items():
        if owner in partners:
            raise ArgumentError(
                f"fields: {owner!r} and {partners[owner]!r} change places in flipped images, and {name!r} is that of "
                f"{owner!r} alone. Use Augment(flip=0), with vertical_flip=0.5 in its place, or leave one out"
            )


def moved_picture(
    image: str, field: PixelField, alone: Mapping[str, Augment], views: int
) -> MovedPicture:
    """How a picture is moved. The arguments are those of `moved_pictures`."""
    if field.kind == PicturesKind.name:
        return moved_list(image, field, alone.get(field.name), views)
    if field.name in alone:
        if field.kind == "mask" or field.values is not None:
            raise ArgumentError(
                f"augment: {field.name!r} is a map of values, which moves with a picture. Give like= in its spec"
            )
        return Alone(field.name, alone[field.name], views)
    if field.kind == "mask":
        return MovedMask(field.name, image, field.fill)
    spec = field.spec
    values = field.values
    assert field.field is not None
    normalize = getattr(spec, "normalize", None)
    form = FormOf(
        takes_values=values is not None,
        interpolation=spec.interpolation,
        pixels=Pixels.of_field(field.field),
        mean=None if normalize is None else normalize.mean,
        std=None if normalize is None else normalize.std,
    )
    return Follower(
        field.name,
        spec.like or image,
        spec.scale,
        getattr(spec, "colors", "none"),
        form,
        swapped=getattr(spec, "swapped", False),
    )


def moved_list(
    image: str, field: PixelField, augment: Augment | None, views: int
) -> MovedList:
    """How the pictures of a list are moved.

    Args:
        image: The name of the image.
        field: The list.
        augment: Of the list alone; None: that of the image.
        views: The number of views of the image.

    Raises:
        ArgumentError: They have an augmentation of their own, and are to move as another picture.
    """
    spec: Pictures = field.spec
    assert field.field is not None
    normalize = spec.normalize
    map_spec = spec.map_spec
    interpolation: Any = spec.interpolation
    if map_spec is not None:
        interpolation = map_spec.interpolation
    form = FormOf(
        takes_values=map_spec is not None,
        interpolation=interpolation,
        pixels=Pixels.of_field(field.field),
        mean=None if normalize is None else normalize.mean,
        std=None if normalize is None else normalize.std,
    )
    colors = spec.drawn_colors
    moved: MovedPicture
    if augment is not None:
        if spec.geometry != "own":
            raise ArgumentError(
                f"augment: the pictures of {field.name!r} move with another one, unless each is drawn by itself. Give "
                f"Pictures({field.name!r}, geometry='own'), or no augmentation of their own"
            )
        moved = Alone(field.name, augment, views)
    elif spec.geometry == "own":
        moved = AsImage(field.name, image, form)
    else:
        colors_of_one = "own" if colors == "each" else colors
        leader = spec.like or image
        moved = Follower(
            field.name, leader, spec.scale, colors_of_one, form, swapped=spec.swapped
        )
    return MovedList(moved, spec.chosen, spec.geometry, colors)


def _rows(
    batch: Batch,
    view: int | None = None,
    changed: Changed | None = None,
    *,
    moves: bool = False,
) -> Rows:
    """The rows of a batch for its fields: with all views, or with one of them and the results of a function.

    Args:
        moves: With the maps of points by transforms, which take a millisecond for 256 samples.
    """
    views = batch.image_views
    if view is not None:
        views = views[view : view + 1]
    columns = dict(batch.columns)
    crops = [view.crops for view in views]
    if changed is not None:
        columns |= changed.columns
        crops = [changed.crops]
    columns["index"] = batch.samples
    columns["dataset"] = batch.sources
    motions = []
    for crop, shown in zip(crops, views, strict=True):
        affine = None
        if moves and shown.steps is not None:
            affine = affine_of(shown.steps, *shown.size)
        motions.append(Motion(crop, shown.size, affine))
    return Rows(columns, batch.members, motions, batch.bucket, batch.keys)


def _rows_of(owners: I64 | None, samples: Sequence[int]) -> list[int]:
    """The pictures of these samples.

    Args:
        owners: The sample of each picture; None: there is one of each.
    """
    if owners is None:
        return list(samples)
    rows: list[int] = np.flatnonzero(np.isin(owners, list(samples))).tolist()
    return rows


def _with_places(make: Arrays, patches: Any, shapes: I64) -> dict[str, Any]:
    """Patches (N, L, …) with where they lie.

    Args:
        make: Makes arrays.
        patches: Of a batch.
        shapes: int64 (N, 2), rows and columns of patches of each image.
    """
    longest = int(shapes.prod(axis=1).max(initial=1))
    coordinates, is_valid = patch_places(shapes, longest)
    return {
        "patches": patches[:, :longest],  # shorter if the largest was replaced
        "patch_coord": make.from_host(coordinates),
        "patch_valid": make.from_host(is_valid),
    }


def _clear(views: Sequence[Any], rows: list[int], level: float) -> None:
    """Sets these rows of an array for each view to a level."""
    for array in views:
        array[rows] = level


def _each(make: Callable[[Any], Any], value: Any) -> Any:
    """The same container with `make` applied to each array; lists of text and numbers do not change."""

    def made_of(leaf: Any) -> Any:
        if isinstance(leaf, Each):
            return Each(_each(make, part) for part in leaf)
        return leaf if isinstance(leaf, list | int) else make(leaf)

    return map_tree(made_of, value)
