"""Saves and loads the fastest settings on a device, next to the data or in the user's cache.

`python -m gpuload tune` measures and saves them, and `DaliIterator` uses them as defaults. They affect only speed,
never the content of batches.
"""

import json
import os
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, cast, get_args

from gpuload.checks import choice, number, optional, rules_of, whole
from gpuload.decode.arguments import Backend, Both, Dali, DecoderName
from gpuload.decode.dali.memory import fits
from gpuload.decode.interface import Resources
from gpuload.decode.open import choose_backend
from gpuload.disk.dataset import Dataset
from gpuload.errors import OutputError
from gpuload.machine.ranks import Ranks, count_threads
from gpuload.machine.untrusted import open_regular, parse_json
from gpuload.store.files import replaced
from gpuload.store.url import URL, as_location

FILE_NAME = "tuning.json"
VERSION = 2  # 2 (2026-11): the CPU decoder is called "native"

PREFETCH = 2
CPU_SHARE = 0.25  # of the samples, for the CPU decoder beside a GPU, without measurements
ONE_UNIT = 0.0  # hw_decoder_load if one unit decodes all images: the CUDA cores, which every GPU has


# The file is as untrusted as the rest of the folder: its values must not exhaust memory. `tune` tries smaller ones.
_MOST_THREADS, _MOST_PREFETCH, _MOST_BYTES = 1024, 16, 1 << 20
_SHARE = optional(number(0, 1, "a share"))


@dataclass(frozen=True)
class Tuning:
    """Settings of one decoder, and its speed with them.

    decoder: "dali", "native" or "both". num_threads, prefetch, hw_decoder_load, batch_size, cpu_share: arguments of
    `DaliIterator`; None is its default, or means nothing to the decoder. images_per_s: of the loader alone.
    """

    decoder: Annotated[str, choice(*get_args(Backend))]
    num_threads: Annotated[int, whole(1, _MOST_THREADS)]
    prefetch: Annotated[int, whole(1, _MOST_PREFETCH)]
    hw_decoder_load: Annotated[float | None, _SHARE]
    batch_size: Annotated[int, whole(1)]
    images_per_s: Annotated[float, number(0, 1e12, "a rate")] = 0.0
    cpu_share: Annotated[float | None, _SHARE] = None


def describe_device(device_id: int | None, ranks: Ranks) -> str:
    """The key of tunings: the GPU (None: the CPU) and the number of cores of this rank."""
    name = _cpu_name() if device_id is None else _gpu_name(device_id)
    return f"{name}, {count_threads(ranks)} cores"


def load_tuning(folder: str | Path | URL, device: str, decoder: str = "auto") -> Tuning | None:
    """The settings saved for a data set and device, of one decoder or, with "auto", of the fastest one; None if there
    are none.

    Settings next to the data take precedence over those in the user's cache. An unreadable file is ignored with a
    warning: training continues with the defaults.
    """
    for path in _candidates(folder):
        try:
            tunings = [_parse(one) for one in _read(path).get(device, [])]
        except FileNotFoundError:
            continue
        except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
            warnings.warn(f"{path}: cannot be read ({error!r}); delete it, or run `gpuload tune` again", stacklevel=2)
            continue
        if tunings := [one for one in tunings if decoder in ("auto", one.decoder)]:
            return max(tunings, key=lambda one: one.images_per_s)
    return None


# With at least this many cores per rank, the native decoder is the default for a GPU without measurements. Estimate:
# ResNet-50 on an H100 takes some 2,800 images/s; the native decoder makes about 1,200 a core from ImageNet-like JPEGs.
# Three cores decode enough, and three remain for reading, the training thread and peaks.
NATIVE_CORES = 6


Chosen = tuple[Backend, int | None, Resources]


def choose_decoder(
    decoder: DecoderName | Dali | Both,
    device: str,
    ranks: Ranks,
    datasets: Sequence[Dataset],
    asked: Resources,
    *,
    decodes: bool = True,
) -> Chosen:
    """The decoder, the number of the GPU for the batches (None: the CPU), and the decoder's resources.

    asked: the resources that are given; 0 for threads or batches ahead that are not. decodes: whether anything needs
    decoding. The others are as asked, otherwise as saved for this device, otherwise the defaults. With
    `deterministic`, saved shares are not used, since pixels depend on them.

    "auto" on a GPU is "native" if DALI's whole images do not fit into its memory; otherwise the fastest that `tune`
    measured; otherwise "native" if this rank has enough cores, which leaves the GPU to training; otherwise "dali".
    """
    folder = datasets[0].folder

    def prefer(gpu: int) -> Backend:
        saved = load_tuning(folder, describe_device(gpu, ranks))
        if not fits(datasets, asked.batch_size, asked.prefetch or (saved.prefetch if saved else PREFETCH), gpu):
            return "native"
        if saved is not None:
            return cast(Backend, saved.decoder)
        return "native" if count_threads(ranks) >= NATIVE_CORES else "dali"

    name: DecoderName = decoder if isinstance(decoder, str) else "dali" if isinstance(decoder, Dali) else "both"
    backend, device_id = choose_backend(name, device, ranks, decodes, prefer)
    units = Dali() if isinstance(decoder, str) else decoder
    place = describe_device(device_id, ranks)
    saved = load_tuning(folder, place, backend) or Tuning(backend, count_threads(ranks), PREFETCH, None, 1)
    hardware, cpu = (ONE_UNIT, None) if units.deterministic else (saved.hw_decoder_load, saved.cpu_share)
    hardware = hardware if units.hardware is None else units.hardware
    cpu = next(share for share in (getattr(units, "cpu", None), cpu, CPU_SHARE) if share is not None)
    threads, prefetch = asked.num_threads or saved.num_threads, asked.prefetch or saved.prefetch
    return backend, device_id, Resources(asked.batch_size, threads, prefetch, hardware, cpu)


def save_tuning(folder: str | Path, device: str, tunings: Sequence[Tuning]) -> Path:
    """Saves one tuning for each decoder, replacing those of the same device and decoder. Returns the file.

    Raises:
        OutputError: neither the data set's folder nor the user's cache can be written.
    """
    reasons = []
    for path in _candidates(folder):
        try:
            try:
                devices = _read(path)
                kept = [_parse(one) for one in devices.get(device, [])]
            except (FileNotFoundError, ValueError, TypeError, KeyError, AttributeError):
                devices, kept = {}, []
            new = {one.decoder: one for one in (*kept, *tunings)}
            devices[device] = [asdict(one) for one in new.values()]
            path.parent.mkdir(parents=True, exist_ok=True)
            with replaced(path) as temporary:
                temporary.write_text(json.dumps({"version": VERSION, "devices": devices}, indent=1) + "\n")
        except OSError as error:
            reasons.append(f"{path} ({error.strerror or error})")
        else:
            return path
    raise OutputError(f"the settings cannot be saved: {', '.join(reasons)}. Make one of the two writable")


def _candidates(folder: str | Path | URL) -> tuple[Path, ...]:
    """The file next to the data, and the one in the user's cache for the folder's path (XDG base directories)."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    if isinstance(folder := as_location(folder), URL):
        return (cache / "gpuload" / "urls" / folder.text.replace("://", "/") / FILE_NAME,)
    whole = Path(folder).resolve()
    return whole / FILE_NAME, cache / "gpuload" / whole.relative_to(whole.anchor) / FILE_NAME


def _read(path: Path) -> dict[str, Any]:
    """The tunings by device."""
    with open_regular(path) as file:
        content = parse_json(file.read(_MOST_BYTES).decode())
    if content["version"] != VERSION:
        raise ValueError(f"version {content['version']}, expected {VERSION}")
    devices: dict[str, Any] = content["devices"]
    return devices


def _parse(saved: dict[str, Any]) -> Tuning:
    saved = {"cpu_share": None, **saved}  # missing from files before 2026-12
    return Tuning(**{name: rule.read(saved[name]) for name, rule in rules_of(Tuning).items()})


def _gpu_name(device_id: int) -> str:
    """The name from torch, or from CuPy if torch cannot use GPUs; otherwise "GPU"."""
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
