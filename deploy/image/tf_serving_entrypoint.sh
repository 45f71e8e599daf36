#!/bin/sh
# For Dockerfiles and manifests that name the entry point of TensorFlow Serving's image.
exec python -m modelyard.serving --port=8500 --rest_api_port=8501 "$@"
