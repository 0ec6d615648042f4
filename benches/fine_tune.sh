#!/usr/bin/env bash
# What pretraining is worth: a model trained on five classes of CIFAR-10 is fine-tuned on 50 images of each of the other
# five, against the same model from scratch and a linear probe, all with the same time.
#
#   benches/fine_tune.sh cifar10.tar.gz [PRETRAIN_TIME] [TIME]
#
# cifar10.tar.gz: CIFAR-10 as folders of images, {train,test}/CLASS/*; VITRINE names the program.
set -euo pipefail
archive=$(realpath "$1") pretrain=${2:-15m} time=${3:-3m}
vitrine=${VITRINE:-$(dirname "$0")/../target/release/vitrine}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

tar xzf "$archive" -C "$work"
root=$(dirname "$(find "$work" -type d -name train -print -quit)")
mapfile -t classes < <(ls "$root/train")
for class in "${classes[@]:0:5}"; do
  for split in train test; do mkdir -p "$work/first/$split" && mv "$root/$split/$class" "$work/first/$split/"; done
done
for class in "${classes[@]:5:5}"; do
  mkdir -p "$work/second/train/$class" "$work/second/test"
  mv "$root/test/$class" "$work/second/test/"
  # The first 50 by name: which ones does not depend on the machine.
  find "$root/train/$class" -type f | LC_ALL=C sort | sed -n 1,50p | xargs mv -t "$work/second/train/$class"
done

run() { printf '\n== %s\n' "$1" && shift && "$vitrine" train "$@" 2> >(grep -v '^epoch' >&2) | sed -n 1p; }
run 'pretraining on the first five classes' "$work/first" --model vit_pico_patch4_32 --time "$pretrain" --output "$work/a"
run 'from scratch on 50 images of each of the others' "$work/second" --model vit_pico_patch4_32 --time "$time" --output "$work/b"
run 'fine-tuned' "$work/second" --pretrained "$work/a" --time "$time" --output "$work/c"
run 'linear probe' "$work/second" --pretrained "$work/a" --freeze backbone --time "$time" --output "$work/d"
