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

step format "$python" -m ruff format --check .
step lint "$python" -m ruff check .
step types "$python" -m mypy
# A process for each core: 6.4 minutes on 2 cores.
step tests "$python" -m pytest --numprocesses auto --maxprocesses 4 --dist worksteal "$@"
