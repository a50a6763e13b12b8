"""`python -m gpuload tune DIR`: which arguments of `DaliIterator` load fastest here, measured on the user's own shards.

Settings take turns and their medians are compared, so that other load on the machine affects all of them alike. First
come the defaults and what differs from them in one argument; after half of the time, the best values together.
"""

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

from gpuload.augment import Augment
from gpuload.checks import COUNT, POSITIVE, SIDE, number
from gpuload.commands import DONE
from gpuload.commands.options import given, place
from gpuload.commands.terminal import OutputFile, say, say_table
from gpuload.counted import progress_bar
from gpuload.decode.arguments import Both, Dali
from gpuload.decode.open import PREFETCH
from gpuload.disk.dataset import Dataset, having_images
from gpuload.disk.places import packed_locations
from gpuload.errors import GpuloadError
from gpuload.loader.iterator import DaliIterator
from gpuload.monitor import forever, pace

_TURNS = 4  # of each setting, if opening a loader takes no time
_MARK = b'{\n "made_by": "gpuload tune"'

# As they are written in a program. "both" is for GPUs, whose best share depends on the engines, cores and images.
_ON_CPU: dict[str, Any] = {'"native"': "native", '"dali"': "dali"}
_DECODERS = {
    **_ON_CPU,
    **{f"gpuload.Both(cpu={share})": Both(share) for share in (0.1, 0.25, 0.5)},
    **{
        f"gpuload.Dali(hardware={share})": Dali(share)
        for share in (0.0, 0.12, 0.3, 0.45, 0.8, 1.0)
    },
}

Setting = dict[str, Any]


@dataclass
class Measured:
    """How fast a loader with some arguments is.

    Attributes:
        setting: Arguments of `DaliIterator`.
        turns: The images/s of each turn.
        failed: Why there are no more turns; None where all succeeded.
    """

    setting: Setting
    turns: list[float] = field(default_factory=list)
    failed: str | None = None

    @property
    def rate(self) -> float:
        return 0.0 if self.failed else median(self.turns)

    def row(self) -> list[str]:
        spread = f"{min(self.turns):,.0f}–{max(self.turns):,.0f}"
        return [
            *map(str, self.setting.values()),
            f"{self.rate:,.0f}",
            spread,
            str(len(self.turns)),
        ]

    def __str__(self) -> str:
        """The arguments, as they are written in a program."""
        return ", ".join(f"{name}={value}" for name, value in self.setting.items())


def _fastest_first(measured: Iterable[Measured]) -> list[Measured]:
    return sorted(measured, key=lambda setting: setting.rate, reverse=True)


def _dataset(location: str) -> Dataset:
    """A packed set, of which the samples that have an image."""
    return having_images(Dataset(location))


@dataclass(frozen=True)
class Tune:
    """Measures arguments of DaliIterator on a packed folder, and prints those of the fastest loader."""

    epilog = "Exit codes: 0 measured; 2 nothing measured (reason on stderr); 130 stopped by Ctrl-C."

    folder: str = place(
        "a packed folder, such as shards/train, or its URL; of a folder of several, the first",
        "DIR",
    )
    device: str = given("auto", "auto, cpu, cuda or cuda:1 (%(default)s)")
    seconds: float = given(
        60.0, "approximate measuring time (%(default)g)", "S",
        rule=number(POSITIVE, 1e6, "seconds, above 0 and up to 1e6"),
    )  # fmt: skip
    size: int = given(224, "side of the crops (%(default)s)", "PIXELS", rule=SIDE)
    batch_size: int | None = given(
        None,
        "samples in a batch (default: 256 on a GPU, 64 on a CPU)",
        "N",
        rule=COUNT,
        type=int,
    )
    json: Path | None = given(None, "write all figures to FILE", "FILE", type=Path)

    def run(self) -> int:
        output = None if self.json is None else OutputFile(self.json, "--json", _MARK)
        location = str(packed_locations(self.folder)[0])
        device, samples, usual = self._defaults(location)
        threads = usual["num_threads"]
        others = {
            "decoder": _ON_CPU if device == "cpu" else _DECODERS,
            "num_threads": (max(1, threads // 2), 2 * threads),
            "prefetch": (1, 4),
        }
        batch_size = self.batch_size or min(64 if device == "cpu" else 256, samples)
        tune = replace(self, folder=location, device=device, batch_size=batch_size)
        with progress_bar(f"measuring for {self.seconds:g} s", "turns"):
            measured = tune._search(usual, others)
        if measured[0].failed:
            raise GpuloadError(f"tune: the defaults fail: {measured[0].failed}")
        if location != self.folder:
            say(f"measured on {location}")
        tune._show(measured)
        if output is not None:
            figures = tune._figures(measured)
            output.write((json.dumps(figures, indent=1) + "\n").encode())
        return DONE

    def _defaults(self, location: str) -> tuple[str, int, dict[str, Any]]:
        """The device of a loader of this set, the number of samples, and the defaults of what is measured."""
        augment = Augment(8, normalize=None)
        dataset = _dataset(location)
        fields = (dataset.manifest.image.name,)
        with DaliIterator(
            dataset, 1, augment=augment, device=self.device, fields=fields
        ) as loader:
            usual = {
                "decoder": f'"{loader.decoder}"',
                "num_threads": loader.num_threads,
                "prefetch": PREFETCH,
            }
            return loader.device, len(loader.dataset), usual

    def _show(self, measured: Sequence[Measured]) -> None:
        """Prints what was measured, the fastest first.

        Args:
            measured: The defaults, and then the others.
        """
        defaults = measured[0]
        best = max(measured, key=lambda setting: setting.rate)
        in_order = _fastest_first(measured)
        rows = [setting.row() for setting in in_order if not setting.failed]
        heads = [*defaults.setting, "images/s", "min–max", "turns"]
        say_table(rows, heads, f"in batches of {self.batch_size} on {self.device}")
        for setting in in_order:
            if setting.failed:
                say(f"left out: {setting}: {setting.failed}")
        say(
            f"fastest: {best.rate / defaults.rate:.2f} times the images/s of the defaults"
        )
        say(f"DaliIterator(…, {best})")

    def _figures(self, measured: Sequence[Measured]) -> dict[str, Any]:
        """What was measured, the fastest first, as JSON."""
        settings = [
            {
                **setting.setting,
                "images_per_s": setting.rate,
                "turns": setting.turns,
                "failed": setting.failed,
            }
            for setting in _fastest_first(measured)
        ]
        return {
            "made_by": "gpuload tune",
            "device": self.device,
            "batch_size": self.batch_size,
            "settings": settings,
        }

    def _search(
        self, usual: Setting, others: Mapping[str, Iterable[Any]]
    ) -> list[Measured]:
        """The settings: the defaults, what differs from them in one argument, and the best values together.

        Args:
            usual: The default of each argument.
            others: The values that it may have, too.
        """
        self.measure(usual, 0)  # warms the page cache, and the libraries
        defaults = Measured(usual)
        changed = {
            name: [
                Measured({**usual, name: value})
                for value in values
                if value != usual[name]
            ]
            for name, values in others.items()
        }
        measured = [defaults, *chain(*changed.values())]
        turn_s = self.seconds / len(measured) / _TURNS
        begun = time.monotonic()
        self._take_turns(measured, turn_s, begun + self.seconds / 2)
        best = {
            name: max(defaults, *settings, key=lambda tried: tried.rate).setting[name]
            for name, settings in changed.items()
        }
        if all(tried.setting != best for tried in measured):
            measured.append(Measured(best))
        self._take_turns(measured, turn_s, begun + self.seconds)
        return measured

    def _take_turns(
        self, measured: Sequence[Measured], turn_s: float, until: float
    ) -> None:
        """Measures each in turn, until a time of the clock, but each at least once altogether. A setting that raises
        GpuloadError or RuntimeError, such as for lack of memory, has failed."""
        while True:
            due = [tried for tried in measured if not tried.failed]
            if time.monotonic() >= until:
                due = [tried for tried in due if not tried.turns]
            if not due:
                return
            tried = min(due, key=lambda setting: len(setting.turns))
            try:
                tried.turns.append(self.measure(tried.setting, turn_s))
            except (GpuloadError, RuntimeError) as error:
                tried.failed = str(error).splitlines()[0]

    def measure(self, setting: Setting, turn_s: float) -> float:
        """The images/s of one turn: random crops. Batches decoded ahead do not count."""
        augment = Augment(
            self.size,
            normalize=None,
            dtype="float32" if self.device == "cpu" else "float16",
        )
        dataset = _dataset(self.folder)
        options = {
            "batch_size": self.batch_size,
            "augment": augment,
            "device": self.device,
            "fields": (dataset.manifest.image.name,),
        }
        with DaliIterator(
            dataset,
            **{**options, **setting, "decoder": _DECODERS[setting["decoder"]]},
        ) as loader:
            return pace(forever(loader), turn_s, setting["prefetch"] + 1).images_per_s
