#!/usr/bin/env bash
# Images per second and latency of `vitrine serve`, of `vitrine classify` on the same files, and of FastAPI with ONNX Runtime, alternating.
# Needs wrk, and Python with fastapi, uvicorn, onnxruntime, torch, timm and onnxscript.
#
#   benches/serve.sh VITRINE [MODEL] [CLIENTS] [SECONDS] [ROUNDS]
set -euo pipefail
vitrine=$(realpath "$1")
model=${2:-vit_tiny_patch16_224} clients=${3:-32} seconds=${4:-15} rounds=${5:-3}
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'kill $(jobs -p) 2> /dev/null || true; rm -rf "$work"' EXIT

python3 - "$work" "$model" << 'PYTHON'
import sys
import numpy as np, safetensors.torch, timm
from PIL import Image
work, model = sys.argv[1:]
rng = np.random.default_rng(0)
for index in range(64):  # smooth noise: JPEGs of the size of photographs of 224 pixels
    coarse = Image.fromarray(rng.integers(0, 256, (28, 28, 3), dtype=np.uint8))
    coarse.resize((224, 224), Image.BICUBIC).save(f"{work}/{index}.jpg", quality=90)
weights = timm.create_model(model, pretrained=False).state_dict()
safetensors.torch.save_file({name: value.contiguous() for name, value in weights.items()}, f"{work}/weights.safetensors")
PYTHON
"$vitrine" import "$work/weights.safetensors" --config "$model" --output "$work/model.safetensors" 2> /dev/null
export IMAGES=$(ls "$work"/*.jpg | tr '\n' ' ')

"$vitrine" serve "$work/model.safetensors" --listen 127.0.0.1:8090 2> /dev/null &
python3 "$here/peers/serve_peer.py" --model "$model" --port 8091 &
for port in 8090 8091; do
  for _ in $(seq 120); do curl -s -o /dev/null "http://127.0.0.1:$port/" && break; sleep 1; done
done
for path in $(seq 16); do ls "$work"/*.jpg; done > "$work/list"
load() { wrk -t1 -c"$clients" -d"${seconds}s" --timeout 20s -s "$here/peers/serve.lua" "http://127.0.0.1:$1" | tail -1; }
for _ in $(seq "$rounds"); do
  echo "serve:    $(load 8090)"
  echo "FastAPI:  $(load 8091)"
  begin=$(date +%s.%N)
  "$vitrine" classify "$work/model.safetensors" - < "$work/list" > /dev/null
  echo "classify: $(echo "1024 / ($(date +%s.%N) - $begin)" | bc -l | cut -c1-6) images/s, start to exit, 1,024 images"
done
