#!/usr/bin/env bash
# Everything that has to be seen on a real GPU, in one run of under 8 minutes that leaves a JSON and a log of each step.
#   bash tools/gpu_check.sh PHOTOS [--out FOLDER] [--device cuda|cpu] [--quick]
# PHOTOS: a folder of class folders of images; or one with a Python program `cut`, which makes such a folder of any size:
#   python3 PHOTOS/cut OUT COUNT --like imagenet --workers N
# Works in FOLDER (gpu-check by default) with the packages that $PYTHON (python3) has; nothing is installed or fetched.
# --device cpu --quick does the same steps with little work, where there is no GPU, to see that they run.
# A step that fails or takes too long does not stop the others. Exit codes: 0 all went well, 1 a step did not, 2 usage.
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
usage() { echo "usage: bash tools/gpu_check.sh PHOTOS [--out FOLDER] [--device cuda|cpu] [--quick]" >&2; exit 2; }

photos='' out=gpu-check device=cuda quick=''
while [ $# -gt 0 ]; do
  case $1 in
    --out) out=${2-}; shift ;;
    --device) device=${2-}; shift ;;
    --quick) quick=1 ;;
    -*) usage ;;
    *) [ -z "$photos" ] || usage; photos=$1 ;;
  esac
  shift || usage
done
[ -n "$photos" ] && [ -n "$out" ] && [[ $device == cuda || $device == cpu ]] || usage
[ -d "$photos" ] || { echo "$photos: no such folder" >&2; exit 2; }
photos=$(cd "$photos" && pwd)
mkdir -p "$out" && out=$(cd "$out" && pwd) && rm -f "$out"/*.json "$out"/*.log "$out"/*.xml "$out"/steps.tsv
cd "$root"
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"
py=${PYTHON:-python3} cores=$(nproc) deadline=$((SECONDS + 465))

# step NAME SECONDS COMMAND…: runs it within its time and what is left of the whole, its output in NAME.log.
step() {
  local name=$1 limit=$2 left=$((deadline - SECONDS)) started=$EPOCHREALTIME code
  shift 2
  [ "$limit" -lt "$left" ] || limit=$left
  if [ "$limit" -gt 0 ]; then
    timeout --kill-after=5 "$limit" "$@" >"$out/$name.log" 2>&1 </dev/null
    code=$?
  else
    echo "no time was left" >"$out/$name.log"
    code=124
  fi
  printf '%s\t%s\t%s\t%s\n' "$name" "$code" "$(awk "BEGIN { print $EPOCHREALTIME - $started }")" "$*" >>"$out/steps.tsv"
  printf '%-12s exit %3d  %s\n' "$name" "$code" "$(tail -n 1 "$out/$name.log" | cut -c 1-100)"
}

if [ -n "$quick" ]; then
  images=240 size=64 batch=16 rounds=1 bench_images=256 probe=(--images 64 --batch-size 16)
  tune=(--seconds 5 --size 64 --batch-size 16) train=(--size 32 --batch-size 4 --steps 1 --warm-up 0)
else
  images=20000 size=224 batch=256 rounds=3 bench_images=16384 probe=(--images 2048 --batch-size 128)
  tune=(--seconds 60) train=(--batch-size 256 --steps 150 --warm-up 40)
fi
tests=(tests/gpu tests/batchwise/test_batchwise.py)
[ "$device" = cpu ] || tests+=(-m gpu)
train_set=$out/shards/train

step environment 60 $py tools/gpu_report.py environment "$out/environment.json"
if [ -f "$photos/cut" ]; then
  step cut 75 $py "$photos/cut" "$out/images" $images --like imagenet --workers "$cores"
  photos=$out/images
fi
step pack 75 $py -m gpuload pack "$photos" "$out/shards" --no-splits --val 0.1 --overwrite
# The project's own settings of pytest ask for plug-ins that the host may not have.
step tests 120 $py -m pytest -q -o addopts= -o filterwarnings=default -o junit_family=xunit1 \
  -p no:cacheprovider --junitxml "$out/tests.xml" "${tests[@]}"
step probe 90 $py tools/probe_cropped_decode.py "$train_set" --device $device "${probe[@]}" --json "$out/probe.json"
step tune 90 $py -m gpuload tune "$train_set" --device $device "${tune[@]}" --json "$out/tune.json"
step bench 120 $py tools/bench.py "$train_set" --device $device --loaders torch dali gpuload --size $size \
  --batch-size $batch --threads "$cores" --rounds $rounds --cold 0 --images $bench_images --dtype float16 \
  --json "$out/bench.json"
step train 100 $py examples/train_resnet50.py "$train_set" --device $device "${train[@]}" --json "$out/train.json"
step pictures 40 $py examples/cpu_vs_gpu.py "$train_set" --size $size --batch-size $batch --threads "$cores" \
  --images $((2 * batch)) --picture "$out/cpu_vs_gpu.png"
step kernel 30 $py examples/raw_kernel.py "$train_set" --device $device --picture "$out/faded.png"

$py tools/gpu_report.py collect "$out"
