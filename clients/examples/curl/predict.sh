#!/bin/sh
# The class of an image, over REST: sh predict.sh shirt.png [http://localhost:8501] [MODEL]
set -eu
image=$1 url=${2:-http://localhost:8501} model=${3:-fashion}
# The body goes through standard input: an image can be longer than a command line.
printf '{"signature_name": "image_bytes", "instances": [{"b64": "%s"}]}' "$(base64 <"$image" | tr -d '\n')" |
    curl --silent --show-error --fail-with-body --data-binary @- "$url/v1/models/$model:predict"
echo
