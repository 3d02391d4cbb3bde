# One word per task; `make help` lists them. Everything sets up what it needs by itself.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/agent-tuning
UV_VERSION := 0.13.8
UV := $(CACHE)/uv-$(UV_VERSION)/bin/uv
PYTHON := .venv/bin/python
SOURCES := operator tests images
# Most tests wait more than they compute. A file stays together: its tests share what is dear to make.
SIDE_BY_SIDE := -n 2 --dist loadfile

.PHONY: help setup fmt lint typecheck layers generate verify unit test kill soak cluster-up cluster-down images demo requirements

help: ## List the tasks
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

setup: .venv/.ready ## Make .venv from the pinned requirement files

$(UV):
	python3 -m venv $(CACHE)/uv-$(UV_VERSION)
	$(CACHE)/uv-$(UV_VERSION)/bin/pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)

.venv/.ready: tests/requirements.txt pyproject.toml | $(UV)
	@echo "make: preparing .venv"
	$(UV) venv --quiet --allow-existing --python "$$(command -v python3)" .venv
	$(UV) pip sync --quiet --python $(PYTHON) tests/requirements.txt
	$(UV) pip install --quiet --python $(PYTHON) --no-deps --editable .
	touch $@

fmt: setup ## Format the Python sources
	.venv/bin/ruff format $(SOURCES)
	.venv/bin/ruff check --fix $(SOURCES)

lint: setup ## Style and mistakes
	.venv/bin/ruff format --check $(SOURCES)
	.venv/bin/ruff check $(SOURCES)

typecheck: setup ## mypy strict
	.venv/bin/mypy

layers: setup ## The direction of imports
	.venv/bin/lint-imports

generate: setup ## Write the generated files: CRD, its copy in the chart, its reference, the life cycle's tables, the chart's README
	$(PYTHON) -m tuning_operator.api.crd
	$(PYTHON) -m tuning_operator.api.reference
	$(PYTHON) -m tuning_operator.engine.life_cycle_page
	$(PYTHON) -m tests.chart.readme

verify: lint typecheck layers ## Lint, types, layers, generated files current
	$(PYTHON) -m tuning_operator.api.crd --check
	$(PYTHON) -m tuning_operator.api.reference --check
	$(PYTHON) -m tuning_operator.engine.life_cycle_page --check
	@# 5: the program that makes it cannot be built here.
	$(PYTHON) -m tests.chart.readme --check || [ $$? -eq 5 ]

unit: setup ## The tests that need no cluster
	$(PYTHON) -m pytest $(SIDE_BY_SIDE) tests/unit tests/chart

test: verify ## All checks and all tests, on a real Kubernetes that they start themselves
	@# Minutes on a fresh machine, so not inside a test's time limit. 5: it cannot run here, and the tests are skipped.
	$(PYTHON) -m tests.cluster prepare && $(PYTHON) -m tests.cluster.images build || [ $$? -eq 5 ]
	$(PYTHON) -m pytest $(SIDE_BY_SIDE) --durations=20 --durations-min=5 tests/unit tests/chart tests/integration
	@# There is one full cluster.
	$(PYTHON) -m pytest -m "not kill" --durations=20 --durations-min=5 tests/e2e

kill: setup ## Kill everything that can be killed under a run; `make kill ONLY=kubelet` kills what has that in its name
	$(PYTHON) -m tests.cluster prepare
	$(PYTHON) -m pytest --durations=0 --durations-min=5 tests/e2e/test_kills.py $(if $(ONLY),-k "$(ONLY)")
	$(if $(ONLY),,FAULTED_RUNS=300 $(PYTHON) -m pytest -s tests/integration/test_operator_under_faults.py)

soak: setup ## Runs one after another, and a random kill every 20 s, for half an hour; SOAK="--minutes 5 --seed 7"
	$(PYTHON) -m tests.cluster prepare
	$(PYTHON) -m tests.e2e.soak $(SOAK)

cluster-up: setup ## Start the local Kubernetes with KubeRay and Prometheus
	$(PYTHON) -m tests.cluster up --profile full

cluster-down: setup ## Stop it and leave nothing behind
	$(PYTHON) -m tests.cluster down

images: setup ## Build the images and push them to the local registry
	$(PYTHON) -m tests.cluster.images build

demo: setup ## The main job: train a tool-using agent on the local cluster
	$(PYTHON) -m tests.demo

requirements: | $(UV) ## Pin the dependencies anew
	$(UV) pip compile --quiet --upgrade pyproject.toml --python-version 3.11 --extra operator --no-header -o images/operator/requirements.txt
	$(UV) pip compile --quiet --upgrade pyproject.toml --python-version 3.11 --extra trl --no-header -o images/runner-trl/requirements.txt
	$(UV) pip compile --quiet --upgrade pyproject.toml --python-version 3.11 --all-extras --group dev --no-header -o tests/requirements.txt
