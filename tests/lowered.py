"""A module lowered as certificates lower it, and its float64 program."""

from torch import nn

from skewconv.certify.programs import Float64Program, program_of
from skewconv.nn import lower


def float64_program(module: nn.Module, shape: tuple[int, ...]) -> Float64Program:
    """The program of a module in float64 and eval mode."""
    return program_of(lower(module, shape), shape)
