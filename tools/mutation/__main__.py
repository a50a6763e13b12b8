"""Changes one place of a module at a time and sees whether the fast tests of its stage notice; see tools/mutate.sh."""

import argparse
import json
import os
import platform
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.append(os.environ.get("MUTATION_SITE", ""))  # last: what .venv has too is taken from there

from mutation.forked import change_module, import_outside, in_fork, run_tests, survey
from mutation.operators import Mutant, behaviour, find_mutants
from mutation.session import Lines, Session, change, digest
from mutation.stages import ROOT, STAGES, Stage

RESULTS = ROOT / "tools/results/mutation.json"
REASONS = ROOT / "tools/results/mutation-survivors.md"


def mutants_of(path: str, folder: Path) -> list[Mutant]:
    """The mutants of a module that differ from it and from one another, in the order in which a sample takes them."""
    cache = folder / f"mutants-{digest([path, 'tools/mutation/operators.py'])}.json"
    if not cache.exists():
        source = (ROOT / path).read_text()
        different: dict[str | None, Mutant] = {}
        for mutant in sorted(find_mutants(path, source), key=lambda one: one.rank(source)):
            different.setdefault(behaviour(mutant.apply(source)), mutant)
        for none in (None, behaviour(source)):
            different.pop(none, None)
        cache.write_text(json.dumps([vars(mutant) for mutant in different.values()]))
    return [Mutant(**entry) for entry in json.loads(cache.read_text())]


class Run:
    """One stage of a run, after its tests were run once as they are."""

    def __init__(self, name: str, stage: Stage, options: argparse.Namespace) -> None:
        self._stage, self._folder = stage, options.session
        self._session = Session(options.session / "results.jsonl")
        self._made = options.session / f"{name}-made.json"
        tests = [f"tests/{path}" for path in stage.tests]
        cache = options.session / f"{name}-{digest([*tests, *stage.paths(), 'tests/conftest.py'])}.json"
        if not cache.exists() or not self._made.exists():
            log = options.session / f"{name}.log"
            outcome, found = in_fork(lambda: survey(stage.tests, stage.paths(), self._made), 1800, 3600, str(log))
            if outcome != "done":
                sys.exit(f"{name}: the tests could not be run ({outcome}); {log} tells why")
            cache.write_text(json.dumps(found))
        self._survey = json.loads(cache.read_text())
        seconds = self._survey["seconds"]
        broken = {name.partition("[")[0] for name in self._survey["failed"]}
        self._quick = {
            name: seconds[name]
            for name, elapsed in self._survey["elapsed"].items()
            if elapsed <= options.test_seconds and name.partition("[")[0] not in broken
        }
        print(f"{name}: {len(self._quick)} tests; left out: {sorted(seconds.keys() - self._quick.keys())}", flush=True)
        if self._survey.get("passes_within_s") != options.test_seconds:
            path = stage.paths()[0]
            outcome, failed = self._run(path, (ROOT / path).read_text(), list(self._quick))
            if outcome != "done" or failed:
                sys.exit(f"{name}: {failed or 'the run'} fails without a change ({outcome})")
            cache.write_text(json.dumps({**self._survey, "passes_within_s": options.test_seconds}))

    def module(self, path: str, most: int | None, again: bool) -> None:
        """Tries the mutants of a module, those first that come first in a sample."""
        source = (ROOT / path).read_text()
        lines = Lines(source, self._survey["lines"][path])
        for mutant in mutants_of(path, self._folder)[:most]:
            known = self._session.results.get(f"{path} {mutant.rank(source)}")
            if known is None or (again and known["outcome"] == "survived"):
                self._try(mutant, source, mutant.apply(source), lines)

    def _run(self, module: str, source: str, tests: list[str]) -> tuple[str, str | None]:
        """How a run of these tests with a changed module ended, and the first that failed."""
        chosen = sorted(tests, key=self._survey["elapsed"].__getitem__)
        files = sorted({name.partition("::")[0].removeprefix("tests/") for name in chosen})
        limits = {name: 3 * self._quick[name] + 2 for name in chosen}

        def job() -> str | None:
            change_module(module, source)
            return run_tests(files, limits, self._made)

        return in_fork(job, sum(limits.values()), 20 * sum(self._survey["elapsed"][name] for name in chosen) + 120)

    def _try(self, mutant: Mutant, source: str, changed: str, lines: Lines) -> None:
        names = lines.tests(mutant.line)
        chosen = [name for name in self._quick if names is None or name in names]
        outcome, failed = self._run(mutant.module, changed, chosen) if chosen else ("done", None)
        verdict = {"done": "killed" if failed else "survived", "died": "killed", "timeout": "timeout"}[outcome]
        before, after = change(source, changed)
        result = {
            "id": f"{mutant.module} {mutant.rank(source)}",
            "place": f"{mutant.module}:{mutant.line}",
            "operator": mutant.operator,
            "before": before,
            "after": after,
            "outcome": verdict,
            "tests": len(chosen),
            "found_by": failed if failed else outcome,
        }
        self._session.add(result)
        if verdict == "survived":
            print(f"{result['place']} ({len(chosen)} tests)\n  - {before}\n  + {after}", flush=True)


def reasons() -> dict[tuple[str, str], str]:
    """Why a survivor does not matter, by module and change."""
    found, module = {}, ""
    for line in REASONS.read_text().splitlines() if REASONS.exists() else ():
        if line.startswith("## "):
            module = line[3:].strip()
        elif match := re.fullmatch(r"\| `` (.*) `` \| `` (.*) `` \| (.*) \|", line):
            before, after, reason = (part.replace("\\|", "|") for part in match.groups())
            found[module, f"{before} → {after}"] = reason
    return found


def summary(session: Session, folder: Path, stages: list[str]) -> dict[str, Any]:
    """Counts of each module, and the survivors."""
    known = reasons()
    modules: dict[str, Any] = {}
    survivors: list[dict[str, Any]] = []
    not_run: list[str] = []
    for name in stages:
        for path in STAGES[name].paths():
            source = (ROOT / path).read_text()
            results = session.results if any(one.startswith(f"{path} ") for one in session.results) else {}
            mutants = [f"{path} {mutant.rank(source)}" for mutant in mutants_of(path, folder)] if results else []
            tried = [results[one] for one in mutants if one in results]
            if not tried:
                not_run.append(path)
                continue
            counts = {kind: sum(one["outcome"] == kind for one in tried) for kind in ("killed", "timeout", "survived")}
            equivalent = 0
            for one in sorted(tried, key=lambda one: int(one["place"].rpartition(":")[2])):
                if one["outcome"] == "survived":
                    reason = known.get((path, f"{one['before']} → {one['after']}"))
                    equivalent += reason is not None
                    survivors.append({k: one[k] for k in ("place", "operator", "before", "after")} | {"reason": reason})
            changing = len(tried) - equivalent
            modules[path] = {
                "mutants": len(mutants),
                "tried": len(tried),
                **counts,
                "survived_without_changing_behaviour": equivalent,
                "share_found": round((counts["killed"] + counts["timeout"]) / changing, 3) if changing else None,
                "tests": [f"tests/{path}" for path in STAGES[name].tests],
            }
    return {"modules": modules, "modules_not_run": not_run, "survivors": survivors}


def main() -> None:
    parser = argparse.ArgumentParser(prog="tools/mutate.sh", description=__doc__)
    parser.add_argument("stages", nargs="*", help=f"of {', '.join(STAGES)}; without any: all")
    parser.add_argument("--session", type=Path, default=ROOT / "build/mutation", help="folder of what is known so far")
    parser.add_argument(
        "--most", type=int, metavar="N", help="at most N mutants of each module: always the same sample"
    )
    parser.add_argument("--modules", nargs="+", default=[], help="parts of paths: only these modules of the stages")
    parser.add_argument("--summary", action="store_true", help="try nothing; write the summary of what is known")
    parser.add_argument("--again", action="store_true", help="try survivors again, after tests were added")
    parser.add_argument("--test-seconds", type=float, default=4, help="leave slower tests out (default: 4)")
    parser.add_argument("--json", type=Path, default=RESULTS, help="where the summary goes")
    options = parser.parse_args()
    if unknown := set(options.stages) - set(STAGES):
        parser.error(f"{sorted(unknown)[0]!r}: is no stage, expected one of {', '.join(STAGES)}")
    options.session = options.session.resolve()
    options.session.mkdir(parents=True, exist_ok=True)
    os.chdir(ROOT)
    sys.path[:0] = [str(ROOT), *(str(ROOT / folder) for folder in ("examples", "tools", "tests"))]
    os.environ |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    stages = options.stages or list(STAGES)
    if not options.summary:
        import_outside()
    for name in () if options.summary else stages:
        run = Run(name, STAGES[name], options)
        for path in STAGES[name].paths():
            if not options.modules or any(part in path for part in options.modules):
                run.module(path, options.most, options.again)
    found = summary(Session(options.session / "results.jsonl"), options.session, list(STAGES))
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
    about = {
        "commit": commit.stdout.strip(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("cosmic-ray", "coverage", "pytest", "hypothesis")},
        "slowest_test_s": options.test_seconds,
    }
    options.json.write_text(json.dumps({"about": about, **found}, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
