# The whole set-up is one file, .venv/.ready: every target builds it first if it is missing or out of date. Tests also
# need the oldest triton that the kernels promise to compile with, beside the installed one: OLDEST_TRITON.
PYTHON ?= python3
BIN := .venv/bin
OLDEST_TRITON := .venv/triton-3.6

.PHONY: demo test check format matrix bench clean

demo: .venv/.ready
	$(BIN)/moesaic demo

# Several processes, each with threads of its own: those that wait must not take the cores of those that work. Files in
# their order: by themselves the files with the fewest tests come last, which are those that compile for minutes.
test: .venv/.ready $(OLDEST_TRITON)/.ready
	OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m pytest -q -m "not gpu" --durations=10 -n auto --maxprocesses 4 --dist loadfile \
		--no-loadscope-reorder

check: .venv/.ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/basedpyright
	$(BIN)/moesaic matrix --check docs/matrix.md

format: .venv/.ready
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

matrix: .venv/.ready
	$(BIN)/moesaic matrix --write docs/matrix.md

bench: .venv/.ready
	$(BIN)/python benchmarks/cpu_layer.py

.venv/.ready: requirements-dev.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "moesaic needs Python 3.11 or newer, but $(PYTHON) is %d.%d: make PYTHON=python3.12" % sys.version_info[:2])'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@

$(OLDEST_TRITON)/.ready: | .venv/.ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target $(@D) 'triton==3.6.0; sys_platform == "linux"'
	mkdir -p $(@D)
	touch $@

clean:
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis build dist
