"""What can be known of an export before the training that it waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modelyard.artifact import DEFAULT_SIGNATURE, ImageDecode, Signature, VerificationData, check_model_name
from modelyard.errors import ConfigurationError

if TYPE_CHECKING:
    from modelyard.export import ExportOptions, TracedModel
    from modelyard.training import Task

IMAGE = "image"
IMAGE_BYTES = "image_bytes"
CLASS_ID = "class_id"
LABEL = "label"


def check_export(task: Task, *, options: ExportOptions, count: int) -> tuple[TracedModel, VerificationData]:
    """Traces a task that is not trained yet, and checks its examples."""
    from modelyard.export import check_examples, trace

    check_model_name(task.name)
    task.build()
    traced = trace(task.exported, task.signatures())
    return traced, check_examples(traced, task.verification_data(count), options=options)


def check_classifier(name: str, signatures: dict[str, Signature], data: VerificationData) -> None:
    """Checks that ``modelyard run`` can show what a task serves."""
    problem = _problem(signatures, data)
    if problem:
        raise ConfigurationError(
            f"modelyard run cannot show the task {name!r}: {problem}. It shows classifiers of images: signature "
            f"{DEFAULT_SIGNATURE} from {IMAGE} float32 [-1, H, W, 1 or 3] to {CLASS_ID} and {LABEL}, signature "
            f"{IMAGE_BYTES} from encoded images, and examples with labels and class names. Others are trained and "
            f"exported by themselves: modelyard train {name}, modelyard export {name}."
        )


def _problem(signatures: dict[str, Signature], data: VerificationData) -> str:
    default, encoded = signatures.get(DEFAULT_SIGNATURE), signatures.get(IMAGE_BYTES)
    if default is None:
        return f"it has no signature {DEFAULT_SIGNATURE}"
    shapes = {(spec.name, spec.dtype): spec.shape or () for spec in default.inputs}
    shape = shapes.get((IMAGE, "float32"), ())
    if len(shapes) != 1 or len(shape) != 4 or shape[-1] not in (1, 3):
        return f"{DEFAULT_SIGNATURE} takes {', '.join(f'{n} {d} {list(s)}' for (n, d), s in shapes.items())}"
    missing = {CLASS_ID, LABEL} - {spec.name for spec in default.outputs}
    if missing:
        return f"{DEFAULT_SIGNATURE} has no output {' and no '.join(sorted(missing))}"
    if encoded is None or not isinstance(encoded.decode, ImageDecode) or encoded.decode.input != IMAGE_BYTES:
        return f"it has no signature {IMAGE_BYTES} that decodes images"
    if data.labels is None or not len(data.labels):
        return "its examples have no labels"
    if int(data.labels.max()) >= len(data.class_names):
        return f"its labels go up to {int(data.labels.max())}, and it names {len(data.class_names)} classes"
    return ""
