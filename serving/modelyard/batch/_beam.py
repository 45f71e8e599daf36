"""Apache Beam's RunInference."""

# Beam says that it is typed, and leaves most of its functions without types.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from apache_beam.ml.inference.base import ModelHandler, PredictionResult

from modelyard.batch._model import BatchModel


class BeamModelHandler(ModelHandler[Mapping[str, Any], PredictionResult, BatchModel]):
    """Elements are mappings from an input's name to one example's value; so are the inferences, by output.

    ``examples | RunInference(BeamModelHandler(BatchModel("models/fashion")))`` makes
    Beam's ``PredictionResult`` of each; a ``KeyedModelHandler`` around it keeps keys.

    Args:
        model: What answers; one that computes in the workers, or one of a server.
        batching: Of Beam's: ``min_batch_size``, ``max_batch_size``, ``model_copies``, ``large_model`` and the like.
    """

    def __init__(self, model: BatchModel, **batching: Any) -> None:
        super().__init__(**batching)
        self._model = model

    def load_model(self) -> BatchModel:
        """The model, which is loaded at its first batch; Beam shares it between the threads of a worker."""
        return self._model

    def run_inference(
        self,
        batch: Sequence[Mapping[str, object]],
        model: BatchModel,
        inference_args: dict[str, Any] | None = None,
    ) -> Iterable[PredictionResult]:
        """Answers a batch.

        Args:
            batch: The elements.
            model: What :meth:`load_model` returned.
            inference_args: None are known.

        Raises:
            InvalidInputError: Elements do not fit the signature.
        """
        columns = {name: [element[name] for element in batch] for name in batch[0]}
        answers = model(columns)
        for index, element in enumerate(batch):
            inference = {name: values[index] for name, values in answers.items()}
            yield PredictionResult(element, inference, model_id=self._model.model)

    def get_metrics_namespace(self) -> str:
        """The name under which Beam counts."""
        return "modelyard"
