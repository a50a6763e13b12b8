"""Plug-ins: classes of this package and of others, found by the entry points of installed packages.

A package that declares

    [project.entry-points."gpuload.sources"]
    rig = "rig_source:RigSource"

adds the source `rig`. gpuload's own are declared in tables of the same form, which `plugins` reads together with the
entry points, so that they are there in a checkout whose metadata are old, too.
"""

import traceback
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from gpuload.errors import MissingPackageError

# Of entry points.
GROUPS = ("gpuload.sources", "gpuload.codecs", "gpuload.kinds", "gpuload.stores")


@dataclass(frozen=True)
class Plugin:
    """One class, which is imported when it is needed.

    Args:
        name: What users call it, such as "voc".
        entry: Its entry point, with the group, module and class.
    """

    name: str
    entry: EntryPoint

    @property
    def package(self) -> str:
        """The package that it comes from, with its version; "gpuload" for one of its own."""
        package = self.entry.dist
        return "gpuload" if package is None else f"{package.name} {package.version}"

    def load(self) -> Any:
        """The class.

        Raises:
            MissingPackageError: its module cannot be imported, or has no such class.
        """
        try:
            return self.entry.load()
        except (ImportError, AttributeError) as error:
            place = f"{self.entry.value} of {self.package}"
            fault = f"{place} cannot be imported ({error})"
            raise MissingPackageError(
                f"{self.entry.group}: {self.name!r}, {fault}. Install what it needs, or remove {self.package}"
            ) from error


def plugins(group: str, built_in: Mapping[str, str] = {}) -> dict[str, Plugin]:
    """All classes of a group by their names: gpuload's own first, then those of installed packages by name.

    A package can take no name that another has: its plug-in is left out with a warning.

    Args:
        group: Of entry points, such as "gpuload.sources".
        built_in: Gpuload's own, as "module:Class" by name.
    """
    table = {
        name: Plugin(name, EntryPoint(name, value, group))
        for name, value in built_in.items()
    }
    for entry in _installed(group):
        if entry.name not in table:
            table[entry.name] = Plugin(entry.name, entry)
        elif entry.value != table[entry.name].entry.value:
            first = table[entry.name]
            second = Plugin(entry.name, entry)
            warnings.warn(
                f"{group}: {entry.name!r} of {second.package} is left out, since {first.package} has one of this name",
                stacklevel=2,
            )
    return table


def package_at_fault(error: BaseException) -> str:
    """The package, with its version, of the plug-in that raised an exception; "" where gpuload itself did.

    What other packages raise is the fault of who called them.
    """
    entries = [entry for group in GROUPS for entry in _installed(group)]
    owners = {entry.module: Plugin(entry.name, entry).package for entry in entries}
    frames = reversed([frame for frame, _ in traceback.walk_tb(error.__traceback__)])
    for frame in frames:
        module = str(frame.f_globals.get("__name__"))
        if module.partition(".")[0] == "gpuload":
            return ""
        for owner, package in owners.items():
            if module == owner or module.startswith(f"{owner}."):
                return package
    return ""


@cache
def _installed(group: str) -> tuple[EntryPoint, ...]:
    of_group = _all_installed().select(group=group)
    return tuple(sorted(of_group, key=lambda entry: entry.name))


@cache
def _all_installed() -> Any:
    """The entry points of all packages, whose metadata take 10 ms to read for each hundred packages."""
    return entry_points()
