# `make` lists the targets. Needed: Python 3.11 with pip, and make; everything else goes into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SEED ?= 0
# One seed when it is named, a handful when it is not.
SEEDS ?= $(if $(filter file,$(origin SEED)),10,1)
ARGS ?=
# One more than the smallest machine has cores: clusters of processes wait half of the time.
WORKERS ?= 3
# Pinned like everything else, so that a build tool's release changes nothing by itself.
SETUPTOOLS := setuptools==80.9.0
# A node is a process, and tests start hundreds: half of each start would go into compiling again.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help up dev-tools check format test explore simulate jepsen mutants bench bench-peers docs pages dashboards docker clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

up: $(VENV)/installed  ## start three nodes on this machine, until Ctrl-C (CODEQ_PORT_BASE=8080, ARGS=--help)
	@exec $(BIN)/codeq-cluster dev $(ARGS)

check: $(VENV)/installed-dev  ## format, lint, types, layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/installed-dev  ## rewrite the code as the formatter likes it
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

test: check  ## check, then the whole suite (ARGS=tests/unit to narrow)
	$(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

explore: $(VENV)/installed-dev  ## the properties, by other examples every time
	$(BIN)/pytest --hypothesis-profile=explore -n $(WORKERS) tests/properties tests/unit tests/contracts jepsen-lite/tests $(ARGS)

simulate: $(VENV)/installed-dev  ## the log, then the whole broker, through seeded faults (SEED=7, SEEDS=100)
	$(BIN)/python -m tests.simulator --seed $(SEED) --seeds $(SEEDS) $(ARGS)
	$(BIN)/python -m jepsen_lite sim --seed $(SEED) --seeds $(SEEDS) $(ARGS)

jepsen: $(VENV)/installed-dev  ## five minutes of real nodes under faults; root for partitions (ARGS='--seed 7')
	$(BIN)/python -m jepsen_lite run --time 210 $(ARGS)

mutants: $(VENV)/installed-dev  ## break the broker in each known way: do runs notice? Resumes (ARGS='--minutes 30')
	$(BIN)/python -m jepsen_lite mutants $(ARGS)

bench: $(VENV)/installed-dev  ## measure; results go to bench/results
	$(BIN)/python -m bench $(ARGS)

bench-peers: $(VENV)/installed-bench  ## measure beside NATS, RabbitMQ and the original (ARGS=--write)
	$(BIN)/python -m bench.peers $(ARGS)

docs: $(VENV)/installed-dev  ## check that the documentation agrees with the code
	$(BIN)/pytest tests/unit/settings/test_documentation.py tests/unit/test_compared.py tests/unit/test_hazards_page.py tests/unit/test_written_pages.py tests/unit/test_links.py tests/unit/cli/test_commands_of_pages.py tests/integration/docs $(ARGS)

pages: $(VENV)/installed-dev  ## write the pages that follow from the code or from measurements
	$(BIN)/python -m docs.tools

dashboards: $(VENV)/installed-dev  ## write Grafana's dashboards from deploy/grafana/boards
	$(BIN)/python -m deploy.grafana.boards

docker: $(VENV)/installed-dev  ## build the image, run the compose cluster through a node's death
	deploy/verify-compose.sh

dev-tools: $(VENV)/installed-dev  ## install what check and test need

clean:  ## remove .venv and caches; data stays
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache *.egg-info

# A virtual environment without the system's ensurepip (Debian splits it off) takes pip from outside.
$(VENV)/made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "codeq-cluster needs Python 3.11 or newer; name one with make PYTHON=..." >&2; exit 1; }
	@echo "installing into $(VENV), once: a minute or two" >&2
	@rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV) >/dev/null 2>&1 || \
	  { $(PYTHON) -m venv --clear --without-pip $(VENV) && \
	    $(PYTHON) -m pip --python $(BIN)/python install --quiet pip==24.3.1; }
	@touch $@

# The stamps depend on the pins: a changed pyproject.toml installs anew, nothing else does.
$(VENV)/installed: $(VENV)/made pyproject.toml
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check $(SETUPTOOLS)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --use-pep517 --no-build-isolation -e '.[server]'
	@touch $@

$(VENV)/installed-dev: $(VENV)/installed jepsen-lite/pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --use-pep517 --no-build-isolation -e '.[dev]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --use-pep517 --no-build-isolation -e jepsen-lite
	@touch $@

$(VENV)/installed-bench: $(VENV)/installed-dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --use-pep517 --no-build-isolation -e '.[bench]'
	@touch $@
