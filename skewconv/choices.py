"""Choices of users, each typed once; nothing here needs torch."""

from pathlib import Path
from typing import Literal, TypeAlias

Arch: TypeAlias = Literal["lipconvnet", "resnet-18", "resnet-34", "resnet-50"]
# The layers of a network.
ConvName: TypeAlias = Literal["soc", "bcop", "cayley", "aol", "sll", "cpl", "standard"]
ActivationName: TypeAlias = Literal["maxmin", "groupsort", "householder", "householder2"]
ResNetActivationName: TypeAlias = Literal["relu", "swish", "maxmin"]
HeadName: TypeAlias = Literal["orthogonal", "normalized", "conv"]
PaddingMode: TypeAlias = Literal["zeros", "circular"]
# The filter norm that SOC's polynomial is built for: the scaling bound, or the measured norm.
NormName: TypeAlias = Literal["bound", "tracked"]
# Along which axes the factors of BCOP shift: height, width, height, .. always, or as in the code of its authors.
FactorOrder: TypeAlias = Literal["height-first", "lconvnet"]
SplitName: TypeAlias = Literal["test", "validation"]
AttackName: TypeAlias = Literal["pgd", "fgsm", "autoattack", "rounding"]
AttackNorm: TypeAlias = Literal["l2", "linf"]
Scale: TypeAlias = Literal["cpu", "paper"]
Precision: TypeAlias = Literal["32-true", "bf16-mixed", "16-mixed"]
StoredWeights: TypeAlias = Literal["float32", "float16"]
DeviceName: TypeAlias = Literal["auto", "cpu", "cuda", "mps"]

#: the values of --data, besides folder:PATH
DATASETS = ("digits", "cifar10", "cifar100")
FOLDER = "folder:"
#: images that were given to skewconv.train.fit in memory
ARRAYS = "arrays"
DATASET_CHOICES = f"{', '.join(DATASETS)} or {FOLDER}PATH"
#: the share of each class to test on, where a folder has no split of its own
TEST_FRACTION = 0.2
#: the version of ONNX's operators that files are written for
DEFAULT_OPSET = 17
#: the l2 radii, in units of pixels in [0, 1], at which the literature reports certified accuracy
RADII = (36 / 255, 72 / 255, 108 / 255, 1.0)


def dataset_choices(name: str) -> str:
    """The values of --data in words, with a hint if the name is that of a folder."""
    return f"{DATASET_CHOICES}; did you mean {FOLDER}{name}?" if name and Path(name).is_dir() else DATASET_CHOICES


def radius_name(radius: float) -> str:
    """The name of a radius: in 255ths where it is a whole number of them, as in the literature.

    Reading the name gives the radius back, to the bit.

    >>> radius_name(36 / 255), radius_name(1.0), radius_name(0.25)
    ('36/255', '1', '0.25')
    """
    if float(short := f"{radius:g}") == radius:
        return short
    levels = round(radius * 255) if radius < 2**40 else 0
    return f"{levels}/255" if levels / 255 == radius else repr(radius)


def radius_of(name: str) -> float:
    """The radius of a name: "36/255" is 36 / 255.

    >>> radius_of("36/255") == 36 / 255
    True
    """
    top, slash, bottom = name.partition("/")
    return float(top) / float(bottom) if slash else float(name)
