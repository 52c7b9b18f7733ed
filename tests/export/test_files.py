"""Exported files run elsewhere, and say what the network says."""

import hashlib

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx.reference import ReferenceEvaluator
from PIL import Image, ImageOps

from skewconv.certify import Certifier, weights_hash
from skewconv.errors import ArgumentError, ShapeError
from skewconv.export import TARGETS, export, open_file
from skewconv.export.write import DEFAULT_TOL
from skewconv.models import LipConvnet, resnet18
from tests.export.networks import LIPCONVNETS, SHAPE, exported, images, network

BICUBIC = Image.Resampling.BICUBIC
CASES = [(name, 5) for name in LIPCONVNETS] + [("soc-zeros", 20), ("soc-circular", 20), ("resnet18", 18)]


@pytest.fixture(scope="module")
def onnx_files(tmp_path_factory):
    """Every case, exported once: (name, depth) -> path."""
    folder = tmp_path_factory.mktemp("onnx")
    made = {}
    for name, depth in CASES:
        (folder / str(depth)).mkdir(exist_ok=True)
        made[name, depth] = exported("onnx", name, folder / str(depth), depth, radius=name != "resnet18").files[0]
    return made


def test_onnx_files_give_the_networks_logits_and_the_reference_evaluator_agrees(onnx_files):
    for (name, depth), path in onnx_files.items():
        with torch.no_grad():
            wanted = network(name, depth)(images())
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        found = session.run(None, {"images": images().numpy()})
        reference = ReferenceEvaluator(onnx.load(path)).run(None, {"images": images().numpy()})
        # Activations have norms of about ten.
        np.testing.assert_allclose(found[0], wanted, atol=20 * DEFAULT_TOL, err_msg=f"{name} {depth}")
        for ours, theirs in zip(found, reference, strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-4, err_msg=f"{name} {depth}")


def test_onnx_files_hold_standard_operators_only_and_no_transforms(onnx_files):
    for path in onnx_files.values():
        model = onnx.load(path)
        assert [(each.domain, each.version) for each in model.opset_import] == [("", 17)]
        assert {node.domain for node in model.graph.node} == {""}
        assert not {node.op_type for node in model.graph.node} & {"DFT", "STFT", "If", "Loop", "Scan"}
        kinds = {tensor.data_type for tensor in model.graph.initializer}
        assert kinds <= {onnx.TensorProto.FLOAT, onnx.TensorProto.INT64}
        (given,) = model.graph.input
        assert [axis.dim_param or axis.dim_value for axis in given.type.tensor_type.shape.dim] == ["batch", *SHAPE]


@pytest.mark.parametrize("kind", TARGETS)
def test_files_run_where_this_library_is_unknown(kind, files_for_pytorch, onnx_files, run_as_stranger):
    path = onnx_files["soc-circular", 5] if kind == "onnx" else files_for_pytorch[kind].files[-1]
    logits, radius = run_as_stranger(kind, path, images())
    sound = Certifier(network("soc-circular"), SHAPE)(images(), logits.argmax(1)).radii
    # The file's network was frozen to a tolerance, and has its own bounds.
    torch.testing.assert_close(radius.double(), sound, atol=0.02, rtol=0.02)
    with torch.no_grad():
        torch.testing.assert_close(logits, network("soc-circular")(images()), atol=0.02, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("depth", [5, 20])
@pytest.mark.parametrize("name", [*LIPCONVNETS, "resnet18"])
def test_networks_for_images_of_cifar_run_where_this_library_is_unknown(name, depth, tmp_path, run_as_stranger):
    torch.manual_seed(0)
    resnet, shape = name == "resnet18", (3, 32, 32)
    conv = "standard" if depth == 5 else "soc"
    model = resnet18(width=16, conv=conv) if resnet else LipConvnet(depth, width=8, **LIPCONVNETS[name])
    inputs = torch.rand(24, *shape)
    model, path = model.eval().requires_grad_(False), tmp_path / "net.onnx"
    made = export(TARGETS["onnx"], model, path, shape, images=inputs, radius=not resnet)
    logits, *radii = run_as_stranger("onnx", made.files[0], inputs)
    # Activations have norms of some tens.
    torch.testing.assert_close(logits, model(inputs), atol=0.1, rtol=0.01)
    assert all(float(radius.min()) >= 0 and float(radius.max()) > 1 / 255 for radius in radii)


def test_metadata_says_what_the_file_is(onnx_files, files_for_pytorch):
    for file in (onnx_files["soc-circular", 5], *(made.files[-1] for made in files_for_pytorch.values())):
        facts = open_file(file).metadata
        assert facts["labels"] == list("0123456789")
        assert facts["input_range"] == [0.0, 1.0]
        assert facts["input_shape"] == list(SHAPE)
        assert facts["tolerance"] == DEFAULT_TOL
        assert facts["float32_slack"]["logits"] > 0
        assert 3.2 < facts["lipschitz_upper_bound"] <= 1.01 / 0.3
        assert len(facts["weights_sha256"]) == 64
        assert {"skewconv", "python", "torch"} <= set(facts["versions"])


def test_a_file_with_its_preprocessing_takes_pictures_and_gives_the_radii_of_their_pixels(onnx_files, tmp_path):
    file = open_file(exported("onnx", "soc-zeros", tmp_path, preprocess=True).files[0])
    pictures = torch.randint(256, (5, 13, 30, 1), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    fitted = [ImageOps.fit(Image.fromarray(each[..., 0].numpy()), (8, 8), BICUBIC) for each in pictures]
    pixels = torch.from_numpy(np.stack([np.asarray(each, np.float32) for each in fitted]))[:, None] / 255
    (logits, radii), (wanted, sound) = file(pictures), open_file(onnx_files["soc-zeros", 5])(pixels)
    torch.testing.assert_close(logits, wanted, atol=1e-6, rtol=0)
    torch.testing.assert_close(radii, sound, atol=1e-4, rtol=0)
    assert float(radii.min()) > 0
    for wrong in (pixels, pictures[..., 0], pictures.repeat(1, 1, 1, 3)):
        with pytest.raises(ShapeError, match=r"takes pictures \(batch, height, width, 1\), uint8, of any size, got"):
            file(wrong)
    with pytest.raises(ArgumentError, match="--preprocess is for --to onnx"):
        exported("vanilla", "soc-zeros", tmp_path, preprocess=True)


def test_the_model_card_has_the_facts_of_each_file_and_keeps_what_else_it_says(tmp_path):
    card = tmp_path / "MODEL.md"
    card.write_bytes(b"Bought in May, \xe9.\n")
    figures = {"clean": 0.75, "certified": {"36/255": 0.5}}
    for name in ("soc-zeros", "bcop", "soc-zeros"):
        made = exported("onnx", name, tmp_path, accuracy=figures)
    text = card.read_bytes().decode(errors="replace")
    assert card.read_bytes().startswith(b"Bought in May, \xe9.\n")
    assert [text.count(f"# {name}.onnx\n") for name in ("soc-zeros", "bcop")] == [1, 1]
    facts = open_file(made.files[0]).metadata
    assert facts["weights_sha256"] == weights_hash(network("soc-zeros"))
    assert facts["accuracy_of_the_trained_network"] == figures
    for fact in (facts["radius_rule"], facts["preprocessing"], facts["weights_sha256"], "36/255: 0.5", "0, 1, 2, 3"):
        assert fact in text
    assert hashlib.sha256(made.files[0].read_bytes()).hexdigest() in text


def test_radii_of_images_in_float64_are_less_by_what_rounding_them_moves(onnx_files):
    file = open_file(onnx_files["soc-zeros", 5])
    rounded = images()
    given = (rounded.double() * (1 + 1e-8)).clamp(0, 1)
    assert torch.equal(given.float(), rounded)
    (_, radii), (_, nearer) = file(rounded), file(given)
    moved = (given - rounded.double()).flatten(1).norm(dim=1)
    assert bool((moved > 0).all())
    assert bool((nearer.double() <= (radii.double() - moved * (1 - 1e-12)).clamp_min(0)).all())
    assert bool((nearer.double() >= radii.double() - moved - 1e-6).all())


def test_a_budget_decides_the_forms_and_half_the_bytes_are_of_a_function_that_is_certified_itself(tmp_path):
    whole = exported("onnx", "soc-zeros", tmp_path, max_mb=10)
    size = whole.files[0].stat().st_size
    half = exported("onnx", "soc-zeros", tmp_path, weights="float16", max_mb=10)
    assert half.files[0].stat().st_size < 0.65 * size
    # The rounded matrices are no longer orthogonal, and the bound says so.
    assert half.metadata["lipschitz_upper_bound"] != whole.metadata["lipschitz_upper_bound"]
    kinds = {tensor.data_type for tensor in onnx.load(half.files[0]).graph.initializer}
    assert onnx.TensorProto.FLOAT16 in kinds
    tight = exported("onnx", "soc-zeros", tmp_path, max_mb=0.098)
    assert tight.files[0].stat().st_size <= 98_000
    forms = [[row.form.partition(" ")[0] for row in found.rows] for found in (whole, tight)]
    assert "chain" in forms[1]
    assert "chain" not in forms[0]
    assert sum(row.multiply_adds for row in tight.rows) > sum(row.multiply_adds for row in whole.rows)


def test_a_network_of_matrices_alone_has_a_slack_that_is_proven(tmp_path):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10)).eval()
    found = export(TARGETS["onnx"], model, tmp_path / "net.onnx", SHAPE, images=images())
    slack = found.metadata["float32_slack"]
    assert slack["kind"] == "proven"
    assert slack["largest_difference"] < slack["logits"] + 8 * slack["per_unit_of_input_norm"]
