"""Certificates proven once more in another arithmetic: exact integers and the balls of Arb, without PyTorch.

A layer comes in as NumPy arrays, and its numbers are taken for what they are, dyadic rationals. What cannot be computed
exactly is enclosed in a ball: an array of integers times a power of two, and a bound of the distance to the truth.
"""

from skewconv.ball.dense import Dense
from skewconv.ball.layers import (
    BatchNorm,
    Fold,
    Layer,
    Linear,
    MaxMin,
    Normalisation,
    Rearrangement,
    Rectifier,
    SortedGroups,
)
from skewconv.ball.neighbours import ResidualStep, RowSumConvolution
from skewconv.ball.orthogonal import Circular, Spectral
from skewconv.ball.proof import LayerProof, Proof, prove
from skewconv.ball.skew import SkewExponential

__all__ = [
    "BatchNorm",
    "Circular",
    "Dense",
    "Fold",
    "Layer",
    "LayerProof",
    "Linear",
    "MaxMin",
    "Normalisation",
    "Proof",
    "Rearrangement",
    "Rectifier",
    "ResidualStep",
    "RowSumConvolution",
    "SkewExponential",
    "SortedGroups",
    "Spectral",
    "prove",
]
