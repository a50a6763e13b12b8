"""Importing this first lets torchvision be imported beside a CPU build of torch, too.

PyPI has torchvision for CUDA only, which fails to import there because its compiled operators cannot be loaded. Its
transforms, and the packages that import it, do not need the operators, only their names.
"""

import importlib.util
import re
from pathlib import Path

import torch


def _declare_operators() -> torch.library.Library | None:
    spec = importlib.util.find_spec("torchvision")
    assert spec is not None and spec.origin is not None
    folder = Path(spec.origin).parent
    # A CPU build of torchvision, from PyTorch's own index, brings the operators.
    if torch.version.cuda is not None or "+cu" not in (folder / "version.py").read_text():
        return None
    declarations = (folder / "_meta_registrations.py").read_text()
    library = torch.library.Library("torchvision", "DEF")
    for name in set(re.findall(r'(?:register_meta\(|torchvision::)"?(\w+)"', declarations)):
        library.define(f"{name}() -> ()")
    return library


_library = _declare_operators()  # kept: the names are gone when the library is
