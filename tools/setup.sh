# Installs gpuload into .venv at the top of the repository, with what one of two levels needs and no more:
#   demo    what tools/demo.sh uses: torch, the decoder for this machine (CPU, or DALI and CuPy for its GPU), scikit-learn
#   test    adds what tools/test.sh needs: DALI, h5py, lmdb, Ray, training frameworks, peers to compare with, linters
# `bash tools/setup.sh demo` installs a level, and `bash tools/setup.sh` says how large the two are on this machine.
# Scripts source it and call set_up LEVEL; afterwards "$python" is the Python to run. Takes a few milliseconds when nothing
# has changed.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=$root/.venv
python=$venv/bin/python
unfinished=$venv/unfinished # exists while .venv is being filled: a run that finds it starts over
cpu_index=https://download.pytorch.org/whl/cpu

fail() {
  printf '%s\n' "$*" >&2
  exit 2
}

set_up() {
  local level=$1
  if [ -e "$unfinished" ] || [ ! -x "$python" ] || [ "$(wanted)" != "$(cat "$venv/installed-$level" 2>/dev/null)" ]; then
    make_venv
    install "$level"
  fi
  if [ "$level" = test ]; then
    "$python" "$root/tools/check_torchvision.py" || exit 2
  fi
}

# What the content of .venv depends on: what is asked for, where the repository lies, and the GPU's driver.
wanted() {
  { cat "$root/pyproject.toml" "$root/tools/constraints.txt" /proc/driver/nvidia/version 2>/dev/null || true
    printf '%s\n' "$root"; } | sha256sum
}

make_venv() {
  local found
  if [ ! -e "$unfinished" ] && "$python" -c 'import sys, pip; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
    return
  fi
  found=$(find_python)
  echo "Making .venv with $found ($("$found" --version 2>&1))"
  rm -rf "$venv/bin" "$venv" # bin first: without it, what an interruption leaves is seen as broken
  mkdir "$venv"
  touch "$unfinished"
  "$found" -m venv "$venv"
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

install() {
  local level=$1 extras what started=$SECONDS
  choose_device
  choose_torch
  if [ "$level" = demo ]; then
    what="what the demo uses" extras=$device,demo
  else
    # The tests run DALI's CPU operators without a GPU, too.
    what="what the tests need" extras=$device$([ $device != cpu ] || echo ,dali),sources,ray,monitor,remote,report,docs,examples,frameworks,bench,dev
  fi
  say_size "$level" "$what"
  touch "$unfinished"
  # The build constraint is for newer versions of pip, which do not apply the other one to what builds gpuload.
  (cd "$root" && PIP_CONSTRAINT=tools/constraints.txt PIP_BUILD_CONSTRAINT=tools/constraints.txt "$python" -m pip install \
    --disable-pip-version-check --no-input ${index:+--extra-index-url "$index"} --editable ".[$extras]") |
    "$python" tools/pip_progress.py ||
    fail "Installing failed; pip says why above. Once that is mended, run the same command again."
  wanted >"$venv/installed-demo"
  [ "$level" = demo ] || wanted >"$venv/installed-test"
  rm -f "$unfinished"
  printf 'Installed in %d s; .venv takes %s.\n' $((SECONDS - started)) "$(gigabytes "$(du -sb "$venv" | cut -f 1)")"
  if [ "$device" = cuda12 ] && [ "$("$python" -c 'import torch; print((torch.version.cuda or "").split(".")[0])')" != 12 ]; then
    echo "The driver is for CUDA 12, but the installed torch is not: it will not see the GPU until the driver is upgraded"
    echo "to 580 or newer, or torch replaced by its CUDA 12 build (https://pytorch.org/get-started)."
  fi
}

# Sets device, the extra of gpuload to install: cuda12 or cuda13, whichever the driver is for, or cpu without a driver.
choose_device() {
  local report
  device=cpu
  if report=$(nvidia-smi 2>/dev/null); then
    device=cuda13
    case $report in *CUDA*Version:\ 12.*) device=cuda12 ;; esac
  fi
}

# Sets torch, the build that pip will install: cuda, or cpu where there is no driver and the build can be had. Sets
# index to PyTorch's own package index if the build is there alone: PyPI has torch for CUDA only.
choose_torch() {
  torch=cuda index=
  [ $device = cpu ] || return 0
  if has_cpu_torch; then
    torch=cpu
  elif has_cpu_torch --index-url "$cpu_index" --retries 0 --timeout 10; then
    torch=cpu index=$cpu_index
  fi
}

has_cpu_torch() {
  local version
  version=$(sed -n 's/^torch==//p' "$root/tools/constraints.txt")
  case $("$python" -m pip index versions torch "$@" 2>/dev/null || true) in *"$version+cpu"*) ;; *) return 1 ;; esac
}

gigabytes() {
  local tenths=$((($1 + 50000000) / 100000000))
  printf '%d.%d GB' $((tenths / 10)) $((tenths % 10))
}

# Sets download and disk, in GB. Measured with Python 3.11 on x86-64: an empty .venv filled for this level.
find_size() {
  case $1-$device-$torch in
    demo-cpu-cpu) download=0.4 disk=1.6 ;;
    demo-cpu-cuda) download=2.9 disk=5.6 ;;
    demo-cuda13-*) download=3.3 disk=6.5 ;;
    demo-cuda12-*) download=3.6 disk=6.9 ;;
    test-cpu-cpu) download=0.9 disk=3.1 ;;
    test-cpu-cuda) download=3.4 disk=7.0 ;;
    test-cuda13-*) download=3.5 disk=7.2 ;;
    test-cuda12-*) download=3.8 disk=7.7 ;;
  esac
}

say_size() {
  local download disk
  find_size "$1"
  echo "Installing $2 into .venv: $download GB to download, less what is cached or installed already; $disk GB on disk."
  if [ $device = cpu ]; then
    echo "There is no NVIDIA driver: the packages for a GPU are left out."
    if [ $torch = cuda ]; then
      echo "But torch comes as its CUDA build, the only one on PyPI, since its CPU build was not found at"
      echo "$cpu_index: 2.5 GB of the download will not be used."
    elif [ -n "$index" ]; then
      echo "torch comes as its CPU build, from $index."
    fi
  fi
}

# What `bash tools/setup.sh` says. It needs no .venv, so it does not ask pip for torch's CPU build.
say_levels() {
  local level what torch=cpu download disk
  choose_device
  echo "usage: bash tools/setup.sh LEVEL   (installs into $venv)"
  for level in demo test; do
    what="for tools/demo.sh and examples/train.py"
    [ $level = demo ] || what="for tools/test.sh, all examples and all tools"
    find_size $level
    echo "  $level   $what: $download GB to download, $disk GB on disk"
  done
  if [ $device = cpu ]; then
    echo "There is no NVIDIA driver: this is with torch's CPU build. Where that cannot be had, its CUDA build from PyPI is"
    echo "installed, with which 2.5 GB more are downloaded."
  fi
}

if [ "${BASH_SOURCE[0]}" = "$0" ]; then
  set -euo pipefail
  case $#-${1-} in
    1-demo | 1-test) set_up "$1" ;;
    0-) say_levels ;;
    *) say_levels >&2; exit 2 ;;
  esac
fi
