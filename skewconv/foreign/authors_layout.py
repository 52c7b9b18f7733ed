"""What a state dict of the authors' LipConvNet tells of its network, by names and shapes alone.

Layers are called layer1 .. layer5, each a sequence of blocks with a `conv` and an `activation`; then comes `last_layer`
in their code of 2022, `final_conv` in that of 2021. The two differ in what no entry tells: in 2021 the activation puts
the minimum first, and SOC makes 10 convolutions in evaluation, not 12.
"""

import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

from skewconv.choices import ActivationName, HeadName
from skewconv.foreign.state import ForeignWeightsError, State, entry, names_of, under

Convolution: TypeAlias = Literal["soc", "bcop", "cayley"]

STAGES = 5
KNOWN = (
    "known are the authors' LipConvNet (layer1.0.conv.random_conv_filter, .conv_matrices, or .weight with .alpha; then "
    "last_layer or final_conv) and, as layers, LConvNet's BCOP (NAME.param_matrices)"
)
# Their layers, by an entry that no other has.
_MARKS: dict[str, Convolution] = {"random_conv_filter": "soc", "conv_matrices": "bcop", "alpha": "cayley"}
_HEADS = {"last_layer": 2022, "final_conv": 2021}
_BLOCK = re.compile(rf"(layer[1-{STAGES}])\.(\d+)\.(?:conv|activation)\.\w+")


@dataclass(frozen=True)
class Layout:
    """The network of a state dict.

    Args:
        year: of the code that made it, 2021 or 2022.
        conv: the kind of its convolutions.
        blocks: convolutions in each of the five stages.
        width: channels of the first stage.
        activation: as ours is called.
        head: as ours is called.
        num_classes: how many logits it has.
    """

    year: int
    conv: Convolution
    blocks: int
    width: int
    activation: ActivationName
    head: HeadName
    num_classes: int

    @property
    def head_name(self) -> str:
        """How its last layer is called."""
        return next(name for name, year in _HEADS.items() if year == self.year)

    @property
    def eval_terms(self) -> int:
        """Convolutions that its SOC layers make in evaluation."""
        return 12 if self.year == 2022 else 10

    def block_names(self) -> list[str]:
        """The prefixes of its blocks, in the order in which they are applied."""
        return [f"layer{stage}.{block}." for stage in range(1, STAGES + 1) for block in range(self.blocks)]


def layout_of(state: State) -> Layout:
    """The network that a state dict belongs to.

    Raises:
        ForeignWeightsError: to none that is known, or to one without a counterpart here.
    """
    heads = [name for name in _HEADS if under(state, f"{name}.")]
    strange = [
        name for name in state if not _BLOCK.fullmatch(name) and not any(name.startswith(f"{head}.") for head in heads)
    ]
    if any(name.endswith("param_matrices") for name in state):
        raise ForeignWeightsError(
            "these are weights of LConvNet, whose networks have no counterpart here (kernels of even size, several "
            "linear layers): take their layers one by one with skewconv.foreign.bcop_from_lconvnet"
        )
    if strange or len(heads) != 1:
        found = f"such as {strange[0]!r}" if strange else "without last_layer and final_conv"
        raise ForeignWeightsError(f"{len(state)} entries that fit no layout, {found} ({names_of(state)}): {KNOWN}")
    year, head = _HEADS[heads[0]], under(state, f"{heads[0]}.")
    counts = [_blocks_of(state, f"layer{stage}") for stage in range(1, STAGES + 1)]
    if 0 in counts or len(set(counts)) > 1:
        raise ForeignWeightsError(f"the stages have {counts} blocks: a LipConvNet has as many in each; {KNOWN}")
    first = under(state, "layer1.0.conv.")
    conv = next((kind for mark, kind in _MARKS.items() if mark in first), None)
    if conv is None:
        raise ForeignWeightsError(f"layer1.0.conv has {names_of(first)}, as no orthogonal layer of theirs: {KNOWN}")
    channels = len(entry(first, "bias", "layer1.0.conv"))
    return Layout(
        year=year,
        conv=conv,
        blocks=counts[0],
        # A stage of one block has only its strided convolution, which doubles the channels.
        width=channels if counts[0] > 1 else channels // 2,
        activation=_activation(state, year),
        head="normalized" if set(head) == {"weight", "bias"} else "orthogonal",
        num_classes=len(entry(head, "bias", heads[0])),
    )


def _blocks_of(state: State, stage: str) -> int:
    found = {int(match[2]) for name in state if (match := _BLOCK.fullmatch(name)) and match[1] == stage}
    return len(found) if found == set(range(len(found))) else 0


def _activation(state: State, year: int) -> ActivationName:
    entries = {name.rpartition(".")[2] for name in state if ".activation." in name}
    if entries & {"theta0", "theta1", "theta2"}:
        raise ForeignWeightsError(
            "the activation is HouseHolder_Order_2, with three angles a pair of channels (theta0, theta1, theta2): "
            "ours of order 2 folds twice and has two, so that theirs has no counterpart; train with maxmin or hh1"
        )
    # The activation of 2021 is a fold too: that of MaxMin, which keeps the other side.
    return "householder" if entries or year == 2021 else "maxmin"
