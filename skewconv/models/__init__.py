"""Networks made of the layers of this library: LipConvnet and pre-activation ResNets."""

from skewconv.models.lipconvnet import LipConvnet
from skewconv.models.resnet import ResNet, resnet18, resnet34, resnet50

__all__ = ["LipConvnet", "ResNet", "resnet18", "resnet34", "resnet50"]
