"""Check certificates a third time, in exact integers and balls: another arithmetic, no tolerance, no PyTorch in it.

What is proven: the exact function, with the filters, matrices and coefficients of the float64 model taken for the
numbers that they are, classifies every point within the radius as it says. What is shared with the path that made the
certificates: those numbers. Nothing is shared that is done with them: each norm is bounded by a factorisation whose
residual is computed in integers, the polynomial is summed in powers of J, its gain is found at the roots of its
derivative, and logits carry a ball. What is not proven here: how a float64 evaluation rounds; the certificate subtracts
a bound of that, which is why its radii are a little smaller than those proven here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from skewconv.certify.certificates import RECORD, read_table, table_in
from skewconv.certify.verify import FLOAT32_TOLERANCE, check_figures, check_record, table_function
from skewconv.errors import ArgumentError
from skewconv.extras import optional
from skewconv.nn.module_tools import float64_copy
from skewconv.ops.torch_modes import without_autocast

# Margins in the table were computed in float64: they are compared for being of the same function, not for being proven.
_TOLERANCE = 1e-6


@dataclass(frozen=True)
class LayerLine:
    """What was proven of one layer, each number rounded up.

    Arguments:
        name, kind: of the layer.
        lipschitz: at least its Lipschitz constant.
        norm: at least that of its filter or matrix; None for a layer without one.
        error: at least the distance of the exact values after it from the centres of the balls.
    """

    name: str
    kind: str
    lipschitz: float
    norm: float | None
    error: float


@dataclass(frozen=True)
class BallReport:
    """What was proven, and every line of the table that does not follow.

    Arguments:
        problems: empty if and only if every chosen certificate is proven.
        checked: how many images.
        largest_ratio: the largest claimed radius divided by the one proven here; at most 1 if all hold.
        lipschitz: at least the Lipschitz constant from images to logits.
        error: at least the distance of the exact logits from the centres of their balls.
        layers: one line each.
    """

    problems: tuple[str, ...]
    checked: int
    largest_ratio: float
    lipschitz: float
    error: float
    layers: tuple[LayerLine, ...]

    @property
    def sound(self) -> bool:
        """Whether nothing was found wrong."""
        return not self.problems


def check_in_balls(
    path: Path | str, model: nn.Module, images: Tensor, labels: Tensor, chosen: Sequence[int] | None = None
) -> BallReport:
    """Whether every chosen radius in a file is proven in ball arithmetic, without any tolerance.

    Args:
        path: certificates.csv, or its folder. The record beside it must be there.
        model: whose certificates they are said to be.
        images, labels: the data set they are said to be of: (n, *shape) and (n,). The file may speak of some of its
            images only, by their numbers.
        chosen: the images to prove, by their index; all by default.
    """
    optional("flint", "python-flint", "ball")
    from skewconv.ball import prove
    from skewconv.certify.ball_intake import described

    table = table_in(path)
    claims = read_table(table)
    row_of = {index: row for row, index in enumerate(claims["index"].tolist())}
    wanted = sorted(row_of) if chosen is None else list(chosen)
    order = sorted(row_of)
    if not wanted or not 0 <= order[0] <= order[-1] < len(images) or any(index not in row_of for index in wanted):
        raise ArgumentError(
            f"images {wanted} of {len(images)} were chosen, and {table} has certificates of {len(row_of)}: choose "
            "among those"
        )
    problems = check_record(table.with_name(RECORD), model, images[order], labels.cpu()[order])
    if len(row_of) != len(claims["index"]):
        problems.append("an index occurs more than once")
    problems += check_figures(table.with_name(RECORD), claims)
    exact = float64_copy(table_function(table, model, tuple(images.shape[1:])))
    given, truth = images[wanted].cpu().double().numpy(), labels[wanted].cpu().to(torch.int64).numpy()
    with torch.no_grad(), without_autocast(torch.device("cpu")):
        proof = prove(described(exact, tuple(images.shape[1:])), given, truth)
    ratios = [0.0]
    for image, (index, label) in enumerate(zip(wanted, truth.tolist(), strict=True)):
        claim = {name: column[row_of[index]].item() for name, column in claims.items()}
        problems += _row_problems(claim, label, proof.logits[image])
        if not proof.holds(image, claim["radius"]):
            most = float(proof.radii[image])
            problems.append(f"image {index}: radius {claim['radius']!r} is claimed, {most!r} is proven")
        elif not 0 <= claim["radius_float32"] <= claim["radius"]:
            problems.append(f"image {index}: the radius in float32 is above the one in float64")
        if float(proof.radii[image]) > 0 and np.isfinite(float(proof.radii[image])):
            ratios.append(claim["radius"] / float(proof.radii[image]))
    layers = tuple(LayerLine(p.name, p.kind, p.lipschitz, p.remarks.get("norm"), p.error) for p in proof.layers)
    return BallReport(tuple(problems), len(wanted), max(ratios), proof.lipschitz, proof.error, layers)


def _row_problems(claim: dict[str, float], label: int, logits: np.ndarray) -> list[str]:
    """What a row says of label, prediction and margin, against the centres of the balls."""
    # Where nothing is certified, prediction and margin may be from an evaluation in float32.
    tolerance = (_TOLERANCE if claim["radius"] > 0 else FLOAT32_TOLERANCE) * (1 + float(np.abs(logits).max()))
    found = []
    if claim["label"] != label:
        found.append("the label is not that of the data")
    guess = int(claim["prediction"])
    if not 0 <= guess < len(logits) or logits[guess] < logits.max() - tolerance:
        found.append("the prediction is another")
    if not abs(claim["margin"] - (logits[label] - np.delete(logits, label).max())) <= tolerance:
        found.append("the margin is another")
    return [f"image {int(claim['index'])}: {problem}" for problem in found]
