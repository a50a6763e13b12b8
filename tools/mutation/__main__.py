"""Changes one place of a module at a time and sees whether the fast tests of its stage notice; see tools/mutate.sh."""

import argparse
import json
import os
import platform
import re
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mutation.forked import import_outside, in_fork, run_tests
from mutation.operators import find_mutants
from mutation.stages import ROOT, STAGES, Stage

RESULTS = ROOT / "tools/results/mutation.json"
REASONS = ROOT / "tools/results/mutation-survivors.md"


class Session:
    """Results by mutant, in a file of one JSON object a line, so that a run that was stopped goes on."""

    def __init__(self, path: Path) -> None:
        self._path = path
        lines = path.read_text().splitlines() if path.exists() else ()
        self.results: dict[str, dict[str, Any]] = {one["id"]: one for one in map(json.loads, lines)}

    def add(self, result: dict[str, Any]) -> None:
        self.results[result["id"]] = result
        with self._path.open("a") as file:
            file.write(json.dumps(result, ensure_ascii=False) + "\n")


def run_stage(name: str, stage: Stage, session: Session, options: argparse.Namespace) -> None:
    """Tries the mutants of a stage's modules, those first that come first in a sample."""
    log = options.session / f"{name}.log"
    outcome, took_s = in_fork(lambda: run_tests(stage.tests), 3600, log)
    if outcome != "survived":
        raise SystemExit(f"{name}: the tests fail without a change ({outcome}); {log} tells why")
    for path in stage.paths():
        source = (ROOT / path).read_text()
        for mutant in find_mutants(path, source)[: options.most]:
            known = session.results.get(mutant.id)
            if known is not None and not (options.again and known["outcome"] == "survived"):
                continue
            changed = mutant.apply(source)
            outcome, _ = in_fork(lambda path=path, changed=changed: run_tests(stage.tests, path, changed), 3 * took_s)
            session.add({**mutant.about(), "outcome": outcome})
            if outcome == "survived":
                print(f"{path}:{mutant.line}\n  - {mutant.before}\n  + {mutant.after}", flush=True)


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


def summary(session: Session) -> dict[str, Any]:
    """Counts of each module, and the survivors."""
    known, modules, survivors = reasons(), dict[str, Any](), list[dict[str, Any]]()
    for path in (path for stage in STAGES.values() for path in stage.paths()):
        mutants = find_mutants(path, (ROOT / path).read_text())
        tried = [session.results[mutant.id] for mutant in mutants if mutant.id in session.results]
        counts = {kind: sum(one["outcome"] == kind for one in tried) for kind in ("killed", "timeout", "survived")}
        found = [
            {**one, "reason": known.get((path, f"{one['before']} → {one['after']}"))}
            for one in tried
            if one["outcome"] == "survived"
        ]
        changing = len(tried) - sum(one["reason"] is not None for one in found)
        share = round((counts["killed"] + counts["timeout"]) / changing, 3) if changing else None
        modules[path] = {"mutants": len(mutants), "tried": len(tried), **counts, "share_found": share}
        survivors += found
    return {"modules": modules, "survivors": survivors}


def main() -> None:
    parser = argparse.ArgumentParser(prog="tools/mutate.sh", description=__doc__)
    parser.add_argument("stages", nargs="*", help=f"of {', '.join(STAGES)}; without any: all")
    parser.add_argument("--session", type=Path, default=ROOT / "build/mutation", help="folder of what is known so far")
    parser.add_argument("--most", type=int, metavar="N", help="of each module, always the same sample")
    parser.add_argument("--again", action="store_true", help="try survivors again, after tests were added")
    parser.add_argument("--json", type=Path, default=RESULTS, help="where the summary goes")
    options = parser.parse_args()
    if unknown := set(options.stages) - set(STAGES):
        parser.error(f"{sorted(unknown)[0]!r}: is no stage, expected one of {', '.join(STAGES)}")
    options.session = options.session.resolve()
    options.session.mkdir(parents=True, exist_ok=True)
    os.chdir(ROOT)
    import_outside()
    session = Session(options.session / "results.jsonl")
    for name in options.stages or STAGES:
        run_stage(name, STAGES[name], session, options)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
    versions = {name: version(name) for name in ("pytest", "hypothesis")}
    about = {"commit": commit.stdout.strip(), "python": platform.python_version(), **versions}
    options.json.write_text(json.dumps({"about": about, **summary(session)}, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
