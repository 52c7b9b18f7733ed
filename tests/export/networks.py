"""The networks that every export must carry: one row each, small."""

import torch

from skewconv.export import TARGETS, export
from skewconv.models import LipConvnet, resnet18

SHAPE = (1, 8, 8)
LIPCONVNETS = {
    "soc-zeros": {},
    "soc-circular": {"padding_mode": "circular"},
    "bcop": {"conv": "bcop"},
    "cayley": {"conv": "cayley"},
    "normalised-head": {"head": "normalized"},
    "conv-head": {"head": "conv"},
    "householder": {"activation": "householder2"},
    "groupsort-aol": {"activation": "groupsort", "conv": "aol"},
    "sll": {"conv": "sll"},
}


def network(name, depth=5, width=4):
    """A network with weights and biases that are drawn from a seed."""
    torch.manual_seed(7)
    if name == "resnet18":
        model = resnet18(in_channels=1, width=2, conv="soc")
    else:
        model = LipConvnet(depth, in_channels=1, input_size=8, width=width, mean=0.4, std=0.3, **LIPCONVNETS[name])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model.eval()


def images(count=24):
    """Random images."""
    return torch.rand(count, *SHAPE, generator=torch.Generator().manual_seed(3))


def exported(kind, name, folder, depth=5, **options):
    """The network as a file of this kind in the folder, checked on the images."""
    path, options = folder / f"{name}{TARGETS[kind].suffix}", {"images": images(), **options}
    return export(TARGETS[kind], network(name, depth), path, SHAPE, "0123456789", **options)
