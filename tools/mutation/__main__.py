"""Changes one place of a module at a time and sees whether the tests that reach it notice; see tools/mutate.sh."""

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mutation.forked import import_outside, in_fork, run_tests
from mutation.operators import Mutant, find_mutants
from mutation.reach import ROOT, Reach

RESULTS = ROOT / "benchmarks/results/mutation.json"
REASONS = ROOT / "benchmarks/results/mutation-survivors.md"


class Session:
    """Results by mutant, in a file of one JSON object a line, so that a run that was stopped goes on."""

    def __init__(self, path: Path) -> None:
        self._path = path
        lines = path.read_text().splitlines() if path.exists() else ()
        self.results: dict[str, dict[str, Any]] = {
            entry["id"]: entry for entry in map(json.loads, lines)
        }

    def add(self, result: dict[str, Any]) -> None:
        self.results[result["id"]] = result
        with self._path.open("a") as file:
            file.write(json.dumps(result, ensure_ascii=False) + "\n")


class Trial:
    """Runs tests in a copy of the repository, of which one module is changed on disk: other processes see it, too."""

    def __init__(
        self, tree: Path, reach: Reach, most_s: float, first: list[str]
    ) -> None:
        self._tree = tree
        self._reach = reach
        self._most_s = most_s
        self._first = [reach.tests_of(first)] if first else []
        self._sound: set[str] = set()  # tests that pass without a change

    def __call__(self, mutant: Mutant, source: str) -> tuple[str, str]:
        """How it ended, and the test that noticed it. "unclear": what noticed it fails without the change, too."""
        reaching = self._reach.rounds(
            mutant.module, mutant.line, mutant.last_line, self._most_s
        )
        for tests in [*self._first, *reaching]:
            self._write(mutant.module, mutant.apply(source))
            try:
                outcome, noticed = self._run(tests)
            finally:
                self._write(mutant.module, source)
            if outcome != "survived":
                return (
                    outcome
                    if self._are_sound([noticed] if noticed else tests)
                    else "unclear"
                ), noticed
        return "survived", ""

    def _are_sound(self, tests: list[str]) -> bool:
        if not self._sound.issuperset(tests):
            outcome, _ = self._run(tests)
            if outcome != "survived":
                return False
            self._sound.update(tests)
        return True

    def _run(self, tests: list[str]) -> tuple[str, str]:
        note = self._tree / "noticed"
        note.unlink(missing_ok=True)
        outcome = in_fork(
            lambda: run_tests(tests, self._reach.is_new, note),
            30 + 5 * self._reach.seconds(tests),
        )
        return outcome, note.read_text() if note.exists() else ""

    def _write(self, module: str, source: str) -> None:
        path = self._tree / module
        path.unlink()
        path.write_text(source)


def copy_to(tree: Path) -> None:
    """Copies the files that git knows or would add."""
    command = [
        "git",
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
        "--deduplicate",
    ]
    listed = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    for name in filter(lambda name: (ROOT / name).is_file(), listed.split("\0")):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, tree / name)
    for name in filter(lambda name: (ROOT / name).exists(), (".git", ".venv")):
        (tree / name).symlink_to(ROOT / name)


def chosen_modules(patterns: list[str]) -> list[str]:
    """Modules of gpuload by room ("order") or file ("order/epoch.py"), as paths from the top of the repository."""
    every = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "gpuload").rglob("*.py"))
        if path.read_text()
    ]
    if not patterns:
        return every
    starts = tuple(
        f"gpuload/{pattern}" if pattern.endswith(".py") else f"gpuload/{pattern}/"
        for pattern in patterns
    )
    return [path for path in every if path.startswith(starts)]


def reasons() -> dict[tuple[str, str], str]:
    """Why a survivor does not matter, by module and change."""
    outcomes = {}
    module = ""
    for line in REASONS.read_text().splitlines() if REASONS.exists() else ():
        if line.startswith("## "):
            module = line[3:].strip()
        elif match := re.fullmatch(r"\| `` (.*) `` \| `` (.*) `` \| (.*) \|", line):
            before, after, reason = (
                part.replace("\\|", "|") for part in match.groups()
            )
            outcomes[module, f"{before} → {after}"] = reason
    return outcomes


def summary(results: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Counts by room and module, and the survivors."""
    harmless = reasons()
    modules: dict[str, Any] = {}
    rooms: dict[str, Any] = {}
    survivors: list[dict[str, Any]] = []
    for path in chosen_modules([]):
        mutants = find_mutants(path, (ROOT / path).read_text())
        tried = [mutant for mutant in mutants if mutant.id in results]
        if not tried:
            continue
        outcomes = [results[mutant.id]["outcome"] for mutant in tried]
        survived = [
            described(mutant, harmless)
            for mutant, outcome in zip(tried, outcomes, strict=True)
            if outcome == "survived"
        ]
        counts = count_outcomes(outcomes, survived)
        modules[path] = {"mutants": len(mutants), **counts}
        name = path.split("/")[1].removesuffix(".py")
        room = rooms.setdefault(name, dict.fromkeys(counts, 0))
        for kind, count in counts.items():
            room[kind] += count
        survivors += survived
    for room in rooms.values():
        room["share_found"] = share_found(room)
    return {"rooms": rooms, "modules": modules, "survivors": survivors}


def described(mutant: Mutant, harmless: dict[tuple[str, str], str]) -> dict[str, Any]:
    """A survivor in the summary."""
    change = f"{mutant.before} → {mutant.after}"
    return {
        "module": mutant.module,
        "line": mutant.line,
        "before": mutant.before,
        "after": mutant.after,
        "reason": harmless.get((mutant.module, change)),
    }


def count_outcomes(
    outcomes: list[str], survived: list[dict[str, Any]]
) -> dict[str, int]:
    """How many mutants of a module were tried, and what became of them."""
    excused = [survivor for survivor in survived if survivor["reason"] is not None]
    return {
        "tried": len(outcomes),
        "killed": outcomes.count("killed"),
        "timeout": outcomes.count("timeout"),
        "unclear": outcomes.count("unclear"),
        "survived": len(survived),
        "of_those_harmless": len(excused),
    }


def share_found(counts: dict[str, int]) -> float | None:
    """The share of the mutants that tests notice, of those that change something."""
    changing = counts["tried"] - counts["of_those_harmless"] - counts["unclear"]
    if not changing:
        return None
    return round((counts["killed"] + counts["timeout"]) / changing, 3)


def main() -> None:
    parser = _parser()
    options = parser.parse_args()
    folder = options.session.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    for pattern in options.modules:
        if not chosen_modules([pattern]):
            parser.error(f"{pattern!r}: is no room or file of gpuload")
    reach = Reach(folder)
    session = Session(folder / "results.jsonl")
    with tempfile.TemporaryDirectory(prefix="tree-", dir=folder) as name:
        tree = Path(name)
        copy_to(tree)
        os.chdir(tree)
        import_outside(tree)
        subprocess.run(
            [sys.executable, "tools/build_kernels.py"],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        attempt = Trial(tree, reach, options.seconds, options.tests)
        try_mutants(attempt, session, options)
    report = {"about": about_run(), **summary(session.results)}
    options.json.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")
    for room, counts in report["rooms"].items():
        print(room, *(f"{kind} {count}" for kind, count in counts.items()), sep="  ")


def try_mutants(attempt: Trial, session: Session, options: argparse.Namespace) -> None:
    """Tries the mutants of the chosen modules that are not known yet, and survivors again where that is asked for."""
    harmless = reasons()
    for module in chosen_modules(options.modules):
        source = (ROOT / module).read_text()
        for mutant in find_mutants(module, source)[: options.most]:
            earlier = session.results.get(mutant.id)
            if earlier is not None:
                change = (module, f"{mutant.before} → {mutant.after}")
                survived = earlier["outcome"] == "survived"
                if not options.again or not survived or change in harmless:
                    continue
            outcome, noticed = attempt(mutant, source)
            session.add({**mutant.about(), "outcome": outcome, "noticed": noticed})
            if outcome in ("survived", "unclear"):
                print(
                    f"{outcome}: {module}:{mutant.line} {noticed}\n  - {mutant.before}\n  + {mutant.after}",
                    flush=True,
                )


def about_run() -> dict[str, str]:
    """The commit and the versions that the summary is about."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    versions = {name: version(name) for name in ("pytest", "hypothesis", "coverage")}
    return {
        "commit": commit.stdout.strip(),
        "python": platform.python_version(),
        **versions,
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tools/mutate.sh", description=__doc__)
    parser.add_argument(
        "modules",
        nargs="*",
        help="rooms or files of gpuload, such as order or packing/plan.py",
    )
    parser.add_argument(
        "--session",
        type=Path,
        default=ROOT / "build/mutation",
        help="folder of what is known so far",
    )
    parser.add_argument(
        "--most", type=int, metavar="N", help="of each module, always the same sample"
    )
    parser.add_argument(
        "--again",
        action="store_true",
        help="try survivors again, after tests were added",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=30,
        help="of tests of the room, and of others (%(default)s)",
    )
    parser.add_argument(
        "--tests",
        nargs="+",
        default=[],
        help="files that are asked first, whatever they reach",
    )
    parser.add_argument(
        "--json", type=Path, default=RESULTS, help="where the summary goes"
    )
    return parser


if __name__ == "__main__":
    main()
