#!/usr/bin/env bash
# The whole path: packs a folder of class folders, trains on it, and measures the loaders on it.
#   bash tools/demo.sh            handwritten digits, which come with scikit-learn; about a minute after set-up
#   bash tools/demo.sh FOLDER     your images: FOLDER/<class>/<image>
# The first run installs what it uses into .venv (tools/setup.sh). Works in demo/ at the top of the repository; a second
# run reuses the shards. Every command is printed before it runs, ready to be pasted.
set -euo pipefail

if [ $# -gt 1 ] || [[ "${1-}" == -* ]]; then
  echo "usage: bash tools/demo.sh [FOLDER]   (a folder of class folders; none: handwritten digits)" >&2
  exit 2
fi
if [ $# = 1 ]; then
  [ -d "$1" ] || { echo "$1: no such folder. Give a folder that holds one folder of images for each class." >&2; exit 2; }
  [ -n "$(find -L "$1" -mindepth 2 -type f -print -quit)" ] || {
    echo "$1: holds no class folders with images in them. Expected $1/<class>/<image>." >&2; exit 2; }
  folder=$(cd "$1" && pwd)
fi
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
set_up demo
cd "$root"

bold='' plain=''
if [ -t 1 ]; then bold=$'\033[1m' plain=$'\033[0m'; fi
run() {
  printf '\n%s$ %s%s\n' "$bold" "$(printf '%q ' "$@")" "$plain"
  "$@"
}
py=.venv/bin/python

printf 'Commands run in %s\n' "$root"
if [ $# = 0 ]; then
  demo=demo/digits
  folder=$demo/images size=64 train=(--epochs 4 --size 48 --min-scale 0.5 --flip 0)
  [ -e "$demo/shards/train/manifest.json" ] || { rm -rf "$folder"; run $py tools/digits.py "$folder"; }
else
  # Two folders of the same name must not share shards.
  demo=demo/$(basename "$folder")-$(printf %s "$folder" | sha256sum | cut -c 1-6)
  size=224 train=(--epochs 3 --size 96)
fi

if [ -e "$demo/shards/train/manifest.json" ] && [ -e "$demo/shards/val/manifest.json" ]; then
  printf '\nReusing %s; delete it to pack again.\n' "$demo/shards"
else
  rm -rf "$demo/shards" # of an interrupted run
  share=(--val 0.1) source=$folder
  for name in train training; do
    # Splits without one for validation: a tenth of those to train with is taken for it.
    if [ -d "$folder/$name" ]; then source=$folder/$name; fi
  done
  for name in val valid validation dev; do
    if [ -d "$folder/$name" ]; then share=() source=$folder; fi # the folder's own split
  done
  run $py tools/pack.py "$source" "$demo/shards" ${share[@]+"${share[@]}"} || [ $? = 3 ] # 3: packed, but not every image
fi
# A batch of 64, or less where that is more than a tenth of a small set.
images=$(sed -n 's/^ "samples": \([0-9]*\),$/\1/p' "$demo/shards/train/manifest.json")
batch=$((images >= 640 ? 64 : images >= 10 ? images / 10 : 1))
run $py examples/train.py "$demo/shards" "${train[@]}" --batch-size $batch --checkpoint "$demo/checkpoint.pt" --preview "$demo/batch.png"
loaders=(torch gpuload)
if nvidia-smi >/dev/null 2>&1; then loaders+=(gpuload-gpu); fi
# A small set is read four times in each round.
measured=$((images * 4 < 1024 ? images * 4 : 1024))
run $py benchmarks/bench.py "$demo/shards/train" --size $size --batch-size $batch --rounds 3 --cold 0 --images $measured --loaders "${loaders[@]}"
printf '\nDone. In %s: shards, checkpoint.pt, and batch.png, one augmented batch to look at.\n' "$demo"
