"""Random outputs that are listed are compared in distribution: right ones pass, and wrong ones are told."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import onnx
import pytest
import tensorflow as tf

from modelyard.artifact import SignatureFunction, TensorSpec, read_manifest
from modelyard.errors import ConfigurationError, VerificationError
from modelyard.export import ExportOptions, ExportReport, export
from modelyard.export.cli import make_parser
from modelyard.export.verification import take_draws
from modelyard.export.verification._distribution import DRAWS, EXAMPLES, SIGNIFICANCE, compare_draws
from modelyard.serving import LoadOptions, load_servable

OPTIONS = ExportOptions(min_examples=16, latency_calls=10, measure_seconds=0.5, runtimes=())
X = TensorSpec(name="x", dtype="float32", shape=(-1, 2))


class Sampling(keras.layers.Layer):
    """The layer of Keras's own example of a variational autoencoder."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.seed_generator = keras.random.SeedGenerator(1337)

    def call(self, inputs: Any) -> Any:
        mean, log_var = inputs
        noise = keras.random.normal(tf.shape(mean), seed=self.seed_generator)
        return mean + keras.ops.exp(0.5 * log_var) * noise


@pytest.fixture(scope="module")
def vae(tmp_path_factory: pytest.TempPathFactory) -> ExportReport:
    keras.utils.set_random_seed(0)
    x = keras.Input((6,), name="x")
    hidden = keras.layers.Dense(8, activation="tanh")(x)
    mean, log_var = keras.layers.Dense(3)(hidden), keras.layers.Dense(3)(hidden)
    z = Sampling()([mean, log_var])
    image = keras.layers.Dense(6, activation="sigmoid")(z)
    model = keras.Model(x, {"mean": mean, "z": z, "image": image})
    data = {"x": np.random.default_rng(0).normal(size=(64, 6)).astype(np.float32)}
    options = ExportOptions(
        min_examples=16, latency_calls=10, measure_seconds=0.5, runtimes=(), stochastic=("z", "image")
    )
    return export(model, tmp_path_factory.mktemp("vae") / "vae", data=data, options=options)


def test_a_variational_autoencoder_is_published(vae: ExportReport) -> None:
    manifest = read_manifest(vae.version.path)
    assert set(manifest.formats) == {"saved_model", "onnx", "tflite"}
    for entry in manifest.formats.values():
        found = entry.verify.stochastic
        assert [(each.signature, each.output) for each in found] == [
            ("serving_default", "image"),
            ("serving_default", "z"),
        ]
        assert all(each.p_value >= SIGNIFICANCE == each.significance for each in found)
        assert all((each.examples, each.draws) == (EXAMPLES, DRAWS) for each in found)
        # What is not random is compared by value all the same.
        assert entry.verify.max_abs_error < 1e-5
    page = vae.report_html.read_text("utf-8")
    assert "Random outputs" in page and "Kolmogorov-Smirnov" in page


@pytest.mark.parametrize("runtime", ["onnxruntime", "litert", "tensorflow"])
def test_every_row_and_every_call_is_drawn_anew(vae: ExportReport, runtime: Any) -> None:
    """As it is served."""
    servable = load_servable("vae", 1, vae.version.path, LoadOptions(runtime=runtime))
    signature = servable.signatures["serving_default"]
    inputs = {"x": np.zeros((5, 6), np.float32)}
    answers = [servable.run(signature, inputs, ["mean", "z"]) for _ in range(3)]
    assert len(np.unique(np.concatenate([each["z"] for each in answers]), axis=0)) == 15
    np.testing.assert_allclose(answers[0]["mean"], answers[1]["mean"], atol=1e-6)


def test_every_server_draws_its_own_numbers(vae: ExportReport) -> None:
    """tf2onnx gives every random operator the seed 0, with which each session draws the same."""
    path = vae.version.path / "onnx" / "serving_default.onnx"
    random = [node for node in onnx.load(path).graph.node if node.op_type.startswith("Random")]
    assert random and all(attribute.name != "seed" for node in random for attribute in node.attribute)
    program = (
        "import sys, numpy, onnxruntime; session = onnxruntime.InferenceSession(sys.argv[1]); "
        "print(session.run(['z'], {'x': numpy.zeros((1, 6), numpy.float32)}))"
    )
    # onnxruntime takes its own seed once for each process.
    first, second = (subprocess.check_output([sys.executable, "-c", program, path]) for _ in range(2))
    assert first != second


def publish(folder: Path, function: Any, *stochastic: str, root: Any = None, **options: Any) -> ExportReport:
    signatures = {"serving_default": SignatureFunction(inputs=(X,), function=function)}
    given = ExportOptions(
        min_examples=16, latency_calls=10, measure_seconds=0.5, runtimes=(), stochastic=stochastic, **options
    )
    data = {"x": np.random.default_rng(1).normal(size=(64, 2)).astype(np.float32)}
    return export(root or tf.Module(), folder, signatures=signatures, data=data, options=given)


def test_draws_of_every_kind(tmp_path: Path) -> None:
    module = tf.Module()
    module.generator = tf.random.Generator.from_seed(1)
    seeds = keras.random.SeedGenerator(3)
    module.state = seeds.state.value

    def function(x: Any) -> dict[str, Any]:
        return {
            "y": x * 2.0,
            "normal": x + tf.random.normal(tf.shape(x)),
            "uniform": x * module.generator.uniform(tf.shape(x)),
            "dropped": keras.random.dropout(x, 0.25, seed=seeds),
            # Of a seed that is none of a variable: always the same.
            "fixed": x + tf.random.stateless_normal([2], seed=[1, 2]),
        }

    listed = ("normal", "uniform", "dropped")
    report = publish(tmp_path / "m", function, *listed, root=module, formats=("saved_model", "onnx"))
    for check in report.checks.values():
        assert {each.output for each in check.report.stochastic} == set(listed)


def test_a_seed_begins_no_stream_anew(tmp_path: Path) -> None:
    """LiteRT began a seeded one again with every other batch size: all examples had the same noise."""
    keras.utils.set_random_seed(0)
    options = {"formats": ("onnx", "tflite")}
    report = publish(tmp_path / "m", lambda x: {"y": x + tf.random.normal(tf.shape(x))}, "y", **options)
    assert all(check.report.stochastic for check in report.checks.values())


@pytest.mark.parametrize(
    ("listed", "message"),
    [
        ((), r"Output 'sample' of signature 'serving_default'.*--stochastic sample"),
        (("sample", "mean"), r"'mean' of signature 'serving_default' is listed in --stochastic.* gives the same"),
        (("sample", "nothing"), r"lists nothing; expected some of the outputs mean, sample"),
    ],
)
def test_what_must_be_listed_and_what_must_not(tmp_path: Path, listed: tuple[str, ...], message: str) -> None:
    with pytest.raises((VerificationError, ConfigurationError), match=message):
        publish(
            tmp_path / "m",
            lambda x: {"mean": x, "sample": x + tf.random.normal(tf.shape(x))},
            *listed,
            formats=("saved_model",),
        )
    assert not (tmp_path / "m").exists()


def draw(change: Any = None, *, seed: int = 0) -> npt.NDArray[np.float64]:
    """Normal noise around the mean of each example, as :func:`take_draws` gives it."""
    rng = np.random.default_rng(seed)
    inputs = {"x": np.linspace(-3, 3, 64).astype(np.float32)[:, np.newaxis]}

    def call(batch: Any) -> dict[str, Any]:
        noise = rng.normal(size=(len(batch["x"]), 4))
        return {"y": (batch["x"] + 0.3 * noise if change is None else change(batch["x"], noise)).astype(np.float32)}

    return take_draws(call, inputs, ("y",), batch_size=32)["y"]


RIGHT = draw()


def test_the_right_distribution_passes() -> None:
    """Most of the time: of twenty comparisons of one distribution with itself none is refused."""
    values = [compare_draws("s", "y", RIGHT, draw(seed=seed), slack=1e-6).p_value for seed in range(1, 21)]
    assert min(values) >= SIGNIFICANCE
    assert RIGHT.shape == (EXAMPLES, DRAWS, 5)


@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("twice the scale", lambda x, noise: x + 0.6 * noise),
        ("a fifth more scale", lambda x, noise: x + 0.36 * noise),
        ("a shift", lambda x, noise: x + 0.3 * noise + 0.06),
        ("a mean that is another one for half of the examples", lambda x, noise: x + 0.3 * noise + 0.1 * np.sign(x)),
        ("another shape", lambda x, noise: x + 0.3 * np.sqrt(3) * (2 * (np.abs(noise) % 1) - 1)),
        ("one number for all elements", lambda x, noise: x + 0.3 * noise[:, :1].repeat(4, 1)),
    ],
)
def test_a_wrong_distribution_is_told(what: str, change: Any) -> None:
    with pytest.raises(VerificationError, match=r"random output 'y' of signature 's' has another distribution.* p = "):
        compare_draws("s", "y", RIGHT, draw(change, seed=7), slack=1e-6)


@pytest.mark.parametrize(
    "change", [lambda x, _: x + np.zeros((1, 4)), lambda x, noise: x + 0.3 * noise[:1]], ids=["constant", "every row"]
)
def test_repetition_is_told(change: Any) -> None:
    with pytest.raises(VerificationError, match=r"repeats itself: \d+ different answers in 8192 draws"):
        compare_draws("s", "y", RIGHT, draw(change, seed=7), slack=1e-6)


def test_rounding_is_no_other_distribution() -> None:
    rng = np.random.default_rng(0)
    kept = [
        np.repeat(np.arange(1.0, 17.0)[:, None, None], DRAWS, 1) * (rng.random((16, DRAWS, 1)) < 0.75) for _ in "ab"
    ]
    compare_draws("s", "y", kept[0], kept[1] * (1 + 1e-7), slack=1e-4)
    with pytest.raises(VerificationError):
        compare_draws("s", "y", kept[0], kept[1] * (1 + 1e-3), slack=1e-4)


def test_words_are_drawn_too() -> None:
    def sampler(seed: int, chances: list[float]) -> npt.NDArray[np.float64]:
        rng = np.random.default_rng(seed)
        words = np.array([b"yes", b"no", b"perhaps"], object)

        def call(batch: Any) -> dict[str, Any]:
            return {"word": words[rng.choice(3, len(batch["x"]), p=chances)]}

        return take_draws(call, {"x": np.arange(20)}, ("word",), batch_size=32)["word"]

    right = sampler(0, [0.5, 0.3, 0.2])
    compare_draws("s", "word", right, sampler(1, [0.5, 0.3, 0.2]), slack=0.0)
    with pytest.raises(VerificationError, match="another distribution"):
        compare_draws("s", "word", right, sampler(1, [0.6, 0.2, 0.2]), slack=0.0)


def test_an_output_without_rows_cannot_be_compared() -> None:
    with pytest.raises(VerificationError, match=r"has the shape \[3\] for 32 examples; only outputs with a row"):
        take_draws(lambda _: {"y": np.zeros(3)}, {"x": np.arange(4)}, ("y",), batch_size=32)
    sizes = iter(range(1, 1000))
    with pytest.raises(VerificationError, match="have other shapes in other calls"):
        take_draws(
            lambda batch: {"y": np.array([b"x"] * len(batch["x"]) * next(sizes), object).reshape(len(batch["x"]), -1)},
            {"x": np.arange(4)},
            ("y",),
            batch_size=32,
        )


def test_the_p_values_are_those_of_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    from modelyard.export.verification._distribution import _combined, _distance, _p_value

    rng = np.random.default_rng(0)
    for shift in (0.0, 0.1, 0.3):
        a, b = rng.normal(size=512), rng.normal(size=512) + shift
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = stats.ks_2samp(a, b, method="asymp")
        distance = _distance(a, b, np.zeros(512))
        assert distance == pytest.approx(expected.statistic)
        assert _p_value(distance, 512) == pytest.approx(stats.kstwobign.sf(distance * 16), abs=1e-4)
    some = [0.5, 0.01, 0.9, 0.2]
    assert _combined(some) == pytest.approx(stats.combine_pvalues(some).pvalue)


def test_the_flag() -> None:
    arguments = make_parser().parse_args(["m", "--repository", "r", "--stochastic", "a,b", "--stochastic", "c"])
    assert arguments.stochastic == ["a,b", "c"]
