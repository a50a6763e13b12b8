#!/usr/bin/env bash
# Runs every check: format, lint, types, tests. Arguments go to pytest:  bash tools/test.sh -k order
# The first run makes .venv, or adds to that of tools/demo.sh what the tests need.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
set_up test
cd "$root"

step() {
  printf '\n== %s\n' "$1"
  shift
  "$@" || { printf 'Failed: %s\n' "$*" >&2; exit 1; }
}

# Hundreds of processes import gpuload: where no bytecode is written, each would compile it.
unset PYTHONDONTWRITEBYTECODE
step kernels "$python" tools/build_kernels.py
step format "$python" -m ruff format --check .
step lint "$python" -m ruff check .
step types "$python" -m mypy
# Five processes for two cores: the tests wait for other processes, disks and clocks for half of their time.
processes=$(( $(nproc) * 5 / 2 ))
step tests "$python" -m pytest --numprocesses $((processes < 6 ? processes : 6)) --dist worksteal "$@"
