"""Check certificates against the weights by a second path: other code, other bounds, no cache.

It shares with the path that made them only the model itself. Each layer is rebuilt from its filter: the polynomial is
summed by Clenshaw's rule with PyTorch's convolutions, its gain is the maximum over a fine grid with Riesz's margin, the
norms come from LAPACK's eigenvalues.
"""

import copy
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from skewconv.certify.certificates import RECORD, read_table
from skewconv.certify.hashes import data_hash, weights_hash
from skewconv.certify.second_path import walk
from skewconv.errors import ArgumentError
from skewconv.records import RecordError, read_record

# The second path does not subtract rounding errors and has its own slack in each bound; both are far below this.
RELATIVE_TOLERANCE, ABSOLUTE_TOLERANCE = 1e-6, 1e-9


@dataclass(frozen=True)
class CheckReport:
    """What was found: every problem in words, and how the radii compare.

    Arguments:
        problems: empty if and only if the certificates hold.
        checked: how many rows were compared.
        largest_ratio: the largest claimed radius divided by the one derived here.
        lipschitz: the Lipschitz bound derived here.
    """

    problems: tuple[str, ...]
    checked: int
    largest_ratio: float
    lipschitz: float

    @property
    def sound(self) -> bool:
        """Whether nothing was found wrong."""
        return not self.problems


def check_certificates(
    path: Path | str, model: nn.Module, images: Tensor, labels: Tensor, *, batch_size: int = 64
) -> CheckReport:
    """Whether every radius in a file is at most the one derived here, up to 1e-6 of it and 1e-9.

    Args:
        path: certificates.csv, or its folder. The record beside it must be there.
        model: whose certificates they are said to be.
        images, labels: the data they are said to be of: (n, *shape) and (n,).
    """
    table = Path(path) / "certificates.csv" if Path(path).is_dir() else Path(path)
    claims = read_table(table)
    problems = _check_record(table.with_name(RECORD), model, images, labels)
    index = claims["index"]
    if len(index) == 0 or not bool(((index >= 0) & (index < len(images))).all()):
        raise ArgumentError(f"{table} has {len(index)} rows whose indices do not fit {len(images)} images")
    if len(index.unique()) != len(index):
        problems.append("an index occurs more than once")
    if len(index) != len(images):
        problems.append(f"{len(index)} certificates for {len(images)} images")
    if bool((claims["label"] != labels.cpu()[index]).any()):
        problems.append("the labels are not those of the data")
    derived, predictions, lipschitz = derive(model, images[index], labels.cpu()[index], batch_size)
    claimed = claims["radius"]
    limit = derived * (1 + RELATIVE_TOLERANCE) + ABSOLUTE_TOLERANCE * (derived > 0)
    bad = ~(claimed <= limit)  # NaN is not <= anything
    problems += [
        f"image {int(index[i])}: radius {float(claimed[i])!r} is claimed, at most {float(derived[i])!r} holds"
        for i in bad.nonzero()[:, 0].tolist()
    ]
    # Where two logits are within rounding of each other the two paths may order them differently.
    other = (claims["prediction"] != predictions) & (claimed > 0)
    problems += [f"image {int(index[i])}: the prediction is another" for i in other.nonzero()[:, 0].tolist()]
    ratios = claimed[derived > 0] / derived[derived > 0]
    return CheckReport(tuple(problems), len(index), float(ratios.max()) if len(ratios) else 0.0, lipschitz)


def derive(model: nn.Module, images: Tensor, labels: Tensor, batch_size: int) -> tuple[Tensor, Tensor, float]:
    """Radii (n,), predictions (n,) and the Lipschitz bound by the second path, on the CPU."""
    exact = copy.deepcopy(model).cpu().double().eval().requires_grad_(False)
    layers = walk(exact, tuple(images.shape[1:]))
    head = layers[-1].matrix
    before = math.prod(layer.lipschitz for layer in layers[:-1])
    whole = before * layers[-1].lipschitz
    radii, predictions = [], []
    for x, t in zip(images.cpu().double().split(batch_size), labels.split(batch_size), strict=True):
        with torch.no_grad():
            for layer in layers:
                x = layer.run(x)
        z = x.numpy()
        predictions.append(torch.from_numpy(z.argmax(1)))
        found = [_radius(row, int(c), head, before, whole) for row, c in zip(z, t, strict=True)]
        radii.append(torch.tensor(found, dtype=torch.float64))
    return torch.cat(radii), torch.cat(predictions), whole


def _radius(z: np.ndarray, t: int, head: np.ndarray | None, before: float, whole: float) -> float:
    others = np.arange(len(z)) != t
    gaps = z[t] - z[others]
    if not (np.isfinite(z).all() and (gaps > 0).all()):
        return 0.0
    slopes = np.full(len(gaps), whole * math.sqrt(2))
    if head is not None:
        slopes = np.minimum(slopes, before * np.linalg.norm(head[t] - head[others], axis=1))
    with np.errstate(divide="ignore"):
        return float((gaps / slopes).min(initial=np.inf))


def _check_record(path: Path, model: nn.Module, images: Tensor, labels: Tensor) -> list[str]:
    try:
        results = read_record(path)["results"]
    except RecordError as error:
        return [f"the record beside the table cannot be read: {error}"]
    wanted = {"weights_sha256": weights_hash(model), "data_sha256": data_hash(images, labels)}
    names = {"weights_sha256": "weights", "data_sha256": "data"}
    return [
        f"the {names[k]} are not those certified: their hash differs" for k, v in wanted.items() if results.get(k) != v
    ]
