"""An average of networks: the mean of its members, certified, attacked, frozen and exported as one network."""

import numpy as np
import onnxruntime
import pytest
import torch

import skewconv
from skewconv import export
from skewconv.certify import certify_dataset, check_certificates, check_in_balls
from skewconv.errors import ArgumentError
from skewconv.models import Average, LipConvnet
from skewconv.nn import lipschitz_upper_bound
from tests.certify.oracles import assert_sound_under_attack

SHAPE = (1, 8, 8)


def members(count: int) -> list[LipConvnet]:
    torch.manual_seed(0)
    convs = ("soc", "sll", "bcop")
    return [
        LipConvnet(5, 4, in_channels=1, input_size=8, width=2, conv=convs[i], std=0.2 + 0.1 * i) for i in range(count)
    ]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_it_is_the_mean_and_its_constant_the_mean_of_the_constants(count: int) -> None:
    models = members(count)
    average, x = Average(models).double().eval(), torch.rand(6, *SHAPE, dtype=torch.float64)
    torch.testing.assert_close(average(x), sum(model(x) for model in models) / count)
    mean = sum(lipschitz_upper_bound(model, SHAPE) for model in models) / count
    assert lipschitz_upper_bound(average, SHAPE) == pytest.approx(mean, rel=1e-12)


def test_certificates_hold_under_attack_and_are_checked_by_both_arithmetics(tmp_path) -> None:
    model, images = Average(members(3)).eval(), torch.rand(4, *SHAPE)
    found = assert_sound_under_attack(model, images)
    assert float(found.max()) > 0
    logits = model.double()(images.double())
    two = logits.topk(2).values
    expected = (two[:, 0] - two[:, 1]) / (2**0.5 * lipschitz_upper_bound(model, SHAPE))
    torch.testing.assert_close(found, expected.detach(), rtol=1e-5, atol=1e-7)
    labels = logits.argmax(1)
    certify_dataset(model, images, labels).write(tmp_path)
    assert check_certificates(tmp_path, model, images, labels).problems == ()
    assert check_in_balls(tmp_path, model, images, labels).problems == ()


def test_it_is_frozen_and_exported(tmp_path) -> None:
    model, x = Average(members(3)).eval(), torch.rand(3, *SHAPE)
    torch.testing.assert_close(skewconv.freeze(model, SHAPE)(x), model(x), atol=1e-5, rtol=0)
    export.onnx(model, tmp_path / "model.onnx", SHAPE)
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(["logits"], {"images": x.numpy()})[0], model(x).detach(), atol=1e-3)


def test_an_average_of_nothing_is_refused() -> None:
    with pytest.raises(ArgumentError, match="at least one"):
        Average([])
