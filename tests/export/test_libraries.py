"""export(): models of other Python libraries, held to their own answers; and files held to answers that are given."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from skl2onnx import to_onnx
from sklearn.cluster import DBSCAN, KMeans
from sklearn.decomposition import PCA
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from modelyard.artifact import read_manifest
from modelyard.errors import ConfigurationError, ConversionError, MissingDependencyError, VerificationError
from modelyard.export import ExportOptions, export
from modelyard.export.cli import export_here as main
from modelyard.serving import LoadOptions, load_servable

OPTIONS = ExportOptions(min_examples=16, latency_calls=10, measure_seconds=0.2, runtimes=(), isolate=False)
X = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
SUM = X.sum(axis=1)
NAMES = np.where(X[:, 0] > 0, "right", "left")


def served(path: Path, **inputs: Any) -> dict[str, Any]:
    servable = load_servable("m", 1, path, LoadOptions())
    signature = servable.signatures["serving_default"]
    try:
        return dict(servable.run(signature, inputs, [spec.name for spec in signature.outputs]))
    finally:
        servable.close()


@pytest.mark.parametrize(
    ("model", "outputs"),
    [
        (make_pipeline(StandardScaler(), LogisticRegression()).fit(X, NAMES), ["label", "probabilities"]),
        (LinearRegression().fit(X, SUM), ["variable"]),
        (PCA(2).fit(X), ["variable"]),
        (KMeans(3, n_init=1).fit(X), ["label", "scores"]),
    ],
    ids=["classifier", "regressor", "transformer", "clusters"],
)
def test_estimators(model: Any, outputs: list[str], tmp_path: Path) -> None:
    report = export(model, tmp_path / "m", data=X.astype(np.float64), options=OPTIONS)
    assert "examples, with the answers of sklearn" in str(report)
    assert set(report.manifest.formats) == {"onnx"}
    assert report.manifest.source.config["source"] == f"sklearn: {type(model).__name__}"
    answers = served(report.version.path, X=X[:5])
    assert list(answers) == outputs
    if outputs[0] == "label":
        assert [getattr(each, "decode", lambda each=each: each)() for each in answers["label"]] == [
            *model.predict(X[:5])
        ]
    if "probabilities" in outputs:
        np.testing.assert_allclose(answers["probabilities"], model.predict_proba(X[:5]), atol=1e-5)


def test_estimators_that_cannot_be_exported(tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match="DBSCAN cannot be exported by sklearn"):
        export(DBSCAN().fit(X), tmp_path / "m", data=X, options=OPTIONS)
    line = LinearRegression().fit(X, SUM)
    with pytest.raises(ConfigurationError, match="sklearn has one signature, as it is"):
        export(line, tmp_path / "m", data=X, signatures=["a"], options=OPTIONS)
    with pytest.raises(ConfigurationError, match=r"Expected answers \(--expected\) are for files"):
        export(line, tmp_path / "m", data=X, expected=SUM, options=OPTIONS)


def test_a_missing_exporter_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "skl2onnx", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'modelyard\[sklearn\]'"):
        export(LinearRegression().fit(X, SUM), tmp_path / "m", data=X, options=OPTIONS)


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("line") / "line.onnx"
    path.write_bytes(to_onnx(LinearRegression().fit(X, SUM), X[:1]).SerializeToString())
    return path


def test_expected_answers(line: Path, tmp_path: Path) -> None:
    report = export(line, tmp_path / "m", data=X, expected=SUM.astype(np.float64), options=OPTIONS)
    assert 0 < report.manifest.formats["onnx"].verify.max_abs_error <= 1e-5
    with pytest.raises(VerificationError, match="output 'variable' has an absolute error of 0.01"):
        export(line, tmp_path / "m", data=X, expected={"variable": SUM + 0.01}, options=OPTIONS)
    for expected, message in (
        ({"variable": SUM[:5]}, r"'variable' of signature 'serving_default' are float32 \[5\]; .* float32 \[64, 1\]"),
        ({"variable": NAMES}, r"are object \[64\]"),
        (
            {"serving_default": {"sum": SUM}},
            r"has \['serving_default/sum'\]; expected arrays by name, some of 'variable'",
        ),
    ):
        with pytest.raises(ConfigurationError, match=message):
            export(line, tmp_path / "m", data=X, expected=expected, options=OPTIONS)
    assert [path.name for path in (tmp_path / "m").iterdir()] == ["1"]


def test_expected_answers_of_examples_with_several_shapes(tmp_path: Path) -> None:
    import onnx.helper as make

    kinds = [make.make_tensor_value_info(name, 1, ["batch", *axes]) for name, axes in (("x", ["length"]), ("y", []))]
    nodes = [make.make_node("ReduceSum", ["x", "axes"], ["y"], keepdims=0)]
    axes = make.make_tensor("axes", 7, [1], [1])
    graph = make.make_graph(nodes, "sum", kinds[:1], kinds[1:], [axes])
    path = tmp_path / "sum.onnx"
    path.write_bytes(
        make.make_model(graph, opset_imports=[make.make_opsetid("", 17)], ir_version=8).SerializeToString()
    )
    ragged = [row[: 3 + index % 2] for index, row in enumerate(X)]
    with pytest.raises(ConfigurationError, match="has expected answers"):
        export(path, tmp_path / "m", data={"x": ragged}, expected=SUM[:32], options=OPTIONS)


MODELS = """
from sklearn.linear_model import LinearRegression
import numpy as np
def line():
    x = np.load("x.npy")
    return LinearRegression().fit(x, x.sum(axis=1))
def none(): return 5
def module():
    import torch
    return torch.nn.Linear(4, 1)
"""


def test_the_command_line(
    line: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "made_models.py").write_text(MODELS)
    np.save("x.npy", np.repeat(X, 4, axis=0))
    np.savez("y.npz", variable=np.repeat(SUM, 4))
    common = ["--data", "x.npy", "--repository", "models", "--measure-seconds", "0.2"]
    assert main(["--from", "sklearn", "made_models:line", *common]) == 0
    assert "256 examples of x.npy, with the answers of sklearn" in capsys.readouterr().out
    assert main([str(line), "--expected", "y.npz", "--name", "given", *common]) == 0
    assert {read_manifest(Path("models", name, "1")).model for name in ("line", "given")} == {"line", "given"}
    monkeypatch.setitem(sys.modules, "torch", None)
    for arguments, message in (
        (["--from", "sklearn", "made_models:none"], "made_models:none returned a int; with --from sklearn a model of"),
        (["--from", "torch", "made_models:module"], "pip install 'modelyard[torch]'"),
        (["--from", "torch", "made_models:absent"], "made_models:absent cannot be imported from here"),
        ([str(line), "--expected", "absent.npz"], "absent.npz does not exist"),
    ):
        assert main([*arguments, *common]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("library", ["xgboost", "lightgbm"])
def test_boosted_trees(library: str, tmp_path: Path) -> None:
    module = pytest.importorskip(library, reason=f"{library} is not installed: modelyard[{library}]")
    classifier, regressor = (
        (module.XGBClassifier, module.XGBRegressor)
        if library == "xgboost"
        else (module.LGBMClassifier, module.LGBMRegressor)
    )
    labels = (X[:, 0] > 0).astype(np.int64)
    trees = classifier(n_estimators=5, verbosity=0).fit(X, labels)
    report = export(trees, tmp_path / "trees", data=X, options=OPTIONS)
    np.testing.assert_allclose(served(report.version.path, X=X)["probabilities"], trees.predict_proba(X), atol=1e-5)
    export(regressor(n_estimators=5, verbosity=0).fit(X, SUM), tmp_path / "regressor", data=X, options=OPTIONS)
    pipeline = make_pipeline(StandardScaler(), classifier(n_estimators=5, verbosity=0)).fit(X, labels)
    export(pipeline, tmp_path / "pipeline", data=X, options=OPTIONS)


@pytest.mark.filterwarnings("ignore")
def test_torch_modules(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: modelyard[torch]")
    pytest.importorskip("onnxscript", reason="onnxscript is not installed: modelyard[torch]")

    class Words(torch.nn.Module):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.dense = torch.nn.Embedding(50, 8), torch.nn.Linear(8, 2)

        def forward(self, ids: Any, mask: Any = None, unused: Any = None) -> dict[str, Any]:
            hidden = self.embedding(ids) * mask[..., None]
            return {"logits": self.dense(hidden.mean(1)), "hidden": hidden}

    torch.manual_seed(0)
    linear = torch.nn.Linear(4, 2)
    with pytest.raises(ConfigurationError, match=r"expected model.eval\(\)"):
        export(linear, tmp_path / "linear", data=X, options=OPTIONS)
    report = export(linear.eval(), tmp_path / "linear", data=X.astype(np.float64), options=OPTIONS)
    expected = linear(torch.from_numpy(X)).detach().numpy()
    np.testing.assert_allclose(served(report.version.path, input=X)["output_0"], expected, atol=1e-5)
    rng = np.random.default_rng(0)
    ids = [rng.integers(0, 50, size) for size in rng.choice([3, 5, 9], 64)]
    data = {"ids": ids, "mask": [np.ones(len(each), np.float32) for each in ids]}
    words = Words().eval()
    report = export(words, tmp_path / "words", data=data, options=OPTIONS)
    inputs = {"ids": rng.integers(0, 50, (3, 7)), "mask": np.ones((3, 7), np.float32)}
    answers = served(report.version.path, **inputs)
    own = words(*(torch.from_numpy(each) for each in inputs.values()))
    assert answers["hidden"].shape == (3, 7, 8)
    np.testing.assert_allclose(answers["logits"], own["logits"].detach().numpy(), atol=1e-5)
    with pytest.raises(ConversionError, match="Words cannot be exported by torch"):
        export(words, tmp_path / "words", data={"ids": np.ones((64, 3), np.int64)}, options=OPTIONS)
