"""Recipes of others by name: `Augment.deit()` and the like, and those that torchvision's and timm's transforms are."""

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from gpuload.augment.crops import MOST_PX, SHARES, CenterCrop, Geometry, RandomResizedCrop, Resize, ScaleJitter
from gpuload.augment.translate import arguments_of
from gpuload.augment.views import Normalize
from gpuload.checks import FLAG, SIDE, check, choice, function, instance, number, optional, whole
from gpuload.transforms.color import ColorJitter, GaussianBlur, RandomGrayscale, RandomSolarize
from gpuload.transforms.compose import RandomApply
from gpuload.transforms.erasing import RandomErasing
from gpuload.transforms.policies import TimmAutoAugment
from gpuload.transforms.steps import Transform

if TYPE_CHECKING:  # Python 3.10 has none
    from typing_extensions import Self

_CONFIG = optional(instance("a dict, as timm.data.resolve_model_data_config gives it", Mapping))
_DINO = "Augment.dino"
Policy = Literal["hflip", "lsj", "multiscale"]


class Recipes:
    """The class methods of `Augment` that make one. Each takes `changes`: other arguments of `Augment`."""

    if TYPE_CHECKING:

        def __init__(self, *arguments: Any, **named: Any) -> None: ...

    @classmethod
    def imagenet_train(cls, size: int = 224, **changes: Any) -> "Self":
        """The basis of torchvision's reference training of ResNet-50: random crops, flips, ImageNet's mean and std."""
        return cls(size, **{"crop": "random", **changes})

    @classmethod
    def imagenet_eval(cls, size: int = 224, **changes: Any) -> "Self":
        """Its evaluation: the shorter side resized to size * 256 / 224, then a center crop."""
        return cls(size, **{"crop": "center", **changes})

    @classmethod
    def inception(cls, size: int = 299, *, train: bool, **changes: Any) -> "Self":
        """The preprocessing of the Inception networks in TensorFlow's models: values in -1..1.

        Training: crops of 5 to 100 % of the area, flips, and colour jitter (brightness by 32/255, saturation and
        contrast by half, hue by 0.2; brightness is multiplied here, where TensorFlow adds). Evaluation: the central
        87.5 % of each side, stretched to size.
        """
        train = check("Augment.inception", "train", train, FLAG)
        normalize = Normalize((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
        if not train:
            return cls(size, **{"crop": CenterCrop(fraction=0.875), "normalize": normalize, **changes})
        jitter = ColorJitter(brightness=32 / 255, contrast=0.5, saturation=0.5, hue=0.2)
        crop = RandomResizedCrop((0.05, 1.0))
        return cls(size, **{"crop": crop, "transforms": (jitter,), "normalize": normalize, **changes})

    @classmethod
    def simclr(cls, size: int = 224, *, strength: float = 1.0, **changes: Any) -> "Self":
        """A view of SimCLR's: `augment=[Augment.simclr()] * 2` makes both, with values in 0..1.

        strength: of the colour jitter; 0.5 is the paper's for CIFAR-10, without blur (Chen et al., arXiv 2002.05709).
        """
        size = check("Augment.simclr", "size", size, SIDE)
        strength = check("Augment.simclr", "strength", strength, number(0, 2.5, "a factor in 0..2.5"))
        jitter = ColorJitter(0.8 * strength, 0.8 * strength, 0.8 * strength, 0.2 * strength)
        blur = GaussianBlur(size // 10 // 2 * 2 + 1, (0.1, 2.0))
        transforms = (RandomApply((jitter,), 0.8), RandomGrayscale(0.2), RandomApply((blur,), 0.5))
        fixed = {"crop": RandomResizedCrop(), "interpolation": "bicubic", "normalize": None}
        return cls(size, **{**fixed, "transforms": transforms, **changes})

    @classmethod
    def dino(
        cls,
        size: int = 224,
        *,
        local_size: int = 98,
        local_views: int = 8,
        global_scale: tuple[float, float] = (0.32, 1.0),
        local_scale: tuple[float, float] = (0.05, 0.32),
        **changes: Any,
    ) -> list["Self"]:
        """The views of DINOv2's pre-training: two global ones, of which the second is solarised at times, then local
        ones. `augment=Augment.dino()` makes all of a sample.

        size, local_size: of the views in pixels. global_scale, local_scale: of their areas.
        """
        size, local_size = check(_DINO, "size", size, SIDE), check(_DINO, "local_size", local_size, SIDE)
        local_views = check(_DINO, "local_views", local_views, whole(0, 1000))
        for name, scale in (("global_scale", global_scale), ("local_scale", local_scale)):
            check(_DINO, name, scale, SHARES)
        colours = (RandomApply((ColorJitter(0.4, 0.4, 0.2, 0.1),), 0.8), RandomGrayscale(0.2))

        def view(size: int, scale: tuple[float, float], blurred: float, *last: Transform) -> Any:
            blur = RandomApply((GaussianBlur(9, (0.1, 2.0)),), blurred)
            fixed = {"crop": RandomResizedCrop(scale), "interpolation": "bicubic"}
            return cls(size, **{**fixed, "transforms": (*colours, blur, *last), **changes})

        both = view(size, global_scale, 1.0), view(size, global_scale, 0.1, RandomSolarize(128, 0.2))
        return [*both, *[view(local_size, local_scale, 0.5)] * local_views]

    @classmethod
    def deit(cls, size: int = 224, **changes: Any) -> "Self":
        """DeiT's training: bicubic random crops, timm's RandAugment, and noise in a rectangle of every fourth image
        (Touvron et al., arXiv 2012.12877). To it belong `sampling=Repeated(3)` and `batchwise.TimmMixup(0.8, 1.0,
        label_smoothing=0.1)`.
        """
        erasing = RandomErasing(0.25, (0.02, 1 / 3), (0.3, 1 / 0.3), "random")
        fixed = {
            "interpolation": "bicubic",
            "transforms": (TimmAutoAugment("rand-m9-mstd0.5-inc1", (124, 116, 104)), erasing),
        }
        return cls(size, **{**fixed, **changes})

    @classmethod
    def segmentation(cls, size: int = 480, *, base_size: int = 520, train: bool = True, **changes: Any) -> "Self":
        """torchvision's references for segmentation.

        size: of the crops in training, in pixels. base_size: shorter side of the images in an evaluation, which come
            padded to the largest of their batch; in training it is half of that to twice as much. `Mask(fill=255)`
            marks the padding.
        """
        size = check("Augment.segmentation", "size", size, SIDE)
        base_size = check("Augment.segmentation", "base_size", base_size, SIDE)
        if not check("Augment.segmentation", "train", train, FLAG):
            return cls(None, **{"crop": Resize(base_size, pad_to_multiple_of=1), **changes})
        crop = ScaleJitter(shorter=(max(base_size // 2, 1), min(2 * base_size, MOST_PX)))
        return cls(size, **{"crop": crop, **changes})

    @classmethod
    def detection(cls, policy: Policy = "hflip", **changes: Any) -> "Self":
        """torchvision's references for detection, in 0..1, since its models normalise.

        policy: "hflip": images as they are, as a list. "multiscale": the same, the shorter side one of 480, 512 … 800
            pixels, and the longer one 1,333 at most. "lsj": 1,024×1,024 pixels, large-scale jittering.
        """
        policies: dict[str, tuple[int | None, Geometry]] = {
            "hflip": (None, Resize()),
            "multiscale": (None, Resize([*range(480, 801, 32)], 1333)),
            "lsj": (1024, ScaleJitter((0.1, 2.0), fill=(123, 117, 104))),
        }
        size, crop = policies[check("Augment.detection", "policy", policy, choice(*policies))]
        return cls(**{"size": size, "crop": crop, "flip": 0.5, "normalize": None, **changes})

    @classmethod
    def torchvision(cls, transform: Any, **changes: Any) -> "Self":
        """The same as a torchvision transform: a `Compose`, or what `weights.transforms()` gives, in the dtype and
        range of values that it ends with. Pillow's images become what `ToTensor` makes of them.

        Raises:
            ArgumentError: a transform that has no counterpart here, or that is not torchvision's own.
        """
        check("Augment.torchvision", "transform", transform, function("a torchvision transform, such as a Compose"))
        return cls(**{**arguments_of(transform), **changes})

    @classmethod
    def timm(cls, data_config: Mapping[str, Any] | None = None, **options: Any) -> "Self":
        """The same as `timm.data.create_transform(**data_config, **options)`, which needs timm.

        data_config: what `timm.data.resolve_model_data_config` gives. options: such as is_training, hflip, re_prob and
            crop_mode; they take precedence.

        Raises:
            ArgumentError: a step that has no counterpart here, which the message names.
        """
        config = check("Augment.timm", "data_config", data_config, _CONFIG)
        given = {**(config or {}), **options}
        made = import_module("timm.data").create_transform(**given)
        return cls(**arguments_of(made, given.get("auto_augment") or ""))
