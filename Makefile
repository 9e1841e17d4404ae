# The two commands of the README are `make demo` and `make test`; CONTRIBUTING.md says more about the others.
# Each sets up .venv by itself on a machine that has only Python 3.11, git and make.

# Which pinned libraries: cpu or cuda, as in `make demo DEVICE=cuda`.
DEVICE ?= cpu
# Tried in this order; must be Python 3.11. Override it as in `make test PYTHON=/opt/python/bin/python3.11`.
PYTHON ?= python3.11 python3

# Quick ones first.
BENCHMARKS = cluster exchange codec kernels adaqp_parity adaqp adaqp_bits adaqp_quality reshard edge_cut parity kill_resume network reader recd_storage recd_reader recd_train recd_clicks recsys_parity torchrec_peer typed_graphs wire serving sampler \
	epoch baseline salient simulator robe tensor_train mlperf_tables compression vip large_graph dgl_distributed salient_quality link_prediction ikjt recd_quality \
	graph_vectors vertex_tables pairs plan_auto planner_speed cost_model neuroshard oper gpu

# Without this, a Python started in this folder would take the folder comm for the package of that name.
export PYTHONSAFEPATH = 1
# For mpirun and windrow, here and in what they start.
export PATH := $(CURDIR)/.venv/bin:$(PATH)

INSTALLED = .venv/.stamp-$(DEVICE)
INSTALLED_FOR_DEVELOPMENT = .venv/.stamp-$(DEVICE)-dev

# Settings of the DLRM: its log is small, so regularisation is what it needs most.
CLICKS = training.epochs=2 training.batch_size=1024 training.schedule.kind=linear model.dropout=0.2 \
	tables.dim=8 tables.learning_rate=0.005 tables.initial_scale=0.01 tables.weight_decay=1e-4

.PHONY: help demo test lint type bench bench-full install clean
.DELETE_ON_ERROR:

help:
	@echo "make demo        train GraphSAGE on a real graph and a DLRM on a generated click log, each with 2 MPI ranks"
	@echo "make test        all tests, on 1, 2 and 4 MPI ranks"
	@echo "make lint        style: ruff check and ruff format --check"
	@echo "make type        types: mypy, strict"
	@echo "make bench       every benchmark in its short form, results in benchmarks/results"
	@echo "make bench-full  every benchmark in full: takes hours"
	@echo "make install     only set up .venv, for development"
	@echo "make clean       remove what tools have made (not .venv, not runs/ and stores/)"

demo: $(INSTALLED)
	@echo "== Graph: which crowd workers were banned? GraphSAGE on 2 ranks"
	windrow partition examples/tolokers.toml --parts 2 --overwrite
	mpirun -n 2 windrow train examples/tolokers.toml
	@echo
	@echo "== Click log: 200,000 generated samples of sessions, split by session. DLRM on 2 ranks"
	windrow generate-log stores/clicks.parquet --samples 200000 --length-scale 0.1 --rows-scale 0.002 \
		--recipe stores/clicks.toml --overwrite
	windrow prepare stores/clicks.toml --overwrite
	mpirun -n 2 windrow train stores/clicks.toml $(CLICKS:%=--set %)
	@echo
	@python examples/compare_runs.py $$(ls -td runs/tolokers-*/ | head -n 1) $$(ls -td runs/clicks-*/ | head -n 1) \
		--out runs/demo.html

test: $(INSTALLED_FOR_DEVELOPMENT)
	@python tools/run_tests.py

lint: $(INSTALLED_FOR_DEVELOPMENT)
	ruff check .
	ruff format --check .

type: $(INSTALLED_FOR_DEVELOPMENT)
	mypy

bench: FORM = --short
bench-full: FORM =
bench bench-full: $(INSTALLED_FOR_DEVELOPMENT)
	@failed=; for name in $(BENCHMARKS); do \
		echo "== $$name"; python benchmarks/$$name.py $(FORM) || failed="$$failed $$name"; \
	done; \
	python -m benchmarks.harness.markdown benchmarks/results || failed="$$failed results/README.md"; \
	if [ -n "$$failed" ]; then echo "failed, see above:$$failed" >&2; exit 1; fi

install: $(INSTALLED_FOR_DEVELOPMENT)

clean:
	rm -rf .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist windrow.egg-info
	find . -path ./.venv -prune -o -name __pycache__ -type d -exec rm -rf {} +

.venv/.stamp-python:
	@for candidate in $(PYTHON); do \
		if "$$candidate" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2> /dev/null; then \
			"$$candidate" -m venv .venv && touch $@ && exit 0; \
			echo "windrow: $$candidate could not make .venv: see its message above" >&2; exit 1; \
		fi; \
	done; \
	echo "windrow: the pinned libraries need Python 3.11, and none of these is one: $(PYTHON)." >&2; \
	echo "Install it, or name it: make $(MAKECMDGOALS) PYTHON=/path/to/python3.11" >&2; \
	exit 1

$(INSTALLED): .venv/.stamp-python requirements/common.txt requirements/$(DEVICE).txt requirements/torchrec.txt pyproject.toml
	python -m pip install --disable-pip-version-check -r requirements/$(DEVICE).txt
	python -m pip install --disable-pip-version-check --no-deps -r requirements/torchrec.txt
	python -m pip install --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

$(INSTALLED_FOR_DEVELOPMENT): $(INSTALLED) requirements/dev.txt requirements/dev-$(DEVICE).txt
	python -m pip install --disable-pip-version-check -r requirements/dev-$(DEVICE).txt
	@touch $@
