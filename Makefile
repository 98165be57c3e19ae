# Needs git, make and Python 3.11 or newer with venv. Everything else is installed into .venv, from pinned versions.

PYTHON ?= $(shell for name in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$name -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$name && break; done)
BIN := .venv/bin
INSTALLED := .venv/installed
WORKERS ?= 2
MINUTES ?= 1
SEED ?= 1

.PHONY: help install demo bench test chaos check lint format docs clean

# Say what there is.
help:
	@awk '/^# /{text = substr($$0, 3)} /^[a-z]+:/{sub(/:.*/, ""); printf "make %-8s %s\n", $$0, text}' $(MAKEFILE_LIST)

# Make .venv and install everything into it; at once where nothing changed.
install: $(INSTALLED)

# The constraints come by the environment, so that they hold for the build's own environment too.
$(INSTALLED): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "no Python 3.11 or newer with venv found; name one: make PYTHON=/path/to/python3" >&2; exit 1; }
	@echo "installing into .venv (the first time: about a minute)" >&2
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@PIP_CONSTRAINT='$(CURDIR)/constraints.txt' $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

# Start the local stack on a temporary folder, play agent runs, print what came of them.
demo: $(INSTALLED)
	@$(BIN)/sessionary demo $(ARGS)

# Format, lint, types, then every test; logs of the parts go to build/logs.
test: lint
	@$(BIN)/pytest --numprocesses=$(WORKERS) --dist=loadfile --no-loadscope-reorder --groups -rfEs -o console_output_style=classic tests

# Kill, freeze and fill a real stack under load, then audit it: make chaos MINUTES=10 SEED=2.
chaos: $(INSTALLED)
	@$(BIN)/python -m tests.chaos --minutes $(MINUTES) --seed $(SEED) $(ARGS)

# Make small faults in the pure core, one at a time, and see whether the tests notice; ARGS='--only PATTERN'.
mutants: $(INSTALLED)
	@$(BIN)/python -m tests.mutants --workers $(WORKERS) $(ARGS)

# Format, lint, types, import direction and style.
check: lint
	@$(BIN)/pytest --quiet tests/style

# Format, lint and types only.
lint: $(INSTALLED)
	@$(BIN)/ruff format --check --quiet . || { echo "ruff format: some files differ; make format mends them" >&2; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy

# Format the code and mend what can be mended.
format: $(INSTALLED)
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

# Measure the pipeline; results go to benchmarks/results. ARGS="--only b,c --runs 3", ARGS=--quick to try it.
bench: $(INSTALLED)
	@$(BIN)/python -m benchmarks $(ARGS)

# Redraw what the documents take from the code: the state diagram, the table of settings.
docs: $(INSTALLED)
	@$(BIN)/python -m tests.support.transition_docs
	@$(BIN)/python -m tests.support.settings_table

# Remove what was built, and .venv.
clean:
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
