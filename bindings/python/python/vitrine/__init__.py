"""Classify images with models that vitrine trained.

    import vitrine

    classifier = vitrine.Classifier("runs/photos-hybrid_nano_patch16_128-1")
    for predictions in classifier.classify(["cat.jpg", "dog.jpg"]):
        print(predictions[0].label, predictions[0].probability)
"""
from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Union, overload

import numpy as np
import numpy.typing as npt

from . import _vitrine

__all__ = ["Classifier", "Image", "ImageError", "Prediction", "set_threads"]
__version__: str = _vitrine.__version__

Image = Union[str, "os.PathLike[str]", bytes, npt.NDArray[np.uint8]]
"""An image: the path of a file, the bytes of one, or pixels in uint8, [height, width] or [height, width, channels] with 1 or 3
channels (red, green, blue)."""


@dataclass(frozen=True)
class Prediction:
    """A class with its probability for an image."""

    label: str
    probability: float
    index: int


class ImageError(ValueError):
    """An image that cannot be read, or whose answer is not finite. `index` is its place among the images that were asked about."""

    def __init__(self, message: str, index: int) -> None:
        super().__init__(message, index)
        self.index = index

    def __str__(self) -> str:
        return str(self.args[0])


class Classifier:
    """A loaded model. Threads may share it; it computes without Python's global lock.

    `model` is what `vitrine classify` takes: a model file, a run folder, another library's weights, `hf:OWNER/NAME`, or the name of
    a published backbone; one without a classifier has embeddings only. `device` is as for `--device` (the wheel computes
    on the CPU unless it is built with a feature such as `wgpu`); with `offline`, nothing is downloaded;
    `batch_size` images are computed together. Raises RuntimeError if there is no such model.
    """

    def __init__(self, model: str | os.PathLike[str], *, device: str | None = None, offline: bool = False, batch_size: int = 16) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}: at least 1 is needed")
        self._model = _vitrine.Model(os.fspath(model), device, offline, batch_size)
        self._classes: tuple[str, ...] = tuple(self._model.classes)

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, in the order of `logits`; none for a model without a classifier."""
        return self._classes

    @property
    def multi_label(self) -> bool:
        """Whether images may have several labels each, so that the probabilities do not sum to 1."""
        return self._model.multi_label

    @property
    def embedding_dim(self) -> int:
        """The length of an embedding."""
        return self._model.embedding_dim

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width to which images are resized."""
        return self._model.image_size

    @overload
    def classify(self, images: Iterable[Image], *, top: int = ..., errors: Literal["raise"] = ...) -> list[list[Prediction]]: ...

    @overload
    def classify(self, images: Iterable[Image], *, top: int = ..., errors: Literal["return"]) -> list[list[Prediction] | ImageError]: ...

    def classify(
        self, images: Iterable[Image], *, top: int = 5, errors: Literal["raise", "return"] = "raise"
    ) -> Sequence[list[Prediction] | ImageError]:
        """The `top` most probable classes of each image, the most probable one first.

        An image that cannot be read raises an ImageError; with `errors="return"`, the error takes the place of its predictions.
        """
        if top < 1:
            raise ValueError(f"top is {top}: at least 1 is needed")
        if errors not in ("raise", "return"):
            raise ValueError(f"errors is {errors!r}: 'raise' and 'return' are possible")
        values, problems = self._ask_classifier(images, True)
        if errors == "raise":
            _raise_first(problems)
        rows = iter(np.frombuffer(values, np.float64).reshape(-1, len(self._classes)))
        return [self._ranked(next(rows), top) if problem is None else ImageError(problem, index) for index, problem in enumerate(problems)]

    def probabilities(self, images: Iterable[Image]) -> npt.NDArray[np.float64]:
        """The probability of every class, [images, classes]. Raises ImageError if an image cannot be read."""
        return self._rows(self._ask_classifier(images, True), np.float64, len(self._classes))

    def logits(self, images: Iterable[Image]) -> npt.NDArray[np.float32]:
        """The logits, [images, classes]. Raises ImageError if an image cannot be read."""
        return self._rows(self._ask_classifier(images, False), np.float32, len(self._classes))

    def embed(self, images: Iterable[Image]) -> npt.NDArray[np.float32]:
        """The embeddings, [images, embedding_dim]. Raises ImageError if an image cannot be read."""
        return self._rows(self._model.embed(_inputs(images)), np.float32, self.embedding_dim)

    def _ask_classifier(self, images: Iterable[Image], as_probabilities: bool) -> tuple[bytes, list[str | None]]:
        if not self._classes:
            raise ValueError("the model has no classifier: it can only embed")
        return self._model.classify(_inputs(images), as_probabilities)

    def _ranked(self, probabilities: npt.NDArray[np.float64], top: int) -> list[Prediction]:
        order = np.argsort(-probabilities, kind="stable")[:top]
        return [Prediction(self._classes[index], float(probabilities[index]), int(index)) for index in order]

    @staticmethod
    def _rows(answer: tuple[bytes, list[str | None]], kind: type[np.generic], width: int) -> npt.NDArray[Any]:
        values, problems = answer
        _raise_first(problems)
        return np.frombuffer(values, kind).reshape(-1, width).copy()

    def __repr__(self) -> str:
        height, width = self.image_size
        return f"<vitrine.Classifier of {len(self._classes)} classes, {height}x{width} pixels>"


def set_threads(count: int | None = None) -> int:
    """Lets the process compute with `count` threads; by default as the command line does, with RAYON_NUM_THREADS or one for each
    physical core. Call it once, before the first model is loaded; without it, there is a thread for each logical core. A process that
    has computed must not fork: use multiprocessing's "spawn".
    """
    return _vitrine.set_threads(count)


def _raise_first(problems: Sequence[str | None]) -> None:
    for index, problem in enumerate(problems):
        if problem is not None:
            raise ImageError(problem, index)


def _inputs(images: Iterable[Image]) -> list[object]:
    is_one = isinstance(images, (str, bytes, bytearray, memoryview, os.PathLike))
    if isinstance(images, np.ndarray):
        # A column of a table with paths is an array of texts (U, and T since NumPy 2) or objects, and several images of one size are a stack.
        is_one = images.ndim < 4 and not (images.ndim == 1 and images.dtype.kind in "OUT")
    if is_one:
        raise TypeError("a list of images is needed: put a single one into a list")
    return [_input(image, index) for index, image in enumerate(images)]


def _input(image: Image, index: int) -> object:
    if isinstance(image, (str, os.PathLike)):
        return os.fsdecode(image)
    if isinstance(image, (bytes, bytearray, memoryview)):
        return bytes(image)
    if not isinstance(image, np.ndarray):
        raise TypeError(f"image {index}: a path, bytes, or a numpy array is needed, and this is {type(image).__name__}")
    pixels = image
    if pixels.dtype != np.uint8:
        raise TypeError(f"image {index}: pixels are uint8, and these are {pixels.dtype}")
    if pixels.ndim == 2:
        pixels = pixels[:, :, None]
    if pixels.ndim != 3 or pixels.shape[2] not in (1, 3):
        raise TypeError(f"image {index}: pixels are [height, width] or [height, width, 1 or 3], and these are {list(np.shape(image))}")
    height, width, channels = pixels.shape
    return np.ascontiguousarray(pixels).tobytes(), height, width, channels
