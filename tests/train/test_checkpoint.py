"""Checkpoints: whole or not at all, exact, and suspicious of everything they did not write themselves.

What is stored comes back to the bit: values are moved.
"""

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from lightning_fabric.plugins import MixedPrecision

from skewconv.train.checkpoint import Checkpoint, CheckpointError, DataFacts, Header, Position, build_model, save
from skewconv.train.environment import FILE
from skewconv.train.run import load, open_run
from tests.train.runs import TINY, assert_identical

FACTS = DataFacts("digits", "v1", tuple("0123456789"), (1, 8, 8), (0.3,), (0.4,), 1438, 359)
HEADER = Header(TINY, FACTS, Position(step=3, epoch=1, step_in_epoch=2, done=0.1, seconds=1 / 3), {"kind": "train"})


def trained(optimizer: str = "adamw") -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """A network and an optimiser with a state."""
    model = build_model(TINY, FACTS)
    kind = {"sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), "adamw": torch.optim.AdamW}[optimizer]
    made = kind(model.parameters())  # type: ignore[operator]
    for _ in range(2):
        made.zero_grad()
        model(torch.rand(4, 1, 8, 8)).square().sum().backward()
        made.step()
    return model, made


@pytest.fixture
def file(tmp_path: Path) -> Path:
    model, optimizer = trained()
    save(tmp_path / FILE, HEADER, model, optimizer)
    return tmp_path / FILE


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_what_is_saved_comes_back_exactly(kind, tmp_path):
    model, optimizer = trained(kind)
    save(tmp_path / FILE, HEADER, model, optimizer)
    expected = torch.rand(3)
    checkpoint = Checkpoint(tmp_path / FILE)
    assert checkpoint.header == HEADER
    other, other_optimizer = trained(kind)
    checkpoint.restore_model(other)
    checkpoint.restore_optimizer(other_optimizer)
    assert_identical(model.state_dict(), other.state_dict())
    mine, theirs = optimizer.state_dict(), other_optimizer.state_dict()
    assert mine["param_groups"] == theirs["param_groups"]
    assert mine["state"].keys() == theirs["state"].keys()
    for index, state in mine["state"].items():
        assert_identical(state, theirs["state"][index])
    checkpoint.restore_random()
    assert torch.equal(torch.rand(3), expected)


def scaled(steps: int) -> MixedPrecision:
    """The plugin of 16-mixed with a scaler that has seen some steps; it doubles its scale after every third."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=3)
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight])
    for _ in range(steps):
        scaler.scale(weight.sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    return MixedPrecision("16-mixed", "cpu", scaler)


def test_the_gradient_scaler_comes_back_with_its_scale_and_its_count(tmp_path):
    model, optimizer = trained()
    before = scaled(steps=7)
    save(tmp_path / FILE, HEADER, model, optimizer, scaler=before.state_dict())
    for steps in (0, 2):
        after = scaled(steps)
        Checkpoint(tmp_path / FILE).restore_scaler(after)
        assert after.state_dict() == before.state_dict()
        assert (after.state_dict()["scale"], after.state_dict()["_growth_tracker"]) == (2.0**10, 1)


def test_without_a_scaler_nothing_is_restored(file):
    before = scaled(steps=2)
    expected = before.state_dict()
    Checkpoint(file).restore_scaler(before)
    assert before.state_dict() == expected


def test_a_power_iteration_is_restored_to_the_bit_even_if_it_was_far_off(tmp_path):
    model, optimizer = trained()
    vectors = [buffer for name, buffer in model.named_buffers() if name.rpartition(".")[2].startswith("u")]
    assert vectors
    for vector in vectors:
        vector.copy_(torch.nn.functional.normalize(torch.randn_like(vector), dim=-1))
    save(tmp_path / FILE, HEADER, model, optimizer)
    other, _ = trained()
    Checkpoint(tmp_path / FILE).restore_model(other)
    assert_identical(model.state_dict(), other.state_dict())


def test_a_network_loads_from_folder_and_file_without_data_or_random_numbers(file):
    before = torch.get_rng_state()
    for path in (file, file.parent, str(file.parent)):
        model = load(path)
        assert not model.training
        assert not any(p.requires_grad for p in model.parameters())
        assert_identical(Checkpoint(file)._group("model"), model.state_dict())
    assert torch.equal(torch.get_rng_state(), before)
    model.requires_grad_(True).train()(torch.rand(2, 1, 8, 8)).sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    run = open_run(file.parent)
    assert (run.config, run.input_shape, run.position.step) == (TINY, (1, 8, 8), 3)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.999])
def test_a_truncated_checkpoint_is_refused(share, file):
    content = file.read_bytes()
    file.write_bytes(content[: int(share * len(content))])
    with pytest.raises(CheckpointError, match=r"is damaged, truncated, or no safetensors file"):
        open_run(file)


def test_a_pickle_is_refused_and_not_run(tmp_path):
    class Bomb:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "exploded"),)

    for name, dump in (("bomb.pt", lambda f: torch.save(Bomb(), f)), ("bomb.pkl", lambda f: pickle.dump(Bomb(), f))):
        with open(tmp_path / name, "wb") as stream:
            dump(stream)
        with pytest.raises(CheckpointError, match="damaged, truncated, or no safetensors file"):
            load(tmp_path / name)
    assert not (tmp_path / "exploded").exists()


def rewrite(file: Path, change: Any) -> None:
    """Alter the header of a checkpoint, as another version or a forger might."""
    with safetensors.safe_open(file, framework="pt") as opened:
        plain = json.loads(opened.metadata()["skewconv"])
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    change(plain, tensors)
    safetensors.torch.save_file(tensors, file, {"skewconv": json.dumps(plain)})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda plain, tensors: plain.update(schema=99), "schema 99, this version reads 1"),
        (lambda plain, tensors: plain.pop("position"), "position"),
        (lambda plain, tensors: plain["config"].update(surprise=1), "surprise"),
        (lambda plain, tensors: plain["config"].update(seed=-5), "seed is -5"),
    ],
)
def test_a_header_that_does_not_fit_is_refused(change, reason, file):
    rewrite(file, change)
    with pytest.raises(CheckpointError, match=reason):
        open_run(file)


def test_weights_that_do_not_fit_their_config_are_refused(file):
    rewrite(file, lambda plain, tensors: tensors.pop("model/head.bias"))
    with pytest.raises(CheckpointError, match=r"do not fit its own config.*head\.bias"):
        _ = open_run(file).model


def test_a_checkpoint_without_optimiser_cannot_be_resumed(tmp_path):
    model, optimizer = trained()
    save(tmp_path / FILE, HEADER, model)
    with pytest.raises(CheckpointError, match="evaluated, not resumed"):
        Checkpoint(tmp_path / FILE).restore_optimizer(optimizer)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (".", "it is not the folder of a run"),
        ("nothing", "does not exist"),
        ("x.safetensors", "no checkpoint of skewconv"),
    ],
)
def test_what_is_no_run_is_refused_for_its_reason(name, reason, tmp_path):
    safetensors.torch.save_file({"weight": torch.zeros(2)}, tmp_path / "x.safetensors")
    with pytest.raises(CheckpointError, match=reason):
        open_run(tmp_path / name)
