"""torch.hub: the networks of this repository by name, as in torch.hub.load("OWNER/skewconv", "cifar10")."""

from typing import Any

from torch import nn

dependencies = ["torch", "numpy", "scipy", "safetensors"]


def cifar10() -> nn.Module:
    """The certified network for CIFAR-10 that ships with the package: images in [0, 1] to logits, in eval mode."""
    import skewconv

    return skewconv.load("cifar10")


def lipconvnet(depth: int = 5, num_classes: int = 10, **options: Any) -> nn.Module:
    """A LipConvnet with fresh weights; the options are those of skewconv.models.LipConvnet."""
    from skewconv.models import LipConvnet

    return LipConvnet(depth, num_classes, **options)


def resnet18(num_classes: int = 10, **options: Any) -> nn.Module:
    """A ResNet-18 with fresh weights, conv="soc" by name; the options are those of skewconv.models.resnet18."""
    from skewconv.models import resnet18

    return resnet18(num_classes, **options)
