# Images of modelyard. The default target is the server.
#
#   docker build -t modelyard/serving .
#   docker run -p 8500:8500 -p 8501:8501 -v "$PWD/repository:/models" modelyard/serving
#
# Other targets: serving-gpu (CUDA), serving-full (adds the TensorFlow and OpenVINO backends), training, loadtest.
ARG BASE=python:3.11-slim-bookworm

# ---- stage one: the wheel -------------------------------------------------------------------------------------------
FROM ${BASE} AS wheel
# The same commit makes the same bytes.
ARG SOURCE_DATE_EPOCH=1577836800
ENV SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH} PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
COPY constraints.txt pyproject.toml README.md LICENSE ./
COPY clients clients
COPY export export
COPY training training
COPY serving serving
COPY loadtests loadtests
RUN python -m venv /tmp/build \
    && /tmp/build/bin/pip install --quiet --constraint constraints.txt hatchling \
    && /tmp/build/bin/python -m hatchling build -t wheel -d /wheel \
    && rm -rf /tmp/build

# ---- the native core, by Debian's newer Rust (1.85 or later): no other stage has a compiler ---------------------------
FROM ${BASE} AS core
ARG SOURCE_DATE_EPOCH=1577836800
ENV SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH} PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
RUN apt-get update -qq \
    && apt-get install -y -qq --no-install-recommends ca-certificates cargo-web gcc libc6-dev rustc-web >/dev/null \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY constraints.txt ./
COPY serving/core serving/core
# The paths of the build are no part of the library.
RUN python -m venv /tmp/build \
    && /tmp/build/bin/pip install --quiet --constraint constraints.txt maturin \
    && RUSTFLAGS="--remap-path-prefix=/root=/build" /tmp/build/bin/maturin build --quiet --release --strip --locked \
        --manifest-path serving/core/Cargo.toml --interpreter python --out /wheel \
    && rm -rf /tmp/build serving/core/target

# ---- one environment for each image: installed, slimmed, listed -----------------------------------------------------
FROM wheel AS tools
COPY deploy/image/tools.txt deploy/image/make_environment.sh deploy/image/slim.py deploy/image/licences.py /tools/
RUN python -m venv /tools/venv && /tools/venv/bin/pip install --quiet --requirement /tools/tools.txt

FROM tools AS serving-environment
COPY --from=core /wheel /core
# More where a repository is in an object store, or callers show certificates or web tokens:
#   --build-arg SERVING_EXTRAS=serving,remote,access
ARG SERVING_EXTRAS=serving
RUN sh /tools/make_environment.sh "${SERVING_EXTRAS}"

FROM tools AS serving-gpu-environment
COPY --from=core /wheel /core
RUN sh /tools/make_environment.sh gpu

FROM tools AS serving-full-environment
COPY --from=core /wheel /core
RUN sh /tools/make_environment.sh serving,openvino,tensorflow

FROM tools AS training-environment
RUN sh /tools/make_environment.sh training,export,remote,signing,tune,wandb

FROM tools AS loadtest-environment
RUN sh /tools/make_environment.sh loadtests

# ---- what all images have in common ---------------------------------------------------------------------------------
FROM ${BASE} AS runtime
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="modelyard" \
      org.opencontainers.image.description="TensorFlow Serving's API without TensorFlow" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.base.name="docker.io/library/python:3.11-slim-bookworm"
# A fixed number, so that volumes and Kubernetes' runAsNonRoot can rely on it.
RUN groupadd --gid 10001 modelyard \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin modelyard \
    && install -d -o 10001 -g 10001 /models /runs
ENV PATH=/opt/modelyard/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /
# modelyard finishes running requests on SIGTERM, as process 1 too: no init is needed.
STOPSIGNAL SIGTERM

FROM runtime AS training
COPY --from=training-environment /opt/modelyard /opt/modelyard
COPY deploy/image/tf_config.py /opt/tf_config.py
# SageMaker's folders belong to root: --build-arg TRAINING_USER=0 there.
ARG TRAINING_USER=10001:10001
USER ${TRAINING_USER}
ENTRYPOINT ["modelyard"]
CMD ["--help"]

FROM runtime AS loadtest
COPY --from=loadtest-environment /opt/modelyard /opt/modelyard
COPY loadtests/locustfile.py /opt/modelyard/locustfile.py
ENTRYPOINT ["modelyard", "loadtest"]

FROM runtime AS server
COPY deploy/image/healthcheck.py /opt/healthcheck.py
COPY deploy/image/tensorflow_model_server deploy/image/tf_serving_entrypoint.sh /usr/bin/
# TensorFlow Serving's contract: MODEL_NAME, this variable, these two ports, more flags appended.
# MODEL_NAME is not set: without it, every model in the folder is served.
ENV MODEL_BASE_PATH=/models
EXPOSE 8500 8501
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 CMD ["python", "/opt/healthcheck.py"]
# This script, as in TensorFlow Serving's image: images that are built on it replace the script to start otherwise.
ENTRYPOINT ["/usr/bin/tf_serving_entrypoint.sh"]

# CUDA and cuDNN come with NVIDIA's packages; the driver is the host's: docker run --gpus all.
FROM server AS serving-gpu
COPY --from=serving-gpu-environment /opt/modelyard /opt/modelyard
# Not in the entry point: who writes another one would serve on the CPU, without a word.
ENV MODELYARD_DEVICE=cuda NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility

FROM server AS serving-full
COPY --from=serving-full-environment /opt/modelyard /opt/modelyard

FROM server AS serving
COPY --from=serving-environment /opt/modelyard /opt/modelyard
