"""Which tests of torch.compile can be made with the torch at hand."""

import pytest
import torch

# The compiler of torch 2.6 stops inside itself (no attribute 'distributed_state'); none between that and 2.13 was run.
needs_the_compiler = pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13), reason="torch.compile of our layers needs torch 2.13"
)
