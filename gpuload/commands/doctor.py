"""`python -m gpuload doctor [SHARDS]`: what is wrong with a machine or an environment, and what limits its speed."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from gpuload.commands.exit_codes import DONE, FAULTY

# The command line loads this file for every command; what it needs to work is loaded when it does.
if TYPE_CHECKING:
    from gpuload.doctor.finding import Finding

_NAME_WIDTH = 15


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command to the command line."""
    doctor = commands.add_parser(
        "doctor",
        help="check this machine, and say what limits loading",
        description="Checks driver, packages, cores, memory and disk; with a packed folder, measures how fast it is "
        "read and decoded on each device, and says what limits. It changes nothing, but asks the kernel to drop up to "
        "256 MB of the shards from its page cache. Of a set at a URL, it measures the network and the disk of the "
        "cache, into which it downloads some shards.",
        epilog="Exit codes: 0 nothing needs attention; 1 something does, or is broken; 2 not a packed folder.",
    )
    doctor.set_defaults(run=_doctor)
    doctor.add_argument("folder", metavar="SHARDS", nargs="?", help="a packed folder, its URL, or one of several")
    doctor.add_argument("--seconds", type=float, default=3, metavar="S", help="to measure each decoder (%(default)s)")
    doctor.add_argument("--json", action="store_true", help="print all findings as one JSON object")


def _doctor(args: argparse.Namespace) -> int:
    import json
    import shutil
    from dataclasses import asdict

    from gpuload.checks import POSITIVE, check_option, number
    from gpuload.doctor.checks import examine
    from gpuload.doctor.verdict import conclude
    from gpuload.store.url import URL, as_location

    check_option("--seconds", args.seconds, number(POSITIVE, 3600, "seconds, above 0 and up to 3600"))
    where = None if args.folder is None else as_location(args.folder)
    folder = where if where is None or isinstance(where, URL) else Path(where)
    width = shutil.get_terminal_size((120, 24)).columns
    findings = []
    for finding in examine(folder, args.seconds):
        findings.append(finding)
        if not args.json:
            print("\n".join(lines_of(finding, width)), flush=True)
    verdict, is_well = conclude(findings), all(finding.is_well for finding in findings)
    if args.json:
        print(
            json.dumps({"well": is_well, "verdict": verdict, "findings": [asdict(one) for one in findings]}, indent=1)
        )
    else:
        print("", *(line for text in verdict for line in _wrapped(text, width, "", "")), sep="\n")
    return DONE if is_well else FAULTY


def lines_of(finding: "Finding", width: int) -> list[str]:
    """As it is printed: the grade where it is not "ok", the name, what was found, and what to do."""
    grade = "" if finding.grade == "ok" else finding.grade
    indent = " " * (11 + _NAME_WIDTH)
    lines = _wrapped(finding.said, width, f"{grade:<11}{finding.name:<{_NAME_WIDTH}}", indent)
    return lines + (_wrapped(finding.remedy, width, f"{indent}→ ", f"{indent}  ") if finding.remedy else [])


def _wrapped(text: str, width: int, first: str, others: str) -> list[str]:
    import textwrap

    return textwrap.wrap(
        text,
        max(width, 60),
        initial_indent=first,
        subsequent_indent=others,
        break_long_words=False,
        break_on_hyphens=False,
    )
