#!/usr/bin/env bash
# Makes an environment for each loader that does not share one with gpuload, and prints what --python takes:
#
#   bash benchmarks/environments.sh FOLDER              all of them, 9 GB
#   bash benchmarks/environments.sh FOLDER grain lance  some
#   python benchmarks/bench.py shards/train --python $(bash benchmarks/environments.sh FOLDER)
#
# An environment that is complete is kept. FFCV is compiled: it needs a C++ compiler, pkg-config, and OpenCV 4 and
# libturbojpeg with their headers (Debian: libopencv-dev, libturbojpeg0-dev).
set -euo pipefail

torch='torch==2.13.0'
declare -A packages=(
  [energon]="$torch megatron-energon==7.4.1 torchvision pillow"
  [ffcv]="$torch numpy<2 numba<0.61 simplejpeg pillow opencv-python==4.10.0.84 setuptools pkgconfig ffcv==1.0.2"
  [grain]="$torch grain==0.2.18 array-record opencv-python-headless simplejpeg"
  [lance]="$torch lancedb==0.40.0 pylance simplejpeg pillow"
  [litdata]="$torch litdata==0.2.76 simplejpeg pillow"
  [mosaic]="$torch mosaicml-streaming==0.13.0 simplejpeg pillow"
  [turbo]="$torch turboloader==2.39.0 pillow"
)

folder=${1:?usage: bash benchmarks/environments.sh FOLDER [LOADER...]}
shift
[ $# -gt 0 ] || set -- "${!packages[@]}"
for loader; do
  : "${packages[$loader]:?"$loader: no such loader. They are: ${!packages[*]}"}"
  python=$folder/$loader/bin/python
  if [ ! -e "$folder/$loader/complete" ]; then
    "${PYTHON:-python3}" -m venv --clear "$folder/$loader" >&2
    read -ra names <<<"${packages[$loader]}"
    "$python" -m pip install --quiet "${names[@]}" >&2 || { echo "$loader: left out, see above" >&2; continue; }
    touch "$folder/$loader/complete"
  fi
  printf '%s=%s ' "$loader" "$python"
done
echo
