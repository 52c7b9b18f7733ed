"""Certificates proven once more in another arithmetic: exact integers and the balls of Arb, without PyTorch.

A layer is made of NumPy arrays, whose numbers are taken for what they are, dyadic rationals. What cannot be computed
exactly is enclosed in a ball: an array of integers times a power of two, and a bound of the distance to the truth.
"""

from skewconv.ball.proof import LayerProof, Proof, prove

__all__ = ["LayerProof", "Proof", "prove"]
