"""Writes tests/fixtures/logistic: coefficients and probabilities of scikit-learn's LogisticRegression.

Run:  pip install numpy safetensors scikit-learn
      python make_logistic.py ../fixtures
"""
import os
import sys

import numpy as np
from safetensors.numpy import save_file
from sklearn.linear_model import LogisticRegression

IMAGES, WIDTH = 150, 12
STRENGTHS = [0.01, 1.0, 100.0]


def problem(classes):
    """Features with an offset and very different scales, of unbalanced classes that overlap."""
    random = np.random.default_rng(classes)
    labels = np.sort(random.choice(classes, IMAGES, p=np.arange(1, classes + 1) / sum(range(1, classes + 1))))
    means = random.normal(size=(classes, WIDTH))
    features = 1.5 * random.normal(size=(IMAGES, WIDTH)) + means[labels]
    return (features * np.geomspace(0.1, 10, WIDTH) + 3).astype(np.float32), labels


arrays = {}
for classes in [2, 5]:
    features, labels = problem(classes)
    arrays[f"{classes}.features"] = features
    arrays[f"{classes}.labels"] = labels.astype(np.int64)
    for strength in STRENGTHS:
        for weights in [None, "balanced"]:
            model = LogisticRegression(C=strength, class_weight=weights, solver="newton-cholesky", tol=1e-12, max_iter=1000)
            model.fit(features.astype(np.float64), labels)
            name = f"{classes}.{strength:g}.{weights or 'plain'}"
            arrays[f"{name}.probabilities"] = model.predict_proba(features.astype(np.float64)).astype(np.float32)
            arrays[f"{name}.weight"] = model.coef_.astype(np.float32)
            arrays[f"{name}.bias"] = model.intercept_.astype(np.float32)

folder = os.path.join(sys.argv[1], "logistic")
os.makedirs(folder, exist_ok=True)
# safetensors writes the memory of an array, whatever its order.
arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
save_file(arrays, os.path.join(folder, "io.safetensors"))
