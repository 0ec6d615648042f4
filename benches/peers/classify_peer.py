"""Classifies one photo with timm, as `vitrine classify MODEL PHOTO --format jsonl` does.

Run:  python classify_peer.py FOLDER PHOTO THREADS   (FOLDER: config.json and model.safetensors, as timm saves them)
"""
import json
import sys

import timm
import torch
from PIL import Image

folder, photo, threads = sys.argv[1:]
torch.set_num_threads(int(threads))
model = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model))
with torch.inference_mode():
    probabilities = model(transform(Image.open(photo).convert("RGB"))[None])[0].softmax(0)
values, indices = probabilities.topk(5)
best = [{"index": i, "probability": p} for p, i in zip(values.tolist(), indices.tolist())]
print(json.dumps({"path": photo, "predictions": best}))
