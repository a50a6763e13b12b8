"""The fastest settings found on a device, and where they are saved: beside the data, or in the user's cache.

`python -m gpuload tune` measures and saves them, and `DaliIterator` uses them for arguments that it was not given. They
affect how fast batches come, never their content.
"""

import json
import os
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from importlib import import_module
from pathlib import Path
from typing import Any

from gpuload.checks import Rule, choice, number, optional, whole
from gpuload.errors import OutputError
from gpuload.headers.json_text import parse_json
from gpuload.ranks import Ranks, count_threads

FILE_NAME = "tuning.json"
VERSION = 2  # 2 (2026-11): the CPU decoder is called "native"


@dataclass(frozen=True)
class Tuning:
    """The fastest settings of one decoder, and its speed with them.

    decoder: "dali" or "native". num_threads, prefetch, hw_decoder_load, batch_size: arguments of `DaliIterator`; None
    is its default. images_per_s: of the loader alone.
    """

    decoder: str
    num_threads: int
    prefetch: int
    hw_decoder_load: float | None
    batch_size: int
    images_per_s: float


_MOST = 4096  # as of the arguments of `DaliIterator`
_RULES: dict[str, Rule[Any]] = {
    "decoder": choice("dali", "native"),
    "num_threads": whole(1, _MOST),
    "prefetch": whole(1, _MOST),
    "hw_decoder_load": optional(number(0, 1, "a share")),
    "batch_size": whole(1),
    "images_per_s": number(0, 1e12, "a rate"),
}


def describe_device(device_id: int | None, ranks: Ranks) -> str:
    """The key of tunings: the GPU (None: the CPU), and the number of cores of this rank, which decode."""
    cores = count_threads(ranks)
    if device_id is None:
        return f"{_cpu_name()}, {cores} cores"
    return f"{_gpu_name(device_id)}, {cores} cores"


def load_tuning(folder: str | Path, device: str, decoder: str = "auto") -> Tuning | None:
    """The settings saved for a data set and device, of one decoder or, with "auto", of the fastest; None without any.

    Settings beside the data take precedence over those in the user's cache. A file that cannot be read is ignored, with
    a warning: training continues with the defaults.
    """
    for path in _candidates(Path(folder)):
        try:
            found = [_parse(one) for one in _read(path).get(device, [])]
        except FileNotFoundError:
            continue
        except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
            warnings.warn(f"{path}: cannot be read ({error!r}); delete it, or run `gpuload tune` again", stacklevel=2)
            continue
        if found := [one for one in found if decoder in ("auto", one.decoder)]:
            return max(found, key=lambda one: one.images_per_s)
    return None


def tuned(
    folder: Path,
    device_id: int | None,
    ranks: Ranks,
    decoder: str,
    num_threads: int | None,
    prefetch: int | None,
    hw_decoder_load: float | None,
) -> tuple[int, int, float | None]:
    """num_threads, prefetch and hw_decoder_load: as given, else as saved for this device, else the defaults."""
    saved = load_tuning(folder, describe_device(device_id, ranks), decoder)
    if saved is None:
        return num_threads or count_threads(ranks), prefetch or 2, hw_decoder_load
    load = saved.hw_decoder_load if hw_decoder_load is None else hw_decoder_load
    return num_threads or saved.num_threads, prefetch or saved.prefetch, load


def save_tuning(folder: str | Path, device: str, tunings: Sequence[Tuning]) -> Path:
    """Saves one tuning for each decoder, replacing those of the same device and decoder. Returns the file.

    Raises:
        OutputError: neither the data set's folder nor the user's cache can be written.
    """
    reasons = []
    for path in _candidates(Path(folder)):
        try:
            try:
                devices = _read(path)
                kept = [_parse(one) for one in devices.get(device, [])]
            except (FileNotFoundError, ValueError, TypeError, KeyError, AttributeError):
                devices, kept = {}, []
            new = {one.decoder: one for one in (*kept, *tunings)}
            devices[device] = [asdict(one) for one in new.values()]
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
            temporary.write_text(json.dumps({"version": VERSION, "devices": devices}, indent=1) + "\n")
            temporary.replace(path)
        except OSError as error:
            reasons.append(f"{path} ({error.strerror or error})")
        else:
            return path
    raise OutputError(f"the settings cannot be saved: {', '.join(reasons)}. Make one of the two writable")


def _candidates(folder: Path) -> tuple[Path, Path]:
    """The file beside the data, and the one in the user's cache, by the folder's path (XDG base directories)."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    whole = folder.resolve()
    return whole / FILE_NAME, cache / "gpuload" / whole.relative_to(whole.anchor) / FILE_NAME


def _read(path: Path) -> dict[str, Any]:
    """The tunings by device."""
    content = parse_json(path.read_text(encoding="utf-8"))
    if content["version"] != VERSION:
        raise ValueError(f"version {content['version']}, expected {VERSION}")
    devices: dict[str, Any] = content["devices"]
    return devices


def _parse(saved: dict[str, Any]) -> Tuning:
    return Tuning(**{field.name: _RULES[field.name].read(saved[field.name]) for field in fields(Tuning)})


def _gpu_name(device_id: int) -> str:
    """As torch tells it, or CuPy where there is no torch that can use GPUs; else "GPU"."""
    with suppress(ImportError, AssertionError, RuntimeError, OSError):  # AssertionError: a CPU build of torch
        return str(import_module("torch").cuda.get_device_name(device_id))
    with suppress(ImportError, RuntimeError, OSError):
        return str(import_module("cupy").cuda.runtime.getDeviceProperties(device_id)["name"].decode())
    return "GPU"


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return "CPU"
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "CPU")
