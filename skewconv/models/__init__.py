"""Networks made of the layers of this library: LipConvnet, pre-activation ResNets, and averages."""

from skewconv.models.average import Average
from skewconv.models.lipconvnet import LipConvnet
from skewconv.models.resnet import ResNet, resnet18, resnet34, resnet50
from skewconv.models.summary import Summary, summary

__all__ = ["Average", "LipConvnet", "ResNet", "Summary", "resnet18", "resnet34", "resnet50", "summary"]
