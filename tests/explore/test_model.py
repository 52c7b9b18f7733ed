"""What is explored: runs side by side, a model that cannot be certified, the search behind the slider."""

import re
import shutil
import sys
import threading
from types import SimpleNamespace

import pytest
import torch

from skewconv.certify.predict import predict
from skewconv.cli import main
from skewconv.commands.explore import default_runs
from skewconv.errors import ArgumentError, SkewconvError, UnboundedModuleError
from skewconv.explore import model as module
from skewconv.explore import open_models
from skewconv.explore.server import certified_curve, describe, look, thumbnails
from skewconv.train.run import Run


@pytest.fixture(autouse=True)
def _cache(digits_run, monkeypatch):
    monkeypatch.setenv("SKEWCONV_CACHE", str(digits_run.parent / "cache"))


def prepared(*paths):
    """Models as the page has them in the end, but for certificates of the test images."""
    stop = threading.Event()
    stop.set()
    models = open_models(paths)
    for model in models:
        model.prepare(stop)
    return models


@pytest.fixture
def explored(digits_run):
    return prepared(digits_run)[0]


def test_the_page_has_images_before_the_proofs_and_then_says_why_a_model_cannot_answer(digits_run, monkeypatch):
    proving, proved = threading.Event(), threading.Event()

    def certify(*_):
        proving.set()
        assert proved.wait(60)
        raise UnboundedModuleError("no Lipschitz bound is known for Strange")

    monkeypatch.setattr(module, "Certifier", certify)
    models = open_models([digits_run])
    assert describe(models)["progress"].startswith("reading the images")
    thread = threading.Thread(target=models[0].prepare, args=(threading.Event(),))
    thread.start()
    assert len(thumbnails(models[0], 0, None)["images"]) == 60
    assert proving.wait(60)
    assert describe(models)["progress"].startswith("proving the bounds")
    proved.set()
    (model,) = look(models, b'{"index": 0, "length": 1.5}')["models"]
    assert describe(models)["progress"] == ""
    thread.join()
    assert model["refusal"] == "no Lipschitz bound is known for Strange"
    assert model["radius"] is None
    assert model["radius_by_rival"] == {}
    assert model["attack"]["distance"] > 0


def test_weights_that_cannot_be_read_are_named_on_the_page(digits_run, monkeypatch):
    def damaged(run):
        raise SkewconvError("the checkpoint is damaged")

    monkeypatch.setattr(Run, "model", property(damaged))
    with pytest.raises(SkewconvError, match="the checkpoint is damaged"):
        look(prepared(digits_run), b'{"index": 0, "length": 0}')


def test_the_page_says_where_missing_images_were(digits_run, monkeypatch):
    def moved(run):
        raise SkewconvError("the images were in /old: move the folder back")

    monkeypatch.setattr(Run, "dataset", moved)
    models = prepared(digits_run)
    assert thumbnails(models[0], 0, None)["missing"] == "No test images: the images were in /old: move the folder back"
    with pytest.raises(ArgumentError, match="there are 0 test images"):
        look(models, b'{"index": 0, "length": 0}')


def test_two_models_answer_side_by_side_if_they_take_the_same_images(digits_run, monkeypatch):
    one, other = look(prepared(digits_run, digits_run), b'{"index": 3, "length": 0.1}')["models"]
    assert one["name"] != other["name"]
    assert one["radius"] == other["radius"]
    first = module.open_run(digits_run)
    larger = SimpleNamespace(name=str(digits_run), input_shape=(3, 32, 32), data=first.data)
    opened = iter([first, larger])
    monkeypatch.setattr(module, "open_run", lambda path: next(opened))
    with pytest.raises(ArgumentError, match="must agree in their images"):
        open_models([digits_run, digits_run])


def test_the_survey_certifies_the_set_and_draws_its_curve(explored):
    assert explored.certificates is None
    assert look([explored], b'{"index": 0, "length": 0}')["models"][0]["place"] is None
    assert certified_curve([explored])["awaited"] == [explored.name]
    explored.prepare(threading.Event())
    assert len(explored.certificates) == 359
    found = certified_curve([explored])
    assert found["awaited"] == []
    assert found["svg"].startswith("<svg")
    (model,) = look([explored], b'{"index": 0, "length": 0.1}')["models"]
    radii = explored.certificates.radius.tolist()
    assert model["certified_accuracy"]["share"] == sum(radius >= 0.1 for radius in radii) / 359
    # Of 359 predictions, right or wrong, on average as many are larger as smaller.
    places = [look([explored], b'{"index": %d, "length": 0}' % n)["models"][0]["place"] for n in range(0, 359, 7)]
    assert all(re.fullmatch(r"(smaller|larger) than (\d+%|all) of those of the test images", each) for each in places)
    assert 0.3 < sum(each.startswith("smaller") for each in places) / len(places) < 0.7


def test_the_search_stays_inside_the_ball_and_remembers_the_shortest_change(explored):
    image = torch.from_numpy(explored.data.test.images[2].copy()).float() / 255
    found = predict(explored.certifier, image[None])
    radius, prediction = float(found.radii[0]), int(found.classes[0])
    moved, logits, nearest = explored.search(image, prediction, 0.99 * radius)
    assert int(logits.argmax()) == prediction
    assert float((moved - image).norm()) <= 0.99 * radius
    assert nearest is None
    moved, logits, nearest = explored.search(image, prediction, 8 * radius)
    assert int(logits.argmax()) != prediction
    assert radius < nearest <= float((moved - image).norm()) <= 8 * radius
    assert 0 <= float(moved.min()) <= float(moved.max()) <= 1
    assert explored.search(image, prediction, 0.5 * radius)[2] == nearest
    for number in range(70):
        explored.search(torch.full(explored.shape, number / 70), 0, 0.0)
    assert len(explored.search.trails) == 64


def test_without_a_run_that_of_the_digits_is_taken(digits_run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # The shipped network is of no use without images, which must not be downloaded unasked.
    monkeypatch.setenv("SKEWCONV_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("skewconv.train.data.cifar.build", lambda *_: pytest.fail("it would be downloaded"))
    shutil.copytree(digits_run, tmp_path / "runs" / "digits-lipconvnet-5-soc")
    assert [str(path) for path in default_runs()] == ["runs/digits-lipconvnet-5-soc"]


def test_ports_that_are_none_and_missing_packages_are_refused_before_any_work(digits_run, capsys, monkeypatch):
    monkeypatch.setattr(module, "open_run", lambda path: pytest.fail("a run is opened"))
    for port in ("-1", "80000"):
        assert main(["explore", str(digits_run), "--port", port]) == 2
        assert f"port {port} of 127.0.0.1 cannot be used" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "jinja2", None)
    assert main(["explore", str(digits_run)]) == 2
    assert "jinja2 is needed here" in capsys.readouterr().err
