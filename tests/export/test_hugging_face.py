"""export(): tiny models of Hugging Face Transformers with random weights, loaded from folders as the Hub has them."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from modelyard.artifact import read_manifest
from modelyard.serving import LoadOptions, load_servable

#: In a process of its own: what Transformers loads ends one that has loaded TensorFlow (docs/importing.md).
SCRIPT = """
import numpy as np
import torch
from transformers import BertConfig, BertForSequenceClassification, ViTConfig, ViTForImageClassification
torch.manual_seed(0)
small = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
models = {
    "bert": BertForSequenceClassification(BertConfig(vocab_size=90, **small)),
    "vit": ViTForImageClassification(ViTConfig(image_size=16, patch_size=4, **small)),
}
for name, model in models.items():
    model.save_pretrained(name)
    models[name] = type(model).from_pretrained(name).eval()
from modelyard.export import ExportOptions, export
options = ExportOptions(min_examples=16, latency_calls=10, measure_seconds=0.2, runtimes=(), isolate=False)
rng = np.random.default_rng(0)
ids = [rng.integers(5, 90, length) for length in rng.choice([7, 12], 32)]
masks = [(np.arange(len(each)) < len(each) - index % 3).astype(np.int64) for index, each in enumerate(ids)]
images = rng.normal(size=(32, 3, 16, 16)).astype(np.float32)
data = {"bert": {"input_ids": ids, "attention_mask": masks}, "vit": {"pixel_values": images}}
tried = {"bert": {"input_ids": rng.integers(5, 90, (3, 9)), "attention_mask": np.ones((3, 9), np.int64)}}
tried["bert"]["attention_mask"][1, 4:] = 0
tried["vit"] = {"pixel_values": images[:5]}
for name, model in models.items():
    export(model, f"models/{name}", data=data[name], options=options)
    with torch.no_grad():
        logits = model(**{key: torch.from_numpy(each) for key, each in tried[name].items()}).logits.numpy()
    np.savez(f"{name}.npz", logits=logits, **tried[name])
"""


def test_bert_and_vit(tmp_path: Path) -> None:
    for library in ("torch", "transformers", "onnxscript"):
        if find_spec(library) is None:
            pytest.skip(f"{library} is not installed")
    env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    for name, source in (("bert", "BertForSequenceClassification"), ("vit", "ViTForImageClassification")):
        assert {"config.json", "model.safetensors"} <= {path.name for path in (tmp_path / name).iterdir()}
        version = tmp_path / "models" / name / "1"
        assert read_manifest(version).source.config["source"] == f"torch: {source}"
        # Of a length that no example had, one of the sentences masked.
        with np.load(tmp_path / f"{name}.npz") as saved:
            inputs = dict(saved)
        own = inputs.pop("logits")
        servable = load_servable(name, 1, version, LoadOptions())
        answer = servable.run(servable.signatures["serving_default"], inputs, ["logits"])["logits"]
        np.testing.assert_allclose(answer, own, atol=1e-5)
        if name == "bert":
            inputs["attention_mask"][1, 4:] = 1
            changed = servable.run(servable.signatures["serving_default"], inputs, ["logits"])["logits"]
            assert not np.allclose(changed[1], own[1], atol=1e-5)
        servable.close()
