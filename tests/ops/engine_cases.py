"""Engines in each of their forms, the cases they are tried on, and their oracle: the dense Jacobian, in float64."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from skewconv.ops import dense_jacobian, skew_filter
from skewconv.ops.convolution import Geometry
from skewconv.ops.convolution_exponential import apply_polynomial
from skewconv.ops.engines import dense_engine
from skewconv.ops.polynomials import Polynomial, polynomial
from skewconv.ops.recurrence import ChannelWidths

# The engines in each of their forms.
FORMS = {"series": "series", "winograd": "winograd", "blocks": "dense", "matrix": "dense", "spectral": "spectral"}


@dataclass(frozen=True)
class Case:
    """A filter with everything that says how it meets an image, and which channels matter."""

    size: tuple[int, ...]
    kernel: tuple[int, ...]
    padding_mode: str = "zeros"
    groups: int = 1
    channels: int = 3
    inputs: int = 3
    outputs: int = 3
    dilation: int = 1
    series: str = "chebyshev"
    degree: int = 4
    inverse: bool = False
    recompute: bool = False
    batch: int = 2

    @property
    def geometry(self) -> Geometry:
        return Geometry.of(self.kernel, self.padding_mode, self.dilation, self.groups)

    @property
    def widths(self) -> ChannelWidths:
        return ChannelWidths(self.groups, self.channels, self.inputs, self.outputs)

    @property
    def polynomial(self) -> Polynomial:
        return polynomial(2.1, self.degree, self.series)

    def filter(self) -> Tensor:
        """A raw filter whose skew part has a norm near the bound."""
        raw = torch.randn(self.groups * self.channels, self.channels, *self.kernel, dtype=torch.float64)
        jacobian = dense_jacobian(skew_filter(raw, self.groups), self.size, **self.options)
        return raw * 2 / torch.linalg.matrix_norm(jacobian, 2).clamp_min(1)

    @property
    def options(self) -> dict:
        return {"padding_mode": self.padding_mode, "dilation": self.dilation, "groups": self.groups}

    def image(self, batch: int | None = None) -> Tensor:
        batch = self.batch if batch is None else batch
        return torch.randn(batch, self.groups * self.inputs, *self.size, dtype=torch.float64)

    def apply_engine(self, engine: str, x: Tensor, raw: Tensor) -> Tensor:
        return apply_polynomial(
            x,
            skew_filter(raw, self.groups),
            self.polynomial,
            self.geometry,
            out_channels=self.groups * self.outputs,
            inverse=self.inverse,
            engine=FORMS.get(engine, engine),
            recompute=self.recompute,
        )

    def apply(self, engine: str, x: Tensor, raw: Tensor) -> Tensor:
        """p(J) x by one form of an engine."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(dense_engine, "uses_matrix", lambda *shapes: engine == "matrix")
            return self.apply_engine(engine, x, raw)


# What follows in the basis of each series, for J and Z = J / rho, by its definition.
NEXT_OF_BASIS = {
    "taylor": lambda J, Z, basis, k: J @ basis[-1],
    "isometric": lambda J, Z, basis, k: J @ basis[-1],
    "chebyshev": lambda J, Z, basis, k: Z @ basis[-1] if k == 0 else 2 * Z @ basis[-1] + basis[-2],
}


def oracle(case: Case, x: Tensor, raw: Tensor) -> Tensor:
    """p(J) x from the dense Jacobian and the definition of the basis, every channel and then the cut."""
    jacobian = dense_jacobian(skew_filter(raw, case.groups), case.size, **case.options)
    jacobian = -jacobian if case.inverse else jacobian
    p = case.polynomial
    full = x.new_zeros(len(x), case.groups, case.channels, *case.size)
    full[:, :, : case.inputs] = x.unflatten(1, (case.groups, -1))
    u = full.flatten(1).T
    basis = [u]
    for k in range(p.degree):
        basis.append(NEXT_OF_BASIS[p.series](jacobian, jacobian / p.norm_bound, basis, k))
    total = sum(c * b for c, b in zip(p.coefficients, basis, strict=True))
    image = total.T.reshape(len(x), case.groups, case.channels, *case.size)
    return image[:, :, : case.outputs].flatten(1, 2)
