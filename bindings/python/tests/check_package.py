"""Compares the answers of the package with those in expected.json of a folder, and checks its errors (tests/package.rs runs it)."""
import json
import pathlib
import pickle
import resource
import sys
import threading

import numpy as np

import vitrine

folder = pathlib.Path(sys.argv[1])
expected = json.loads((folder / "expected.json").read_text())
logits = np.array(expected["logits"], np.float32)
images = expected["images"]


def raises(kind, work, *parts):
    try:
        work()
    except kind as error:
        for part in parts:
            assert part in str(error), (part, str(error))
        return error
    raise AssertionError(f"no {kind.__name__}")


assert vitrine.__version__ == expected["version"]
assert vitrine.set_threads(2) == 2
raises(RuntimeError, lambda: vitrine.set_threads(3))
classifier = vitrine.Classifier(folder / "model.safetensors", offline=True)
assert classifier.classes == tuple(f"kind {number}" for number in range(7)) and not classifier.multi_label
assert classifier.image_size == (32, 32) and "7 classes" in repr(classifier)

# Paths, bytes, and a mixture of both have the library's numbers, bit for bit.
for given in (images, [pathlib.Path(path) for path in images], [pathlib.Path(path).read_bytes() for path in images]):
    found = classifier.logits(given)
    assert found.dtype == np.float32 and np.array_equal(found, logits)
texts = [np.dtypes.StringDType()] if hasattr(np, "dtypes") and hasattr(np.dtypes, "StringDType") else []  # since NumPy 2
for kind in (str, object, *texts):
    assert np.array_equal(classifier.logits(np.array(images, kind)), logits)
assert np.array_equal(classifier.embed(images), np.array(expected["embeddings"], np.float32))
other_batches = vitrine.Classifier(str(folder / "model.safetensors"), batch_size=100).logits(images)
assert np.allclose(other_batches, logits, atol=1e-5)

powers = np.exp(logits.astype(np.float64) - logits.max(1, keepdims=True))
probabilities = powers / powers.sum(1, keepdims=True)
assert np.allclose(classifier.probabilities(images), probabilities, rtol=1e-12)
for row, predictions in zip(logits, classifier.classify(images, top=3)):
    assert [prediction.index for prediction in predictions] == list(np.argsort(-row, kind="stable")[:3])
    assert all(prediction.label == f"kind {prediction.index}" for prediction in predictions)

# Arrays: gray, color, and slices that are not contiguous.
color = np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8)
gray = color[:, :, 0]
twice = classifier.logits([gray, gray[:, :, None], np.repeat(gray[:, :, None], 3, 2), color, color[::2, ::3]])
assert np.array_equal(twice[0], twice[1]) and np.array_equal(twice[0], twice[2]) and not np.array_equal(twice[0], twice[3])
assert len(classifier.classify([])) == 0 and classifier.logits([]).shape == (0, 7)

# Errors.
(folder / "broken.png").write_bytes(b"no image")
mixed = [images[0], folder / "broken.png", folder / "missing.png", b"", images[1]]
error = raises(vitrine.ImageError, lambda: classifier.classify(mixed), "broken.png")
assert error.index == 1 and isinstance(error, ValueError)
answers = classifier.classify(mixed, errors="return")
assert [isinstance(answer, vitrine.ImageError) for answer in answers] == [False, True, True, True, False]
assert str(answers[3]) and answers[4][0].index == int(logits[1].argmax()) and "missing.png" in str(answers[2]) and answers[3].index == 3
raises(vitrine.ImageError, lambda: classifier.embed(mixed), "broken.png")
raises(TypeError, lambda: classifier.classify(images[0]), "list")
raises(TypeError, lambda: classifier.classify([color.astype(np.float32)]), "uint8")
raises(TypeError, lambda: classifier.classify([color[None]]), "[1, 40, 60, 3]")
raises(TypeError, lambda: classifier.classify([None]), "NoneType")
raises(TypeError, lambda: classifier.classify(color), "list")
raises(TypeError, lambda: classifier.classify(color.flatten()), "list")
assert np.array_equal(classifier.logits(np.stack([color, color])), classifier.logits([color, color]))
copied = pickle.loads(pickle.dumps(error))
assert copied.index == error.index and str(copied) == str(error)
raises(ValueError, lambda: classifier.classify(images, top=0), "top")
raises(ValueError, lambda: classifier.classify(images, errors="ignore"), "ignore")
raises(ValueError, lambda: vitrine.Classifier(folder / "model.safetensors", batch_size=0), "batch_size")
raises(RuntimeError, lambda: vitrine.Classifier(folder / "none.safetensors"), "none.safetensors")
raises(RuntimeError, lambda: vitrine.Classifier(folder / "model.safetensors", device="abacus"), "abacus")

# Threads share a classifier.
results = [None] * 4
workers = [threading.Thread(target=lambda place=place: results.__setitem__(place, classifier.logits(images))) for place in range(4)]
for worker in workers:
    worker.start()
for worker in workers:
    worker.join()
assert all(np.array_equal(result, logits) for result in results)

# A thousand loads keep nothing.
for number in range(1000):
    if number == 100:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert vitrine.Classifier(folder / "model.safetensors").logits(images[:1]).shape == (1, 7)
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
assert grown < 20 * 1024, f"{grown} KiB more"
print("the package gives the library's answers")
