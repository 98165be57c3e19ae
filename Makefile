# Needs git, make and Python 3.11 or newer with venv. Everything else is installed into .venv, from pinned versions.

PYTHON ?= $(shell for name in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$name -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$name && break; done)
BIN := .venv/bin
LOCAL := .venv/installed-local
DEV := .venv/installed-dev
DOCS := .venv/installed-docs
# More than cores: a test of the integration waits for two fifths of its time.
WORKERS ?= 3
MINUTES ?= 1
SEED ?= 1
RECORDS ?= 1000000
# Readers and writers of the schemas. An installation makes them too; this is for what changed since.
CODEC := .venv/made-codec
SCHEMAS := schemas/sessionary/schemas
MADE_FROM := $(wildcard generation/*.py $(foreach folder,. codec events records avro/*,$(SCHEMAS)/$(folder)/*.*))

.PHONY: help install codec demo bench bench-report native native-remove wheels test test-client test-long soak alerts monitoring browser \
	chaos fuzz fuzz-readers mutants check lint lint-foreign format docs dashboard-pictures clean

# Say what there is.
help:
	@awk '/^# /{text = substr($$0, 3)} /^[a-z-]+:( \$$\(|$$)/{sub(/:.*/, ""); printf "make %-18s %s\n", $$0, text}' $(MAKEFILE_LIST)

# Make .venv and install everything into it; returns at once if nothing changed.
install: $(DEV)

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "no Python 3.11 or newer with venv found; name one: make PYTHON=/path/to/python3" >&2; exit 1; }
	@echo "making .venv" >&2
	@$(PYTHON) -m venv .venv
	@$(PIP) --upgrade pip

# A level is an extra. `dev` holds the other two. Without --no-compile pip compiles every module, used or not.
# The constraints come by the environment, so that they hold for the build's own environment too.
PIP := PIP_CONSTRAINT='$(CURDIR)/constraints.txt' PIP_BUILD_CONSTRAINT='$(CURDIR)/constraints.txt' \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
INSTALL = @echo "installing into .venv what $(1) needs (the first time: about a minute)" >&2; $(PIP) --editable '.[$(1)]'

$(LOCAL): pyproject.toml constraints.txt | $(BIN)/python
	$(call INSTALL,local)
	@touch $@

$(DOCS): pyproject.toml constraints.txt | $(LOCAL)
	$(call INSTALL,docs)
	@touch $@

$(DEV): pyproject.toml constraints.txt | $(BIN)/python
	$(call INSTALL,dev)
	@touch $(LOCAL) $(DOCS) $@

install demo native wheels test test-long soak alerts chaos fuzz fuzz-readers mutants check bench bench-report docs dashboard-pictures: $(CODEC)

$(CODEC): $(MADE_FROM) | $(LOCAL)
	@$(BIN)/python -m generation
	@touch $@

# Make the readers and writers of the schemas again. Most commands here do it if a schema changed.
codec: $(LOCAL)
	@$(BIN)/python -m generation

# Start the local stack on a temporary folder, play agent runs, print what came of them.
demo: $(LOCAL)
	@$(BIN)/sessionary demo $(ARGS)

# Compile the core in place, if there is a C compiler: the same rules, faster. Everything runs without.
native: $(DEV)
	@$(BIN)/python -m native

# Remove the compiled core, so that the Python runs again.
native-remove: $(BIN)/python
	@$(BIN)/python -m native --remove

# Build the pure wheel, and one with the compiled core for each Python 3.11 to 3.14 that is found, into dist.
wheels: $(DEV)
	@$(BIN)/python -m native.wheels $(ARGS)
	@$(BIN)/python -m tests.packaging.check_wheels dist

# A worker that may not write compiled modules compiles all of them again in each run. A test that
# waits for what never comes fails after so many seconds, with the stacks of its threads. The
# longest ones need ten minutes on a machine that has twenty other things to do.
HUNG_S := 900
test-long soak: HUNG_S = 1800
FRESH := env -u PYTHONDONTWRITEBYTECODE
TESTS = --numprocesses=$(WORKERS) --dist=loadfile --no-loadscope-reorder --groups -rfEs --timeout=$(HUNG_S) \
	-o console_output_style=classic

# For every change, ten minutes: format, lint, types, and the tests of the main road; logs go to build/logs.
test: $(DEV)
	@$(FRESH) $(BIN)/pytest $(TESTS) --level=test tests

# After it, twelve minutes: a minute of chaos, kills, an upgrade, the documents' commands; see tests/levels.toml.
test-long: $(DEV)
	@$(FRESH) $(BIN)/pytest $(TESTS) --level=long tests

# All other tests, two and a half hours in parts, with a summary in build/soak: make soak, make soak PART='sinks load'.
soak: $(DEV)
	@$(FRESH) $(BIN)/python -m tests.soak $(PART) -- $(TESTS)

# In an environment of its own for each Python, with what the client's tests need and no part of the local stack.
CLIENT_VENV = .venv-client-$(shell $(PYTHON) -c 'import sys; print("{}.{}".format(*sys.version_info))')

# The client's own tests under another Python: make test-client PYTHON=python3.13.
test-client:
	@test -x $(CLIENT_VENV)/bin/python || { echo "making $(CLIENT_VENV)" >&2; $(PYTHON) -m venv $(CLIENT_VENV); }
	@$(subst $(BIN)/,$(CLIENT_VENV)/bin/,$(PIP)) --editable '.[processors,metrics,otel,artifacts]' \
		cryptography hypothesis opentelemetry-sdk pytest
	@$(CLIENT_VENV)/bin/python --version >&2
	@$(CLIENT_VENV)/bin/python -m pytest -q -rfEs -p tests.support.levels --level=test -p no:cacheprovider -p tests.core.conftest \
		--confcutdir=tests/core/producers tests/core/producers

# Install Prometheus and Alertmanager by apt-get if they are missing; `make test` skips what needs them without.
monitoring: $(DEV)
	@$(BIN)/python -m tests.support.debian_packages monitoring

# Install Chromium by apt-get if it is missing; tests look at pages in it.
browser: $(DEV)
	@$(BIN)/python -m tests.support.debian_packages browser

# Real Prometheus alerts of a real stack under load: stop parts, and see the messages at a webhook.
alerts: $(DEV)
	@$(BIN)/python -m tests.alerts $(ARGS)

# Kill, freeze and fill a real stack under load, then audit it: make chaos MINUTES=10 SEED=2.
chaos: $(DEV)
	@$(FRESH) $(BIN)/python -m tests.chaos --minutes $(MINUTES) --seed $(SEED) $(ARGS)

# Fold fuzzed records on all cores and count what they reach: make fuzz RECORDS=10000000 SEED=2.
fuzz: $(DEV)
	@$(BIN)/python -m tests.fuzz --records $(RECORDS) --seed $(SEED) $(ARGS)

# Read damaged records with the compiled readers, and compare with fastavro; SANITIZE=1 with the address sanitizer.
fuzz-readers: $(DEV)
	@$(BIN)/python -m tests.fuzz.readers --inputs $(RECORDS) --seed $(SEED) $(if $(SANITIZE),--sanitize) $(ARGS)

# Make small faults in the pure core, one at a time, and see whether the tests notice; ARGS='--only PATTERN'.
mutants: $(DEV)
	@$(BIN)/python -m tests.mutants --workers $(WORKERS) $(ARGS)

# Format, lint, types, import direction and style.
check: $(DEV)
	@$(BIN)/pytest --quiet tests/style

# Pyright checks the examples, as users' editors would; without a look for a newer one.

# Format, lint and types only.
lint: $(DEV)
	@$(BIN)/ruff format --check --quiet . || { echo "ruff format: some files differ; make format mends them" >&2; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy
	@PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright

# The client's types for macOS and Windows.
lint-foreign: $(DEV)
	@for platform in darwin win32; do \
		$(BIN)/mypy --platform $$platform --cache-dir .mypy_cache/$$platform --no-error-summary producers schemas || exit 1; \
	done

# Format the code and mend what can be mended.
format: $(DEV)
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

# Measure the pipeline; results go to benchmarks/results. ARGS="--only b,c --runs 3", ARGS=--quick to try it.
# As with the tests: a process that may not write compiled modules compiles all of them at each start.
bench: $(DEV)
	@$(FRESH) $(BIN)/python -m benchmarks $(ARGS)

# Draw docs/performance.md and its plots from benchmarks/results.
bench-report: $(DEV)
	@$(BIN)/python -m benchmarks.report

# Redraw what the documents take from the code, then build their site into build/site; it opens offline.
docs: $(LOCAL) $(DOCS)
	@$(BIN)/python -m docs.build
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "build/site/index.html"

# Draw the dashboards' pictures from a real Prometheus beside a stack under load: make dashboard-pictures MINUTES=5.
dashboard-pictures: $(DEV)
	@$(BIN)/python -m docs.build.dashboards.pictures --minutes $(MINUTES) $(ARGS)

# Remove what was built, and .venv.
clean:
	rm -rf .venv .venv-client-* build dist $(SCHEMAS)/codec/generated .mypy_cache .ruff_cache .pytest_cache .hypothesis
