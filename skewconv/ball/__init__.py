"""Certificates proven once more in another arithmetic: exact integers and the balls of Arb, without PyTorch.

A layer comes in as NumPy arrays, and its numbers are taken for what they are, dyadic rationals. What cannot be computed
exactly is enclosed in a ball: an array of integers times a power of two, and a bound of the distance to the truth.
"""

from skewconv.ball.convolutions import Convolution, MaxPool, MeanPool, ResidualStep, StridedConvolution
from skewconv.ball.layers import (
    BatchNorm,
    Dense,
    Fold,
    Layer,
    Linear,
    MaxMin,
    Normalisation,
    Rearrangement,
    Rectifier,
    ResidualSum,
    SortedGroups,
)
from skewconv.ball.proof import LayerProof, Proof, prove
from skewconv.ball.skew import SkewExponential
from skewconv.ball.spectral import Spectral

__all__ = [
    "BatchNorm",
    "Convolution",
    "Dense",
    "Fold",
    "Layer",
    "LayerProof",
    "Linear",
    "MaxMin",
    "MaxPool",
    "MeanPool",
    "Normalisation",
    "Proof",
    "Rearrangement",
    "Rectifier",
    "ResidualStep",
    "ResidualSum",
    "SkewExponential",
    "SortedGroups",
    "Spectral",
    "StridedConvolution",
    "prove",
]
