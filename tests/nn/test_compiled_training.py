"""A training step under torch.compile moves a network as the same step without it does."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from skewconv.nn import MaxMin, NormalizedLinear, OrthogonalLinear, SOC2d
from tests.torch_versions import needs_the_compiler


@needs_the_compiler
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
@pytest.mark.parametrize("head", [NormalizedLinear, OrthogonalLinear])
def test_compiled_steps_move_the_weights_as_eager_ones_do(backend, head):
    torch.manual_seed(0)
    model = nn.Sequential(SOC2d(2, 4, 3, stride=2, norm="bound"), MaxMin(), nn.Flatten(), head(16, 3)).train()
    twin = copy.deepcopy(model)
    x, labels = torch.randn(4, 2, 4, 4), torch.randint(3, (4,))
    for network, run in ((model, model), (twin, torch.compile(twin, backend=backend, fullgraph=True))):
        optimiser = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
        for _ in range(3):
            optimiser.zero_grad()
            F.cross_entropy(run(x), labels).backward()
            optimiser.step()
    # Compiled layers do not count their power steps.
    found, expected = ({k: v for k, v in each.state_dict().items() if "power_steps" not in k} for each in (twin, model))
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
