#!/usr/bin/env bash
# Mutation testing: changes one place of the source at a time, and sees whether the tests of its stage notice.
#
#   bash tools/mutate.sh                        all stages: days
#   bash tools/mutate.sh order read             some stages; tools/mutation/stages.py lists them and their tests
#   bash tools/mutate.sh --most 40              at most 40 mutants of each module, always the same ones
#   bash tools/mutate.sh order --again          after tests were added: only what survived before
#
# A run that was stopped goes on where it was: results are kept in build/mutation/results.jsonl by mutant, for as long as
# its module does not change. The summary of the last run is written to tools/results/mutation.json; a survivor that
# changes no behaviour is entered, with the reason, into tools/results/mutation-survivors.md, and no longer counts.
#
# Each mutant runs all tests of its stage until one fails, in a fork of a process that has imported everything else.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export PYTHONPATH=$root/tools
exec "${PYTHON:-$root/.venv/bin/python}" -m mutation "$@"
