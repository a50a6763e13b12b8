#!/usr/bin/env bash
# Mutation testing: changes one place of the source at a time, and sees whether a test notices.
#
#   bash tools/mutate.sh                              the whole package: days
#   bash tools/mutate.sh order packing/plan.py        some rooms and files
#   bash tools/mutate.sh --most 40                    at most 40 mutants of each module, always the same ones
#   bash tools/mutate.sh order --again                after tests were added: only what survived before
#   bash tools/mutate.sh order --seconds 120          asks more tests, slower ones, of what survives
#   bash tools/mutate.sh order --again --tests tests/docs      asks these first: what they start in another process counts
#
# The first run measures, in a run of the suite under coverage.py, which tests reach which lines (needs pytest-cov, which
# nothing else does). Each mutant then runs the tests that reach its line, the fastest first, until one fails: those of
# its own room for about 30 s, then others for 30 s, then the rest of the room for 30 s. They run in a fork of a process
# that has imported everything else, in a copy of the repository. What fails without the change as well does not count as
# noticed.
#
# A run that was stopped goes on where it was: build/mutation/results.jsonl keeps what became of each mutant for as long
# as its module does not change. The summary goes to benchmarks/results/mutation.json; a survivor that changes no behaviour is
# entered, with the reason, into benchmarks/results/mutation-survivors.md, and no longer counts.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export PYTHONPATH=$root/tools
exec "${PYTHON:-$root/.venv/bin/python}" -m mutation "$@"
