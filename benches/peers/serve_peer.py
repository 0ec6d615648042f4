"""Serves a timm model as people do with FastAPI and ONNX Runtime: POST the bytes of an image to /classify.

Run:  python serve_peer.py --model vit_tiny_patch16_224 --port 8081 [--threads N]

Decodes with Pillow, resizes as vitrine's imported model does (bicubic), and answers with the five most probable classes. The weights are
random: the time does not depend on them.
"""
import argparse
import io

import numpy as np
import onnxruntime
import uvicorn
from fastapi import FastAPI, Request
from PIL import Image
from starlette.concurrency import run_in_threadpool

from onnx_peer import exported

parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
parser.add_argument("--model", default="vit_tiny_patch16_224")
parser.add_argument("--port", type=int, default=8081)
parser.add_argument("--threads", type=int, default=2)
args = parser.parse_args()

options = onnxruntime.SessionOptions()
options.intra_op_num_threads = args.threads
session = onnxruntime.InferenceSession(exported(args.model, 1), options, providers=["CPUExecutionProvider"])
feed = session.get_inputs()[0]
side = feed.shape[-1]
app = FastAPI()


def answer(body):
    image = Image.open(io.BytesIO(body)).convert("RGB").resize((side, side), Image.BICUBIC)
    pixels = (np.asarray(image, dtype=np.float32) / 255 - 0.5) / 0.5
    logits = session.run(None, {feed.name: pixels.transpose(2, 0, 1)[None]})[0][0]
    powers = np.exp(logits - logits.max())
    probabilities = powers / powers.sum()
    best = np.argsort(-probabilities)[:5]
    return {"predictions": [{"index": int(index), "probability": float(probabilities[index])} for index in best]}


@app.post("/classify")
async def classify(request: Request):
    return await run_in_threadpool(answer, await request.body())


uvicorn.run(app, host="127.0.0.1", port=args.port, log_level="warning")
