# The same commands locally and in CI. They need Python >= 3.11, make and a package index; the rest they install.
PYTHON ?= python3
# Processes that run tests at a time: each may take 4 GB. Of three on two cores one often waits for a server.
JOBS ?= 3
# A number: the tests of `make test ORDER=7` run in a random order, and in the same one again.
ORDER ?=
VENV := .venv
BIN := $(VENV)/bin
RUN := $(BIN)/python
CORE_SOURCES := $(wildcard $(addprefix serving/core/,Cargo.* *.toml *.pyi src/*.rs src/*/*.rs))
# Two things at a time: the core is built while pip installs, and types are checked beside lint. What make calls of
# itself shares these two.
ifeq ($(MAKELEVEL),0)
MAKEFLAGS += -j2
endif
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export TF_CPP_MIN_LOG_LEVEL ?= 2
export TF_ENABLE_ONEDNN_OPTS ?= 1

.DEFAULT_GOAL := help
.PHONY: help install core docs loadtest data demo test lint types unit format wire client results fallback h2spec torture image-test bench clean

help: ## Show this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "make %-10s %s\n", $$1, $$2}'

install: $(VENV)/.core ## Make .venv with modelyard, its native core where there is Rust, and everything that its tests need

# What builds the core comes first: pip installs the rest meanwhile.
$(VENV)/.maturin:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "modelyard needs Python 3.11 or newer; try: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/pip install --quiet --constraint constraints.txt maturin
	@touch $@

$(VENV)/.installed: $(VENV)/.maturin pyproject.toml constraints.txt
	@echo "Installing modelyard and its tools into $(VENV) (once; about 1 GB with TensorFlow) ..."
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[all]' --group dev
	@# The tests read its API models; what it depends on is a second serving stack.
	$(BIN)/pip install --quiet --no-deps kserve==0.21.0
	@touch $@

# Made only where the core can be built: without Rust, every run of make looks again.
$(VENV)/.wheel: $(VENV)/.maturin $(CORE_SOURCES)
	@sh serving/core/build.sh $(VENV)

$(VENV)/.core: $(VENV)/.installed $(VENV)/.wheel
	@[ ! -e $(VENV)/.wheel ] || \
		{ $(BIN)/pip install --quiet --no-deps --force-reinstall serving/core/target/wheels/*.whl && touch $@; }

core: ## Build the native serving core again, as install does
	@rm -f $(VENV)/.wheel
	@$(MAKE) --no-print-directory $(VENV)/.core

data: ## Install Debian's package of Fashion-MNIST where that is possible
	@if [ -e /usr/share/datasets/fashion-mnist ] || [ -n "$$MODELYARD_DATA" ]; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "Installing the data set (Debian package dataset-fashion-mnist) ..."; \
		{ apt-get update -qq && apt-get install -y -qq dataset-fashion-mnist >/dev/null; } || \
			echo "That did not work; the demo looks for the data elsewhere."; \
	fi

demo: install data ## Train, export, verify, publish, serve and predict, from nothing
	$(BIN)/modelyard run fashion --repository demo/repository --epochs 3

test: lint types unit ## Lint, types and all tests

# Tests that measure time have the machine for themselves.
ifneq ($(filter test,$(MAKECMDGOALS)),)
unit: lint types
endif

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@sh serving/core/lint.sh

types: install
	$(BIN)/mypy

# Of hundreds of processes that tests start, each would compile the package again where PYTHONDONTWRITEBYTECODE is set.
unit: install
	@$(BIN)/python -m compileall -q clients export training serving loadtests tests benchmarks
	$(BIN)/pytest -q --durations=25 --numprocesses $(JOBS) --dist loadfile --no-loadscope-reorder \
		$(if $(ORDER),--random-order-bucket=module --random-order-seed=$(ORDER))

# What a transport can get wrong; the rest of the contract is the same code behind all of them.
FALLBACK := $(patsubst %,tests/contract/test_%.py,four_apis grpc headers health in_flight lifecycle oip_grpc oip_rest \
	overload request_ids rest sagemaker stop tls wrong_port)

fallback: install ## Run the contract's tests of transports on those of machines without Rust
	MODELYARD_TEST_TRANSPORT=python $(BIN)/pytest -q --numprocesses $(JOBS) --dist loadfile $(FALLBACK)

h2spec: install ## Run h2spec's cases of HTTP/2 against the native core's gRPC port, where there is Go
	$(BIN)/pytest -q tests/serving/core/h2spec_checks.py

format: install ## Format and sort the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

wire: install ## Regenerate the protobuf code
	$(RUN) clients/generate_wire.py

client: install ## Write the blocking client from the asynchronous one
	$(RUN) clients/generate_client.py

results: install data ## Run every task and write docs/results.md
	$(RUN) -m benchmarks.results

torture: install ## Attack running servers for about half an hour, and write docs/reliability.md
	$(RUN) -m benchmarks.torture --write

image-test: install ## Build the server's image and test it running (Docker, or buildah where root may install it)
	$(BIN)/pytest -q tests/deploy/image_checks.py

loadtest: install ## Load a server that it starts: smoke, rollout and overload, with limits; reports in demo/loadtest/
	@[ -d demo/repository/fashion ] || $(MAKE) demo
	$(BIN)/modelyard loadtest scenario smoke --serve demo/repository --report demo/loadtest/smoke
	$(BIN)/modelyard loadtest scenario rollout --serve demo/repository --report demo/loadtest/rollout
	$(BIN)/modelyard loadtest scenario overload --serve demo/repository --report demo/loadtest/overload \
		--server-flag=--max_queue_delay_ms=500

# The modules of benchmarks/ that write a table into docs/; the last three take an hour each.
BENCHES := clients serving models training input batch applications exporting quantize

bench: install data ## Measure and write a table in docs/: make bench NAME=serving (without NAME: their names)
	@[ -n "$(filter $(NAME),$(BENCHES))" ] || { echo "make bench NAME=..., one of: $(BENCHES)"; exit 2; }
	$(RUN) -m benchmarks.$(NAME) --write

docs: install ## Build the documentation as a site in demo/site; a broken link fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "To read it, with search: $(RUN) -m http.server --directory demo/site 8000, then http://localhost:8000"

clean: ## Remove what the other targets made
	rm -rf $(VENV) demo .mypy_cache .ruff_cache .pytest_cache
