#!/usr/bin/env bash
# Mutation testing: changes one place of the source at a time, and sees whether the fast tests of its stage notice.
#
#   python -m pip install --target build/cosmic-ray cosmic-ray coverage    once; not into .venv, which it would change
#   bash tools/mutate.sh                        all stages: hours
#   bash tools/mutate.sh order read             some stages; tools/mutation/stages.py lists them and their tests
#   bash tools/mutate.sh --most 40              at most 40 mutants of each module, always the same ones
#   bash tools/mutate.sh order --again          after tests were added: only what survived before
#
# A run that was stopped goes on where it was: results are kept in build/mutation/results.jsonl by mutant, for as long as
# the module stays as it is. Survivors are printed as they are found. At the end, counts and survivors go to
# tools/results/mutation.json; a survivor that changes no behaviour is entered, with the reason, into
# tools/results/mutation-survivors.md, and no longer counts.
#
# The changes are those of cosmic-ray; its own runner starts pytest for each of them, tools/mutation/forked.py forks. A
# test runs only for the lines that it runs (coverage tells), tests that take more than four seconds are left out, and
# Hypothesis draws at most 100 examples, always the same ones.
# COSMIC_RAY names another folder to find cosmic-ray in, and PYTHON another Python than that of .venv.

set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
site=$(realpath -m "${COSMIC_RAY:-$root/build/cosmic-ray}")
if [ ! -d "$site/cosmic_ray" ]; then
  echo "mutate.sh: no cosmic-ray in $site. Install it: python -m pip install --target build/cosmic-ray cosmic-ray coverage" >&2
  exit 2
fi
export PYTHONPATH=$root/tools MUTATION_SITE=$site
exec "${PYTHON:-$root/.venv/bin/python}" -m mutation "$@"
