"""The features that `benchmarks/bench.py --with` can switch on. A new one is an entry in `FEATURES`.

Each is measured as two loaders that take turns, gpuload with it and the same loader without it; where a DataLoader has
a counterpart, as two more. Nothing here imports torch or gpuload at its top: a peer's process, which may lack them, has
this list, too.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from timing import gray, lossless, pairs, recipes
from timing.work import Batches, Open, Work


@dataclass(frozen=True)
class Variant:
    """A loader with a feature, or one that it is compared with.

    what: in words. arguments: of `DaliIterator`; those under "augment" are of `Augment`, both beside the usual ones,
    and "data" is in place of the folder. dataloader: gives a DataLoader that does the same; None: there is none that is
    simple. without: the variant that it is compared with; "": the usual loader. data: the set that is made for it, in
    `timing.feature_data`; "": the one that is measured. raw: whether the DataLoader loads raw pixels. package: that
    the DataLoader needs. channels, one_size: of its batches, as of a `Contender`. peers: other loaders that do the
    same: name, what it is compared with, such as the one without it, and how it is opened.
    """

    what: str
    arguments: Callable[[Work], Mapping[str, Any]] = lambda work: {}
    dataloader: Callable[[Work], Batches] | None = None
    without: str = ""
    data: str = ""
    raw: bool = False
    package: str = "torch"
    channels: int = 3
    one_size: bool = True
    peers: Sequence[tuple[str, str, Open]] = ()

    def folder(self, work: Work) -> Path:
        """Of its set."""
        return work.set_folder(self.data)


def _augment(**arguments: Any) -> Callable[[Work], Mapping[str, Any]]:
    return lambda work: {"augment": arguments}


def _torchs(name: str, *arguments: Any) -> Callable[[Work], Batches]:
    """A DataLoader of `timing.feature_dataloaders`."""

    def make(work: Work) -> Batches:
        from timing import feature_dataloaders

        batches: Batches = getattr(feature_dataloaders, name)(work, *arguments)
        return batches

    return make


def _warps(what: str, *warps: tuple[Any, ...]) -> Variant:
    """warps: names of transforms and their arguments, which are the same in torchvision."""

    def make(work: Work) -> Mapping[str, Any]:
        from gpuload import transforms

        return {
            "augment": {
                "transforms": [
                    getattr(transforms, name)(*arguments) for name, *arguments in warps
                ]
            }
        }

    return Variant(what, make, _torchs("warped", *warps), package="torchvision")


def _padded(mode: str) -> Callable[[Work], Mapping[str, Any]]:
    def make(work: Work) -> Mapping[str, Any]:
        from gpuload import RandomCrop

        return {
            "augment": {
                "crop": RandomCrop(4, pad_if_needed=True, padding_mode=mode),
                "flip": 0.5,
            }
        }  # type: ignore[arg-type]

    return make


def _recipe(work: Work, name: str) -> Mapping[str, Any]:
    return {"augment": {"transforms": recipes.gpuloads(name)}}


def _with_dali(work: Work, name: str) -> AbstractContextManager[Batches]:
    from timing.peers import dali

    return dali.open_pipeline(work, recipe=name)


def _balanced(work: Work) -> Mapping[str, Any]:
    import gpuload

    return {"sampling": gpuload.Balance("label")}


def _function(**options: Any) -> Callable[[Work], Mapping[str, Any]]:
    """One of ours, called for each sample."""

    def make(work: Work) -> Mapping[str, Any]:
        from gpuload.transforms import Function
        from timing.feature_data import fade

        return {"augment": {"transforms": [Function(fade, **options)]}}

    return make


def _bucketed(work: Work) -> Mapping[str, Any]:
    from timing.feature_data import bucket_sizes

    return {"augment": {"size": bucket_sizes(work), "crop": "cover"}}


def _captioned(tokens: bool) -> Callable[[Work], Mapping[str, Any]]:
    def make(work: Work) -> Mapping[str, Any]:
        from gpuload import Captions
        from timing.feature_data import tokenizer

        more: dict[str, Any] = (
            {"tokenizer": tokenizer(work.set_folder("texts"))} if tokens else {}
        )
        return {"fields": ("image", Captions("captions", dropout=0.1, **more))}

    return make


def _pair(
    kind: str, *arguments: Any, **options: Any
) -> Callable[[Work], Mapping[str, Any]]:
    """The image and a further picture. kind: of its spec in gpuload."""

    def make(work: Work) -> Mapping[str, Any]:
        import gpuload

        return {"fields": ("image", getattr(gpuload, kind)(*arguments, **options))}

    return make


def _pair_by_dataloader(data: str, other: str, load: str) -> Callable[[Work], Batches]:
    """load: a class of `timing.pairs`."""

    def make(work: Work) -> Batches:
        return pairs.load_pairs(work, data, other, getattr(pairs, load)(work))

    return make


def _pair_peers(
    data: str, other: str, unit: float | None = None, *, with_opencv: bool = True
) -> Sequence[tuple[str, str, Open]]:
    """with_opencv: whether the DataLoader uses something else."""
    dali = ("dali", "dali", partial(pairs.open_dali, data=data, other=other, unit=unit))
    opencv = (
        "opencv",
        "opencv",
        partial(pairs.open_opencv, data=data, other=other, unit=unit),
    )
    return [opencv, dali] if with_opencv else [dali]


def _mixed(batches: str) -> Callable[[Work], Mapping[str, Any]]:
    def make(work: Work) -> Mapping[str, Any]:
        import gpuload

        dataset = gpuload.Dataset(work.folder)
        third = len(dataset) // 3
        parts = [
            (dataset.subset(range(third)), 3.0),
            (dataset.subset(range(third, len(dataset))), 1.0),
        ]
        steps = max(1, len(dataset) // work.batch_size)
        return {"data": gpuload.mix(parts, batches=batches), "steps_per_epoch": steps}  # type: ignore[arg-type]

    return make


# What some features are compared with.
BASES = {
    "unscaled": Variant(
        "crops that are not scaled",
        _augment(crop="pad_or_crop", flip=0.5),
        _torchs("unscaled"),
        raw=True,
    ),
    "crops": Variant(
        "random crops", dataloader=_torchs("warped"), raw=True, package="torchvision"
    ),
    "stretched": Variant(
        "whole images, stretched", _augment(crop="none"), _torchs("stretched")
    ),
    "texts": Variant(
        "with all captions",
        lambda work: {"fields": ("image", "captions")},
        _torchs("texts"),
        data="texts",
    ),
    "png-unscaled": Variant(
        "PNGs, crops that are not scaled",
        lossless.unscaled(3),
        data="png-unscaled",
    ),
    "mixture": Variant("a mixture of two sets", _mixed("shuffled"), _torchs("mixture")),
    "one-of-two": Variant(
        "the first of two JPEGs",
        lambda work: {"fields": ("image", "label")},
        data="two-jpegs",
    ),
    "gray-png": Variant(
        "gray PNGs of 8 bits",
        _augment(normalize=None),
        _torchs("of_mode", "L", "gray-png"),
        data="gray-png",
        channels=1,
    ),
}
FEATURES = {
    "function": Variant(
        "a NumPy function of each sample, in threads",
        _function(),
        _torchs("with_function"),
    ),
    "function-processes": Variant("the same in two processes", _function(processes=2)),
    "function-before": Variant(
        "the same on the whole image, before the crop", _function(before_crop=True)
    ),
    "balance": Variant(
        "balance='label'; a WeightedRandomSampler",
        _balanced,
        _torchs("balanced"),
    ),
    **{
        f"padding-{mode}": Variant(
            f"RandomCrop(padding=4, padding_mode={mode!r})",
            _padded(mode),
            _torchs("padded", mode),
            "unscaled",
            raw=True,
            package="torchvision",
        )
        for mode in ("constant", "edge", "reflect", "symmetric")
    },
    "rotation-nearest": _warps("RandomRotation(15)", ("RandomRotation", 15)),
    "rotation": _warps(
        "RandomRotation(15, 'bilinear')", ("RandomRotation", 15, "bilinear")
    ),
    "affine": _warps(
        "RandomAffine(10, (0.1, 0.1), (0.9, 1.1), 5, 'bilinear')",
        ("RandomAffine", 10, (0.1, 0.1), (0.9, 1.1), 5, "bilinear"),
    ),
    "perspective": _warps("RandomPerspective(p=1)", ("RandomPerspective", 0.5, 1.0)),
    "warps": _warps(
        "rotation, affine and perspective, bilinear",
        ("RandomRotation", 15, "bilinear"),
        ("RandomAffine", 0, (0.1, 0.1), (0.9, 1.1), None, "bilinear"),
        ("RandomPerspective", 0.5, 1.0),
    ),
    "buckets": Variant(
        "batches of one of several sizes",
        _bucketed,
        _torchs("bucketed"),
        "stretched",
        one_size=False,
    ),
    "captions": Variant(
        "one of five captions, and dropout",
        _captioned(False),
        _torchs("captioned", False),
        "texts",
        "texts",
    ),
    "tokens": Variant(
        "the same, tokenized (WordPiece, 77 tokens)",
        _captioned(True),
        _torchs("captioned", True),
        "texts",
        "texts",
        package="tokenizers",
    ),
    "gray": Variant(
        "mode='L' out of RGB",
        _augment(mode="L", normalize=None),
        _torchs("of_mode", "L"),
        channels=1,
    ),
    "16-bit": Variant(
        "gray PNGs of 16 bits",
        _augment(normalize=None),
        _torchs("of_mode", "I;16", "16-bit-png"),
        "gray-png",
        "16-bit-png",
        channels=1,
        peers=[
            *(
                (
                    decoder,
                    "opencv",
                    partial(gray.open_decoder, data="16-bit-png", decoder=decoder),
                )
                for decoder in ("opencv", "imagecodecs")
            ),
            ("dali", "dali", partial(gray.open_dali, data="16-bit-png")),
        ],
    ),
    **{
        name: Variant(
            description,
            partial(_recipe, name=name),
            _torchs("recipe", name),
            "crops",
            raw=True,
            package="torchvision",
            peers=[
                *(
                    [("dali", "dali", partial(_with_dali, name=name))]
                    if name in recipes.IN_DALI
                    else ()
                ),
                *(
                    [
                        (
                            "albumentations",
                            "opencv",
                            partial(recipes.open_albumentations, name=name),
                        )
                    ]
                    if name in recipes.IN_ALBUMENTATIONS
                    else ()
                ),
            ],
        )
        for name, description in recipes.WHAT.items()
    },
    "two-jpegs": Variant(
        "two JPEGs in a sample",
        _pair("Picture", "right"),
        _pair_by_dataloader("two-jpegs", "right", "PillowPair"),
        "one-of-two",
        data="two-jpegs",
        peers=_pair_peers("two-jpegs", "right"),
    ),
    "depth": Variant(
        "a JPEG and a 16-bit PNG of depths",
        _pair("Depth", "depth", unit=0.001),
        data="depth",
        peers=_pair_peers("depth", "depth", 0.001),
    ),
    "mask": Variant(
        "a JPEG and a PNG of classes",
        lambda work: {"fields": ("image", "mask")},
        data="mask",
        peers=_pair_peers("mask", "mask"),
    ),
    "bands": Variant(
        "GeoTIFFs of 13 bands of uint16, crops that are not scaled",
        lossless.unscaled(lossless.BANDS),
        data="bands",
        channels=lossless.BANDS,
        peers=[
            (
                "rasterio",
                "gpuload+bands",
                partial(lossless.open_rasterio, data="bands"),
            )
        ],
    ),
    "webp": Variant(
        "lossless WebP",
        dataloader=_torchs("of_mode", "RGB", "webp"),
        data="webp",
        peers=[
            (
                decoder,
                "gpuload+webp",
                partial(lossless.open_decoder, data="webp", decoder=name),
            )
            for decoder, name in (
                ("opencv", "simplejpeg"),
                ("imagecodecs", "imagecodecs"),
            )
        ],
    ),
    "png-points": Variant(
        "PNGs with seek points, crops that are not scaled",
        lossless.unscaled(3),
        without="png-unscaled",
        data="png-points",
        peers=[
            (
                decoder,
                "gpuload+png-points",
                partial(lossless.open_unscaled, data="png-points", decoder=decoder),
            )
            for decoder in ("opencv", "imagecodecs")
        ],
    ),
    "stratified": Variant(
        "the shares of two sets in each batch",
        _mixed("stratified"),
        _torchs("stratified"),
        "mixture",
    ),
}
VARIANTS = {**BASES, **FEATURES}


@contextmanager
def open_gpuload(work: Work, name: str) -> Iterator[Batches]:
    """gpuload with a feature."""
    import gpuload

    variant = VARIANTS[name]
    arguments = dict(variant.arguments(work))
    augment = gpuload.Augment(
        **{"size": work.size, "dtype": work.dtype, **arguments.pop("augment", {})}
    )
    data = arguments.pop("data", variant.folder(work))
    usual = {"device": "cpu", "num_threads": work.threads}
    with gpuload.DaliIterator(
        data, work.batch_size, augment=augment, **{**usual, **arguments}
    ) as loader:
        yield loader


@contextmanager
def open_dataloader(work: Work, name: str) -> Iterator[Batches]:
    """A DataLoader that does the same."""
    make = VARIANTS[name].dataloader
    assert make is not None
    loader = make(work)
    yield loader
    del loader


_PACKAGES = {
    "dali": "nvidia.dali",
    "albumentations": "albumentations",
    "opencv": "cv2",
    "imagecodecs": "imagecodecs",
    "rasterio": "rasterio",
}


def opened() -> Iterator[tuple[str, str, Any, Variant]]:
    """Each contender's name, what it is, how it is opened, and what it is a variant of."""
    for name, variant in VARIANTS.items():
        yield (
            f"gpuload+{name}",
            f"gpuload, {variant.what}",
            partial(open_gpuload, name=name),
            variant,
        )
        if variant.dataloader is not None:
            yield (
                f"torch+{name}",
                f"DataLoader, {variant.what}",
                partial(open_dataloader, name=name),
                variant,
            )
        for peer, _, opens in variant.peers:
            yield (
                f"{peer}+{name}",
                f"{peer}, {variant.what}",
                opens,
                replace(variant, package=_PACKAGES[peer], raw=False),
            )


def names_of(feature: str) -> list[tuple[str, str]]:
    """The contenders for a feature, of each loader that has it: without and with."""
    described = FEATURES[feature]
    loaders = ["gpuload"]
    if described.dataloader is not None:
        loaders.append("torch")
    with_base = {"gpuload"} if described.without else set()
    if described.without and VARIANTS[described.without].dataloader is not None:
        with_base.add("torch")
    variants = [
        (
            f"{loader}+{described.without}" if loader in with_base else loader,
            f"{loader}+{feature}",
        )
        for loader in loaders
    ]
    return [
        *variants,
        *((without, f"{peer}+{feature}") for peer, without, _ in described.peers),
    ]
