# `make demo` and `make test` need nothing but Python 3.10+, a C++ compiler (optional) and the package index.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Without byte code every start would compile torch and transformers anew, for ten seconds and more.
unexport PYTHONDONTWRITEBYTECODE

# torch first and alone: it decides which build of itself every other package is resolved against.
# Of thousands of files few are imported, so they are compiled then.
PIP_INSTALL := $(BIN)/pip install -q --no-compile -c constraints.txt
INSTALL = $(PYTHON) -m venv --clear $(VENV) && $(PIP_INSTALL) torch && $(PIP_INSTALL) -e
# The demo and the models need less than tests and plots; what is there already with everything serves both.
READY := $(VENV)/$(if $(or $(filter-out demo models,$(MAKECMDGOALS)),$(wildcard $(VENV)/.dev)),.dev,.demo)
SOURCES := pyproject.toml constraints.txt CMakeLists.txt $(wildcard csrc/*/* buildtools/*)

.PHONY: demo test tests slow aot lint models oracle bench guard determine wheel check-wheel docs clean

demo: $(READY)
	$(BIN)/ensemble-decode demo

# Lint and types beside the tests, in the time that the cores have left.
test: $(READY)
	$(MAKE) --no-print-directory -j2 lint tests

tests: models
	$(BIN)/pytest -q -n 2 --dist worksteal --durations=15

# The tests that take minutes: batch jobs on a real Ray cluster, 500 rows one by one, jobs killed from outside, lm_eval's own
# command line, a study of the demo models, where the time goes.
slow: models
	$(BIN)/pytest -q -m slow

# Every Triton kernel compiled for 8.0, 9.0 and 10.0, for up to eight models, and its machine code checked: five minutes.
aot: $(READY)
	$(BIN)/pytest -q -m slow tests/kernels/test_triton_aot.py

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	PATH="$(CURDIR)/$(BIN):$$PATH" nice buildtools/typecheck
	PATH="$(CURDIR)/$(BIN):$$PATH" nice buildtools/imports

# Fetched and converted once, so that no test waits for it.
models: $(READY)
	$(BIN)/ensemble-decode models fetch

$(VENV)/.demo: $(SOURCES)
	$(INSTALL) '.[demo]'
	touch $@

$(VENV)/.dev: $(SOURCES)
	$(INSTALL) '.[demo,dev,docs]'
	touch $@

# Hours: recomputes every golden file that is missing with the slow decoder (resumes where it stopped), then runs the
# package's decoder on all of them.
oracle: models
	$(BIN)/python tests/support/oracle/sweep.py
	$(BIN)/python tests/support/oracle/sweep.py --check

# Writes docs/benchmarks/latency.md and its plots, in about a quarter of an hour on two cores. Threads that sleep while they wait, in
# every configuration alike: spinning ones stall each other as soon as anything else wants a core.
bench: models
	mkdir -p .benchmarks
	OMP_WAIT_POLICY=passive $(BIN)/python benches/bench_latency.py docs/benchmarks --json .benchmarks/latency.json --html .benchmarks/latency.html

# Ratios of speed that must not fall; one minute on a quiet core.
guard: models
	$(BIN)/python benches/guard.py

# Which of three small models to ensemble: the report of docs/determine.md, in minutes on two cores.
determine: models
	$(BIN)/ensemble-decode determine --demo --out .benchmarks/determine

# sdist and wheel in dist/. From Python 3.12 on one wheel serves every version (abi3).
wheel: $(READY)
	rm -rf dist
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m build --outdir dist .

# Installs that wheel where there is no compiler, cmake or CUDA, and runs the README's first example there.
check-wheel: wheel
	$(BIN)/python buildtools/check_wheel.py

# The pages of docs/ as a site in build/site; a broken link or a missing docstring ends it.
docs: $(READY)
	PATH="$(CURDIR)/$(BIN):$$PATH" buildtools/docs build --strict

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .benchmarks
