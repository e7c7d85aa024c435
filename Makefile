# Every target sets up what it needs: a virtual environment in .venv from the locked requirements, and,
# where Spark or Apache RocketMQ is involved, a Java runtime.
BIN := .venv/bin
SEEDS ?= 1000
PYTEST ?= $(BIN)/pytest -q

.DEFAULT_GOAL := help
.PHONY: help install all demo test compiled lint format bench interop interop-upstream sim chaos jre lock clean

help:  ## this text
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 18

.venv/python:
	@python=$(if $(PYTHON),"$(PYTHON)",$$(scripts/find-python)) && "$$python" -m venv .venv || \
		{ echo "cannot create .venv: on Debian or Ubuntu install python3-venv" >&2; exit 1; }
	@touch $@

.venv/run: .venv/python requirements/run.lock pyproject.toml
	@echo "installing BatonMQ and what it needs into .venv: about 20 s"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/run.lock
	@BATONMQ_PURE=1 $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	@touch $@

# Modules compiled by hatch_build.py; none without a C compiler.
.venv/compiled: .venv/run hatch_build.py $(shell find src/batonmq -name '*.py')
	@test -n "$$BATONMQ_PURE" || echo "compiling the hot path: about 3 min (BATONMQ_PURE=1 leaves it out)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	@test ! -e .cache/compile.log || echo "not compiled, BatonMQ will be slower; why: .cache/compile.log" >&2
	@touch $@

.venv/all: .venv/run requirements/all.lock
	@echo "installing Spark, plots and the developers' tools into .venv (1.2 GB): about 2 min"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --use-pep517 --require-hashes -r requirements/all.lock
	@touch $@

install: .venv/compiled  ## the program alone, at .venv/bin/batonmq
	@$(BIN)/batonmq --version

all: .venv/all  ## everything: Spark, plots, developers' tools

jre:
	@scripts/ensure-jre

demo: all .venv/compiled jre  ## a cluster, 336,776 flights, a kill -9 and a Spark pipeline over it all
	@echo "running the demonstration: 3 to 5 min"
	@$(BIN)/batonmq demo $(ARGS)

test: all jre  ## unit, simulation, integration, Spark tests and examples
	$(PYTEST) -n 3 --dist worksteal -m "not interop and not chaos and not spark" $(ARGS)
	$(PYTEST) -m spark $(ARGS)

compiled: all .venv/compiled jre  ## integration tests with compiled modules, as installed where there is a C compiler
	BATONMQ_PURE=0 $(PYTEST) -n 3 --dist worksteal tests/integration $(ARGS)

lint: all  ## formatting, style, types, layering
	$(BIN)/ruff format --check src tests benchmarks examples hatch_build.py
	$(BIN)/ruff check src tests benchmarks examples hatch_build.py
	$(BIN)/mypy
	$(BIN)/mypy examples
	$(BIN)/lint-imports

format: all  ## let ruff format and fix
	$(BIN)/ruff format src tests benchmarks examples
	$(BIN)/ruff check --fix src tests benchmarks examples

interop: all .venv/compiled jre  ## beside the real Apache RocketMQ (fetched from Maven Central; Maven and a JDK needed)
	BATONMQ_PURE=0 $(PYTEST) -m interop $(ARGS)

interop-upstream: all .venv/compiled  ## RocketMQ's own integration tests on our servers; ARGS selects classes
	BATONMQ_PURE=0 $(BIN)/python -m tests.interop.upstream $(ARGS)

sim: all  ## SEEDS=1000 runs of the deterministic simulation
	$(BIN)/python -m tests.simulation --seeds $(SEEDS) $(ARGS)

chaos: all .venv/compiled  ## faults on real processes in network namespaces, and a history checker; Linux, root
	$(BIN)/python -m tests.chaos $(ARGS)

bench: all .venv/compiled  ## figures beside Apache RocketMQ in the same run
	$(BIN)/python -m benchmarks $(ARGS)

COMPILE := .cache/lock/bin/pip-compile -q -U --strip-extras --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --generate-hashes
lock: .venv/python  ## resolve the locked requirements anew
	@test -x .cache/lock/bin/pip-compile || { $(BIN)/python -m venv .cache/lock && .cache/lock/bin/pip install --quiet pip-tools; }
	$(COMPILE) --all-extras -o requirements/all.lock pyproject.toml
	$(COMPILE) -c requirements/all.lock -o requirements/run.lock pyproject.toml

clean:  ## the virtual environment and caches
	find src -name '*.so' -delete
	rm -rf src/batonmq/compiled.json .venv .cache .mypy_cache .pytest_cache .ruff_cache demo-out chaos-out
