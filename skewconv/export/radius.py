"""The radius that an exported network computes, so that it is never above what is proven of it."""

import math

import torch
from torch import Tensor

from skewconv.certify import Certifier
from skewconv.certify.float32 import Float32Slack
from skewconv.errors import ArgumentError
from skewconv.export.plain_layers import Radius

# Three float32 roundings of 2^-24 each, with room to spare: the difference of two logits, of that and what is
# subtracted, and the quotient.
_FLOAT32_UP = 1 + 2.0**-21
_LEAST = torch.finfo(torch.float32).tiny
#: the shortest step between two images of 8 bits, one level of one pixel: a shorter radius promises nothing of them
ONE_GREY_LEVEL = 1 / 255


def radius_rule(certifier: Certifier, slack: Float32Slack) -> Radius:
    """The rule min_i (g_t - g_i - s) / K_ti for logits g that another program computes.

    Let f be the certified program, and let g be within d of it, logit by logit, at every image. Moving x by less than r
    changes f_t - f_i by less than K_ti r, so that

        g_t(x') - g_i(x') > g_t(x) - g_i(x) - 4 d - K_ti r - (rounding of f, twice) >= 0

    for r = (g_t(x) - g_i(x) - s) / K_ti with s = 4 d and that rounding. Images of [0, 1] have a norm of at most
    sqrt(pixels), which bounds what grows with the norm; what grows on the way to x' is added to K. Rounded to float32,
    s and K are larger than they need be by more than the rule itself rounds.
    """
    norm = math.sqrt(math.prod(certifier.input_shape)) * _FLOAT32_UP
    if not norm <= certifier.reach:
        raise ArgumentError("what this model computes of images in [0, 1] may overflow, so that it has no radius")
    off = certifier.rounding.plus(slack.growth)
    # Logits that are off by e in l2 have differences that are off by sqrt(2) e: at the image and at the other point.
    subtracted = 2 * math.sqrt(2) * off.at(norm) * _FLOAT32_UP
    bounds = (certifier.pair_bounds.cpu() + math.sqrt(2) * off.slope * _FLOAT32_UP) * _FLOAT32_UP
    return Radius(_float32_up(bounds).clamp_min(_LEAST), _float32_up(torch.tensor(subtracted, dtype=torch.float64)))


def _float32_up(values: Tensor) -> Tensor:
    """The least float32 numbers that are not below these float64 numbers."""
    nearest = values.to(torch.float32)
    above = torch.nextafter(nearest, torch.tensor(math.inf, dtype=torch.float32))
    return torch.where(nearest.double() < values, above, nearest)
