"""Other people's tools around our models: wrappers, averages, quantisation, attacks, states on disk."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

import skewconv
from skewconv.certify import weights_hash
from skewconv.errors import UnboundedModuleError
from skewconv.models import LipConvnet
from tests.torch_versions import needs_the_compiler

SHAPE = (1, 8, 8)


def network(**options: Any) -> nn.Module:
    return LipConvnet(5, 3, in_channels=1, input_size=8, width=2, **options).eval()


@pytest.fixture
def process_group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


WRAPPERS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "AveragedModel": AveragedModel,
    "DataParallel": nn.DataParallel,
    "DistributedDataParallel": DistributedDataParallel,
    "Fabric": lambda model: Fabric(accelerator="cpu", devices=1).setup(model),
    "twice": lambda model: nn.DataParallel(AveragedModel(model)),
    "inside": lambda model: nn.Sequential(nn.DataParallel(model.body), AveragedModel(model.head)),
    "compiled": pytest.param(lambda model: torch.compile(model, backend="eager"), marks=needs_the_compiler),
}


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
@pytest.mark.usefixtures("process_group")
def test_the_certifier_sees_through_wrappers(wrap):
    model, x = network(), torch.rand(4, *SHAPE)
    labels = model(x).argmax(1)
    wrapped = wrap(model)
    expected = skewconv.certify.radii(model, x, labels)
    assert expected.max() > 0
    assert torch.equal(skewconv.certify.radii(wrapped, x, labels), expected)  # the same program
    assert skewconv.nn.lipschitz_upper_bound(wrapped, SHAPE) == skewconv.nn.lipschitz_upper_bound(model, SHAPE)
    torch.testing.assert_close(skewconv.freeze(wrapped, SHAPE)(x), model(x), atol=1e-5, rtol=0)
    assert isinstance(wrapped, nn.Sequential) or weights_hash(wrapped) == weights_hash(model)


class Deciding(nn.Module):
    """A wrapper whose forward no tracer can follow."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) if float(x.sum()) > 0 else 2 * self.inner(x)


def test_other_wrappers_are_refused():
    for ask in (
        lambda model: skewconv.certify.radii(model, torch.rand(1, *SHAPE), torch.tensor([0])),
        lambda model: skewconv.nn.lipschitz_upper_bound(model, SHAPE),
    ):
        with pytest.raises(UnboundedModuleError, match="its graph gives no bound"):
            ask(Deciding(network()))
        hooked = nn.DataParallel(network())
        hooked.register_forward_hook(lambda module, given, made: 2 * made)
        with pytest.raises(UnboundedModuleError, match=r"hooks|DataParallel"):
            ask(hooked)


class HubMixin:
    """What a mixin of a hub for models looks like to a class: it saves, it computes nothing."""

    def __init_subclass__(cls, *, library: str = "", **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.library = library


class Published(HubMixin, LipConvnet, library="skewconv"):
    """A network with such a mixin in front of it."""


class Overruled(HubMixin, LipConvnet):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def test_a_mixin_that_computes_nothing_is_no_reason_to_refuse():
    x, labels = torch.rand(2, *SHAPE), torch.tensor([0, 1])
    model = Published(5, 3, in_channels=1, input_size=8, width=2)
    plain = network()
    plain.load_state_dict(model.state_dict())
    assert torch.equal(skewconv.certify.radii(model, x, labels), skewconv.certify.radii(plain, x, labels))
    with pytest.raises(UnboundedModuleError, match="its own forward"):
        skewconv.certify.radii(Overruled(5, 3, in_channels=1, input_size=8, width=2), x, labels)


@pytest.fixture(scope="module")
def loaded(digits_run: Path) -> tuple[nn.Module, Tensor, Tensor, float]:
    """A loaded run, images, what it says of them, and a length just below all their radii."""
    model = skewconv.load(digits_run)
    images = torch.rand(16, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    labels = model(images).argmax(1)
    radii = skewconv.certify.radii(model, images, labels)
    kept = radii >= radii.median()
    return model, images[kept], labels[kept], 0.999 * float(radii.median())


@pytest.mark.filterwarnings("ignore:Please import `gaussian_filter`:DeprecationWarning")
def test_foolbox_finds_nothing_within_the_radius(loaded):
    foolbox = pytest.importorskip("foolbox", reason="foolbox, of the extra dev, is not installed")
    model, images, labels, radius = loaded
    attack = foolbox.attacks.L2ProjectedGradientDescentAttack(steps=5)
    subject = foolbox.PyTorchModel(model, bounds=(0, 1), device="cpu")
    _, (near, far), found = attack(subject, images, labels, epsilons=[radius, 20.0])
    assert not found[0].any()
    assert found[1].any()
    assert (near - images).flatten(1).norm(dim=1).max() <= radius * (1 + 1e-5)
    assert not torch.equal(near, far)


def test_torchattacks_finds_nothing_within_the_radius(loaded):
    torchattacks = pytest.importorskip("torchattacks", reason="torchattacks, of the extra attacks, is not installed")
    model, images, labels, radius = loaded
    for eps, flips in ((radius, False), (20.0, True)):
        moved = torchattacks.PGDL2(model, eps=eps, alpha=eps / 2, steps=5)(images, labels)
        assert bool((model(moved).argmax(1) != labels).any()) == flips
