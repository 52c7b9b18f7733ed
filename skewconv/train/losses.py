"""The losses: cross-entropy or a hinge, with what makes margins grow.

Margins are in units of the logits. A network that is L-Lipschitz from pixels to logits turns a margin m into a
certified radius m / (sqrt(2) L).
"""

import math

import torch.nn.functional as F
from torch import Tensor

from skewconv.certify.margins import margin_of
from skewconv.config import RegimeConfig


def certificate_regulariser(logits: Tensor, labels: Tensor, lipschitz: float = 1.0) -> Tensor:
    """- mean relu(margin / (sqrt(2) L)): the mean certified radius in pixels, negated (Singla et al. 2022)."""
    return -F.relu(margin_of(logits, labels)).mean() / (math.sqrt(2) * lipschitz)


def loss_of(logits: Tensor, labels: Tensor, config: RegimeConfig, lipschitz: float = 1.0) -> Tensor:
    """The loss of a batch, a scalar: (N, classes), (N,) -> ().

    Args:
        logits: (N, classes).
        labels: (N,).
        config: the loss.
        lipschitz: L, from pixels to logits; what the certificate regulariser divides margins by.
    """
    logits = logits.float()
    asked = logits
    if config.offset:
        asked = logits - config.offset * F.one_hot(labels, logits.shape[1]).to(logits.dtype)
    if config.loss == "margin":
        loss = F.relu(1 - config.logit_scale * margin_of(asked, labels)).mean()
    else:
        scaled = asked * config.logit_scale
        # Divided again, so that the scale sets the temperature and not the size of the gradient.
        loss = F.cross_entropy(scaled, labels, label_smoothing=config.label_smoothing) / config.logit_scale
    if config.gamma:
        loss = loss + config.gamma * certificate_regulariser(logits, labels, lipschitz)
    return loss
