"""SOC layers under DistributedDataParallel: two gloo processes compute what one computes on the joined batch."""

import gc

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import skewconv
from skewconv.models import LipConvnet
from skewconv.nn import SOC2d, SUC1d


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(SOC2d(3, 8, 3, stride=2, norm="tracked"), SOC2d(8, 4, 1)).double()


def _steps(model: nn.Module, batches: list[torch.Tensor]) -> None:
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in batches:
        optimiser.zero_grad()
        model(x).square().sum(1).mean().backward()
        optimiser.step()


def _batches() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.rand(8, 3, 8, 8, dtype=torch.float64, generator=generator) for _ in range(4)]


def _worker(rank: int, folder: str, network: nn.Module, frozen: nn.Module) -> None:
    torch.set_num_threads(1)
    # Both were pickled on the way here, without what they keep.
    ones = torch.ones(1, 3, 8, 8, dtype=torch.float64)
    torch.save([model(ones) for model in (network, frozen)], f"{folder}/out{rank}.pt")
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    _train(rank, folder)
    # Both are done, and nothing holds on to the group any more, before its threads are taken down.
    dist.barrier()
    gc.collect()
    dist.destroy_process_group()


def _train(rank: int, folder: str) -> None:
    model = DistributedDataParallel(_model())
    _steps(model, [x[rank::2] for x in _batches()])
    torch.save(model.module.state_dict(), f"{folder}/rank{rank}.pt")
    # A second step is refused where a parameter got no gradient in the first.
    bcop = DistributedDataParallel(LipConvnet(5, in_channels=1, input_size=8, width=2, conv="bcop"))
    for _ in range(2):
        bcop(torch.rand(2, 1, 8, 8)).sum().backward()
    # Complex parameters travel too, where torch lets gloo carry complex numbers at all (2.6 does not).
    try:
        dist.broadcast(torch.zeros(1, dtype=torch.complex64), 0)
    except RuntimeError as error:
        if "Invalid scalar type" not in str(error):
            raise
        return
    complex_model = DistributedDataParallel(SUC1d(2, 2, 3))
    complex_model(torch.randn(1, 2, 5, dtype=torch.complex64)).abs().sum().backward()
    grads = torch.view_as_real(complex_model.module.free.grad)
    gathered = [torch.zeros_like(grads) for _ in range(2)]
    dist.all_gather(gathered, grads)
    assert torch.equal(*gathered)  # moved: every process gets the one sum


def test_two_processes_agree_with_one_and_take_models_by_pickle(tmp_path):
    given = _model().eval().requires_grad_(False)
    frozen = skewconv.freeze(given, (3, 8, 8))
    mp.spawn(_worker, args=(str(tmp_path), given, frozen), nprocs=2)
    for rank in (0, 1):
        for made, model in zip(torch.load(tmp_path / f"out{rank}.pt"), (given, frozen), strict=True):
            torch.testing.assert_close(made, model(torch.ones(1, 3, 8, 8, dtype=torch.float64)))
    alone = _model()
    _steps(alone, _batches())
    states = [torch.load(tmp_path / f"rank{rank}.pt") for rank in (0, 1)]
    for name, expected in alone.state_dict().items():
        # repeated: both take the same steps from the one sum of gradients
        assert torch.equal(states[0][name], states[1][name]), name
        torch.testing.assert_close(states[0][name], expected, atol=1e-10, rtol=0)
