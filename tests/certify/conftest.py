"""A small LipConvnet trained on the digits of scikit-learn, in a few seconds, once for all tests."""

from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

from skewconv.models import LipConvnet


@dataclass(frozen=True)
class Trained:
    model: nn.Module
    images: Tensor
    labels: Tensor


def digits_split() -> tuple[Tensor, Tensor]:
    digits = load_digits()
    return torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16, torch.tensor(digits.target)


def train(model: nn.Module, images: Tensor, labels: Tensor, epochs: int, scale: float = 1.0) -> nn.Module:
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model.train()
    for _ in range(epochs):
        for rows in torch.randperm(len(images)).split(64):
            optimiser.zero_grad()
            F.cross_entropy(scale * model(images[rows]), labels[rows]).backward()
            optimiser.step()
    return model.eval()


@pytest.fixture(scope="session")
def digits() -> Trained:
    torch.manual_seed(0)
    images, labels = digits_split()
    model = LipConvnet(5, in_channels=1, input_size=8, width=8)
    return Trained(train(model, images[:1500], labels[:1500], 4, scale=4.0), images[1500:], labels[1500:])
