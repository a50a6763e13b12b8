"""Importing this first lets torchvision be imported beside a CPU-only torch, too.

There is no CPU wheel of torchvision: the one for CUDA fails to import because its compiled operators cannot be loaded.
Its transforms, and the packages that import it, do not need them, only their names.
"""

import importlib.util
import re
from pathlib import Path

import torch


def _declare_operators() -> torch.library.Library | None:
    if torch.version.cuda is not None:
        return None
    spec = importlib.util.find_spec("torchvision")
    assert spec is not None and spec.origin is not None
    declarations = (Path(spec.origin).parent / "_meta_registrations.py").read_text()
    library = torch.library.Library("torchvision", "DEF")
    for name in set(re.findall(r'(?:register_meta\(|torchvision::)"?(\w+)"', declarations)):
        library.define(f"{name}() -> ()")
    return library


_library = _declare_operators()  # kept: the names are gone when the library is
