"""`python -m gpuload doctor [SHARDS]`: diagnoses a machine and its environment, and names its bottleneck."""

import shutil
import textwrap
from dataclasses import asdict, dataclass
from pathlib import Path

from gpuload.checks import POSITIVE, number
from gpuload.commands import DONE, FAULTY
from gpuload.commands.options import given
from gpuload.commands.terminal import say, say_json
from gpuload.doctor.checks import examine
from gpuload.doctor.findings import Finding, conclude
from gpuload.errors import printable
from gpuload.store.url import URL, as_location

_NAME_WIDTH = 15


@dataclass(frozen=True)
class Doctor:
    """Checks driver, packages, cores, memory and disk, and loads a few images with each decoder on each device. With a
    packed folder, it measures reading and decoding, and names the bottleneck. It changes nothing, but asks the
    kernel to drop up to 256 MB of the shards from its page cache. With a set at a URL, it measures the network and the
    disk of the cache, into which it downloads some shards."""

    epilog = "Exit codes: 0 nothing needs attention; 1 something does or is broken; 2 not a packed folder."

    folder: str | None = given(None, "a packed folder, its URL, or one of several", "SHARDS", "folder", nargs="?")
    seconds: float = given(
        3.0, "seconds to measure each decoder (%(default)g)", "S",
        rule=number(POSITIVE, 3600, "seconds, above 0 and up to 3600"),
    )  # fmt: skip
    json: bool = given(False, "print all findings as one JSON object")

    def run(self) -> int:
        where = None if self.folder is None else as_location(self.folder)
        width = shutil.get_terminal_size((120, 24)).columns
        findings = []
        for finding in examine(where if where is None or isinstance(where, URL) else Path(where), self.seconds):
            findings.append(finding)
            if not self.json:
                say(*lines_of(finding, width))
        verdict, is_well = conclude(findings), all(finding.is_well for finding in findings)
        if self.json:
            say_json({"well": is_well, "verdict": verdict, "findings": [asdict(one) for one in findings]})
        else:
            say("", *(line for text in verdict for line in _wrapped(text, width, "", "")))
        return DONE if is_well else FAULTY


def lines_of(finding: Finding, width: int) -> list[str]:
    """The printed lines: the grade if it is not "ok", the name, the finding, and the remedy."""
    grade = "" if finding.grade == "ok" else finding.grade
    indent = " " * (11 + _NAME_WIDTH)
    lines = _wrapped(finding.said, width, f"{grade:<11}{finding.name:<{_NAME_WIDTH}}", indent)
    return lines + (_wrapped(finding.remedy, width, f"{indent}→ ", f"{indent}  ") if finding.remedy else [])


def _wrapped(text: str, width: int, first: str, others: str) -> list[str]:
    return textwrap.wrap(
        printable(text[:4000]),
        max(width, 60),
        initial_indent=first,
        subsequent_indent=others,
        break_long_words=False,
        break_on_hyphens=False,
    )
