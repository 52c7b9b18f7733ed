"""The rows are the paper's, the scale "paper" is its preset, the reduced one treats all alike, and changes are told."""

import copy
from dataclasses import fields, replace
from typing import Any

import pytest

from skewconv.config import with_settings
from skewconv.errors import ArgumentError
from skewconv.models.parts import CONVOLUTIONS
from skewconv.reproduce.rows import EXPERIMENTS, Changes, chosen_rows, config_of, reductions
from skewconv.train.presets import PAPER, PRESETS, preset

RESNETS = ("table3", "table4")
ENDING = {"table2": "", "table3": "", "table4": "/adversarial"}


@pytest.mark.parametrize("data", ["cifar10", "cifar100"])
def test_every_row_of_the_paper_is_in_exactly_one_table_with_its_recipe_and_its_figures(data: str) -> None:
    found = []
    for experiment in ENDING:
        for row in chosen_rows(experiment, data, (), "paper"):
            preset = f"{row.name}/{data}{ENDING[experiment]}"
            found.append(preset)
            assert row.paper == PAPER[preset]
            assert config_of(row, "paper", seed=3) == replace(PRESETS[preset], seed=3)
    assert sorted(found) == sorted(name for name, config in PRESETS.items() if config.data == data)


def test_at_depth_5_every_other_convolution_of_the_library_has_a_row() -> None:
    rows = [row.name for row in chosen_rows("table2", "cifar10", (), "cpu")]
    assert {name.split("/")[1] for name in rows if name.startswith("lipconvnet-5/")} == set(CONVOLUTIONS) - {"standard"}
    assert {int(name.split("/")[0].split("-")[1]) for name in rows} == set(range(5, 45, 5))


@pytest.mark.parametrize(
    ("experiment", "names"),
    [("table2", ("all",)), *((table, ("resnet-18/standard", "resnet-18/bcop", "resnet-18/soc")) for table in RESNETS)],
)
def test_the_reduced_recipe_is_the_same_for_all_but_depth_and_convolution(experiment: str, names: Any) -> None:
    configs = [config_of(row, "cpu", 0) for row in chosen_rows(experiment, "cifar10", names, "cpu")]
    # Deep LipConvnets have fewer epochs, all convolutions alike.
    assert len({(each.epochs, experiment == "table2" and each.model.depth > 20) for each in configs}) <= 2
    alike = {replace(each, epochs=1, model=replace(each.model, depth=5, conv="soc")) for each in configs}
    assert len(alike) == 1


def test_a_change_of_any_setting_is_told() -> None:
    (row,) = chosen_rows("table4", "cifar10", ("resnet-18/soc",), "cpu")
    assert reductions(config_of(row, "paper", 0), row.recipe) == []
    for part in ("model", "optim", "regime", "loading"):
        for each in fields(getattr(row.recipe, part)):
            # Which no check looks at: any change is to be told, sensible or not.
            changed = copy.deepcopy(row.recipe)
            object.__setattr__(getattr(changed, part), each.name, "another")
            (told,) = reductions(changed, row.recipe)
            assert told.startswith(f"{each.name.replace('_', '-')} another ("), told


def test_the_scale_of_the_paper_takes_epochs_precision_and_evaluations_and_tells_them() -> None:
    (row,) = chosen_rows("table2", "cifar10", ("lipconvnet-5/soc",), "paper")
    config = config_of(row, "paper", 1, Changes(epochs=2, precision="bf16-mixed", eval_every=2))
    assert config == replace(row.recipe, epochs=2, precision="bf16-mixed", eval_every=2, seed=1)
    told = {"epochs 2 (200)", "precision bf16-mixed (32-true)", "eval-every 2 (1)"}
    assert set(reductions(config, row.recipe)) == told


@pytest.mark.parametrize(
    ("scale", "changes", "reason"),
    [
        ("paper", Changes(width=4), "--width changes the network"),
        ("paper", Changes(minutes_a_row=3), "--minutes-a-row changes .*change --epochs, --precision, --eval-every"),
        ("cpu", Changes(epochs=3, minutes_a_row=3), "give one of them"),
        ("cpu", Changes(epochs=-1), "epochs is -1"),
        ("cpu", Changes(width=3), "width is 3"),
    ],
)
def test_changes_that_make_no_sense_are_refused(scale: str, changes: Changes, reason: str) -> None:
    (row,) = chosen_rows("table2", "cifar10", ("lipconvnet-5/soc",), "cpu")
    with pytest.raises(ArgumentError, match=reason):
        config_of(row, scale, 0, changes)  # type: ignore[arg-type]


def test_an_unknown_row_is_refused_and_what_is_not_of_the_paper_has_no_rows_at_its_scale() -> None:
    with pytest.raises(ArgumentError, match=r"table4 has no row 'resnet-34/soc'.*resnet-18/soc"):
        chosen_rows("table4", "cifar10", ("resnet-34/soc",), "cpu")
    for experiment in set(EXPERIMENTS) - set(ENDING):
        with pytest.raises(ArgumentError, match="has no rows at scale paper"):
            chosen_rows(experiment, "cifar10", (), "paper")


@pytest.mark.parametrize("experiment", ["ablations", "recipes", "refinements"])
def test_an_ablation_changes_one_thing_and_never_sees_a_test_image(experiment: str) -> None:
    rows = chosen_rows(experiment, "cifar10", (), "cpu")
    of_two = ("together/", "conv/cayley-offset-")
    base, *others = (config_of(row, "cpu", 0) for row in rows if not row.name.startswith(of_two))
    assert {config_of(row, "cpu", 0).loading.holdout for row in rows} == {5000}
    for config in others:
        changed = [
            part for part in ("model", "optim", "regime", "loading") if getattr(config, part) != getattr(base, part)
        ]
        # A larger batch has a larger rate.
        assert len(changed) == 1 or changed == ["optim", "loading"]
        assert replace(config, **{part: getattr(base, part) for part in changed}) == base


def test_images_that_are_trained_as_they_are_have_no_rows_of_other_shifts() -> None:
    names = [row.name for row in chosen_rows("refinements", "digits", (), "cpu")]
    assert "offset/3" in names
    assert "shift/2" not in names


@pytest.mark.parametrize("experiment", ["products", "products-timed"])
def test_training_polynomials_are_compared_at_three_depths_by_nothing_but_their_series(experiment: str) -> None:
    rows = chosen_rows(experiment, "cifar10", (), "cpu")
    configs = [config_of(row, "cpu", 0) for row in rows]
    assert {config.model.depth for config in configs} == {5, 20, 40}
    assert {config.loading.holdout for config in configs} == {5000}
    for depth in (5, 20, 40):
        # rescaled-3 differs from isometric-3 by the scale of its loss instead.
        same = [
            config
            for row, config in zip(rows, configs, strict=True)
            if config.model.depth == depth and not row.name.endswith("/rescaled-3")
        ]
        assert len({replace(config, model=configs[0].model) for config in same}) == 1
        assert len({config.model for config in same}) == len(same) >= 2
    assert {row.cpu_seeds for row, config in zip(rows, configs, strict=True) if config.model.depth < 40} == {(0, 1, 2)}


def test_the_flagship_is_our_recipe_for_budgets_from_20_to_240_minutes() -> None:
    rows = chosen_rows("flagship", "cifar10", (), "cpu")
    assert [config_of(row, "cpu", 0).minutes for row in rows] == [20, 60, 90, 240]
    assert rows[0].cpu_seeds == (0, 1, 2)
    configs = [config_of(row, "cpu", 0) for row in rows]
    # The longer the run, the larger the network and the shifts; nothing else differs but how often it is evaluated.
    assert [(config.model.depth, config.model.width) for config in configs] == [(5, 16), (5, 24), (10, 16), (5, 32)]
    assert [config.loading.padding for config in configs] == [1, 2, 2, 2]
    assert {config.loading.holdout for config in configs} == {0}
    changes = {"minutes": None, "epochs": 1, "depth": 5, "width": 8, "padding": 1, "eval_every": 1}
    assert len({with_settings(config, changes) for config in configs}) == 1
    assert [row.name for row in chosen_rows("flagship", "digits", (), "cpu")] == [row.name for row in rows]
    assert replace(preset("flagship"), preset=None) == configs[1]
