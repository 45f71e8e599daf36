"""Who answers: TensorFlow Serving over gRPC and REST, the Open Inference Protocol."""

__all__: list[str] = []
