"""What `gpuload tune` measures: a loader of the user's set and, where one is named, with the user's function."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuload.commands.candidates import Setting
from gpuload.errors import ArgumentError

if TYPE_CHECKING:
    from gpuload.iterator import DaliIterator


@dataclass(frozen=True)
class TunedLoader:
    """A loader but for the settings that are tried: random crops, normalised, float16 on a GPU and float32 on a CPU.

    device: as `DaliIterator` takes it. size: side of the crops in pixels. function, function_at: of `Augment`. fields:
    beside the image, for a function that gets them.
    """

    folder: str | Path
    device: str
    size: int
    function: Any = None
    function_at: str = "after_crop"
    fields: Sequence[str] = ()

    def open(self, setting: Setting) -> "DaliIterator":
        """The loader with these settings; the first field of its batches is the image."""
        from gpuload.augment import Augment
        from gpuload.iterator import DaliIterator

        names = ("hw_decoder_load", "cpu_share", "function_processes")
        more = {name: value for name in names if (value := getattr(setting, name)) is not None}
        dtype: Any = "float32" if self.device == "cpu" else "float16"
        at: Any = self.function_at
        return DaliIterator(
            self.folder,
            setting.batch_size,
            augment=Augment(self.size, dtype=dtype, function=self.function, function_at=at),
            device=self.device,
            decoder=setting.decoder,  # type: ignore[arg-type]
            fields=("image", *self.fields),
            num_threads=setting.num_threads,
            prefetch=setting.prefetch,
            **more,
        )


def import_function(name: str) -> Any:
    """The function, or the transform, that "module:name" names; modules are also looked for where the command runs.

    Raises:
        ArgumentError: it is not of this form, or the module cannot be imported, or has no such name.
    """
    module, colon, path = name.partition(":")
    if not (colon and module and path):
        raise ArgumentError(f"--function {name}: expected MODULE:NAME, such as my_functions:darken")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found: Any = import_module(module)
    except Exception as error:  # whatever the module raises
        raise ArgumentError(
            f"--function {name}: {module} cannot be imported ({type(error).__name__}: {error}). Run the command where "
            "Python finds it"
        ) from None
    for part in path.split("."):
        if not hasattr(found, part):
            raise ArgumentError(f"--function {name}: {module} has no {path!r}. Give the name of a function in it")
        found = getattr(found, part)
    return found
