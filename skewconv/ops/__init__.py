"""Pure functions on tensors: the mathematics of skew orthogonal convolutions."""
