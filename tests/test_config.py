"""Configs: every value is checked when it is set, nothing is ignored, and JSON gives back what was put in."""

import json
from dataclasses import fields
from typing import get_args, get_type_hints

import pytest

from skewconv.config import LoadingConfig, ModelConfig, OptimConfig, RegimeConfig, TrainConfig, flag, from_dict, to_dict
from skewconv.errors import ArgumentError
from skewconv.models.parts import ACTIVATIONS, CONVOLUTIONS, HEADS

UNUSUAL = TrainConfig(
    data="folder:some/where",
    preset="mine",
    epochs=None,
    minutes=2.5,
    seed=7,
    precision="bf16-mixed",
    radii=(0.25,),
    model=ModelConfig(depth=10, width=4, series="taylor", train_degree=5, norm_bound=1.5),
    optim=OptimConfig(optimizer="adamw", schedule="steps", milestones=(0.1, 0.2, 0.9), clip=1.0),
    regime=RegimeConfig(logit_scale=0.5, offset=1.0),
    loading=LoadingConfig(size=16, test_fraction=0.5, flip=False),
)


@pytest.mark.parametrize("config", [TrainConfig(), UNUSUAL])
def test_json_gives_the_same_config_back(config):
    assert from_dict(TrainConfig, json.loads(json.dumps(to_dict(config)))) == config


def test_settings_that_are_gone_are_read_at_the_value_they_had():
    assert from_dict(OptimConfig, {"accumulate": 1, "nesterov": False}) == OptimConfig()
    with pytest.raises(ArgumentError, match="has no 'accumulate'"):
        from_dict(OptimConfig, {"accumulate": 2})


def test_unknown_keys_are_refused_at_every_level():
    plain = to_dict(TrainConfig())
    with pytest.raises(ArgumentError, match=r"^a config has no 'epoch': did you mean 'epochs'\? allowed are data, "):
        from_dict(TrainConfig, {**plain, "epoch": 3})
    with pytest.raises(ArgumentError, match=r"^the table 'model' of a config has no 'deep': did you mean 'depth'"):
        from_dict(TrainConfig, {**plain, "model": {"deep": 5}})
    with pytest.raises(ArgumentError, match="from a mapping, not from a list"):
        from_dict(TrainConfig, {**plain, "model": [1]})


@pytest.mark.parametrize("kind", [TrainConfig, ModelConfig, OptimConfig, RegimeConfig, LoadingConfig])
def test_a_value_of_the_wrong_kind_is_refused_in_every_field(kind):
    for each in fields(kind):
        with pytest.raises(ArgumentError, match=f"^{flag(each.name)} is .*: it must be "):
            kind(**{each.name: object()})


def test_truth_is_no_number_and_a_number_no_truth():
    with pytest.raises(ArgumentError, match="--depth is True: it must be an integer"):
        ModelConfig(depth=True)
    with pytest.raises(ArgumentError, match="--augment is 1: it must be true or false"):
        LoadingConfig(augment=1)  # type: ignore[arg-type]
    assert isinstance(OptimConfig(lr=1).lr, float)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (ModelConfig, {"depth": 7}),
        (ModelConfig, {"width": 3}),
        (ModelConfig, {"conv": "standard"}),
        (ModelConfig, {"train_degree": 0}),
        (ModelConfig, {"norm_bound": 0.0}),
        (OptimConfig, {"lr": float("nan")}),
        (OptimConfig, {"momentum": 1.0}),
        (OptimConfig, {"weight_decay": -1.0}),
        (OptimConfig, {"milestones": (0.5, 0.25)}),
        (OptimConfig, {"clip": 0.0}),
        (RegimeConfig, {"logit_scale": 0.0}),
        (RegimeConfig, {"offset": -1.0}),
        (RegimeConfig, {"pgd_restarts": 0}),
        (LoadingConfig, {"batch_size": -1}),
        (LoadingConfig, {"size": 0}),
        (LoadingConfig, {"test_fraction": 1.0}),
        (TrainConfig, {"data": "mnist"}),
        (TrainConfig, {"epochs": -1}),
        (TrainConfig, {"epochs": None, "minutes": 0.0}),
        (TrainConfig, {"seed": -1}),
        (TrainConfig, {"radii": (-1.0,)}),
    ],
)
def test_values_out_of_range_are_refused_and_named(kind, values):
    with pytest.raises(ArgumentError, match="it must be") as caught:
        kind(**values)
    assert any(str(caught.value).startswith(f"{flag(name)} is ") for name in values)


# Where each field has no effect: the config around it, and the value that is then refused.
ADVERSARIAL_ONLY = {"epsilon": 0.1, "fgsm_step": 0.1, "pgd_steps": 3, "pgd_step": 0.1, "pgd_restarts": 3}
IDLE: list[tuple[type, dict[str, object], str, object]] = [
    (ModelConfig, {"arch": "resnet-18"}, "depth", 10),
    (ModelConfig, {"arch": "resnet-34"}, "activation", "householder"),
    (ModelConfig, {"arch": "resnet-50"}, "head", "normalized"),
    (ModelConfig, {"arch": "resnet-50"}, "circular_from", 16),
    (ModelConfig, {"padding_mode": "circular"}, "circular_from", 16),
    (ModelConfig, {"conv": "cayley"}, "circular_from", 16),
    (ModelConfig, {"conv": "bcop"}, "series", "taylor"),
    (ModelConfig, {"conv": "bcop"}, "train_degree", 5),
    (ModelConfig, {"conv": "cayley"}, "eval_degree", 5),
    (ModelConfig, {"conv": "cayley"}, "norm_bound", 1.0),
    (ModelConfig, {"conv": "cayley"}, "norm_bound_1x1", 2.0),
    (ModelConfig, {"conv": "aol"}, "norm", "bound"),
    (ModelConfig, {"conv": "bcop"}, "init_scale", 2.0),
    (ModelConfig, {"conv": "bcop"}, "learn_scale", 0.5),
    (ModelConfig, {"conv": "sll"}, "train_series", "taylor"),
    *((RegimeConfig, {}, name, value) for name, value in ADVERSARIAL_ONLY.items()),
    (RegimeConfig, {"regime": "standard"}, "attack_images", 10),
    (LoadingConfig, {"augment": False}, "padding", 2),
    (LoadingConfig, {"augment": False}, "flip", True),
    (LoadingConfig, {"flip": False}, "alternate_flip", True),
    (ModelConfig, {"arch": "lipconvnet"}, "resnet_activation", "swish"),
    (OptimConfig, {"schedule": "one-cycle"}, "milestones", (0.5,)),
    (TrainConfig, {"regime": RegimeConfig(regime="standard")}, "radii", (0.1,)),
]
# The fields that always act, and those that the whole config judges (see the tests below).
ACTIVE = """
arch width conv padding_mode holdout batch_size eval_batch_size augment optimizer keep_last lr momentum weight_decay
schedule clip regime logit_scale offset data preset epochs minutes seed precision eval_every
monitor_images init model optim loading"""
JUDGED_TOGETHER = {"norm_penalty", "source", "size", "test_fraction", "skip_bad"}


@pytest.mark.parametrize(("kind", "around", "name", "value"), IDLE)
def test_a_value_that_would_have_no_effect_is_refused(kind, around, name, value):
    kind(**around)
    with pytest.raises(ArgumentError, match=f"^{flag(name)} is .*, but it .* leave it out$"):
        kind(**around, **{name: value})


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"loading": LoadingConfig(size=32)}, "--size is .*, but it .* leave it out$"),
        ({"data": "cifar10", "loading": LoadingConfig(test_fraction=0.5)}, "--test-fraction is .* leave it out$"),
        ({"loading": LoadingConfig(source="npm")}, "--source is .* CIFAR only, not to digits; leave it out$"),
        ({"minutes": 1.0}, "--epochs is 30 and --minutes is 1.0: give one of them"),
        ({"epochs": None}, "--epochs is none and --minutes is none: give one of them"),
        ({"model": ModelConfig(arch="resnet-18")}, "--regime is 'provable' .*only lipconvnet proves anything"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings, words):
    with pytest.raises(ArgumentError, match=f"^{words}"):
        TrainConfig(**settings)


def test_every_field_is_known_to_act_or_to_be_refused_where_it_does_not():
    kinds = (ModelConfig, LoadingConfig, OptimConfig, RegimeConfig, TrainConfig)
    known = {name for _, _, name, _ in IDLE} | set(ACTIVE.split()) | JUDGED_TOGETHER
    assert {each.name for kind in kinds for each in fields(kind)} == known


@pytest.mark.parametrize(("name", "registry"), [("conv", CONVOLUTIONS), ("activation", ACTIVATIONS), ("head", HEADS)])
def test_the_names_of_parts_are_those_of_the_models(name, registry):
    assert set(get_args(get_type_hints(ModelConfig)[name])) == set(registry)
