"""Choices of users, each typed once. Nothing here needs torch."""

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
#: the share of each class to test on, where a folder has no split of its own
TEST_FRACTION = 0.2
#: the l2 radii, in units of pixels in [0, 1], at which the literature reports certified accuracy
RADII = (36 / 255, 72 / 255, 108 / 255, 1.0)
