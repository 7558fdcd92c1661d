# `make demo` and `make test` set up everything they need; `make help` lists the rest.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
# Else pytest rewrites the asserts of all files on each run, in each process: 8 s of a processor.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help
help: ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

.PHONY: install
install: $(STAMP) ## Create .venv with optcli and everything it needs

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "optcli needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	@echo "Installing optcli with its libraries: about 6 GB, so this takes some minutes."
	$(BIN)/python -m pip install --no-compile --constraint constraints.txt --editable '.[dev]'
	@# They ask for older packages than they work with: docs/decisions/edge-converters.md.
	$(BIN)/python -m pip install --quiet --no-compile --no-deps --constraint constraints.txt litert-torch litert-converter
	$(BIN)/python -m compileall -q optcli
	@# As pip does, which uses one processor; some packages hold files for another Python.
	$(BIN)/python -W ignore -m compileall -qq -j 0 -x '/tests?/' $(VENV)/lib || true
	$(BIN)/optcli schema > recipes/recipe.schema.json
	@touch $@

.PHONY: demo
demo: $(STAMP) ## Build, measure and judge the quickstart recipe
	$(BIN)/optcli build recipes/quickstart.yaml

.PHONY: gate
gate: $(STAMP) ## Compare the quickstart with what it was before the last commit
	$(BIN)/optcli gate recipes/quickstart.yaml --baseline git:HEAD~1

# Each stands for the whole suite, fails where a test was left out, and says what was skipped and why.
PYTEST := $(BIN)/python -m pytest -n auto --dist worksteal --durations 25

.PHONY: test
test: $(STAMP) lint ## Lint, type-check and run all tests but the longest
	$(PYTEST) --suite usual

.PHONY: test-all
test-all: $(STAMP) lint ## Lint, type-check and run all tests, the longest too: what CI runs
	$(PYTEST) --suite all

.PHONY: nightly
nightly: $(STAMP) ## Fuzzing and killed builds at length, beside what CI runs
	OPTCLI_FUZZ_ROUNDS=1000 OPTCLI_KILLS=60 $(PYTEST) tests/recipe/test_recipe_mutated.py \
		tests/formats/test_hostile_fuzzing.py tests/report/test_hostile_reports.py \
		tests/pipeline/test_build_interruptions.py

.PHONY: fast
fast: $(STAMP) ## Only the tests of logic, without heavy libraries: a minute
	$(PYTEST) --suite fast

# With PYTHON=... on the command line or in the environment nothing is made and nothing installed:
# that interpreter, with the packages that PYTHONPATH gives it, is all that is used.
ifeq ($(origin PYTHON),file)
GPU_PYTHON := $(BIN)/python
gpu-check: $(STAMP)
else
GPU_PYTHON := $(PYTHON)
endif

.PHONY: gpu-check
gpu-check: ## On a GPU: its tests, then networks in every runtime; PYTHON=python3 installs nothing
	$(GPU_PYTHON) benchmarks/gpu_check.py $(GPU_CHECK)

.PHONY: lint
lint: $(STAMP) ## ruff, ruff format --check, mypy --strict; mypy of benchmarks
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@# Side by side: each takes one processor.
	$(BIN)/mypy --config-file benchmarks/mypy.ini --cache-dir .mypy_cache/benchmarks benchmarks & \
		beside=$$!; $(BIN)/mypy; own=$$?; wait $$beside && exit $$own

.PHONY: format
format: $(STAMP) ## Let ruff format and mend what it can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

.PHONY: schema
schema: $(STAMP) ## Write recipes/recipe.schema.json again: what editors complete recipes from
	$(BIN)/optcli schema > recipes/recipe.schema.json

.PHONY: docs
docs: $(STAMP) ## Write the reference anew and build the site into site/
	$(BIN)/python docs/generate.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

.PHONY: clean
clean: ## Remove .venv and caches; artifacts/ stays
	rm -rf $(VENV) site .mypy_cache .ruff_cache .pytest_cache build *.egg-info
