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
pytorch_index=https://download.pytorch.org/whl
is_supported='import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))'

fail() {
  printf '%s\n' "$*" >&2
  exit 2
}

set_up() {
  local level=$1
  if [ -e "$unfinished" ] || [ ! -x "$python" ] || [ "$(wanted)" != "$(cat "$venv/installed-$level" 2>/dev/null)" ]; then
    choose_device
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
  if [ ! -e "$unfinished" ] && "$python" -c "import pip; $is_supported" 2>/dev/null; then
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
  for name in python3 python3.13 python3.12 python3.11 python3.10; do # the versions that the tests were run with
    "$name" -c "$is_supported" 2>/dev/null || continue
    if "$name" -c 'import venv, ensurepip' 2>/dev/null; then
      command -v "$name"
      return
    fi
    lacking=$("$name" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
  done
  if [ -n "$lacking" ]; then
    fail "$lacking cannot make a virtual environment: it lacks ensurepip. On Debian or Ubuntu: sudo apt install $lacking-venv"
  fi
  fail "gpuload needs Python 3.10, 3.11, 3.12 or 3.13 and found none as python3 or python3.10 … 3.13. On Debian or Ubuntu: sudo apt install python3.13 python3.13-venv"
}

install() {
  local level=$1 extras what constraints=tools/constraints.txt started=$SECONDS
  choose_torch
  if [ "$device" = cuda12 ]; then # the file pins the libraries of CUDA 13 that PyPI's torch needs
    constraints=$venv/constraints.txt
    sed '/^cuda-/d; /^nvidia-[a-z]*==/d; /^nvidia-.*-cu13==/d' "$root/tools/constraints.txt" >"$constraints"
  fi
  if [ "$level" = demo ]; then
    what="what the demo uses" extras=$device,demo
  else
    # The tests run DALI's CPU operators without a GPU, too.
    what="what the tests need" extras=$device$([ $device != cpu ] || echo ,dali),sources,codecs,dicom,exr,fits,ray,monitor,remote,report,docs,examples,frameworks,bench,dev
  fi
  say_size "$level" "$what"
  touch "$unfinished"
  # The build constraint is for newer versions of pip, which do not apply the other one to what builds gpuload.
  (cd "$root" && PIP_CONSTRAINT=$constraints PIP_BUILD_CONSTRAINT=$constraints "$python" -m pip install \
    --disable-pip-version-check --no-input ${index:+--extra-index-url "$index"} --editable ".[$extras]") |
    sed -un 's#.*[ /]\([^ /]*-[^ /]*\)-.*\.whl \(([0-9.]* MB)\)$#  \1 \2#p' ||
    fail "Installing failed; pip says why above. Once that is mended, run the same command again."
  wanted >"$venv/installed-demo"
  [ "$level" = demo ] || wanted >"$venv/installed-test"
  rm -f "$unfinished"
  printf 'Installed in %d s; .venv takes %s.\n' $((SECONDS - started)) "$(gigabytes "$(du -sb "$venv" | cut -f 1)")"
}

# Sets device, the extra of gpuload to install, by the CUDA version of the driver and the compute capability of the cards;
# cpu without a driver. PyPI's torch and everything else for CUDA 13 begin with Turing (7.5). PyTorch's builds for CUDA 12,
# all of them 12.6, end with Hopper (9.0). docs/quickstart.md has the table.
choose_device() {
  local report capabilities cuda lowest highest
  device=cpu
  report=$(nvidia-smi 2>/dev/null) || return 0
  [[ $report =~ CUDA[A-Za-z\ ]*Version:\ *([0-9]+)\.([0-9]+) ]] || return 0
  cuda=${BASH_REMATCH[1]}.${BASH_REMATCH[2]}
  if [ "${cuda%.*}" -lt 12 ]; then
    fail "The NVIDIA driver is for CUDA $cuda, and gpuload needs 12 or newer. Upgrade the driver to 525 or newer, better to 580."
  fi
  capabilities=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | tr -d '. \r' | sort -n) || capabilities=
  lowest=${capabilities%%$'\n'*} highest=${capabilities##*$'\n'}
  [[ $lowest$highest =~ ^[0-9]+$ ]] || lowest=75 highest=75 # it does not tell: the driver alone decides
  device=cuda12
  if [ "${cuda%.*}" -ge 13 ] && [ "$lowest" -ge 75 ]; then
    device=cuda13
  elif [ "$highest" -ge 100 ]; then
    fail "A GPU of compute capability ${highest%?}.${highest: -1} needs torch for CUDA 13, which takes a driver for CUDA 13 (580 or newer; this one is for CUDA $cuda) and no GPU older than Turing beside it."
  fi
}

# Sets torch, the build that pip will install: cuda, or cpu where there is no driver and the build can be had. Sets
# index to PyTorch's own package index where PyPI does not have the build: PyPI has torch for CUDA 13 alone.
choose_torch() {
  torch=cuda index=
  case $device in
    cpu)
      if has_torch cpu; then
        torch=cpu
      elif has_torch cpu --index-url "$pytorch_index/cpu" --retries 0 --timeout 10; then
        torch=cpu index=$pytorch_index/cpu
      fi
      ;;
    cuda12)
      if has_torch cu126; then
        return
      fi
      index=$pytorch_index/cu126
      has_torch cu126 --index-url "$index" --retries 0 --timeout 10 ||
        fail "This GPU or its driver needs torch $(torch_version) for CUDA 12, and $index cannot be reached or does not have it. Upgrade the driver to 580 or newer (GPUs since Turing), or make that index reachable and run the same command again."
      ;;
  esac
}

torch_version() { sed -n 's/^torch==//p' "$root/tools/constraints.txt"; }

# Whether pip finds the pinned torch in a build: has_torch BUILD [OPTION …]
has_torch() {
  local build=$1
  shift
  case $("$python" -m pip index versions torch "$@" 2>/dev/null || true) in *"$(torch_version)+$build"*) ;; *) return 1 ;; esac
}

gigabytes() {
  local tenths=$((($1 + 50000000) / 100000000))
  printf '%d.%d GB' $((tenths / 10)) $((tenths % 10))
}

# Sets size, in GB. Measured with Python 3.11 on x86-64: an empty .venv filled for this level. What PyTorch's own index has
# for CUDA 12 was not measured.
find_size() {
  local download disk
  size=
  case $1-$device-$torch in
    demo-cpu-cpu) download=0.4 disk=1.4 ;;
    demo-cpu-cuda) download=2.9 disk=5.6 ;;
    demo-cuda13-*) download=3.3 disk=6.5 ;;
    test-cpu-cpu) download=0.9 disk=4.7 ;;
    test-cpu-cuda) download=3.4 disk=7.0 ;;
    test-cuda13-*) download=3.5 disk=7.2 ;;
    *) return 0 ;;
  esac
  size="$download GB to download, $disk GB on disk"
}

say_size() {
  local size
  find_size "$1"
  echo "Installing $2 into .venv${size:+: $size, less what is cached or installed already}."
  if [ $device = cpu ]; then
    echo "There is no NVIDIA driver: the packages for a GPU are left out."
    if [ $torch = cuda ]; then
      echo "But torch comes as its CUDA build, the only one on PyPI, since its CPU build was not found at"
      echo "$pytorch_index/cpu: 2.5 GB of the download will not be used."
    fi
  fi
  if [ -n "$index" ]; then
    echo "torch comes from $index, as its build for ${index##*/}."
  fi
}

# What `bash tools/setup.sh` says. It needs no .venv, so it does not ask pip for torch's CPU build.
say_levels() {
  local level what torch=cpu size
  choose_device
  echo "usage: bash tools/setup.sh LEVEL   (installs into $venv)"
  for level in demo test; do
    what="for tools/demo.sh and examples/train.py"
    [ $level = demo ] || what="for tools/test.sh, all examples and all tools"
    find_size $level
    echo "  $level   $what${size:+: $size}"
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
