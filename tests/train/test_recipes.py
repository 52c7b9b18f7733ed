"""Configs in files and in the folders of runs, and presets: one for each row of the paper's tables; each builds."""

import json
from dataclasses import replace

import pytest
import torch

from skewconv import cli
from skewconv.errors import ArgumentError
from skewconv.models import LipConvnet
from skewconv.nn import BCOP2d, Normalize, SOC2d
from skewconv.train.checkpoint import DataFacts, build_model
from skewconv.train.environment import FILE, results_folder, write_config
from skewconv.train.presets import PAPER, PRESETS, preset, read_config, recipe
from skewconv.train.step import lr_factor

KEPT = """
data = "cifar10"
minutes = 5

[model]
width = 8

[optim]
schedule = "steps"
milestones = [0.5]
"""


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> dict:
    assert cli.main(["train", *words, "--print-config"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("config", [recipe("digits"), preset(sorted(PRESETS)[0])], ids=["digits", "a preset"])
def test_what_a_run_leaves_is_read_back_as_it_was(tmp_path, config):
    write_config(tmp_path, config)
    assert read_config(tmp_path) == config
    assert read_config(tmp_path / "config.json") == config


def test_what_a_toml_file_leaves_out_is_as_in_the_recipe(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(KEPT)
    config = read_config(file)
    assert (config.data, config.minutes, config.epochs, config.model.width) == ("cifar10", 5.0, None, 8)
    assert config.optim.milestones == (0.5,)
    assert config.regime == recipe("cifar10").regime


def test_flags_change_the_config_of_a_file_and_what_is_printed_can_be_read(tmp_path, capsys):
    file = tmp_path / "mine.toml"
    file.write_text(KEPT)
    found = printed(capsys, "--config", str(file), "--width", "12", "--epochs", "3")
    assert (found["model"]["width"], found["data"], found["epochs"], found["minutes"]) == (12, "cifar10", 3, None)
    again = tmp_path / "again.json"
    again.write_text(json.dumps(found))
    assert printed(capsys, "--config", str(again)) == found


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.toml", "width = ", "is not TOML"),
        ("a.json", "{", "is not JSON"),
        ("a.json", "[]", "holds no config"),
        ("a.toml", "[model]\nwidht = 8", "the table 'model' of a config has no 'widht': did you mean 'width'"),
        ("a.toml", "[model]\nwidth = 7", "width"),
    ],
)
def test_a_bad_file_is_refused_by_its_name(tmp_path, name, text, words):
    (tmp_path / name).write_text(text)
    with pytest.raises(ArgumentError, match=words) as caught:
        read_config(tmp_path / name)
    assert name in str(caught.value)


def test_a_missing_file_and_two_origins_are_refused(tmp_path, capsys):
    assert cli.main(["train", "--config", str(tmp_path / "none.toml"), "--print-config"]) == 2
    assert "cannot be read" in capsys.readouterr().err
    assert cli.main(["train", "--config", "x.toml", "--preset", sorted(PRESETS)[0], "--print-config"]) == 2
    assert "choose one" in capsys.readouterr().err


def test_results_go_to_the_folder_of_the_run_or_to_one_that_is_made(tmp_path):
    assert results_folder(tmp_path / FILE, None) == tmp_path
    assert results_folder(tmp_path / FILE, tmp_path / "a" / "b").is_dir()


CIFAR = DataFacts("cifar10", "", tuple("0123456789"), (3, 32, 32), (0.49, 0.48, 0.45), (0.247, 0.2435, 0.2616), 50, 10)


def test_the_presets_are_the_rows_of_tables_2_3_and_4():
    depths, data = range(5, 45, 5), ("cifar10", "cifar100")
    table_2 = {f"lipconvnet-{depth}/{conv}/{d}" for depth in depths for conv in ("soc", "bcop") for d in data}
    table_3 = {f"resnet-{n}/{conv}/{d}" for n in (18, 34, 50) for conv in ("standard", "bcop", "soc") for d in data}
    table_3 -= {f"resnet-50/bcop/{d}" for d in data}  # out of memory in the paper
    table_4 = {f"resnet-18/{conv}/{d}/adversarial" for conv in ("standard", "bcop", "soc") for d in data}
    assert set(PRESETS) == set(PAPER) == table_2 | table_3 | table_4
    assert len(PRESETS) == 32 + 16 + 6


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_has_the_recipe_of_paper_and_code_and_the_model_of_its_name(name):
    config, (model, conv, data, *rest) = PRESETS[name], name.split("/")
    optim = config.optim
    assert (config.preset, config.data, config.epochs, config.model.conv) == (name, data, 200, conv)
    assert (optim.optimizer, optim.lr, optim.momentum) == ("sgd", 0.1, 0.9)
    assert [lr_factor(optim, epoch / 200) for epoch in (0, 49.9, 50, 149.9)] == pytest.approx([1, 1, 0.1, 0.1])
    assert lr_factor(optim, 150 / 200) == pytest.approx(0.01)
    assert optim.weight_decay == (0 if conv == "bcop" else 1e-4)
    if conv == "soc":
        assert (config.model.series, config.model.train_degree, config.model.eval_degree) == ("taylor", 5, 11)
    assert (config.loading.batch_size, config.loading.keep_last) == (128, True)
    if model.startswith("lipconvnet"):
        assert config.regime.regime == "provable"
        assert f"lipconvnet-{config.model.depth}" == model
        assert config.model.width == 32
    else:
        assert config.regime.regime == ("adversarial" if rest else "standard")
        assert (config.model.arch, config.model.width) == (model, 64)
    regime = config.regime
    assert (regime.epsilon, regime.pgd_step, regime.pgd_steps, regime.pgd_restarts) == (8 / 255, 2 / 255, 50, 10)


@pytest.mark.parametrize("name", [name for name in PRESETS if "cifar100" not in name])
def test_every_preset_builds(name):
    config = PRESETS[name]
    small = replace(config, model=replace(config.model, width=2))
    model = build_model(small, CIFAR)
    kinds = {"soc": SOC2d, "bcop": BCOP2d, "standard": torch.nn.Conv2d}
    layers = [m for m in model.modules() if isinstance(m, kinds[config.model.conv])]
    if isinstance(model, LipConvnet):
        # The head is one more, as in the authors' code.
        assert len(layers) == config.model.depth + 1
        assert isinstance(model.head[0], kinds[config.model.conv])
    else:
        # A stem, the blocks' convolutions, and a shortcut in the first block of each stage whose shape changes.
        assert len(layers) == {"resnet-18": 17 + 3, "resnet-34": 33 + 3, "resnet-50": 49 + 4}[config.model.arch]


def test_one_deviation_serves_all_channels():
    model = build_model(recipe("cifar10"), CIFAR)
    normalize = next(m for m in model.modules() if isinstance(m, Normalize))
    assert float(normalize.std) == pytest.approx(0.2507, abs=5e-5)


def test_an_unknown_preset_is_refused_with_its_neighbours():
    with pytest.raises(ArgumentError, match="lipconvnet-20/soc/cifar10"):
        preset("lipconvnet-20/soc/cifar")


def test_images_that_do_not_fit_the_network_are_refused():
    with pytest.raises(ArgumentError, match="20 x 20: a ResNet takes"):
        build_model(preset("resnet-18/soc/cifar10"), replace(CIFAR, image_shape=(3, 20, 20)))
