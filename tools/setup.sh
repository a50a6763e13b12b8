# Makes .venv at the top of the repository and installs gpuload into it, with all that the tools, the examples and the
# tests need. Sourced by tools/test.sh and tools/demo.sh, which then run "$python". Costs nothing when nothing changed.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=$root/.venv
python=$venv/bin/python
unfinished=$venv/unfinished # is there while .venv is being filled: one found with it was interrupted
stamp=$venv/installed       # says from what the present content was installed

fail() {
  printf '%s\n' "$*" >&2
  exit 2
}

# What the content of .venv depends on: what is asked for, where the repository lies, and the GPU's driver.
wanted() {
  { cat "$root/pyproject.toml" "$root/tools/constraints.txt" /proc/driver/nvidia/version 2>/dev/null || true
    printf '%s\n' "$root"; } | sha256sum
}

# Prints the first Python that can make a virtual environment. Each is run, not just looked up: a version manager's
# stand-in may be on the PATH without a Python behind it.
find_python() {
  local name lacking=
  for name in python3 python3.13 python3.12 python3.11 python3.10; do
    "$name" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || continue
    if "$name" -c 'import venv, ensurepip' 2>/dev/null; then
      command -v "$name"
      return
    fi
    lacking=$("$name" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
  done
  if [ -n "$lacking" ]; then
    fail "$lacking cannot make a virtual environment: it lacks ensurepip. On Debian or Ubuntu: sudo apt install $lacking-venv"
  fi
  fail "gpuload needs Python 3.10 or newer and found none as python3 or python3.10 … 3.13. On Debian or Ubuntu: sudo apt install python3 python3-venv"
}

# cuda12 where the driver is of CUDA 12, else cuda13, which also serves machines without a GPU.
choose_extra() {
  local cuda
  cuda=$(nvidia-smi 2>/dev/null | sed -n 's/.*CUDA[^:]*Version: *\([0-9]*\).*/\1/p' | head -n 1) || true
  if [ "$cuda" = 12 ]; then echo cuda12; else echo cuda13; fi
}

set_up() {
  local found extra
  if [ -e "$unfinished" ] || ! "$python" -c 'import sys, pip; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
    found=$(find_python)
    echo "Making .venv with $found ($("$found" --version 2>&1))"
    rm -rf "$venv/bin" "$venv" # bin first: without it, what an interruption leaves is seen as broken
    mkdir "$venv"
    touch "$unfinished"
    "$found" -m venv "$venv"
  fi
  extra=$(choose_extra)
  echo "Installing gpuload[$extra,sources,ray,examples,frameworks,bench,dev] into .venv, as tools/constraints.txt pins it. Once; it"
  echo "takes 2 to 10 minutes and, where nothing is cached, downloads up to 4 GB, most of it torch and CUDA."
  touch "$unfinished"
  rm -f "$stamp"
  # The build constraint is for newer versions of pip, which do not apply the other one to what builds gpuload.
  (cd "$root" && PIP_CONSTRAINT=tools/constraints.txt PIP_BUILD_CONSTRAINT=tools/constraints.txt "$python" -m pip \
    install --quiet --disable-pip-version-check --no-input --editable ".[$extra,sources,ray,examples,frameworks,bench,dev]") ||
    fail "Installing failed; pip says why above. Once that is mended, run the same command again."
  wanted >"$stamp"
  rm -f "$unfinished"
  if [ "$extra" = cuda12 ] && [ "$("$python" -c 'import torch; print((torch.version.cuda or "").split(".")[0])')" != 12 ]; then
    echo "This driver is of CUDA 12, but the torch that was installed is not: it will not see the GPU until the driver"
    echo "is upgraded to 580 or newer, or torch replaced by its CUDA 12 build (https://pytorch.org/get-started)."
  fi
}

if [ -e "$unfinished" ] || [ ! -x "$python" ] || [ "$(wanted)" != "$(cat "$stamp" 2>/dev/null)" ]; then
  set_up
fi
