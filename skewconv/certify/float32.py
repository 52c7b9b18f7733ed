"""How far the network in float32 may be from the float64 program that is certified.

If each of its logits is within d of the certified one, a difference of two logits is within 2 d, and that is taken off
every margin once more.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from skewconv.certify.certifier import Certifier, multiplies_in_float32
from skewconv.certify.perturb import PGD
from skewconv.certify.programs import EXACT, program_of
from skewconv.nn import Normalize
from skewconv.nn.bounds import IDENTITY, ZERO, AffineBound
from skewconv.nn.module_tools import evaluating, first_tensor
from skewconv.ops.torch_modes import autocasting
from skewconv.rigor import vector_norm_up

# A measured difference is multiplied by this: other images may do a little worse.
MULTIPLE = 4.0
# Images that are also measured at the end of their radius, where an attack has put them.
ATTACKED_IMAGES = 1000
# One float32 rounding against one float64 rounding, with room for gamma_n of up to this number of operations.
_COARSER, _MOST_OPERATIONS = 2.0**29 * 1.01, 100_000
# In another precision these make the same sums and products of the same stored numbers, in any order. Convolutions may
# be computed by transforms, and Hardtanh's bounds are numbers of Python, which another precision rounds.
_AS_STORED = {*EXACT, nn.Linear, Normalize} - {nn.Hardtanh}
# Products that underflow in float32 lose less than 2^-149 each.
_UNDERFLOW = AffineBound(0.0, 2.0**-100)
# No sum below this overflows in float32.
_NO_OVERFLOW = 2.0**120
# A bound is used in the place of a measurement where it takes off no more than this share of the median margin.
_SHARP = 0.02


@dataclass(frozen=True)
class Float32Slack:
    """d, the largest difference of a logit that is allowed for, and how it is known.

    Proven from the layers' rounding errors, it grows per unit of the input's norm; measured, it is a multiple of the
    largest difference of a logit seen on these clean and attacked images.
    """

    kind: Literal["proven", "measured"]
    logits: float
    largest_difference: float
    clean_images: int
    attacked_images: int
    per_unit_of_input_norm: float = 0.0

    @property
    def growth(self) -> AffineBound:
        """A bound on the l2 distance of two logits' difference, divided by sqrt(2), as a function of the input norm."""
        if self.kind == "proven":
            return AffineBound(self.per_unit_of_input_norm, self.logits)
        return AffineBound(0.0, 2**0.5 * self.logits).times(1.0)

    def facts(self) -> dict[str, Any]:
        return {**asdict(self), "multiple_of_the_largest_difference": MULTIPLE if self.kind == "measured" else None}

    @classmethod
    def kept(cls, certifier: Certifier) -> "Float32Slack | None":
        """The slack that certificates of a CPU's float32 network measured, if the certifier has one."""
        facts = certifier.kept.get("float32_slack")
        if not isinstance(facts, Mapping) or certifier.device.type != "cpu" or autocasting(certifier.device):
            return None
        names = ("kind", "logits", "largest_difference", "clean_images", "attacked_images")
        given = [facts.get(name) for name in names]
        # What is proven is proven anew.
        sound = given[0] == "measured" and all(isinstance(n, int | float) and 0 <= n < math.inf for n in given[1:])
        return cls(*given) if sound else None  # type: ignore[arg-type]

    def in_words(self) -> str:
        if self.kind == "proven":
            return "proven: float32 rounds each sum of products by a known share"
        return (
            f"measured: {MULTIPLE:g} times the largest difference on {self.clean_images:,} clean and "
            f"{self.attacked_images:,} attacked images"
        )


class DifferenceMeter:
    """The largest difference between a model in its own precision and the certified program, over batches of images.

    Up to ``attacked_images`` are also measured where an attack on the model moves them. With ``run``, another program
    of the model, such as an exported one (images to logits on the CPU in float32), its differences are measured.
    """

    def __init__(
        self,
        model: nn.Module,
        certifier: Certifier,
        attacked_images: int = ATTACKED_IMAGES,
        *,
        run: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self.model, self.certifier, self.attacked_images, self.run = model, certifier, attacked_images, run
        self.largest, self.clean, self.attacked = 0.0, 0, 0

    def measure_clean(self, images: Tensor, logits: Tensor) -> None:
        self.compare_clean(self.logits(images), logits)

    def compare_clean(self, given: Tensor, logits: Tensor) -> None:
        """Compare the model's logits (n, classes) of images with the certified ones."""
        self._compare(given, logits)
        self.clean += len(given)

    def measure_attacked(self, images: Tensor, labels: Tensor, radii: Tensor) -> None:
        """Compare where a short attack moves certified images, at the end of their radius."""
        chosen = (radii > 0) & torch.isfinite(radii)
        images, labels, radii = (t[chosen][: self.attacked_images - self.attacked] for t in (images, labels, radii))
        if len(images) == 0:
            return
        tensor = first_tensor(self.model, images)
        x, t = images.to(tensor.device, tensor.dtype), labels.to(tensor.device)
        with evaluating(self.model):
            moved = PGD(steps=3, restarts=1)(self.model, x, t, radii.to(x))
        self._compare(self.logits(moved), self.certifier.logits(moved))
        self.attacked += len(moved)

    def logits(self, images: Tensor) -> Tensor:
        """(n, *shape) -> (n, classes) by the model in its own precision, or by the other program."""
        if self.run is not None:
            return self.run(images.detach().to("cpu", torch.float32))
        tensor = first_tensor(self.model, images)
        with evaluating(self.model), torch.no_grad():
            given: Tensor = self.model(images.to(tensor.device, tensor.dtype))
        return given

    def _compare(self, given: Tensor, logits: Tensor) -> None:
        differences = (given.to(logits) - logits).abs()
        # Logits that are not finite in float64 certify nothing; those that are not so in float32 alone overflowed.
        there = differences[torch.isfinite(logits)].nan_to_num(math.inf, math.inf)
        self.largest = max(self.largest, float(there.max()) if len(there) else 0.0)

    def gather(self, fabric: Any) -> None:
        found = torch.tensor([self.largest, self.clean, self.attacked], dtype=torch.float64, device=fabric.device)
        everywhere = fabric.all_gather(found).view(-1, 3).cpu()
        self.largest = float(everywhere[:, 0].max())
        self.clean, self.attacked = (int(n) for n in everywhere[:, 1:].sum(0).tolist())

    def slack(self, margins: Tensor, radii: Tensor, largest_norm: float) -> Float32Slack:
        """The slack up to radii (n,) around images of these margins (n,): proven if that is sharp, or measured.

        A model may lower its precision in its own forward: a measured difference above the bound says so.
        """
        measured = Float32Slack("measured", MULTIPLE * self.largest, self.largest, self.clean, self.attacked)
        right = margins[margins > 0]
        # What is proven is for numbers stored in float32, and for products of that precision.
        tensors, device = [*self.model.parameters(), *self.model.buffers()], first_tensor(self.model).device
        stored = all(t.dtype in (torch.float32, torch.float64) for t in tensors if t.is_floating_point())
        if len(right) == 0 or not stored or autocasting(device) or not multiplies_in_float32(device):
            return measured
        farthest = largest_norm + float(radii.max())
        proven = proven_error(self.certifier.links, self.certifier.input_shape, farthest)
        if proven is None or 2 * proven.at(largest_norm) > _SHARP * float(right.median()):
            return measured
        if self.largest > proven.plus(self.certifier.rounding).at(farthest):
            return measured
        return replace(measured, kind="proven", logits=proven.constant, per_unit_of_input_norm=proven.slope)


def largest_norm(images: Tensor) -> float:
    """Of all images (n, *shape) without a NaN or infinity, rounded up; 0 if there is none."""
    sizes = vector_norm_up(images.flatten(1))
    finite = sizes[torch.isfinite(sizes)]
    return float(finite.max()) if len(finite) else 0.0


def proven_error(
    links: Sequence[tuple[str, nn.Module]], input_shape: tuple[int, ...], farthest: float
) -> AffineBound | None:
    """||float32 logits - exact logits||, where every layer makes the same sums of the same stored numbers; else None.

    Float32 does not overflow on points up to a million times as far from the origin as the norm ``farthest``.
    """
    reach = 2.0**20 * (farthest + math.sqrt(math.prod(input_shape)))
    total, shape = IDENTITY, input_shape
    for name, layer in links:
        # A matrix that was computed from parameters for this certificate is another one in float32.
        if type(layer) not in _AS_STORED or "_lowered_from" in vars(layer):
            return None
        program = program_of(layer, shape, name)
        own = program.bounds
        if own.error.slope > 0 and math.prod(shape) + 10 > _MOST_OPERATIONS:
            return None
        error = ZERO if own.error.slope == 0 else own.error.times(_COARSER).plus(_UNDERFLOW)
        total, shape = total.then(replace(own, error=error)), program.shape
        # |w| |x| is at most the norm of the row times that of the input, so no sum of a layer is larger than this.
        if not (reach <= total.max_input_norm and total.norm.plus(total.error).at(reach) < _NO_OVERFLOW):
            return None
    return total.error
