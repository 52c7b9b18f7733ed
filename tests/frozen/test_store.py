"""Frozen files: those of earlier versions are read, and what is not known is named."""

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from skewconv.certify import Certifier
from skewconv.errors import SkewconvError
from skewconv.frozen import load_frozen

# Written by version 0.1.0: one layer of every kind that it could store but for networks, on images of 1 x 16 x 16.
FORMAT_1 = Path(__file__).parent / "files" / "format-1.safetensors"


def test_a_file_of_the_first_version_computes_what_it_did():
    model = load_frozen(FORMAT_1)
    kinds = {type(module).__name__ for module in model.modules()}
    assert {"Dense", "Spectral", "Convolution", "SkewExponential", "Householder", "GroupSort"} <= kinds
    logits = model(torch.linspace(0, 1, 256).view(1, 1, 16, 16))
    expected = torch.tensor([[1.888296127319336, -2.2178657054901123, -1.8686209917068481]])
    torch.testing.assert_close(logits, expected, atol=2e-5, rtol=0)
    assert Certifier(model, (1, 16, 16)).lipschitz <= model.lipschitz_upper_bound((1, 16, 16)) * (1 + 1e-5)


def test_a_kind_that_is_not_known_is_named(tmp_path):
    with safe_open(str(FORMAT_1), framework="pt") as file:
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        description = json.loads(file.metadata()["skewconv"])
    description["model"]["children"]["4"]["kind"] = "Yours"
    save_file(tensors, tmp_path / "other.safetensors", metadata={"skewconv": json.dumps(description)})
    with pytest.raises(SkewconvError, match=r"'model\.4' is a 'Yours', which is not known here"):
        load_frozen(tmp_path / "other.safetensors")
