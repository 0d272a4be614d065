"""Random weights that keep a deep network numerically alive.

A network of plain random weights is a poor test object: activations fade or explode, whole
channels are dead, and every picture gives the same output. So each layer is calibrated while the
network is built, on pictures pushed through it in float64: the data-dependent initialisation of
Krähenbühl et al. (ICLR 2016), with what a trained batch normalisation would hold.

Two facts set the numbers:

- A ReLU after a centred batch normalisation multiplies the relative size of any perturbation,
  rounding errors included, by sqrt(0.5 / Var[relu(z)]) = 1.21 for a standard normal z; 35 such
  layers lose three digits (Yang et al., ICLR 2019, derive it for the gradient). Shifted by one
  standard deviation the factor is 1.06, so :data:`RELU` has mean 1. Rounding errors then stay below
  a tenth of the project's tolerance of 1e-4, as in trained networks.
- A ReLU6 has to saturate sometimes, or a compiler that drops the 6 would pass: of the inputs of one
  at :data:`RELU6`, about 1 in 100 exceeds 6.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "LINEAR",
    "LOGITS",
    "RELU",
    "RELU6",
    "RESIDUAL",
    "Scale",
    "Statistics",
    "fit",
    "he_normal",
    "measure",
]

# Weight of the layer's common variance against one observation of a channel, in observations: a
# 1x1 feature map offers one per picture, too few to trust alone.
_PRIOR_OBSERVATIONS = 8


@dataclass(frozen=True)
class Scale:
    """The distribution a layer's output is brought to.

    Attributes
    ----------
    deviation : float
        Standard deviation within a channel, on average; channels vary by half of it either way.
    mean : float
        Mean over channels.
    spread : float
        Standard deviation of the channels' means.
    blocks : int
        Channels come in this many equal blocks that behave alike: the anchors of a detector's cell,
        which in a trained network agree on the class of what they overlap.
    """

    deviation: float
    mean: float
    spread: float
    blocks: int = 1

    def sample(
        self, channels: int, rng: np.random.Generator
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Draw each channel's deviation and mean: gamma and beta of a batch normalisation."""
        gamma = self.deviation * rng.uniform(0.5, 1.5, channels // self.blocks)
        beta = rng.normal(self.mean, self.spread, channels // self.blocks)
        return np.tile(gamma, self.blocks), np.tile(beta, self.blocks)

    def tie(self, weight: NDArray[np.float32]) -> NDArray[np.float32]:
        """Make the blocks of independent weights ``[C, ...]`` alike: correlation about 0.85."""
        if self.blocks == 1:
            return weight
        blocks = weight.reshape(self.blocks, -1, *weight.shape[1:])
        common = blocks.mean(axis=0) * np.float32(np.sqrt(self.blocks))
        tied: NDArray[np.float32] = blocks + 2 * common
        return tied.reshape(weight.shape)


LINEAR = Scale(deviation=1.0, mean=0.0, spread=0.2)
RELU = Scale(deviation=1.0, mean=1.0, spread=0.2)
RELU6 = Scale(deviation=1.5, mean=2.25, spread=0.3)
# The last normalisation of a residual branch: small, so that the sum does not grow with depth.
RESIDUAL = Scale(deviation=0.35, mean=0.0, spread=0.1)

# Half of what tells classes apart is the picture, half a preference of the network.
LOGITS = Scale(deviation=1.2, mean=0.0, spread=1.2)


@dataclass(frozen=True)
class Statistics:
    """Mean and variance of each channel."""

    mean: NDArray[np.float64]
    variance: NDArray[np.float64]


def measure(y: NDArray[np.float64]) -> Statistics:
    """Measure the channels of ``[N, C, ...]``, rounded to float16.

    `y` is float64, so two BLAS libraries differ by some 1e-13 of it, and such a difference crosses
    a rounding boundary of float16 once in 1e9 values: the weights do not depend on the library.
    """
    axes = (0, *range(2, y.ndim))
    observations = y.size // y.shape[1]
    variance = y.var(axis=axes)
    prior = _PRIOR_OBSERVATIONS
    variance = (observations * variance + prior * variance.mean()) / (observations + prior)
    return Statistics(_coarse(y.mean(axis=axes)), _coarse(variance))


def he_normal(
    shape: tuple[int, ...], x: NDArray[np.float64], rng: np.random.Generator
) -> NDArray[np.float32]:
    """Draw weights ``[out, in, ...]`` for the input `x` so that outputs have unit mean square.

    He et al. (ICCV 2015) with the mean square of the input measured, not taken to be that of a
    rectified standard normal.
    """
    fan_in = int(np.prod(shape[1:]))
    deviation = _coarse(1 / np.sqrt(fan_in * np.mean(x**2)))
    weight = rng.standard_normal(shape, dtype=np.float32)
    weight *= np.float32(deviation)  # in place: a fully connected layer can have a gigabyte
    return weight


def fit(
    weight: NDArray[np.float32],
    raw: NDArray[np.float64],
    scale: Scale,
    rng: np.random.Generator,
) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """Return the weights ``[C, ...]`` and the bias ``[C]`` that bring an output to `scale`.

    `raw` is the output ``[N, C, ...]`` of `weight` without bias. The result is what folding a
    batch normalisation into the layer would give; `weight` is scaled in place.
    """
    statistics = measure(raw)
    gamma, beta = scale.sample(len(weight), rng)
    factor = _coarse(gamma / np.sqrt(statistics.variance))
    weight *= factor.astype(np.float32).reshape(-1, *[1] * (weight.ndim - 1))
    return weight, beta - factor * statistics.mean


def _coarse(x: Any) -> NDArray[np.float64]:
    return np.asarray(x).astype(np.float16).astype(np.float64)
