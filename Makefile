# Every target sets itself up in .venv from a fresh clone; run `make help` for the list.
VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
EXTRAS := dev,train,attacks,report,explore,browser,ball,export
PYTHON ?= python3
JOBS ?= 2
# The kernels that torch, oneDNN and MKL take where there is no AVX-512 (elsewhere these change nothing), and two threads
# a worker where `make test` has one. Threads that wait asleep leave the cores to the other worker.
SMALL_CPU := ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2 \
	OMP_NUM_THREADS=2 OMP_WAIT_POLICY=PASSIVE
# Exact integers, Python's own numbers, compilers, processes, messages and keys are the same on any processor.
NUMERICAL := tests/ops tests/theorems tests/nn/soc tests/nn/protocol tests/frozen tests/certify \
	--ignore tests/certify/test_ball.py \
	-k "not compil and not autoattack and not contract and not cache and not arguments and not errors and not polynomials \
	and not memory_format and not synchronisation and not training_mode and not audit and not command and not derivatives and not hostile"

.DEFAULT_GOAL := help
.PHONY: help demo core test test-small-cpu test-slow docs lint format bench curves results clean

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

$(STAMP): pyproject.toml constraints.txt
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[$(EXTRAS)]"
	touch $@

demo: $(STAMP)  ## the main job: train a provably robust network on embedded data, and certify it
	$(VENV)/bin/skewconv train

core: $(STAMP)  ## the mathematics at work: a filter, its Jacobian, measured and proven error per degree
	$(PY) examples/core.py

test: $(STAMP)  ## all tests and doctests but the slow sweeps
	$(PY) -m pytest -n $(JOBS)

test-small-cpu: $(STAMP)  ## the numerical tests again, as a processor with AVX2 alone and other threads
	$(SMALL_CPU) $(PY) -m pytest -n $(JOBS) $(NUMERICAL)

test-slow: $(STAMP)  ## the exhaustive sweeps too
	$(PY) -m pytest -n $(JOBS) -m "slow or not slow"

docs: $(STAMP)  ## run every tutorial and build the pages, every warning an error: build/docs/index.html
	@echo "pip may say that torchattacks asks for an older requests than Sphinx does: it never loads it, all is well"
	$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[docs]"
	$(PY) -m sphinx -b html -W --keep-going -q docs build/docs
	@echo "the pages are at build/docs/index.html"

lint: $(STAMP)  ## ruff, mypy --strict, the import contract
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(VENV)/bin/lint-imports

format: $(STAMP)  ## let ruff mend what it can
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

# Those that are left out evaluate a run that they are given.
bench: $(STAMP)  ## side-by-side ratios on this machine, an hour or two
	$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[bench]"
	$(PY) -m skewconv bench --out benchmarks/records
	for script in $(filter-out %_tolerance.py %_soundness.py,$(wildcard benchmarks/bench_*.py)); do \
		$(PY) $$script || exit 1; done
	$(PY) benchmarks/bench_plan.py --random 300 --seed 8 --limit 2e9

results: $(STAMP)  ## RESULTS.md, its sentences and its plot from the records
	$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[bench]"
	$(PY) benchmarks/results.py

curves: $(STAMP)  ## where the time goes and how it grows: the plots of docs/performance.md
	$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[bench]"
	$(PY) benchmarks/curves.py

clean:  ## remove the environment and every cache
	rm -rf $(VENV) build docs/tutorials .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
