#!/bin/sh
# The entry point, by the name that it has in TensorFlow Serving's image: Dockerfiles and manifests name or replace it.
exec modelyard serve --port=8500 --rest_api_port=8501 "$@"
