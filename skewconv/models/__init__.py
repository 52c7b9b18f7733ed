"""Networks made of the layers of this library: LipConvnet, pre-activation ResNets, and averages."""

from skewconv.models.average import Average
from skewconv.models.lipconvnet import LipConvnet
from skewconv.models.resnet import ResNet, resnet18, resnet34, resnet50

__all__ = ["Average", "LipConvnet", "ResNet", "resnet18", "resnet34", "resnet50"]
