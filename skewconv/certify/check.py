"""Check certificates: the record, the rows and every radius, derived again in float64 or proven in ball arithmetic.

In float64 the radii come from the code of the certificates, compared with a tolerance for other processors. In balls
they come from other code and without a tolerance: the exact function of the float64 model classifies every point within
the radius as the table says. How float64 rounds is not proven there; certificates subtract a bound of that.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from skewconv.certify.certificates import (
    COLUMNS,
    RECORD,
    Certificates,
    certified_function,
    data_hash,
    read_table,
    table_in,
)
from skewconv.certify.certifier import Certifier, margin_of, weights_hash
from skewconv.errors import ArgumentError
from skewconv.extras import optional
from skewconv.nn.module_tools import float64_copy
from skewconv.ops.torch_modes import without_autocast
from skewconv.progress import Tick
from skewconv.records import RecordError, radius_of, read_record

if TYPE_CHECKING:
    from skewconv.ball import LayerProof

# Between the same program on two processors, and of a margin that was computed in float32.
_RELATIVE_TOLERANCE, _FLOAT32_TOLERANCE = 1e-6, 1e-4


@dataclass(frozen=True)
class CheckReport:
    """Every problem in words (none: the certificates hold), the number of rows compared, and how the radii compare.

    ``largest_ratio`` is of a claimed radius to the one proven here, ``lipschitz`` the bound derived here. In balls,
    ``error`` is at least the distance of the exact logits from their centres, and ``layers`` what was proven of each.
    """

    problems: tuple[str, ...]
    checked: int
    largest_ratio: float
    lipschitz: float
    error: float = 0.0
    layers: "tuple[LayerProof, ...]" = ()

    @property
    def sound(self) -> bool:
        return not self.problems


def check_certificates(
    path: Path | str,
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    batch_size: int = 64,
    progress: Tick | None = None,
) -> CheckReport:
    """Derive every radius of a file again in float64: a claimed one may exceed it by a part in 10^6 at most.

    Args:
        path: certificates.csv, or its folder. The record beside it must be there.
        model: whose certificates they are said to be.
        images, labels: (n, *shape) and (n,), the data set of which the file names some or all images by their index.
        progress: called after each batch with the images done, and all.
    """
    table = _Table(path, model, images, labels)
    index, claimed = table.claims["index"], table.claims["radius"]
    certifier = Certifier(table.function, tuple(images.shape[1:]), device="cpu")
    shown, truth, parts = images[index].cpu(), labels.cpu()[index].to(torch.int64), []
    for rows in torch.arange(len(index)).split(batch_size):
        parts.append(certifier(shown[rows], truth[rows]))
        if progress is not None:
            progress(int(rows[-1]) + 1, len(index))
    logits, radii = torch.cat([part.logits for part in parts]), torch.cat([part.radii for part in parts])
    holds = (claimed >= 0) & (claimed <= radii * (1 + _RELATIVE_TOLERANCE))  # NaN does not
    problems = table.compare(table.claims, truth, logits, radii.tolist(), holds, certifier.lipschitz)
    return CheckReport(problems, len(index), _largest_ratio(claimed, radii), certifier.lipschitz)


def check_in_balls(
    path: Path | str, model: nn.Module, images: Tensor, labels: Tensor, chosen: Sequence[int] | None = None
) -> CheckReport:
    """Prove the radii of a file in ball arithmetic, those of all images or of the chosen indices."""
    optional("flint", "python-flint", "ball")
    from skewconv.ball import prove
    from skewconv.certify.ball_intake import described

    table = _Table(path, model, images, labels)
    row_of = {index: row for row, index in enumerate(table.claims["index"].tolist())}
    wanted = sorted(row_of) if chosen is None else list(chosen)
    if not wanted or any(index not in row_of for index in wanted):
        raise ArgumentError(
            f"images {wanted} of {len(images)} were chosen, and {table.path} has certificates of {len(row_of)}: choose "
            "among those"
        )
    exact, shape = float64_copy(table.function), tuple(images.shape[1:])
    given, truth = images[wanted].cpu().double(), labels[wanted].cpu().to(torch.int64)
    with torch.no_grad(), without_autocast(torch.device("cpu")):
        proof = prove(described(exact, shape), given.numpy(), truth.numpy())
    claims = {name: column[[row_of[index] for index in wanted]] for name, column in table.claims.items()}
    holds = torch.tensor([proof.holds(image, radius) for image, radius in enumerate(claims["radius"].tolist())])
    radii = [float(radius) for radius in proof.radii]
    problems = table.compare(claims, truth, torch.from_numpy(proof.logits), radii, holds)
    ratio = _largest_ratio(claims["radius"], torch.tensor(radii, dtype=torch.float64))
    return CheckReport(problems, len(wanted), ratio, proof.lipschitz, proof.error, proof.layers)


def _largest_ratio(claimed: Tensor, radii: Tensor) -> float:
    ratios = (claimed / radii)[(radii > 0) & torch.isfinite(radii)]
    return float(ratios.max()) if len(ratios) else 0.0


class _Table:
    def __init__(self, path: Path | str, model: nn.Module, images: Tensor, labels: Tensor) -> None:
        self.path = table_in(path)
        self.claims = read_table(self.path)
        index = self.claims["index"]
        if len(index) == 0 or not bool(((index >= 0) & (index < len(images))).all()):
            raise ArgumentError(f"{self.path} has {len(index)} rows whose indices do not fit {len(images)} images")
        self.problems: list[str] = []
        self.results: Any = {}
        self.function = model
        if len(index.unique()) != len(index):
            self.problems.append("an index occurs more than once")
        try:
            self.results = dict(read_record(self.path.with_name(RECORD))["results"])
        except (RecordError, TypeError, ValueError) as error:
            self.problems.append(f"the record beside the table cannot be read: {error}")
            return
        if self.results.get("images") != len(index):
            self.problems.append(f"{len(index)} certificates for {self.results.get('images')} images")
        # Rows may stand in any order; the images were certified in that of their numbers.
        order = index.sort().values
        hashes = {"weights": weights_hash(model), "data": data_hash(images[order], labels.cpu()[order])}
        for name, wanted in hashes.items():
            if self.results.get(f"{name}_sha256") != wanted:
                self.problems.append(f"the {name} are not those certified: their hash differs")
        self.function = certified_function(model, tuple(images.shape[1:]), self.results)

    def compare(
        self,
        claims: dict[str, Tensor],
        labels: Tensor,
        logits: Tensor,
        radii: Sequence[float],
        holds: Tensor,
        lipschitz: float = 0.0,
    ) -> tuple[str, ...]:
        """All problems: of the record, of its figures, and of these rows, whose radii hold or do not."""
        claimed, index = claims["radius"].tolist(), claims["index"].tolist()
        too_large = [
            f"image {index[i]}: radius {claimed[i]!r} is claimed, {radii[i]!r} is proven"
            for i in (~holds).nonzero()[:, 0].tolist()
        ]
        return (*self.problems, *self._figures(lipschitz), *too_large, *_row_problems(claims, labels, logits, holds))

    def _figures(self, lipschitz: float) -> list[str]:
        if not self.results:
            return []  # said already
        columns: dict[str, Any] = {name: self.claims[name] for name in COLUMNS}
        problems = []
        try:
            thresholds = [radius_of(name) for name in self.results["certified"]]
            for name, value in Certificates(**columns, facts={}).results(thresholds).items():
                try:
                    # A NaN among the radii was reported with its row.
                    torch.testing.assert_close(self.results[name], value, rtol=1e-9, atol=1e-12, equal_nan=True)
                except AssertionError:
                    problems.append(f"the record's {name} is not that of the table")
            if not float(self.results["lipschitz_upper_bound"]) * (1 + _RELATIVE_TOLERANCE) >= lipschitz:
                problems.append(f"the record's Lipschitz bound is below {lipschitz!r}, which was derived")
        except (KeyError, TypeError, ValueError, ArithmeticError, AttributeError, ArgumentError) as error:
            return [f"the record beside the table is damaged: {error!r}"]
        return problems


def _row_problems(claims: dict[str, Tensor], labels: Tensor, logits: Tensor, holds: Tensor) -> list[str]:
    """What rows say of label, prediction, margin and float32, against the data and the logits."""
    claimed, index = claims["radius"], claims["index"].tolist()
    # Where nothing is certified, prediction and margin may be from an evaluation in float32.
    tolerance = torch.where(claimed > 0, _RELATIVE_TOLERANCE, _FLOAT32_TOLERANCE) * (1 + logits.abs().amax(1))
    guess, classes = claims["prediction"], logits.shape[1]
    there = logits.gather(1, guess.clamp(0, classes - 1)[:, None])[:, 0]
    margins = margin_of(logits, labels)
    same = ((claims["margin"] - margins).abs() <= tolerance) | (claims["margin"] == margins) | margins.isnan()
    found = {
        "the label is not that of the data": claims["label"] != labels,
        "the radius in float32 is above the one in float64": holds
        & ~((claims["radius_float32"] >= 0) & (claims["radius_float32"] <= claimed)),
        # Where two logits are within rounding of each other, two evaluations may order them differently.
        "the prediction is another": (guess < 0) | (guess >= classes) | (there < logits.amax(1) - tolerance),
        "the margin is another": ~same,
    }
    return [f"image {index[i]}: {what}" for what, bad in found.items() for i in bad.nonzero()[:, 0].tolist()]
