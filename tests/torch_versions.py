"""Which tests can be made with the torch at hand. Between 2.6 and 2.13, both of which were run, none was."""

import pytest
import torch

_OLD = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13)

# The compiler of torch 2.6 stops inside itself (no attribute 'distributed_state').
needs_the_compiler = pytest.mark.skipif(_OLD, reason="torch.compile of our layers needs torch 2.13")
# After all is saved a process of torch 2.6 may wait for ever while it leaves its group: seen once in two runs.
needs_groups_that_end = pytest.mark.skipif(_OLD, reason="several processes need torch 2.13: older ones may never end")
