#!/bin/sh
# Makes /opt/modelyard: the environment of one image, with modelyard's extras named by the first argument.
set -eu
extras=$1
export PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
python -m venv --without-pip /opt/modelyard
wheel=$(echo /wheel/*.whl)
# The native core, where this image has it.
core=$(find /core -name '*.whl' 2>/dev/null || true)
python -m pip --python /opt/modelyard/bin/python install --quiet --no-compile --constraint /src/constraints.txt \
  "modelyard[$extras] @ file://$wheel" $core

# Before slimming: the lists are made of whole packages.
mkdir -p /opt/modelyard/share
/tools/venv/bin/cyclonedx-py environment --output-reproducible --of JSON \
  -o /opt/modelyard/share/sbom.cdx.json /opt/modelyard/bin/python
/opt/modelyard/bin/python /tools/licences.py > /opt/modelyard/share/licences.txt
# A converter may need any of its packages' files; a server and a load test do not.
case $extras in serving | serving,tracing | loadtests) /opt/modelyard/bin/python /tools/slim.py /opt/modelyard/share/removed.txt ;; esac
# Compiled here once: the containers cannot write, and a start without it takes twice as long.
# Checked by no time stamp, so that the same sources give the same bytes.
/opt/modelyard/bin/python -m compileall -q -j 0 --invalidation-mode unchecked-hash /opt/modelyard/lib
