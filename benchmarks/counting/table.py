"""The loaders that can be counted. A new one is a module in `loaders/` and a line here."""

import importlib

from counting.loaders import Loader

# Name on the command line: (title, module, class).
_LOADERS = {
    "gpuload": ("gpuload", "own", "GpuloadLoader"),
    "torchdata": ("torchdata's StatefulDataLoader", "dataloader", "StatefulLoader"),
    "streaming": ("MosaicML Streaming", "streaming", "StreamingLoader"),
    "litdata": ("LitData", "litdata", "LitDataLoader"),
    "grain": ("Grain, ArrayRecord", "grain", "GrainLoader"),
    "lance": ("LanceDB", "lance", "LanceLoader"),
    "energon": ("Megatron-Energon", "energon", "EnergonLoader"),
    "huggingface": ("Hugging Face datasets", "huggingface", "HuggingFaceLoader"),
    "huggingface-1": (
        "… with `max_buffer_input_shards=1`",
        "huggingface",
        "OneShardLoader",
    ),
    "dali": ("DALI, reader of webdataset", "dali", "DaliLoader"),
    "turbo": ("TurboLoader", "turbo", "TurboLoader"),
    "webdataset": ("webdataset", "webdataset", "WebdatasetLoader"),
    "ffcv": ("FFCV", "ffcv", "FfcvLoader"),
    "spdl": ("SPDL", "spdl", "SpdlLoader"),
    "torch": ("DataLoader", "dataloader", "DataLoaderLoader"),
}

NAMES = tuple(_LOADERS)
# Whose threads must not run before a fork.
_IMPORTED_LATER = ("lance",)


def title(name: str) -> str:
    return _LOADERS[name][0]


def module(name: str) -> str:
    return f"counting.loaders.{_LOADERS[name][1]}"


def preloaded(name: str) -> list[str]:
    """Modules that the process which forks the ranks imports."""
    return [] if name in _IMPORTED_LATER else [module(name)]


def loader_class(name: str) -> type[Loader]:
    found: type[Loader] = getattr(
        importlib.import_module(module(name)), _LOADERS[name][2]
    )
    return found
