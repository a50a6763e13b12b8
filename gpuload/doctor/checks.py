"""All checks, in the order of their output."""

from collections.abc import Callable, Iterator
from pathlib import Path

from gpuload.disk.dataset import Dataset
from gpuload.doctor import environment, sets, trial
from gpuload.doctor.environment import Driver
from gpuload.doctor.findings import Finding
from gpuload.errors import ArgumentError, RemoteError
from gpuload.machine.installed import cuda_extra, fault_of
from gpuload.store.url import URL

Found = Finding | list[Finding]

# Checks of the environment. A check that raises is reported as a finding.
ENVIRONMENT: dict[str, Callable[[Driver | None], Found]] = {
    "system": lambda driver: environment.check_system(),
    "driver": environment.check_driver,
    "DALI": environment.check_dali,
    "torch": environment.check_torch,
    "torchvision": lambda driver: environment.check_torchvision(),
    "versions": lambda driver: environment.check_versions(),
    "CPU decoder": lambda driver: environment.check_native(),
    "cores": lambda driver: environment.check_cores(),
    "memory": lambda driver: environment.check_memory(),
    "file handles": lambda driver: environment.check_file_handles(),
}

# Checks of a packed set. The disk comes before the trials, which read the shards into memory.
SET: dict[str, Callable[[Dataset], Found]] = {
    "set": sets.check_set,
    "disk": sets.check_disk,
    "network": sets.check_network,
    "cache": sets.check_cache,
}


def examine(folder: Path | URL | None, seconds: float) -> Iterator[Finding]:
    """Yields each finding as soon as it is known. seconds: to measure each decoder for.

    Raises:
        FormatError: `folder` is no packed set.
    """
    opened, unreachable = _open(folder)
    driver = environment.find_driver()
    for name, check in ENVIRONMENT.items():
        yield from _run(name, lambda check=check: check(driver))  # type: ignore[misc]
    yield from unreachable
    for dataset in opened:
        for name, examine_set in SET.items():
            yield from _run(name, lambda check=examine_set, dataset=dataset: check(dataset))  # type: ignore[misc]
    if unreachable:
        return
    found = decoders(driver)
    if not found:
        said = "neither decoder='native' nor decoder='dali' can be used here, so that nothing can be loaded"
        yield Finding("decoders", "broken", said, f"`pip install 'gpuload[{cuda_extra() or 'cpu'}]'`")
    for device, decoder in found:

        def attempt(device: str = device, decoder: str = decoder) -> Finding:
            if opened:
                return trial.try_decoder(opened[0].folder, device, decoder, seconds)
            return trial.try_loading(device, decoder)

        yield from _run(f"{decoder} on {device}", attempt)


def _open(folder: Path | URL | None) -> tuple[list[Dataset], list[Finding]]:
    """The sets, and what is wrong with a URL that cannot be read."""
    try:
        return ([] if folder is None else sets.open_sets(folder)), []
    except (RemoteError, ArgumentError) as error:  # of a cache that cannot be written
        if not isinstance(folder, URL):
            raise
        return [], [sets.unreachable(folder, error)]


def decoders(driver: Driver | None) -> list[tuple[str, str]]:
    """(device, decoder) of all that can be tried here, by what is installed."""
    found = []
    if all(fault_of(package) is None for package in ("numba", "simplejpeg")):
        found.append(("cpu", "native"))
    if fault_of("nvidia.dali") is None:
        found.append(("cpu", "dali"))
        if driver is not None:
            found += [(f"cuda:{number}", "dali") for number in range(len(driver.gpus))]
    return found


def _run(name: str, check: Callable[[], Found]) -> list[Finding]:
    try:
        found = check()
    except Exception as error:  # a check must not end the others
        lines = [line for line in str(error).splitlines() if line.strip()] or [""]
        said = f"could not be checked: {type(error).__name__}: {lines[0]}"
        return [Finding(name, "broken", said, "The line names what is wrong")]
    return [found] if isinstance(found, Finding) else found
